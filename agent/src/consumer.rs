//! Telling the consumer that its kubeconfig for the seed changed. What it was last told of is kept as a hash of that
//! file, so a restart neither forgets it nor tells it twice, and a renewal, which changes the pair only, tells nothing.

use std::process::Stdio;
use std::time::Duration;

use contract::digest::sha256_hex;
use jiff::SignedDuration;
use tokio::process::Command;
use tracing::info;

use crate::core::{Job, Patience};
use crate::machine::Machine;
use crate::store::{Access, Handled};

const DEADLINE: Duration = Duration::from_secs(30);
/// A consumer that is restarted over and over does no work.
const AT_MOST_EVERY: SignedDuration = SignedDuration::from_mins(1);

impl Machine {
    pub(crate) async fn tell_consumer(&mut self) {
        let outcome = run(&self.settings.hook, DEADLINE).await;
        if let Err(problem) = outcome {
            // Slow: its first wait is about the minute that must lie between two runs.
            return self.failed(Job::Consumer, Patience::Slow, &problem);
        }
        let handled = Handled {
            told: self.wanted_hash(),
            ..self.handled.clone()
        };
        match self.store.write_handled(&handled) {
            Ok(()) => {
                if let Some(program) = self.settings.hook.first() {
                    info!(firewall = %self.object(), hook = %program, "consumer told of its new kubeconfig for the seed");
                }
                self.handled = handled;
                self.refresh_told();
                self.done(Job::Consumer, AT_MOST_EVERY);
            }
            Err(error) => self.failed(Job::Consumer, Patience::Slow, &error),
        }
    }

    pub(crate) fn refresh_told(&mut self) {
        self.state.told = self.handled.told.is_some() && self.handled.told == self.wanted_hash();
    }

    fn wanted_hash(&self) -> Option<String> {
        let hash = |access: &Access| {
            let text = self.store.seed_kubeconfig(access).ok()?;
            Some(sha256_hex(text.as_bytes()))
        };
        self.access.as_ref().and_then(hash)
    }
}

/// No shell: what stands in the command is a program and its arguments.
async fn run(hook: &[String], deadline: Duration) -> Result<(), String> {
    let Some((program, arguments)) = hook.split_first() else {
        return Ok(());
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let running = command
        .spawn()
        .map_err(|e| format!("{program} cannot be started: {e}"))?
        .wait_with_output();
    match tokio::time::timeout(deadline, running).await {
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => Err(format!("{program} failed: {}", output.status)),
        Ok(Err(e)) => Err(format!("{program} failed: {e}")),
        Err(_) => Err(format!(
            "{program} did not end within {} s and was stopped",
            deadline.as_secs()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_hook_is_run_without_a_shell_and_its_failure_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("a; touch b");
        run(&hook(&["touch", &made.display().to_string()]), DEADLINE)
            .await
            .unwrap();
        assert!(made.exists() && !dir.path().join("b").exists());
        assert!(
            run(&hook(&["false"]), DEADLINE)
                .await
                .unwrap_err()
                .contains("exit status: 1")
        );
        let missing = run(&hook(&["no-such-program-here"]), DEADLINE).await;
        assert!(missing.unwrap_err().contains("cannot be started"));
        run(&[], DEADLINE).await.unwrap();
    }

    #[tokio::test]
    async fn a_hook_that_hangs_is_stopped() {
        let stopped = run(&hook(&["sleep", "3600"]), Duration::from_secs(1)).await;
        assert!(stopped.unwrap_err().contains("did not end within 1 s"));
    }
}
