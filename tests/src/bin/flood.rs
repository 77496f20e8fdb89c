//! `make flood`: `flood [REQUESTS]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "one watches a benchmark")]

use std::process::ExitCode;

use anyhow::Context as _;
use tests::flood::{Figures, Plan, median, run};
use tests::harness::{Cluster, ClusterOptions};
use tests::{upstream, world};

const REQUESTS: usize = 10_000;
const ROUNDS: usize = 19;
/// Another firewall's bootstrap may take so many times as long as under the same flood for a foreign signer.
const RATIO_MAX: f64 = 1.3;
/// So much memory a flood may leave the approver with, MiB.
const GROWTH_MAX: f64 = 8.0;

#[tokio::main]
async fn main() -> ExitCode {
    let figures = match flood().await {
        Ok(figures) => figures,
        Err(error) => {
            eprintln!("flood: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let [ours, foreign] = figures.made;
    let [for_us, for_others] = figures.seconds;
    #[allow(clippy::cast_precision_loss, reason = "far below what an f64 holds")]
    let rate = |made: usize, seconds: f64| made as f64 / seconds;
    println!(
        "one identity made {ours} requests for our signer ({:.0} a second), another {foreign} for a foreign one ({:.0} a second)",
        rate(ours, for_us),
        rate(foreign, for_others)
    );
    println!("of the flood for our signer {} were decided", figures.decided);
    let [before, after] = figures.memory;
    println!("the approver's resident memory: {before:.1} MiB before, {after:.1} MiB after");
    println!(
        "another firewall's bootstrap, median of {}: {:.2?} in quiet, {:.2?} under a foreign flood, {:.2?} under ours",
        figures.ours.len(),
        median(&figures.quiet),
        median(&figures.foreign),
        median(&figures.ours)
    );
    let ratio = figures.ratio();
    println!("flood: ours / foreign = {ratio:.2} (at most {RATIO_MAX})");
    if ratio <= RATIO_MAX && after - before <= GROWTH_MAX {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn flood() -> anyhow::Result<Figures> {
    let requests = match std::env::args().nth(1) {
        None => REQUESTS,
        Some(number) => number.parse().context("usage: flood [REQUESTS]")?,
    };
    let start = |name: &str| tokio::spawn(Cluster::start(ClusterOptions::new(name)));
    let (seed, shoot) = tokio::join!(start("seed"), start("shoot"));
    let (seed, shoot) = (seed??, shoot??);
    upstream::install_crds(&seed, &shoot).await?;
    world::install_seed(&seed).await?;
    world::install_shoot(&shoot).await?;
    let plan = Plan {
        requests,
        rounds: ROUNDS,
    };
    run(&seed, &shoot, "shoot--flood", plan).await
}
