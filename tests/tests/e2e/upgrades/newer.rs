//! A downgrade: what a newer version has stored, written and reported has more in it than this one knows.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::jws;
use contract::key::PrivateKey;
use contract::names;
use contract::report::Report;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tests::harness::eventually;
use tests::moves::tail;
use tests::programs::Machine;
use tests::upstream::monitors;
use tests::world::{Place, World};

use crate::moves::{EVENTUALLY, came_in, said, settled};
use crate::support::{certificate_of, renewed};

const FIELD: &str = "ofALaterVersion";

/// Each object in it, at any depth, has a field that this version does not know.
fn newer(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(newer);
            map.insert(FIELD.into(), json!({"any": ["thing", 1]}));
        }
        Value::Array(list) => list.iter_mut().for_each(newer),
        _ => {}
    }
}

async fn patch_secret(place: &Place<'_>, name: &str, data: Value) {
    let secrets = place.secrets().await.unwrap();
    let patch = json!({"metadata": {"annotations": {FIELD: "x"}}, "data": data});
    secrets
        .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn put_record(place: &Place<'_>, firewall: &str, record: &Value) {
    let data = json!({
        format!("{firewall}.json"): STANDARD.encode(record.to_string()),
        FIELD: STANDARD.encode("later"),
    });
    patch_secret(place, names::STATE_SECRET, data).await;
}

/// What the machine's agent, a newer one, reports last: that the seed refuses it.
async fn report(place: &Place<'_>, machine: &Machine) {
    let api = monitors(place.shoot.cluster).await.unwrap();
    let found = api.get(&machine.firewall).await.unwrap();
    let report = Report::unverified(&found.annotations()[names::SEED_ACCESS_REPORT]).unwrap();
    let mut claims = serde_json::to_value(&report).unwrap();
    newer(&mut claims);
    claims["refused"] = json!(true);
    claims["agentVersion"] = json!("99.0.0");
    claims["time"] = json!(Timestamp::now());
    let key = PrivateKey::from_pem(&String::from_utf8(machine.key().unwrap()).unwrap()).unwrap();
    let message = jws::sign("firewall-seed-access-report+jwt", &key, &claims).unwrap();
    let patch = json!({"metadata": {"annotations": {names::SEED_ACCESS_REPORT: message}}});
    api.patch(&machine.firewall, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Each file of the agent's has more in it, and there are more files.
fn extend_files(machine: &Machine) -> usize {
    let mut extended = 0;
    for entry in fs::read_dir(machine.state()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let mut value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            newer(&mut value);
            fs::write(&path, value.to_string()).unwrap();
            extended += 1;
        }
    }
    fs::write(machine.state().join("later.json"), "{}").unwrap();
    fs::create_dir(machine.state().join("later")).unwrap();
    fs::write(machine.state().join("later/file"), "later").unwrap();
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(machine.state().join("later.json"), private).unwrap();
    extended
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_a_newer_version_has_added_hinders_neither_program() {
    let place = World::new("shoot--upgrade--newer").await.unwrap();
    let approver = place.approver().unwrap();
    let (machine, agent) = came_in(&place, "00001").await;
    let key = machine.key().unwrap();
    let firewall = &machine.firewall;
    agent.stop().await.unwrap();
    approver.stop().await.unwrap();

    let mut record = place.record(firewall).await.unwrap();
    newer(&mut record);
    // A firewall is not let in anew twice in five minutes.
    record["credential"]["allocated"] = json!(Timestamp::now() - SignedDuration::from_mins(10));
    put_record(&place, firewall, &record).await;
    let later = json!({FIELD: STANDARD.encode("later")});
    patch_secret(&place, &format!("{firewall}.fw.metal-stack.io"), later).await;
    let mut state = place.state(firewall).await.unwrap();
    newer(&mut state);
    let annotation = format!("{}={state}", names::SEED_ACCESS_STATE);
    place.annotate(firewall, &annotation).await.unwrap();
    report(&place, &machine).await;
    let extended = extend_files(&machine);
    assert!(extended >= 3, "{extended} files only");

    // The report is believed: nobody else says that the seed refuses the certificate.
    let _approver = place.approver().unwrap();
    said(&place, firewall, "AgentRefused", "").await;
    let sent = place.record(firewall).await.unwrap();
    assert!(sent["handover"].is_object(), "{sent}");
    // The agent finds its files, its Secret and the handover.
    let _agent = machine.start().unwrap();
    settled(&place, &machine).await;
    let before = certificate_of(&machine).unwrap();
    let annotation = format!("{}=downgraded", names::RENEW);
    place.annotate(firewall, &annotation).await.unwrap();
    let serial = renewed(&machine, &before, EVENTUALLY).await.unwrap().serial;
    assert_eq!(machine.key().unwrap(), key);
    eventually("a record of the new certificate", EVENTUALLY, || async {
        let record = place.record(firewall).await?;
        ensure!(record["certificate"]["serial"] == serial, "{record}");
        ensure!(record["keys"]["pin"]["proven"].is_string(), "{record}");
        // A record that was written anew knows what this version knows.
        ensure!(record[FIELD].is_null() && record["keys"][FIELD].is_null(), "{record}");
        Ok(())
    })
    .await
    .with_context(|| tail(&place.home.log()))
    .unwrap();

    // What is not ours to know stays.
    let secrets = place.secrets().await.unwrap();
    for name in [names::STATE_SECRET, &format!("{firewall}.fw.metal-stack.io")] {
        let data = secrets.get(name).await.unwrap().data.unwrap();
        assert!(data.contains_key(FIELD), "{name}: {:?}", data.keys());
    }
    assert_eq!(fs::read(machine.state().join("later/file")).unwrap(), b"later");
    assert!(machine.state().join("later.json").is_file());
    eventually("an agent that waits for nothing", EVENTUALLY, || async {
        let status = machine.status()?;
        ensure!(status.contains("all is well"), "{status}");
        Ok(())
    })
    .await
    .unwrap();
    for log in [machine.log(), place.home.log()] {
        let faults: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
        assert!(faults.is_empty(), "{faults:?}");
    }
}

/// Where an addition must not be lost, the form gets another number, and a program that does not know it keeps off.
#[tokio::test(flavor = "multi_thread")]
async fn c4_d2_a_record_of_a_later_form_is_named_and_left_as_it_is() {
    let place = World::new("shoot--upgrade--later").await.unwrap();
    let approver = place.approver().unwrap();
    let (machine, _agent) = came_in(&place, "00001").await;
    let (other, _other) = came_in(&place, "00002").await;
    approver.stop().await.unwrap();
    let record = place.record(&machine.firewall).await.unwrap();
    let mut later = record.clone();
    newer(&mut later);
    later["version"] = json!(2);
    put_record(&place, &machine.firewall, &later).await;

    let approver = place.approver().unwrap();
    said(&place, &machine.firewall, "SeedFailure", "version 2").await;
    // Its access is not touched, and the other firewall goes on.
    place.keeps(&machine, Duration::from_secs(3)).await.unwrap();
    let before = certificate_of(&other).unwrap();
    let annotation = format!("{}=now", names::RENEW);
    place.annotate(&other.firewall, &annotation).await.unwrap();
    renewed(&other, &before, EVENTUALLY).await.unwrap();
    assert_eq!(place.record(&machine.firewall).await.unwrap(), later);

    approver.stop().await.unwrap();
    put_record(&place, &machine.firewall, &record).await;
    let _approver = place.approver().unwrap();
    settled(&place, &machine).await;
}
