//! The demo: the firewalls of two shoots bootstrap their access to one seed, with real API servers and the real
//! programs, and every claim on the way is checked. Owns the story; timeline and checks have modules of their own.

mod checks;
mod timeline;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::harness::{Cluster, ClusterOptions, eventually};
use crate::programs::{ApproverHome, Machine, Program};
use crate::upstream::{self, Shoot};
use crate::world;
use timeline::Timeline;

/// From the start of an agent to a seed client that has read its own Firewall.
const BOOTSTRAP_LIMIT: Duration = Duration::from_secs(2);
const SHOOTS: [&str; 2] = ["alpha", "beta"];

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
        .step("three API servers start: a seed and two shoots", Clusters::start())
        .await
    else {
        return timeline.end();
    };
    let Some(mut stage) = set_up(timeline, &clusters).await else {
        return timeline.end();
    };
    prove(timeline, &mut stage).await;
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
    seed: Cluster,
    shoots: Vec<Cluster>,
}

impl Clusters {
    async fn start() -> anyhow::Result<(Self, String)> {
        let start = |name: &str| tokio::spawn(Cluster::start(ClusterOptions::new(name)));
        let (seed, alpha, beta) = tokio::join!(start("seed"), start(SHOOTS[0]), start(SHOOTS[1]));
        let clusters = Self {
            seed: seed??,
            shoots: vec![alpha??, beta??],
        };
        let urls: Vec<String> = clusters.shoots.iter().map(Cluster::server_url).collect();
        let said = format!("seed {}, shoots {}", clusters.seed.server_url(), urls.join(" and "));
        Ok((clusters, said))
    }
}

/// What plays. Dropped before the API servers that it talks to.
struct Stage<'a> {
    seed: &'a Cluster,
    agents: Vec<Program>,
    approver: Option<Program>,
    home: ApproverHome,
    firewalls: Vec<Standing<'a>>,
}

/// A Firewall with its shoot and its machine.
struct Standing<'a> {
    shoot: Shoot<'a>,
    machine: Machine,
}

async fn set_up<'a>(timeline: &mut Timeline, clusters: &'a Clusters) -> Option<Stage<'a>> {
    let Clusters { seed, shoots } = clusters;
    let installed = async {
        for shoot in shoots {
            upstream::install_crds(seed, shoot).await?;
            world::install_shoot(shoot).await?;
        }
        world::install_seed(seed).await?;
        Ok((
            (),
            "kubectl apply -k manifests/seed, and manifests/shoot in each shoot".to_owned(),
        ))
    };
    timeline.step("the manifests are applied", installed).await?;

    let homes = async {
        let mut made = Vec::new();
        for (cluster, name) in shoots.iter().zip(SHOOTS) {
            let shoot = Shoot::create(seed, cluster, &format!("shoot--demo--{name}")).await?;
            shoot.write_approver_access().await?;
            made.push(shoot);
        }
        let namespaces: Vec<&str> = made.iter().map(|shoot| shoot.namespace.as_str()).collect();
        let said = format!("namespaces {} in the seed", namespaces.join(" and "));
        Ok((made, said))
    };
    let made = timeline
        .step("Gardener (played) makes the shoots' control planes", homes)
        .await?;

    let started = async {
        let home = ApproverHome::new(seed).await?;
        let program = home.start(&[])?;
        eventually("the approver serves", Duration::from_secs(20), || async {
            ensure!(home.log().contains("serving this seed"), "{}", home.log());
            Ok(())
        })
        .await?;
        let said = format!(
            "firewall-approver, process {}, as ServiceAccount firewall-approver/firewall-approver",
            program.id()
        );
        Ok(((home, program), said))
    };
    let (home, approver) = timeline.step("the approver starts", started).await?;

    let firewalls = async {
        let mut firewalls = Vec::new();
        for (shoot, suffix) in made.into_iter().zip(["0a1b2", "3c4d5"]) {
            let firewall = shoot.create_firewall(suffix).await?;
            let machine = Machine::install(seed, &shoot.namespace, &firewall).await?;
            firewalls.push(Standing { shoot, machine });
        }
        let said =
            "each has its .bootstrap.kubeconfig from Secret <firewall>-bootstrap-kubeconfig, mode 0600".to_owned();
        Ok((firewalls, said))
    };
    let firewalls = timeline
        .step("two Firewalls are made, and their machines installed", firewalls)
        .await?;
    let mut stage = Stage {
        seed,
        agents: Vec::new(),
        approver: Some(approver),
        home,
        firewalls,
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

impl Stage<'_> {
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
                self.home.log()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let took = began.elapsed();
        let line = format!(
            "agent start → seed client that has read its own Firewall: {:.2} s",
            took.as_secs_f64()
        );
        ensure!(took <= BOOTSTRAP_LIMIT, "{line}; {BOOTSTRAP_LIMIT:?} is the limit");
        world::bootstrapped(machine).await.with_context(|| self.home.log())?;
        Ok((agent, line))
    }
}
