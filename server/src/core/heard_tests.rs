//! Tests of what people are shown beside the state: little, printable, and seldom anew.

use contract::handover::Order;
use contract::key::PrivateKey;

use super::*;
use crate::core::decide::Requester;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn report(time: Timestamp, error: Option<&str>, skew: Option<i64>) -> Report {
    Report {
        firewall: FirewallName::parse("fw-1").unwrap(),
        seed: "seed-uid".into(),
        namespace: "shoot--a".into(),
        certificate: None,
        taken_up: Order::default(),
        seal: None,
        key: PrivateKey::generate().unwrap().public(),
        handover_keys: Vec::new(),
        server: String::new(),
        ca: String::new(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: skew,
        last_error: error.map(str::to_owned),
        agent_version: "0.1.0".into(),
        time,
    }
}

fn heard(second: i64, error: Option<&str>, skew: Option<i64>) -> Heard {
    Heard::of(&report(at(second), error, skew))
}

#[test]
fn b5_its_last_error_and_its_clock_are_shown_with_the_time_by_the_seeds_clock() {
    let heard = heard(3600, Some("seed: no answer"), Some(3600));
    assert_eq!(heard.reported, at(0));
    assert_eq!(heard.clock_skew_seconds, Some(3600));
    assert_eq!(heard.last_error.as_deref(), Some("seed: no answer"));
}

#[test]
fn text_from_outside_is_cut_and_moves_no_cursor() {
    let nasty = format!("\u{1b}[2Jgone\n\u{202e}turned\u{2066}\u{feff}{}", "x".repeat(1000));
    let heard = Heard::of(&Report {
        agent_version: nasty.clone(),
        ..report(at(0), Some(&nasty), None)
    });
    let error = heard.last_error.unwrap();
    assert!(error.starts_with("[2Jgoneturnedxxx"), "{error}");
    assert_eq!(error.chars().count(), 160);
    assert_eq!(heard.version.chars().count(), 40);
    let refused = Refused::new("firewall-x", Reason::OtherKey, &nasty, at(0));
    assert_eq!(refused.message.chars().count(), 300);
    assert!(refused.message.starts_with("[2Jgoneturned"), "{}", refused.message);
    // Nothing but what is taken away.
    assert_eq!(Heard::of(&report(at(0), Some("\u{7}"), None)).last_error, None);
}

#[test]
fn that_it_reports_is_told_anew_once_an_hour_and_its_silence_exactly() {
    let told = heard(0, None, None);
    let tell = |second, now| heard(second, None, None).after(Some(&told), at(now)).reported;
    assert_eq!(tell(300, 301), at(0));
    assert_eq!(tell(3599, 3600), at(0));
    assert_eq!(tell(3600, 3601), at(3600));
    // The last one was at 1800, and nothing came since.
    assert_eq!(tell(1800, 1800 + 899), at(0));
    assert_eq!(tell(1800, 1800 + 900), at(1800));
    assert_eq!(heard(5, None, None).after(None, at(6)).reported, at(5));
}

#[test]
fn what_changed_is_told_at_once() {
    let told = heard(0, None, Some(2));
    let tell = |error, skew| heard(300, error, skew).after(Some(&told), at(301)).reported;
    // By the seed's clock.
    assert_eq!(tell(None, Some(31)), at(-2));
    assert_eq!(tell(None, Some(32)), at(300 - 32));
    assert_eq!(tell(None, Some(-28)), at(300 + 28));
    assert_eq!(tell(None, None), at(300));
    assert_eq!(tell(Some("x"), Some(2)), at(298));
}

#[test]
fn the_later_refusal_is_told_and_the_same_one_keeps_its_time() {
    let refused = |request, reason, second| Some(Refused::new(request, reason, "why", at(second)));
    let first = refused("a", Reason::OtherKey, 1);
    assert_eq!(Refused::after(first.clone(), None), first);
    // After a restart nothing is known but what was told.
    assert_eq!(Refused::after(None, first.clone()), first);
    assert_eq!(Refused::after(refused("a", Reason::OtherKey, 9), first.clone()), first);
    let later = refused("b", Reason::OtherKey, 9);
    assert_eq!(Refused::after(later.clone(), first.clone()), later);
    assert_eq!(Refused::after(first, later.clone()), later);
}

#[test]
fn a_requester_is_bound_to_one_firewall_by_its_name_or_to_none() {
    let name = |requester| named(&requester).map(|name| name.to_string());
    assert_eq!(name(Requester::Firewall("fw-1".into())).as_deref(), Some("fw-1"));
    assert_eq!(name(Requester::ServiceAccount("fw-1".into())).as_deref(), Some("fw-1"));
    assert_eq!(name(Requester::Firewall("Not a name".into())), None);
    assert_eq!(name(Requester::Foreign), None);
}
