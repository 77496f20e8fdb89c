//! What a report has to say for a handover to be over.

use super::*;

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

/// Its last report may be of yesterday, and the machine dead since: what it took up then answers nothing that is asked now.
#[test]
fn an_export_is_not_answered_by_what_was_taken_up_before() {
    let machine = Machine::new();
    let order = Order {
        authority: 1_000,
        generation: 3,
    };
    let moved = Record {
        uid: "uid-b".into(),
        seed: "b".into(),
        certificate: Some(certificate("02")),
        order,
        ..machine.record()
    };
    let report = machine.report("b", "02", order, 2_000);
    let seen = Seen {
        export: Some("uid-b/1"),
        ..machine.seen(Some(&report))
    };
    let next = advance(Some(&moved), &seen, at(90_000));
    assert!(next.handover.is_some(), "{next:?}");
    let credential = next.credential.clone().unwrap();
    assert!(credential.revoked.is_none(), "{credential:?}");
    // Its word that it took up this one, or that it works since, ends it.
    let back = machine.report("b", "02", next.order, 90_010);
    let done = advance(Some(&next), &machine.seen(Some(&back)), at(90_020));
    assert!(done.handover.is_none() && done.credential.unwrap().revoked.is_some());
}
