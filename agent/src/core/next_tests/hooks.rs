//! How often a consumer is told, whatever happens around it.

use super::*;

/// For an hour its kubeconfig is another one every few seconds. Says when the hook was run.
fn storm(every: i64, ends: impl Fn(usize) -> bool) -> Vec<i64> {
    let mut state = State {
        own: Some(Own {
            renew_at: at(NOW + 100_000),
            not_after: at(NOW + 200_000),
            token: false,
        }),
        ..in_force()
    };
    let mut runs = Vec::new();
    for second in 0..3600 {
        let now = at(NOW + second);
        if second % every == 0 {
            state.told = false;
        }
        if second % 700 == 0 {
            // The agent is started anew: of its paces nothing is left.
            state = State {
                paces: State::default().paces,
                ..state
            };
        }
        for job in Job::ALL {
            if job != Job::Consumer {
                state.after(Event::Done(job, at(NOW + 100_000)), now);
            }
        }
        match next(&state, &NOTHING, now) {
            Action::TellConsumer => {
                state.after(Event::HookRun, now);
                if ends(runs.len()) {
                    state.told = true;
                    state.after(Event::Done(Job::Consumer, now), now);
                } else {
                    state.after(Event::Failed(Job::Consumer, Patience::Slow), now);
                }
                runs.push(second);
            }
            Action::Wait { until, .. } => assert!(until > now),
            other => panic!("{other:?}"),
        }
    }
    runs
}

#[test]
fn c1_a_storm_of_changes_runs_the_hook_once_a_minute_and_the_last_one_is_told() {
    let runs = storm(7, |_| true);
    assert!(runs.windows(2).all(|two| two[1] - two[0] >= 60), "{runs:?}");
    assert!(
        runs.len() >= 50 && runs.last().is_some_and(|last| *last >= 3500),
        "{runs:?}"
    );
}

#[test]
fn c1_a_hook_that_fails_is_run_again_and_no_more_often_than_once_a_minute() {
    let runs = storm(5000, |run| run == 3);
    assert_eq!(runs.len(), 4, "{runs:?}");
    let waits: Vec<_> = runs.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(waits.iter().all(|wait| *wait >= 60), "{waits:?}");
    assert!(waits[0] <= 61 && waits[1] <= 121 && waits[2] <= 241, "{waits:?}");
}
