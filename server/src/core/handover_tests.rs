//! A handover through its whole life, and what an older backup or a second seed makes of it. The steps are taken by
//! `life::advance`, as the worker takes them.

use contract::handover::{Claims, SealKey};
use contract::key::{PrivateKey, PublicKey};
use contract::names::FirewallName;
use contract::record::{Certificate, CredentialKind, KeyVerdict, Keys};
use contract::report;

use super::super::canary::Issuers;
use super::super::life::advance;
use super::*;

const MINUTE: i64 = 60;
static NO_CANARIES: Issuers = Issuers::none();

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A machine, with all that it says of itself.
struct Machine {
    name: FirewallName,
    key: PublicKey,
    seal: PublicKey,
}

impl Machine {
    fn new() -> Self {
        Self {
            name: FirewallName::parse("fw-1").unwrap(),
            key: PrivateKey::generate().unwrap().public(),
            seal: SealKey::generate().unwrap().public().clone(),
        }
    }

    fn report(&self, seed: &str, serial: &str, taken_up: Order, time: i64) -> Report {
        Report {
            firewall: self.name.clone(),
            seed: seed.into(),
            namespace: "shoot--a".into(),
            certificate: Some(report::Certificate {
                serial: serial.into(),
                not_before: at(0),
                not_after: at(1_000_000),
                issuer: "CN=ca".into(),
            }),
            taken_up,
            seal: Some(self.seal.clone()),
            key: self.key.clone(),
            handover_keys: Vec::new(),
            server: format!("server-{seed}"),
            ca: "ca".into(),
            refused: false,
            cut_off: false,
            clock_skew_seconds: None,
            last_error: None,
            agent_version: "0.1.0".into(),
            time: at(time),
        }
    }

    /// What the seed `b` sees of it, whose Firewall was made at second 1000.
    fn seen<'a>(&'a self, report: Option<&'a Report>) -> Seen<'a> {
        Seen {
            firewall: &self.name,
            uid: "uid-b",
            seed: "b",
            server: "server-b",
            ca: "ca",
            created: at(1_000),
            kind: CredentialKind::Token,
            mode: contract::access::Mode::Certificate,
            accept_key: None,
            rebootstrap: None,
            export: None,
            blind: false,
            monitor: true,
            authentic: None,
            issuers: &NO_CANARIES,
            report,
            certificate: None,
            certified_until: None,
            id_taken: false,
            baked: None,
        }
    }

    /// As seed `a` left it.
    fn record(&self) -> Record {
        let KeyVerdict::Pin(keys) = Keys::default().present(&self.key, at(1)) else {
            panic!("not pinned")
        };
        let spent = Credential {
            revoked: Some(at(3)),
            ..fresh(CredentialKind::Token, 0, at(0))
        };
        Record {
            version: 1,
            uid: "uid-a".into(),
            seed: "a".into(),
            keys: keys.prove(at(2)),
            certificate: Some(certificate("01")),
            credential: Some(spent),
            order: Order {
                authority: 500,
                generation: 0,
            },
            ..Record::default()
        }
    }
}

fn certificate(serial: &str) -> Certificate {
    Certificate {
        serial: serial.into(),
        not_before: at(0),
        not_after: at(1_000_000),
        issuer: "CN=ca".into(),
        issuer_key: None,
        request: "firewall-x".into(),
    }
}

fn sealed_to(record: &Record) -> Option<String> {
    let sent = record.handover.as_ref()?.sent.as_ref()?;
    sent.sealed_to.as_ref().map(ToString::to_string)
}

#[test]
fn a8_a_firewall_that_came_from_another_seed_gets_a_credential_sealed_and_it_ends_with_its_use() {
    let machine = Machine::new();
    let before = machine.report("a", "01", Order::default(), 1_900);
    let moved = advance(Some(&machine.record()), &machine.seen(Some(&before)), at(2_000));
    let pending = moved.handover.as_ref().unwrap();
    assert_eq!((pending.reason.as_str(), moved.seed.as_str()), ("SeedMoved", "b"));
    assert_eq!(sealed_to(&moved), Some(machine.seal.thumbprint().to_string()));
    assert_eq!((moved.order.authority, moved.order.generation), (1_000, 1));
    let credential = moved.credential.as_ref().unwrap();
    // Another than any that was in the seed that it left: somebody may have kept that.
    assert_eq!((credential.epoch, credential.revoked), (1, None));
    assert_eq!(moved.certificate, None);

    // The next look changes nothing.
    assert_eq!(advance(Some(&moved), &machine.seen(Some(&before)), at(2_001)), moved);
    // It has taken it up, and was issued a certificate.
    let taken = machine.report("a", "01", moved.order, 2_002);
    let issued = certificate("02");
    let seen = Seen {
        certificate: Some(&issued),
        ..machine.seen(Some(&taken))
    };
    let coming = advance(Some(&moved), &seen, at(2_003));
    assert!(coming.handover.is_some() && coming.certificate.is_some());
    // It reports from it.
    let there = machine.report("b", "02", moved.order, 2_004);
    let seen = Seen {
        certificate: Some(&issued),
        ..machine.seen(Some(&there))
    };
    let done = advance(Some(&coming), &seen, at(2_005));
    assert_eq!(done.handover, None);
    assert!(done.credential.as_ref().unwrap().revoked.is_some());
    assert_eq!(advance(Some(&done), &seen, at(2_006)), done);
}

#[test]
fn a8_what_is_sealed_is_not_what_stands_in_the_new_userdata() {
    let machine = Machine::new();
    let before = machine.report("a", "01", Order::default(), 1_900);
    let seen = Seen {
        baked: Some(1_000),
        ..machine.seen(Some(&before))
    };
    let moved = advance(Some(&machine.record()), &seen, at(2_000));
    assert!(sealed_to(&moved).is_some());
    assert_eq!(moved.credential.as_ref().map(|held| held.epoch), Some(1_001));
    assert_eq!(advance(Some(&moved), &seen, at(2_001)), moved);
}

#[test]
fn a_silent_firewall_is_left_a_notice_without_any_credential() {
    let machine = Machine::new();
    let old = machine.report("a", "01", Order::default(), 0);
    for report in [None, Some(&old)] {
        let moved = advance(Some(&machine.record()), &machine.seen(report), at(2_000));
        assert!(moved.handover.as_ref().unwrap().sent.is_some());
        assert_eq!(sealed_to(&moved), None);
        assert!(moved.credential.as_ref().unwrap().revoked.is_some());
        // It stays the one notice.
        let later = advance(Some(&moved), &machine.seen(report), at(2_000 + 600 * MINUTE));
        assert_eq!(later.order, moved.order);
        // The machine is switched on, and reports.
        let fresh = machine.report("a", "01", Order::default(), 90_000);
        let answered = advance(Some(&later), &machine.seen(Some(&fresh)), at(90_001));
        assert!(sealed_to(&answered).is_some());
        assert!(answered.order > moved.order);
        assert_eq!(answered.credential.as_ref().unwrap().revoked, None);
    }
}

#[test]
fn nothing_is_sent_before_the_monitor_was_seen() {
    let machine = Machine::new();
    let blind = Seen {
        monitor: false,
        ..machine.seen(None)
    };
    let moved = advance(Some(&machine.record()), &blind, at(2_000));
    assert!(moved.handover.as_ref().unwrap().sent.is_none());
}

#[test]
fn an_agent_that_started_anew_before_it_took_it_up_gets_another_number() {
    let (machine, restarted) = (Machine::new(), Machine::new());
    let before = machine.report("a", "01", Order::default(), 1_990);
    let moved = advance(Some(&machine.record()), &machine.seen(Some(&before)), at(2_000));
    let anew = Report {
        seal: Some(restarted.seal.clone()),
        ..machine.report("a", "01", Order::default(), 2_010)
    };
    let again = advance(Some(&moved), &machine.seen(Some(&anew)), at(2_011));
    assert_eq!(sealed_to(&again), Some(restarted.seal.thumbprint().to_string()));
    assert_eq!(again.order.generation, moved.order.generation + 1);
    // The very same credential: a restart of the machine mints nothing.
    assert_eq!(again.credential, moved.credential);
    // One that has taken it up, and has a new key for the next one, gets nothing more.
    let taken = Report {
        seal: Some(restarted.seal),
        ..machine.report("a", "01", moved.order, 2_010)
    };
    assert_eq!(advance(Some(&moved), &machine.seen(Some(&taken)), at(2_011)), moved);
    // For half an hour: then something is wrong with it.
    let taken = machine.report("a", "01", moved.order, 2_000 + 29 * MINUTE);
    let stuck = advance(Some(&moved), &machine.seen(Some(&taken)), at(2_000 + 30 * MINUTE));
    assert_eq!(stuck.order.generation, moved.order.generation + 1);
}

fn claims(machine: &Machine, authority: i64, generation: u64, key: &PublicKey) -> Claims {
    Claims {
        seed: "c".into(),
        namespace: "shoot--a".into(),
        firewall: machine.name.clone(),
        key: key.thumbprint(),
        order: Order { authority, generation },
        issued: at(1),
        expires: at(2),
        reason: "SeedMoved".into(),
    }
}

#[test]
fn a_key_that_only_an_operator_named_is_filled_in_by_the_report() {
    let machine = Machine::new();
    let accept = format!("{}@uid-b", machine.key.thumbprint());
    let report = machine.report("a", "01", Order::default(), 1_990);
    let seen = Seen {
        accept_key: Some(&accept),
        ..machine.seen(None)
    };
    let accepted = advance(None, &seen, at(2_000));
    assert!(accepted.keys.pin.as_ref().is_some_and(|pin| pin.key.is_none()));
    let seen = Seen {
        accept_key: Some(&accept),
        ..machine.seen(Some(&report))
    };
    let known = advance(Some(&accepted), &seen, at(2_001));
    assert_eq!(known.keys.pin.as_ref().unwrap().key, Some(machine.key.clone()));
    // It says that it is at home elsewhere: now it is told of its way in.
    let told = advance(Some(&known), &seen, at(2_002));
    assert!(sealed_to(&told).is_some() || sealed_to(&known).is_some());
}

#[test]
fn a_machine_that_never_came_in_gets_no_handover_but_userdata() {
    let machine = Machine::new();
    let never = Record {
        keys: Keys::default(),
        certificate: None,
        ..machine.record()
    };
    let moved = advance(Some(&never), &machine.seen(None), at(2_000));
    assert!(moved.handover.as_ref().unwrap().sent.is_none());
    let credential = moved.credential.as_ref().unwrap();
    assert_eq!((credential.epoch, credential.revoked), (1, None));
}

#[test]
fn before_a_shoot_was_read_nothing_is_opened_and_no_wish_is_used_up() {
    let machine = Machine::new();
    let blind = Seen {
        blind: true,
        monitor: false,
        export: Some("uid-b/1"),
        ..machine.seen(None)
    };
    let next = advance(Some(&machine.record()), &blind, at(2_000));
    assert_eq!((next.handover.as_ref(), next.export.as_ref()), (None, None));
    // The seed that it came from is not forgotten over that.
    let seen = advance(Some(&next), &machine.seen(None), at(2_001));
    assert_eq!(seen.handover.unwrap().reason, "SeedMoved");
}

#[test]
fn a_server_that_moves_on_while_a_handover_lies_there_makes_another() {
    let machine = Machine::new();
    let before = machine.report("a", "01", Order::default(), 1_990);
    let moved = advance(Some(&machine.record()), &machine.seen(Some(&before)), at(2_000));
    let taken = machine.report("a", "01", moved.order, 2_010);
    for report in [before, taken] {
        let seen = Seen {
            server: "server-b2",
            ..machine.seen(Some(&report))
        };
        let again = advance(Some(&moved), &seen, at(2_020));
        assert!(again.order.generation > moved.order.generation);
        assert_eq!(advance(Some(&again), &seen, at(2_021)), again);
    }
}

#[path = "handover_tests/order.rs"]
mod order;
#[path = "handover_tests/reports.rs"]
mod reports;
