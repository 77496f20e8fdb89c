//! A table for each reason, and properties with an oracle of their own.

use contract::handover::Order;
use contract::key::PrivateKey;
use contract::names::FirewallName;
use contract::record::{Credential, CredentialKind, KeyVerdict, Keys, Pending};
use contract::report;
use proptest::prelude::*;

use super::*;

const DAY: i64 = 24 * 3600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn endpoint() -> Endpoint {
    Endpoint {
        server: "server-1".into(),
        ca: "ca-1".into(),
        since: at(0),
    }
}

/// A firewall that works: a certificate of thirty days from second 1000 on.
fn record() -> Record {
    let key = PrivateKey::generate().unwrap().public();
    let KeyVerdict::Pin(keys) = Keys::default().present(&key, at(1)) else {
        panic!("not pinned")
    };
    Record {
        seed: "seed-a".into(),
        keys: keys.prove(at(2)),
        certificate: Some(Certificate {
            serial: "1f".into(),
            not_before: at(1_000),
            not_after: at(1_000 + 30 * DAY),
            issuer: "CN=ca".into(),
            issuer_key: None,
            request: "firewall-x".into(),
        }),
        credential: Some(Credential {
            kind: CredentialKind::Token,
            epoch: 0,
            allocated: at(0),
            expires: at(3600),
            limit: at(DAY),
            revoked: Some(at(10)),
        }),
        ..Record::default()
    }
}

fn report(time: i64) -> Report {
    Report {
        firewall: FirewallName::parse("fw-1").unwrap(),
        seed: "seed-a".into(),
        namespace: "shoot--a".into(),
        certificate: Some(report::Certificate {
            serial: "1f".into(),
            not_before: at(1_000),
            not_after: at(1_000 + 30 * DAY),
            issuer: "CN=ca".into(),
        }),
        taken_up: Order::default(),
        seal: None,
        key: PrivateKey::generate().unwrap().public(),
        handover_keys: Vec::new(),
        server: "server-1".into(),
        ca: "ca-1".into(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: None,
        last_error: None,
        agent_version: "0.1.0".into(),
        time: at(time),
    }
}

fn judge(record: &Record, report: Option<&Report>, now: i64) -> Verdict {
    with(record, report, &endpoint(), Issuer::Unsuspected, now)
}

fn with(record: &Record, report: Option<&Report>, endpoint: &Endpoint, issuer: Issuer, now: i64) -> Verdict {
    let facts = Facts {
        seed: "seed-a",
        endpoint,
        report,
        issuer,
    };
    verdict(record, &facts, at(now))
}

#[test]
fn a_firewall_that_works_is_looked_at_again_when_it_should_have_renewed() {
    let late = Some(at(1_300 + (30 * DAY - 300) / 10 * 9));
    assert_eq!(judge(&record(), None, 2_000), Verdict::Valid(late));
    assert_eq!(judge(&record(), Some(&report(1_900)), 2_000), Verdict::Valid(late));
}

#[test]
fn a8_each_reason_has_its_verdict() {
    use Verdict::{Rebootstrap, Renew};
    let (good, elsewhere) = (
        record(),
        Record {
            seed: "seed-b".into(),
            ..record()
        },
    );
    assert_eq!(judge(&elsewhere, None, 2_000), Rebootstrap(Reason::SeedMoved));
    let end = 1_000 + 30 * DAY;
    assert_eq!(judge(&good, None, end), Rebootstrap(Reason::Expired));
    assert_eq!(judge(&good, None, end - 1), Renew(Reason::Expiring));
    assert_eq!(judge(&good, None, 1_100 + 27 * DAY), Renew(Reason::Expiring));
    let issuer = |issuer| with(&good, None, &endpoint(), issuer, 2_000);
    assert_eq!(issuer(Issuer::Refused), Rebootstrap(Reason::IssuerRefused));
    assert_eq!(issuer(Issuer::Superseded), Renew(Reason::IssuerSuperseded));
    let refused = Report {
        refused: true,
        ..report(1_990)
    };
    assert_eq!(judge(&good, Some(&refused), 2_000), Rebootstrap(Reason::AgentRefused));
    let requested = Record {
        handover: Some(Pending {
            reason: "Requested".into(),
            since: at(1),
            issuer: None,
            sent: None,
        }),
        ..good
    };
    assert_eq!(judge(&requested, None, 2_000), Rebootstrap(Reason::Requested));
}

#[test]
fn another_server_or_ca_is_followed_by_the_firewall_itself_or_else_it_is_told() {
    let moved = |server: &str, ca: &str| Endpoint {
        server: server.into(),
        ca: ca.into(),
        since: at(2_000),
    };
    for (endpoint, reason) in [
        (moved("server-2", "ca-1"), Reason::ServerMoved),
        (moved("server-1", "ca-2"), Reason::ServerCaChanged),
    ] {
        let at_second = |now| with(&record(), Some(&report(1_900)), &endpoint, Issuer::Unsuspected, now);
        assert_eq!(at_second(2_059), Verdict::Valid(Some(at(2_060))));
        assert_eq!(at_second(2_060), Verdict::Rebootstrap(reason));
        let lost = Report {
            cut_off: true,
            ..report(1_990)
        };
        let verdict = with(&record(), Some(&lost), &endpoint, Issuer::Unsuspected, 2_001);
        assert_eq!(verdict, Verdict::Rebootstrap(reason));
        let followed = Report {
            server: endpoint.server.clone(),
            ca: endpoint.ca.clone(),
            ..report(2_010)
        };
        let verdict = with(&record(), Some(&followed), &endpoint, Issuer::Unsuspected, 2_060);
        assert!(matches!(verdict, Verdict::Valid(_)));
        // An agent of an older version says nothing of it.
        let silent = Report {
            server: String::new(),
            ca: String::new(),
            ..report(2_010)
        };
        let verdict = with(&record(), Some(&silent), &endpoint, Issuer::Unsuspected, 2_060);
        assert!(matches!(verdict, Verdict::Valid(_)));
    }
}

#[test]
fn a_firewall_that_is_cut_off_from_where_it_should_be_is_not_sent_anywhere() {
    let lost = Report {
        cut_off: true,
        ..report(1_990)
    };
    assert!(matches!(judge(&record(), Some(&lost), 2_000), Verdict::Valid(_)));
}

#[test]
fn a_refusal_counts_while_it_is_fresh_and_once_in_five_minutes() {
    let refused = |time| Report {
        refused: true,
        ..report(time)
    };
    let good = |verdict| matches!(verdict, Verdict::Valid(_));
    assert!(good(judge(&record(), Some(&refused(1_000)), 2_000)), "old");
    let other = Report {
        certificate: None,
        ..refused(1_990)
    };
    assert!(good(judge(&record(), Some(&other), 2_000)), "of another certificate");
    let lately = |second| Record {
        credential: record().credential.map(|credential| Credential {
            allocated: at(second),
            ..credential
        }),
        ..record()
    };
    assert!(good(judge(&lately(1_701), Some(&refused(1_990)), 2_000)));
    assert!(!good(judge(&lately(1_700), Some(&refused(1_990)), 2_000)));
}

#[test]
fn a_firewall_that_has_never_come_in_is_judged_by_its_seed_alone() {
    let new = Record {
        seed: "seed-a".into(),
        ..Record::default()
    };
    assert_eq!(judge(&new, None, 2_000), Verdict::Valid(None));
    let moved = Record {
        seed: "seed-b".into(),
        ..Record::default()
    };
    assert_eq!(judge(&moved, None, 2_000), Verdict::Rebootstrap(Reason::SeedMoved));
    // Nothing was on record before.
    assert_eq!(judge(&Record::default(), None, 2_000), Verdict::Valid(None));
}

#[test]
fn where_only_the_key_is_known_again_the_firewall_says_where_it_is_at_home() {
    let lost = Record {
        certificate: None,
        ..record()
    };
    let elsewhere = Report {
        seed: "seed-b".into(),
        ..report(1_990)
    };
    assert_eq!(
        judge(&lost, Some(&elsewhere), 2_000),
        Verdict::Rebootstrap(Reason::SeedMoved)
    );
    assert_eq!(judge(&lost, Some(&report(1_990)), 2_000), Verdict::Valid(None));
    // With a certificate on record an old report from another seed moves nothing: somebody may have put it back.
    assert!(matches!(judge(&record(), Some(&elsewhere), 2_000), Verdict::Valid(_)));
}

proptest! {
    /// Nothing that stands in the shoot makes a good certificate a bad one, but the firewall's own fresh word.
    #[test]
    fn without_a_report_only_seed_time_and_issuer_speak(
        here in any::<bool>(), now in 0..40 * DAY, refused in any::<bool>(),
    ) {
        let record = Record { seed: if here { "seed-a" } else { "seed-b" }.into(), ..record() };
        let issuer = if refused { Issuer::Refused } else { Issuer::Unsuspected };
        let verdict = with(&record, None, &endpoint(), issuer, now);
        let bad = !here || refused || now >= 1_000 + 30 * DAY;
        prop_assert_eq!(matches!(verdict, Verdict::Rebootstrap(_)), bad);
    }

    /// A verdict that says when to look again names a time to come.
    #[test]
    fn what_is_looked_at_again_lies_ahead(now in 0..40 * DAY, moved in 0..40 * DAY, time in 0..40 * DAY) {
        let endpoint = Endpoint { server: "server-2".into(), since: at(moved), ..endpoint() };
        if let Verdict::Valid(Some(again)) = with(&record(), Some(&report(time)), &endpoint, Issuer::Unsuspected, now) {
            prop_assert!(again > at(now));
        }
    }
}

/// The new certificate was issued, and what would fetch it is refused.
#[test]
fn b2_a_firewall_that_is_refused_before_it_fetched_its_new_certificate_is_let_in() {
    let older = |time| Report {
        refused: true,
        certificate: Some(report::Certificate {
            serial: "1e".into(),
            not_before: at(500),
            not_after: at(500 + 30 * DAY),
            issuer: "CN=ca".into(),
        }),
        ..report(time)
    };
    // It was issued at second 1300; a minute is given to fetch it.
    let refused = Verdict::Rebootstrap(Reason::AgentRefused);
    let later = |time: i64| judge(&rested_record(), Some(&older(time)), time + 1);
    assert_ne!(later(1_359), refused);
    assert_eq!(later(1_361), refused);
    // What is said of a certificate that came later is not of this one.
    let mut newer = older(1_361);
    newer.certificate.as_mut().unwrap().not_before = at(1_001);
    assert_ne!(judge(&rested_record(), Some(&newer), 1_362), refused);
}

fn rested_record() -> Record {
    Record {
        credential: None,
        ..record()
    }
}

#[test]
fn b6_a_token_ends_when_its_firewall_says_so_and_not_by_what_is_on_record() {
    let issuer = "system:serviceaccount:firewall-access:fw-1".to_owned();
    let token = |from: i64| report::Certificate {
        serial: "t1".into(),
        not_before: at(from),
        not_after: at(from + DAY),
        issuer: issuer.clone(),
    };
    let mut record = record();
    record.certificate = record.certificate.map(|certificate| Certificate {
        serial: "t1".into(),
        not_after: at(1_000 + DAY),
        issuer: issuer.clone(),
        ..certificate
    });
    let uses = |from: i64, time: i64| Report {
        certificate: Some(token(from)),
        ..report(time)
    };
    // It renews by itself: silence, or a report of long ago, says nothing.
    let late = 1_000 + 3 * DAY;
    assert_eq!(judge(&record, None, late), Verdict::Valid(None));
    assert_eq!(judge(&record, Some(&uses(1_000, 2_000)), late), Verdict::Valid(None));
    // One that lives says with what.
    assert!(matches!(
        judge(&record, Some(&uses(late - 100, late - 10)), late),
        Verdict::Valid(Some(_))
    ));
    let ended = judge(&record, Some(&uses(1_000, late - 10)), late);
    assert_eq!(ended, Verdict::Rebootstrap(Reason::Expired));
    let nearly = 1_000 + DAY - 60;
    let ending = judge(&record, Some(&uses(1_000, nearly - 10)), nearly);
    assert_eq!(ending, Verdict::Renew(Reason::Expiring));
    let refused = Report {
        refused: true,
        ..uses(1_000, 30_000)
    };
    assert_eq!(
        judge(&record, Some(&refused), 30_010),
        Verdict::Rebootstrap(Reason::AgentRefused)
    );
}
