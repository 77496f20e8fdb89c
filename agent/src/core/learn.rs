//! What an outcome changes in the state. Owns when a job is tried again; what is done then is `next`'s business.

use jiff::{SignedDuration, Timestamp};

use super::backoff::{LONGEST, Patience, delay, later};
use super::{Job, Own, Request, Standing, State};

/// Within this time after the issue a refusal of permission is taken for a Role that is still on its way.
const LAG: SignedDuration = SignedDuration::from_secs(60);
/// A request is asked for often at first: signing takes a moment only.
const FIRST_POLLS: [i64; 4] = [100, 200, 400, 800];
const FAST_POLL: SignedDuration = SignedDuration::from_secs(2);
const FAST_POLLS_LAST: SignedDuration = SignedDuration::from_secs(60);
const SLOW_POLL: SignedDuration = SignedDuration::from_secs(10);

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    KeyMade,
    Installed,
    RenewalAccepted,
    RequestWritten {
        replacement: bool,
    },
    /// The seed has our request, and this is how it stands there.
    RequestStands(Standing),
    RequestVoid(Void),
    RequestDropped,
    /// The certificate was issued and is not usable yet because of permissions.
    NotPermitted,
    CandidateTried,
    /// A pair is in force, as is what the consumer reads.
    Switched(Own),
    OfferFound,
    OfferTaken,
    /// Done, and due again then.
    Done(Job, Timestamp),
    Failed(Job, Patience),
}

/// Why nothing comes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Void {
    /// Under its name something stood before we sent it: another's request, or one already refused.
    Spoilt,
    /// It was denied, or it failed, or what came of it is not what we asked for.
    Refused,
    /// The seed does not have it any more.
    Gone,
}

impl State {
    pub fn after(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::KeyMade => self.key = true,
            Event::Installed => self.installed = true,
            Event::RenewalAccepted => self.renewal = true,
            Event::RequestWritten { replacement } => {
                self.replacing = false;
                self.request = Some(Request {
                    standing: Standing::Written,
                    replacement,
                    sent: None,
                    polls: 0,
                    poll_at: now,
                });
            }
            Event::RequestStands(standing) => self.request_stands(standing, now),
            Event::RequestVoid(void) => return self.request_void(void, now),
            Event::RequestDropped => self.request = None,
            Event::NotPermitted => {
                let issued = self.request.and_then(|request| request.sent).unwrap_or(now);
                let patience = if issued.duration_until(now) < LAG {
                    Patience::Lag
                } else {
                    Patience::Normal
                };
                return self.fail(Job::Access, patience, now);
            }
            Event::CandidateTried => self.set_standing(Standing::Tried),
            Event::Switched(own) => return self.switched(own, now),
            Event::OfferFound => self.offer = true,
            Event::OfferTaken => self.offer = false,
            // No later than the longest wait: what is due further ahead is looked at in between.
            Event::Done(job, again) => return self.pace_mut(job).succeed(again.min(later(now, LONGEST))),
            Event::Failed(job, patience) => return self.fail(job, patience, now),
        }
        let job = if event == Event::OfferFound || event == Event::OfferTaken {
            Job::Offer
        } else {
            Job::Access
        };
        self.pace_mut(job).succeed(now);
    }

    fn switched(&mut self, own: Own, now: Timestamp) {
        self.own = Some(own);
        self.installed = true;
        self.renewal = false;
        self.request = None;
        for job in [Job::Seed, Job::Shoot, Job::Report] {
            self.pace_mut(job).succeed(now);
        }
        // A new certificate that is due for renewal already: this clock runs ahead, or the signer gives next to nothing.
        let wait = if own.renew_at <= now {
            self.denials = self.denials.saturating_add(1);
            delay(Patience::Slow, self.denials - 1, self.seed)
        } else {
            self.denials = 0;
            SignedDuration::ZERO
        };
        self.pace_mut(Job::Access).succeed(later(now, wait));
    }

    fn request_stands(&mut self, standing: Standing, now: Timestamp) {
        let Some(request) = &mut self.request else { return };
        let sent = *request.sent.get_or_insert(now);
        let wait = match usize::try_from(request.polls)
            .ok()
            .and_then(|poll| FIRST_POLLS.get(poll))
        {
            Some(millis) => SignedDuration::from_millis(*millis),
            None if sent.duration_until(now) < FAST_POLLS_LAST => FAST_POLL,
            None => SLOW_POLL,
        };
        request.standing = standing;
        request.polls = request.polls.saturating_add(1);
        request.poll_at = later(now, wait);
    }

    fn request_void(&mut self, void: Void, now: Timestamp) {
        let Some(request) = self.request else { return };
        self.set_standing(Standing::Void);
        if void == Void::Spoilt && !request.replacement {
            // Whoever spoilt it cannot know the next one before it is sent: no reason to wait, once.
            self.replacing = true;
            self.pace_mut(Job::Access).succeed(now);
        } else if void == Void::Gone {
            self.fail(Job::Access, Patience::Normal, now);
        } else {
            let wait = delay(Patience::Slow, self.denials, self.seed);
            self.denials = self.denials.saturating_add(1);
            self.pace_mut(Job::Access).succeed(later(now, wait));
        }
    }

    fn set_standing(&mut self, standing: Standing) {
        if let Some(request) = &mut self.request {
            request.standing = standing;
        }
    }

    fn fail(&mut self, job: Job, patience: Patience, now: Timestamp) {
        let seed = self.seed ^ super::backoff::mix(job as u64);
        self.pace_mut(job).fail(patience, seed, now);
    }
}
