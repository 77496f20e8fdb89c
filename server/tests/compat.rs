//! The state that released versions have stored goes on under the code of now: each folder in `tests/compat` holds what
//! one of them wrote.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use contract::names::{self, FirewallName};
use contract::record::{CredentialKind, Record};
use jiff::Timestamp;
use serde_json::Value;
use server::core::canary::Issuers;
use server::core::life::advance;
use server::core::seen::Seen;

/// A record as it was stored, and when that was.
struct Stored {
    /// Version and state, for messages.
    what: String,
    firewall: FirewallName,
    json: Vec<u8>,
    at: Timestamp,
}

fn stored() -> Vec<Stored> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/compat");
    let mut found = Vec::new();
    for version in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        if !version.is_dir() {
            continue;
        }
        let at = fs::read_to_string(version.join("dumped-at")).unwrap();
        let before = found.len();
        for file in fs::read_dir(version.join("state")).unwrap() {
            records(&file.unwrap().path(), at.trim().parse().unwrap(), &mut found);
        }
        assert!(found.len() > before, "{} holds no record", version.display());
    }
    assert!(!found.is_empty(), "{root} holds no version");
    found
}

fn records(file: &Path, at: Timestamp, found: &mut Vec<Stored>) {
    let secret: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(secret["metadata"]["name"], names::STATE_SECRET);
    assert_eq!(secret["metadata"]["labels"][names::PERSIST_LABEL], "true");
    for (key, value) in secret["data"].as_object().unwrap() {
        let Some(name) = key.strip_suffix(names::RECORD_SUFFIX) else {
            assert_eq!(key, names::STATE_HANDOVER_KEY);
            continue;
        };
        found.push(Stored {
            what: format!("{}: {name}", file.display()),
            firewall: FirewallName::parse(name).unwrap(),
            json: STANDARD.decode(value.as_str().unwrap()).unwrap(),
            at,
        });
    }
}

/// As if nothing had happened since.
fn seen<'a>(firewall: &'a FirewallName, record: &'a Record, issuers: &'a Issuers) -> Seen<'a> {
    let endpoint = record.endpoint.as_ref().unwrap();
    Seen {
        firewall,
        uid: &record.uid,
        seed: &record.seed,
        server: &endpoint.server,
        ca: &endpoint.ca,
        created: Timestamp::from_second(record.order.authority).unwrap(),
        kind: record
            .credential
            .as_ref()
            .map_or(CredentialKind::Token, |held| held.kind),
        mode: contract::access::Mode::Certificate,
        accept_key: record.keys.accepted.as_deref(),
        rebootstrap: record.rebootstrap.as_deref(),
        export: record.export.as_deref(),
        blind: false,
        monitor: true,
        authentic: None,
        issuers,
        report: None,
        certificate: record.certificate.as_ref(),
        certified_until: None,
        id_taken: false,
        baked: None,
    }
}

/// Whether all that is in `part` is in `whole`, too; there may be more.
fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|found| holds(found, value))),
        _ => whole == part,
    }
}

#[test]
fn c4_a_record_of_each_version_is_written_again_with_all_that_was_in_it() {
    for stored in stored() {
        let record = Record::read(&stored.json).unwrap();
        let again: Value = serde_json::from_slice(&record.write().unwrap()).unwrap();
        let before: Value = serde_json::from_slice(&stored.json).unwrap();
        assert!(holds(&again, &before), "{}: {before} became {again}", stored.what);
    }
}

#[test]
fn c4_an_upgrade_alone_changes_neither_key_nor_certificate_nor_credential() {
    let issuers = Issuers::default();
    for stored in stored() {
        let record = Record::read(&stored.json).unwrap();
        let next = advance(Some(&record), &seen(&stored.firewall, &record, &issuers), stored.at);
        let what = &stored.what;
        assert_eq!(next.keys, record.keys, "{what}");
        assert_eq!(next.certificate, record.certificate, "{what}");
        assert_eq!(next.credential, record.credential, "{what}");
        assert_eq!(next.handover, record.handover, "{what}");
        assert_eq!(next.order, record.order, "{what}");
        assert_eq!((&next.uid, &next.seed), (&record.uid, &record.seed), "{what}");
    }
}

#[test]
fn c4_a8_a_record_of_each_version_goes_on_in_another_seed() {
    let issuers = Issuers::default();
    let mut settled = 0;
    for stored in stored() {
        let record = Record::read(&stored.json).unwrap();
        let there = Seen {
            uid: "another",
            seed: "another",
            server: "another",
            certificate: None,
            // They name the Firewall in the seed that was left.
            accept_key: None,
            rebootstrap: None,
            export: None,
            ..seen(&stored.firewall, &record, &issuers)
        };
        let next = advance(Some(&record), &there, stored.at);
        let what = &stored.what;
        assert!(next.order.authority > record.order.authority, "{what}");
        assert_eq!((next.uid.as_str(), next.seed.as_str()), ("another", "another"));
        assert!(next.handover.is_some(), "{what}: it is not told");
        let thumbprint = |record: &Record| record.keys.pin.as_ref().map(|pin| pin.thumbprint.clone());
        assert_eq!(thumbprint(&next), thumbprint(&record), "{what}");
        // One that was being told of something already is told of this as well.
        if record.settled() && record.handover.is_none() {
            settled += 1;
            assert_eq!(next.certificate, None, "{what}");
        }
    }
    assert!(settled > 0, "no record of a firewall that came in");
}
