//! The consumer in `tests/consumer`: a real client-go program that uses what the agent keeps on a machine. Owns its
//! process, and passes the agent's hook on to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::harness::Way;
use crate::programs::Machine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes itself a new client when a file's content changes.
    Watching,
    /// client-go as it comes, set up as today's firewall-controller does, which is restarted by the hook.
    Stock,
}

/// In the machine's folder.
pub const LOG: &str = "consumer.jsonl";

/// Asks for its own Firewall every 100 ms until it is stopped.
pub struct Consumer {
    child: Child,
    log: PathBuf,
    hook: JoinHandle<()>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Sums {
    pub requests: u64,
    /// 401, 403, or TLS in either direction.
    pub failed: u64,
    /// The connection was closed under the request, which was then made again.
    pub retried: u64,
    /// Timeouts, and answers that say nothing of the access.
    pub other: u64,
    /// How often a new client was made.
    pub clients: u64,
    pub errors: Vec<String>,
}

impl Consumer {
    /// The machine has its kubeconfig for the seed. The first call may build the program.
    pub async fn start(machine: &Machine, kind: Kind) -> anyhow::Result<Self> {
        Self::start_as(machine, kind, None, &[]).await
    }

    /// In another network, say, with an environment of its own.
    pub async fn start_as(
        machine: &Machine,
        kind: Kind,
        way: Option<&Way>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let program = binary().await?;
        let log = machine.path().join(LOG);
        let out = fs::File::create(&log)?;
        let mut command = way.map_or_else(|| Command::new(&program), |way| way.command(&program));
        command
            .arg("-kubeconfig")
            .arg(machine.seed_kubeconfig())
            .arg("-firewall")
            .arg(&machine.firewall)
            // Neither a proxy nor a kubeconfig of the caller's.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out);
        if kind == Kind::Stock {
            command.arg("-stock");
        }
        let child = command.spawn().context("the consumer cannot be started")?;
        let hook = tokio::spawn(pass_on(machine.path().join("hook"), Pid::from_child(&child)));
        Ok(Self { child, log, hook })
    }

    /// Fails with what it said if it ended by itself.
    pub fn alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the consumer ended ({status}):\n{}", self.log()),
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it. The requests that are under way are waited for.
    pub async fn stop(mut self) -> anyhow::Result<Sums> {
        self.alive()?;
        self.hook.abort();
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let end = tokio::time::Instant::now() + Duration::from_secs(30);
        while self.child.try_wait()?.is_none() {
            if tokio::time::Instant::now() > end {
                bail!("the consumer does not end:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let log = self.log();
        let last = log.lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| format!("the consumer's last line is no sum:\n{log}"))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.hook.abort();
        // It may have ended, which is all that is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// On a machine of these tests the hook touches a file.
async fn pass_on(file: PathBuf, consumer: Pid) {
    let touched = |file: &Path| -> Option<SystemTime> { fs::metadata(file).ok()?.modified().ok() };
    let mut known = touched(&file);
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = touched(&file);
        if now != known {
            known = now;
            let _ = kill_process(consumer, Signal::HUP);
        }
    }
}

/// Where the program is. The first call may build it.
pub async fn binary() -> anyhow::Result<PathBuf> {
    static FOUND: OnceCell<PathBuf> = OnceCell::const_new();
    let found = FOUND.get_or_try_init(|| async {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/consumer/build.sh");
        let built = tokio::process::Command::new(script)
            .stdin(Stdio::null())
            // Shown as it comes: a build takes a while.
            .stderr(Stdio::inherit())
            .output()
            .await
            .with_context(|| format!("{script} cannot be started"))?;
        if !built.status.success() {
            bail!("{script} failed: what it said is above");
        }
        Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim_end_matches('\n')))
    });
    found.await.cloned()
}
