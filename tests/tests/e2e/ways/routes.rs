//! The way out leads by the routes of a policy, as on a firewall of many networks: the agent takes no other.

use std::net::IpAddr;

use anyhow::{Context, ensure};
use tests::harness::{FAR, NEAR, Net, eventually};
use tests::moves::tail;
use tests::world::World;
use tokio::time::Instant;

use super::{BESIDE, FOUND, complains, far, here, named, reached_at};
use crate::moves::settled;

/// From which the policy leads on. It is on no cable.
const SOURCE: &str = "10.200.9.1";
/// By the table that everybody uses everything leads into a cable at whose end nobody is.
const DEAD_END: &str = "
ip link add dead type veth peer name end
ip link set dead up
ip link set end up
ip addr add 10.201.0.2/24 dev dead
ip addr add 10.200.9.1/32 dev lo
ip route add default via 10.201.0.1 dev dead src 10.200.9.1
";

#[tokio::test(flavor = "multi_thread")]
async fn a2_a10_where_a_policy_has_the_routes_the_agent_takes_these_and_no_others() {
    let net = Net::new().unwrap();
    let mut world = World::new("shoot--ways--routes").await.unwrap();
    let (seed, shoot) = (world.seed, world.shoot.cluster);
    let [of_seed, of_shoot] = ["10.99.0.11", "10.99.0.12"];
    net.add_far(&[of_seed, of_shoot]).unwrap();
    net.far(&format!("ip route add {SOURCE} via {NEAR}")).unwrap();
    net.near(DEAD_END).unwrap();
    let ways = [far(&net, of_seed, seed).await, far(&net, of_shoot, shoot).await];
    net.near_names(&[(seed.server_name(), of_seed), (shoot.server_name(), of_shoot)])
        .unwrap();
    reached_at(&mut world, &named(seed), &named(shoot)).await;
    world.settle().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _approver = world.approver_at(&here(dir.path(), &[seed, shoot])).unwrap();
    let machine = world.machine("00001").await.unwrap();

    // Without the policy there is no way.
    let _agent = machine.start_at(&net.to_near(), &[], &[]).unwrap();
    complains(&machine, &["cannot be reached"]).await;
    assert!(ways.iter().all(|way| way.peers().is_empty()));

    // It comes while the agent runs and waits.
    let policy = format!("ip route add default via {FAR} dev out table 100\nip rule add from {SOURCE} lookup 100");
    net.near(&policy).unwrap();
    let opened = Instant::now();
    eventually("the machine comes in", FOUND + BESIDE, || async {
        ensure!(machine.seed_kubeconfig().is_file(), "no .seed.kubeconfig");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    println!("in {:.1?} after the way was there", opened.elapsed());
    settled(&world, &machine).await;
    let source: IpAddr = SOURCE.parse().unwrap();
    for way in &ways {
        let peers = way.peers();
        assert!(
            !peers.is_empty() && peers.iter().all(|peer| *peer == source),
            "{peers:?}"
        );
    }
}
