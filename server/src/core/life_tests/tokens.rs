//! Tokens in the place of certificates: when a firewall has them, and until when.

use super::*;

const ISSUER: &str = "system:serviceaccount:firewall-access:fw-1";

fn working(issuer: &str, serial: &str, since: i64) -> Record {
    Record {
        seed: SEED.into(),
        uid: UID.into(),
        keys: pinned(&key()).prove(at(2)),
        certificate: Some(Certificate {
            issuer: issuer.into(),
            ..certificate(serial, since)
        }),
        ..Record::default()
    }
}

fn uses(issuer: &str, serial: &str, since: i64) -> Report {
    Report {
        certificate: Some(report::Certificate {
            serial: serial.into(),
            not_before: at(since),
            not_after: at(since + 24 * HOUR),
            issuer: issuer.into(),
        }),
        time: at(since),
        ..report(serial)
    }
}

fn look(record: &Record, mode: Mode, report: Option<&Report>, now: i64) -> Record {
    let firewall = name();
    let seen = Seen {
        mode,
        report,
        ..seen(&firewall)
    };
    advance(Some(record), &seen, at(now))
}

#[test]
fn b6_tokens_stand_while_they_are_wanted_and_until_the_firewall_has_left_them() {
    let record = look(&working("CN=ca", "01", 1_000), Mode::Certificate, None, 2_000);
    assert!(!record.tokens, "nobody wants any");
    let record = look(&record, Mode::Token, None, 2_000);
    assert!(record.tokens);
    let token = uses(ISSUER, "t1", 2_000);
    let record = look(&record, Mode::Token, Some(&token), 2_010);
    assert_eq!(record.certificate.as_ref().unwrap().serial, "t1");
    // The flag goes back: as long as it works with a token, and after a certificate was issued, it keeps them.
    let record = look(&record, Mode::Certificate, Some(&token), 2_020);
    assert!(record.tokens && record.tokens_until.is_none());
    // The signer backdates by five minutes.
    let record = Record {
        certificate: Some(certificate("02", 2_030 - 5 * MINUTE)),
        ..record
    };
    for report in [None, Some(&token), Some(&uses("CN=ca", "01", 1_000))] {
        let next = look(&record, Mode::Certificate, report, 2_040);
        assert!(next.tokens && next.tokens_until.is_none(), "{report:?}");
    }
    // Once it says that it works with that certificate, they end, in a while.
    let back = uses("CN=ca", "02", 2_030 - 5 * MINUTE);
    let record = look(&record, Mode::Certificate, Some(&back), 2_050);
    let until = at(2_050) + TOKENS_LEFT;
    assert!(record.tokens && record.tokens_until == Some(until));
    assert_eq!(recheck_at(&record), Some(until));
    assert!(look(&record, Mode::Certificate, Some(&back), until.as_second() - 1).tokens);
    let over = look(&record, Mode::Certificate, Some(&back), until.as_second());
    assert!(!over.tokens && over.tokens_until.is_none());
    // And if they are wanted again meanwhile, nothing ends.
    let again = look(&record, Mode::Token, Some(&back), until.as_second());
    assert!(again.tokens && again.tokens_until.is_none());
}

#[test]
fn b6_which_of_a_token_and_a_certificate_came_later_is_known_though_the_signer_backdates() {
    let record = Record {
        tokens: true,
        ..working(ISSUER, "t1", 2_000)
    };
    let firewall = name();
    let issued = certificate("02", 2_010 - 5 * MINUTE);
    let seen = Seen {
        certificate: Some(&issued),
        ..seen(&firewall)
    };
    let next = advance(Some(&record), &seen, at(2_020));
    assert_eq!(next.certificate.unwrap().serial, "02");
    let earlier = certificate("01", 1_990 - 5 * MINUTE);
    let seen = Seen {
        certificate: Some(&earlier),
        ..seen
    };
    assert_eq!(
        advance(Some(&record), &seen, at(2_020)).certificate.unwrap().serial,
        "t1"
    );
}

#[test]
fn b6_a_token_that_the_firewall_renewed_is_known_by_its_report_of_this_seed_only() {
    let record = Record {
        tokens: true,
        ..working(ISSUER, "t1", 2_000)
    };
    let of = |record: &Record, report: &Report| {
        let next = look(record, Mode::Token, Some(report), 3_010);
        next.certificate.unwrap().serial
    };
    let renewed = uses(ISSUER, "t2", 3_000);
    assert_eq!(of(&record, &renewed), "t2");
    let elsewhere = Report {
        seed: "seed-b".into(),
        ..renewed.clone()
    };
    assert_eq!(of(&record, &elsewhere), "t1");
    assert_eq!(of(&record, &uses(ISSUER, "t0", 1_000)), "t1", "put back by somebody");
    assert_eq!(
        of(&record, &uses("CN=ca", "03", 3_000)),
        "t1",
        "the requests tell of certificates"
    );
    // Its first report came after its first renewal: it was opened with the pinned key.
    let late = Record {
        keys: pinned(&key()),
        ..record.clone()
    };
    let next = look(&late, Mode::Token, Some(&renewed), 3_010);
    assert_eq!(next.certificate.as_ref().unwrap().serial, "t2");
    assert!(next.proven());
    let nobody = Record {
        keys: Keys::default(),
        ..record
    };
    assert_eq!(of(&nobody, &renewed), "t1", "nobody's key is pinned");
}

#[test]
fn b6_tokens_stay_where_an_old_report_had_said_that_they_were_left() {
    let back = Record {
        tokens: true,
        tokens_until: Some(at(2_100)),
        ..working(ISSUER, "t1", 2_000)
    };
    let uses_one = uses(ISSUER, "t1", 2_000);
    let next = look(&back, Mode::Certificate, Some(&uses_one), 2_200);
    assert!(next.tokens && next.tokens_until.is_none(), "it works with a token");
}

#[test]
fn a_name_is_taken_until_the_last_certificate_of_it_ends_whatever_came_after() {
    let record = Record {
        tokens: true,
        ..working(ISSUER, "t1", 2_000)
    };
    let firewall = name();
    let end = at(2_000 + 30 * 24 * HOUR);
    let beside_a_token = Seen {
        mode: Mode::Token,
        certified_until: Some(end),
        ..seen(&firewall)
    };
    let next = advance(Some(&record), &beside_a_token, at(2_010));
    assert_eq!(next.name_taken_until(), Some(end));
    // Its request is gone; the certificate is not.
    let later = advance(
        Some(&next),
        &Seen {
            certified_until: None,
            ..beside_a_token
        },
        at(9_000),
    );
    assert_eq!(later.name_taken_until(), Some(end));
    // Of a token alone nothing is left once its account is.
    assert_eq!(record.name_taken_until(), None);
}
