//! The agent as the process that it is on a machine, to be killed at any moment.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use super::Site;

static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
/// So long nothing may change before it is taken to be at its end.
const QUIET: Duration = Duration::from_secs(3);

pub struct AgentProcess(Child);

impl AgentProcess {
    /// Kills it as soon as anything on the machine is other than `seen`; says whether that came.
    pub async fn kill_at_change(&mut self, site: &Site, seen: &[(PathBuf, String)]) -> anyhow::Result<bool> {
        let start = Instant::now();
        while start.elapsed() < QUIET {
            if site.fingerprint() != seen {
                self.0.kill().await?;
                return Ok(true);
            }
            ensure!(self.0.try_wait()?.is_none(), "it ended by itself");
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        self.0.kill().await?;
        Ok(false)
    }
}

impl Site {
    pub async fn start_process(&self) -> anyhow::Result<AgentProcess> {
        let program = PROGRAM.get_or_try_init(build).await?;
        let mut command = Command::new(program);
        let paths = self.paths();
        command
            .arg("run")
            .arg("--config-dir")
            .arg(paths.config)
            .arg("--state-dir")
            .arg(paths.state);
        command.args(["--hook", "", "--certificate-duration", "1h"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        Ok(AgentProcess(
            command.spawn().context("firewall-agent cannot be started")?,
        ))
    }
}

impl Site {
    /// What a command of the program prints.
    pub async fn command(&self, words: &[&str]) -> anyhow::Result<String> {
        let paths = self.paths();
        let mut command = Command::new(PROGRAM.get_or_try_init(build).await?);
        command
            .args(words)
            .arg("--config-dir")
            .arg(paths.config)
            .arg("--state-dir")
            .arg(paths.state);
        let output = command.output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The program stands beside the tests once it is built.
async fn build() -> anyhow::Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "-q", "-p", "agent", "--bin", "firewall-agent"])
        .status();
    ensure!(built.await?.success(), "firewall-agent cannot be built");
    let test = std::env::current_exe()?;
    let target = test
        .parent()
        .and_then(|deps| deps.parent())
        .context("a test stands in target/<profile>/deps")?;
    Ok(target.join("firewall-agent"))
}
