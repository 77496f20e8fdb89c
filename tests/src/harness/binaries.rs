//! Where kube-apiserver, kube-controller-manager, etcd and kubectl are: what the environment names,
//! or what `control-plane/build.sh` has built. The choice is that script's alone.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use tokio::sync::OnceCell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    ApiServer,
    ControllerManager,
    Etcd,
    Kubectl,
}

impl Program {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Etcd => "etcd",
            Self::Kubectl => "kubectl",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Binaries {
    path: PathBuf,
    separate: bool,
}

impl Binaries {
    /// The first call in a process may build for minutes; a failure is a sentence that says what to do.
    pub async fn find() -> anyhow::Result<Self> {
        static FOUND: OnceCell<Binaries> = OnceCell::const_new();
        let found = FOUND.get_or_try_init(|| async {
            let path = tokio::task::spawn_blocking(build)
                .await
                .context("build.sh panicked")??;
            let separate = path.is_dir();
            anyhow::Ok(Self { path, separate })
        });
        found.await.cloned()
    }

    /// How a person calls it.
    pub fn command_line(&self, program: Program) -> String {
        let path = self.path.display();
        if self.separate {
            format!("{path}/{}", program.name())
        } else {
            format!("{path} {}", program.name())
        }
    }

    /// The program with an empty environment: proxies and kubeconfigs of the caller are not ours.
    #[must_use]
    pub fn command(&self, program: Program, home: &Path) -> Command {
        let mut command = if self.separate {
            Command::new(self.path.join(program.name()))
        } else {
            let mut command = Command::new(&self.path);
            command.arg(program.name());
            command
        };
        command.env_clear().env("HOME", home).stdin(Stdio::null());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }

    /// Whether the programs end by themselves with the process that holds their standard input.
    #[must_use]
    pub fn end_with_caller(&self) -> bool {
        !self.separate
    }
}

fn build() -> anyhow::Result<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/control-plane/build.sh");
    let mut child = Command::new(script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{script} cannot be started"))?;
    // Shown as it comes, because a build takes minutes, and kept for the error.
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().context("no stderr")?).lines() {
        let line = line?;
        let _ = writeln!(std::io::stderr(), "{line}");
        said = line;
    }
    let mut path = String::new();
    child.stdout.take().context("no stdout")?.read_to_string(&mut path)?;
    if !child.wait()?.success() {
        bail!("{said}");
    }
    Ok(PathBuf::from(path.trim_end_matches('\n')))
}
