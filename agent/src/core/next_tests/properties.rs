//! The proof that `next` never turns in circles, whatever state and luck it meets.

use proptest::prelude::*;

use super::*;

fn standing() -> impl Strategy<Value = Standing> {
    prop::sample::select(vec![
        Standing::Written,
        Standing::Pending,
        Standing::Approved,
        Standing::Issued,
        Standing::Tried,
        Standing::Void,
    ])
}

prop_compose! {
    fn any_state()(
        flags in prop::array::uniform14(any::<bool>()),
        seed in any::<u64>(),
        own in prop::option::of((-100_i64..100, 0_i64..100)),
        request in prop::option::of((standing(), any::<bool>(), prop::option::of(-2000_i64..10), 0_u32..20, -20_i64..20, some_via())),
        paces in prop::array::uniform9((0_u32..20, -400_i64..400)),
        denials in 0_u32..20,
        refusals in 0_u32..5,
        found in prop::option::of(-5_i64..5),
        hook_run in prop::option::of(-100_i64..5),
        handover in prop::option::of((-100_i64..100, -100_i64..1)),
    ) -> State {
        State {
            seed, denials, refusals,
            key: flags[0], installed: flags[1], told: flags[2], renewal: flags[3], replacing: flags[4],
            offer: flags[5], firewall_read: flags[6], reportable: flags[7],
            refused: flags[8], shoot_way: flags[9], lifeline: flags[10],
            token_wanted: flags[13],
            quiet_until: flags[11].then(|| at(NOW + 1)),
            found: found.map(|found| at(NOW + found)),
            hook_run: hook_run.map(|run| at(NOW + run)),
            handover: handover.map(|(expires, since)| Pending { expires: at(NOW + expires), since: at(NOW + since) }),
            own: own.map(|(renew, rest)| Own { renew_at: at(NOW + renew), not_after: at(NOW + renew + rest), token: flags[12] }),
            request: request.map(|(standing, replacement, sent, polls, poll, via)| Request {
                standing, replacement, polls, via, sent: sent.map(|sent| at(NOW + sent)), poll_at: at(NOW + poll),
            }),
            paces: paces.map(|(failures, pace)| crate::core::Pace { failures, at: at(NOW + pace), ..crate::core::Pace::default() }),
        }
    }
}

fn some_via() -> impl Strategy<Value = Option<Via>> {
    prop::sample::select(vec![None, Some(Via::Own), Some(Via::Bootstrap), Some(Via::Handover)])
}

/// What may come of an action: the worst and the best alike.
fn outcome(action: Action, luck: u8, now: Timestamp) -> Vec<Event> {
    let soon = |seconds: i64| later(now, SignedDuration::from_secs(seconds));
    let failed = |job| vec![Event::Failed(job, Patience::Lag)];
    let done = |job, events: &[Event]| {
        let again = if job == Job::Shoot { 100_000 } else { 10 };
        [events, &[Event::Done(job, soon(again))]].concat()
    };
    let good = luck.is_multiple_of(2);
    match (action, luck % 8) {
        (Action::MakeKey, _) if good => vec![Event::KeyMade],
        (Action::Install, _) if good => vec![Event::Installed],
        (Action::AcceptRenewal, _) if good => vec![Event::RenewalAccepted],
        (Action::TakeUp, _) if good => vec![Event::HandoverTaken { expires: soon(900) }],
        (Action::TakeUp, _) => vec![Event::HandoverRefused { quiet: luck % 8 == 1 }],
        (Action::DropHandover, _) => vec![Event::HandoverDropped],
        (Action::WriteRequest { replacement, via }, _) if good => {
            vec![Event::RequestWritten {
                replacement,
                via: Some(via),
            }]
        }
        (Action::SendRequest(_) | Action::PollRequest(_), 0) => vec![Event::RequestStands(Standing::Pending)],
        (Action::SendRequest(_) | Action::PollRequest(_), 1) => vec![Event::RequestStands(Standing::Approved)],
        (Action::SendRequest(_) | Action::PollRequest(_), 2) => vec![Event::RequestStands(Standing::Issued)],
        (Action::SendRequest(_) | Action::PollRequest(_), 3) => vec![Event::RequestVoid(Void::Spoilt)],
        (Action::SendRequest(_) | Action::PollRequest(_), 4) => vec![Event::RequestVoid(Void::Gone)],
        (Action::SendRequest(_) | Action::PollRequest(_), 5) => vec![Event::RequestVoid(Void::Refused)],
        (Action::SendRequest(Via::Own) | Action::PollRequest(Via::Own), 6) => {
            vec![Event::Failed(Job::Access, Patience::Normal), Event::OwnRefused]
        }
        (Action::TryCandidate, 0) => vec![Event::NotPermitted],
        (Action::TryCandidate, 1) => vec![Event::RequestVoid(Void::Refused)],
        (Action::TryCandidate, 2..5) => vec![Event::CandidateTried],
        (Action::DropRequest, _) if good => vec![Event::RequestDropped],
        (Action::Switch, 0) => vec![Event::Switched(Own {
            renew_at: soon(-5),
            not_after: soon(5),
            token: false,
        })],
        (Action::Switch, 2) => vec![Event::Switched(Own {
            renew_at: soon(5),
            not_after: soon(9),
            token: false,
        })],
        // Tried and switched to in one go.
        (Action::RenewToken, 0 | 2) => {
            let renew_at = soon(i64::from(luck % 8) * 5 - 5);
            let own = Own {
                renew_at,
                not_after: later(renew_at, SignedDuration::from_secs(10)),
                token: true,
            };
            vec![Event::CandidateTried, Event::Switched(own)]
        }
        (Action::RenewToken, 6) => vec![Event::Failed(Job::Access, Patience::Normal), Event::OwnRefused],
        (Action::TryOffer, _) if good => vec![Event::OfferTaken],
        (Action::ReadSeed, 0) => done(Job::Seed, &[Event::OwnAccepted, Event::OfferFound]),
        (Action::ReadSeed, _) if good => done(Job::Seed, &[Event::OwnAccepted]),
        (Action::ReadSeed, 1 | 3) => vec![Event::Failed(Job::Seed, Patience::Normal), Event::OwnRefused],
        (Action::RefreshShoot, _) if good => done(Job::Shoot, &[]),
        (Action::MeasureClock(_), _) if good => done(Job::Clock, &[]),
        (Action::LookForHandover, 2) => done(Job::Handover, &[Event::HandoverFound]),
        (Action::LookForHandover, _) if good => done(Job::Handover, &[]),
        (Action::RenewLifeline, _) if good => done(Job::Lifeline, &[]),
        (Action::Report, _) if good => done(Job::Report, &[]),
        (Action::TellConsumer, _) if good => done(Job::Consumer, &[Event::HookRun]),
        (Action::TryOffer, _) => failed(Job::Offer),
        (Action::ReadSeed, _) => failed(Job::Seed),
        (Action::RefreshShoot, _) => failed(Job::Shoot),
        (Action::MeasureClock(_), _) => failed(Job::Clock),
        (Action::LookForHandover, _) => failed(Job::Handover),
        (Action::RenewLifeline, _) => failed(Job::Lifeline),
        (Action::Report, _) => failed(Job::Report),
        (Action::TellConsumer, _) => vec![Event::HookRun, Event::Failed(Job::Consumer, Patience::Slow)],
        _ => failed(Job::Access),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2000), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn from_any_state_and_with_any_luck_it_comes_to_wait_without_turning_in_circles(
        mut state in any_state(),
        mut seen in (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(bootstrap, bootstrap_new, renewal)| Seen { bootstrap, bootstrap_new, renewal }),
        luck in prop::collection::vec(any::<u8>(), 80),
    ) {
        let mut waited = false;
        for luck in luck {
            let action = next(&state, &seen, now());
            if let Action::Wait { until, .. } = action {
                prop_assert!(until > now());
                waited = true;
                break;
            }
            for event in outcome(action, luck, now()) {
                // Whoever runs it notes the renewal and the bootstrap kubeconfig, so neither is new the next time.
                seen.renewal &= event != Event::RenewalAccepted;
                seen.bootstrap_new &= !matches!(event, Event::Switched(_));
                state.after(event, now());
            }
        }
        prop_assert!(waited, "still busy: {state:?}");
    }

    #[test]
    fn d1_no_luck_makes_it_lose_its_pair_untried_or_wait_for_ever_with_a_handover(
        mut state in any_state(),
        mut seen in (any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(bootstrap, bootstrap_new, renewal)| Seen { bootstrap, bootstrap_new, renewal }),
        luck in prop::collection::vec(any::<u8>(), 300),
    ) {
        state.key = true;
        let mut time = now();
        let mut tried = state.request.is_some_and(|request| request.standing == Standing::Tried);
        let mut since = state.handover.map(|_| time);
        for luck in luck {
            let action = next(&state, &seen, time);
            if let Action::Wait { until, .. } = action {
                prop_assert!(time.duration_until(until) <= LONGEST_WAIT);
                time = until;
                continue;
            }
            let before = state.own;
            for event in outcome(action, luck, time) {
                seen.renewal &= event != Event::RenewalAccepted;
                seen.bootstrap_new &= !matches!(event, Event::Switched(_));
                match event {
                    Event::Switched(_) => prop_assert!(std::mem::take(&mut tried), "switched to what was not tried"),
                    Event::CandidateTried => tried = true,
                    Event::RequestVoid(_) | Event::RequestWritten { .. } | Event::HandoverTaken { .. } => tried = false,
                    _ => {}
                }
                state.after(event, time);
                if !matches!(event, Event::Switched(_)) {
                    prop_assert_eq!(state.own, before);
                }
            }
            since = match action {
                Action::TakeUp if state.handover.is_some() => Some(time),
                _ => since.filter(|_| state.handover.is_some()),
            };
            // The longest that one is good here is 900 s; a wait comes on top.
            if let Some(since) = since {
                prop_assert!(since.duration_until(time) <= SignedDuration::from_secs(960), "{state:?}");
            }
        }
    }
}
