//! A8 to A10: the control plane leaves a seed for another one, and the firewall finds its way with nobody at the machine.
//!
//! - `seeds`: what becomes of the old seed
//! - `absent`: who is not there while it happens
//! - `lost`: what Gardener did not carry along
//! - `place`: the seed stays, its address or its CA does not

mod absent;
mod lost;
mod place;
mod seeds;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::harness::eventually;
use tests::moves::{Leaves, Stage, tail};
use tests::programs::{Machine, Program};
use tests::upstream::{Upstream, Writer, monitors};
use tests::world::Place;

use crate::support::certificate_of;

/// From the Firewall's appearance in the new seed to a working seed client on the machine.
pub(crate) const PROMISED: Duration = Duration::from_secs(10);
pub(crate) const EVENTUALLY: Duration = tests::harness::PATIENCE;

/// A machine that came in where the control plane stands, and has everything that it needs to survive that.
pub(crate) async fn came_in(place: &Place<'_>, suffix: &str) -> (Machine, Program) {
    let machine = place.machine(suffix).await.unwrap();
    let agent = machine.start().unwrap();
    settled(place, &machine).await;
    (machine, agent)
}

pub(crate) async fn settled(place: &Place<'_>, machine: &Machine) {
    place.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    eventually("the lifeline on the machine", EVENTUALLY, || async {
        ensure!(machine.state().join("lifeline.kubeconfig").is_file(), "not there");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
}

/// Waits for a state with this reason whose message holds these words.
pub(crate) async fn said(place: &Place<'_>, firewall: &str, reason: &str, words: &str) -> Value {
    eventually(&format!("reason {reason}: {words}"), EVENTUALLY, || async {
        let state = place.state(firewall).await?;
        let message = state["message"].as_str().unwrap_or_default();
        ensure!(state["reason"] == reason && message.contains(words), "it is {state}");
        Ok(state)
    })
    .await
    .with_context(|| tail(&place.home.log()))
    .unwrap()
}

/// Does what a message tells people to: from the word kubectl to the end of the annotation, and nothing else.
async fn do_as_told(place: &Place<'_>, state: &Value) {
    let message = state["message"].as_str().unwrap();
    let command = &message[message.find("kubectl annotate").unwrap()..];
    // It names the annotation, or there is nothing to be done.
    let value = command.find("accept-key=").unwrap();
    let length = command[value..].find([' ', '`', '\'', '"', ';', ')', ',']);
    let end = length.map_or(command.len(), |length| value + length);
    let words: Vec<&str> = command[..end]
        .trim_end_matches('.')
        .split_whitespace()
        .skip(1)
        .collect();
    place.seed.kubectl_ok(&words).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a9_a10_the_control_plane_moves_and_the_firewall_comes_along() {
    let stage = Stage::new("shoot--move--once").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, mut agent) = came_in(a, "00001").await;
    let before = (machine.key().unwrap(), a.monitor_uid(&machine.firewall).await.unwrap());
    let certificate = certificate_of(&machine).unwrap();

    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let took = b.has(&machine, began, PROMISED).await.unwrap();
    println!("from the Firewall in the new seed to a seed client: {took:?}");
    b.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();

    let now = certificate_of(&machine).unwrap();
    assert_ne!(now.serial, certificate.serial);
    let after = (machine.key().unwrap(), b.monitor_uid(&machine.firewall).await.unwrap());
    assert!(after == before, "the key or the FirewallMonitor is another one");
    b.holds_no_credential().await.unwrap();
    a.is_left_clean(Leaves::Nothing).await.unwrap();
    assert_eq!(count(&stage, &machine.firewall).await, 1);
    assert!(agent.runs(), "the agent ended: {}", machine.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a9_a10_twenty_moves_in_a_row() {
    let stage = Stage::new("shoot--move--twenty").await.unwrap();
    // Both kinds of credential, one in each seed.
    let _a = stage.a.approver_with(&["--bootstrap-credential", "token"]).unwrap();
    let _b = stage
        .b
        .approver_with(&["--bootstrap-credential", "service-account"])
        .unwrap();
    let (first, _first) = came_in(&stage.a, "00001").await;
    let (second, _second) = came_in(&stage.a, "00002").await;
    let machines = [first, second];
    let mut before = Vec::new();
    for machine in &machines {
        before.push((
            machine.key().unwrap(),
            stage.a.monitor_uid(&machine.firewall).await.unwrap(),
        ));
    }
    let (mut from, mut to) = (&stage.a, &stage.b);
    let mut times = Vec::new();
    for number in 1..=20 {
        let began = from.move_to(to, Leaves::Nothing).await.unwrap();
        for machine in &machines {
            let took = to.has(machine, began, PROMISED).await;
            let took = took.with_context(|| format!("move {number}")).unwrap();
            times.push(took);
        }
        for (machine, before) in machines.iter().zip(&before) {
            // It moves on only after it has come to rest; when it does not, the next move shows that elsewhere.
            let state = to.await_reason(&machine.firewall, "Bootstrapped").await;
            state.with_context(|| format!("move {number}")).unwrap();
            let after = (machine.key().unwrap(), to.monitor_uid(&machine.firewall).await.unwrap());
            assert!(
                after == *before,
                "move {number}: the key or the FirewallMonitor is another one"
            );
            assert_eq!(count(&stage, &machine.firewall).await, 1, "move {number}");
        }
        let clean = async {
            to.holds_no_credential().await?;
            from.is_left_clean(Leaves::Nothing).await
        };
        clean.await.with_context(|| format!("move {number}")).unwrap();
        (from, to) = (to, from);
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("20 moves of two firewalls: median {median:.2?}, worst {worst:.2?}");
    assert!(worst < PROMISED, "{worst:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_two_firewalls_of_one_shoot_both_come_along() {
    let stage = Stage::new("shoot--move--two").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (first, _first) = came_in(a, "00001").await;
    let (second, _second) = came_in(a, "00002").await;
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    for machine in [&first, &second] {
        b.has(machine, began, PROMISED).await.unwrap();
    }
    // Neither has what is the other's.
    assert_ne!(
        certificate_of(&first).unwrap().serial,
        certificate_of(&second).unwrap().serial
    );
    a.is_left_clean(Leaves::Nothing).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_of_a_firewall_that_was_replaced_nothing_comes_along_but_that_its_name_is_taken() {
    let stage = Stage::new("shoot--move--replaced").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (old, old_agent) = came_in(a, "00001").await;
    let (new, _agent) = came_in(a, "00002").await;
    old_agent.kill();
    a.shoot.delete_firewall(&old.firewall).await.unwrap();
    let gone = async |place: &Place<'_>| {
        eventually("nothing opens anything for the old one", EVENTUALLY, || async {
            let ours = ["get", "serviceaccount,role,rolebinding", "-n", "firewall", "-o", "name"];
            let in_shoot = place.shoot.cluster.kubectl_ok(&ours).await?;
            ensure!(!in_shoot.contains(&old.firewall), "{in_shoot}");
            ensure!(in_shoot.contains(&new.firewall), "the other's is gone: {in_shoot}");
            let ours = ["get", "secret,role,rolebinding", "-n", place.namespace(), "-o", "name"];
            let in_seed = place.seed.kubectl_ok(&ours).await?;
            ensure!(!in_seed.contains(&old.firewall), "{in_seed}");
            Ok(())
        })
        .await
        .with_context(|| tail(&place.home.log()))
        .unwrap();
    };
    gone(a).await;
    // A certificate of its name is still good.
    let record = a.record(&old.firewall).await.unwrap();
    assert_eq!(record["gone"]["deleted"], true, "{record}");

    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&new, began, PROMISED).await.unwrap();
    b.await_reason(&new.firewall, "Bootstrapped").await.unwrap();
    gone(b).await;
    assert_eq!(count(&stage, &old.firewall).await, 0);
    a.is_left_clean(Leaves::Nothing).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_what_upstream_writes_and_what_we_write_both_stay() {
    let stage = Stage::new("shoot--move--writers").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let shoot = a.shoot.cluster;
    let who = [Upstream::FirewallController, Upstream::ControllerManager];
    let mut writers = Vec::new();
    for who in who {
        writers.push(Writer::start(shoot, &machine.firewall, who).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    b.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    let api = monitors(shoot).await.unwrap();
    let ours = |monitor: &kube::core::DynamicObject| {
        let annotations = kube::ResourceExt::annotations(monitor);
        ["seed-access", "seed-access-report"]
            .map(|name| annotations.get(&format!("firewall.metal-stack.io/{name}")).cloned())
    };
    let written = ours(&api.get(&machine.firewall).await.unwrap());
    assert!(written.iter().all(Option::is_some), "{written:?}");
    tokio::time::sleep(Duration::from_secs(60).saturating_sub(began.elapsed())).await;

    let mut what = Vec::new();
    for (writer, who) in writers.into_iter().zip(who) {
        let written = writer.stop().await.unwrap();
        println!("{who:?}: {} writes, {} conflicts", written.writes, written.conflicts);
        assert!(written.writes >= 40, "{who:?} could not write: {written:?}");
        what.push((who, written));
    }
    let monitor = api.get(&machine.firewall).await.unwrap();
    for (who, written) in &what {
        Writer::stands(*who, written, &monitor).unwrap();
    }
    let [access, report] = ours(&monitor);
    assert_eq!(access, written[0], "the handover is another one, or gone");
    assert!(report.is_some(), "the report is gone");
    b.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
}

pub(crate) fn both(stage: &Stage<'_>) -> [Program; 2] {
    [stage.a.approver().unwrap(), stage.b.approver().unwrap()]
}

/// Over both seeds.
async fn count(stage: &Stage<'_>, firewall: &str) -> usize {
    stage.a.count(firewall).await.unwrap() + stage.b.count(firewall).await.unwrap()
}
