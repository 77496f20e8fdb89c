//! The ways from a machine to API servers, in network namespaces of the test's own.
//!
//! - `addresses`: IPv6
//! - `names`: a name that comes to mean another address, with and without the old one's answers
//! - `proxies`: through a proxy that the environment names, and past it
//! - `routes`: by the routes of a policy only
//! - `slow`: with long ways between

mod addresses;
mod names;
mod proxies;
mod routes;
mod slow;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::harness::{Cluster, Net, Proxy, Way, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, Machine};
use tests::world::Place;

/// So long a server that is back, or has moved, may stay unnoticed: what the documentation says.
const FOUND: Duration = Duration::from_secs(30);
/// For the work itself, on a machine that does other things too.
const BESIDE: Duration = Duration::from_secs(15);

/// By its name, at the port that it has here.
fn named(cluster: &Cluster) -> String {
    format!("https://{}:{}", cluster.server_name(), cluster.address().port())
}

/// What arrives there is passed on to the cluster. TLS is between its ends.
async fn far(net: &Net, ip: &str, cluster: &Cluster) -> Proxy {
    let address = SocketAddr::new(ip.parse().unwrap(), cluster.address().port());
    let listener = net.listen(address).await.unwrap();
    Proxy::on(listener, cluster.address()).unwrap()
}

/// Firewalls are told to reach seed and shoot by these URLs.
async fn reached_at(place: &mut Place<'_>, seed: &str, shoot: &str) {
    place.home = ApproverHome::with_server(place.seed, seed).await.unwrap();
    shoot.clone_into(&mut place.shoot.address);
}

/// For an approver on this machine: there the names mean the clusters themselves.
fn here(dir: &std::path::Path, clusters: &[&Cluster]) -> Way {
    let names: Vec<(String, IpAddr)> = clusters
        .iter()
        .map(|cluster| (cluster.server_name(), cluster.address().ip()))
        .collect();
    Way::with_names(dir, &names).unwrap()
}

fn status(machine: &Machine) -> anyhow::Result<Value> {
    let output = machine.command("status", &["--output", "json"])?;
    serde_json::from_slice(&output.stdout).context("status")
}

/// Waits until `firewall-agent status` says these words of a problem.
async fn complains(machine: &Machine, words: &[&str]) -> String {
    eventually("a problem that is said", tests::harness::PATIENCE, || async {
        let problems = status(machine)?["problems"].to_string();
        ensure!(words.iter().all(|word| problems.contains(word)), "{problems}");
        Ok(problems)
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap()
}
