//! How programs end: what is under way first and in time, at once when told again, and with the name of what died.

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::harness::{Cluster, ClusterOptions, eventually};
use tests::programs::{ApproverHome, Machine, Program};
use tests::upstream::install_crds;
use tests::world::{Place, World, install_seed, seed, shoot_cluster};
use tokio::time::Instant;

use crate::moves::EVENTUALLY;
use crate::support::requests_for;

/// Half of what it may take to hear out what is under way.
const AT_ONCE: Duration = Duration::from_secs(5);

/// A seed that a test may hold up, and whose every answer is on its audit log.
async fn audited(name: &str) -> Cluster {
    // The shoot's own objects come with the seed that all share.
    seed().await.unwrap();
    let options = ClusterOptions {
        audit: true,
        ..ClusterOptions::new(name)
    };
    let own = Cluster::start(options).await.unwrap();
    install_crds(&own, shoot_cluster().await.unwrap()).await.unwrap();
    install_seed(&own).await.unwrap();
    own
}

/// Its API server takes connections and answers nothing, until this is dropped.
struct Held(Pid);

impl Held {
    async fn of(cluster: &Cluster) -> Self {
        let id = cluster.process_ids().await[1];
        let id = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(id, Signal::STOP).unwrap();
        let held = Self(id);
        // The signal is one thread's to take up, which has to get its turn; the others answer meanwhile.
        let stat = format!("/proc/{}/stat", id.as_raw_nonzero());
        let end = Instant::now() + EVENTUALLY;
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(Instant::now() < end, "it does not stop");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

async fn says(program: &Program, word: &str) {
    let end = Instant::now() + EVENTUALLY;
    while !program.log().contains(word) {
        assert!(Instant::now() < end, "no {word:?} in\n{}", program.log());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What an approver wrote in its seed: as the seed has it, and as its own log has the answers.
fn writes(place: &Place<'_>) -> (usize, usize) {
    let asks = |path: &str| path.contains("selfsubject") || path.contains("subjectaccessreviews");
    let user = "system:serviceaccount:firewall-approver:firewall-approver";
    let carried_out = place.seed.audit().unwrap().into_iter().filter(|event| {
        event.user.username == user
            && ["create", "update", "patch", "delete"].contains(&event.verb.as_str())
            && !asks(&event.uri)
    });
    let log = place.home.log();
    let server = place.seed.server_url();
    let heard = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let heard = heard.filter(|line| {
        let text = |field: &str| line[field].as_str().unwrap_or_default();
        text("message") == "asked an API server"
            && text("server").trim_end_matches('/') == server
            && ["post", "put", "patch", "delete"].contains(&text("verb"))
            && line["code"].is_number()
            && !asks(text("path"))
    });
    (carried_out.count(), heard.count())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_that_is_told_to_stop_hears_out_every_write_says_so_and_leaves_the_lease() {
    let seed = audited("seed-drains").await;
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--end--drains")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let settings = ["--log-level", "debug", "--bootstrap-credential", "service-account"];
    let mut approver = place.approver_with(&settings).unwrap();
    let http = approver.http().await.unwrap();
    says(&approver, "serving this seed").await;
    let (first, second) = tokio::join!(
        place.shoot.create_firewall("00001"),
        place.shoot.create_firewall("00002")
    );
    first.and(second).unwrap();
    says(&approver, "looked at").await;
    let held = Held::of(&seed).await;
    approver.signal(Signal::TERM).unwrap();
    says(&approver, "told to stop").await;
    let ready = http.get("/readyz").await.unwrap();
    assert_eq!(ready.status, 503, "{}", ready.body);
    assert!(
        ready.body.contains("[-]stop failed: it was told to stop"),
        "{}",
        ready.body
    );
    assert_eq!(http.get("/healthz").await.unwrap().status, 200);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(approver.runs(), "it did not wait for its writes:\n{}", approver.log());
    drop(held);
    assert_eq!(
        approver.ended(Duration::from_secs(10)).await.unwrap(),
        Some(0),
        "{}",
        approver.log()
    );

    let (carried_out, heard) = writes(&place);
    println!("{heard} writes");
    assert!(
        heard > 10 && carried_out == heard,
        "{carried_out} carried out, {heard} heard"
    );
    let leases: Api<Lease> = Api::namespaced(seed.client().await.unwrap(), "firewall-approver");
    let leases = leases.list(&kube::api::ListParams::default()).await.unwrap();
    assert_eq!(leases.items.len(), 1);
    assert_eq!(leases.items[0].spec.as_ref().unwrap().holder_identity, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_an_approver_at_once_and_one_that_waits_needs_no_second() {
    let seed = audited("seed-twice").await;
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--end--twice")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let mut leader = place.approver_with(&["--log-level", "debug"]).unwrap();
    says(&leader, "serving this seed").await;
    let home = ApproverHome::new(&seed).await.unwrap();
    let mut waits = home.start(&["--namespace", place.namespace()]).unwrap();
    says(&waits, "waiting to lead").await;
    let _held = Held::of(&seed).await;
    waits.signal(Signal::TERM).unwrap();
    assert_eq!(waits.ended(AT_ONCE).await.unwrap(), Some(0), "{}", waits.log());

    leader.signal(Signal::TERM).unwrap();
    says(&leader, "told to stop").await;
    // The lease cannot be given back: it tries.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(leader.runs(), "{}", leader.log());
    leader.signal(Signal::INT).unwrap();
    assert_eq!(leader.ended(AT_ONCE).await.unwrap(), Some(130), "{}", leader.log());
    assert!(leader.log().contains("SIGINT again: ended at once"), "{}", leader.log());
}

async fn asking(machine: &Machine) -> Program {
    let agent = machine.start_with(&["--log-level", "debug"]).unwrap();
    says(&agent, "SendRequest").await;
    agent.signal(Signal::TERM).unwrap();
    says(&agent, "told to stop").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_hears_out_what_it_asked_when_told_to_stop_and_a_second_signal_ends_it_at_once() {
    let seed = audited("seed-asked").await;
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--end--asked")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let approver = place.approver().unwrap();
    let machine = place.machine("00001").await.unwrap();
    let other = place.machine("00002").await.unwrap();
    approver.stop().await.unwrap();

    let held = Held::of(&seed).await;
    let mut hasty = asking(&other).await;
    hasty.signal(Signal::TERM).unwrap();
    assert_eq!(hasty.ended(AT_ONCE).await.unwrap(), Some(143), "{}", hasty.log());
    let mut agent = asking(&machine).await;
    assert!(agent.runs(), "{}", agent.log());
    drop(held);
    assert_eq!(
        agent.ended(Duration::from_secs(10)).await.unwrap(),
        Some(0),
        "{}",
        agent.log()
    );
    let log = agent.log();
    let (_, after) = log.rsplit_once("told to stop").unwrap();
    assert!(after.contains("request sent") && after.contains("stopped"), "{log}");
    assert_eq!(requests_for(&place, &machine.firewall).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_nothing_under_way_stops_at_once() {
    let world = World::new("shoot--end--idle").await.unwrap();
    let _approver = world.approver().unwrap();
    let (_machine, mut agent) = crate::moves::came_in(&world, "00001").await;
    eventually("that all is well", EVENTUALLY, || async {
        ensure!(agent.log().contains("all is well"), "not yet");
        Ok(())
    })
    .await
    .with_context(|| agent.log())
    .unwrap();
    agent.signal(Signal::INT).unwrap();
    assert_eq!(agent.ended(AT_ONCE).await.unwrap(), Some(0), "{}", agent.log());
}
