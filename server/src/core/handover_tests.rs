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
            accept_key: None,
            rebootstrap: None,
            export: None,
            blind: false,
            monitor: true,
            authentic: None,
            issuers: &NO_CANARIES,
            report,
            certificate: None,
            id_taken: false,
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

#[test]
fn a_report_of_before_closes_nothing() {
    let machine = Machine::new();
    let working = Record {
        uid: "uid-b".into(),
        seed: "b".into(),
        order: Order {
            authority: 1_000,
            generation: 4,
        },
        ..machine.record()
    };
    // An operator wants it anew.
    let old = machine.report("b", "01", Order::default(), 1_990);
    let seen = Seen {
        export: Some("uid-b/1"),
        ..machine.seen(Some(&old))
    };
    let asked = advance(Some(&working), &seen, at(2_000));
    assert_eq!(asked.handover.as_ref().unwrap().reason, "Requested");
    assert_eq!(advance(Some(&asked), &seen, at(2_001)), asked);
    // Once for each value, and closed by a report that was made since.
    let new = machine.report("b", "01", Order::default(), 2_005);
    let seen = Seen {
        export: Some("uid-b/1"),
        ..machine.seen(Some(&new))
    };
    let closed = advance(Some(&asked), &seen, at(2_006));
    assert_eq!(closed.handover, None);
    assert!(closed.credential.as_ref().unwrap().revoked.is_some());
    assert_eq!(advance(Some(&closed), &seen, at(2_007)), closed);
}

#[test]
fn one_that_works_with_another_server_or_is_refused_has_not_come_in() {
    let machine = Machine::new();
    let before = machine.report("a", "01", Order::default(), 1_990);
    let moved = advance(Some(&machine.record()), &machine.seen(Some(&before)), at(2_000));
    let issued = certificate("02");
    let good = machine.report("b", "02", moved.order, 2_010);
    for spoilt in [
        Report {
            seed: "a".into(),
            ..good.clone()
        },
        Report {
            server: "server-a".into(),
            ..good.clone()
        },
        Report {
            ca: "other".into(),
            ..good.clone()
        },
        Report {
            refused: true,
            ..good.clone()
        },
        Report {
            firewall: FirewallName::parse("fw-2").unwrap(),
            ..good.clone()
        },
        machine.report("b", "03", moved.order, 2_010),
    ] {
        let seen = Seen {
            certificate: Some(&issued),
            ..machine.seen(Some(&spoilt))
        };
        let next = advance(Some(&moved), &seen, at(2_011));
        assert!(next.handover.is_some(), "{spoilt:?}");
    }
    let seen = Seen {
        certificate: Some(&issued),
        ..machine.seen(Some(&good))
    };
    assert!(advance(Some(&moved), &seen, at(2_011)).handover.is_none());
}

#[test]
fn each_move_has_a_higher_authority_even_by_clocks_that_disagree() {
    let machine = Machine::new();
    let mut record = machine.record();
    let uids = ["u1", "u2", "u3"];
    for (uid, created) in uids.iter().zip([100, 90, 5_000]) {
        let seen = Seen {
            uid,
            created: at(created),
            ..machine.seen(None)
        };
        let next = advance(Some(&record), &seen, at(6_000));
        assert!(next.order.authority > record.order.authority);
        assert!(next.order.authority >= created);
        // The same Firewall keeps it.
        assert_eq!(
            advance(Some(&next), &seen, at(6_001)).order.authority,
            next.order.authority
        );
        record = next;
    }
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
fn a_seed_stands_aside_for_a_higher_authority_and_an_operator_may_take_the_firewall_back() {
    let machine = Machine::new();
    let told = claims(&machine, 7_000, 3, &machine.key);
    let taken = machine.report(
        "c",
        "09",
        Order {
            authority: 7_000,
            generation: 3,
        },
        1_990,
    );
    let by_monitor = Seen {
        authentic: Some(&told),
        ..machine.seen(None)
    };
    for seen in [by_monitor, machine.seen(Some(&taken))] {
        let next = advance(Some(&machine.record()), &seen, at(2_000));
        assert_eq!(ahead(&next, &seen).map(|order| order.authority), Some(7_000));
        assert_eq!(next.handover, None);
        // Nothing is forgotten of where it was.
        assert_eq!(next.seed, "a");
        let seen = Seen {
            export: Some("uid-b/1"),
            ..seen
        };
        let back = advance(Some(&next), &seen, at(2_001));
        assert_eq!(ahead(&back, &seen), None);
        assert!(back.handover.is_some() && back.order.authority == 7_001);
    }
}

#[test]
fn numbers_and_pin_come_back_from_what_we_signed_ourselves() {
    let (machine, other) = (Machine::new(), Machine::new());
    let told = claims(&machine, 900, 41, &machine.key);
    let seen = Seen {
        authentic: Some(&told),
        ..machine.seen(None)
    };
    // No record at all.
    let next = advance(None, &seen, at(2_000));
    let pin = next.keys.pin.as_ref().unwrap();
    assert_eq!(pin.thumbprint, machine.key.thumbprint());
    assert!(next.order.generation >= 41);
    // A record of before, with the key of before: what we said since is newer.
    let older = Record {
        keys: Keys::default().restore(&other.key.thumbprint(), at(1)),
        ..machine.record()
    };
    let next = advance(Some(&older), &seen, at(2_000));
    assert_eq!(next.keys.pin.unwrap().thumbprint, machine.key.thumbprint());
    // What we said before the record was written moves no pin.
    let newer = Record {
        order: Order {
            authority: 900,
            generation: 50,
        },
        ..older
    };
    let next = advance(Some(&newer), &seen, at(2_000));
    assert_eq!(next.keys.pin.unwrap().thumbprint, other.key.thumbprint());
    assert!(next.order.generation >= 50);
    // The firewall's own word moves the number on, too.
    let report = machine.report(
        "a",
        "01",
        Order {
            authority: 10,
            generation: 77,
        },
        1_990,
    );
    let next = advance(Some(&machine.record()), &machine.seen(Some(&report)), at(2_000));
    assert!(next.order.generation > 77);
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
fn a_firewall_that_was_deleted_for_good_leaves_nothing_but_its_numbers_to_one_of_its_name() {
    let machine = Machine::new();
    let deleted = super::super::life::leave(&machine.record(), true, at(1_500));
    let other = Seen {
        uid: "uid-c",
        ..machine.seen(None)
    };
    let new = advance(Some(&deleted), &other, at(2_000));
    assert_eq!((new.keys.pin.as_ref(), new.certificate.as_ref()), (None, None));
    assert_eq!(new.credential.as_ref().unwrap().revoked, None);
    assert!(new.order.authority > deleted.order.authority);
    // What was said to the one before lets nobody in: its numbers are lower.
    let old = claims(&machine, 500, 9, &machine.key);
    let seen = Seen {
        authentic: Some(&old),
        ..other
    };
    assert_eq!(
        advance(Some(&deleted), &seen, at(2_000))
            .keys
            .pin
            .map(|pin| pin.thumbprint),
        Some(machine.key.thumbprint())
    );
    let before = Record {
        order: Order {
            authority: 500,
            generation: 9,
        },
        ..deleted
    };
    assert_eq!(advance(Some(&before), &seen, at(2_000)).keys.pin, None);
    // One that only moved away, and is back, is the same.
    let moved = super::super::life::leave(&machine.record(), false, at(1_500));
    assert!(advance(Some(&moved), &machine.seen(None), at(2_000)).keys.pin.is_some());
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
fn what_this_very_seed_said_under_a_higher_authority_is_taken_up() {
    let machine = Machine::new();
    let own = Claims {
        seed: "b".into(),
        ..claims(&machine, 7_000, 3, &machine.key)
    };
    let seen = Seen {
        authentic: Some(&own),
        ..machine.seen(None)
    };
    let next = advance(Some(&machine.record()), &seen, at(2_000));
    assert_eq!(ahead(&next, &seen), None);
    assert!(next.order.authority >= 7_000);
    // The firewall says what it took up while it is still at home here: that may have come from elsewhere.
    let leaving = machine.report("b", "01", own.order, 1_990);
    let seen = machine.seen(Some(&leaving));
    let next = advance(Some(&machine.record()), &seen, at(2_000));
    assert!(ahead(&next, &seen).is_some());
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

#[test]
fn a_lost_record_does_not_bring_the_token_of_the_userdata_back() {
    let machine = Machine::new();
    let first = advance(None, &machine.seen(None), at(2_000)).credential.unwrap();
    let again = advance(None, &machine.seen(None), at(900_000)).credential.unwrap();
    assert_ne!(first.epoch, again.epoch);
}

#[test]
fn b2_a_handover_for_a_refused_issuer_ends_with_a_certificate_that_is_not_of_it() {
    let machine = Machine::new();
    let of = |serial: &str, issuer: &str, not_before: i64| Certificate {
        issuer_key: Some(issuer.into()),
        not_before: at(not_before),
        ..certificate(serial)
    };
    let record = Record {
        seed: "b".into(),
        uid: "uid-b".into(),
        certificate: Some(of("01", "old", 0)),
        ..machine.record()
    };
    let refused = Issuers {
        refused: ["old".to_owned()].into(),
        ..Issuers::none()
    };
    let report = machine.report("b", "01", Order::default(), 1_990);
    let fine = advance(Some(&record), &machine.seen(Some(&report)), at(2_000));
    assert_eq!(fine.handover, None);
    let seen = Seen {
        issuers: &refused,
        ..machine.seen(Some(&report))
    };
    let opened = advance(Some(&record), &seen, at(2_000));
    assert_eq!(opened.handover.as_ref().unwrap().reason, "IssuerRefused");
    assert!(sealed_to(&opened).is_some());

    for (serial, issuer, not_before, issuers, ends) in [
        // It says that it works, as it has not noticed yet; nor does anybody know it here after a restart.
        ("01", "old", 0, &refused, false),
        ("01", "old", 0, &NO_CANARIES, false),
        ("02", "old", 0, &NO_CANARIES, false),
        ("02", "new", 0, &refused, true),
        ("02", "new", 0, &NO_CANARIES, true),
        // The old CA is back, and signs.
        ("02", "old", 2_005, &NO_CANARIES, true),
        ("02", "old", 2_005, &refused, false),
    ] {
        let (report, issued) = (
            machine.report("b", serial, opened.order, 2_010),
            of(serial, issuer, not_before),
        );
        let seen = Seen {
            issuers,
            certificate: Some(&issued),
            ..machine.seen(Some(&report))
        };
        let next = advance(Some(&opened), &seen, at(2_011));
        assert_eq!(
            next.handover.is_none(),
            ends,
            "{serial} {issuer} {not_before} {issuers:?}"
        );
    }
}

/// A renewal was issued, and the machine cannot fetch it with what is refused.
#[test]
fn b2_a_certificate_that_is_not_in_use_yet_does_not_hide_that_the_one_in_use_is_refused() {
    let machine = Machine::new();
    let record = Record {
        seed: "b".into(),
        uid: "uid-b".into(),
        certificate: Some(Certificate {
            issuer_key: Some("old".into()),
            ..certificate("01")
        }),
        ..machine.record()
    };
    let refused = Issuers {
        refused: ["old".to_owned()].into(),
        ..Issuers::none()
    };
    let report = machine.report("b", "01", Order::default(), 1_990);
    let issued = Certificate {
        issuer_key: Some("new".into()),
        not_before: at(10),
        ..certificate("02")
    };
    let seen = Seen {
        issuers: &refused,
        certificate: Some(&issued),
        ..machine.seen(Some(&report))
    };
    let opened = advance(Some(&record), &seen, at(2_000));
    assert!(opened.handover.is_some() && opened.certificate.as_ref() == Some(&issued));
    let used = machine.report("b", "02", Order::default(), 2_001);
    let seen = Seen {
        report: Some(&used),
        ..seen
    };
    assert_eq!(advance(Some(&opened), &seen, at(2_002)).handover, None);
}

#[test]
fn a_report_that_somebody_put_back_says_nothing() {
    let (machine, now) = (Machine::new(), at(10_000));
    let made = |second| machine.report("b", "01", Order::default(), second);
    let (old, new) = (made(9_000), made(9_900));
    assert_eq!(latest(None, old.clone(), now), (old.clone(), true));
    assert_eq!(latest(Some(&old), new.clone(), now), (new.clone(), true));
    assert_eq!(latest(Some(&new), old, now), (new.clone(), false));
    // Of another key: the one before counts no more.
    let other = Machine::new().report("b", "01", Order::default(), 9_000);
    assert_eq!(latest(Some(&new), other.clone(), now), (other, true));
    // By a clock that is far ahead: neither remembered, nor instead of a good one.
    let future = made(20_000);
    assert_eq!(latest(None, future.clone(), now), (future.clone(), false));
    assert_eq!(latest(Some(&new), future, now), (new, false));
}

#[test]
fn a_seed_that_stands_aside_writes_nothing_over_the_others_word() {
    let machine = Machine::new();
    let open = advance(Some(&machine.record()), &machine.seen(None), at(2_000));
    assert!(speaks(&open, None));
    assert!(!speaks(&open, Some(Order::default())));
    assert!(!speaks(&machine.record(), None));
}
