//! `firewall-agent`: on a firewall machine, from a bootstrap kubeconfig to a working access to the seed and the shoot,
//! and what keeps it working. A library, so that many agents can run in one process; the binary is thin.

pub mod args;
mod clock;
mod consumer;
pub mod core;
mod files;
mod handover;
mod judge;
mod lifeline;
mod link;
mod machine;
mod monitor;
mod notify;
mod own;
mod pair;
mod paths;
mod report;
mod request;
mod seed;
mod shoot;
mod status;
mod store;
mod token;
mod vrf;

use std::fmt::Display;
use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;

use clap::CommandFactory;
use cluster::{log, process, proxy, settings};
use jiff::Timestamp;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use args::Args;
pub use files::FileError;
pub use machine::{Settings, StartError, run};
pub use paths::Paths;
pub use status::{CertificateStatus, HandoverStatus, RequestStatus, ShootStatus, Status, StatusError};
pub use store::StoreError;
pub use vrf::{Moved, Place};

use args::{Command, Output};

/// Why a running agent ends without having been told to.
#[derive(Debug, Error)]
enum EndError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Moved(#[from] Moved),
}

/// What comes before the first thread: what is wanted, and the place to do it. Rights that are dropped here are dropped for
/// the whole process.
pub fn begin() -> Result<(Args, Place), ExitCode> {
    let args: Args = settings::read()?;
    let Command::Run(run) = &args.command else {
        return Ok((args, Place::any()));
    };
    match vrf::enter(&run.vrf) {
        Ok(place) => Ok((args, place)),
        Err(error) => {
            notify::status(&error.to_string());
            let _ = writeln!(std::io::stderr(), "firewall-agent: {error}");
            Err(ExitCode::FAILURE)
        }
    }
}

/// The whole program, in the VRF that it is in by now.
pub async fn main(args: Args, place: Place) -> ExitCode {
    let outcome = match &args.command {
        Command::Run(run) => {
            log::init(run.log_format, run.log_level);
            settings::warn_of_strangers(&Args::command());
            if let Some(vrf) = place.vrf() {
                info!(vrf, "runs in a VRF");
            }
            match proxy::use_environment() {
                Ok(None) => {}
                Ok(Some(proxy)) => info!(%proxy, "API servers are reached through a proxy"),
                Err(error) => {
                    notify::status(&error.to_string());
                    warn!("{error}");
                    return ExitCode::FAILURE;
                }
            }
            let settings = run.settings(args.paths());
            return process::serve("firewall-agent", |stop| run_there(&place, settings, stop)).await;
        }
        Command::Status { output } => print_status(&args.paths(), *output),
        Command::Renew => renew(&args.paths()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            let _ = writeln!(std::io::stderr(), "firewall-agent: {sentence}");
            ExitCode::FAILURE
        }
    }
}

/// Runs as long as this is the right place for it. Then it ends as if it had been told to, and as a failure: whoever
/// started it is to start it anew.
async fn run_there(place: &Place, settings: Settings, stop: CancellationToken) -> Result<(), EndError> {
    let mut running = pin!(machine::run(settings, stop.clone()));
    let moved = tokio::select! {
        end = &mut running => return Ok(end?),
        moved = place.moved() => moved,
    };
    let told = stop.is_cancelled();
    if !told {
        warn!("{moved}");
        notify::status(&moved.to_string());
    }
    stop.cancel();
    running.await?;
    if told { Ok(()) } else { Err(moved.into()) }
}

fn print_status(paths: &Paths, output: Output) -> Result<(), String> {
    let status = Status::read(paths).map_err(sentence)?;
    let text = match output {
        // Whoever runs holds the lock; the file alone tells of an agent that died just the same.
        Output::Text if files::lock(&paths.lock()).is_ok() => {
            format!(
                "firewall-agent is not running; this is how it stood last\n{}",
                status.text()
            )
        }
        Output::Text => status.text(),
        Output::Json => serde_json::to_string_pretty(&status).map_err(sentence)? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(sentence)
}

fn renew(paths: &Paths) -> Result<(), String> {
    // Without an agent's state there is nobody who would see it.
    Status::read(paths).map_err(sentence)?;
    let asked = format!("{}\n", Timestamp::now());
    files::write(&paths.renew(), &asked, |_| Ok::<_, String>(())).map_err(sentence)?;
    let said = "asked for a new certificate; the agent asks as soon as it runs, and firewall-agent status shows it\n";
    std::io::stdout().write_all(said.as_bytes()).map_err(sentence)
}

fn sentence(error: impl Display) -> String {
    error.to_string()
}
