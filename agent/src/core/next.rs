//! The one function that decides what the agent does. First whatever leads to a working certificate, then what the
//! certificate is for, and if nothing is due, what is waited for and until when.

use contract::csr::GIVEN_UP;
use jiff::{SignedDuration, Timestamp};

use super::backoff::{due, later};
use super::{Action, Job, Request, Seen, Standing, State, Via, Why};

/// So long an answer may take before its absence is worth a word.
const ANSWER: SignedDuration = SignedDuration::from_secs(5);
/// So long a handover has to itself.
const HOLD: SignedDuration = SignedDuration::from_secs(20);
/// A consumer that is restarted over and over does no work.
const BETWEEN_HOOKS: SignedDuration = SignedDuration::from_mins(1);
/// Nothing is waited for longer: whatever was overlooked is seen then.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(60);

pub fn next(state: &State, seen: &Seen, now: Timestamp) -> Action {
    // Neither waits for whatever else failed.
    if state.found.is_some_and(|at| due(at, now)) {
        return Action::TakeUp;
    }
    if state.handover.is_some_and(|handover| handover.expires <= now) {
        return Action::DropHandover;
    }
    let access = if state.pace(Job::Access).due(now) {
        access(state, seen, now)
    } else {
        None
    };
    if let Some(action) = access {
        return action;
    }
    let ready = |job: &Job| wanted(state, seen, *job, now) && state.pace(*job).due(now);
    match JOBS.into_iter().find(ready) {
        Some(Job::Offer) => Action::TryOffer,
        Some(Job::Seed) => Action::ReadSeed,
        Some(Job::Shoot) => Action::RefreshShoot,
        Some(Job::Handover) => Action::LookForHandover,
        Some(Job::Clock) => Action::MeasureClock(at_hand(state, seen, now)),
        Some(Job::Report) => Action::Report,
        Some(Job::Lifeline) => Action::RenewLifeline,
        Some(Job::Consumer) => Action::TellConsumer,
        Some(Job::Access) | None => wait(state, seen, now),
    }
}

/// In the order of their urgency: somebody may wait for a report with a handover in his hand. Telling the consumer may take long, so it comes last.
const JOBS: [Job; 8] = [
    Job::Report,
    Job::Offer,
    Job::Seed,
    Job::Shoot,
    Job::Handover,
    Job::Clock,
    Job::Lifeline,
    Job::Consumer,
];

fn access(state: &State, seen: &Seen, now: Timestamp) -> Option<Action> {
    if !state.key {
        return Some(Action::MakeKey);
    }
    if state.own.is_some() && !state.installed {
        return Some(Action::Install);
    }
    if state.own.is_some() && seen.renewal && !state.renewal {
        return Some(Action::AcceptRenewal);
    }
    let via = via(state, seen, now)?;
    if via == Via::Own && token_due(state, now) {
        return Some(Action::RenewToken);
    }
    match state.request {
        // Its requester would be another one.
        Some(request) if request.via.is_some_and(|made_for| made_for != via) => Some(Action::DropRequest),
        // A request that was made is brought to its end, even if it is not wanted any more: it may be in force already.
        Some(request) => in_flight(request, via, now),
        None if certificate_wanted(state, via, now) => Some(Action::WriteRequest {
            replacement: state.replacing,
            via,
        }),
        None => None,
    }
}

/// With what the seed knows us by we have tokens made ourselves. One that is due is renewed though a certificate is wanted
/// in its place: the seed may sign none.
fn token_due(state: &State, now: Timestamp) -> bool {
    let Some(own) = state.own else { return false };
    let due = now >= own.renew_at || (state.renewal && state.token_wanted);
    if own.token {
        due
    } else {
        state.token_wanted && due && state.request.is_none()
    }
}

fn in_flight(request: Request, via: Via, now: Timestamp) -> Option<Action> {
    match request.standing {
        Standing::Written => Some(Action::SendRequest(via)),
        Standing::Pending | Standing::Approved if given_up(&request, now) => Some(Action::DropRequest),
        Standing::Pending | Standing::Approved => due(request.poll_at, now).then_some(Action::PollRequest(via)),
        Standing::Issued => Some(Action::TryCandidate),
        Standing::Tried => Some(Action::Switch),
        Standing::Void => Some(Action::DropRequest),
    }
}

fn given_up(request: &Request, now: Timestamp) -> bool {
    request.sent.is_some_and(|sent| sent.duration_until(now) >= GIVEN_UP)
}

fn certificate_wanted(state: &State, via: Via, now: Timestamp) -> bool {
    // Whoever gave us another way wants it used, and whoever refuses what we have leaves no choice.
    via != Via::Own || state.renewal || state.own.is_none_or(|own| now >= own.renew_at || now >= own.not_after)
}

/// Which way leads to a certificate: an authentic handover goes before everything, whatever still works; then what a
/// person put there since; then our own certificate; at last the way we once came in.
fn via(state: &State, seen: &Seen, now: Timestamp) -> Option<Via> {
    if state.handover.is_some_and(|handover| now < handover.expires) {
        Some(Via::Handover)
    } else if seen.bootstrap && seen.bootstrap_new {
        Some(Via::Bootstrap)
    } else if state.accepted(now) {
        Some(Via::Own)
    } else {
        seen.bootstrap.then_some(Via::Bootstrap)
    }
}

/// The credential that the seed we are at knows us by.
fn at_hand(state: &State, seen: &Seen, now: Timestamp) -> Option<Via> {
    if state.live(now) {
        Some(Via::Own)
    } else {
        via(state, seen, now)
    }
}

/// While a handover is being used, nothing waits for a seed that may be dead.
fn held(state: &State, now: Timestamp) -> bool {
    state
        .handover
        .is_some_and(|handover| !due(later(handover.since, HOLD), now))
}

/// Whether a job makes sense with what is at hand.
fn wanted(state: &State, seen: &Seen, job: Job, now: Timestamp) -> bool {
    match job {
        Job::Access => true,
        Job::Clock => (via(state, seen, now).is_some() || state.lifeline) && !held(state, now),
        Job::Consumer => to_be_told(state, now) && hook_free(state).is_none_or(|at| due(at, now)),
        Job::Handover => state.shoot_way,
        Job::Lifeline => state.lifeline && !held(state, now),
        Job::Offer => state.live(now) && state.offer && !held(state, now),
        // Without the seed a report still goes through the shoot: it is how the others learn of the trouble.
        Job::Report => state.key && state.reportable,
        Job::Seed => state.live(now) && !held(state, now),
        Job::Shoot => state.live(now) && state.firewall_read && !held(state, now),
    }
}

fn to_be_told(state: &State, now: Timestamp) -> bool {
    state.own.is_some() && state.installed && !state.told && !held(state, now)
}

/// When the hook may be run again, whatever happened meanwhile.
fn hook_free(state: &State) -> Option<Timestamp> {
    state.hook_run.map(|run| later(run, BETWEEN_HOOKS))
}

fn wait(state: &State, seen: &Seen, now: Timestamp) -> Action {
    let mut until = later(now, LONGEST_WAIT);
    let mut sooner = |at: Timestamp| {
        if at > now && at < until {
            until = at;
        }
    };
    for job in Job::ALL {
        if wanted(state, seen, job, now) {
            sooner(state.pace(job).at);
        }
    }
    if let Some(free) = hook_free(state).filter(|_| to_be_told(state, now)) {
        sooner(free);
    }
    if let Some(request) = state.request {
        sooner(request.poll_at);
    }
    if let Some(found) = state.found {
        sooner(found);
    }
    if let Some(handover) = state.handover {
        sooner(handover.expires);
        sooner(later(handover.since, HOLD));
    }
    if let Some(own) = state.own {
        sooner(own.renew_at);
        sooner(own.not_after);
    }
    Action::Wait {
        until,
        why: why(state, seen, now),
    }
}

fn why(state: &State, seen: &Seen, now: Timestamp) -> Why {
    let failed = |job: &Job| wanted(state, seen, *job, now) && state.pace(*job).failures > 0;
    if via(state, seen, now).is_none() {
        return Why::NoCredential;
    }
    // A refused request waits too, and has no failed call to show for it.
    let refused = state.request.is_some_and(|request| request.standing == Standing::Void);
    if refused || failed(&Job::Access) {
        return Why::Failed(Job::Access);
    }
    if let Some(request) = state.request {
        let fresh = request.sent.is_none_or(|sent| sent.duration_until(now) < ANSWER);
        match request.standing {
            Standing::Pending if !fresh => return Why::Undecided,
            Standing::Approved if !fresh => return Why::Unsigned,
            _ => return Why::Answer,
        }
    }
    const SHOWN: [Job; 8] = [
        Job::Seed,
        Job::Offer,
        Job::Shoot,
        Job::Report,
        Job::Handover,
        Job::Lifeline,
        Job::Consumer,
        Job::Clock,
    ];
    SHOWN
        .iter()
        .find(|job| failed(job))
        .map_or(Why::Steady, |job| Why::Failed(*job))
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
