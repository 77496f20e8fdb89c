//! Whether a firewall's access is still good. One function over what is on record and what is to be seen, so that a
//! restart comes to the same answer, with the times that were on record before it.

use contract::cert::counts_from;
use contract::reasons::Reason;
use contract::record::{Certificate, Endpoint, Record};
use contract::report::Report;
use jiff::{SignedDuration, Timestamp};

/// So long a firewall is given to follow another server or CA by itself: on a living seed it reads of it in its Secret.
pub const FOLLOWS_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// A firewall that says it is refused is let in anew this often at most.
pub const REFUSED_AT_MOST: SignedDuration = SignedDuration::from_mins(5);

pub struct Facts<'a> {
    /// Which seed this is, and where firewalls reach it now.
    pub seed: &'a str,
    pub endpoint: &'a Endpoint,
    /// The firewall's report, if the pinned key signed it.
    pub report: Option<&'a Report>,
    pub issuer: Issuer,
}

/// What became of the CA that the firewall's certificate came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// Nothing speaks against it.
    Unsuspected,
    /// It is accepted, and new certificates come from another.
    Superseded,
    /// Certificates of it are refused, while those of another are accepted.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Good; to be looked at again then, at the latest.
    Valid(Option<Timestamp>),
    /// Good, and the firewall should get another one by itself now.
    Renew(Reason),
    /// Of no use: the firewall has to come in anew.
    Rebootstrap(Reason),
}

/// The record is the one before anything of now was written into it, but for `endpoint`.
pub fn verdict(record: &Record, facts: &Facts<'_>, now: Timestamp) -> Verdict {
    // What was found stays found until the firewall has come in: nothing else closes it.
    if let Some(pending) = &record.handover {
        return Verdict::Rebootstrap(Reason::parse(&pending.reason).unwrap_or(Reason::Requested));
    }
    if !record.seed.is_empty() && record.seed != facts.seed {
        return Verdict::Rebootstrap(Reason::SeedMoved);
    }
    if !record.settled() {
        return Verdict::Valid(None);
    }
    let Some(certificate) = &record.certificate else {
        // The record was lost, and only its key is known again: the firewall says where it is at home.
        return match facts.report {
            Some(report) if report.seed != facts.seed => Verdict::Rebootstrap(Reason::SeedMoved),
            _ => Verdict::Valid(None),
        };
    };
    let here = facts.report.filter(|report| report.seed == facts.seed);
    let Some((from, ends)) = life(certificate, here, now) else {
        // It renews its token by itself; while it cannot say so, nothing speaks against it.
        return Verdict::Valid(None);
    };
    if ends <= now {
        return Verdict::Rebootstrap(Reason::Expired);
    }
    if facts.issuer == Issuer::Refused {
        return Verdict::Rebootstrap(Reason::IssuerRefused);
    }
    let mut recheck = ends;
    if let Some(report) = here {
        if report.refused && is_of(report, certificate) && report.is_fresh(now) && rested(record, now) {
            return Verdict::Rebootstrap(Reason::AgentRefused);
        }
        if let Some(reason) = elsewhere(report, facts.endpoint) {
            let patience = facts.endpoint.since + FOLLOWS_WITHIN;
            // Where it is nobody answers any more: there is nothing to wait for.
            let lost = report.cut_off && report.is_fresh(now);
            if lost || now >= patience {
                return Verdict::Rebootstrap(reason);
            }
            recheck = recheck.min(patience);
        }
    }
    if facts.issuer == Issuer::Superseded {
        return Verdict::Renew(Reason::IssuerSuperseded);
    }
    // Firewalls renew at 70 to 90 % of a certificate's life.
    let late = from + from.duration_until(ends) / 10 * 9;
    if late <= now {
        return Verdict::Renew(Reason::Expiring);
    }
    Verdict::Valid(Some(recheck.min(late)))
}

/// From when until when the firewall's certificate is good. Of a token it is the firewall that knows, if it lives: the one
/// on record may have been renewed since.
fn life(certificate: &Certificate, report: Option<&Report>, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
    if !certificate.is_token() {
        let from = counts_from(certificate.not_before, certificate.not_after);
        return Some((from, certificate.not_after));
    }
    let used = report.filter(|report| report.is_fresh(now))?.certificate.as_ref()?;
    Some((used.not_before, used.not_after))
}

/// Whether a refusal is of the certificate on record; or of one before it, and the firewall had the time to fetch the new
/// one, which it cannot with what is refused.
fn is_of(report: &Report, certificate: &Certificate) -> bool {
    report.certificate.as_ref().is_some_and(|used| {
        let (not_before, not_after) = (certificate.not_before, certificate.not_after);
        let had_time = report.made() > counts_from(not_before, not_after) + FOLLOWS_WITHIN;
        used.serial == certificate.serial || (used.not_before <= not_before && had_time)
    })
}

/// Whether the last credential was made long enough ago.
fn rested(record: &Record, now: Timestamp) -> bool {
    let last = record.credential.as_ref().map(|credential| credential.allocated);
    last.is_none_or(|last| last + REFUSED_AT_MOST <= now)
}

/// Whether the firewall works with another server or CA than are right. An agent of before says nothing of it.
fn elsewhere(report: &Report, endpoint: &Endpoint) -> Option<Reason> {
    if !report.server.is_empty() && report.server != endpoint.server {
        return Some(Reason::ServerMoved);
    }
    (!report.ca.is_empty() && report.ca != endpoint.ca).then_some(Reason::ServerCaChanged)
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
