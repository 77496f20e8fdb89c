//! The order of the policy: of two things that are wrong, the one that stands first in it decides; and only one request
//! of an identity is open at a time.

use super::*;

type Fault = (u8, &'static str, fn(&mut World), Outcome);

/// By place in the policy. Each leaves the others' fault as it is, so any two of different places go together.
const FAULTS: &[Fault] = &[
    (
        0,
        "foreign",
        |w| w.groups.clear(),
        Outcome::Ignore(Some(Reason::ForeignRequester)),
    ),
    (
        1,
        "signer",
        |w| w.signer = "example.com/x".into(),
        Outcome::Ignore(Some(Reason::OtherSigner)),
    ),
    (
        2,
        "bytes",
        |w| w.pem.extend(b"x\n"),
        Outcome::Deny(Reason::MalformedRequest),
    ),
    (
        3,
        "usages",
        |w| w.usages.push("server auth".into()),
        Outcome::Deny(Reason::WrongUsages),
    ),
    (
        4,
        "expiration",
        |w| w.expiration = None,
        Outcome::Deny(Reason::WrongExpiration),
    ),
    (
        5,
        "not bound",
        |w| belongs_to_another(w),
        Outcome::Deny(Reason::NotYours),
    ),
    (
        6,
        "no firewall",
        |w| w.firewalls.clear(),
        Outcome::Retry(Reason::FirewallUnknown),
    ),
    (
        8,
        "deleting",
        |w| w.firewalls.iter_mut().for_each(|f| f.deleting = true),
        Outcome::Retry(Reason::FirewallDeleted),
    ),
    (
        9,
        "no record",
        |w| w.firewalls.iter_mut().for_each(|f| f.record = None),
        Outcome::Retry(Reason::FactsMissing),
    ),
    (
        10,
        "another key",
        |w| keys(w, &pinned(&THIEF).prove(at(45))),
        Outcome::Deny(Reason::OtherKey),
    ),
    (
        10,
        "two keys",
        |w| keys(w, &contested(&[&MACHINE, &THIEF])),
        Outcome::Retry(Reason::TwoKeys),
    ),
    (
        11,
        "earlier",
        |w| earlier(w),
        Outcome::Retry(Reason::EarlierRequestOpen),
    ),
    (
        12,
        "too many",
        |w| lately(w, 8, 59),
        Outcome::Retry(Reason::TooManyRequests),
    ),
    (
        13,
        "refused",
        |w| w.review = Some(Review::Refused("no".into())),
        Outcome::Retry(Reason::NotAllowed),
    ),
];

/// Only a token is allotted to a namespace, or to nobody.
const FAULTS_OF_TOKENS: &[Fault] = &[
    (
        5,
        "nobody's token",
        |w| w.token_owner = None,
        Outcome::Retry(Reason::FactsMissing),
    ),
    (
        7,
        "name taken",
        |w| w.firewalls.iter_mut().for_each(|f| f.namespace = "b".into()),
        Outcome::Retry(Reason::NameTaken),
    ),
];

#[test]
fn of_two_faults_the_first_in_the_policy_decides() {
    for by in BY_ALL {
        let of_tokens = FAULTS_OF_TOKENS.iter().filter(|_| by == By::Token);
        let faults: Vec<&Fault> = FAULTS.iter().chain(of_tokens).collect();
        for (place, what, fault, expected) in &faults {
            assert_eq!(World::good(by).with(*fault).outcome(), *expected, "{by:?} {what}");
            for (_, later_what, later, _) in faults.iter().filter(|(later, ..)| later > place) {
                let both = World::good(by).with(*later).with(*fault);
                assert_eq!(both.outcome(), *expected, "{by:?} {what}, {later_what}");
            }
        }
    }
}

#[test]
fn nothing_that_may_still_come_right_is_denied() {
    for (_, what, fault, expected) in FAULTS.iter().chain(FAULTS_OF_TOKENS) {
        let final_word = matches!(World::good(By::Token).with(fault).outcome(), Outcome::Deny(_));
        let in_the_request = ["bytes", "usages", "expiration", "not bound", "another key"].contains(what);
        assert_eq!(final_word, in_the_request, "{what}: {expected:?}");
    }
}

#[test]
fn p30_of_one_identity_eight_are_approved_within_a_minute() {
    for by in BY_ALL {
        for (approved, ago, expected) in [
            (7, 0, Outcome::Approve),
            (8, 0, Outcome::Retry(Reason::TooManyRequests)),
            (8, 59, Outcome::Retry(Reason::TooManyRequests)),
            (8, 60, Outcome::Approve),
            (128, 61, Outcome::Approve),
        ] {
            let outcome = World::good(by).with(|w| lately(w, approved, ago)).outcome();
            assert_eq!(outcome, expected, "{by:?}: {approved} approved {ago} s ago");
        }
    }
}

/// So many others of this identity were approved so many seconds ago.
fn lately(w: &mut World, approved: usize, ago: i64) {
    let at = w.now - SignedDuration::from_secs(ago);
    w.siblings.extend((0..approved).map(|n| Other {
        name: format!("firewall-l{n}"),
        created: at,
        approved: Some(at),
        key: Some(MACHINE.public()),
    }));
}

#[test]
fn the_first_undecided_request_of_an_identity_goes_first() {
    let held = Outcome::Retry(Reason::EarlierRequestOpen);
    // The request itself was made at 100 and is called firewall-m.
    let table = [
        ("firewall-a", 99, false, held),
        ("firewall-z", 99, false, held),
        ("firewall-a", 100, false, held),
        ("firewall-z", 100, false, Outcome::Approve),
        ("firewall-a", 101, false, Outcome::Approve),
        ("firewall-a", 99, true, Outcome::Approve),
    ];
    for by in BY_ALL {
        for (name, created, decided, expected) in table {
            for key in [None, Some(MACHINE.public())] {
                let other = Other {
                    name: name.into(),
                    created: at(created),
                    approved: decided.then(long_ago),
                    key,
                };
                let outcome = World::good(by).with(|w| w.siblings.push(other)).outcome();
                assert_eq!(outcome, expected, "{by:?} {name} {created} {decided}");
            }
        }
        let behind_others = World::good(by)
            .with_sibling(101, false, &MACHINE)
            .with_sibling(99, false, &MACHINE);
        assert_eq!(behind_others.outcome(), held, "{by:?}");
    }
}

/// After a day without an approver there are ninety of them, at 8 a minute.
#[test]
fn what_its_agent_gave_up_goes_after_what_it_waits_for() {
    let held = Outcome::Retry(Reason::EarlierRequestOpen);
    let minutes = |minutes: i64| move |w: &mut World| w.now = w.created + SignedDuration::from_mins(minutes);
    for by in BY_ALL {
        let abandoned = |w: World| (1..90).fold(w, |w, n| w.with_sibling(100 - 15 * 60 * n, false, &MACHINE));
        let fresh = abandoned(World::good(by)).with(minutes(1));
        assert_eq!(fresh.outcome(), Outcome::Approve, "{by:?}");
        // What is given up itself waits for what is not, and for those before it.
        let old = World::good(by)
            .with_sibling(101 + 60, false, &MACHINE)
            .with(minutes(16));
        assert_eq!(old.outcome(), held, "{by:?}");
        assert_eq!(abandoned(World::good(by)).with(minutes(16)).outcome(), held, "{by:?}");
        // While nothing is given up, the first is the first.
        let young = World::good(by).with_sibling(99, false, &MACHINE).with(minutes(14));
        assert_eq!(young.outcome(), held, "{by:?}");
    }
}

fn belongs_to_another(w: &mut World) {
    w.username = w.username.replace(NAME, "fw-2");
    if let Some((_, firewall)) = &mut w.token_owner {
        *firewall = name("fw-2");
    }
}

fn keys(w: &mut World, keys: &Keys) {
    for record in w.firewalls.iter_mut().filter_map(|f| f.record.as_mut()) {
        record.keys = keys.clone();
    }
}

fn earlier(w: &mut World) {
    w.siblings.push(Other {
        name: "firewall-a".into(),
        created: at(1),
        approved: None,
        key: Some(MACHINE.public()),
    });
}
