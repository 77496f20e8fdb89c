//! Telling the consumer that its kubeconfig for the seed changed. What it was last told of is kept as a hash of that
//! file, so a restart neither forgets it nor tells it twice, and a renewal, which changes the pair only, tells nothing. How
//! often the hook may be run is the core's decision.

use std::process::Stdio;
use std::time::Duration;

use contract::digest::sha256_hex;
use jiff::{SignedDuration, Timestamp};
use tokio::process::Command;
use tracing::info;

use crate::core::{Event, Job, Patience};
use crate::machine::Machine;
use crate::store::{Access, Handled, StoreError};

const DEADLINE: Duration = Duration::from_secs(30);

impl Machine {
    pub(crate) async fn tell_consumer(&mut self) {
        if let Err(error) = self.note_hook() {
            return self.failed(Job::Consumer, Patience::Slow, &error);
        }
        let outcome = run(&self.settings.hook, DEADLINE).await;
        if let Err(problem) = outcome {
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
                self.done(Job::Consumer, SignedDuration::ZERO);
            }
            Err(error) => self.failed(Job::Consumer, Patience::Slow, &error),
        }
    }

    /// Before it is run: one that was cut off may have done its work.
    fn note_hook(&mut self) -> Result<(), StoreError> {
        if self.settings.hook.is_empty() {
            return Ok(());
        }
        let handled = Handled {
            hook_run: Some(Timestamp::now()),
            ..self.handled.clone()
        };
        self.store.write_handled(&handled)?;
        self.handled = handled;
        self.after(Event::HookRun);
        Ok(())
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
