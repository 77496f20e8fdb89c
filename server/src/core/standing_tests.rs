//! Tests of how a firewall stands: each step has its words, and what somebody has to act on comes first.

use contract::key::{PrivateKey, PublicKey};
use contract::record::{Certificate, Credential, CredentialKind, KeyVerdict, Keys};

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
