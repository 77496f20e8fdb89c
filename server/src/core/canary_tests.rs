//! Tables of what is and is no evidence, and a property with an oracle that looks at the whole history each time.

use proptest::prelude::*;

use super::*;

const OLD: &str = "old";
const NEW: &str = "new";
/// Second in which the first canary is issued.
const BEGIN: i64 = 1_000;
const LIFE: i64 = 600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn issue(canaries: &mut Canaries, issuer: &str, second: i64) {
    canaries.issued(issuer, at(second - 300), at(second + LIFE), at(second));
}

/// A canary of the old issuer, and one second later one of the new.
fn two() -> Canaries {
    let mut canaries = Canaries::default();
    issue(&mut canaries, OLD, BEGIN);
    issue(&mut canaries, NEW, BEGIN + 1);
    canaries
}

/// A second in which both are tried: `+`, `-` or `.`, and whether the approver itself is accepted.
fn second(canaries: &mut Canaries, second: i64, old: char, new: char, others: bool) {
    let answer = |word| match word {
        '+' => Answer::Accepted,
        '-' => Answer::Refused,
        _ => Answer::Nothing,
    };
    canaries.answered(OLD, answer(old), at(second));
    canaries.answered(NEW, answer(new), at(second));
    if others {
        canaries.others(at(second));
    }
}

/// What is found after these seconds, one column each, from second 1010 on.
fn found(old: &str, new: &str) -> Issuers {
    assert_eq!(old.len(), new.len());
    let mut canaries = two();
    for (index, (old, new)) in old.chars().zip(new.chars()).enumerate() {
        second(
            &mut canaries,
            BEGIN + 10 + i64::try_from(index).unwrap(),
            old,
            new,
            true,
        );
    }
    canaries.issuers()
}

fn refused(issuers: &Issuers) -> bool {
    issuers.refused.contains(OLD)
}

fn certificate(issuer: &str, not_before: i64) -> Certificate {
    Certificate {
        serial: "1f".into(),
        not_before: at(not_before),
        not_after: at(1_000_000),
        issuer: "CN=ca".into(),
        issuer_key: Some(issuer.into()),
        request: "firewall-x".into(),
    }
}

#[test]
fn one_that_could_not_be_made_does_not_put_off_the_next() {
    let now = Timestamp::from_second(2_000_000_000).unwrap();
    let mut canaries = Canaries::default();
    canaries.make(now);
    assert!(canaries.due() > now);
    canaries.failed();
    assert!(canaries.due() <= now);
}

#[test]
fn b2_an_issuer_is_dead_after_five_refusals_over_five_seconds_and_not_before() {
    for (old, new, dead) in [
        ("------", "++++++", true),
        ("-----", "+++++", false),
        ("+------", "+++++++", true),
        // An acceptance in between: replicas of two minds.
        ("---+--", "++++++", false),
        ("-+-+-+-+-+-+", "++++++++++++", false),
        ("--+--+--+--+", "++++++++++++", false),
        ("---+------", "++++++++++", true),
        // No answer is none, in whatever number.
        ("......", "++++++", false),
        ("-.-.-.-.-.", "++++++++++", true),
        ("-........-", "++++++++++", false),
        // A server that is down for a while is another one afterwards.
        ("----............--", "++++++++++++++++++", false),
        // Only while what is issued now is accepted, in that very time.
        ("------", "......", false),
        ("------", "------", false),
        ("------", "++++-.", false),
        ("+++++------", "+..........", false),
        ("------", "..+...", true),
    ] {
        let found = found(old, new);
        assert_eq!(refused(&found), dead, "{old} {new}: {found:?}");
    }
}

#[test]
fn b2_refusals_all_at_once_are_not_enough() {
    let mut canaries = two();
    for _ in 0..50 {
        second(&mut canaries, BEGIN + 10, '-', '+', true);
    }
    assert!(!refused(&canaries.issuers()));
}

#[test]
fn b2_a_seed_that_accepts_nobody_says_nothing_of_certificates() {
    let mut canaries = two();
    canaries.others(at(BEGIN));
    for index in 0..8 {
        second(&mut canaries, BEGIN + 10 + index, '-', '+', false);
    }
    assert!(!refused(&canaries.issuers()));
    canaries.others(at(BEGIN + 18));
    assert!(refused(&canaries.issuers()));
}

#[test]
fn b2_what_was_found_stays_until_it_is_accepted_again() {
    let mut canaries = two();
    for index in 0..6 {
        second(&mut canaries, BEGIN + 10 + index, '-', '+', true);
    }
    for index in 0..60 {
        second(&mut canaries, BEGIN + 20 + index, '.', '-', true);
    }
    assert!(refused(&canaries.issuers()));
    second(&mut canaries, BEGIN + 100, '+', '+', true);
    assert!(!refused(&canaries.issuers()));
}

#[test]
fn b2_a_canary_near_its_end_or_past_it_says_nothing() {
    // Believed for three quarters of its ten minutes.
    let end = BEGIN + LIFE / 4 * 3;
    for (begin, dead) in [(end - 6, true), (end - 3, false), (end, false), (end + LIFE, false)] {
        let mut canaries = two();
        issue(&mut canaries, NEW, begin);
        for index in 0..6 {
            second(&mut canaries, begin + index, '-', '+', true);
        }
        assert_eq!(refused(&canaries.issuers()), dead, "from {begin} on, end {end}");
        assert_eq!(canaries.believed(at(begin)).contains(OLD), begin < end);
    }
    // Over before it was issued, by this clock.
    let mut canaries = Canaries::default();
    canaries.issued(OLD, at(0), at(10), at(BEGIN));
    assert!(canaries.believed(at(BEGIN)).is_empty());
}

#[test]
fn b2_if_what_is_issued_now_is_refused_nobody_is_handed_over_and_the_signer_is_named() {
    let both = found("------", "------");
    assert!(both.signer_not_trusted && both.refused.is_empty());
    let new = found("++++++", "------");
    assert!(new.signer_not_trusted && new.refused.is_empty());
    // Nor is anybody to renew: what he got would be refused.
    assert_eq!(new.of(&certificate(OLD, 0)), Issuer::Unsuspected);
    for fine in [
        found("++++++", "-----+"),
        found("++++++", "......"),
        found("++++++", "++++++"),
    ] {
        assert!(!fine.signer_not_trusted, "{fine:?}");
    }
    // It is mended.
    let mended = found("++++++++", "-------+");
    assert!(!mended.signer_not_trusted && mended.newest.is_some());
    // There never was another.
    let mut canaries = Canaries::default();
    issue(&mut canaries, OLD, BEGIN);
    for index in 0..6 {
        second(&mut canaries, BEGIN + 10 + index, '-', '.', true);
    }
    let only = canaries.issuers();
    assert!(only.signer_not_trusted && only.refused.is_empty());
    // The signer follows: now it was the old CA that went.
    issue(&mut canaries, NEW, BEGIN + 17);
    second(&mut canaries, BEGIN + 17, '-', '+', true);
    let after = canaries.issuers();
    assert!(!after.signer_not_trusted && refused(&after), "{after:?}");
}

#[test]
fn b2_new_canaries_of_one_issuer_go_on_where_the_one_before_was() {
    let mut canaries = two();
    for index in 0..6 {
        issue(&mut canaries, NEW, BEGIN + 10 + index);
        second(&mut canaries, BEGIN + 10 + index, '+', '-', true);
    }
    assert!(canaries.issuers().signer_not_trusted);
}

#[test]
fn c1_certificates_of_another_issuer_than_the_newest_are_superseded_while_both_are_accepted() {
    let both = found("++", "++");
    assert_eq!(both.of(&certificate(OLD, 0)), Issuer::Superseded);
    assert_eq!(both.of(&certificate(NEW, 0)), Issuer::Unsuspected);
    // It was there before the approver was, and no canary of it is left.
    assert_eq!(both.of(&certificate("older", 0)), Issuer::Superseded);
    // Not known at all.
    let unknown = Certificate {
        issuer_key: None,
        ..certificate(OLD, 0)
    };
    assert_eq!(both.of(&unknown), Issuer::Unsuspected);
    // Somebody signed with the old key after the new one had: renewing would go on for ever.
    let since = BEGIN + 1 - 300;
    assert_eq!(both.of(&certificate(OLD, since)), Issuer::Superseded);
    assert_eq!(both.of(&certificate(OLD, since + 1)), Issuer::Unsuspected);
    // Before the new one was accepted once, nobody renews.
    assert_eq!(found("++", "..").of(&certificate(OLD, 0)), Issuer::Unsuspected);
    let dead = found("------", "++++++");
    assert_eq!(dead.of(&certificate(OLD, 0)), Issuer::Refused);
    assert_eq!(dead.of(&certificate(NEW, 0)), Issuer::Unsuspected);
    assert_eq!(Issuers::none().of(&certificate(OLD, 0)), Issuer::Unsuspected);
}

#[test]
fn c1_a_roll_that_is_taken_back_goes_the_other_way() {
    let mut canaries = two();
    for index in 0..6 {
        second(&mut canaries, BEGIN + 10 + index, '-', '+', true);
    }
    assert!(refused(&canaries.issuers()));
    issue(&mut canaries, OLD, BEGIN + 20);
    second(&mut canaries, BEGIN + 21, '+', '+', true);
    let back = canaries.issuers();
    assert!(back.refused.is_empty());
    assert_eq!(back.of(&certificate(NEW, BEGIN - 299)), Issuer::Superseded);
    assert_eq!(back.of(&certificate(OLD, 0)), Issuer::Unsuspected);
}

#[test]
fn b2_an_issuer_that_is_published_late_is_the_one_that_it_was() {
    let mut canaries = Canaries::default();
    issue(&mut canaries, OLD, BEGIN);
    issue(&mut canaries, UNLISTED, BEGIN + 1);
    canaries.answered(UNLISTED, Answer::Accepted, at(BEGIN + 2));
    canaries.identified(UNLISTED, NEW);
    assert_eq!(canaries.issuers().newest.unwrap().issuer, NEW);
    // Never two of one name.
    canaries.identified(NEW, OLD);
    assert_eq!(canaries.believed(at(BEGIN + 2)), BTreeSet::from([OLD, NEW]));
}

#[test]
fn b2_issuers_without_end_do_not_grow_what_is_remembered() {
    let mut canaries = Canaries::default();
    for index in 0..100 {
        issue(&mut canaries, &index.to_string(), BEGIN + index);
    }
    assert_eq!(
        canaries.believed(at(BEGIN + 100)),
        BTreeSet::from(["96", "97", "98", "99"])
    );
}

#[test]
fn b2_a_new_canary_is_made_every_two_minutes_and_soon_after_something_happened() {
    let mut canaries = Canaries::default();
    assert!(canaries.due() <= at(0));
    canaries.make(at(BEGIN));
    assert_eq!(canaries.due(), at(BEGIN + 120));
    issue(&mut canaries, OLD, BEGIN);
    assert_eq!(canaries.due(), at(BEGIN + 120));
    canaries.stir(at(BEGIN + 30));
    // At once; then after 2, 4, 8 seconds.
    let mut times = Vec::new();
    let mut now = BEGIN + 30;
    for _ in 0..9 {
        now = canaries.due().as_second().max(now);
        times.push(now - BEGIN - 30);
        canaries.make(at(now));
    }
    assert_eq!(times, [0, 2, 4, 8, 16, 32, 64, 128, 248]);
    // The newest is refused: maybe another signs already.
    canaries.answered(OLD, Answer::Refused, at(now + 1));
    assert_eq!(canaries.due(), at(now + 2));
    // A signer that gives a minute.
    let mut canaries = Canaries::default();
    canaries.make(at(BEGIN));
    canaries.issued(OLD, at(BEGIN - 300), at(BEGIN + 60), at(BEGIN));
    assert_eq!(canaries.due(), at(BEGIN + 20));
}

/// One second of a history.
#[derive(Clone, Debug)]
struct Second {
    old: char,
    new: char,
    others: bool,
}

fn seconds() -> impl Strategy<Value = Vec<Second>> {
    // Weighted, so that long rows of one answer come about.
    let answer = || prop_oneof![6 => Just('-'), 2 => Just('+'), 1 => Just('.')];
    let second = (answer(), answer(), prop::bool::weighted(0.8));
    let second = second.prop_map(|(old, new, others)| Second { old, new, others });
    prop::collection::vec(second, 1..60)
}

/// Whether the history up to its end holds evidence that may have had somebody handed over.
fn evidence(history: &[Second]) -> bool {
    let answers: Vec<(usize, char)> = history
        .iter()
        .enumerate()
        .map(|(index, second)| (index, second.old))
        .filter(|(_, answer)| *answer != '.')
        .collect();
    let rows = answers.split(|(_, answer)| *answer == '+');
    rows.into_iter().any(|row| {
        let (Some((first, _)), Some((last, _))) = (row.first(), row.last()) else {
            return false;
        };
        // Whoever is refused once a second or less often needs at least so many.
        let enough = row.len() >= 5 && last - first >= 5;
        let later = &history[*first..];
        enough && later.iter().any(|second| second.new == '+') && later.iter().any(|second| second.others)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever comes: without a row of refusals, and acceptances of others in the meantime, nobody is handed over.
    #[test]
    fn b2_no_verdict_without_evidence(history in seconds()) {
        let mut canaries = two();
        for (index, now) in history.iter().enumerate() {
            second(&mut canaries, BEGIN + 10 + i64::try_from(index).unwrap(), now.old, now.new, now.others);
            let found = canaries.issuers();
            prop_assert!(!refused(&found) || evidence(&history[..=index]), "second {}", index);
            prop_assert!(!found.refused.contains(NEW), "what is issued now is never refused for somebody else's sake");
            if now.old == '+' {
                prop_assert!(!refused(&found));
            }
            // Nobody is sent to an issuer that is itself refused.
            prop_assert!(!(found.signer_not_trusted && found.newest.is_some()));
        }
    }

    /// Whatever was before: a CA that is really gone is found within ten seconds, and one that is really there is not.
    #[test]
    fn b2_a_real_end_is_found_in_time_whatever_was_before(history in seconds()) {
        for (old, dead) in [('-', true), ('+', false)] {
            let mut canaries = two();
            let mut now = BEGIN + 10;
            for before in &history {
                second(&mut canaries, now, before.old, before.new, before.others);
                now += 1;
            }
            for _ in 0..10 {
                second(&mut canaries, now, old, '+', true);
                now += 1;
            }
            prop_assert_eq!(refused(&canaries.issuers()), dead);
        }
    }
}
