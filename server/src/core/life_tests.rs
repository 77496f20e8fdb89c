//! Tests of a record's life. What stands in `Seen` is checked by whoever fills it in: a report comes in only if the
//! pinned key signed it, a certificate only if it is of that key.

use contract::handover::Order;
use contract::key::PrivateKey;
use contract::names::FirewallName;
use contract::record::{KeyVerdict, Keys};
use contract::report;

use super::*;
use crate::core::canary::Issuers;

#[path = "life_tests/baked.rs"]
mod baked;
#[path = "life_tests/minutes.rs"]
mod minutes;
#[path = "life_tests/operator.rs"]
mod operator;
#[path = "life_tests/proof.rs"]
mod proof;
#[path = "life_tests/tokens.rs"]
mod tokens;

const UID: &str = "uid-a";
const SEED: &str = "seed-a";
const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
static NO_CANARIES: Issuers = Issuers::none();

#[test]
fn a1_a_new_firewall_is_allotted_a_credential_of_the_kind_that_the_seed_has() {
    let firewall = name();
    for (kind, life) in [
        (CredentialKind::Token, HOUR),
        (CredentialKind::ServiceAccount, 24 * HOUR),
    ] {
        let record = advance(
            None,
            &Seen {
                kind,
                ..seen(&firewall)
            },
            at(0),
        );
        assert_eq!(
            (record.version, record.uid.as_str(), record.seed.as_str()),
            (VERSION, UID, SEED)
        );
        let (allocated, expires, limit) = (at(0), at(life), at(24 * HOUR));
        assert_eq!(
            record.credential,
            Some(Credential {
                kind,
                epoch: 0,
                allocated,
                expires,
                limit,
                revoked: None
            })
        );
        assert_eq!(
            (record.keys, record.certificate, record.rebootstrap),
            (Keys::default(), None, None)
        );
    }
}

#[test]
fn none_is_allotted_once_a_key_is_pinned() {
    let firewall = name();
    let record = Record {
        keys: pinned(&key()),
        ..Record::default()
    };
    assert_eq!(advance(Some(&record), &seen(&firewall), at(0)).credential, None);
}

#[test]
fn a_token_is_extended_half_an_hour_before_its_end_and_not_before() {
    let firewall = name();
    let record = allotted(CredentialKind::Token);
    assert_eq!(advance(Some(&record), &seen(&firewall), at(30 * MINUTE - 1)), record);
    let next = advance(Some(&record), &seen(&firewall), at(30 * MINUTE));
    let held = record.credential.clone().unwrap();
    assert_eq!(
        next.credential,
        Some(Credential {
            expires: at(90 * MINUTE),
            ..held
        })
    );
    // Nobody looked for a while: it goes on all the same, up to the limit.
    let late = advance(Some(&record), &seen(&firewall), at(5 * HOUR));
    assert_eq!(
        late.credential,
        Some(Credential {
            expires: at(6 * HOUR),
            ..held
        })
    );
}

#[test]
fn a_service_account_needs_no_extension() {
    let firewall = name();
    let seen = Seen {
        kind: CredentialKind::ServiceAccount,
        ..seen(&firewall)
    };
    let record = allotted(CredentialKind::ServiceAccount);
    for hour in [1, 12, 23] {
        assert_eq!(advance(Some(&record), &seen, at(hour * HOUR)), record);
    }
}

#[test]
fn nothing_extends_a_credential_past_a_day_and_then_it_is_revoked() {
    let firewall = name();
    for kind in [CredentialKind::Token, CredentialKind::ServiceAccount] {
        let seen = Seen {
            kind,
            ..seen(&firewall)
        };
        let mut record = allotted(kind);
        // A step that does not divide the hour: the last extension has to be cut short.
        for second in (0..24 * HOUR).step_by(420) {
            record = advance(Some(&record), &seen, at(second));
            let held = held(&record);
            assert!(
                held.revoked.is_none() && held.expires <= at(24 * HOUR) && held.expires > at(second),
                "{second}"
            );
        }
        assert_eq!(held(&record).expires, at(24 * HOUR));
        let over = advance(Some(&record), &seen, at(24 * HOUR));
        assert_eq!(held(&over).revoked, Some(at(24 * HOUR)));
    }
}

#[test]
fn a_revoked_credential_stays_revoked_whatever_is_seen() {
    let firewall = name();
    let revoked = Credential {
        revoked: Some(at(5)),
        ..held(&allotted(CredentialKind::Token))
    };
    for keys in [Keys::default(), pinned(&key()), pinned(&key()).prove(at(2))] {
        let record = Record {
            credential: Some(revoked.clone()),
            keys,
            ..allotted(CredentialKind::Token)
        };
        let accept = format!("{}@{UID}", key().thumbprint());
        let sights = [
            seen(&firewall),
            Seen {
                kind: CredentialKind::ServiceAccount,
                ..seen(&firewall)
            },
            Seen {
                id_taken: true,
                ..seen(&firewall)
            },
            Seen {
                uid: "uid-b",
                ..seen(&firewall)
            },
            Seen {
                accept_key: Some(&accept),
                ..seen(&firewall)
            },
        ];
        for seen in &sights {
            assert_eq!(advance(Some(&record), seen, at(6)).credential, Some(revoked.clone()));
        }
        let rearmed = Seen {
            rebootstrap: Some("uid-a/1"),
            ..seen(&firewall)
        };
        assert_eq!(held(&advance(Some(&record), &rearmed, at(6))).revoked, None);
    }
}

#[test]
fn d1_a_restart_mints_nothing_new() {
    let firewall = name();
    for kind in [CredentialKind::Token, CredentialKind::ServiceAccount] {
        let seen = Seen {
            kind,
            ..seen(&firewall)
        };
        let mut record = allotted(kind);
        for second in [0, 1, HOUR, 3 * HOUR, 23 * HOUR, 24 * HOUR, 30 * HOUR] {
            // What a new process knows is what was written.
            let read = Record::read(&record.write().unwrap()).unwrap();
            record = advance(Some(&read), &seen, at(second));
            assert_eq!(
                (held(&record).epoch, held(&record).allocated, held(&record).kind),
                (0, at(0), kind)
            );
        }
    }
}

#[test]
fn looking_twice_at_the_same_moment_changes_nothing() {
    let firewall = name();
    let machine = key();
    let (report, certificate) = (report("1f"), certificate("1f", 1));
    let accept = format!("{}@{UID}", machine.thumbprint());
    let records = [
        Record::default(),
        allotted(CredentialKind::Token),
        allotted(CredentialKind::ServiceAccount),
        Record {
            keys: pinned(&machine),
            ..allotted(CredentialKind::Token)
        },
        Record {
            keys: pinned(&machine).prove(at(3)),
            ..allotted(CredentialKind::Token)
        },
        Record {
            keys: contested(),
            ..allotted(CredentialKind::Token)
        },
    ];
    let sights = [
        seen(&firewall),
        Seen {
            kind: CredentialKind::ServiceAccount,
            ..seen(&firewall)
        },
        Seen {
            uid: "uid-b",
            seed: "seed-b",
            ..seen(&firewall)
        },
        Seen {
            report: Some(&report),
            certificate: Some(&certificate),
            ..seen(&firewall)
        },
        Seen {
            accept_key: Some(&accept),
            ..seen(&firewall)
        },
        Seen {
            rebootstrap: Some("uid-a/1"),
            ..seen(&firewall)
        },
        Seen {
            accept_key: Some(&accept),
            rebootstrap: Some("uid-a/1"),
            report: Some(&report),
            ..seen(&firewall)
        },
    ];
    for record in &records {
        for seen in &sights {
            for second in [0, 30 * MINUTE, HOUR, 24 * HOUR, 48 * HOUR] {
                let once = advance(Some(record), seen, at(second));
                assert_eq!(advance(Some(&once), seen, at(second)), once, "at {second}");
            }
        }
    }
}

#[test]
fn the_other_kind_is_allotted_only_while_nobody_came() {
    let firewall = name();
    let seen = Seen {
        kind: CredentialKind::ServiceAccount,
        ..seen(&firewall)
    };
    let changed = held(&advance(Some(&allotted(CredentialKind::Token)), &seen, at(60)));
    assert_eq!(
        (changed.kind, changed.allocated, changed.expires),
        (seen.kind, at(60), at(60 + 24 * HOUR))
    );
    let came = Record {
        keys: pinned(&key()),
        ..allotted(CredentialKind::Token)
    };
    assert_eq!(advance(Some(&came), &seen, at(60)), came);
}

#[test]
fn d2_a_taken_id_moves_the_epoch_on() {
    let firewall = name();
    let next = advance(
        Some(&allotted(CredentialKind::Token)),
        &Seen {
            id_taken: true,
            ..seen(&firewall)
        },
        at(60),
    );
    assert_eq!((held(&next).epoch, held(&next).allocated), (1, at(60)));
}

#[test]
fn a_record_of_an_older_firewall_of_that_name_is_taken_over_with_its_keys() {
    let firewall = name();
    let record = Record {
        keys: pinned(&key()).prove(at(2)),
        certificate: Some(certificate("1", 10)),
        rebootstrap: Some("uid-a/1".into()),
        ..allotted(CredentialKind::Token)
    };
    let seen = Seen {
        uid: "uid-b",
        seed: "seed-b",
        rebootstrap: Some("uid-a/2"),
        ..seen(&firewall)
    };
    let next = advance(Some(&record), &seen, at(60));
    assert_eq!((next.uid.as_str(), next.seed.as_str()), ("uid-b", "seed-b"));
    assert_eq!((next.keys, next.rebootstrap), (record.keys, record.rebootstrap));
    // It is of the other seed, and means nothing in this one.
    assert_eq!(next.certificate, None);
}

#[test]
fn a_record_is_looked_at_again_before_its_credential_ends() {
    let token = allotted(CredentialKind::Token);
    assert_eq!(recheck_at(&token), Some(at(30 * MINUTE)));
    let last = Credential {
        expires: at(24 * HOUR),
        ..held(&token)
    };
    assert_eq!(
        recheck_at(&Record {
            credential: Some(last.clone()),
            ..token.clone()
        }),
        Some(at(24 * HOUR))
    );
    assert_eq!(
        recheck_at(&allotted(CredentialKind::ServiceAccount)),
        Some(at(24 * HOUR))
    );
    let revoked = Credential {
        revoked: Some(at(1)),
        ..last
    };
    assert_eq!(
        recheck_at(&Record {
            credential: Some(revoked),
            ..token
        }),
        None
    );
    assert_eq!(recheck_at(&Record::default()), None);
}

fn seen(firewall: &FirewallName) -> Seen<'_> {
    Seen {
        firewall,
        uid: UID,
        seed: SEED,
        server: "server-a",
        ca: "ca-a",
        created: at(1),
        kind: CredentialKind::Token,
        mode: contract::access::Mode::Certificate,
        accept_key: None,
        rebootstrap: None,
        export: None,
        blind: false,
        monitor: true,
        authentic: None,
        issuers: &NO_CANARIES,
        report: None,
        certificate: None,
        certified_until: None,
        id_taken: false,
        baked: None,
    }
}

fn allotted(kind: CredentialKind) -> Record {
    advance(None, &Seen { kind, ..seen(&name()) }, at(0))
}

fn held(record: &Record) -> Credential {
    record.credential.clone().unwrap()
}

fn name() -> FirewallName {
    FirewallName::parse("fw-1").unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn key() -> contract::key::PublicKey {
    PrivateKey::generate().unwrap().public()
}

fn pinned(key: &contract::key::PublicKey) -> Keys {
    match Keys::default().present(key, at(1)) {
        KeyVerdict::Pin(keys) => keys,
        other => panic!("{other:?}"),
    }
}

fn contested() -> Keys {
    match pinned(&key()).present(&key(), at(1)) {
        KeyVerdict::Contested(keys) => keys,
        other => panic!("{other:?}"),
    }
}

fn certificate(serial: &str, not_before: i64) -> Certificate {
    Certificate {
        serial: serial.into(),
        not_before: at(not_before),
        not_after: at(not_before + 365 * 24 * HOUR),
        issuer: "CN=ca".into(),
        issuer_key: None,
        request: "firewall-x".into(),
    }
}

fn report(serial: &str) -> Report {
    Report {
        firewall: name(),
        seed: SEED.into(),
        namespace: "shoot--a".into(),
        certificate: Some(report::Certificate {
            serial: serial.into(),
            not_before: at(0),
            not_after: at(HOUR),
            issuer: "CN=ca".into(),
        }),
        taken_up: Order::default(),
        seal: None,
        key: key(),
        handover_keys: Vec::new(),
        server: "server-a".into(),
        ca: "ca-a".into(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: None,
        last_error: None,
        agent_version: "0.1.0".into(),
        time: at(0),
    }
}

#[test]
fn b2_whose_a_certificate_is_stays_known() {
    let firewall = name();
    let known = Certificate {
        issuer_key: Some("old".into()),
        ..certificate("01", 10)
    };
    let record = Record {
        certificate: Some(known.clone()),
        keys: pinned(&key()),
        ..Record::default()
    };
    let after = |certificate: &Certificate| {
        let seen = Seen {
            certificate: Some(certificate),
            ..seen(&firewall)
        };
        advance(Some(&record), &seen, at(20)).certificate.unwrap()
    };
    // The CAs were not read yet, after a start.
    assert_eq!(after(&certificate("01", 10)), known);
    assert_eq!(after(&certificate("02", 11)).issuer_key, None);
}
