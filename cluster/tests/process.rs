//! How a process of ours ends, in processes of their own: this very program, started again as one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

use cluster::process::{main, named, serve};
use tokio_util::sync::CancellationToken;

const WAY: &str = "ENDS_THIS_WAY";

/// What the programs below are; nothing, where it is run as a test.
#[test]
fn program() {
    let Ok(way) = std::env::var(WAY) else { return };
    let code = main("program", async move {
        match way.as_str() {
            "dies" => serve("program", dies).await,

            _ => serve("program", never).await,
        }
    });
    assert_eq!(code, ExitCode::SUCCESS);
}

async fn dies(_: CancellationToken) -> Result<(), String> {
    tokio::spawn(named("worker of tests", async {
        tokio::task::yield_now().await;
        panic!("it fell");
    }));
    std::future::pending().await
}

/// Is told to stop, and does not.
async fn never(stop: CancellationToken) -> Result<(), String> {
    let id = rustix::process::getpid();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).map_err(|e| e.to_string())?;
    stop.cancelled().await;
    std::future::pending().await
}

fn run(way: &str) -> Output {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "program", "--nocapture"]).env(WAY, way);
    program.output().unwrap()
}

#[test]
fn a_task_that_panics_ends_the_process_with_its_name() {
    let output = run("dies");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(6), "{said}");
    assert!(
        said.contains("the worker of tests died") && said.contains("it fell"),
        "{said}"
    );
}

#[test]
fn what_is_not_through_in_time_is_ended() {
    let began = Instant::now();
    let output = run("never");
    assert!(!output.status.success());
    let took = began.elapsed();
    assert!(
        (Duration::from_secs(14)..Duration::from_secs(25)).contains(&took),
        "{took:?}"
    );
}
