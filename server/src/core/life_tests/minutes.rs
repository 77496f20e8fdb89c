//! The life of both kinds of credential, looked at each minute: allotted at 0, extended in place until somebody comes in,
//! over after a day at the latest, revoked with its first use.

use super::*;

const DAY: i64 = 24 * 60;

/// The minute of the end, as it should stand when it is looked at each minute.
fn end_of(kind: CredentialKind, minute: i64) -> i64 {
    match kind {
        CredentialKind::ServiceAccount => DAY,
        // Sixty minutes from the last extension; one is due each half hour.
        CredentialKind::Token => (minute / 30 * 30 + 60).min(DAY),
    }
}

#[test]
fn a1_each_minute_of_a_day_has_the_end_that_it_should_and_it_is_the_same_credential() {
    let firewall = name();
    for kind in [CredentialKind::Token, CredentialKind::ServiceAccount] {
        let seen = Seen {
            kind,
            ..seen(&firewall)
        };
        let first = allotted(kind);
        let mut record = first.clone();
        for minute in 0..2 * DAY {
            record = advance(Some(&record), &seen, at(minute * MINUTE));
            let (now, first) = (held(&record), held(&first));
            let expected = Credential {
                expires: at(end_of(kind, minute.min(DAY - 1)) * MINUTE),
                revoked: (minute >= DAY).then(|| at(DAY * MINUTE)),
                ..first
            };
            assert_eq!(now, expected, "{kind:?}, minute {minute}");
        }
    }
}

#[test]
fn a1_whenever_somebody_comes_in_it_is_revoked_at_that_minute_and_for_good() {
    let firewall = name();
    let (certificate, good) = (certificate("1f", 1), report("1f"));
    for kind in [CredentialKind::Token, CredentialKind::ServiceAccount] {
        let waiting = Seen {
            kind,
            ..seen(&firewall)
        };
        let came = Seen {
            kind,
            report: Some(&good),
            certificate: Some(&certificate),
            ..seen(&firewall)
        };
        let mut record = Record {
            keys: pinned(&key()),
            ..allotted(kind)
        };
        for minute in 0..DAY {
            record = advance(Some(&record), &waiting, at(minute * MINUTE));
            let before = held(&record);
            assert_eq!(before.revoked, None, "{kind:?}, minute {minute}");
            let mut used = advance(Some(&record), &came, at(minute * MINUTE));
            let after = Credential {
                revoked: Some(at(minute * MINUTE)),
                ..before
            };
            for later in [0, 1, 59, 60, DAY] {
                used = advance(Some(&used), &came, at((minute + later) * MINUTE));
                assert_eq!(held(&used), after, "{kind:?}, minute {minute} and {later} more");
            }
        }
    }
}

#[test]
fn a1_a_token_that_was_armed_again_has_its_hour_and_not_a_minute_more() {
    let firewall = name();
    let spent = Record {
        credential: Some(Credential {
            revoked: Some(at(DAY * MINUTE)),
            ..held(&allotted(CredentialKind::Token))
        }),
        ..allotted(CredentialKind::Token)
    };
    let word = format!("{UID}/again");
    let seen = Seen {
        rebootstrap: Some(&word),
        ..seen(&firewall)
    };
    let armed = 2 * DAY;
    let mut record = spent.clone();
    for minute in 0..120 {
        record = advance(Some(&record), &seen, at((armed + minute) * MINUTE));
        let now = held(&record);
        assert_eq!(now.epoch, held(&spent).epoch, "it is the token of the userdata");
        assert_eq!(now.expires, at((armed + 60) * MINUTE), "minute {minute}");
        let revoked = (minute >= 60).then(|| at((armed + 60) * MINUTE));
        assert_eq!(now.revoked, revoked, "minute {minute}");
    }
}
