//! The decision table: for each field of a good request, what every wrong value leads to.

use std::fs;
use std::path::Path;

use super::*;

#[test]
fn a_good_request_is_reviewed_and_then_approved_whoever_of_ours_makes_it() {
    let table = [
        (By::Token, "firewallcontroller"),
        (By::ServiceAccount, "firewallcontroller"),
        (By::Certificate, "selffirewallcontroller"),
    ];
    for (by, subresource) in table {
        let good = World::good(by);
        assert_eq!(
            good.clone().with(|w| w.review = None).outcome(),
            Outcome::Review(subresource),
            "{by:?}"
        );
        let keys = (by != By::Certificate).then(|| Keys {
            // At the time of the decision, not of the request.
            pin: Some(Pin {
                since: at(110),
                ..pinned(&MACHINE).pin.unwrap()
            }),
            ..pinned(&MACHINE)
        });
        let record = keys.map(|keys| Change {
            namespace: NAMESPACE.into(),
            firewall: name(NAME),
            before: Keys::default(),
            keys,
        });
        let approve = Decision::Approve {
            namespace: NAMESPACE.into(),
            firewall: name(NAME),
            record,
        };
        assert_eq!(good.decide(), approve, "{by:?}");
    }
}

#[test]
fn a_bootstrap_credential_that_does_not_stand_any_more_waits() {
    for by in [By::Token, By::ServiceAccount] {
        let spent = |change: fn(&mut World)| World::good(by).with(change).outcome();
        let waits = Outcome::Retry(Reason::CredentialSpent);
        assert_eq!(
            spent(|w| w.firewalls[0].record.as_mut().unwrap().credential = None),
            waits
        );
        assert_eq!(
            spent(|w| {
                let record = w.firewalls[0].record.as_mut().unwrap();
                record.credential.as_mut().unwrap().revoked = Some(at(90));
            }),
            waits
        );
        // Another kind stands by now.
        assert_eq!(
            spent(|w| {
                w.kind = match w.kind {
                    CredentialKind::Token => CredentialKind::ServiceAccount,
                    CredentialKind::ServiceAccount => CredentialKind::Token,
                }
            }),
            waits
        );
    }
    // Whoever renews needs none.
    let renewal = World::good(By::Certificate).with(|w| w.firewalls[0].record.as_mut().unwrap().credential = None);
    assert_eq!(renewal.outcome(), Outcome::Approve);
}

#[test]
fn a_review_that_says_no_is_asked_again_later() {
    for by in BY_ALL {
        let refused = World::good(by).with(|w| w.review = Some(Review::Refused("no RBAC".into())));
        let Decision::Retry {
            reason: Reason::NotAllowed,
            why,
            record: None,
            ..
        } = refused.decide()
        else {
            panic!("{by:?}: {:?}", refused.decide())
        };
        assert!(why.contains("no RBAC"));
    }
}

#[test]
fn another_signer_is_not_ours_to_deny() {
    let others = [
        "",
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
        "kubernetes.io/legacy-unknown",
        "kubernetes.io/kube-apiserver-client ",
        "Kubernetes.io/kube-apiserver-client",
        "example.com/signer",
    ];
    for by in BY_ALL {
        for signer in others {
            let outcome = World::good(by).with(|w| w.signer = signer.into()).outcome();
            assert_eq!(outcome, Outcome::Ignore(Some(Reason::OtherSigner)), "{by:?} {signer:?}");
        }
    }
}

#[test]
fn a_foreign_requester_is_ignored_and_named_only_if_it_claims_our_names() {
    let foreign = World::good(By::Token).with(|w| w.username = "eve".into());
    assert_eq!(foreign.outcome(), Outcome::Ignore(Some(Reason::ForeignRequester)));
    let another = stored("common-name-wrong-prefix");
    assert!(
        !csr::claims_our_names(b"no request") && csr::claims_our_names(&another),
        "that file claims our organization"
    );
    assert_eq!(
        foreign.clone().with(|w| w.pem = b"no request".to_vec()).outcome(),
        Outcome::Ignore(None)
    );
    assert_eq!(
        foreign.with(|w| w.pem = another).outcome(),
        Outcome::Ignore(Some(Reason::ForeignRequester))
    );
}

#[test]
fn a_user_name_of_ours_without_our_group_is_foreign() {
    for by in BY_ALL {
        let good = World::good(by);
        for groups in [
            vec![],
            vec!["system:bootstrappers"],
            vec!["system:authenticated"],
            vec!["system:masters"],
        ] {
            let groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
            let outcome = good.clone().with(|w| w.groups = groups.clone()).outcome();
            assert_eq!(
                outcome,
                Outcome::Ignore(Some(Reason::ForeignRequester)),
                "{by:?} {groups:?}"
            );
        }
        for other in BY_ALL.into_iter().filter(|other| *other != by) {
            let outcome = good.clone().with(|w| w.groups = World::good(other).groups).outcome();
            assert_eq!(
                outcome,
                Outcome::Ignore(Some(Reason::ForeignRequester)),
                "{by:?} in the group of {other:?}"
            );
        }
    }
}

#[test]
fn our_groups_without_a_user_name_of_ours_are_foreign() {
    let groups: Vec<String> = BY_ALL.into_iter().flat_map(|by| World::good(by).groups).collect();
    let names = [
        "",
        NAME,
        "admin",
        "system:node:fw-1",
        "system:serviceaccount:default:fw-1",
        "system:serviceaccount:firewall-bootstrap-x:fw-1",
        "fw.metal-stack.io",
        "x:fw.metal-stack.io:fw-1",
        "System:bootstrap:abc123",
    ];
    for username in names {
        assert_eq!(Requester::of(username, &groups), Requester::Foreign, "{username:?}");
    }
    assert_eq!(
        Requester::of("system:bootstrap:abc123", &groups),
        Requester::Token("abc123".into())
    );
}

/// Every stored request, by name of the file: what is not good in the bytes is denied to ours, ignored of others.
#[test]
fn each_request_of_the_corpus_is_denied_to_ours_and_ignored_of_others() {
    let mut count = 0;
    for (file, pem) in corpus() {
        let good = file.starts_with("good-");
        for by in BY_ALL {
            let ours = World::good(by).with(|w| w.pem.clone_from(&pem));
            // A well-formed one is for a firewall of another name.
            let denied = if good {
                Reason::NotYours
            } else {
                Reason::MalformedRequest
            };
            assert_eq!(ours.outcome(), Outcome::Deny(denied), "{file} {by:?}");
            let foreign = ours.with(|w| w.groups.clear());
            assert!(matches!(foreign.outcome(), Outcome::Ignore(_)), "{file} {by:?}");
        }
        count += 1;
    }
    assert!(count > 60, "the corpus was not found: {count} files");
}

#[test]
fn a_request_of_the_corpus_that_is_good_is_approved_for_its_firewall() {
    let pem = stored("good-plain");
    let csr = csr::read(&pem).unwrap();
    let world = World::good(By::Token).with(|w| {
        w.pem = pem;
        w.token_owner = Some((NAMESPACE.into(), csr.firewall));
    });
    assert_eq!(world.outcome(), Outcome::Approve);
}

#[test]
fn usages_are_exactly_one_of_the_two_sets_in_any_order() {
    let (d, c, k) = ("digital signature", "client auth", "key encipherment");
    let good: [&[&str]; 8] = [
        &[d, c],
        &[c, d],
        &[d, k, c],
        &[d, c, k],
        &[k, d, c],
        &[k, c, d],
        &[c, d, k],
        &[c, k, d],
    ];
    let wrong: [&[&str]; 14] = [
        &[],
        &[d],
        &[c],
        &[k],
        &[k, c],
        &[d, k],
        &[d, d],
        &[d, c, c],
        &[d, c, k, k],
        &[d, c, "server auth"],
        &[d, c, k, "any"],
        &[d, "server auth"],
        &["Digital Signature", c],
        &[d, "client auth "],
    ];
    for by in BY_ALL {
        let of = |usages: &[&str]| {
            World::good(by)
                .with(|w| w.usages = usages.iter().map(ToString::to_string).collect())
                .outcome()
        };
        for usages in good {
            assert_eq!(of(usages), Outcome::Approve, "{by:?} {usages:?}");
        }
        for usages in wrong {
            assert_eq!(of(usages), Outcome::Deny(Reason::WrongUsages), "{by:?} {usages:?}");
        }
    }
}

#[test]
fn a_lifetime_is_asked_and_lies_between_ten_minutes_and_a_year_and_a_day() {
    const DAY: i32 = 24 * 3600;
    for by in BY_ALL {
        let of = |expiration| World::good(by).with(|w| w.expiration = expiration).outcome();
        for good in [600, 601, 3600, DAY, 365 * DAY, 366 * DAY] {
            assert_eq!(of(Some(good)), Outcome::Approve, "{by:?} {good}");
        }
        let wrong = [
            None,
            Some(i32::MIN),
            Some(-600),
            Some(0),
            Some(599),
            Some(366 * DAY + 1),
            Some(i32::MAX),
        ];
        for wrong in wrong {
            assert_eq!(of(wrong), Outcome::Deny(Reason::WrongExpiration), "{by:?} {wrong:?}");
        }
    }
}

#[test]
fn a_requester_that_belongs_to_another_firewall_is_denied() {
    let other = "fw-2";
    let token = World::good(By::Token).with(|w| w.token_owner = Some((NAMESPACE.into(), name(other))));
    let account = World::good(By::ServiceAccount)
        .with(|w| w.username = format!("system:serviceaccount:firewall-bootstrap:{other}"));
    let certificate = World::good(By::Certificate).with(|w| w.username = name(other).user());
    for world in [token, account, certificate] {
        assert_eq!(world.outcome(), Outcome::Deny(Reason::NotYours), "{}", world.username);
    }
    // The other way round: its own name, another firewall in the bytes.
    for by in BY_ALL {
        for asked in [other, "fw-11", "fw-", "fw"] {
            if FirewallName::parse(asked).is_ok() {
                let outcome = World::good(by).with(|w| w.pem = pem(asked, &MACHINE)).outcome();
                assert_eq!(outcome, Outcome::Deny(Reason::NotYours), "{by:?} asks for {asked}");
            }
        }
    }
    for username in [
        "system:serviceaccount:firewall-bootstrap:",
        "fw.metal-stack.io:",
        "fw.metal-stack.io:fw-1:x",
    ] {
        let by = if username.starts_with("system") {
            By::ServiceAccount
        } else {
            By::Certificate
        };
        let outcome = World::good(by).with(|w| w.username = username.into()).outcome();
        assert_eq!(outcome, Outcome::Deny(Reason::NotYours), "{username}");
    }
}

#[test]
fn a_token_that_belongs_to_nobody_known_waits() {
    let unknown = World::good(By::Token).with(|w| w.token_owner = None);
    assert_eq!(unknown.outcome(), Outcome::Retry(Reason::FactsMissing));
}

#[test]
fn a_firewall_that_is_missing_deleted_or_without_a_record_is_waited_for() {
    for by in BY_ALL {
        let of = |change: fn(&mut World)| World::good(by).with(change).outcome();
        assert_eq!(
            of(|w| w.firewalls.clear()),
            Outcome::Retry(Reason::FirewallUnknown),
            "{by:?}"
        );
        assert_eq!(
            of(|w| w.firewalls[0].deleting = true),
            Outcome::Retry(Reason::FirewallDeleted),
            "{by:?}"
        );
        assert_eq!(
            of(|w| w.firewalls[0].record = None),
            Outcome::Retry(Reason::FactsMissing),
            "{by:?}"
        );
    }
}

/// Namespace, created, has a record; the name belongs to the first of each row, wherever it stands in the list.
#[test]
fn of_two_firewalls_of_one_name_the_one_on_record_has_it_else_the_older() {
    type Row = (&'static str, i64, bool);
    let table: [(Row, Row); 4] = [
        (("shoot--a", 9, true), ("shoot--b", 1, false)),
        (("shoot--a", 1, true), ("shoot--b", 9, true)),
        (("shoot--a", 1, false), ("shoot--b", 9, false)),
        // Not even the API server's clock tells these apart: the answer only has to be the same each time.
        (("shoot--a", 5, true), ("shoot--b", 5, true)),
    ];
    for (first, second) in table {
        for order in [[first, second], [second, first]] {
            let firewalls: Vec<_> = order
                .iter()
                .map(|&(namespace, created, on_record)| Standing {
                    namespace: namespace.into(),
                    uid: format!("uid-{namespace}"),
                    created: at(created),
                    deleting: false,
                    record: on_record.then(|| record(Keys::default())),
                })
                .collect();
            let of_token = |namespace: &str| {
                World::good(By::Token).with(|w| {
                    w.firewalls.clone_from(&firewalls);
                    w.token_owner = Some((namespace.into(), name(NAME)));
                })
            };
            let (has_it, has_not) = (of_token(first.0), of_token(second.0));
            assert_eq!(has_not.outcome(), Outcome::Retry(Reason::NameTaken), "{order:?}");
            let expected = if first.2 {
                Outcome::Approve
            } else {
                Outcome::Retry(Reason::FactsMissing)
            };
            assert_eq!(has_it.outcome(), expected, "{order:?}");
            assert!(
                has_it.change().is_none_or(|change| change.namespace == first.0),
                "{order:?}"
            );
        }
    }
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/corpus/csr");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().to_owned(),
                fs::read(&path).unwrap(),
            )
        })
        .collect()
}

fn stored(file: &str) -> Vec<u8> {
    corpus().into_iter().find(|(name, _)| name == file).unwrap().1
}
