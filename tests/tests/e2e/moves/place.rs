//! The seed stays, and the way to it does not: another address, another CA.

use std::fs;
use std::time::Duration;

use tests::harness::Proxy;
use tests::moves::Stage;
use tests::programs::ApproverHome;
use tests::world::{Place, own_seed, shoot_cluster};
use tokio::time::Instant;

use super::{EVENTUALLY, came_in, settled};

/// A minute is left to the firewall to read of it in the seed, before it is told through the shoot.
const TOLD: Duration = Duration::from_secs(60 + 20);

#[tokio::test(flavor = "multi_thread")]
async fn a8_a_seed_that_is_reached_at_another_address_only_is_found_there() {
    let Stage { mut a, .. } = Stage::new("shoot--move--address").await.unwrap();
    let (old, new) = (Proxy::to(a.seed).await.unwrap(), Proxy::to(a.seed).await.unwrap());
    a.home = ApproverHome::with_server(a.seed, &old.url()).await.unwrap();
    let approver = a.approver().unwrap();
    let (machine, _agent) = came_in(&a, "00001").await;
    let key = machine.key().unwrap();

    // In good order: both addresses are good for a while, and the seed itself says so.
    approver.stop().await.unwrap();
    a.home.move_server(&new.url());
    let changed = Instant::now();
    let approver = a.approver().unwrap();
    let took = a.has(&machine, changed, EVENTUALLY).await.unwrap();
    println!("told by the seed: {took:?}");
    settled(&a, &machine).await;

    // In bad order: where the firewall is, nobody answers any more.
    new.cut();
    approver.stop().await.unwrap();
    a.home.move_server(&old.url());
    let changed = Instant::now();
    let _approver = a.approver().unwrap();
    let took = a.has(&machine, changed, TOLD).await.unwrap();
    println!("told through the shoot: {took:?}");
    settled(&a, &machine).await;
    assert_eq!(machine.key().unwrap(), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a_seed_that_has_another_ca_only_is_found_again() {
    let seed = own_seed("seed-rolls").await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    let mut a = Place::empty(&seed, shoot, "shoot--move--ca").await.unwrap();
    a.settle().await.unwrap();
    let approver = a.approver().unwrap();
    let (machine, agent) = came_in(&a, "00001").await;
    let key = machine.key().unwrap();
    // While the machine is off, all at once: what it trusts is nobody's any more.
    agent.stop().await.unwrap();
    approver.stop().await.unwrap();
    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    roll.switch_signer().await.unwrap();
    roll.drop_old().await.unwrap();
    let old = fs::read_to_string(machine.seed_kubeconfig()).unwrap();

    a.home = ApproverHome::new(&seed).await.unwrap();
    let _approver = a.approver().unwrap();
    let _agent = machine.start().unwrap();
    let began = Instant::now();
    let took = a.has(&machine, began, TOLD).await.unwrap();
    println!("after a CA that changed at once: {took:?}");
    assert_ne!(fs::read_to_string(machine.seed_kubeconfig()).unwrap(), old);
    settled(&a, &machine).await;
    a.keeps(&machine, Duration::from_secs(3)).await.unwrap();
    assert_eq!(machine.key().unwrap(), key);
}
