//! What goes wrong on a larger scale than one firewall: stores set back to a backup, a shoot whose keys are rolled, a
//! shoot that is away for a long time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use contract::kubeconfig::{Credential, Kubeconfig};
use secrecy::ExposeSecret;
use tests::harness::{Cluster, ClusterOptions, Proxy, eventually};
use tests::moves::{Leaves, Stage, tail};
use tests::programs::Machine;
use tests::upstream::install_crds;
use tests::world::{Place, install_seed, install_shoot, other_seed, own_seed, seed, shoot_cluster};
use tokio::time::Instant;

use crate::moves::{EVENTUALLY, PROMISED, both, came_in, said, settled};
use crate::support::{certificate_of, client_of, renewed, user_of};

/// A shoot's API server of a test's own, which it may break.
async fn own_shoot(name: &str, seeds: &[&Cluster]) -> Cluster {
    let shoot = Cluster::start(ClusterOptions::new(name)).await.unwrap();
    for seed in seeds {
        install_crds(seed, &shoot).await.unwrap();
    }
    install_shoot(&shoot).await.unwrap();
    shoot
}

fn generation(record: &serde_json::Value) -> u64 {
    record["generation"].as_u64().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_seed_that_is_set_back_to_an_older_backup_goes_on_with_higher_numbers() {
    let new = own_seed("seed-set-back").await.unwrap();
    let (old, shoot) = (seed().await.unwrap(), shoot_cluster().await.unwrap());
    let stage = Stage::between(old, &new, shoot, "shoot--disaster--seed").await.unwrap();
    let Stage { a, b } = &stage;
    let _a = a.approver().unwrap();
    let (machine, _agent) = came_in(a, "00001").await;
    a.move_to(b, Leaves::Nothing).await.unwrap();
    // As it was before the approver had done anything.
    let backup = new.backup().await.unwrap();
    let approver = b.approver().unwrap();
    // What the annotation says came along with the Firewall: the record tells what is so.
    let numbered = eventually("it has come in", EVENTUALLY, || async {
        let record = b.record(&machine.firewall).await?;
        ensure!(record["handover"].is_null() && generation(&record) >= 1, "{record}");
        Ok(generation(&record))
    })
    .await
    .with_context(|| tail(&b.home.log()))
    .unwrap();
    let key = machine.key().unwrap();
    approver.stop().await.unwrap();

    new.restore(&backup).await.unwrap();
    assert_eq!(generation(&b.record(&machine.firewall).await.unwrap()), 0);
    let _approver = b.approver().unwrap();
    let began = Instant::now();
    eventually("a higher number than before", EVENTUALLY, || async {
        let now = generation(&b.record(&machine.firewall).await?);
        ensure!(now > numbered, "it is {now}");
        Ok(())
    })
    .await
    .with_context(|| tail(&b.home.log()))
    .unwrap();
    b.has(&machine, began, EVENTUALLY).await.unwrap();
    settled(b, &machine).await;
    assert_eq!(machine.key().unwrap(), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_shoot_that_is_set_back_to_an_older_backup_brings_no_old_handover_back() {
    let (one, two) = (seed().await.unwrap(), other_seed().await.unwrap());
    let shoot = own_shoot("shoot-set-back", &[one, two]).await;
    let stage = Stage::between(one, two, &shoot, "shoot--disaster--shoot")
        .await
        .unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    settled(b, &machine).await;
    // With the handover to B in it.
    let backup = shoot.backup().await.unwrap();
    let began = b.move_to(a, Leaves::Nothing).await.unwrap();
    a.has(&machine, began, EVENTUALLY).await.unwrap();
    settled(a, &machine).await;
    let serial = certificate_of(&machine).unwrap().serial;

    shoot.restore(&backup).await.unwrap();
    a.keeps(&machine, Duration::from_secs(15)).await.unwrap();
    assert_eq!(certificate_of(&machine).unwrap().serial, serial);
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let took = b.has(&machine, began, EVENTUALLY).await.unwrap();
    println!("the next move: {took:?}");
    settled(b, &machine).await;
}

/// The token with which a machine would be told of a move, or of the consumer's kubeconfig.
fn token_in(machine: &Machine, file: &str) -> anyhow::Result<String> {
    let path = if file.starts_with('.') {
        machine.config().join(file)
    } else {
        machine.state().join(file)
    };
    match Kubeconfig::read(file, &fs::read_to_string(path)?)?.credential {
        Credential::Token(token) => Ok(token.expose_secret().to_owned()),
        other => anyhow::bail!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_a_shoot_whose_ca_and_token_key_were_rolled_at_once_is_found_again_through_the_seed() {
    let (one, two) = (seed().await.unwrap(), other_seed().await.unwrap());
    let shoot = own_shoot("shoot-rolls", &[one, two]).await;
    let stage = Stage::between(one, two, &shoot, "shoot--disaster--rolls")
        .await
        .unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let (lifeline, consumer) = (
        token_in(&machine, "lifeline.kubeconfig").unwrap(),
        token_in(&machine, ".shoot.kubeconfig").unwrap(),
    );
    let roll = shoot.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    roll.switch_signer().await.unwrap();
    roll.drop_old().await.unwrap();
    shoot.roll_service_account_key(false).await.unwrap();
    // Gardener writes both anew.
    let rolled = Instant::now();
    a.settle().await.unwrap();
    eventually("both ways into the shoot are new", EVENTUALLY, || async {
        ensure!(
            token_in(&machine, "lifeline.kubeconfig")? != lifeline,
            "the lifeline is the old one"
        );
        ensure!(
            token_in(&machine, ".shoot.kubeconfig")? != consumer,
            "the shoot kubeconfig is the old one"
        );
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()) + &tail(&a.home.log()))
    .unwrap();
    println!("both ways into the shoot: {:?}", rolled.elapsed());
    user_of(&client_of(&machine.shoot_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    user_of(&client_of(&machine.state().join("lifeline.kubeconfig")).await.unwrap())
        .await
        .unwrap();
    // And so the next move is heard of.
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&machine, began, EVENTUALLY).await.unwrap();
    settled(b, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_a_shoot_that_rolls_its_ca_and_token_key_while_the_seed_is_dead_keeps_its_firewall() {
    let dead = own_seed("seed-dead").await.unwrap();
    let new = other_seed().await.unwrap();
    let shoot = own_shoot("shoot-rolls-alone", &[&dead, new]).await;
    let stage = Stage::between(&dead, new, &shoot, "shoot--disaster--alone")
        .await
        .unwrap();
    let (Stage { a, b }, approvers) = (&stage, both(&stage));
    let machine = a.machine("00001").await.unwrap();
    let _agent = machine.start_with(&["--poll-interval", "2s"]).unwrap();
    settled(a, &machine).await;
    let saved = a.shoot.backup().await.unwrap();
    let lifeline = token_in(&machine, "lifeline.kubeconfig").unwrap();
    drop(approvers);
    dead.stop_apiserver().await;

    // As Gardener rolls them: old and new are good together, and then only the new.
    shoot.roll_service_account_key(true).await.unwrap();
    let roll = shoot.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    eventually("a lifeline of the new key", EVENTUALLY, || async {
        ensure!(
            token_in(&machine, "lifeline.kubeconfig")? != lifeline,
            "it is the old one"
        );
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    roll.switch_signer().await.unwrap();
    roll.drop_old().await.unwrap();
    shoot.drop_old_service_account_key().await.unwrap();

    let _approver = b.approver().unwrap();
    let began = b.shoot.restore(&saved).await.unwrap();
    let took = b.has(&machine, began, EVENTUALLY).await.unwrap();
    println!("the move after that: {took:?}");
    settled(b, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a7_while_a_shoot_is_hibernated_its_firewall_renews_from_the_seed_alone_without_an_alarm() {
    let options = ClusterOptions {
        signing_duration: Some(Duration::from_secs(60)),
        ..ClusterOptions::new("seed-short")
    };
    // With what all tests share comes what the shoot needs.
    tests::world::seed().await.unwrap();
    let seed = Cluster::start(options).await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    install_crds(&seed, shoot).await.unwrap();
    install_seed(&seed).await.unwrap();
    let mut place = Place::empty(&seed, shoot, "shoot--disaster--asleep").await.unwrap();
    let proxy = Proxy::to(shoot).await.unwrap();
    place.shoot.address = proxy.url();
    place.settle().await.unwrap();
    let _approver = place.approver_with(&["--poll-interval", "5s"]).unwrap();
    let (machine, _agent) = came_in(&place, "00001").await;
    proxy.cut();
    let mut issued = certificate_of(&machine).unwrap();
    for _ in 0..3 {
        issued = renewed(&machine, &issued, Duration::from_secs(75)).await.unwrap();
        let state = place.state(&machine.firewall).await.unwrap();
        assert!(
            state["state"] == "Ready" && state["reason"] == "Bootstrapped",
            "an alarm for a shoot that sleeps: {state}"
        );
        user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
            .await
            .unwrap();
    }
    said(&place, &machine.firewall, "Bootstrapped", "could not be told of a move").await;
    proxy.mend();
    settled(&place, &machine).await;
}
