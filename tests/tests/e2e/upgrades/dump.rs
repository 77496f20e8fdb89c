//! `make compat-dump`: has the programs of now write what later versions are tested against, and keeps that in
//! `tests/compat/v<version>`. The keys in it are of this run and of nothing else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::key::{PrivateKey, PublicKey};
use contract::names;
use contract::report::Report;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_P256_HKDF_SHA256_AES_128 as SUITE;
use rustls::crypto::hpke::Hpke;
use serde_json::{Value, json};
use tests::harness::eventually;
use tests::moves::{Leaves, Stage, tail};
use tests::programs::Machine;
use tests::upstream::monitors;
use tests::world::{Place, manifests};

use crate::moves::{EVENTUALLY, both, came_in, settled};
use crate::support::requests_for;

/// Where the agent's folders stand on a real machine.
const CONFIG: &str = "/etc/firewall-controller";
const STATE: &str = "/var/lib/firewall-agent";

struct Dump(PathBuf);

impl Dump {
    fn new() -> Self {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/compat/v", env!("CARGO_PKG_VERSION"));
        let dump = Self(root.into());
        for folder in ["manifests", "state", "messages", "machine"] {
            let folder = dump.0.join(folder);
            // Nothing of an earlier run stays: keys and messages belong together.
            let _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(folder).unwrap();
        }
        dump
    }

    fn write(&self, file: &str, content: &str) {
        fs::write(self.0.join(file), content).unwrap();
    }

    fn json(&self, file: &str, value: &Value) {
        self.write(file, &(serde_json::to_string_pretty(value).unwrap() + "\n"));
    }

    async fn state(&self, name: &str, place: &Place<'_>) {
        let secret = secret(place, names::STATE_SECRET).await;
        self.json(&format!("state/{name}.json"), &secret);
    }

    fn machine(&self, when: &str, machine: &Machine) {
        let folder = self.0.join("machine").join(when);
        copy(machine, &machine.config(), &folder.join("config"));
        copy(machine, &machine.state(), &folder.join("state"));
    }
}

/// As a backup would have it: none of what only this API server knows.
async fn secret(place: &Place<'_>, name: &str) -> Value {
    let found = place.secrets().await.unwrap().get(name).await.unwrap();
    let mut value = serde_json::to_value(found).unwrap();
    let metadata = value["metadata"].as_object_mut().unwrap();
    metadata.retain(|field, _| ["name", "namespace", "labels"].contains(&field.as_str()));
    value
}

fn copy(machine: &Machine, from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), target).unwrap();
        } else if path.is_dir() {
            copy(machine, &path, &target);
        } else if path.file_name().is_some_and(|name| name != "lock") {
            let text = fs::read_to_string(&path).unwrap();
            let text = text.replace(machine.config().to_str().unwrap(), CONFIG);
            fs::write(target, text.replace(machine.state().to_str().unwrap(), STATE)).unwrap();
        }
    }
}

async fn annotation(place: &Place<'_>, machine: &Machine, name: &str) -> anyhow::Result<String> {
    let monitor = monitors(place.shoot.cluster).await?.get(&machine.firewall).await?;
    let found = monitor.annotations().get(name).cloned();
    found.with_context(|| format!("FirewallMonitor {} has no {name}", machine.firewall))
}

/// The machine's last report once more, changed, and signed with its key.
async fn report(place: &Place<'_>, machine: &Machine, change: impl FnOnce(&mut Report)) {
    let said = annotation(place, machine, names::SEED_ACCESS_REPORT).await.unwrap();
    let mut report = Report::unverified(&said).unwrap();
    change(&mut report);
    let key = PrivateKey::from_pem(&String::from_utf8(machine.key().unwrap()).unwrap()).unwrap();
    let patch = json!({"metadata": {"annotations": {names::SEED_ACCESS_REPORT: report.sign(&key).unwrap()}}});
    let api = monitors(place.shoot.cluster).await.unwrap();
    api.patch(&machine.firewall, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Waits for a record that is as this says.
async fn recorded(place: &Place<'_>, machine: &Machine, what: &str, is: impl Fn(&Value) -> bool) {
    eventually(what, EVENTUALLY, || async {
        let record = place.record(&machine.firewall).await?;
        ensure!(is(&record), "{record}");
        Ok(())
    })
    .await
    .with_context(|| tail(&place.home.log()))
    .unwrap();
}

fn sealed(record: &Value) -> bool {
    record["handover"]["sent"]["sealedTo"].is_string()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "writes tests/compat: make compat-dump"]
async fn what_this_version_writes_is_kept_for_later_ones() {
    let stage = Stage::new("shoot--compat--one").await.unwrap();
    let Stage { a, b } = &stage;
    let dump = Dump::new();
    for part in ["seed", "shoot"] {
        let rendered = a.seed.kubectl_ok(&["kustomize", &manifests(part)]).await.unwrap();
        dump.write(&format!("manifests/{part}.yaml"), &rendered);
    }

    let approver = a.approver().unwrap();
    let first = a.machine("00001").await.unwrap();
    dump.state("allotted", a).await;
    let kubeconfig = fs::read_to_string(first.bootstrap_kubeconfig()).unwrap();
    dump.write("messages/bootstrap.kubeconfig", &kubeconfig);
    let agent = first.start().unwrap();
    settled(a, &first).await;
    dump.state("bootstrapped", a).await;
    let request = requests_for(a, &first.firewall).await.unwrap().remove(0);
    dump.write(
        "messages/request.pem",
        &String::from_utf8(request.spec.request.0).unwrap(),
    );
    let access = secret(a, &format!("{}.fw.metal-stack.io", first.firewall)).await;
    dump.json("messages/agent-secret.json", &access);
    dump.json(
        "messages/seed-access-state.json",
        &a.state(&first.firewall).await.unwrap(),
    );
    let told = annotation(a, &first, names::SEED_ACCESS_REPORT).await.unwrap();
    dump.write("messages/report.jws", &told);
    let (second, other) = came_in(a, "00002").await;
    dump.state("two-firewalls", a).await;
    for program in [agent, other, approver] {
        program.stop().await.unwrap();
    }

    // A move: of one agent that reported lately, with a key of ours to seal to, and one that has been silent for long.
    let (public, private) = SUITE.generate_key_pair().unwrap();
    let seal = PublicKey::from_point(&public.0).unwrap();
    let private = STANDARD.encode(private.secret_bytes());
    dump.json("messages/seal-key.json", &json!({"public": seal, "private": private}));
    report(a, &first, |report| report.seal = Some(seal.clone())).await;
    report(a, &second, |report| {
        report.time = Timestamp::now() - SignedDuration::from_hours(1);
    })
    .await;
    a.move_to(b, Leaves::Namespace).await.unwrap();
    let approvers = both(&stage);
    recorded(b, &first, "a sealed handover", sealed).await;
    recorded(b, &second, "a notice", |record| {
        record["handover"]["sent"].is_object() && !sealed(record)
    })
    .await;
    recorded(a, &second, "gone", |record| record["gone"].is_object()).await;
    dump.state("moving", b).await;
    dump.state("left", a).await;
    for (message, machine) in [("handover", &first), ("notice", &second)] {
        let what = format!("a {message} for {}", machine.firewall);
        let told = eventually(&what, EVENTUALLY, || annotation(b, machine, names::SEED_ACCESS));
        dump.write(&format!("messages/{message}.jws"), &told.await.unwrap());
    }
    // On its way it waits for a certificate that nobody signs.
    b.seed.stop_controller_manager().await;
    let agents = [&first, &second].map(|machine| machine.start().unwrap());
    eventually("a handover and a request on the machine", EVENTUALLY, || async {
        for file in ["handover.json", "request.json"] {
            ensure!(first.state().join(file).is_file(), "no {file}");
        }
        Ok(())
    })
    .await
    .unwrap();
    dump.machine("moving", &first);
    b.seed.start_controller_manager().await.unwrap();
    settled(b, &first).await;
    settled(b, &second).await;
    dump.state("moved", b).await;
    for agent in agents {
        agent.stop().await.unwrap();
    }
    dump.machine("moved", &first);

    // What operators ask for.
    let uid = b.firewall_uid(&second.firewall).await.unwrap();
    let key = PrivateKey::from_pem(&String::from_utf8(second.key().unwrap()).unwrap()).unwrap();
    let accept = format!("{}={}@{uid}", names::ACCEPT_KEY, key.public().thumbprint());
    b.annotate(&second.firewall, &accept).await.unwrap();
    recorded(b, &second, "accepted", |record| record["keys"]["accepted"].is_string()).await;
    dump.state("key-accepted", b).await;
    let rebootstrap = format!("{}={uid}/1", names::REBOOTSTRAP);
    b.annotate(&second.firewall, &rebootstrap).await.unwrap();
    recorded(b, &second, "re-armed", |record| record["keys"]["openUntil"].is_string()).await;
    dump.state("rearmed", b).await;
    let export = format!("{}={uid}/1", names::EXPORT);
    b.annotate(&second.firewall, &export).await.unwrap();
    recorded(b, &second, "exported", |record| {
        record["export"].is_string() && record["handover"].is_object()
    })
    .await;
    dump.state("exported", b).await;

    // Two machines come with one credential.
    let third = b.machine("00003").await.unwrap();
    let kubeconfig = fs::read_to_string(third.bootstrap_kubeconfig()).unwrap();
    let sibling = Machine::with_kubeconfig(b.namespace(), &third.firewall, &kubeconfig).unwrap();
    b.seed.stop_controller_manager().await;
    let contenders = [&third, &sibling].map(|machine| machine.start().unwrap());
    recorded(b, &third, "two keys", |record| {
        record["keys"]["candidates"]
            .as_array()
            .is_some_and(|keys| keys.len() == 2)
    })
    .await;
    dump.state("two-keys", b).await;
    drop((contenders, approvers));
    b.seed.start_controller_manager().await.unwrap();
    dump.write("dumped-at", &format!("{}\n", Timestamp::now()));
}
