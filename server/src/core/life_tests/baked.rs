//! Tests of a credential whose token stands in the userdata since before there was a Firewall.

use super::*;

const BAKED: u32 = 1_790_000_000;

fn baked(firewall: &FirewallName) -> Seen<'_> {
    Seen {
        baked: Some(BAKED),
        ..seen(firewall)
    }
}

fn record(kind: CredentialKind, revoked: Option<Timestamp>, keys: Keys) -> Record {
    let credential = Credential {
        revoked,
        ..held(&allotted(kind))
    };
    Record {
        credential: Some(credential),
        keys,
        ..allotted(kind)
    }
}

#[test]
fn a1_the_first_credential_is_the_one_that_the_userdata_holds() {
    let firewall = name();
    for kind in [CredentialKind::Token, CredentialKind::ServiceAccount] {
        let seen = Seen {
            kind,
            ..baked(&firewall)
        };
        let first = advance(None, &seen, at(7));
        assert_eq!((held(&first).epoch, held(&first).kind), (BAKED, kind));
        assert_eq!(advance(Some(&first), &seen, at(8)).credential, first.credential);
    }
}

#[test]
fn d1_where_nobody_came_in_with_the_one_before_the_new_userdatas_counts() {
    let firewall = name();
    for revoked in [None, Some(at(5))] {
        let before = record(CredentialKind::Token, revoked, Keys::default());
        let next = held(&advance(Some(&before), &baked(&firewall), at(6)));
        assert_eq!((next.epoch, next.allocated, next.revoked), (BAKED, at(6), None));
    }
    // One older than what stands re-arms nothing.
    let mut newer = record(CredentialKind::Token, Some(at(5)), Keys::default());
    newer.credential.as_mut().unwrap().epoch = BAKED + 1;
    let next = advance(Some(&newer), &baked(&firewall), at(6));
    assert_eq!(next.credential, newer.credential);
}

#[test]
fn a10_a_userdata_opens_nothing_for_a_firewall_whose_key_is_known_or_contested() {
    let firewall = name();
    let other = PrivateKey::generate().unwrap().public();
    let two = pinned(&key()).prove(at(2));
    for keys in [pinned(&key()), two] {
        let before = record(CredentialKind::Token, Some(at(5)), keys);
        let next = advance(Some(&before), &baked(&firewall), at(6));
        assert_eq!(next.credential, before.credential);
    }
    let contested = Keys {
        candidates: vec![key(), other],
        ..Keys::default()
    };
    assert!(contested.contested());
    let before = record(CredentialKind::Token, None, contested);
    let next = advance(Some(&before), &baked(&firewall), at(6));
    assert_eq!(next.credential, before.credential);
}

#[test]
fn a1_a_service_accounts_secret_that_stands_is_not_taken_from_under_its_token() {
    let firewall = name();
    let seen = Seen {
        kind: CredentialKind::ServiceAccount,
        ..baked(&firewall)
    };
    let stands = record(CredentialKind::ServiceAccount, None, Keys::default());
    assert_eq!(advance(Some(&stands), &seen, at(6)).credential, stands.credential);
    let over = record(CredentialKind::ServiceAccount, Some(at(5)), Keys::default());
    assert_eq!(held(&advance(Some(&over), &seen, at(6))).epoch, BAKED);
}

#[test]
fn d2_an_id_that_was_taken_since_moves_it_on() {
    let firewall = name();
    let first = advance(None, &baked(&firewall), at(7));
    let taken = Seen {
        id_taken: true,
        ..baked(&firewall)
    };
    let next = advance(Some(&first), &taken, at(8));
    assert_eq!(held(&next).epoch, BAKED + 1);
    assert_eq!(
        advance(Some(&next), &baked(&firewall), at(9)).credential,
        next.credential
    );
}

#[test]
fn a8_in_the_new_seed_it_is_that_of_the_new_userdata() {
    let firewall = name();
    let before = record(CredentialKind::Token, None, Keys::default());
    let moved = Seen {
        seed: "seed-b",
        uid: "uid-b",
        ..baked(&firewall)
    };
    assert_eq!(held(&advance(Some(&before), &moved, at(6))).epoch, BAKED);
}
