//! Which key a firewall gets: the first that comes with its bootstrap credential, never one of two, and with a
//! certificate its own only.

use super::*;

#[test]
fn the_pinned_key_comes_again_and_nothing_is_written() {
    for by in BY_ALL {
        for keys in [pinned(&MACHINE), pinned(&MACHINE).prove(at(50)), accepted(&MACHINE)] {
            let world = World::good(by).with_keys(keys);
            assert_eq!((world.outcome(), world.change()), (Outcome::Approve, None), "{by:?}");
        }
    }
}

#[test]
fn another_key_is_denied_once_the_pinned_one_is_proved_or_accepted() {
    for by in BY_ALL {
        for keys in [pinned(&THIEF).prove(at(50)), accepted(&THIEF)] {
            let world = World::good(by).with_keys(keys);
            let Decision::Deny {
                reason: Reason::OtherKey,
                why,
            } = world.decide()
            else {
                panic!("{by:?}: {:?}", world.decide())
            };
            // Whoever reads it has to find the machine by it.
            assert!(why.contains(MACHINE.public().thumbprint().as_str()), "{why}");
            assert!(why.contains(THIEF.public().thumbprint().as_str()), "{why}");
        }
    }
}

#[test]
fn a_second_key_before_proof_of_use_unpins_the_first() {
    for by in BY_CREDENTIAL {
        let world = World::good(by).with_keys(pinned(&MACHINE)).with_key(&THIEF);
        assert_eq!(world.outcome(), Outcome::Retry(Reason::TwoKeys), "{by:?}");
        let change = world.change().unwrap();
        assert_eq!((change.namespace.as_str(), change.firewall.as_str()), (NAMESPACE, NAME));
        assert_eq!(change.keys, contested(&[&MACHINE, &THIEF]));
    }
}

#[test]
fn contested_stays_contested_and_is_written_once() {
    for by in BY_CREDENTIAL {
        for key in [&MACHINE, &THIEF] {
            let world = World::good(by).with_keys(contested(&[&MACHINE, &THIEF])).with_key(key);
            assert_eq!(
                (world.outcome(), world.change()),
                (Outcome::Retry(Reason::TwoKeys), None),
                "{by:?}"
            );
        }
        let third = World::good(by)
            .with_keys(contested(&[&MACHINE, &THIEF]))
            .with_key(&THIRD);
        assert_eq!(third.outcome(), Outcome::Retry(Reason::TwoKeys));
        assert_eq!(third.change().unwrap().keys, contested(&[&MACHINE, &THIEF, &THIRD]));
    }
}

#[test]
fn of_two_keys_that_lie_there_together_neither_is_pinned() {
    for by in BY_CREDENTIAL {
        // Whichever of the two is looked at, and whichever came first.
        for created in [99, 101] {
            let world = World::good(by).with_sibling(created, false, &THIEF);
            assert_eq!(world.outcome(), Outcome::Retry(Reason::TwoKeys), "{by:?} {created}");
            assert_eq!(world.change().unwrap().keys, contested(&[&MACHINE, &THIEF]));
        }
        let own = World::good(by).with_sibling(101, false, &MACHINE);
        assert_eq!(own.outcome(), Outcome::Approve, "{by:?}: the same key contests nothing");
        let unreadable = World::good(by)
            .with_sibling(101, false, &THIEF)
            .with(|w| w.siblings[0].key = None);
        assert_eq!(unreadable.outcome(), Outcome::Approve, "{by:?}: it carries no key");
    }
}

#[test]
fn a_key_that_an_operator_accepted_before_it_came_is_filled_in_whatever_lies_beside() {
    let mut named = accepted(&MACHINE);
    named.pin.as_mut().unwrap().key = None;
    for by in BY_CREDENTIAL {
        let world = World::good(by)
            .with_keys(named.clone())
            .with_sibling(101, false, &THIEF);
        assert_eq!(world.outcome(), Outcome::Approve, "{by:?}");
        assert_eq!(world.change().unwrap().keys, accepted(&MACHINE));
        assert_eq!(
            world.with_key(&THIEF).outcome(),
            Outcome::Deny(Reason::OtherKey),
            "{by:?}"
        );
    }
}

#[test]
fn a_certificate_moves_no_pin_even_while_a_new_key_is_let_in() {
    let open = Keys {
        open_until: Some(at(1000)),
        ..pinned(&MACHINE).prove(at(50))
    };
    let stolen = World::good(By::Certificate).with_keys(open.clone()).with_key(&THIEF);
    assert_eq!(stolen.outcome(), Outcome::Deny(Reason::OtherKey));
    let own = World::good(By::Certificate).with_keys(open);
    assert_eq!((own.outcome(), own.change()), (Outcome::Approve, None));
}

#[test]
fn a_certificate_renews_nothing_while_no_key_is_pinned() {
    for keys in [Keys::default(), contested(&[&MACHINE, &THIEF])] {
        let world = World::good(By::Certificate).with_keys(keys);
        assert_eq!(
            (world.outcome(), world.change()),
            (Outcome::Retry(Reason::TwoKeys), None)
        );
    }
}

#[test]
fn a_rebootstrap_lets_exactly_one_new_key_in() {
    // The key of before: one that came in, one that did not, none at all.
    let before = [pinned(&THIRD).prove(at(50)), pinned(&THIRD), Keys::default()];
    for by in BY_CREDENTIAL {
        for keys in &before {
            let open = Keys {
                open_until: Some(at(111)),
                candidates: Vec::new(),
                ..keys.clone()
            };
            let world = World::good(by).with_keys(open.clone());
            assert_eq!(world.outcome(), Outcome::Approve, "{by:?} {keys:?}");
            let after = world.change().unwrap().keys;
            assert_eq!(after.pin.as_ref().unwrap().thumbprint, MACHINE.public().thumbprint());
            assert_eq!(after.open_until, None, "{by:?} {keys:?}: the window closes behind it");

            let second = World::good(by).with_keys(after).with_key(&THIEF);
            assert_eq!(second.outcome(), Outcome::Retry(Reason::TwoKeys), "{by:?} {keys:?}");
            let together = World::good(by).with_keys(open).with_sibling(101, false, &THIEF);
            assert_eq!(together.outcome(), Outcome::Retry(Reason::TwoKeys), "{by:?} {keys:?}");
        }
    }
}

#[test]
fn what_was_asked_before_a_rebootstrap_has_no_part_in_it() {
    // Two keys contended, both requests lie there still, and the machine was installed anew: an operator re-armed.
    let opened = |keys: &[&PrivateKey]| Keys {
        open_until: Some(at(1000)),
        candidates: keys.iter().map(|key| key.public()).collect(),
        ..Keys::default()
    };
    for by in BY_CREDENTIAL {
        let world = |keys: Keys, created| {
            World::good(by)
                .with_keys(keys)
                .with(|w| rearmed(w, 100))
                .with(|w| w.created = at(created))
        };
        // Neither of the old requests takes the place of the new key, alone or together.
        let old = world(opened(&[]), 99).with_key(&THIRD);
        assert_eq!(old.outcome(), Outcome::Deny(Reason::Outdated), "{by:?}");
        let both = old.with_sibling(98, false, &THIEF);
        assert_eq!(both.outcome(), Outcome::Deny(Reason::Outdated), "{by:?}");

        // The new one is let in beside them, once they are denied.
        let new = world(opened(&[]), 100);
        assert_eq!(new.outcome(), Outcome::Approve, "{by:?}");
        let beside = new.with_sibling(99, false, &THIEF);
        assert_eq!(beside.outcome(), Outcome::Retry(Reason::EarlierRequestOpen), "{by:?}");

        // Nor does an old one contest the new key when it is looked at late; one that comes later does.
        let late = world(pinned(&MACHINE), 99).with_key(&THIEF);
        assert_eq!(late.outcome(), Outcome::Deny(Reason::Outdated), "{by:?}");
        let after = world(pinned(&MACHINE), 101).with_key(&THIEF);
        assert_eq!(after.outcome(), Outcome::Retry(Reason::TwoKeys), "{by:?}");

        // The machine that was not installed anew asked with the pinned key: it is the pinned key still.
        assert_eq!(world(pinned(&MACHINE), 99).outcome(), Outcome::Approve, "{by:?}");
    }
}

#[test]
fn a_renewal_fills_in_the_key_that_an_operator_named_unseen_and_moves_nothing_else() {
    let mut named = accepted(&MACHINE);
    named.pin.as_mut().unwrap().key = None;
    named.open_until = Some(at(1000));
    let world = World::good(By::Certificate).with_keys(named.clone());
    assert_eq!(world.outcome(), Outcome::Approve);
    let filled = Keys {
        open_until: named.open_until,
        ..accepted(&MACHINE)
    };
    assert_eq!(world.change().unwrap().keys, filled);
    assert_eq!(world.with_key(&THIEF).outcome(), Outcome::Deny(Reason::OtherKey));
}

#[test]
fn a_rebootstrap_that_is_over_lets_no_key_in() {
    let over = Keys {
        open_until: Some(at(110)),
        ..pinned(&THIRD).prove(at(50))
    };
    for by in BY_CREDENTIAL {
        assert_eq!(
            World::good(by).with_keys(over.clone()).outcome(),
            Outcome::Deny(Reason::OtherKey),
            "{by:?}"
        );
    }
}

#[test]
fn the_words_for_two_keys_name_both_and_what_to_do() {
    let why = two_keys(&name(NAME), &contested(&[&MACHINE, &THIEF]));
    for key in [&MACHINE, &THIEF] {
        assert!(why.contains(key.public().thumbprint().as_str()), "{why}");
    }
    assert!(
        why.contains("2 keys") && why.contains("firewall.metal-stack.io/accept-key=<thumbprint>@<UID"),
        "{why}"
    );
}

fn accepted(key: &PrivateKey) -> Keys {
    let pin = pinned(key).pin.map(|pin| Pin { accepted: true, ..pin });
    Keys {
        pin,
        accepted: Some("value".into()),
        ..Keys::default()
    }
}

pub(super) fn rearmed(world: &mut World, second: i64) {
    let record = world.firewalls[0].record.as_mut().unwrap();
    record.rebootstrap = Some("uid-a/1".into());
    record.credential = Some(Credential {
        kind: CredentialKind::Token,
        epoch: 0,
        // Within the second, as a clock has it: a creation time has no fractions.
        allocated: at(second) + jiff::SignedDuration::from_millis(900),
        expires: at(second + 3600),
        limit: at(second + 3600),
        revoked: None,
    });
}

#[test]
fn keys_that_were_decided_on_an_older_record_are_not_written() {
    let Decision::Approve {
        record: Some(change), ..
    } = World::good(By::Token).decide()
    else {
        panic!("a first bootstrap pins its key");
    };
    assert_eq!(change.clone().onto(record(Keys::default())).unwrap().keys, change.keys);
    // Meanwhile another request of the same credential was first.
    assert!(change.onto(record(pinned(&THIEF))).is_none());
}
