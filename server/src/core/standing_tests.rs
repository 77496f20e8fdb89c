//! Tests of how a firewall stands: each step has its words, and what somebody has to act on comes first.

use contract::key::{PrivateKey, PublicKey};
use contract::record::{Certificate, Credential, CredentialKind, KeyVerdict, Keys};

use contract::report::Report;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn key() -> PublicKey {
    PrivateKey::generate().unwrap().public()
}

fn pinned() -> Keys {
    match Keys::default().present(&key(), at(1)) {
        KeyVerdict::Pin(keys) => keys,
        other => panic!("{other:?}"),
    }
}

/// A credential stands; nobody came.
fn waiting() -> Record {
    let (kind, epoch) = (CredentialKind::Token, 0);
    let credential = Credential {
        kind,
        epoch,
        allocated: at(0),
        expires: at(3600),
        limit: at(86_400),
        revoked: None,
    };
    Record {
        credential: Some(credential),
        ..Record::default()
    }
}

fn revoked() -> Record {
    Record {
        credential: waiting().credential.map(|c| Credential {
            revoked: Some(at(9)),
            ..c
        }),
        ..waiting()
    }
}

fn issued(keys: Keys) -> Record {
    let (not_before, not_after) = (at(5), at(31_536_000));
    let (serial, issuer, request) = ("1f".into(), "CN=ca".into(), "firewall-x".into());
    Record {
        keys,
        certificate: Some(Certificate {
            serial,
            not_before,
            not_after,
            issuer,
            issuer_key: None,
            request,
        }),
        ..revoked()
    }
}

#[test]
fn each_step_of_a_firewall_has_its_words_and_its_end() {
    let closed = || Some((Reason::ShootAccessMissing, "deploy the Secret".to_owned()));
    let contested = || Keys {
        candidates: vec![key(), key()],
        ..Keys::default()
    };
    let (limit, end) = (Some(at(86_400)), Some(at(31_536_000)));
    let table = [
        (
            waiting(),
            false,
            None,
            State::Waiting,
            Reason::ShootAccessPending,
            limit,
            "shootAccess",
        ),
        (
            waiting(),
            true,
            None,
            State::Waiting,
            Reason::WaitingForFirewall,
            limit,
            "not come in",
        ),
        (
            revoked(),
            true,
            None,
            State::Refused,
            Reason::CredentialExpired,
            None,
            "firewall.metal-stack.io/rebootstrap=",
        ),
        (
            issued(pinned()),
            true,
            None,
            State::Waiting,
            Reason::WaitingForReport,
            end,
            "not reported",
        ),
        (
            issued(pinned().prove(at(6))),
            true,
            None,
            State::Ready,
            Reason::Bootstrapped,
            end,
            "1f",
        ),
        // What somebody has to act on comes before what goes on by itself.
        (
            waiting(),
            true,
            closed(),
            State::Refused,
            Reason::ShootAccessMissing,
            None,
            "deploy the Secret",
        ),
        (
            issued(pinned().prove(at(6))),
            true,
            closed(),
            State::Refused,
            Reason::ShootAccessMissing,
            end,
            "deploy",
        ),
        (
            Record {
                keys: contested(),
                ..waiting()
            },
            true,
            closed(),
            State::Refused,
            Reason::TwoKeys,
            None,
            "2 keys",
        ),
        (
            issued(contested()),
            true,
            None,
            State::Refused,
            Reason::TwoKeys,
            end,
            "firewall.metal-stack.io/accept-key=",
        ),
    ];
    for (record, has_shoot_access, closed, state, reason, until, words) in table {
        let status = status_of(&record, has_shoot_access, closed, at(10));
        assert_eq!((status.state, status.reason, status.until), (state, reason, until));
        assert!(status.message.contains(words), "{}", status.message);
    }
}

#[test]
fn a_firewall_whose_certificate_has_ended_is_not_called_ready() {
    let record = issued(pinned().prove(at(2)));
    let end = record.certificate.as_ref().unwrap().not_after;
    let before = status_of(&record, true, None, end - jiff::SignedDuration::from_secs(1));
    assert_eq!(before.state, State::Ready);
    let after = status_of(&record, true, None, end);
    assert_eq!((after.state, after.reason), (State::Refused, Reason::Expired));
}

fn status_of(record: &Record, has_shoot_access: bool, closed: Option<(Reason, String)>, now: Timestamp) -> Status {
    let name = FirewallName::parse("fw-1").unwrap();
    of(
        &Stands {
            has_shoot_access,
            closed,
            ..stands(&name, record)
        },
        now,
    )
}

fn stands<'a>(name: &'a FirewallName, record: &'a Record) -> Stands<'a> {
    Stands {
        name,
        object: "shoot--a/fw-1",
        uid: "uid-a",
        record,
        verdict: Verdict::Valid(None),
        mode: contract::access::Mode::Certificate,
        ahead: None,
        report: None,
        unverified: None,
        monitor: true,
        handover_key: key().thumbprint(),
        has_shoot_access: true,
        refused: None,
        closed: None,
    }
}

fn report_of(record: &Record, handover_key: &PublicKey) -> Report {
    Report {
        firewall: FirewallName::parse("fw-1").unwrap(),
        seed: "seed-a".into(),
        namespace: "shoot--a".into(),
        certificate: None,
        taken_up: record.order,
        seal: None,
        key: key(),
        handover_keys: vec![handover_key.thumbprint()],
        server: String::new(),
        ca: String::new(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: None,
        last_error: None,
        agent_version: "0.1.0".into(),
        time: at(1),
    }
}

fn pending(reason: Reason, sealed: Option<bool>) -> Pending {
    Pending {
        reason: reason.as_str().into(),
        since: at(7),
        issuer: None,
        sent: sealed.map(|sealed| contract::record::Sent {
            issued: at(8),
            expires: at(3608),
            sealed_to: sealed.then(|| key().thumbprint()),
        }),
    }
}

#[test]
fn a_shoot_that_sleeps_for_days_is_no_alarm_for_a_firewall_that_works() {
    let name = FirewallName::parse("fw-1").unwrap();
    let record = issued(pinned().prove(at(6)));
    let away = || Some((Reason::ShootUnreachable, "it does not answer".to_owned()));
    for day in 1..300 {
        let status = status_of(&record, true, away(), at(day * 86_400));
        assert_eq!((status.state, status.reason), (State::Ready, Reason::Bootstrapped));
        assert!(status.message.contains("could not be told"), "{}", status.message);
    }
    // It is one where there is something to tell.
    let moved = Record {
        handover: Some(pending(Reason::SeedMoved, None)),
        ..record
    };
    let status = of(
        &Stands {
            closed: away(),
            ..stands(&name, &moved)
        },
        at(10),
    );
    assert_eq!(
        (status.state, status.reason),
        (State::Refused, Reason::ShootUnreachable)
    );
}

#[test]
fn how_far_a_handover_has_got_is_said() {
    let name = FirewallName::parse("fw-1").unwrap();
    let of_handover = |sealed, reported: bool| {
        let record = Record {
            handover: Some(pending(Reason::SeedMoved, sealed)),
            order: Order {
                authority: 5,
                generation: 2,
            },
            ..issued(pinned().prove(at(6)))
        };
        let handover_key = key();
        let report = report_of(&record, &handover_key);
        let status = of(
            &Stands {
                report: reported.then_some(&report),
                handover_key: handover_key.thumbprint(),
                ..stands(&name, &record)
            },
            at(10),
        );
        assert_eq!((status.state, status.reason), (State::Waiting, Reason::SeedMoved));
        status.message
    };
    assert!(of_handover(None, false).contains("its report is awaited"));
    assert!(of_handover(Some(false), false).contains("notice 5/2"));
    assert!(of_handover(Some(true), false).contains("handover 5/2 is sealed for it"));
    assert!(of_handover(Some(true), true).contains("has taken up handover 5/2"));
}

#[test]
fn what_only_an_operator_can_mend_names_the_very_command() {
    let name = FirewallName::parse("fw-1").unwrap();
    let lost = Record::default();
    let (ours, other) = (key(), key());
    let refused = |record: &Record, report: Report, handover_key: &PublicKey| {
        let status = of(
            &Stands {
                unverified: Some(report),
                handover_key: handover_key.thumbprint(),
                ..stands(&name, record)
            },
            at(10),
        );
        assert_eq!(status.state, State::Refused);
        (status.reason, status.message)
    };
    let report = report_of(&lost, &ours);
    let command = format!(
        "kubectl annotate --overwrite firewall -n shoot--a fw-1 firewall.metal-stack.io/accept-key={}@uid-a",
        report.key.thumbprint()
    );
    let (reason, message) = refused(&lost, report.clone(), &ours);
    assert_eq!(reason, Reason::KeyUnknown);
    assert!(message.ends_with(&command), "{message}");
    let (reason, message) = refused(&lost, report, &other);
    assert_eq!(reason, Reason::HandoverKeyLost);
    assert!(
        message.contains("`firewall-approver export shoot--a/fw-1`"),
        "{message}"
    );
    let never = Record {
        handover: Some(pending(Reason::SeedMoved, None)),
        ..waiting()
    };
    let status = of(&stands(&name, &never), at(10));
    assert_eq!(
        (status.state, status.reason),
        (State::Refused, Reason::UserdataOutdated)
    );
    assert!(status.message.contains("`firewall-approver export shoot--a/fw-1`"));
    // A record that is whole is judged by nothing that stands unsigned in the shoot.
    let whole = issued(pinned().prove(at(6)));
    let status = of(
        &Stands {
            unverified: Some(report_of(&whole, &other)),
            ..stands(&name, &whole)
        },
        at(10),
    );
    assert_eq!(status.reason, Reason::Bootstrapped);
}

#[test]
fn b5_only_the_word_of_the_proved_key_stands_beside_the_state() {
    let name = FirewallName::parse("fw-1").unwrap();
    let (proven, unproven) = (issued(pinned().prove(at(6))), issued(pinned()));
    let report = report_of(&proven, &key());
    let heard = |record: &Record, report: Option<&Report>, unverified: Option<Report>| {
        let stands = Stands {
            report,
            unverified,
            ..stands(&name, record)
        };
        of(&stands, at(10)).heard
    };
    assert_eq!(heard(&proven, Some(&report), None), Word::Heard(Heard::of(&report)));
    // What lies there and is believed by nobody changes nothing.
    assert_eq!(heard(&proven, None, Some(report.clone())), Word::AsBefore);
    assert_eq!(heard(&unproven, None, Some(report)), Word::Nothing);
    assert_eq!(heard(&waiting(), None, None), Word::Nothing);
}
