//! What Gardener did not carry along, or what was lost where it stood.

use anyhow::{Context, ensure};
use contract::report::Report;
use kube::ResourceExt;
use kube::api::DeleteParams;
use tests::harness::eventually;
use tests::moves::{Leaves, Stage, tail};
use tests::programs::{Machine, export};
use tests::upstream::monitors;
use tests::world::Place;
use tokio::time::Instant;

use super::{EVENTUALLY, PROMISED, both, came_in, do_as_told, said, settled};

const STATE: &str = "firewall-bootstrap";

#[tokio::test(flavor = "multi_thread")]
async fn d1_without_the_shoots_state_an_export_is_asked_for_and_brings_the_firewall_in() {
    let stage = Stage::new("shoot--move--nostate").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    let saved = a.leave(Leaves::Nothing).await.unwrap().without_secret(STATE);
    b.shoot.restore(&saved).await.unwrap();
    let command = format!("firewall-approver export {}/{}", b.namespace(), machine.firewall);
    said(b, &machine.firewall, "HandoverKeyLost", &command).await;
    let exported = export(b.seed, b.namespace(), &machine.firewall).await.unwrap();
    let carried = Instant::now();
    machine.put_bootstrap_kubeconfig(&exported).unwrap();
    b.has(&machine, carried, EVENTUALLY).await.unwrap();
    settled(b, &machine).await;
    b.holds_no_credential().await.unwrap();
    assert_eq!(machine.key().unwrap(), key);
    // From now on it believes the new key.
    believes(b, &machine).await;
    let began = b.move_to(a, Leaves::Nothing).await.unwrap();
    a.has(&machine, began, PROMISED).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_without_the_firewalls_record_the_very_command_that_is_named_brings_it_in() {
    let stage = Stage::new("shoot--move--norecord").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    let record = format!("{}.json", machine.firewall);
    let saved = a.leave(Leaves::Nothing).await.unwrap().without_key(STATE, &record);
    b.shoot.restore(&saved).await.unwrap();
    let state = said(b, &machine.firewall, "KeyUnknown", "kubectl annotate").await;
    let done = Instant::now();
    do_as_told(b, &state).await;
    b.has(&machine, done, EVENTUALLY).await.unwrap();
    settled(b, &machine).await;
    b.holds_no_credential().await.unwrap();
    assert_eq!(machine.key().unwrap(), key);
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_handover_key_that_is_lost_where_the_seed_lives_is_replaced_before_the_next_move() {
    let stage = Stage::new("shoot--move--newkey").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let old = handover_key(a).await.unwrap();
    let secrets = a.secrets().await.unwrap();
    secrets.delete(STATE, &DeleteParams::default()).await.unwrap();
    eventually("a new handover key", EVENTUALLY, || async {
        ensure!(handover_key(a).await? != old, "it is the old one");
        Ok(())
    })
    .await
    .with_context(|| tail(&a.home.log()))
    .unwrap();
    believes(a, &machine).await;
    // With the key its record went, and with that the word whose key the machine's is.
    let state = said(a, &machine.firewall, "KeyUnknown", "kubectl annotate").await;
    do_as_told(a, &state).await;
    settled(a, &machine).await;
    a.holds_no_credential().await.unwrap();

    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    settled(b, &machine).await;
}

async fn handover_key(place: &Place<'_>) -> anyhow::Result<Vec<u8>> {
    let secret = place.secrets().await?.get(STATE).await?;
    let key = secret.data.unwrap_or_default().remove("handover-key");
    Ok(key.context("no handover key")?.0)
}

/// Waits for the machine to say that it believes handovers of the key that stands here now.
async fn believes(place: &Place<'_>, machine: &Machine) {
    let api = monitors(place.shoot.cluster).await.unwrap();
    eventually("the machine believes the new handover key", EVENTUALLY, || async {
        let pem = String::from_utf8(handover_key(place).await?)?;
        let key = contract::key::PrivateKey::from_pem(&pem)?.public().thumbprint();
        let monitor = api.get(&machine.firewall).await?;
        let report = monitor.annotations().get("firewall.metal-stack.io/seed-access-report");
        let report = Report::unverified(report.context("no report")?).context("no report")?;
        ensure!(
            report.handover_keys.contains(&key),
            "it believes {:?}",
            report.handover_keys
        );
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()) + &tail(&place.home.log()))
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_for_a_firewall_that_lives_ends_soon_whether_there_is_something_to_carry_or_not() {
    let stage = Stage::new("shoot--move--lives").await.unwrap();
    let a = &stage.a;
    let _approver = a.approver().unwrap();
    let (machine, _agent) = came_in(a, "00001").await;
    settled(a, &machine).await;
    for _ in 0..3 {
        let began = Instant::now();
        match export(a.seed, a.namespace(), &machine.firewall).await {
            Ok(kubeconfig) => assert!(kubeconfig.contains("token"), "{kubeconfig}"),
            Err(error) => assert!(error.to_string().contains("nothing has to be carried"), "{error:#}"),
        }
        assert!(began.elapsed() < PROMISED, "{:?}", began.elapsed());
        a.has(&machine, began, EVENTUALLY).await.unwrap();
        settled(a, &machine).await;
        a.holds_no_credential().await.unwrap();
    }
}
