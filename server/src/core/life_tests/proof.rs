//! Proof of use: which report ends the bootstrap, and which certificate is on record for it.

use super::*;

#[test]
fn use_is_proved_by_serial_seed_and_firewall_and_then_the_credential_goes() {
    let firewall = name();
    let other = FirewallName::parse("fw-2").unwrap();
    let certificate = certificate("1f", 1);
    let record = Record {
        keys: pinned(&key()),
        ..allotted(CredentialKind::Token)
    };
    let good = report("1f");
    let wrong = [
        report("20"),
        Report {
            certificate: None,
            ..report("1f")
        },
        Report {
            seed: "seed-b".into(),
            ..report("1f")
        },
        Report {
            firewall: other,
            ..report("1f")
        },
    ];
    for report in &wrong {
        let seen = Seen {
            report: Some(report),
            certificate: Some(&certificate),
            ..seen(&firewall)
        };
        let next = advance(Some(&record), &seen, at(60));
        assert!(!next.proven() && held(&next).revoked.is_none(), "{report:?}");
    }
    let unissued = Seen {
        report: Some(&good),
        ..seen(&firewall)
    };
    assert!(
        !advance(Some(&record), &unissued, at(60)).proven(),
        "no certificate is known"
    );

    let seen = Seen {
        report: Some(&good),
        certificate: Some(&certificate),
        ..seen(&firewall)
    };
    let next = advance(Some(&record), &seen, at(60));
    assert_eq!(next.keys.pin.as_ref().unwrap().proven, Some(at(60)));
    assert_eq!(held(&next).revoked, Some(at(60)));
    assert_eq!(advance(Some(&next), &seen, at(90)), next, "the proof keeps its date");
    let unpinned = advance(Some(&allotted(CredentialKind::Token)), &seen, at(60));
    assert!(
        !unpinned.proven() && held(&unpinned).revoked.is_none(),
        "there is no key to prove"
    );
}

#[test]
fn the_newest_certificate_stays_on_record() {
    let firewall = name();
    let with = |record: &Record, certificate: Option<&Certificate>| {
        advance(
            Some(record),
            &Seen {
                certificate,
                ..seen(&firewall)
            },
            at(60),
        )
        .certificate
        .map(|c| c.serial)
    };
    let (old, new) = (certificate("1", 10), certificate("2", 20));
    let record = Record {
        certificate: Some(new.clone()),
        ..allotted(CredentialKind::Token)
    };
    assert_eq!(with(&allotted(CredentialKind::Token), Some(&old)).as_deref(), Some("1"));
    assert_eq!(
        with(
            &Record {
                certificate: Some(old.clone()),
                ..record.clone()
            },
            Some(&new)
        )
        .as_deref(),
        Some("2")
    );
    assert_eq!(with(&record, Some(&old)).as_deref(), Some("2"));
    assert_eq!(
        with(&record, None).as_deref(),
        Some("2"),
        "requests are deleted, what was issued is still known"
    );
}
