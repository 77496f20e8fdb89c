//! The binary: parses its arguments, runs, and turns an error into one sentence and exit code 1.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use server::args::{Args, Command};

#[tokio::main]
async fn main() -> ExitCode {
    if let Err(error) = cluster::process::no_core_dumps() {
        return failed(&format!("core dumps cannot be turned off: {error}"));
    }
    cluster::client::install_crypto();
    let args = Args::parse();
    let serves = matches!(args.command, Command::Run(_));
    match server::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever collects the log finds it there.
        Err(error) if serves => {
            tracing::error!("firewall-approver: {error:#}");
            ExitCode::FAILURE
        }
        Err(error) => failed(&format!("{error:#}")),
    }
}

fn failed(sentence: &str) -> ExitCode {
    // Nobody is left to be told that this failed too.
    let _ = writeln!(std::io::stderr(), "firewall-approver: {sentence}");
    ExitCode::FAILURE
}
