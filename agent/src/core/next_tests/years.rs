//! Long lives by a clock that is set: each renewal comes at its time, also while a shoot sleeps for months, and those of
//! a fleet do not come together.

use std::collections::BTreeMap;

use contract::names::FirewallName;

use super::*;
use crate::core::renewal_at;

const DAY: i64 = 86_400;
/// As a seed gives it; the signer backdates by five minutes.
const LIFE: i64 = 30 * DAY;
const BACKDATED: i64 = 300;

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    later(time, SignedDuration::from_secs(seconds))
}

fn issued(firewall: &FirewallName, now: Timestamp) -> Own {
    let (not_before, not_after) = (after(now, -BACKDATED), after(now, LIFE));
    Own {
        renew_at: renewal_at(firewall, not_before, not_after),
        not_after,
        token: false,
    }
}

/// Lives for so many days with a seed that works, and says when it renewed.
fn lives(firewall: &FirewallName, days: i64, shoot_awake: bool) -> Vec<Timestamp> {
    let mut now = now();
    let end = after(now, days * DAY);
    let mut state = State {
        own: Some(issued(firewall, now)),
        reportable: true,
        firewall_read: true,
        ..in_force()
    };
    let (mut renewals, mut attempts) = (Vec::new(), 0_i64);
    while now < end {
        let own = state.own.unwrap();
        assert!(now < own.not_after, "the certificate ended at {}", own.not_after);
        let soon = after(now, 600);
        let of_shoot = |job| {
            if shoot_awake {
                Event::Done(job, soon)
            } else {
                Event::Failed(job, Patience::Normal)
            }
        };
        let event = match next(&state, &Seen::default(), now) {
            Action::Wait { until, .. } => {
                now = until;
                continue;
            }
            Action::WriteRequest { replacement, via } => {
                assert_eq!(via, Via::Own);
                assert!(now >= own.renew_at && now < after(own.renew_at, 600), "not in its time");
                Event::RequestWritten {
                    replacement,
                    via: Some(via),
                }
            }
            Action::SendRequest(_) | Action::PollRequest(_) => Event::RequestStands(Standing::Issued),
            Action::TryCandidate => Event::CandidateTried,
            Action::Switch => {
                renewals.push(now);
                Event::Switched(issued(firewall, now))
            }
            Action::ReadSeed => Event::Done(Job::Seed, soon),
            Action::MeasureClock(_) => Event::Done(Job::Clock, soon),
            Action::TellConsumer => Event::Done(Job::Consumer, soon),
            Action::RefreshShoot => of_shoot(Job::Shoot),
            Action::Report => of_shoot(Job::Report),
            Action::RenewLifeline => of_shoot(Job::Lifeline),
            Action::LookForHandover => of_shoot(Job::Handover),
            other => panic!("{other:?}"),
        };
        attempts += 1;
        state.after(event, now);
    }
    // Each job every few minutes, and none in a loop.
    assert!(attempts < days * 24 * 60, "{attempts} attempts in {days} days");
    renewals
}

fn firewall(number: u32) -> FirewallName {
    FirewallName::parse(&format!("shoot--p--s-firewall-{number:05x}")).unwrap()
}

#[test]
fn a7_a_shoot_that_sleeps_for_half_a_year_holds_no_renewal_up() {
    let renewals = lives(&firewall(1), 180, false).len();
    assert!((180 / 27..=180 / 21).contains(&renewals), "{renewals}");
}

#[test]
fn b2_a_year_of_a_fleet_has_each_renewal_in_its_time() {
    for number in 0..6 {
        let renewals = lives(&firewall(number), 365, true);
        assert!((365 / 27..=365 / 21).contains(&renewals.len()), "{}", renewals.len());
    }
}

/// The worst case: all of them came in at the same moment, as after a move of their seed.
#[test]
fn b2_a_fleet_that_came_in_together_does_not_renew_together() {
    let mut at_once: BTreeMap<i64, u32> = BTreeMap::new();
    let fleet: Vec<FirewallName> = (0..300).map(firewall).collect();
    let mut due: Vec<Timestamp> = vec![now(); fleet.len()];
    for _ in 0..13 {
        for (firewall, due) in fleet.iter().zip(&mut due) {
            let own = issued(firewall, *due);
            let life = due.duration_until(own.not_after).as_secs();
            let share = due.duration_until(own.renew_at).as_secs() * 1000 / life;
            assert!((699..=901).contains(&share), "renewed at {share} thousandths");
            *due = own.renew_at;
            *at_once.entry(due.as_second()).or_default() += 1;
        }
    }
    let most = at_once.values().max().copied();
    assert_eq!(most, Some(1), "two in one second");
}
