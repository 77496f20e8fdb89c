//! A Debian that runs with a systemd of its own, in namespaces, until it is dropped.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use tests::harness::{PATIENCE, eventually};

pub(crate) struct Container {
    dir: TempDir,
    outside: Option<Child>,
    init: String,
}

impl Container {
    /// A copy of this root; nothing runs yet.
    pub(crate) fn of(root: &Path) -> anyhow::Result<Self> {
        let dir = TempDir::new()?;
        let copied = Command::new("cp")
            .arg("-a")
            .arg(root)
            .arg(dir.path().join("root"))
            .status()?;
        ensure!(copied.success(), "{} cannot be copied", root.display());
        Ok(Self {
            dir,
            outside: None,
            init: String::new(),
        })
    }

    /// Where its files are, seen from outside. What is mounted inside is not there.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path.trim_start_matches('/'))
    }

    pub(crate) fn read(&self, path: &str) -> anyhow::Result<String> {
        fs::read_to_string(self.path(path)).with_context(|| path.to_owned())
    }

    pub(crate) fn put(&self, path: &str, text: impl AsRef<[u8]>, mode: u32) -> anyhow::Result<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    }

    pub(crate) async fn boot(&mut self) -> anyhow::Result<()> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/package/boot.sh");
        let mut outside = Command::new(script)
            .arg(self.root())
            // With it ends all of it, in whichever way this process does.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = outside.stdout.take().context("no output")?;
        self.outside = Some(outside);
        let mut init = String::new();
        BufReader::new(said).read_line(&mut init)?;
        init.trim().clone_into(&mut self.init);
        let log = || fs::read_to_string(self.dir.path().join("root.log")).unwrap_or_default();
        ensure!(!self.init.is_empty(), "it does not boot: {}", log());
        eventually("systemd", PATIENCE, || async {
            let state = self.run("systemctl is-system-running || true")?;
            ensure!(["running", "degraded"].contains(&state.trim()), "it is {state}");
            Ok(())
        })
        .await
        .with_context(log)
    }

    /// What a command says, as root in there.
    pub(crate) fn run(&self, command: &str) -> anyhow::Result<String> {
        let output = Command::new("nsenter")
            .args(["--target", &self.init])
            .args(["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd"])
            .args(["sh", "-c", command])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()?;
        let [said, failed] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        ensure!(output.status.success(), "{command}: {}\n{said}{failed}", output.status);
        Ok(said)
    }

    /// One property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> anyhow::Result<String> {
        Ok(self
            .run(&format!("systemctl show --value -p {name} {unit}"))?
            .trim()
            .to_owned())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(mut outside) = self.outside.take() {
            drop(outside.stdin.take());
            let _ = outside.wait();
        }
    }
}
