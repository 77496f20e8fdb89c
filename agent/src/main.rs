//! The binary `firewall-agent`: everything is in the library.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    agent::main().await
}
