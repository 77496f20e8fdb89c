use jiff::{SignedDuration, Timestamp};

use super::*;

const POLL: Duration = Duration::from_secs(300);

fn watch(quiet: u64, failed: Option<(u64, Class)>) -> Watch {
    Watch {
        quiet: Duration::from_secs(quiet),
        listed: true,
        failed: failed.map(|(ago, class)| (Duration::from_secs(ago), class)),
        poll: POLL,
    }
}

fn checks() -> Vec<Check> {
    vec![
        Check::new("watch/firewalls", Health::Good),
        Check::new("watch/requests", Health::Good),
        Check::new("signer", Health::Good),
        Check::new("shoot/shoot--a", Health::Good),
        Check::new("shoot/shoot--ab", Health::Good),
    ]
}

fn ask(checks: &[Check], only: Option<&str>, exclude: &[&str], verbose: bool) -> Answer {
    let question = Question {
        only: only.map(str::to_owned),
        exclude: exclude.iter().map(ToString::to_string).collect(),
        verbose,
    };
    answer("readyz", checks, &question)
}

#[test]
fn e1_a_watch_is_judged_by_its_failures_and_by_the_age_of_what_it_brought() {
    assert_eq!(watch(0, None).health(), Health::Good);
    // Nothing happens for hours, but the poll lists.
    assert_eq!(watch(330, None).health(), Health::Good);
    assert!(matches!(watch(331, None).health(), Health::Away(why) if why.contains("331 s")));
    // It failed, and has tried again since without a failure: it runs, though nothing was there to tell.
    assert_eq!(watch(100, Some((40, Class::Unreachable))).health(), Health::Good);
    assert!(
        matches!(watch(100, Some((39, Class::Unreachable))).health(), Health::Away(why) if why.contains("cannot be reached"))
    );
    let unlisted = Watch {
        listed: false,
        ..watch(0, None)
    };
    assert!(matches!(unlisted.health(), Health::Away(_)));
}

#[test]
fn e2_what_may_come_back_is_told_apart_from_what_will_not() {
    use Class::{Busy, Forbidden, Invalid, Misconfigured, Unauthenticated, Unreachable, Untrusted, UntrustedTime};
    for class in [Unauthenticated, Busy, Unreachable, UntrustedTime] {
        assert!(
            matches!(watch(9, Some((1, class))).health(), Health::Away(_)),
            "{class:?}"
        );
    }
    for class in [Forbidden, Untrusted, Invalid, Misconfigured] {
        assert!(
            matches!(watch(9, Some((1, class))).health(), Health::Broken(_)),
            "{class:?}"
        );
    }
    let (away, broken) = (Health::Away("it is away".into()), Health::Broken("it is broken".into()));
    // Whatever stands first.
    for (first, second, status) in [
        (Health::Good, Health::Good, 200),
        (Health::Good, away.clone(), 503),
        (away.clone(), Health::Good, 503),
        (away.clone(), away.clone(), 503),
        (broken.clone(), away.clone(), 500),
        (away, broken.clone(), 500),
        (broken, Health::Good, 500),
    ] {
        let checks = [Check::new("one", first), Check::new("two", second)];
        assert_eq!(ask(&checks, None, &[], false).status, status, "{checks:?}");
    }
}

#[test]
fn e2_of_several_sides_of_one_thing_the_worst_is_told() {
    let all = [
        Health::Good,
        Health::Away("away".into()),
        Health::Broken("broken".into()),
    ];
    for (rank, one) in all.iter().enumerate() {
        for (other_rank, other) in all.iter().enumerate() {
            assert_eq!(one.clone().or_worse(other.clone()), all[rank.max(other_rank)]);
        }
    }
}

#[test]
fn e3_e4_what_fails_is_named_with_its_reason_and_nobody_else_is_blamed() {
    let mut checks = checks();
    checks[3].health = Health::Away("the server cannot be reached\n[+]forged ok".into());
    let answer = ask(&checks, None, &[], false);
    let expected = "[+]watch/firewalls ok\n[+]watch/requests ok\n[+]signer ok\n\
        [-]shoot/shoot--a failed: the server cannot be reached [+]forged ok\n[+]shoot/shoot--ab ok\nreadyz check failed\n";
    assert_eq!((answer.status, answer.body.as_str()), (503, expected));
    checks[2].health = Health::Broken("the permission is missing".into());
    let answer = ask(&checks, None, &[], false);
    assert!(
        answer
            .body
            .contains("[-]signer failed, and will not come back by itself: the permission is missing\n")
    );
    assert_eq!(failed(&checks), ["signer", "shoot/shoot--a"]);
}

#[test]
fn e1_each_check_is_asked_alone_or_left_out_or_all_of_its_kind() {
    let mut checks = checks();
    assert_eq!(ask(&checks, None, &[], false).body, "ok");
    let verbose = ask(&checks, Some("watch"), &[], true).body;
    assert_eq!(
        verbose,
        "[+]watch/firewalls ok\n[+]watch/requests ok\nreadyz check passed\n"
    );
    checks[3].health = Health::Away("gone".into());
    for (only, exclude, status) in [
        (None, vec![], 503),
        (None, vec!["shoot"], 200),
        (None, vec!["shoot/shoot--a"], 200),
        // The name of another begins with it.
        (None, vec!["shoot/shoot--ab"], 503),
        (None, vec!["shoot/shoot-", "signer"], 503),
        (Some("shoot/shoot--a"), vec![], 503),
        (Some("shoot/shoot--ab"), vec![], 200),
        (Some("shoot"), vec![], 503),
        (Some("shoot"), vec!["shoot/shoot--a"], 200),
        (Some("watch/requests"), vec![], 200),
        (Some("nothing"), vec![], 404),
        (Some("shoot/shoot--"), vec![], 404),
    ] {
        assert_eq!(
            ask(&checks, only, &exclude, false).status,
            status,
            "{only:?} without {exclude:?}"
        );
    }
    let excluded = ask(&checks, Some("shoot"), &["shoot/shoot--a", "typo"], true).body;
    assert!(excluded.contains("[+]shoot/shoot--a excluded: ok\n"), "{excluded}");
    assert!(
        excluded.contains("warn: there is no check typo to exclude\n"),
        "{excluded}"
    );
}

#[test]
fn e1_a_canary_is_judged_by_when_it_was_let_in_and_a_ca_that_is_over_is_no_fault() {
    let now = Timestamp::from_second(2_000_000_000).unwrap();
    let ago = |seconds| Some(now - SignedDuration::from_secs(seconds));
    let issuer = "0123456789abcdef0123";
    let tried = |newest, accepted, refused, dead| Tried {
        issuer,
        newest,
        accepted,
        refused,
        dead,
    };
    for (tried, status) in [
        (tried(true, ago(1), None, false), Some(200)),
        (tried(false, ago(30), None, false), Some(200)),
        (tried(true, ago(31), None, false), Some(503)),
        (tried(true, None, None, false), Some(503)),
        (tried(true, ago(4), ago(3), false), Some(503)),
        (tried(false, ago(4), ago(3), false), Some(503)),
        (tried(true, ago(9), ago(8), true), Some(500)),
        (tried(false, ago(9), ago(8), true), None),
    ] {
        let check = canary(&tried, now);
        assert!(check.iter().all(|check| check.name == "canary/0123456789abcdef"));
        assert_eq!(
            check.map(|check| ask(&[check], None, &[], false).status),
            status,
            "{tried:?}"
        );
    }
    assert_eq!(short("unlisted"), "unlisted");
}
