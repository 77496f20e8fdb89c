//! firewall-approver: gives firewalls their access to a seed. `core` decides, everything else fetches its facts and
//! carries out its answers.

pub mod args;
pub mod core;

mod approver;
mod canary;
mod clock;
mod credential;
mod crowd;
mod events;
mod evidence;
mod export;
mod firewalls;
mod fleet;
mod gone;
mod handover;
mod health;
mod http;
mod lifeline;
mod metrics;
mod news;
mod preflight;
mod probe;
mod provision;
mod pulse;
mod requests;
mod retries;
mod run;
mod seed;
mod selftest;
mod shoots;
mod sight;
mod state;
mod status;
mod watches;

/// Runs what the command line says, until the process is told to stop.
pub async fn run(args: args::Args) -> anyhow::Result<()> {
    match args.command {
        args::Command::Run(run) => {
            cluster::log::init(run.log_format.into());
            run::run(run).await
        }
        args::Command::Export(export) => export::export(&export).await,
    }
}
