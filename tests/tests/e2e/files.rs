//! The files that a consumer reads: at no instant is one of them missing, half written, or at odds with another.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use contract::kubeconfig::Kubeconfig;
use tests::harness::{PATIENCE, eventually};
use tests::moves::tail;
use tests::watcher::Watcher;
use tests::world::{Place, own_seed, shoot_cluster};

use crate::moves::{EVENTUALLY, came_in};
use crate::support::{certificate_of, client_of, renewed, user_of};

#[tokio::test(flavor = "multi_thread")]
async fn c4_at_no_instant_is_certificate_key_or_ca_missing_or_half_written() {
    let seed = own_seed("seed-files").await.unwrap();
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--files--live")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let approver = place.approver().unwrap();
    let (machine, mut agent) = came_in(&place, "00001").await;
    let told = machine.path().join("hook");
    eventually("the hook of the first bootstrap", EVENTUALLY, || async {
        ensure!(told.exists(), "not run");
        Ok(())
    })
    .await
    .unwrap();
    fs::remove_file(&told).unwrap();
    let watcher = Watcher::of(None, &machine.config());

    // Renewals, with the agent killed or stopped in their midst.
    for round in 0..6 {
        let before = certificate_of(&machine).unwrap();
        let annotation = format!("firewall.metal-stack.io/renew-seed-access={round}");
        place.annotate(&machine.firewall, &annotation).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100 + 37 * round)).await;
        if round % 2 == 0 {
            agent.kill();
        } else {
            agent.stop().await.unwrap();
        }
        agent = machine.start().unwrap();
        renewed(&machine, &before, EVENTUALLY).await.unwrap();
    }
    // A renewal changes one file, which the consumer reloads by itself.
    assert!(!told.exists(), "the hook ran for a renewal");

    // The server's CA is rolled, and both programs are started anew in the midst of it.
    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    approver.stop().await.unwrap();
    let _approver = place.approver().unwrap();
    eventually("both CAs on the machine", EVENTUALLY, || async {
        let text = fs::read_to_string(machine.seed_kubeconfig())?;
        let kubeconfig = Kubeconfig::read_local("it", &text)?;
        ensure!(
            kubeconfig.ca.certificates().len() == 2,
            "{} CAs",
            kubeconfig.ca.certificates().len()
        );
        // The new one first.
        let published = seed.server_ca_pem();
        ensure!(kubeconfig.ca.pem().trim() == published.trim(), "in another order");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()) + &tail(&place.home.log()))
    .unwrap();
    agent.kill();
    let _agent = machine.start().unwrap();
    roll.switch_signer().await.unwrap();
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    roll.drop_old().await.unwrap();
    eventually("the new CA alone", EVENTUALLY, || async {
        let text = fs::read_to_string(machine.seed_kubeconfig())?;
        let kubeconfig = Kubeconfig::read_local("it", &text)?;
        ensure!(kubeconfig.ca.certificates().len() == 1, "the old one too");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()) + &tail(&place.home.log()))
    .unwrap();
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    let looks = watcher.end().unwrap();
    println!("{looks} looks at the files");
    assert!(looks > 500, "{looks} looks only");
    // The roll of a CA is told, at most once a minute.
    eventually("the hook of the roll", PATIENCE, || async {
        ensure!(told.exists(), "not run");
        Ok(())
    })
    .await
    .unwrap();
}
