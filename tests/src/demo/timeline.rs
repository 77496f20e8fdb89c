//! What the demo prints: numbered steps with their times, and at the very end how many there were.
#![allow(clippy::print_stdout, reason = "a demo is there to be read")]

use std::process::ExitCode;
use std::time::Instant;

pub(super) struct Timeline {
    began: Instant,
    steps: u32,
    failed: u32,
    ended: bool,
}

impl Timeline {
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            steps: 0,
            failed: 0,
            ended: false,
        }
    }

    /// Runs one step and tells how it went: by the text that comes with its outcome, or by its error.
    pub(super) async fn step<T>(
        &mut self,
        title: &str,
        step: impl Future<Output = anyhow::Result<(T, String)>>,
    ) -> Option<T> {
        self.steps += 1;
        let began = Instant::now();
        let outcome = step.await;
        let (at, took) = (self.began.elapsed().as_secs_f64(), began.elapsed().as_secs_f64());
        let mark = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!(
            "{:>2}. at {at:>5.1} s, took {took:>5.2} s  {mark:<6}  {title}",
            self.steps
        );
        let (outcome, said) = match outcome {
            Ok((outcome, said)) => (Some(outcome), said),
            Err(error) => {
                self.failed += 1;
                (None, format!("{error:#}"))
            }
        };
        for line in said.lines() {
            println!("      {line}");
        }
        outcome
    }

    pub(super) fn say(&self, text: &str) {
        println!("{text}");
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        println!("demo: {} steps, {} failed", self.steps, self.failed);
    }

    /// 130 for a story that was stopped in its midst, as a shell has it.
    pub(super) fn exit_code(&self) -> ExitCode {
        match (self.ended, self.failed) {
            (true, 0) => ExitCode::SUCCESS,
            (true, _) => ExitCode::FAILURE,
            (false, _) => ExitCode::from(130),
        }
    }
}
