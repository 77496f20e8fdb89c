//! The demo: the firewalls of two shoots bootstrap their access to one seed, and keep it while their control planes move
//! to another seed and back, and while that seed's CAs are rolled; with real API servers and the real programs. Every
//! claim on the way is checked. Owns the story; timeline, checks, moves and rolls have modules of their own.

mod checks;
mod moves;
mod rolls;
mod timeline;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::harness::{Cluster, ClusterOptions, eventually};
use crate::moves::tail;
use crate::programs::{ApproverHome, Machine, Program};
use crate::upstream;
use crate::world::{self, Place};
use moves::Before;
use timeline::Timeline;

/// From the start of an agent to a seed client that has read its own Firewall.
const BOOTSTRAP_LIMIT: Duration = Duration::from_secs(2);
const SHOOTS: [&str; 2] = ["alpha", "beta"];
/// Which of the two seeds.
const A: usize = 0;
const B: usize = 1;

/// Tells the whole story. With `keep` everything stays up after it until `stop`.
pub async fn run(keep: bool, stop: impl Future<Output = ()>) -> ExitCode {
    let mut timeline = Timeline::begin();
    tokio::select! {
        () = story(&mut timeline, keep) => {}
        () = stop => {}
    }
    // Whatever the story held is gone now: processes and folders.
    timeline.exit_code()
}

async fn story(timeline: &mut Timeline, keep: bool) {
    let Some(clusters) = timeline
        .step(
            "three API servers start: two seeds, and one for both shoots",
            Clusters::start(),
        )
        .await
    else {
        return timeline.end();
    };
    let Some(mut stage) = set_up(timeline, &clusters).await else {
        return timeline.end();
    };
    prove(timeline, &mut stage).await;
    // Without the moves there is still something to look at.
    if move_about(timeline, &mut stage).await.is_some() {
        roll(timeline, &stage).await;
    }
    timeline.say(&stage.shown().await);
    if keep {
        timeline.say(&stage.how_to_look_around());
    }
    timeline.end();
    if keep {
        std::future::pending().await
    }
}

struct Clusters {
    seeds: [Cluster; 2],
    shoot: Cluster,
}

impl Clusters {
    async fn start() -> anyhow::Result<(Self, String)> {
        let start = |name: &str| tokio::spawn(Cluster::start(ClusterOptions::new(name)));
        let (a, b, shoot) = tokio::join!(start("seed-a"), start("seed-b"), start("shoot"));
        let clusters = Self {
            seeds: [a??, b??],
            shoot: shoot??,
        };
        let [a, b] = &clusters.seeds;
        let said = format!(
            "seed A {}, seed B {}, shoots {}",
            a.server_url(),
            b.server_url(),
            clusters.shoot.server_url()
        );
        Ok((clusters, said))
    }
}

/// What plays. Dropped before the API servers that it talks to.
struct Stage<'a> {
    agents: Vec<Program>,
    seats: [Seat<'a>; 2],
    shoot: &'a Cluster,
    firewalls: Vec<Standing<'a>>,
    /// Where the control planes stand now.
    at: usize,
}

/// A seed and its approver.
struct Seat<'a> {
    seed: &'a Cluster,
    home: ApproverHome,
    approver: Option<Program>,
}

/// A firewall: its shoot's place in either seed, and its machine.
struct Standing<'a> {
    places: [Place<'a>; 2],
    machine: Machine,
}

async fn set_up<'a>(timeline: &mut Timeline, clusters: &'a Clusters) -> Option<Stage<'a>> {
    let Clusters { seeds, shoot } = clusters;
    let installed = async {
        for seed in seeds {
            upstream::install_crds(seed, shoot).await?;
            world::install_seed(seed).await?;
        }
        world::install_shoot(shoot).await?;
        Ok((
            (),
            "kubectl apply -k manifests/seed in both seeds, and manifests/shoot in the shoots".to_owned(),
        ))
    };
    timeline.step("the manifests are applied", installed).await?;

    let settled = async {
        let mut shoots = Vec::new();
        for name in SHOOTS {
            let namespace = format!("shoot--demo--{name}");
            let place = async |seed| Place::somewhere(seed, shoot, &namespace).await;
            let [a, b] = [place(&seeds[A]).await?, place(&seeds[B]).await?];
            a.shoot.write_namespace().await?;
            a.settle().await?;
            shoots.push([a, b]);
        }
        let names: Vec<&str> = shoots.iter().map(|[a, _]| a.namespace()).collect();
        let said = format!("namespaces {} in seed A; nothing in seed B", names.join(" and "));
        Ok((shoots, said))
    };
    let shoots = timeline
        .step("Gardener (played) makes the shoots' control planes in seed A", settled)
        .await?;

    let started = async {
        let [a, b] = [Seat::start(&seeds[A]).await?, Seat::start(&seeds[B]).await?];
        let said = "firewall-approver in each, as ServiceAccount firewall-approver/firewall-approver".to_owned();
        Ok(([a, b], said))
    };
    let seats = timeline.step("an approver starts in either seed", started).await?;

    let made = async {
        let mut firewalls = Vec::new();
        for (places, suffix) in shoots.into_iter().zip(["0a1b2", "3c4d5"]) {
            let machine = places[A].machine(suffix).await?;
            firewalls.push(Standing { places, machine });
        }
        let said =
            "each has its .bootstrap.kubeconfig from Secret <firewall>-bootstrap-kubeconfig, mode 0600".to_owned();
        Ok((firewalls, said))
    };
    let firewalls = timeline
        .step("two Firewalls are made, and their machines installed", made)
        .await?;
    let mut stage = Stage {
        agents: Vec::new(),
        seats,
        shoot,
        firewalls,
        at: A,
    };
    for index in 0..stage.firewalls.len() {
        let title = format!(
            "the agent of {} starts and comes in",
            stage.firewalls[index].machine.firewall
        );
        let agent = timeline.step(&title, stage.bootstrap(index)).await?;
        stage.agents.push(agent);
    }
    Some(stage)
}

async fn prove(timeline: &mut Timeline, stage: &mut Stage<'_>) {
    timeline
        .step(
            "each machine's seed kubeconfig reads its own Firewall",
            stage.reads_its_own(),
        )
        .await;
    timeline
        .step(
            "it reads nothing of the other shoot, and no Secret but its own",
            stage.reads_nothing_else(),
        )
        .await;
    timeline
        .step(
            "each machine's shoot kubeconfig works in the shoot",
            stage.works_in_the_shoot(),
        )
        .await;
    timeline
        .step(
            "the machines' signed reports are there, and the approver believes them",
            stage.reported(),
        )
        .await;
    timeline
        .step(
            "the bootstrap credentials are refused from now on",
            stage.credential_is_revoked(),
        )
        .await;
    timeline
        .step(
            "asked by an annotation, an agent renews: new serial, same key",
            stage.renews(),
        )
        .await;
    let before = timeline
        .step("the approver is killed and started again", stage.restart_approver())
        .await;
    if let Some(before) = before {
        timeline
            .step(
                "that minted nothing: every Secret and every request is the same",
                stage.is_unchanged(&before),
            )
            .await;
    }
}

/// From here on nobody touches a machine.
async fn move_about(timeline: &mut Timeline, stage: &mut Stage<'_>) -> Option<()> {
    let Before { known, saved } = timeline
        .step(
            "Gardener saves the control planes' state, and seed A's API server is stopped",
            stage.lose_seed_a(),
        )
        .await?;
    timeline
        .step(
            "the control planes move to seed B: both firewalls come back by themselves",
            stage.appear_in_b(&saved),
        )
        .await?;
    timeline
        .step(
            "nothing else changed: key, FirewallMonitor and agent are the same",
            stage.is_the_same(&known),
        )
        .await;
    timeline
        .step(
            "they read their own in seed B, and nothing else",
            stage.reads_nothing_else(),
        )
        .await;
    timeline
        .step("their new state is Ready, told from seed B", stage.reported())
        .await;
    timeline
        .step(
            "seed A returns with both Firewalls in it: it stands aside, and the firewalls stay",
            stage.seed_a_returns(),
        )
        .await?;
    timeline
        .step("Gardener clears seed A: nothing of ours is left in it", stage.clear_a())
        .await?;
    timeline
        .step(
            "the control planes move back to seed A: both firewalls come back again",
            stage.back_to_a(),
        )
        .await?;
    timeline
        .step(
            "nothing is left in seed B, and there is one Firewall each",
            stage.b_is_clean(),
        )
        .await;
    timeline
        .step(
            "still the same keys, FirewallMonitors and agents",
            stage.is_the_same(&known),
        )
        .await;
    timeline
        .step("their state is Ready, told from seed A", stage.reported())
        .await;
    Some(())
}

impl<'a> Seat<'a> {
    async fn start(seed: &'a Cluster) -> anyhow::Result<Self> {
        let home = ApproverHome::new(seed).await?;
        let approver = home.start(&[])?;
        eventually("the approver serves", Duration::from_secs(20), || async {
            ensure!(home.log().contains("serving this seed"), "{}", home.log());
            Ok(())
        })
        .await?;
        Ok(Self {
            seed,
            home,
            approver: Some(approver),
        })
    }
}

impl<'a> Stage<'a> {
    /// Where the control planes stand now.
    fn seat(&self) -> &Seat<'a> {
        &self.seats[self.at]
    }

    /// The agent writes its seed kubeconfig after it has read its Firewall with it, and not before.
    async fn bootstrap(&self, index: usize) -> anyhow::Result<(Program, String)> {
        let machine = &self.firewalls[index].machine;
        let began = Instant::now();
        let agent = machine.start()?;
        let file = machine.seed_kubeconfig();
        while !file.is_file() {
            ensure!(
                began.elapsed() < Duration::from_secs(30),
                "no {} yet:\n{}\n{}",
                file.display(),
                machine.log(),
                tail(&self.seat().home.log())
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let took = began.elapsed();
        let line = format!(
            "agent start → seed client that has read its own Firewall: {:.2} s",
            took.as_secs_f64()
        );
        ensure!(took <= BOOTSTRAP_LIMIT, "{line}; {BOOTSTRAP_LIMIT:?} is the limit");
        world::bootstrapped(machine)
            .await
            .with_context(|| tail(&self.seat().home.log()))?;
        Ok((agent, line))
    }
}

async fn roll(timeline: &mut Timeline, stage: &Stage<'_>) {
    timeline
        .step(
            "seed A's client CA is rolled: both firewalls renew by themselves, before the old one is dropped",
            stage.client_ca_rolls(),
        )
        .await;
    timeline
        .step(
            "its server CA is rolled: the machines trust both in time",
            stage.server_ca_rolls(),
        )
        .await;
}
