//! Tests of which events are written: once and counted, few of each cause, and never more than is remembered.

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn saying(name: &str, note: &str) -> Arc<Saying> {
    Arc::new(Saying {
        on: Object {
            api_version: "certificates.k8s.io/v1".into(),
            kind: "CertificateSigningRequest".into(),
            namespace: None,
            name: name.into(),
            uid: None,
        },
        warning: true,
        reason: Reason::TooManyRequests,
        action: "Wait",
        note: note.into(),
    })
}

#[test]
fn the_same_thing_said_again_is_one_event_whose_count_is_written_now_and_then() {
    let mut book = Book::default();
    let event = book.say("fw", saying("a", "x"), at(0)).unwrap();
    for second in 1..10 {
        assert_eq!(book.say("fw", saying("a", "x"), at(second)), None);
        assert_eq!(book.counts(at(second)), []);
    }
    let counts = book.counts(at(10));
    let [count] = counts.as_slice() else {
        panic!("{counts:?}")
    };
    assert_eq!((count.count, count.last, &count.event), (10, at(9), &event));
    // Nothing new is written again.
    assert_eq!(book.counts(at(60)), []);
    book.say("fw", saying("a", "x"), at(61));
    assert_eq!(book.counts(at(61))[0].count, 11);
}

#[test]
fn other_words_or_another_object_are_another_event() {
    let mut book = Book::default();
    let first = book.say("fw", saying("a", "x"), at(0)).unwrap();
    assert_ne!(book.say("fw", saying("a", "y"), at(1)).unwrap(), first);
    assert_ne!(book.say("fw", saying("b", "x"), at(2)).unwrap(), first);
    assert_eq!(book.counts(at(100)), []);
}

#[test]
fn what_is_said_again_much_later_is_a_new_event_for_the_old_one_may_be_gone() {
    let mut book = Book::default();
    assert!(book.say("fw", saying("a", "x"), at(0)).is_some());
    assert!(book.say("fw", saying("a", "x"), at(899)).is_none());
    assert!(book.say("fw", saying("a", "x"), at(899 + 899)).is_none());
    assert!(book.say("fw", saying("a", "x"), at(899 + 899 + 900)).is_some());
}

#[test]
fn an_event_that_was_not_written_is_tried_anew() {
    let mut book = Book::default();
    assert!(book.say("fw", saying("a", "x"), at(0)).is_some());
    book.lost(&saying("a", "x"));
    assert!(book.say("fw", saying("a", "x"), at(1)).is_some());
}

#[test]
fn p30_a_flood_of_one_identity_makes_few_events_and_the_others_are_still_heard() {
    let mut book = Book::default();
    let flood = (0..10_000).filter(|n| book.say("thief", saying(&n.to_string(), "x"), at(0)).is_some());
    assert_eq!(flood.count(), 20);
    assert_eq!(book.left_out(), 9980);
    assert_eq!(book.left_out(), 0);
    assert!(book.say("fw", saying("b", "x"), at(0)).is_some());
    // Half a minute later one more.
    let later = (0..100).filter(|n| book.say("thief", saying(&format!("l{n}"), "x"), at(30)).is_some());
    assert_eq!(later.count(), 1);
}

#[test]
fn p30_whoever_has_many_names_makes_a_bounded_number_and_is_not_remembered_for_ever() {
    let mut book = Book::default();
    let say = |book: &mut Book, n: usize, second| {
        book.say(&n.to_string(), saying(&n.to_string(), "x"), at(second))
            .is_some()
    };
    assert_eq!((0..10_000).filter(|n| say(&mut book, *n, 0)).count(), 300);
    let later = (1..=1200).map(|second| {
        (0..10)
            .filter(|n| say(&mut book, second as usize * 100 + n, second))
            .count()
    });
    let later: usize = later.sum();
    assert!((3000..=6000).contains(&later), "{later}");
    assert!(book.series.len() <= SERIES_MAX, "{}", book.series.len());
    assert!(book.causes.len() <= CAUSES_MAX + 1, "{}", book.causes.len());
}

#[test]
fn a_clock_that_goes_back_stops_nothing_for_long() {
    let mut book = Book::default();
    assert!(book.say("fw", saying("a", "x"), at(0)).is_some());
    assert!(book.say("fw", saying("b", "x"), at(-3600)).is_some());
    assert!(book.say("fw", saying("b", "x"), at(-3599)).is_none());
    assert_eq!(book.counts(at(-3589)).len(), 1);
}

#[test]
fn the_longest_name_gives_a_name_that_kubernetes_takes() {
    let mut book = Book::default();
    let long = format!("{}.{}", "a".repeat(199), "b".repeat(53));
    let event = book.say("fw", saying(&long, "x"), at(0)).unwrap();
    assert!(event.len() <= 253 && !event.contains(".."), "{event}");
}
