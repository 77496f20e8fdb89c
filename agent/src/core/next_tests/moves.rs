//! What a handover, a refusal and a new bootstrap kubeconfig change.

//! What a handover, a refusal and a new bootstrap kubeconfig change.

use super::*;

fn handed_over(mut state: State) -> State {
    state.found = Some(now());
    assert_eq!(next(&state, &NOTHING, now()), Action::TakeUp);
    state.after(Event::HandoverTaken { expires: at(NOW + 900) }, now());
    state
}

fn written(state: State, via: Via) -> State {
    let mut state = with_request(state, Standing::Written);
    if let Some(request) = &mut state.request {
        request.via = Some(via);
    }
    state
}

fn refused() -> State {
    let mut state = in_force();
    for _ in 0..3 {
        state.after(Event::OwnRefused, now());
    }
    state
}

const NEW: Seen = Seen {
    bootstrap: true,
    bootstrap_new: true,
    renewal: false,
};

#[test]
fn a8_every_way_goes_before_the_one_after_it() {
    let write = |via| Action::WriteRequest {
        replacement: false,
        via,
    };
    let late = State {
        handover: Some(Pending {
            expires: at(NOW),
            since: at(NOW - 900),
        }),
        ..in_force()
    };
    let table = [
        (
            "a handover, although its own lives",
            handed_over(in_force()),
            NOTHING,
            write(Via::Handover),
        ),
        (
            "a handover, although a person put a file there",
            handed_over(in_force()),
            NEW,
            write(Via::Handover),
        ),
        (
            "a handover, refused by the old seed",
            handed_over(refused()),
            BOOTSTRAP,
            write(Via::Handover),
        ),
        (
            "a file that a person put there, although its own lives",
            in_force(),
            NEW,
            write(Via::Bootstrap),
        ),
        (
            "refused, with the file it came in by",
            refused(),
            BOOTSTRAP,
            write(Via::Bootstrap),
        ),
        (
            "a handover in use",
            written(handed_over(in_force()), Via::Handover),
            NOTHING,
            Action::SendRequest(Via::Handover),
        ),
        (
            "a request for the old way",
            written(handed_over(in_force()), Via::Own),
            NOTHING,
            Action::DropRequest,
        ),
        (
            "a request for a way that was refused",
            written(refused(), Via::Own),
            BOOTSTRAP,
            Action::DropRequest,
        ),
        (
            "an earlier process's request",
            with_request(handed_over(in_force()), Standing::Written),
            NOTHING,
            Action::SendRequest(Via::Handover),
        ),
        ("a handover that expired", late, NOTHING, Action::DropHandover),
    ];
    for (what, state, seen, expected) in table {
        assert_eq!(next(&state, &seen, now()), expected, "{what}");
    }
}

#[test]
fn a8_a_newer_handover_replaces_one_that_is_pending_with_its_request() {
    let mut state = written(handed_over(in_force()), Via::Handover);
    state.after(Event::RequestStands(Standing::Pending), now());
    let state = handed_over(state);
    assert_eq!(next(&state, &NOTHING, now()), Action::DropRequest);
}

#[test]
fn a8_nothing_asks_a_seed_that_may_be_dead_while_a_handover_is_fresh() {
    let mut state = written(
        handed_over(State {
            firewall_read: true,
            offer: true,
            ..in_force()
        }),
        Via::Handover,
    );
    state.after(Event::RequestStands(Standing::Pending), now());
    assert!(matches!(next(&state, &NOTHING, now()), Action::Wait { .. }));
    // After a while it goes on with what it has.
    let later = at(NOW + 20);
    state.after(Event::Failed(Job::Access, Patience::Slow), later);
    assert_eq!(next(&state, &NOTHING, later), Action::TryOffer);
}

#[test]
fn a8_after_the_switch_nothing_of_the_handover_is_left() {
    let mut state = handed_over(refused());
    let own = in_force().own.unwrap();
    state.after(Event::Switched(own), now());
    assert!(state.handover.is_none() && !state.refused && state.refusals == 0);
    for job in [Job::Seed, Job::Shoot, Job::Report] {
        assert!(state.pace(job).due(now()), "{job:?}");
    }
}

#[test]
fn a_handover_that_expires_leaves_the_access_of_before() {
    let mut state = written(handed_over(in_force()), Via::Handover);
    let later = at(NOW + 900);
    assert_eq!(next(&state, &NOTHING, later), Action::DropHandover);
    state.after(Event::HandoverDropped, later);
    assert_eq!(next(&state, &NOTHING, later), Action::DropRequest);
    state.after(Event::RequestDropped, later);
    assert_eq!(next(&state, &NOTHING, later), Action::ReadSeed);
}

#[test]
fn three_refusals_in_a_row_are_believed_within_ten_seconds() {
    for seed in 0..50 {
        // Of a seed that was unreachable for long.
        let mut state = State { seed, ..in_force() };
        for _ in 0..9 {
            state.after(Event::Failed(Job::Seed, Patience::Normal), now());
        }
        let mut time = now();
        for number in 1..=3 {
            assert!(!state.refused);
            state.after(Event::Failed(Job::Seed, Patience::Normal), time);
            state.after(Event::OwnRefused, time);
            if number < 3 {
                time = state.pace(Job::Seed).at;
            }
        }
        assert!(state.refused && now().duration_until(time) < SignedDuration::from_secs(10));
        assert!(state.pace(Job::Report).due(time) && state.pace(Job::Access).due(time));
    }
}

#[test]
fn one_answer_in_between_makes_it_begin_again_and_ends_it_too() {
    let mut state = in_force();
    for event in [
        Event::OwnRefused,
        Event::OwnRefused,
        Event::OwnAccepted,
        Event::OwnRefused,
        Event::OwnRefused,
    ] {
        state.after(event, now());
    }
    assert!(!state.refused);
    let mut state = refused();
    assert!(state.refused);
    state.after(Event::OwnAccepted, now());
    assert!(!state.refused && state.pace(Job::Report).due(now()));
}

#[test]
fn a_refused_certificate_is_still_tried_and_nothing_else_is_done_without_a_way() {
    let mut state = refused();
    state.after(Event::Done(Job::Seed, at(NOW)), now());
    assert_eq!(next(&state, &NOTHING, now()), Action::ReadSeed);
    state.after(Event::Failed(Job::Seed, Patience::Normal), now());
    state.after(Event::Done(Job::Clock, at(NOW + 300)), now());
    let Action::Wait { why, .. } = next(&state, &NOTHING, now()) else {
        panic!("does not wait")
    };
    assert_eq!(why, Why::NoCredential);
}

#[test]
fn a_dead_seed_does_not_keep_it_from_the_shoot() {
    let state = State {
        own: None,
        installed: false,
        reportable: true,
        shoot_way: true,
        lifeline: true,
        ..in_force()
    };
    let mut done = Vec::new();
    let mut state = state;
    loop {
        match next(&state, &NOTHING, now()) {
            Action::Report => state.after(Event::Done(Job::Report, at(NOW + 300)), now()),
            Action::LookForHandover => state.after(Event::Done(Job::Handover, at(NOW + 300)), now()),
            Action::MeasureClock(None) => state.after(Event::Done(Job::Clock, at(NOW + 300)), now()),
            Action::RenewLifeline => state.after(Event::Done(Job::Lifeline, at(NOW + 300)), now()),
            Action::Wait { .. } => break,
            other => panic!("{other:?}"),
        }
        done.push(());
    }
    assert_eq!(done.len(), 4);
}

#[test]
fn a_thousand_agents_take_a_handover_up_one_after_the_other_and_soon() {
    let mut times: Vec<i128> = (0..1000)
        .map(|seed| {
            let mut state = State { seed, ..in_force() };
            state.after(Event::HandoverFound, now());
            now().duration_until(state.found.unwrap()).as_millis()
        })
        .collect();
    times.sort_unstable();
    assert!((0..=500).contains(times.first().unwrap()) && (0..=500).contains(times.last().unwrap()));
    times.dedup();
    assert!(times.len() > 300, "{}", times.len());
}

#[test]
fn who_writes_nonsense_into_the_monitor_is_judged_every_two_seconds_at_most() {
    let mut state = in_force();
    state.after(Event::HandoverFound, now());
    state.after(Event::HandoverRefused { quiet: true }, now());
    state.after(Event::HandoverFound, now());
    assert_eq!(state.found, Some(at(NOW + 2)));
    // A notice is answered, and what follows it is not held up.
    state.after(Event::HandoverRefused { quiet: false }, now());
    state.after(Event::HandoverFound, now());
    assert!(state.found.unwrap() <= at(NOW + 1));
}
