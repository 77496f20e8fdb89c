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
mod tasks;
mod userdata;
mod watches;
mod webhook;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use cluster::{log, process, settings};

use args::{Args, Command};

/// The whole program.
pub async fn main() -> ExitCode {
    let args: Args = match settings::read() {
        Ok(args) => args,
        Err(code) => return code,
    };
    match args.command {
        Command::Run(run) => {
            log::init(run.log_format, run.log_level);
            settings::warn_of_strangers(&Args::command());
            process::serve("firewall-approver", |stop| run::run(run, stop)).await
        }
        Command::Export(export) => ended(export::export(&export).await),
        Command::Userdata(asked) => ended(userdata::userdata(&asked).await),
    }
}

/// What an operator is told of what he asked for.
fn ended(answer: anyhow::Result<()>) -> ExitCode {
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to be told that this failed too.
            let _ = writeln!(std::io::stderr(), "firewall-approver: {error:#}");
            ExitCode::FAILURE
        }
    }
}
