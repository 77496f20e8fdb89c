//! A report that is opened was signed by that key, to the byte.

use contract::handover::Order;
use contract::jws::JwsError;
use contract::names::FirewallName;
use contract::report::{Certificate, Report};
use jiff::SignedDuration;
use serde_json::Value;

use super::{FIREWALL, handover, is_fit_for_a_log, jws, key, now, other_key, split};

pub const TYPE: &str = "firewall-seed-access-report+jwt";

/// A good report of the machine with `key`.
pub fn report() -> Report {
    Report {
        firewall: FirewallName::parse(FIREWALL).unwrap(),
        seed: "2b1f7a52-7b0e-4f0e-9a34-0d3f6a1c9e11".to_owned(),
        namespace: "shoot--project--cluster".to_owned(),
        certificate: Some(Certificate {
            serial: "1f".to_owned(),
            not_before: now(),
            not_after: now() + SignedDuration::from_hours(720),
            issuer: "CN=ca".to_owned(),
        }),
        taken_up: Order {
            authority: 5,
            generation: 1,
        },
        seal: Some(handover::seal()[0].public().clone()),
        key: key().public(),
        handover_keys: vec![key().public().thumbprint()],
        server: "1f".to_owned(),
        ca: "1f".to_owned(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: Some(-3),
        last_error: Some("unreachable".to_owned()),
        agent_version: "0.1.0".to_owned(),
        time: now(),
    }
}

/// The fuzzer's input: a message as `jws::message` makes it.
pub fn check_input(input: &[u8]) {
    let (mode, rest) = split(input);
    let _ = check(&jws::message(mode, rest, TYPE, &key()));
}

/// Gives what the reader made of it.
pub fn check(message: &str) -> Result<Report, JwsError> {
    let (ours, theirs) = (key().public(), other_key().public());
    match Report::open(message, &theirs) {
        Ok(_) => assert!(jws::verified(message, TYPE, &theirs).is_some()),
        Err(error) => is_fit_for_a_log(&error),
    }
    if let Ok(report) = Report::open_by(message, &theirs.thumbprint()) {
        assert!(report.key == theirs && jws::verified(message, TYPE, &theirs).is_some());
    }
    let verdict = Report::open(message, &ours);
    let payload = jws::verified(message, TYPE, &ours);
    let by_thumbprint = Report::open_by(message, &ours.thumbprint());
    match &verdict {
        Err(error) => {
            is_fit_for_a_log(error);
            is_fit_for_a_log(&by_thumbprint.unwrap_err());
        }
        Ok(report) => {
            // What the reader has no use for it does not look into, and this one does.
            if let Ok(payload) = serde_json::from_slice::<Value>(&payload.unwrap()) {
                assert_eq!(*report, serde_json::from_value(payload).unwrap());
            }
            assert_eq!(Report::unverified(message).as_ref(), Some(report));
            match by_thumbprint {
                Ok(again) => assert!(again == *report && report.key == ours),
                Err(error) => assert!(report.key != ours, "{error}"),
            }
            let again = Report::open(&report.sign(&key()).unwrap(), &ours).unwrap();
            assert_eq!(again, *report);
        }
    }
    if let Some(report) = Report::unverified(message) {
        let (_, _) = (report.made(), report.is_fresh(now()));
    }
    verdict
}
