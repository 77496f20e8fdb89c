use super::*;
use crate::key::{PrivateKey, PublicKey};

fn key() -> PublicKey {
    PrivateKey::generate().unwrap().public()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pinned(keys: &Keys, key: &PublicKey) -> Keys {
    match keys.present(key, at(1)) {
        KeyVerdict::Pin(keys) => keys,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_key_is_pinned_and_comes_again() {
    let first = key();
    let keys = pinned(&Keys::default(), &first);
    assert_eq!(keys.pin.as_ref().unwrap().thumbprint, first.thumbprint());
    assert_eq!(keys.present(&first, at(2)), KeyVerdict::Pinned);
}

#[test]
fn a_second_key_before_proof_of_use_pins_neither() {
    let (first, second) = (key(), key());
    let KeyVerdict::Contested(keys) = pinned(&Keys::default(), &first).present(&second, at(2)) else {
        panic!("not contested")
    };
    assert!(keys.contested() && keys.pin.is_none());
    // Neither the first nor the second gets in any more, nor a third.
    for key in [&first, &second, &key()] {
        assert!(matches!(keys.present(key, at(3)), KeyVerdict::Contested(_)));
    }
}

#[test]
fn after_proof_of_use_another_key_is_refused() {
    let (first, second) = (key(), key());
    let keys = pinned(&Keys::default(), &first).prove(at(2));
    assert_eq!(keys.present(&second, at(3)), KeyVerdict::Other(first.thumbprint()));
    assert_eq!(keys.present(&first, at(3)), KeyVerdict::Pinned);
}

#[test]
fn an_operator_decides_between_two_keys() {
    let (first, second) = (key(), key());
    let KeyVerdict::Contested(keys) = pinned(&Keys::default(), &first).present(&second, at(2)) else {
        panic!("not contested")
    };
    let keys = keys.accept(&second.thumbprint(), "value", at(3));
    assert_eq!(keys.present(&second, at(4)), KeyVerdict::Pinned);
    assert_eq!(keys.present(&first, at(4)), KeyVerdict::Other(second.thumbprint()));
}

#[test]
fn a_key_that_an_operator_named_before_it_came_is_filled_in() {
    let later = key();
    let keys = Keys::default().accept(&later.thumbprint(), "value", at(1));
    assert!(keys.pin.as_ref().unwrap().key.is_none());
    assert_eq!(pinned(&keys, &later).pin.unwrap().key, Some(later));
    assert!(matches!(keys.present(&key(), at(2)), KeyVerdict::Other(_)));
}

#[test]
fn rebootstrap_lets_one_new_key_in_and_then_no_other() {
    let (old, new, third) = (key(), key(), key());
    let mut keys = pinned(&Keys::default(), &old).prove(at(2));
    keys.open_until = Some(at(100));
    assert!(
        matches!(keys.present(&new, at(100)), KeyVerdict::Other(_)),
        "the hour is over"
    );
    let KeyVerdict::Pin(keys) = keys.present(&new, at(50)) else {
        panic!("not let in")
    };
    assert_eq!(keys.present(&new, at(51)), KeyVerdict::Pinned);
    assert!(matches!(keys.present(&third, at(51)), KeyVerdict::Contested(_)));
    assert!(matches!(
        keys.prove(at(52)).present(&third, at(53)),
        KeyVerdict::Other(_)
    ));
}

#[test]
fn rebootstrap_of_a_firewall_that_never_came_in_lets_one_key_in_too() {
    let (first, second) = (key(), key());
    let keys = Keys {
        open_until: Some(at(100)),
        ..Keys::default()
    };
    let keys = pinned(&keys, &first);
    assert_eq!(keys.open_until, None);
    assert!(matches!(keys.present(&second, at(2)), KeyVerdict::Contested(_)));
}

#[test]
fn an_unproved_pin_contends_although_the_candidates_were_forgotten() {
    let (first, second) = (key(), key());
    let keys = Keys {
        candidates: Vec::new(),
        ..pinned(&Keys::default(), &first)
    };
    let KeyVerdict::Contested(keys) = keys.present(&second, at(2)) else {
        panic!("not contested")
    };
    assert_eq!(keys.candidates, [first, second]);
}

#[test]
fn accepting_the_pinned_key_forgets_nothing_of_it() {
    let first = key();
    let keys = pinned(&Keys::default(), &first)
        .prove(at(2))
        .accept(&first.thumbprint(), "value", at(3));
    let pin = keys.pin.unwrap();
    assert_eq!((pin.key, pin.proven, pin.accepted), (Some(first), Some(at(2)), true));
}

#[test]
fn a_flood_of_keys_does_not_grow_the_record() {
    let mut keys = Keys::default();
    for _ in 0..50 {
        keys = match keys.present(&key(), at(1)) {
            KeyVerdict::Pin(keys) | KeyVerdict::Contested(keys) => keys,
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(keys.candidates.len(), keys::CANDIDATES_MAX);
}

#[test]
fn a_record_is_read_as_written_and_another_version_is_refused() {
    let record = Record {
        version: VERSION,
        uid: "u".into(),
        seed: "s".into(),
        keys: pinned(&Keys::default(), &key()),
        ..Record::default()
    };
    assert_eq!(Record::read(&record.write().unwrap()).unwrap(), record);
    assert!(matches!(
        Record::read(br#"{"version":2}"#),
        Err(RecordError::Version(2))
    ));
    for bad in [&b""[..], b"{}", b"[]", br#"{"version":1}"#, br#"{"version":"1"}"#] {
        assert!(matches!(Record::read(bad), Err(RecordError::Form(_))));
    }
}
