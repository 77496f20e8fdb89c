//! What the seed tells its firewall of itself, in `<firewall>.fw.metal-stack.io`: tried before anything is switched.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::ByteString;
use kube::api::Patch;
use serde_json::json;
use tests::harness::{Authority, PATIENCE, eventually};
use tests::programs::Machine;
use tests::world::{World, bootstrapped};

use crate::support::{client_of, user_of};

const SOON: Duration = Duration::from_secs(40);

async fn tell(world: &World, machine: &Machine, key: &str, value: &str) {
    let patch = json!({"data": {key: ByteString(value.as_bytes().to_vec())}});
    let name = format!("{}.fw.metal-stack.io", machine.firewall);
    world
        .secrets()
        .await
        .unwrap()
        .patch(&name, &Default::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn b1_a_server_or_ca_that_the_seed_tells_of_is_tried_before_it_is_switched_to() {
    let world = World::new("shoot--b1--offer").await.unwrap();
    let approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    let told = machine.path().join("hook");
    eventually("the hook after the first bootstrap", SOON, || async {
        ensure!(told.exists(), "not run");
        Ok(())
    })
    .await
    .unwrap();
    fs::remove_file(&told).unwrap();
    // Stopped, for the test now speaks in its place.
    approver.stop().await.unwrap();
    let before = fs::read_to_string(machine.seed_kubeconfig()).unwrap();

    // Nobody answers there as a seed would.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("https://{}", listener.local_addr().unwrap());
    drop(listener);
    tell(&world, &machine, "server", &nowhere).await;
    eventually("the refusal", SOON, || async {
        let status = machine.command("status", &[])?;
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        ensure!(text.contains(&nowhere), "{text}");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    assert_eq!(fs::read_to_string(machine.seed_kubeconfig()).unwrap(), before);

    // A second CA beside the first, as in the middle of a roll.
    let next = Authority::new("next").unwrap().certificate();
    tell(
        &world,
        &machine,
        "ca.crt",
        &format!("{next}{}", world.seed.server_ca_pem()),
    )
    .await;
    tell(&world, &machine, "server", &world.seed.server_url()).await;
    eventually("the switch", PATIENCE, || async {
        ensure!(
            fs::read_to_string(machine.seed_kubeconfig())? != before,
            "still the old one"
        );
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    // The consumer is told of it, at most once a minute, and over a restart too.
    agent.kill();
    let _agent = machine.start().unwrap();
    eventually("the hook", PATIENCE, || async {
        ensure!(told.exists(), "not run");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
}
