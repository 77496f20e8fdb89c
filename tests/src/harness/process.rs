//! One process of a control plane: its log, its end, and that it never outlives this process.
//! The kernel closes the pipe to its standard input however this process dies, SIGKILL included, and
//! the child ends on that. Each child leads its own process group, which is ended as a whole.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use super::binaries::{Binaries, Program};

pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
    /// Held open for as long as the process shall run.
    stdin: Option<ChildStdin>,
}

impl Process {
    /// `data` is deleted by the processes themselves if this process ends without stopping them.
    pub fn start(binaries: &Binaries, program: Program, args: &[String], data: &Path) -> anyhow::Result<Self> {
        let name = program.name();
        let log = data.join(format!("{name}.log"));
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("the log {} cannot be opened", log.display()))?;
        let mut command = with_end(binaries, program, data);
        let mut child = command
            .process_group(0)
            .args(args)
            .current_dir(data)
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let stdin = child.stdin.take();
        Ok(Self {
            name,
            child,
            log,
            stdin,
        })
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of its log if the process is gone.
    pub fn alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!(
                "{} ended ({status}); the end of its log:\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// An orderly end, and a hard one when that takes too long.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        let end = Instant::now() + ORDERLY;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.end();
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // The one error is that nobody is left to get it.
            let _ = kill_process_group(group, signal);
        }
    }

    fn end(&mut self) {
        // Only while it is not reaped: after that its id may be another process's.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
        self.stdin = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

const LOG_LINES: usize = 25;
const ORDERLY: Duration = Duration::from_secs(8);

/// Our own binary ends with its standard input. Others do not know that, and get a shell that does.
fn with_end(binaries: &Binaries, program: Program, data: &Path) -> Command {
    let mut command = binaries.command(program, data);
    if binaries.end_with_caller() {
        command
            .env("CONTROL_PLANE_UNTIL_STDIN_CLOSES", "1")
            .env("CONTROL_PLANE_REMOVE_DIR", data);
        return command;
    }
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(END_WITH_STDIN)
        .arg(data)
        .arg(command.get_program())
        .args(command.get_args());
    shell
        .env_clear()
        .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    shell
}

/// `$0` is the directory to remove and `$$` the program. Its group is this shell's, so ending the group
/// ends the watcher too; and a watcher that finds the program gone leaves the directory alone.
const END_WITH_STDIN: &str = r#"
exec 3<&0
( cat <&3 >/dev/null; kill -9 $$ && { sleep 1; rm -rf "$0"; } ) &
exec "$@" </dev/null 3<&-
"#;
