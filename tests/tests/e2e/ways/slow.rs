//! A way on which everything takes long: nothing gives up before it had an answer.

use std::time::Duration;

use tests::harness::Proxy;
use tests::programs::ApproverHome;
use tests::world::World;
use tokio::time::Instant;

use crate::moves::settled;
use crate::support::{certificate_of, renewed};

/// There and back are 1.2 s, and a connection with TLS takes two of these.
const EACH_WAY: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn a2_a7_a_machine_with_a_slow_way_to_seed_and_shoot_comes_in_and_renews() {
    let mut world = World::new("shoot--ways--slow").await.unwrap();
    let seed = Proxy::to(world.seed).await.unwrap();
    let shoot = Proxy::to(world.shoot.cluster).await.unwrap();
    seed.delay(EACH_WAY);
    shoot.delay(EACH_WAY);
    world.home = ApproverHome::with_server(world.seed, &seed.url()).await.unwrap();
    world.shoot.address = shoot.url();
    world.settle().await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let began = Instant::now();
    let _agent = machine.start().unwrap();
    settled(&world, &machine).await;
    println!("in after {:.1?}", began.elapsed());
    let old = certificate_of(&machine).unwrap();
    world
        .annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=once")
        .await
        .unwrap();
    renewed(&machine, &old, tests::harness::PATIENCE).await.unwrap();
    assert!(!machine.log().contains("no answer within"), "{}", machine.log());
}
