//! Tables for `next`.

use super::*;

#[path = "next_tests/hooks.rs"]
mod hooks;
#[path = "next_tests/moves.rs"]
mod moves;
#[path = "next_tests/properties.rs"]
mod properties;
#[path = "next_tests/years.rs"]
mod years;
use crate::core::{Event, Own, Patience, Pending, Void};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const NOW: i64 = 1_000_000;

fn now() -> Timestamp {
    at(NOW)
}

fn fresh() -> State {
    State {
        key: true,
        ..State::default()
    }
}

fn in_force() -> State {
    let own = Own {
        renew_at: at(NOW + 1000),
        not_after: at(NOW + 2000),
        token: false,
    };
    State {
        own: Some(own),
        installed: true,
        told: true,
        ..fresh()
    }
}

fn with_request(mut state: State, standing: Standing) -> State {
    state.request = Some(Request {
        standing,
        via: None,
        replacement: false,
        sent: None,
        polls: 0,
        poll_at: now(),
    });
    state
}

const BOOTSTRAP: Seen = Seen {
    bootstrap: true,
    bootstrap_new: false,
    renewal: false,
};
const NOTHING: Seen = Seen {
    bootstrap: false,
    bootstrap_new: false,
    renewal: false,
};
const ASKED: Seen = Seen {
    bootstrap: false,
    bootstrap_new: false,
    renewal: true,
};

#[test]
fn b6_a_token_is_made_where_it_is_wanted_and_one_that_is_due_is_renewed_whatever_is_wanted() {
    let with = |token, renew_at, token_wanted, renewal| State {
        own: Some(Own {
            renew_at: at(renew_at),
            not_after: at(NOW + 2000),
            token,
        }),
        token_wanted,
        renewal,
        ..in_force()
    };
    let (later, due) = (NOW + 1000, NOW);
    let write = Action::WriteRequest {
        replacement: false,
        via: Via::Own,
    };
    let table = [
        (
            "certificate, a token is wanted",
            with(false, later, true, true),
            Action::RenewToken,
        ),
        (
            "certificate that is due, a token is wanted",
            with(false, due, true, false),
            Action::RenewToken,
        ),
        ("token that is due", with(true, due, true, false), Action::RenewToken),
        (
            "token, a person wants another",
            with(true, later, true, true),
            Action::RenewToken,
        ),
        ("token, a certificate is wanted", with(true, later, false, true), write),
        (
            "certificate, a person wants another",
            with(false, later, false, true),
            write,
        ),
        (
            "token that is due, a certificate is wanted",
            with(true, due, false, true),
            Action::RenewToken,
        ),
        (
            "and nobody signs it",
            with_request(with(true, due, false, true), Standing::Approved),
            Action::RenewToken,
        ),
        (
            "a request on its way",
            with_request(with(false, due, true, true), Standing::Issued),
            Action::TryCandidate,
        ),
    ];
    for (case, state, action) in table {
        assert_eq!(next(&state, &NOTHING, now()), action, "{case}");
    }
    // Nobody knows it any more: it comes in as anybody does.
    let refused = State {
        refused: true,
        ..with(true, due, true, true)
    };
    let bootstrap = Action::WriteRequest {
        replacement: false,
        via: Via::Bootstrap,
    };
    assert_eq!(next(&refused, &BOOTSTRAP, now()), bootstrap);
}

#[test]
fn the_way_to_a_certificate_goes_step_by_step() {
    let expired = State {
        own: Some(Own {
            renew_at: at(1),
            not_after: at(2),
            token: false,
        }),
        ..in_force()
    };
    let due = State {
        own: Some(Own {
            renew_at: at(1),
            not_after: at(NOW + 9),
            token: false,
        }),
        ..in_force()
    };
    let asked = State {
        renewal: true,
        ..in_force()
    };
    let cut_short = State {
        installed: false,
        ..in_force()
    };
    let write = Action::WriteRequest {
        replacement: false,
        via: Via::Bootstrap,
    };
    let renew = Action::WriteRequest {
        replacement: false,
        via: Via::Own,
    };
    let table = [
        ("no key", State::default(), BOOTSTRAP, Action::MakeKey),
        ("a key only", fresh(), BOOTSTRAP, write),
        (
            "spoilt before",
            State {
                replacing: true,
                ..fresh()
            },
            BOOTSTRAP,
            Action::WriteRequest {
                replacement: true,
                via: Via::Bootstrap,
            },
        ),
        (
            "written",
            with_request(fresh(), Standing::Written),
            BOOTSTRAP,
            Action::SendRequest(Via::Bootstrap),
        ),
        (
            "pending",
            with_request(fresh(), Standing::Pending),
            BOOTSTRAP,
            Action::PollRequest(Via::Bootstrap),
        ),
        (
            "approved",
            with_request(fresh(), Standing::Approved),
            BOOTSTRAP,
            Action::PollRequest(Via::Bootstrap),
        ),
        (
            "issued",
            with_request(fresh(), Standing::Issued),
            BOOTSTRAP,
            Action::TryCandidate,
        ),
        (
            "tried",
            with_request(fresh(), Standing::Tried),
            BOOTSTRAP,
            Action::Switch,
        ),
        (
            "void",
            with_request(fresh(), Standing::Void),
            BOOTSTRAP,
            Action::DropRequest,
        ),
        ("a switch cut short", cut_short, NOTHING, Action::Install),
        ("due for renewal", due, NOTHING, renew),
        ("a renewal is asked for", in_force(), ASKED, Action::AcceptRenewal),
        ("a renewal was taken up", asked.clone(), ASKED, renew),
        (
            "renewing goes through the own certificate",
            with_request(asked, Standing::Written),
            BOOTSTRAP,
            Action::SendRequest(Via::Own),
        ),
        ("expired, with a bootstrap kubeconfig", expired, BOOTSTRAP, write),
        (
            "left over from before a crash",
            with_request(in_force(), Standing::Written),
            NOTHING,
            Action::SendRequest(Via::Own),
        ),
    ];
    for (what, state, seen, expected) in table {
        assert_eq!(next(&state, &seen, now()), expected, "{what}");
    }
}

#[test]
fn what_is_waited_for_has_a_name() {
    let sent = |standing, ago: i64| {
        let request = Request {
            standing,
            via: None,
            replacement: false,
            sent: Some(at(NOW - ago)),
            polls: 9,
            poll_at: at(NOW + 2),
        };
        let mut state = State {
            request: Some(request),
            ..fresh()
        };
        state.after(Event::Done(Job::Clock, at(NOW + 300)), now());
        state
    };
    let mut refused = sent(Standing::Pending, 9);
    refused.after(Event::RequestVoid(Void::Refused), now());
    let mut down = sent(Standing::Pending, 9);
    down.after(Event::Failed(Job::Access, Patience::Normal), now());
    let table = [
        ("no credential", fresh(), NOTHING, Why::NoCredential),
        ("just sent", sent(Standing::Pending, 1), BOOTSTRAP, Why::Answer),
        ("undecided", sent(Standing::Pending, 60), BOOTSTRAP, Why::Undecided),
        ("unsigned", sent(Standing::Approved, 60), BOOTSTRAP, Why::Unsigned),
        ("refused", refused, BOOTSTRAP, Why::Failed(Job::Access)),
        ("unreachable", down, BOOTSTRAP, Why::Failed(Job::Access)),
    ];
    for (what, state, seen, expected) in table {
        let Action::Wait { why, .. } = next(&state, &seen, now()) else {
            panic!("{what}: does not wait")
        };
        assert_eq!(why, expected, "{what}");
    }
}

#[test]
fn a_request_that_was_spoilt_before_it_was_sent_is_replaced_at_once_and_once() {
    let mut state = with_request(fresh(), Standing::Written);
    state.after(Event::RequestVoid(Void::Spoilt), now());
    assert_eq!(next(&state, &BOOTSTRAP, now()), Action::DropRequest);
    state.after(Event::RequestDropped, now());
    assert_eq!(
        next(&state, &BOOTSTRAP, now()),
        Action::WriteRequest {
            replacement: true,
            via: Via::Bootstrap
        }
    );
    state.after(
        Event::RequestWritten {
            replacement: true,
            via: Some(Via::Bootstrap),
        },
        now(),
    );
    state.after(Event::RequestVoid(Void::Spoilt), now());
    state.after(Event::Done(Job::Clock, at(NOW + 300)), now());
    assert!(matches!(next(&state, &BOOTSTRAP, now()), Action::Wait { .. }));
}

#[test]
fn refusals_are_answered_more_and_more_slowly() {
    let mut state = fresh();
    let mut waits = Vec::new();
    for _ in 0..4 {
        state.after(
            Event::RequestWritten {
                replacement: false,
                via: Some(Via::Bootstrap),
            },
            now(),
        );
        state.after(Event::RequestStands(Standing::Pending), now());
        state.after(Event::RequestVoid(Void::Refused), now());
        waits.push(now().duration_until(state.pace(Job::Access).at).as_secs());
        state.after(Event::RequestDropped, now());
    }
    assert!(
        (30..=60).contains(&waits[0]) && waits.is_sorted() && waits[3] >= 240,
        "{waits:?}"
    );
}

#[test]
fn nobody_decides_for_fifteen_minutes_and_it_asks_anew() {
    for (age, expected) in [(899, Action::PollRequest(Via::Bootstrap)), (900, Action::DropRequest)] {
        let mut state = with_request(fresh(), Standing::Pending);
        state.request.as_mut().unwrap().sent = Some(at(NOW - age));
        assert_eq!(next(&state, &BOOTSTRAP, now()), expected, "{age} s");
    }
}

#[test]
fn a_request_is_asked_for_often_at_first_and_then_less() {
    let mut state = with_request(fresh(), Standing::Written);
    let mut time = now();
    let mut waits = Vec::new();
    while now().duration_until(time) < SignedDuration::from_secs(90) {
        state.after(Event::RequestStands(Standing::Pending), time);
        let poll_at = state.request.unwrap().poll_at;
        waits.push(time.duration_until(poll_at).as_millis());
        time = poll_at;
    }
    assert_eq!(waits[..6], [100, 200, 400, 800, 2000, 2000]);
    assert_eq!(waits.last(), Some(&10_000));
}

#[test]
fn a_certificate_that_is_due_as_soon_as_it_is_issued_is_not_renewed_in_circles() {
    let mut state = fresh();
    state.after(
        Event::Switched(Own {
            renew_at: at(NOW - 1),
            not_after: at(NOW + 9),
            token: false,
        }),
        now(),
    );
    assert!(!matches!(next(&state, &NOTHING, now()), Action::WriteRequest { .. }));
    assert!(state.pace(Job::Access).at >= at(NOW + 30));
}

#[test]
fn a_failing_shoot_does_not_hold_up_a_renewal() {
    let mut state = State {
        firewall_read: true,
        reportable: true,
        ..in_force()
    };
    state.after(Event::Failed(Job::Shoot, Patience::Normal), now());
    state.after(Event::Failed(Job::Report, Patience::Normal), now());
    assert_eq!(next(&state, &ASKED, now()), Action::AcceptRenewal);
}
