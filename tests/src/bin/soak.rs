//! `make soak`: `soak [MINUTES] [--stock]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "one watches a soak")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tests::consumer::{Kind, Sums};
use tests::harness::{Cluster, ClusterOptions};
use tests::soak::{Plan, run};
use tests::{upstream, world};

const MINUTES: u64 = 12;

#[tokio::main]
async fn main() -> ExitCode {
    let sums = match soak().await {
        Ok(sums) => sums,
        Err(error) => {
            eprintln!("soak: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    for error in &sums.errors {
        println!("{error}");
    }
    println!(
        "{} new clients; {} requests were retried after their connection was closed; {} others came to nothing",
        sums.clients, sums.retried, sums.other
    );
    println!("soak: {} requests, {} failed", sums.requests, sums.failed);
    if sums.failed == 0 && sums.requests > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn soak() -> anyhow::Result<Sums> {
    let (mut minutes, mut kind) = (MINUTES, Kind::Watching);
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--stock" => kind = Kind::Stock,
            number => minutes = number.parse().context("usage: soak [MINUTES] [--stock]")?,
        }
    }
    let start = |name: &str| tokio::spawn(Cluster::start(ClusterOptions::new(name)));
    let (seed, shoot) = tokio::join!(start("seed"), start("shoot"));
    let (seed, shoot) = (seed??, shoot??);
    upstream::install_crds(&seed, &shoot).await?;
    world::install_seed(&seed).await?;
    world::install_shoot(&shoot).await?;
    let plan = Plan::new(Duration::from_secs(60 * minutes), kind);
    run(&seed, &shoot, "shoot--soak", plan).await
}
