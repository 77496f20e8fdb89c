//! What the approver's canaries tell of the CAs that firewalls' certificates come from. A canary is a certificate of the
//! approver's own, without any rights; one of each issuer asks again and again whether it is still let in. What an API
//! server publishes of its CAs never forgets one, so only such an attempt tells the truth. Times come from whoever
//! observed, an issuer is the hash of a key.
//!
//! A false verdict would have a whole fleet come in anew, so a server that is down, restarts or has replicas of two
//! minds is no evidence, and neither is a canary near its end. Nor is a refusal while nothing that the signer issues
//! now is accepted: no firewall would get in with anything better.

use std::collections::BTreeSet;

use contract::record::Certificate;
use jiff::{SignedDuration, Timestamp};

use super::verdict::Issuer;

/// So many refusals, over so long, without an acceptance in between.
pub const REFUSALS: u32 = 5;
pub const REFUSED_FOR: SignedDuration = SignedDuration::from_secs(5);
/// What lies further apart than this says nothing of the same server any more.
const APART: SignedDuration = SignedDuration::from_secs(10);
/// A roll has an old and a new issuer; more than these are not followed.
const ISSUERS_MAX: usize = 4;
/// A new canary is made this often at most, and at least.
const SOONEST: SignedDuration = SignedDuration::from_secs(2);
const LATEST: SignedDuration = SignedDuration::from_mins(2);
/// Of a canary whose issuer is in no bundle.
pub const UNLISTED: &str = "unlisted";

/// How the seed took a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted,
    Refused,
    /// None, or one that tells nothing of the certificate.
    Nothing,
}

#[derive(Debug, Default)]
pub struct Canaries {
    /// By issuer; last the one that the newest canary came from.
    standings: Vec<Standing>,
    /// When the seed last accepted somebody who has no client certificate: the approver's own token.
    others: Option<Timestamp>,
    made: Option<Timestamp>,
    /// When something happened for which another issuer is to be expected.
    stirred: Option<Timestamp>,
    /// By the newest canary's life.
    latest: Option<SignedDuration>,
}

#[derive(Debug)]
struct Standing {
    issuer: String,
    /// Begin of the first of the certificates that it has issued since it is the one that signs.
    since: Timestamp,
    /// A canary near its end is not believed: clocks differ.
    believed_until: Timestamp,
    accepted: Option<Timestamp>,
    refusals: Option<Refusals>,
    dead: bool,
}

/// In a row.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    first: Timestamp,
    last: Timestamp,
    count: u32,
}

/// What there is to say of the seed's issuers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issuers {
    /// Certificates of these are refused, while the seed accepts what it issues now.
    pub refused: BTreeSet<String>,
    /// Certificates come from this one, and are accepted.
    pub newest: Option<Newest>,
    /// What is issued now is refused.
    pub signer_not_trusted: bool,
}

/// How the canary of one issuer fares.
#[derive(Clone, Copy, Debug)]
pub struct Tried<'a> {
    pub issuer: &'a str,
    /// Certificates come from it now.
    pub newest: bool,
    /// When it was let in last.
    pub accepted: Option<Timestamp>,
    /// Since when it is refused, where it was not let in since.
    pub refused: Option<Timestamp>,
    /// That it is refused is found.
    pub dead: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    pub issuer: String,
    pub since: Timestamp,
}

impl Canaries {
    /// A canary was issued, valid from when until when.
    pub fn issued(&mut self, issuer: &str, not_before: Timestamp, not_after: Timestamp, now: Timestamp) {
        let left = now.duration_until(not_after).max(SignedDuration::ZERO);
        let believed_until = now + left / 4 * 3;
        self.latest = Some((left / 3).clamp(SOONEST, LATEST));
        if let Some(newest) = self.standings.last_mut().filter(|newest| newest.issuer == issuer) {
            newest.believed_until = believed_until;
            return;
        }
        // An issuer that comes back is judged anew: certificates come from it, whatever was before.
        self.standings.retain(|standing| standing.issuer != issuer);
        if self.standings.len() == ISSUERS_MAX {
            self.standings.remove(0);
        }
        self.standings.push(Standing {
            issuer: issuer.to_owned(),
            since: not_before,
            believed_until,
            accepted: None,
            refusals: None,
            dead: false,
        });
    }

    /// It turned out which issuer a canary came from.
    pub fn identified(&mut self, was: &str, issuer: &str) {
        let known = self.standings.iter().any(|standing| standing.issuer == issuer);
        let standing = self.standings.iter_mut().find(|standing| standing.issuer == was);
        if let Some(standing) = standing.filter(|_| !known) {
            issuer.clone_into(&mut standing.issuer);
        }
    }

    /// The newest canary of this issuer was tried.
    pub fn answered(&mut self, issuer: &str, answer: Answer, at: Timestamp) {
        let newest = self.standings.last().is_some_and(|newest| newest.issuer == issuer);
        let Some(standing) = self.standings.iter_mut().find(|standing| standing.issuer == issuer) else {
            return;
        };
        if at >= standing.believed_until {
            return;
        }
        match answer {
            Answer::Nothing => return,
            Answer::Accepted => {
                standing.accepted = Some(at);
                standing.refusals = None;
                standing.dead = false;
            }
            Answer::Refused => {
                let before = standing.refusals.filter(|before| before.last + APART >= at);
                if before.is_none() && newest {
                    // Maybe its time is over, and whoever signs knows already.
                    self.stirred = Some(at);
                }
                standing.refusals = Some(Refusals {
                    first: before.map_or(at, |before| before.first),
                    last: at,
                    count: before.map_or(1, |before| before.count.saturating_add(1)),
                });
            }
        }
        self.judge();
    }

    /// The seed answered somebody who has no client certificate.
    pub fn others(&mut self, at: Timestamp) {
        self.others = Some(at);
        self.judge();
    }

    /// The bundle of client CAs changed: soon certificates may come from another.
    pub fn stir(&mut self, now: Timestamp) {
        self.stirred = Some(now);
    }

    /// A canary is being made.
    pub fn make(&mut self, now: Timestamp) {
        self.made = Some(now);
    }

    /// It was not: another is due, as soon as whoever makes them thinks fit.
    pub fn failed(&mut self) {
        self.made = None;
    }

    /// When the next canary is to be made. After something happened it is as long again as that is ago: what follows
    /// from it soon is seen soon, and it costs few requests.
    pub fn due(&self) -> Timestamp {
        let Some(made) = self.made else { return Timestamp::MIN };
        let latest = self.latest.unwrap_or(LATEST);
        let stirred = self.stirred.map_or(latest, |stirred| stirred.duration_until(made));
        made + stirred.clamp(SOONEST, latest)
    }

    /// Those whose canaries still tell something.
    pub fn believed(&self, now: Timestamp) -> BTreeSet<&str> {
        let standings = self.standings.iter().filter(|standing| now < standing.believed_until);
        standings.map(|standing| standing.issuer.as_str()).collect()
    }

    /// How those fare that still tell something.
    pub fn tried(&self, now: Timestamp) -> impl Iterator<Item = Tried<'_>> {
        let newest = self.newest();
        let believed = self
            .standings
            .iter()
            .filter(move |standing| now < standing.believed_until);
        believed.map(move |standing| Tried {
            issuer: &standing.issuer,
            newest: newest == Some(standing.issuer.as_str()),
            accepted: standing.accepted,
            refused: standing.refusals.map(|refusals| refusals.first),
            dead: standing.dead,
        })
    }

    /// Whether one was refused the last time: then it is asked more often, so that replicas of two minds show.
    pub fn in_doubt(&self) -> bool {
        self.standings
            .iter()
            .any(|standing| standing.refusals.is_some() && !standing.dead)
    }

    /// Where the newest canary came from.
    pub fn newest(&self) -> Option<&str> {
        self.standings.last().map(|newest| newest.issuer.as_str())
    }

    pub fn issuers(&self) -> Issuers {
        let Some((newest, older)) = self.standings.split_last() else {
            return Issuers::none();
        };
        let refused = older.iter().filter(|standing| standing.dead);
        let trusted = newest.accepted.is_some() && !newest.dead;
        Issuers {
            refused: refused.map(|standing| standing.issuer.clone()).collect(),
            newest: trusted.then(|| Newest {
                issuer: newest.issuer.clone(),
                since: newest.since,
            }),
            signer_not_trusted: newest.dead,
        }
    }

    fn judge(&mut self) {
        let Some((newest, older)) = self.standings.split_last_mut() else {
            return;
        };
        // What was found stays found until it is accepted again: a canary that is over tells nothing more.
        newest.dead |= newest.is_refused(self.others);
        for standing in older {
            let meanwhile = standing
                .refusals
                .is_some_and(|refusals| newest.is_good_during(&refusals));
            standing.dead |= meanwhile && standing.is_refused(self.others);
        }
    }
}

impl Standing {
    fn is_refused(&self, others: Option<Timestamp>) -> bool {
        self.refusals.is_some_and(|refusals| {
            refusals.count >= REFUSALS
                && refusals.first.duration_until(refusals.last) >= REFUSED_FOR
                && others.is_some_and(|others| others >= refusals.first)
        })
    }

    fn is_good_during(&self, refusals: &Refusals) -> bool {
        self.refusals.is_none()
            && self
                .accepted
                .is_some_and(|accepted| accepted >= refusals.first && accepted <= refusals.last + APART)
    }
}

impl Issuers {
    pub const fn none() -> Self {
        Self {
            refused: BTreeSet::new(),
            newest: None,
            signer_not_trusted: false,
        }
    }

    /// What became of the issuer of this certificate. One that is younger than the new issuer is not renewed: somebody
    /// still signs with the old key, and would again.
    pub fn of(&self, certificate: &Certificate) -> Issuer {
        let Some(issuer) = &certificate.issuer_key else {
            return Issuer::Unsuspected;
        };
        if self.refused.contains(issuer) {
            return Issuer::Refused;
        }
        match &self.newest {
            Some(newest) if newest.issuer != *issuer && certificate.not_before <= newest.since => Issuer::Superseded,
            _ => Issuer::Unsuspected,
        }
    }
}

#[cfg(test)]
#[path = "canary_tests.rs"]
mod tests;
