//! A name comes to mean another address: nobody starts the agent anew for that.

use std::time::Duration;

use anyhow::{Context, ensure};
use tests::harness::{Cluster, Net, Proxy, eventually};
use tests::moves::{Leaves, Stage, tail};
use tests::world::World;
use tokio::time::Instant;

use super::{BESIDE, FOUND, far, here, named, reached_at};
use crate::moves::{PROMISED, settled};

/// The agent reads its seed so often.
const POLL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn b3_a_name_that_means_another_address_is_followed_though_the_old_one_still_answers() {
    let net = Net::new().unwrap();
    let mut world = World::new("shoot--ways--name").await.unwrap();
    let (seed, shoot) = (world.seed, world.shoot.cluster);
    let [old, new, of_shoot] = ["10.99.0.11", "10.99.0.21", "10.99.0.12"];
    net.add_far(&[old, new, of_shoot]).unwrap();
    net.near(&format!("ip route add 10.99.0.0/24 via {}", tests::harness::FAR))
        .unwrap();
    let (at_old, at_new) = (far(&net, old, seed).await, far(&net, new, seed).await);
    let _at_shoot = far(&net, of_shoot, shoot).await;
    let names = |of_seed| [(seed.server_name(), of_seed), (shoot.server_name(), of_shoot)];
    net.near_names(&names(old)).unwrap();
    reached_at(&mut world, &named(seed), &named(shoot)).await;
    world.settle().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let _approver = world.approver_at(&here(dir.path(), &[seed, shoot])).unwrap();
    let machine = world.machine("00001").await.unwrap();
    let mut agent = machine.start_at(&net.to_near(), &[], &[]).unwrap();
    settled(&world, &machine).await;
    assert!(at_new.peers().is_empty() && !at_old.peers().is_empty());

    let moved = Instant::now();
    net.near_names(&names(new)).unwrap();
    eventually("a connection to the new address", FOUND + POLL + BESIDE, || async {
        ensure!(!at_new.peers().is_empty(), "none");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    println!("the name was followed after {:.1?}", moved.elapsed());
    // Nothing hangs on the old one any more.
    at_old.cut();
    let used = at_old.peers().len();
    tokio::time::sleep(POLL * 2).await;
    assert_eq!(at_old.peers().len(), used);
    let status = super::status(&machine).unwrap();
    assert!(
        status["problems"].as_object().is_none_or(serde_json::Map::is_empty),
        "{status}"
    );
    assert!(agent.runs());
}

/// Two addresses that the shoot has one after the other, and one for each seed.
struct Far {
    _ways: Vec<Proxy>,
    seeds: [(String, &'static str); 2],
    shoot: String,
}

const OF_SHOOT: [&str; 2] = ["10.99.0.31", "10.99.0.32"];
const OF_SEEDS: [&str; 2] = ["10.99.0.41", "10.99.0.42"];

impl Far {
    async fn new(net: &Net, seeds: [&Cluster; 2], shoot: &Cluster) -> Self {
        net.add_far(&OF_SHOOT).unwrap();
        net.add_far(&OF_SEEDS).unwrap();
        net.near(&format!("ip route add 10.99.0.0/24 via {}", tests::harness::FAR))
            .unwrap();
        Self {
            _ways: vec![
                far(net, OF_SHOOT[0], shoot).await,
                far(net, OF_SHOOT[1], shoot).await,
                far(net, OF_SEEDS[0], seeds[0]).await,
                far(net, OF_SEEDS[1], seeds[1]).await,
            ],
            seeds: [
                (seeds[0].server_name(), OF_SEEDS[0]),
                (seeds[1].server_name(), OF_SEEDS[1]),
            ],
            shoot: shoot.server_name(),
        }
    }

    fn names(&self, of_shoot: &'static str) -> Vec<(String, &'static str)> {
        let mut names = self.seeds.to_vec();
        names.push((self.shoot.clone(), of_shoot));
        names
    }
}

/// The worst that a move can do to connections: whatever stood leads nowhere, and nobody says so.
#[tokio::test(flavor = "multi_thread")]
async fn b3_a9_after_a_move_in_which_every_old_address_swallows_packets_the_firewall_is_back_soon() {
    let net = Net::new().unwrap();
    let mut stage = Stage::new("shoot--ways--silent").await.unwrap();
    let (seeds, shoot) = ([stage.a.seed, stage.b.seed], stage.a.shoot.cluster);
    let far = Far::new(&net, seeds, shoot).await;
    net.near_names(&far.names(OF_SHOOT[0])).unwrap();
    for (place, seed) in [(&mut stage.a, seeds[0]), (&mut stage.b, seeds[1])] {
        reached_at(place, &named(seed), &named(shoot)).await;
    }
    let Stage { a, b } = &stage;
    a.settle().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let way = here(dir.path(), &[seeds[0], seeds[1], shoot]);
    let _approvers = [a.approver_at(&way).unwrap(), b.approver_at(&way).unwrap()];
    let machine = a.machine("00001").await.unwrap();
    let mut agent = machine.start_at(&net.to_near(), &[], &[]).unwrap();
    settled(a, &machine).await;
    let key = machine.key().unwrap();

    net.swallow(OF_SHOOT[0]).unwrap();
    net.swallow(OF_SEEDS[0]).unwrap();
    net.near_names(&far.names(OF_SHOOT[1])).unwrap();
    let swallowed = Instant::now();
    let began = a.move_to(b, Leaves::Namespace).await.unwrap();
    // With the name and the Firewall over there, the new ways are good.
    eventually("the new seed on the machine", FOUND + PROMISED + BESIDE, || async {
        let text = std::fs::read_to_string(machine.seed_kubeconfig())?;
        ensure!(text.contains(&named(b.seed)), "still the old one");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    println!(
        "in the new seed {:.1?} after its Firewall was made there, {:.1?} after the old addresses fell silent",
        began.elapsed(),
        swallowed.elapsed()
    );
    settled(b, &machine).await;
    assert!(agent.runs() && machine.key().unwrap() == key);
}
