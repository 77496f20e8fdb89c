//! What released versions send is read with the code of now: each folder in `tests/compat` holds the messages of one.
//! What is sealed in a handover is opened by `handover::compat`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::access::AgentAccess;
use contract::csr;
use contract::key::PrivateKey;
use contract::kubeconfig::{Credential, Kubeconfig};
use contract::reasons::Reason;
use contract::report::Report;
use secrecy::ExposeSecret;
use serde_json::Value;

/// The folder of each released version.
fn versions() -> Vec<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/compat");
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    assert!(!found.is_empty(), "{root} holds no version");
    found
}

fn text(version: &Path, file: &str) -> String {
    let path = version.join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn machine_key(version: &Path) -> PrivateKey {
    PrivateKey::from_pem(&text(version, "machine/moved/state/key.pem")).unwrap()
}

/// The values of a Secret.
fn data(version: &Path, file: &str) -> BTreeMap<String, Vec<u8>> {
    let secret: Value = serde_json::from_str(&text(version, file)).unwrap();
    let values = secret["data"].as_object().unwrap().iter();
    values
        .map(|(key, value)| (key.clone(), STANDARD.decode(value.as_str().unwrap()).unwrap()))
        .collect()
}

fn handover_key(version: &Path) -> PrivateKey {
    let state = data(version, "state/bootstrapped.json");
    PrivateKey::from_pem(str::from_utf8(&state["handover-key"]).unwrap()).unwrap()
}

#[test]
fn c4_the_request_of_each_version_is_read() {
    for version in versions() {
        let request = csr::read(text(&version, "messages/request.pem").as_bytes()).unwrap();
        assert_eq!(request.key, machine_key(&version).public(), "{version:?}");
    }
}

#[test]
fn c4_the_bootstrap_kubeconfig_of_each_version_is_read() {
    for version in versions() {
        let read = Kubeconfig::read("of a version", &text(&version, "messages/bootstrap.kubeconfig")).unwrap();
        assert!(matches!(read.credential, Credential::Token(_)), "{version:?}");
        let ours = read.bootstrap.unwrap();
        let report = Report::unverified(&text(&version, "messages/report.jws")).unwrap();
        assert_eq!((ours.firewall, read.namespace), (report.firewall, report.namespace));
        assert_eq!(ours.handover_keys, [handover_key(&version).public()], "{version:?}");
    }
}

#[test]
fn c4_the_report_of_each_version_is_believed() {
    for version in versions() {
        let message = text(&version, "messages/report.jws");
        let key = machine_key(&version).public();
        let report = Report::open(&message, &key).unwrap();
        assert_eq!(Report::open_by(&message, &key.thumbprint()).unwrap(), report);
        let serial = &report.certificate.as_ref().unwrap().serial;
        assert!(report.proves_use(&report.firewall, &report.seed, serial), "{version:?}");
        assert!(report.is_fresh(report.made()) && report.seal.is_some(), "{version:?}");
        assert_eq!(report.handover_keys, [handover_key(&version).public().thumbprint()]);
    }
}

#[test]
fn c4_the_firewalls_secret_of_each_version_is_read() {
    for version in versions() {
        let access = AgentAccess::read(&data(&version, "messages/agent-secret.json")).unwrap();
        assert_eq!(access.handover_keys, [handover_key(&version).public()], "{version:?}");
        let lifeline = access.lifeline.unwrap();
        let lifeline = Kubeconfig::read("lifeline", lifeline.expose_secret()).unwrap();
        assert!(matches!(lifeline.credential, Credential::Token(_)), "{version:?}");
        let report = Report::unverified(&text(&version, "messages/report.jws")).unwrap();
        assert_eq!(access.seed, report.seed, "{version:?}");
    }
}

/// Alerts match on reasons: one that was released stays.
#[test]
fn c4_the_state_that_each_version_tells_has_a_reason_that_is_known() {
    for version in versions() {
        let state: Value = serde_json::from_str(&text(&version, "messages/seed-access-state.json")).unwrap();
        assert_eq!(
            Reason::parse(state["reason"].as_str().unwrap()),
            Some(Reason::Bootstrapped)
        );
        assert_eq!(state["state"], "Ready", "{version:?}");
    }
}
