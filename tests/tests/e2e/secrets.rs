//! Secrets stay where they belong. (Each log of each test is searched for them when its program ends: `tests::secrets`.)

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use tests::harness::Cluster;
use tests::moves::{Leaves, Stage};
use tests::secrets::{below, in_file, shown, suspicious};
use tests::world::bootstrapped;

use crate::moves::{EVENTUALLY, came_in, settled};
use crate::support::{certificate_of, renewed};

/// Every secret that stands in a cluster's Secrets, as text.
async fn secrets_of(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let all: Api<Secret> = Api::all(cluster.client().await?);
    let mut found = Vec::new();
    for secret in all.list(&ListParams::default()).await? {
        for (key, value) in secret.data.unwrap_or_default() {
            let Ok(text) = String::from_utf8(value.0) else { continue };
            found.extend(in_file(&text));
            if ["token-secret", "token"].contains(&key.as_str()) {
                found.push(text.rsplit('.').next().unwrap_or_default().to_owned());
            }
        }
    }
    Ok(found)
}

/// What others read than those whose secrets they are.
async fn public_of(cluster: &Cluster, kinds: &str) -> anyhow::Result<String> {
    cluster.kubectl_ok(&["get", kinds, "-A", "-o", "json"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_whole_life_no_secret_is_in_an_event_a_request_an_annotation_or_a_status() {
    let stage = Stage::new("shoot--secrets--life").await.unwrap();
    let a = stage.a.approver().unwrap();
    let (machine, agent) = came_in(&stage.a, "00001").await;
    let mut secrets = secrets_of(stage.a.seed).await.unwrap();
    let old = certificate_of(&machine).unwrap();
    stage
        .a
        .annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=once")
        .await
        .unwrap();
    renewed(&machine, &old, EVENTUALLY).await.unwrap();
    let b = stage.b.approver().unwrap();
    let since = stage.a.move_to(&stage.b, Leaves::Nothing).await.unwrap();
    // While it is on its way, the way in stands in the seed.
    for _ in 0..20 {
        secrets.extend(secrets_of(stage.b.seed).await.unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.b.has(&machine, since, EVENTUALLY).await.unwrap();
    settled(&stage.b, &machine).await;
    secrets.extend(secrets_of(stage.b.seed).await.unwrap());
    secrets.extend(below(machine.path()));
    bootstrapped(&machine).await.unwrap();
    secrets.sort_unstable();
    secrets.dedup();
    assert!(secrets.len() > 10, "only {} secrets were in play", secrets.len());

    let (seed, shoot) = (
        "events,csr,firewalls,configmaps,roles,rolebindings,serviceaccounts",
        "events,firewallmonitors,configmaps,serviceaccounts",
    );
    for (what, text) in [
        ("seed A", public_of(stage.a.seed, seed).await.unwrap()),
        ("seed B", public_of(stage.b.seed, seed).await.unwrap()),
        ("the shoot", public_of(stage.a.shoot.cluster, shoot).await.unwrap()),
        ("approver A's log", stage.a.home.log()),
        ("approver B's log", stage.b.home.log()),
        ("the agent's log", machine.log()),
        ("its status", machine.status().unwrap()),
    ] {
        assert!(text.len() > 100, "{what} is empty");
        assert_eq!(shown(&text, &secrets), None, "{what}");
        // Reports and handovers are signed for all to see; what is secret in them is sealed.
        if what != "the shoot" {
            assert_eq!(suspicious(&text), None, "{what}");
        }
    }
    for program in [a, b, agent] {
        program.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_program_leaves_a_core_even_where_it_may() {
    // That this kernel would.
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -c unlimited && kill -ABRT $$"])
        .current_dir(dir.path());
    let status = shell.status().unwrap();
    assert!(status.core_dumped(), "nobody leaves cores on this machine: {status}");

    let stage = Stage::new("shoot--secrets--core").await.unwrap();
    let approver = stage.a.approver().unwrap();
    let (_machine, agent) = came_in(&stage.a, "00001").await;
    for program in [approver, agent] {
        let status = program.abort().unwrap();
        assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "{status}");
    }
}
