//! Whose word counts: authority and number, over moves, losses and two seeds.

use super::super::super::life;
use super::*;

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
fn a_firewall_that_was_deleted_for_good_leaves_nothing_but_its_numbers_to_one_of_its_name() {
    let machine = Machine::new();
    let deleted = life::leave(&machine.record(), true, at(1_500));
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
    let moved = life::leave(&machine.record(), false, at(1_500));
    assert!(advance(Some(&moved), &machine.seen(None), at(2_000)).keys.pin.is_some());
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
fn a_lost_record_does_not_bring_the_token_of_the_userdata_back() {
    let machine = Machine::new();
    let first = advance(None, &machine.seen(None), at(2_000)).credential.unwrap();
    let again = advance(None, &machine.seen(None), at(900_000)).credential.unwrap();
    assert_ne!(first.epoch, again.epoch);
}

#[test]
fn a_seed_that_stands_aside_writes_nothing_over_the_others_word() {
    let machine = Machine::new();
    let open = advance(Some(&machine.record()), &machine.seen(None), at(2_000));
    assert!(speaks(&open, None));
    assert!(!speaks(&open, Some(Order::default())));
    assert!(!speaks(&machine.record(), None));
}
