//! Several replicas of the approver: one leads and writes, another takes over when it is gone, and none of what came
//! meanwhile is lost or decided twice.

use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::harness::{Proxy, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, Machine, Program, bootstrap_kubeconfig};
use tests::world::{Place, World, bootstrapped, own_seed, shoot_cluster};
use tokio::time::Instant;

use crate::moves::{EVENTUALLY, came_in, settled};
use crate::support::{condition, requests_for};

/// Of a leader that died or hangs.
const TAKEN_OVER: Duration = Duration::from_secs(20);
/// Of watches after an outage.
const LOOKED_AGAIN: Duration = Duration::from_secs(90);
/// Of one that was told to stop.
const HANDED_ON: Duration = Duration::from_secs(5);

struct Replica {
    home: ApproverHome,
    program: Program,
}

async fn replica(place: &Place<'_>) -> Replica {
    let home = ApproverHome::new(place.seed).await.unwrap();
    let program = home.start(&["--namespace", place.namespace()]).unwrap();
    Replica { home, program }
}

impl Replica {
    fn leads(&self) -> bool {
        self.home.log().contains("\"leads\"")
    }

    async fn comes_to_lead(&self, since: Instant, limit: Duration) {
        eventually("another leads", limit, || async {
            ensure!(self.leads(), "it waits");
            Ok(())
        })
        .await
        .with_context(|| tail(&self.home.log()))
        .unwrap();
        assert!(since.elapsed() < limit, "{:?}", since.elapsed());
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.program.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }
}

/// Two replicas, of which the first leads.
async fn two(place: &Place<'_>) -> (Replica, Replica) {
    let first = replica(place).await;
    first.comes_to_lead(Instant::now(), EVENTUALLY).await;
    let second = replica(place).await;
    eventually("the second waits", EVENTUALLY, || async {
        ensure!(second.home.log().contains("waiting to lead"), "not yet");
        Ok(())
    })
    .await
    .with_context(|| tail(&second.home.log()))
    .unwrap();
    (first, second)
}

/// Each of its requests was decided once, and one key is pinned.
async fn decided_once(place: &Place<'_>, machine: &Machine) {
    for request in requests_for(place, &machine.firewall).await.unwrap() {
        let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
        assert_eq!(conditions.map_or(0, Vec::len), 1, "{request:?}");
        assert!(condition(&request, "Approved").is_some(), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_leader_that_is_killed_is_followed_while_requests_come() {
    let world = World::new("shoot--d3--killed").await.unwrap();
    let (first, second) = two(&world).await;
    let (early, _agent) = came_in(&world, "00001").await;
    let machine = world.machine("00002").await.unwrap();
    assert!(!second.leads());

    first.program.kill();
    let killed = Instant::now();
    // It asks while nobody is there.
    let _other = machine.start().unwrap();
    second.comes_to_lead(killed, TAKEN_OVER).await;
    bootstrapped(&machine).await.unwrap();
    settled(&world, &machine).await;
    settled(&world, &early).await;
    for machine in [&early, &machine] {
        decided_once(&world, machine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_leader_that_is_told_to_stop_hands_on_at_once() {
    let world = World::new("shoot--d3--stopped").await.unwrap();
    let (first, second) = two(&world).await;
    let (_machine, _agent) = came_in(&world, "00001").await;
    assert_eq!(first.program.stop().await.unwrap(), Some(0));
    second.comes_to_lead(Instant::now(), HANDED_ON).await;
    let (_other, _its_agent) = came_in(&world, "00002").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_leader_that_hung_writes_nothing_when_it_comes_back_and_ends() {
    let world = World::new("shoot--d3--hung").await.unwrap();
    let (mut first, second) = two(&world).await;
    let (early, _agent) = came_in(&world, "00001").await;
    first.signal(Signal::STOP);
    let hung = Instant::now();
    let (machine, ()) = tokio::join!(world.machine("00002"), second.comes_to_lead(hung, TAKEN_OVER));
    let machine = machine.unwrap();
    let _other = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&world, &machine).await;

    first.signal(Signal::CONT);
    let code = first.program.ended(Duration::from_secs(20)).await.unwrap();
    let log = first.home.log();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("has it now"), "{log}");
    for machine in [&early, &machine] {
        decided_once(&world, machine).await;
        settled(&world, machine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_leader_that_is_cut_off_writes_nothing_before_another_begins_and_ends_when_it_sees_that() {
    let world = World::new("shoot--d3--cut").await.unwrap();
    let address = world.seed.server_url();
    let proxy = Proxy::to(world.seed).await.unwrap();
    let mut home = ApproverHome::new(world.seed).await.unwrap();
    let text = std::fs::read_to_string(home.kubeconfig()).unwrap();
    std::fs::write(home.kubeconfig(), text.replace(&address, &proxy.url())).unwrap();
    home.move_server(&address);
    let program = home.start(&["--namespace", world.namespace()]).unwrap();
    let mut first = Replica { home, program };
    first.comes_to_lead(Instant::now(), EVENTUALLY).await;
    let second = replica(&world).await;
    let (early, _agent) = came_in(&world, "00001").await;

    proxy.cut();
    let cut = Instant::now();
    second.comes_to_lead(cut, TAKEN_OVER).await;
    assert!(
        first.home.log().contains("nothing is written until it is"),
        "{}",
        first.home.log()
    );
    proxy.mend();
    let code = first.program.ended(TAKEN_OVER).await.unwrap();
    assert_eq!(code, Some(1), "{}", first.home.log());
    assert!(first.home.log().contains("has it now"), "{}", first.home.log());
    let (machine, _other) = came_in(&world, "00002").await;
    for machine in [&early, &machine] {
        decided_once(&world, machine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_a_seed_that_is_away_for_longer_than_a_lease_takes_it_from_nobody() {
    let seed = own_seed("seed-away").await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    let place = Place::empty(&seed, shoot, "shoot--d3--away").await.unwrap();
    place.settle().await.unwrap();
    let mut only = replica(&place).await;
    let (_machine, _agent) = came_in(&place, "00001").await;
    seed.stop_apiserver().await;
    tokio::time::sleep(TAKEN_OVER).await;
    seed.start_apiserver().await.unwrap();
    // Its watches try again by and by.
    let other = place.shoot.create_firewall("00002").await.unwrap();
    eventually("a way in for another firewall", LOOKED_AGAIN, || {
        bootstrap_kubeconfig(&seed, place.namespace(), &other)
    })
    .await
    .unwrap();
    assert!(only.program.runs(), "{}", only.home.log());
    assert!(only.home.log().contains("nobody else has led"), "{}", only.home.log());
}
