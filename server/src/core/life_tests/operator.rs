//! What an operator may say of a firewall: `rebootstrap` lets one new key in, `accept-key` chooses between keys.

use super::*;

#[test]
fn rebootstrap_rearms_the_very_credential_for_one_new_key_and_one_hour() {
    let firewall = name();
    let token = Credential {
        epoch: 3,
        revoked: Some(at(5)),
        ..held(&allotted(CredentialKind::Token))
    };
    let record = Record {
        credential: Some(token),
        keys: pinned(&key()).prove(at(2)),
        ..allotted(CredentialKind::Token)
    };
    // The kind that the userdata holds, whatever the seed would give to a new firewall.
    let seen = Seen {
        kind: CredentialKind::ServiceAccount,
        rebootstrap: Some("uid-a/1"),
        ..seen(&firewall)
    };
    let now = 100 * HOUR;
    let open = advance(Some(&record), &seen, at(now));
    let end = at(now + HOUR);
    let kind = CredentialKind::Token;
    let again = Credential {
        kind,
        epoch: 3,
        allocated: at(now),
        expires: end,
        limit: end,
        revoked: None,
    };
    assert_eq!(
        (open.credential.as_ref(), open.keys.open_until),
        (Some(&again), Some(end))
    );
    assert_eq!(
        open.keys.pin, record.keys.pin,
        "the old key works on until the new one comes"
    );

    let still = advance(Some(&open), &seen, at(now + HOUR - 1));
    assert_eq!(still, open, "neither extended nor opened again by the same value");
    let closed = advance(Some(&open), &seen, at(now + HOUR));
    assert_eq!((closed.keys.open_until, held(&closed).revoked), (None, Some(end)));
    assert_eq!(
        advance(Some(&closed), &seen, at(now + 2 * HOUR)),
        closed,
        "once per value"
    );
    let next = advance(
        Some(&closed),
        &Seen {
            rebootstrap: Some("uid-a/2"),
            ..seen
        },
        at(now + 2 * HOUR),
    );
    assert_eq!(next.keys.open_until, Some(at(now + 3 * HOUR)));
}

#[test]
fn rebootstrap_with_a_service_account_closes_the_window_after_the_hour_too() {
    let firewall = name();
    let seen = Seen {
        kind: CredentialKind::ServiceAccount,
        rebootstrap: Some("uid-a/1"),
        ..seen(&firewall)
    };
    let record = Record {
        keys: pinned(&key()),
        ..allotted(CredentialKind::ServiceAccount)
    };
    let open = advance(Some(&record), &seen, at(0));
    assert_eq!(
        (open.keys.open_until, held(&open).expires),
        (Some(at(HOUR)), at(24 * HOUR))
    );
    let closed = advance(Some(&open), &seen, at(HOUR));
    assert_eq!((closed.keys.open_until, held(&closed).revoked), (None, None));
    // From here a second key is one too many again.
    assert!(matches!(
        closed.keys.present(&key(), at(HOUR)),
        KeyVerdict::Contested(_)
    ));
}

#[test]
fn rebootstrap_wipes_two_keys_off_and_the_first_new_one_closes_the_window() {
    let firewall = name();
    let record = Record {
        keys: contested(),
        ..allotted(CredentialKind::Token)
    };
    let open = advance(
        Some(&record),
        &Seen {
            rebootstrap: Some("uid-a/1"),
            ..seen(&firewall)
        },
        at(0),
    );
    assert!(!open.contested());
    let KeyVerdict::Pin(keys) = open.keys.present(&key(), at(1)) else {
        panic!("not let in")
    };
    assert_eq!(keys.open_until, None);
    assert!(matches!(keys.present(&key(), at(2)), KeyVerdict::Contested(_)));
}

#[test]
fn rebootstrap_is_obeyed_for_this_very_firewall_only() {
    let firewall = name();
    let record = Record {
        keys: pinned(&key()).prove(at(2)),
        ..allotted(CredentialKind::Token)
    };
    let untouched = advance(Some(&record), &seen(&firewall), at(9));
    for annotation in ["", "/", "1", "uid-a", "uid-a/", "uid-b/1", "/1", " uid-a/1", "uid-a@1"] {
        let seen = Seen {
            rebootstrap: Some(annotation),
            ..seen(&firewall)
        };
        assert_eq!(advance(Some(&record), &seen, at(9)), untouched, "{annotation:?}");
    }
}

#[test]
fn accept_key_pins_that_key_once_per_value() {
    let firewall = name();
    let record = Record {
        keys: contested(),
        ..allotted(CredentialKind::Token)
    };
    let chosen = record.keys.candidates[1].clone();
    let value = format!("{}@{UID}", chosen.thumbprint());
    let seen = Seen {
        accept_key: Some(&value),
        ..seen(&firewall)
    };
    let next = advance(Some(&record), &seen, at(60));
    let pin = next.keys.pin.as_ref().unwrap();
    assert!(pin.accepted && pin.key == Some(chosen) && pin.since == at(60) && next.keys.candidates.is_empty());
    assert!(held(&next).revoked.is_none(), "the machine still has to come in");

    // A rebootstrap after it brings another key; the old annotation, still there, does not bring the accepted one back.
    let keys = Keys {
        accepted: next.keys.accepted.clone(),
        ..pinned(&key())
    };
    let later = Record { keys, ..next };
    assert_eq!(advance(Some(&later), &seen, at(90)), later);
}

#[test]
fn accept_key_is_a_thumbprint_at_this_very_firewall() {
    let thumbprint = key().thumbprint();
    assert_eq!(
        accepted_key(&format!("{thumbprint}@{UID}"), UID),
        Some(thumbprint.clone())
    );
    let wrong = [
        String::new(),
        "@".into(),
        UID.into(),
        thumbprint.to_string(),
        format!("{thumbprint}@"),
        format!("{thumbprint}@uid-b"),
        format!("{thumbprint}@{UID}@"),
        format!("{thumbprint}@{UID} "),
        format!(" {thumbprint}@{UID}"),
        format!("{}@{UID}", &thumbprint.as_str()[1..]),
        format!("x@{UID}"),
        format!("@{UID}"),
    ];
    let firewall = name();
    let record = Record {
        keys: contested(),
        ..allotted(CredentialKind::Token)
    };
    for annotation in wrong {
        assert_eq!(accepted_key(&annotation, UID), None, "{annotation:?}");
        let seen = Seen {
            accept_key: Some(&annotation),
            ..seen(&firewall)
        };
        assert_eq!(advance(Some(&record), &seen, at(60)), record, "{annotation:?}");
    }
}

#[test]
fn an_annotation_that_says_nothing_to_us_is_named_with_the_form_it_should_have() {
    let name = name();
    let thumbprint = PrivateKey::generate().unwrap().public().thumbprint();
    let good = format!("{thumbprint}@{UID}");
    assert_eq!(ignored(&seen(&name)), None);
    let both = Seen {
        accept_key: Some(&good),
        rebootstrap: Some("uid-a/1"),
        ..seen(&name)
    };
    assert_eq!(ignored(&both), None);
    for accept_key in [
        format!("{thumbprint}@uid-b"),
        thumbprint.to_string(),
        format!("x@{UID}"),
        String::new(),
    ] {
        let why = ignored(&Seen {
            accept_key: Some(&accept_key),
            ..seen(&name)
        })
        .unwrap();
        assert!(
            why.contains("accept-key") && why.contains("<thumbprint>@uid-a"),
            "{why}"
        );
    }
    for rebootstrap in ["uid-b/1", "uid-a", "1"] {
        let why = ignored(&Seen {
            rebootstrap: Some(rebootstrap),
            ..seen(&name)
        })
        .unwrap();
        assert!(
            why.contains("rebootstrap") && why.contains("uid-a/<any new value>"),
            "{why}"
        );
    }
}

#[test]
fn an_annotation_that_was_taken_away_may_be_said_again() {
    let name = name();
    let (mine, other) = (
        PrivateKey::generate().unwrap().public(),
        PrivateKey::generate().unwrap().public(),
    );
    let word = format!("{}@{UID}", mine.thumbprint());
    let said = Seen {
        accept_key: Some(&word),
        ..seen(&name)
    };
    let mut record = advance(Some(&advance(None, &seen(&name), at(0))), &said, at(1));
    // Contended anew, after the operator let a new key in.
    record.keys = Keys {
        candidates: vec![mine.clone(), other],
        accepted: record.keys.accepted,
        ..Keys::default()
    };
    assert!(
        advance(Some(&record), &said, at(2)).contested(),
        "an old word decides nothing new"
    );
    let taken_away = advance(Some(&record), &seen(&name), at(3));
    assert!(taken_away.contested());
    let again = advance(Some(&taken_away), &said, at(4));
    assert_eq!(again.keys.pin.unwrap().thumbprint, mine.thumbprint());
}

#[test]
fn each_command_in_the_list_of_reasons_is_one_that_is_acted_on() {
    use contract::key::PrivateKey;
    use contract::reasons::Reason;

    let (name, thumbprint) = (name(), PrivateKey::generate().unwrap().public().thumbprint());
    let mut commands = 0;
    for reason in Reason::ALL {
        for command in reason
            .todo()
            .split('`')
            .filter(|text| text.starts_with("kubectl annotate"))
        {
            let said = command
                .replace("<thumbprint>", thumbprint.as_str())
                .replace("<UID>", "uid-a")
                .replace("<any new value>", "1");
            let said = said.strip_prefix("kubectl annotate --overwrite firewall -n <namespace> <name> ");
            let (annotation, value) = said.and_then(|said| said.split_once('=')).unwrap();
            let seen = match annotation {
                names::ACCEPT_KEY => Seen {
                    accept_key: Some(value),
                    ..seen(&name)
                },
                names::REBOOTSTRAP => Seen {
                    rebootstrap: Some(value),
                    ..seen(&name)
                },
                other => panic!("{reason}: {other}"),
            };
            assert_eq!(ignored(&seen), None, "{reason}: {command}");
            commands += 1;
        }
    }
    assert!(commands >= 5, "{commands}");
}
