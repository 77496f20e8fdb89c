//! `make demo`: shows the whole bootstrap on this machine. KEEP=1 leaves everything running until Ctrl-C.

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let keep = std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0");
    tests::demo::run(keep, stopped()).await
}

async fn stopped() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
