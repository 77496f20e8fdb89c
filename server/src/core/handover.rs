//! How a record goes on while its firewall has to come in anew: a handover is opened by a verdict, numbered, sent to an
//! agent that lives, and closed by that agent's own report. Pure; what is sent is made and written elsewhere.
//!
//! Two seeds may believe that a firewall is theirs. The authority tells which one is right: it belongs to the Firewall
//! object, and the one that was made later has the higher one.

use contract::cert::counts_from;
use contract::handover::Order;
use contract::reasons::Reason;
use contract::record::{Credential, Endpoint, Pending, Record, Sent};
use contract::report::{FRESH, Report};
use jiff::{SignedDuration, Timestamp};

use super::credential::{fresh, next_epoch};
use super::seen::Seen;
use super::verdict::Issuer;

/// So long a sealed handover is good, as long as the token in it.
pub const SEALED_LIFE: SignedDuration = SignedDuration::from_mins(60);
/// A notice carries nothing but "report": a machine may find it a year later.
pub const NOTICE_LIFE: SignedDuration = SignedDuration::from_hours(366 * 24);
/// An agent that did not come in with one gets another after this time.
pub const SENT_AGAIN: SignedDuration = SignedDuration::from_mins(30);

/// A machine's clock is measured in whole seconds, each time anew: of two reports so close to each other the one that
/// came last counts.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

/// What a newer record would have said: a handover in the monitor that our own key signed, and the firewall's report,
/// tell of numbers and of a key that an older backup has forgotten.
pub fn recover(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    if let Some(claims) = seen.authentic {
        let newer = claims.order > next.order;
        let other = next.keys.pin.as_ref().is_none_or(|pin| pin.thumbprint != claims.key);
        if newer && other && !next.contested() {
            next.keys = next.keys.restore(&claims.key, now);
        }
        if claims.seed == seen.seed {
            // Our own word, and the authority was ours.
            next.order = next.order.max(claims.order);
        }
        next.order.generation = next.order.generation.max(claims.order.generation);
    }
    if let Some(report) = seen.report {
        if next.keys.pin.as_ref().is_some_and(|pin| pin.key.is_none()) {
            next.keys = next.keys.know(&report.key);
        }
        next.order.generation = next.order.generation.max(report.taken_up.generation);
    }
}

/// The authority of this very Firewall object.
pub fn take_authority(next: &mut Record, seen: &Seen<'_>) {
    if next.uid != seen.uid || next.order.authority == 0 {
        let recorded = if next.uid.is_empty() {
            0
        } else {
            next.order.authority + 1
        };
        next.order.authority = seen.created.as_second().max(recorded).max(1);
        seen.uid.clone_into(&mut next.uid);
    }
}

/// Under which higher authority another seed speaks for this firewall, if one does.
pub fn ahead(record: &Record, seen: &Seen<'_>) -> Option<Order> {
    let told = seen.authentic.map(|claims| claims.order);
    let taken_up = seen.report.map(|report| report.taken_up);
    let highest = told.into_iter().chain(taken_up).max()?;
    (highest.authority > record.order.authority).then_some(highest)
}

/// Where firewalls reach this seed, with the time since when.
pub fn observe(next: &mut Record, server: &str, ca: &str, now: Timestamp) {
    let known = next.endpoint.as_ref();
    if known.is_none_or(|known| known.server != server || known.ca != ca) {
        next.endpoint = Some(Endpoint {
            server: server.to_owned(),
            ca: ca.to_owned(),
            since: now,
        });
    }
}

/// Whether this seed has something to say to the firewall. Where another one is ahead, its word must not be written over.
pub fn speaks(record: &Record, ahead: Option<Order>) -> bool {
    record.handover.is_some() && ahead.is_none()
}

/// Of two reports the one that was made last, and whether it is to be remembered: one that somebody put back says nothing.
pub fn latest(known: Option<&Report>, report: Report, now: Timestamp) -> (Report, bool) {
    // Of a machine whose clock is ahead and that does not know it yet: nothing would ever be later.
    let ahead = report.made() > now + FRESH;
    match known {
        Some(known) if known.key == report.key && (ahead || known.made() > report.made() + SKEW) => {
            (known.clone(), false)
        }
        _ => (report, !ahead),
    }
}

pub fn open(next: &mut Record, reason: Reason, seen: &Seen<'_>, now: Timestamp) {
    let certificate = next.certificate.as_ref();
    let issuer = certificate.and_then(|certificate| certificate.issuer_key.clone());
    next.handover = Some(Pending {
        reason: reason.as_str().to_owned(),
        since: now,
        issuer: issuer.filter(|_| reason == Reason::IssuerRefused),
        sent: None,
    });
    if reason != Reason::SeedMoved {
        return;
    }
    // Certificate and credential were of the seed that was left; here they mean nothing.
    next.certificate = None;
    (next.tokens, next.tokens_until) = (false, None);
    let held = next.credential.take().map(|held| Credential {
        revoked: held.revoked.or(Some(now)),
        ..held
    });
    next.credential = if next.keys.pin.is_none() {
        // It has never come in: whoever writes userdata gets the way into this seed.
        Some(fresh(seen.kind, next_epoch(held.as_ref(), seen.baked), now))
    } else {
        held
    };
}

/// Closes a handover once the firewall reports that it works here, as it should. A report that was made before the
/// handover was opened proves nothing.
pub fn close(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    let (Some(pending), Some(report), Some(certificate)) = (&next.handover, seen.report, &next.certificate) else {
        return;
    };
    // Until something was sent for it, the number is of the one before.
    let taken_up = pending.sent.is_some() && report.taken_up == next.order;
    let after = report.made() > pending.since || taken_up;
    let there = report.proves_use(seen.firewall, seen.seed, &certificate.serial) && !report.refused;
    // What was refused is not good again because nobody looks at it just now.
    let other = pending.issuer.is_none() || pending.issuer != certificate.issuer_key;
    let newer = counts_from(certificate.not_before, certificate.not_after) > pending.since;
    let accepted = seen.issuers.of(certificate) != Issuer::Refused && (other || newer);
    if after && there && accepted && certificate.not_after > now && follows(report, next.endpoint.as_ref()) {
        next.handover = None;
    }
}

fn follows(report: &Report, endpoint: Option<&Endpoint>) -> bool {
    endpoint.is_none_or(|endpoint| report.server == endpoint.server && report.ca == endpoint.ca)
}

/// Decides what is to be sent now. A credential is made only for an agent that lives, and sealed to its key; one that
/// is silent is left a notice.
pub fn send(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    // Without its key nobody could tell a report from a forgery, nor say for whom a handover is.
    if next.keys.pin.as_ref().is_none_or(|pin| pin.key.is_none()) {
        return;
    }
    let order = next.order;
    let endpoint = next.endpoint.clone();
    let Some(pending) = &mut next.handover else { return };
    let living = seen.report.filter(|report| report.is_fresh(now));
    let to = living.and_then(|report| Some((report, report.seal.as_ref()?.thumbprint())));
    let sent = match (to, &pending.sent) {
        (Some((report, key)), sent) if wants_another(sent.as_ref(), report, order, endpoint.as_ref(), &key, now) => {
            Sent {
                issued: now,
                expires: now + SEALED_LIFE,
                sealed_to: Some(key),
            }
        }
        // A monitor that was not seen yet may hold a report.
        (None, None) if seen.monitor => Sent {
            issued: now,
            expires: now + NOTICE_LIFE,
            sealed_to: None,
        },
        _ => return,
    };
    let sealed = sent.sealed_to.is_some();
    pending.sent = Some(sent);
    next.order.generation += 1;
    let held = next.credential.as_ref();
    if sealed && held.is_none_or(|held| held.revoked.is_some()) {
        // Not that of the userdata, which others may read.
        let unread = seen.baked.map(|baked| baked.saturating_add(1));
        next.credential = Some(fresh(seen.kind, next_epoch(held, unread), now));
    }
}

fn wants_another(
    sent: Option<&Sent>,
    report: &Report,
    order: Order,
    endpoint: Option<&Endpoint>,
    key: &contract::key::Thumbprint,
    now: Timestamp,
) -> bool {
    let Some(sent) = sent else { return true };
    // What was sent leads to where this seed was before.
    if endpoint.is_some_and(|endpoint| endpoint.since > sent.issued) && !follows(report, endpoint) {
        return true;
    }
    match &sent.sealed_to {
        None => true,
        Some(_) if sent.issued + SENT_AGAIN <= now => true,
        // It has what was sent, and works with it.
        Some(_) if report.taken_up == order => false,
        // Started anew since: what was sent cannot be opened any more.
        Some(sealed_to) => sealed_to != key,
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
