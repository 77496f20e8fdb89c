//! Tests of what becomes of a Firewall on its way into the API server.

use contract::record::{Credential, CredentialKind};

use super::*;

const NAME: &str = "shoot--a--b-firewall-0a1b2";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn asked(create: bool) -> Asked<'static> {
    Asked {
        create,
        namespace: "shoot--a--b",
        name: NAME,
        userdata: Some("{}"),
        annotated: false,
        epoch: None,
        created: (!create).then(|| at(0)),
        deleting: false,
        served: true,
    }
}

fn credential(name: &str, epoch: Option<u32>) -> Need {
    Need::Credential(FirewallName::parse(name).unwrap(), epoch)
}

#[test]
fn one_that_is_made_gets_a_new_epoch_and_what_was_asked_a_moment_ago_the_same() {
    assert_eq!(need(&asked(true), at(0)), credential(NAME, None));
    let again = Asked {
        epoch: Some("1790000003"),
        ..asked(true)
    };
    assert_eq!(need(&again, at(5)), credential(NAME, Some(1_790_000_003)));
}

#[test]
fn a8_an_epoch_that_came_along_from_another_seed_is_none_of_ours() {
    for old in ["1789990000", "1790000900", "4294967295", "0", "-1", "x", ""] {
        let moved = Asked {
            epoch: Some(old),
            ..asked(true)
        };
        assert_eq!(need(&moved, at(0)), credential(NAME, None), "{old}");
        assert_eq!(kept(old, at(0)), None, "{old}");
        let changed = Asked {
            epoch: Some(old),
            ..asked(false)
        };
        assert_eq!(need(&changed, at(0)), Need::Nothing, "{old}");
    }
}

#[test]
fn one_that_is_changed_keeps_its_epoch_however_old_it_is() {
    let changed = Asked {
        epoch: Some("1790000001"),
        ..asked(false)
    };
    assert_eq!(need(&changed, at(86_400)), credential(NAME, Some(1_790_000_001)));
    assert_eq!(need(&asked(false), at(0)), Need::Nothing);
}

#[test]
fn what_is_of_nobody_or_going_is_left_alone() {
    for create in [true, false] {
        let other = Asked {
            served: false,
            epoch: Some("1790000001"),
            ..asked(create)
        };
        assert_eq!(need(&other, at(0)), Need::Nothing);
        let going = Asked {
            deleting: true,
            epoch: Some("1790000001"),
            ..asked(create)
        };
        assert_eq!(need(&going, at(0)), Need::Nothing);
    }
}

#[test]
fn a_name_that_no_certificate_holds_is_refused_when_it_is_made_and_never_when_it_is_changed() {
    let long = "x".repeat(60);
    for name in ["", long.as_str()] {
        let made = Asked { name, ..asked(true) };
        assert!(
            matches!(need(&made, at(0)), Need::Refuse(text) if text.contains("Firewall shoot--a--b/")),
            "{name}"
        );
        let changed = Asked {
            name,
            epoch: Some("1790000001"),
            ..asked(false)
        };
        assert_eq!(need(&changed, at(0)), Need::Nothing);
    }
}

#[test]
fn a8_the_epoch_is_after_every_one_that_there_was() {
    assert_eq!(epoch(None, None, at(0)), 1_790_000_000);
    let credential = Credential {
        kind: CredentialKind::Token,
        epoch: 1_790_000_070,
        allocated: at(0),
        expires: at(3600),
        limit: at(86_400),
        revoked: None,
    };
    let record = Record {
        credential: Some(credential),
        ..Record::default()
    };
    assert_eq!(epoch(None, Some(&record), at(0)), 1_790_000_071);
    assert_eq!(epoch(None, Some(&record), at(100)), 1_790_000_100);
    // Asked again it is the same; left within seconds it is not that of the other seed.
    let given = |epoch_of: u32| epoch(Some(epoch_of), Some(&record), at(80));
    assert_eq!(given(1_790_000_071), 1_790_000_071);
    assert_eq!(given(1_790_000_070), 1_790_000_080);
}

#[test]
fn what_is_there_already_is_no_change() {
    let done = Asked {
        epoch: Some("7"),
        annotated: true,
        userdata: Some("u"),
        ..asked(true)
    };
    assert_eq!(answer(&done, Ok((7, "u".into()))), Answer::Nothing);
    let Answer::Patch(patch) = answer(&asked(true), Ok((7, "u".into()))) else {
        panic!()
    };
    assert_eq!(patch.len(), 2);
    assert_eq!(patch[0]["value"][names::BOOTSTRAP_EPOCH], "7");
    let annotated = Asked {
        annotated: true,
        ..asked(true)
    };
    let Answer::Patch(patch) = answer(&annotated, Ok((7, "u".into()))) else {
        panic!()
    };
    assert_eq!(
        patch[0]["path"],
        "/metadata/annotations/firewall.metal-stack.io~1bootstrap-epoch"
    );
    // Of one that is changed nothing but the userdata is touched.
    let Answer::Patch(patch) = answer(&asked(false), Ok((7, "u".into()))) else {
        panic!()
    };
    assert_eq!(patch, [json!({"op": "add", "path": "/spec/userdata", "value": "u"})]);
}

#[test]
fn no_error_holds_up_a_change_and_every_one_but_foreign_userdata_a_creation() {
    let other = || Err(Problem::Other("no seed".into()));
    let foreign = || Err(Problem::NotIgnition("a script".into()));
    assert!(
        matches!(answer(&asked(true), other()), Answer::Refuse(text) if text.contains(NAME) && text.contains("no seed"))
    );
    for made in [
        answer(&asked(false), other()),
        answer(&asked(false), foreign()),
        answer(&asked(true), foreign()),
    ] {
        assert!(matches!(made, Answer::Warn(text) if text.contains(NAME)));
    }
}

fn standing(namespace: &str, created: Option<Timestamp>, epoch: Option<&str>) -> Standing {
    Standing {
        namespace: namespace.into(),
        created,
        epoch: epoch.map(str::to_owned),
    }
}

#[test]
fn d2_a_name_that_another_namespace_has_gets_nothing() {
    let made = asked(true);
    let given = || credential(NAME, Some(1));
    assert_eq!(against(given(), &made, &[]), given());
    let other = standing("shoot--c--d", Some(at(0)), None);
    let Need::Refuse(why) = against(given(), &made, &[other]) else {
        panic!("it is not refused")
    };
    assert!(why.contains("shoot--c--d") && why.contains(NAME), "{why}");
    // Of its own the API server says that it exists already, and whoever says otherwise gets nothing.
    let both = [
        standing("shoot--c--d", Some(at(0)), None),
        standing("shoot--a--b", Some(at(0)), None),
    ];
    assert_eq!(against(given(), &made, &both), Need::Nothing);
}

#[test]
fn a3_whoever_asks_about_a_change_gets_what_stands_and_no_more() {
    let changed = asked(false);
    let forged = || credential(NAME, Some(1_790_000_100));
    let of = |standing: &[Standing]| against(forged(), &changed, standing);
    let own = standing("shoot--a--b", Some(at(0)), Some("1790000002"));
    assert_eq!(of(&[own]), credential(NAME, Some(1_790_000_002)));
    assert_eq!(of(&[]), Need::Nothing);
    for none in [
        standing("shoot--a--b", Some(at(0)), None),
        standing("shoot--a--b", None, Some("1790000002")),
        standing("shoot--a--b", Some(at(9000)), Some("1790000002")),
        standing("shoot--c--d", Some(at(0)), Some("1790000002")),
    ] {
        assert_eq!(of(&[none]), Need::Nothing);
    }
    assert_eq!(against(Need::Nothing, &changed, &[]), Need::Nothing);
}

#[test]
fn an_epoch_that_the_worker_would_not_believe_is_not_given() {
    assert!(is_believed(1_790_000_000, at(0)) && is_believed(1_790_000_200, at(0)));
    assert!(!is_believed(1_790_000_400, at(0)) && !is_believed(1_789_999_000, at(0)));
}
