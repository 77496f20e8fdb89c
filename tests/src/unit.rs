//! firewall-controller's unit on a machine, played: a program that reads its kubeconfig when it starts and never again, is
//! started anew whenever it ends, and the hook that ends it, as `systemctl try-restart` does. Owns what is written of both.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::consumer::{Sums, binary};
use crate::programs::Machine;

/// `$0` is the consumer, `$1` the folder, the rest its arguments. All are of one group, which ends with this process.
const RUN: &str = r#"
dir=$1
shift
exec 3<&0
( cat <&3 >/dev/null; kill -9 -$$ ) &
while :; do
	"$0" "$@" </dev/null >>"$dir/log" 2>&1 3<&- &
	echo $! >"$dir/pid.new"
	mv "$dir/pid.new" "$dir/pid"
	wait $!
	[ -e "$dir/stopped" ] && exit
	sleep 0.1
done
"#;

/// `DIR` is the folder. Where nothing runs, nothing is restarted.
const RESTART: &str = r#"#!/bin/sh
date -u +%Y-%m-%dT%H:%M:%S.%NZ >>'DIR/runs'
[ ! -e 'DIR/fails' ] || exit 3
[ -e 'DIR/pid' ] || exit 0
before=$(cat 'DIR/pid')
kill -TERM "$before" || exit 4
while [ "$(cat 'DIR/pid')" = "$before" ]; do sleep 0.05; done
"#;

/// The hook of a machine, before its agent runs.
pub struct Hook {
    dir: PathBuf,
}

impl Hook {
    pub fn of(machine: &Machine) -> anyhow::Result<Self> {
        let hook = Self {
            dir: machine.path().join("unit"),
        };
        fs::create_dir(&hook.dir)?;
        let text = RESTART.replace("DIR", &hook.dir.display().to_string());
        fs::write(hook.program(), text)?;
        fs::set_permissions(hook.program(), fs::Permissions::from_mode(0o755))?;
        Ok(hook)
    }

    fn program(&self) -> PathBuf {
        self.dir.join("restart")
    }

    /// For `--hook`.
    #[must_use]
    pub fn command(&self) -> String {
        self.program().display().to_string()
    }

    /// From here on it fails, or does its work again.
    pub fn fails(&self, so: bool) -> anyhow::Result<()> {
        let path = self.dir.join("fails");
        if so { fs::write(path, "") } else { fs::remove_file(path) }.context("the hook's switch")
    }

    /// When it was run.
    pub fn runs(&self) -> anyhow::Result<Vec<Timestamp>> {
        let text = fs::read_to_string(self.dir.join("runs")).unwrap_or_default();
        text.lines().map(|line| line.parse().context("a time")).collect()
    }
}

/// Ends when dropped.
pub struct Unit {
    child: Child,
    dir: PathBuf,
}

/// What became of all requests, over all restarts.
#[derive(Debug)]
pub struct Requests {
    pub count: u64,
    /// How often it was started.
    pub starts: usize,
    /// Each that did not succeed: when it was given up, and why.
    pub lost: Vec<(Timestamp, String)>,
}

impl Unit {
    /// client-go as today's firewall-controller has it, by the path that that one reads.
    pub async fn start(machine: &Machine, hook: &Hook) -> anyhow::Result<Self> {
        let kubeconfig = machine.config().join(".seed-kubeconfig");
        let child = Command::new("sh")
            .args(["-c", RUN])
            .arg(binary().await?)
            .arg(&hook.dir)
            .arg("-stock")
            .arg("-kubeconfig")
            .arg(kubeconfig)
            .args(["-firewall", &machine.firewall])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("the unit cannot be started")?;
        Ok(Self {
            child,
            dir: hook.dir.clone(),
        })
    }

    /// Ends it in good order.
    pub async fn stop(mut self) -> anyhow::Result<Requests> {
        fs::write(self.dir.join("stopped"), "")?;
        let stop = r#"kill -TERM "$(cat "$0")""#;
        Command::new("sh")
            .args(["-c", stop])
            .arg(self.dir.join("pid"))
            .status()?;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while self.child.try_wait()?.is_none() {
            ensure!(std::time::Instant::now() < end, "it does not end: {}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        requests(&self.dir)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A line of sums for each start, and one for each request that did not succeed.
fn requests(dir: &Path) -> anyhow::Result<Requests> {
    let log = fs::read_to_string(dir.join("log"))?;
    let mut all = Requests {
        count: 0,
        starts: 0,
        lost: Vec::new(),
    };
    for line in log.lines() {
        let found: Value = serde_json::from_str(line).with_context(|| format!("the consumer said: {line}"))?;
        if found["time"].is_null() {
            let sums: Sums = serde_json::from_value(found)?;
            all.count += sums.requests;
            all.starts += 1;
        } else if found["outcome"] != "good" {
            let time = found["time"].as_str().context("no time")?.parse()?;
            all.lost.push((time, found["error"].to_string()));
        }
    }
    Ok(all)
}
