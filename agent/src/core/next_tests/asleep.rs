//! A shoot that is hibernated for months, by a clock that is set: whatever leads into it fails, and the certificate is
//! renewed from the seed alone, each time at its time.

use super::*;

const DAY: i64 = 86_400;
/// As a seed gives it.
const LIFE: i64 = 30 * DAY;

fn issued(now: Timestamp) -> Own {
    let not_after = later(now, SignedDuration::from_secs(LIFE));
    Own {
        renew_at: later(now, SignedDuration::from_secs(LIFE / 10 * 8)),
        not_after,
    }
}

#[test]
fn a7_a_shoot_that_sleeps_for_half_a_year_holds_no_renewal_up() {
    let mut now = now();
    let end = later(now, SignedDuration::from_secs(180 * DAY));
    let mut state = State {
        own: Some(issued(now)),
        reportable: true,
        firewall_read: true,
        ..in_force()
    };
    let (mut renewals, mut attempts) = (0, 0_u32);
    while now < end {
        let own = state.own.unwrap();
        assert!(now < own.not_after, "the certificate ended at {}", own.not_after);
        let tomorrow = later(now, SignedDuration::from_secs(600));
        let event = match next(&state, &Seen::default(), now) {
            Action::Wait { until, .. } => {
                now = until;
                continue;
            }
            Action::WriteRequest { replacement, via } => {
                assert_eq!(via, Via::Own);
                assert!(now >= own.renew_at, "too early");
                assert!(now < later(own.renew_at, SignedDuration::from_mins(10)), "too late");
                Event::RequestWritten {
                    replacement,
                    via: Some(via),
                }
            }
            Action::SendRequest(_) | Action::PollRequest(_) => Event::RequestStands(Standing::Issued),
            Action::TryCandidate => Event::CandidateTried,
            Action::Switch => {
                renewals += 1;
                Event::Switched(issued(now))
            }
            Action::ReadSeed => Event::Done(Job::Seed, tomorrow),
            Action::MeasureClock(_) => Event::Done(Job::Clock, tomorrow),
            Action::TellConsumer => Event::Done(Job::Consumer, tomorrow),
            Action::RefreshShoot => Event::Failed(Job::Shoot, Patience::Normal),
            Action::Report => Event::Failed(Job::Report, Patience::Normal),
            Action::RenewLifeline => Event::Failed(Job::Lifeline, Patience::Normal),
            Action::LookForHandover => Event::Failed(Job::Handover, Patience::Normal),
            other => panic!("{other:?}"),
        };
        attempts += 1;
        state.after(event, now);
    }
    assert_eq!(renewals, 180 / 24);
    // Each of four jobs every five minutes or less often, and not in a loop.
    assert!(attempts < 180 * 24 * 60, "{attempts} attempts");
}
