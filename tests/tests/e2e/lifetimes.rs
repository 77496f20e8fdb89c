//! Certificates that end, are late, refused or gone, and clocks that are wrong: the firewall comes through, or says what
//! is the matter, and goes on when it is mended.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use contract::cert::Issued;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use tests::harness::{Cluster, ClusterOptions, PATIENCE, eventually};
use tests::moves::tail;
use tests::programs::{Machine, Program};
use tests::upstream::install_crds;
use tests::world::{self, Place, World, bootstrapped, install_seed, own_seed, shoot_cluster};

use crate::moves::{came_in, said, settled};
use crate::support::{certificate_of, client_of, condition, renewed, requests_for, user_of};

const SOON: Duration = Duration::from_secs(30);

/// A seed whose signer gives a minute, whatever is asked.
async fn short_lived(name: &str) -> Cluster {
    let options = ClusterOptions {
        signing_duration: Some(Duration::from_secs(60)),
        ..ClusterOptions::new(name)
    };
    // With what all tests share comes what the shoot needs.
    world::seed().await.unwrap();
    let seed = Cluster::start(options).await.unwrap();
    install_crds(&seed, shoot_cluster().await.unwrap()).await.unwrap();
    install_seed(&seed).await.unwrap();
    seed
}

async fn place<'a>(seed: &'a Cluster, namespace: &str) -> Place<'a> {
    let place = Place::empty(seed, shoot_cluster().await.unwrap(), namespace)
        .await
        .unwrap();
    place.settle().await.unwrap();
    place
}

fn life(issued: &Issued) -> i64 {
    issued.not_before.duration_until(issued.not_after).as_secs()
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a_certificate_that_ended_while_the_machine_was_off_is_replaced_when_it_is_back() {
    let seed = short_lived("seed-expires").await;
    let place = place(&seed, "shoot--life--expired").await;
    let _approver = place.approver().unwrap();
    let (machine, agent) = came_in(&place, "00001").await;
    let (issued, key) = (certificate_of(&machine).unwrap(), machine.key().unwrap());
    // Less than was asked: it is taken, and renewed by its own dates.
    assert!(life(&issued) <= 360, "{issued:?}");
    let issued = renewed(&machine, &issued, Duration::from_secs(60)).await.unwrap();
    agent.kill();
    let left = jiff::Timestamp::now().duration_until(issued.not_after).unsigned_abs();
    tokio::time::sleep(left).await;
    said(&place, &machine.firewall, "Expired", "").await;
    let _agent = machine.start().unwrap();
    let now = renewed(&machine, &issued, SOON).await.unwrap();
    assert_eq!(now.key, issued.key);
    settled(&place, &machine).await;
    assert_eq!(machine.key().unwrap(), key);
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_request_that_is_approved_and_not_signed_is_named_and_signed_late_it_counts() {
    let seed = own_seed("seed-signs-late").await.unwrap();
    let place = place(&seed, "shoot--life--late").await;
    let _approver = place.approver().unwrap();
    let machine = place.machine("00001").await.unwrap();
    seed.stop_controller_manager().await;
    let _agent = machine.start().unwrap();
    eventually("both sides name it", PATIENCE, || async {
        let status = machine.status()?;
        ensure!(status.contains("somebody to sign its approved request"), "{status}");
        ensure!(place.home.log().contains("ApprovedNotIssued"), "the approver does not");
        Ok(())
    })
    .await
    .unwrap();
    let requests = requests_for(&place, &machine.firewall).await.unwrap();
    seed.start_controller_manager().await.unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&place, &machine).await;
    let after = requests_for(&place, &machine.firewall).await.unwrap();
    assert_eq!(requests.len(), after.len(), "it asked anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_request_that_somebody_denied_or_deleted_is_made_anew() {
    let world = World::new("shoot--life--denied").await.unwrap();
    let machine = {
        let approver = world.approver().unwrap();
        let machine = world.machine("00001").await.unwrap();
        approver.stop().await.unwrap();
        machine
    };
    let agent = machine.start().unwrap();
    let first = asked(&world, &machine, 1).await;
    // Deleted under the agent: it asks anew with the same key, and soon.
    let requests: Api<CertificateSigningRequest> = Api::all(world.admin().await.unwrap());
    requests.delete(&first, &DeleteParams::default()).await.unwrap();
    let second = asked(&world, &machine, 1).await;
    assert_ne!(first, second);
    // Denied by hand: that is final, and somebody meant it, so it takes its time.
    world.seed.kubectl_ok(&["certificate", "deny", &second]).await.unwrap();
    eventually("the agent says so", SOON, || async {
        let status = machine.status()?;
        ensure!(status.contains("was denied"), "{status}");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    let _approver = world.approver().unwrap();
    eventually("a third request, approved", PATIENCE, || async {
        let all = requests_for(&world, &machine.firewall).await?;
        ensure!(
            all.iter().any(|request| condition(request, "Approved").is_some()),
            "none yet"
        );
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    bootstrapped(&machine).await.unwrap();
    let keys: Vec<_> = requests_for(&world, &machine.firewall)
        .await
        .unwrap()
        .iter()
        .map(|request| contract::csr::read(&request.spec.request.0).unwrap().key)
        .collect();
    assert!(keys.iter().all(|key| *key == keys[0]), "it made another key");
    drop(agent);
}

/// The name of the one undecided request.
async fn asked(world: &World, machine: &Machine, count: usize) -> String {
    eventually("a request", SOON, || async {
        let all = requests_for(world, &machine.firewall).await?;
        ensure!(all.len() == count, "{} requests", all.len());
        Ok(all[0].name_any())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap()
}

/// An agent whose clock is set by a file: so many hours off.
fn with_clock(machine: &Machine, hours: i32) -> Program {
    let environment = clock(machine, hours);
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    machine.start_in(&environment).unwrap()
}

/// What has to be in the environment of its agent for that.
pub(crate) fn clock(machine: &Machine, hours: i32) -> [(&'static str, String); 4] {
    set_clock(machine, hours);
    let file = machine.path().join("clock").display().to_string();
    // tests/tools.sh installs it.
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .into_iter()
        .map(|dir| format!("{dir}/faketime/libfaketime.so.1"))
        .find(|path| fs::metadata(path).is_ok())
        .unwrap();
    [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        // What is waited for goes by another clock, on a real machine too.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

fn set_clock(machine: &Machine, hours: i32) {
    let (new, path) = (machine.path().join("clock.new"), machine.path().join("clock"));
    fs::write(&new, format!("{hours:+}h\n")).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_clock_that_jumps_by_an_hour_is_named_and_costs_no_access() {
    let world = World::new("shoot--life--clock").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let mut agent = with_clock(&machine, 0);
    settled(&world, &machine).await;
    let serial = certificate_of(&machine).unwrap().serial;
    for (hours, words) in [(1, "ahead of the seed's"), (-1, "behind the seed's")] {
        set_clock(&machine, hours);
        // Measured every five minutes, and at each start.
        agent.kill();
        agent = with_clock(&machine, hours);
        eventually("the clock is named", SOON, || async {
            let status = machine.status()?;
            ensure!(status.contains(words) && status.contains("set it"), "{status}");
            Ok(())
        })
        .await
        .with_context(|| tail(&machine.log()))
        .unwrap();
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(certificate_of(&machine).unwrap().serial, serial, "renewed for nothing");
        assert_eq!(requests_for(&world, &machine.firewall).await.unwrap().len(), 1);
        user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
            .await
            .unwrap();
    }
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_a_machine_that_first_starts_with_a_wrong_clock_names_it_and_comes_in_when_it_is_set() {
    let world = World::new("shoot--life--late-clock").await.unwrap();
    let _approver = world.approver().unwrap();
    for (suffix, hours, words) in [("00001", 1, "ahead of the seed's"), ("00002", -1, "behind the seed's")] {
        let machine = world.machine(suffix).await.unwrap();
        let agent = with_clock(&machine, hours);
        eventually("the clock is named", SOON, || async {
            let status = machine.status()?;
            ensure!(status.contains(words), "{status}");
            Ok(())
        })
        .await
        .with_context(|| tail(&machine.log()))
        .unwrap();
        assert!(
            requests_for(&world, &machine.firewall).await.unwrap().len() <= 2,
            "it loops"
        );
        // Somebody sets it, and starts the agent anew.
        agent.kill();
        let _agent = with_clock(&machine, 0);
        bootstrapped(&machine).await.unwrap();
        settled(&world, &machine).await;
    }
}
