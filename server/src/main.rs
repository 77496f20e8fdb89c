//! The binary: parses its arguments, runs, and turns an error into one sentence and exit code 1.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    cluster::client::install_crypto();
    let args = server::args::Args::parse();
    match server::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("firewall-approver: {error:#}");
            ExitCode::FAILURE
        }
    }
}
