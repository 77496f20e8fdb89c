//! Who is not there while the control plane moves: the machine, the approver, the shoot.

use std::time::Duration;

use anyhow::{Context, ensure};
use tests::harness::{Proxy, eventually};
use tests::moves::{Leaves, Stage, tail};
use tests::programs::export;
use tokio::time::Instant;

use super::{EVENTUALLY, PROMISED, both, came_in, said, settled};

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_machine_that_was_off_during_the_move_comes_in_when_it_is_back() {
    let stage = Stage::new("shoot--move--off").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, agent) = came_in(a, "00001").await;
    agent.stop().await.unwrap();
    a.move_to(b, Leaves::Nothing).await.unwrap();
    a.is_left_clean(Leaves::Nothing).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let back = Instant::now();
    let _agent = machine.start().unwrap();
    let took = b.has(&machine, back, PROMISED).await.unwrap();
    println!("from the agent's start: {took:?}");
    settled(b, &machine).await;
    b.holds_no_credential().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn b4_an_approver_that_was_down_during_the_move_brings_the_firewall_in_when_it_is_back() {
    let stage = Stage::new("shoot--move--down").await.unwrap();
    let Stage { a, b } = &stage;
    let _a = a.approver().unwrap();
    let (machine, _agent) = came_in(a, "00001").await;
    a.move_to(b, Leaves::Nothing).await.unwrap();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let back = Instant::now();
    let _b = b.approver().unwrap();
    let took = b.has(&machine, back, PROMISED).await.unwrap();
    println!("from the approver's start: {took:?}");
    settled(b, &machine).await;
    a.is_left_clean(Leaves::Nothing).await.unwrap();
}

/// Everybody outside the shoot reaches it through a proxy.
async fn behind_a_proxy(namespace: &str) -> (Stage<'static>, Proxy) {
    let mut stage = Stage::new(namespace).await.unwrap();
    let proxy = Proxy::to(stage.a.shoot.cluster).await.unwrap();
    stage.a.shoot.address = proxy.url();
    stage.b.shoot.address = proxy.url();
    stage.a.settle().await.unwrap();
    (stage, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_shoot_that_cannot_be_reached_for_a_while_only_delays_it() {
    let (stage, proxy) = behind_a_proxy("shoot--move--cut").await;
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    proxy.cut();
    a.move_to(b, Leaves::Nothing).await.unwrap();
    said(b, &machine.firewall, "ShootUnreachable", "").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    proxy.mend();
    let mended = Instant::now();
    let took = b.has(&machine, mended, EVENTUALLY).await.unwrap();
    println!("from the shoot's return: {took:?}");
    settled(b, &machine).await;
}

/// No event comes, and no connection ends: only the polls are left.
#[tokio::test(flavor = "multi_thread")]
async fn b3_watches_that_hang_in_half_open_connections_are_made_up_for_by_the_poll() {
    let (stage, proxy) = behind_a_proxy("shoot--move--hang").await;
    let Stage { a, b } = &stage;
    let poll = ["--poll-interval", "10s"];
    let (_a, _b) = (a.approver_with(&poll).unwrap(), b.approver_with(&poll).unwrap());
    let machine = a.machine("00001").await.unwrap();
    let _agent = machine.start_with(&poll).unwrap();
    settled(a, &machine).await;
    proxy.freeze();
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    // Whatever is said on the way is swallowed again and again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.freeze();
    let took = b.has(&machine, began, EVENTUALLY).await.unwrap();
    println!("by polls of 10 s: {took:?}");
    settled(b, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_machine_that_first_starts_after_the_move_says_what_is_needed_and_that_brings_it_in() {
    let stage = Stage::new("shoot--move--late").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let machine = a.machine("00001").await.unwrap();
    a.move_to(b, Leaves::Nothing).await.unwrap();
    a.is_left_clean(Leaves::Nothing).await.unwrap();
    let _agent = machine.start().unwrap();
    let command = format!("firewall-approver export {}/{}", b.namespace(), machine.firewall);
    said(b, &machine.firewall, "UserdataOutdated", &command).await;
    eventually("the agent says so too", EVENTUALLY, || async {
        let status = machine.status()?;
        ensure!(status.contains("firewall-approver export"), "{status}");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();

    let exported = export(b.seed, b.namespace(), &machine.firewall).await.unwrap();
    let carried = Instant::now();
    machine.put_bootstrap_kubeconfig(&exported).unwrap();
    b.has(&machine, carried, EVENTUALLY).await.unwrap();
    settled(b, &machine).await;
    b.holds_no_credential().await.unwrap();
}
