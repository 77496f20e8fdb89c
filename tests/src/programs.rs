//! The programs under test as real processes: the approver with exactly the identity that the manifests grant, and
//! agents in folders that stand for their machines. Here is what a running program is; where each has its place, below.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit};

use crate::harness::{PATIENCE, Way, eventually};
use crate::http::Http;
use crate::secrets;

pub use self::approver::{ApproverHome, Pod, export, printed};
pub use self::machine::{Machine, bootstrap_kubeconfig};
pub use self::release::Release;

mod approver;
mod machine;
mod release;

const AGENT: &str = "firewall-agent";
const APPROVER: &str = "firewall-approver";

/// A running program. It is killed when this value is dropped.
pub struct Program {
    child: Child,
    log: PathBuf,
    /// Where its own lines begin in a log that others wrote before.
    log_from: u64,
}

/// Where a program is killed: at the nth time that it enters this system call.
#[derive(Clone, Copy, Debug)]
pub struct KilledAt<'a> {
    pub syscall: &'a str,
    pub nth: u32,
}

impl Program {
    fn start(program: &Path, args: &[String], log: &Path, killed: Option<KilledAt<'_>>) -> anyhow::Result<Self> {
        Self::start_in(program, args, log, killed, &[])
    }

    fn start_in(
        program: &Path,
        args: &[String],
        log: &Path,
        killed: Option<KilledAt<'_>>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let command = match killed {
            None => clean(Command::new(program)),
            Some(KilledAt { syscall, nth }) => {
                let mut strace = clean(Command::new("strace"));
                let inject = format!("inject={syscall}:signal=SIGKILL:when={nth}");
                let quiet = ["-f", "-qqq", "-o", "/dev/null", "-e", "signal=none", "-e", &inject];
                // It counts for each thread, so there has to be one that does the work.
                strace.args(quiet).arg(program).env("TOKIO_WORKER_THREADS", "1");
                strace
            }
        };
        Self::spawn(command, args, log, environment)
    }

    /// Somewhere else, with arguments and environment of the caller's alone.
    fn start_at(
        way: &Way,
        program: &Path,
        args: &[String],
        log: &Path,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        Self::spawn(clean(way.command(program)), args, log, environment)
    }

    fn spawn(mut command: Command, args: &[String], log: &Path, environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let log_from = out.metadata()?.len();
        let child = command
            .args(args)
            .envs(environment.iter().copied())
            // With whoever traces it, it is one group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            child,
            log: log.to_owned(),
            log_from,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where an approver serves health and metrics.
    pub async fn http(&self) -> anyhow::Result<Http> {
        self.listens("health and metrics are served").await.map(Http)
    }

    /// Where an approver serves its webhook.
    pub async fn webhook(&self) -> anyhow::Result<SocketAddr> {
        self.listens("the webhook for userdata is served").await
    }

    async fn listens(&self, words: &str) -> anyhow::Result<SocketAddr> {
        let what = format!("the address in {}", self.log.display());
        let address = eventually(&what, PATIENCE, || async {
            let log = fs::read(&self.log)?;
            let own = log.get(usize::try_from(self.log_from)?..).context("the log was cut")?;
            let own = String::from_utf8_lossy(own);
            let line = own.lines().find(|line| line.contains(words));
            let line: serde_json::Value = serde_json::from_str(line.context("not yet")?)?;
            Ok(line["listen"].as_str().context("no address")?.parse()?)
        });
        address.await
    }

    /// SIGKILL: what a power cut leaves.
    pub fn kill(mut self) {
        self.end();
    }

    /// Dies as by a fault of its own, where nothing limits what the kernel may write of it.
    pub fn abort(mut self) -> anyhow::Result<ExitStatus> {
        let id = rustix::process::Pid::from_child(&self.child);
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        rustix::process::prlimit(Some(id), Resource::Core, unlimited)?;
        rustix::process::kill_process(id, rustix::process::Signal::ABORT)?;
        Ok(self.child.wait()?)
    }

    fn end(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        // Once it was waited for, its number may be another's.
        if self.runs() {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let id = rustix::process::Pid::from_child(&self.child);
        Ok(rustix::process::kill_process(id, signal)?)
    }

    /// SIGTERM, and the exit code.
    pub async fn stop(mut self) -> anyhow::Result<Option<i32>> {
        self.signal(rustix::process::Signal::TERM)?;
        self.ended(Duration::from_secs(15)).await
    }

    /// The exit code of a program that ends by itself.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<Option<i32>> {
        let end = tokio::time::Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            if tokio::time::Instant::now() > end {
                bail!("the program did not end within {limit:?}:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
        let log = self.log();
        no_secrets(&self.log, secrets::suspicious(&log));
    }
}

/// A test that fails already fails for its own reason.
fn no_secrets(log: &Path, found: Option<String>) {
    if let Some(found) = found.filter(|_| !std::thread::panicking()) {
        panic!("a secret is in {}: {found}", log.display());
    }
}

/// Nothing of the test's own environment: a KUBECONFIG there would be another cluster's.
fn clean(mut command: Command) -> Command {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        // Side by side on one machine; its log says which port it got. Of an older version it is none's.
        .env("FIREWALL_APPROVER_LISTEN", "127.0.0.1:0")
        .env("RUST_BACKTRACE", "1");
    command
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// The version that was put there; where none was, the one of this build.
fn installed(name: &str, dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    if path.is_file() { Ok(path) } else { binary(name) }
}

/// The binaries stand beside the test's own folder; `make` builds them first.
fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let found = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.with_context(|| format!("{name} is not built: run `cargo build --workspace --bins` first"))
}
