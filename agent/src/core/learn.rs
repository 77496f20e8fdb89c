//! What an outcome changes in the state. Owns when a job is tried again; what is done then is `next`'s business.

use jiff::{SignedDuration, Timestamp};

use super::backoff::{LONGEST, Patience, delay, later};
use super::{Job, Own, Pending, Request, Standing, State, Via};

/// Within this time after the issue a refusal of permission is taken for a Role that is still on its way.
const LAG: SignedDuration = SignedDuration::from_secs(60);
/// A request is asked for often at first: signing takes a moment only.
const FIRST_POLLS: [i64; 4] = [100, 200, 400, 800];
const FAST_POLL: SignedDuration = SignedDuration::from_secs(2);
const FAST_POLLS_LAST: SignedDuration = SignedDuration::from_secs(60);
const SLOW_POLL: SignedDuration = SignedDuration::from_secs(10);
/// So many refusals in a row are no accident of an API server that restarts.
pub const REFUSALS: u32 = 3;
/// Between them lies as much, or half of it.
const REFUSAL_RETRY: i64 = 2_000;
/// A thousand agents see a handover at once; they come one after the other within this time.
const SPREAD_MILLIS: u64 = 500;
/// Whoever fills our FirewallMonitor with nonsense is listened to no more often than this.
const AFTER_REFUSAL: SignedDuration = SignedDuration::from_secs(2);

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    KeyMade,
    Installed,
    RenewalAccepted,
    RequestWritten {
        replacement: bool,
        via: Option<Via>,
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
    /// The seed answered to our own certificate.
    OwnAccepted,
    OwnRefused,
    /// A message that was not judged yet stands in our FirewallMonitor.
    HandoverFound,
    /// It changes nothing; quiet if whoever wrote it has nothing to say to us.
    HandoverRefused {
        quiet: bool,
    },
    /// It was the newest handover, and is on disk.
    HandoverTaken {
        expires: Timestamp,
    },
    HandoverDropped,
    /// The consumer's hook is about to be run.
    HookRun,
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
            Event::HookRun => {
                self.hook_run = Some(now);
                return;
            }
            Event::Installed => self.installed = true,
            Event::RenewalAccepted => self.renewal = true,
            Event::RequestWritten { replacement, via } => {
                self.replacing = false;
                self.request = Some(Request {
                    standing: Standing::Written,
                    via,
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
            Event::OwnAccepted => {
                self.refusals = 0;
                if std::mem::take(&mut self.refused) {
                    self.pace_mut(Job::Report).succeed(now);
                }
                return;
            }
            Event::OwnRefused => return self.own_refused(now),
            Event::HandoverFound => {
                let spread = super::backoff::mix(self.seed) % (SPREAD_MILLIS + 1);
                let at = later(now, SignedDuration::from_millis(i64::try_from(spread).unwrap_or(0)));
                // The one who was refused last sets the pace for the next.
                self.found = Some(
                    self.quiet_until
                        .map_or(at, |quiet| at.max(quiet.min(later(now, AFTER_REFUSAL)))),
                );
                return;
            }
            Event::HandoverRefused { quiet } => {
                self.found = None;
                self.quiet_until = quiet.then(|| later(now, AFTER_REFUSAL));
                return;
            }
            Event::HandoverTaken { expires } => {
                self.found = None;
                self.handover = Some(Pending { expires, since: now });
                self.denials = 0;
                self.replacing = false;
                // Whatever was asked for on another way, or with the handover before, is asked for anew.
                self.set_standing(Standing::Void);
                self.pace_mut(Job::Report).succeed(now);
            }
            Event::HandoverDropped => {
                self.handover = None;
                self.set_standing(Standing::Void);
                self.pace_mut(Job::Report).succeed(now);
            }
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
        self.handover = None;
        self.refusals = 0;
        self.refused = false;
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

    /// It is tried again quickly until it is sure, and then as patiently as everything that fails.
    fn own_refused(&mut self, now: Timestamp) {
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals < REFUSALS {
            let spread = super::backoff::mix(self.seed ^ u64::from(self.refusals)) % 1_000;
            let wait = REFUSAL_RETRY - i64::try_from(spread).unwrap_or(0);
            self.pace_mut(Job::Seed).at = later(now, SignedDuration::from_millis(wait));
        } else if !self.refused {
            self.refused = true;
            self.pace_mut(Job::Access).succeed(now);
            self.pace_mut(Job::Report).succeed(now);
            self.pace_mut(Job::Handover).succeed(now);
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
