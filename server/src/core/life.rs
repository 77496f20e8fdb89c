//! How a firewall's record goes on: a credential is allotted, extended, revoked; a key is accepted or proved. Pure
//! steps from what is on record and what was seen to the next record, so that a restart goes on where it was.

use contract::access::Mode;
use contract::key::Thumbprint;
use contract::names;
use contract::reasons::Reason;
use contract::record::{Certificate, Credential, CredentialKind, Gone, Record, VERSION};
use contract::report::Report;
use jiff::{SignedDuration, Timestamp};

use super::credential::{CREDENTIAL_LIMIT, EXTEND_BEFORE, TOKEN_LIFE, credential, fresh};
use super::handover;
use super::seen::Seen;
use super::verdict::{Facts, Issuer, Verdict, verdict};

/// So long the tokens of a firewall that works with a certificate again stay good: its consumer is told of a change once a
/// minute at most, and takes its time.
pub const TOKENS_LEFT: SignedDuration = SignedDuration::from_mins(5);

/// The record as it should be now. Equal to the old one if there is nothing to do.
pub fn advance(record: Option<&Record>, seen: &Seen<'_>, now: Timestamp) -> Record {
    let mut next = begin(record, seen);
    next.version = VERSION;
    next.gone = None;
    handover::recover(&mut next, seen, now);
    handover::take_authority(&mut next, seen);
    handover::observe(&mut next, seen.server, seen.ca, now);
    obey_operator(&mut next, seen, now);
    if seen.blind || handover::ahead(&next, seen).is_some() {
        // Another seed has it, or may have it. Nothing is said against that, and nothing forgotten.
        next.credential = credential(&next, seen, now);
        return next;
    }
    if let Verdict::Rebootstrap(reason) = judge(&next, seen, now)
        && next.handover.is_none()
    {
        handover::open(&mut next, reason, seen, now);
    }
    next.seed = seen.seed.to_owned();
    next.certified_until = next.certified_until.max(seen.certified_until);
    take_up_certificate(&mut next, seen);
    take_up_token(&mut next, seen);
    allow_tokens(&mut next, seen, now);
    prove(&mut next, seen, now);
    handover::close(&mut next, seen, now);
    handover::send(&mut next, seen, now);
    next.credential = credential(&next, seen, now);
    next
}

/// What is taken over of the record that there was. A Firewall that was deleted for good took its machine with it: one of
/// the same name is another, and only the numbers go on.
fn begin(record: Option<&Record>, seen: &Seen<'_>) -> Record {
    match record {
        Some(record) if record.uid != seen.uid && record.gone.as_ref().is_some_and(|gone| gone.deleted) => Record {
            order: record.order,
            uid: record.uid.clone(),
            ..Record::default()
        },
        Some(record) => record.clone(),
        None => Record::default(),
    }
}

/// How this record stands.
pub fn judge(record: &Record, seen: &Seen<'_>, now: Timestamp) -> Verdict {
    let Some(endpoint) = &record.endpoint else {
        return Verdict::Valid(None);
    };
    let facts = Facts {
        seed: seen.seed,
        endpoint,
        report: seen.report,
        issuer: record
            .certificate
            .as_ref()
            .map_or(Issuer::Unsuspected, |certificate| seen.issuers.of(certificate)),
    };
    verdict(record, &facts, now)
}

/// The record of a Firewall that is going, or is not there any more.
pub fn leave(record: &Record, deleted: bool, now: Timestamp) -> Record {
    let before = record.gone.clone();
    let gone = Gone {
        since: before.as_ref().map_or(now, |gone| gone.since),
        deleted: deleted || before.is_some_and(|gone| gone.deleted),
    };
    Record {
        gone: Some(gone),
        ..record.clone()
    }
}

/// When the record wants to be looked at again, by its own dates.
pub fn recheck_at(record: &Record) -> Option<Timestamp> {
    let sent = record.handover.as_ref().and_then(|pending| pending.sent.as_ref());
    let again = sent
        .filter(|sent| sent.sealed_to.is_some())
        .map(|sent| sent.issued + handover::SENT_AGAIN);
    let open = record
        .credential
        .as_ref()
        .filter(|credential| credential.revoked.is_none());
    let credential = open.map(|credential| {
        if credential.expires < credential.limit {
            credential.expires - EXTEND_BEFORE
        } else {
            credential.expires
        }
    });
    again.into_iter().chain(credential).chain(record.tokens_until).min()
}

fn take_up_certificate(next: &mut Record, seen: &Seen<'_>) {
    let Some(certificate) = seen.certificate else { return };
    let known = next.certificate.as_ref();
    if known.is_some_and(|known| known.began() > certificate.began()) {
        return;
    }
    // Whose it is may have been known before, and not be just now.
    let same = known.filter(|known| known.serial == certificate.serial);
    let issuer_key = certificate
        .issuer_key
        .clone()
        .or_else(|| same.and_then(|known| known.issuer_key.clone()));
    next.certificate = Some(Certificate {
        issuer_key,
        ..certificate.clone()
    });
}

/// A firewall renews its token by itself: only its own report tells of it, the first of which may come late. Whose it is was
/// seen by the key.
fn take_up_token(next: &mut Record, seen: &Seen<'_>) {
    let Some(report) = seen
        .report
        .filter(|report| report.seed == seen.seed && next.keys.pin.is_some())
    else {
        return;
    };
    let Some(used) = report.certificate.as_ref().filter(|used| used.is_token()) else {
        return;
    };
    let known = next.certificate.as_ref();
    if !next.tokens || known.is_some_and(|known| known.serial == used.serial || known.began() > used.not_before) {
        return;
    }
    next.certificate = Some(Certificate {
        serial: used.serial.clone(),
        not_before: used.not_before,
        not_after: used.not_after,
        issuer: used.issuer.clone(),
        issuer_key: None,
        request: String::new(),
    });
}

/// Tokens stand as long as they are wanted, and after that until the firewall says that it works with the certificate on
/// record: whoever takes them away before locks it out.
fn allow_tokens(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    if seen.mode == Mode::Token {
        (next.tokens, next.tokens_until) = (true, None);
        return;
    }
    if !next.tokens {
        return;
    }
    let Some(certificate) = next.certificate.as_ref().filter(|certificate| !certificate.is_token()) else {
        // It was thought to have left them, by an old report.
        next.tokens_until = None;
        return;
    };
    if next.tokens_until.is_some_and(|until| until <= now) {
        (next.tokens, next.tokens_until) = (false, None);
        return;
    }
    let left = |report: &Report| report.proves_use(seen.firewall, seen.seed, &certificate.serial);
    if next.tokens_until.is_none() && seen.report.is_some_and(left) {
        next.tokens_until = Some(now + TOKENS_LEFT);
    }
}

fn obey_operator(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    if seen.accept_key.is_none() {
        // Taken away: the same word may be said again, when the same keys contend once more.
        next.keys.accepted = None;
    }
    if let Some(annotation) = seen.accept_key
        && next.keys.accepted.as_deref() != Some(annotation)
        && let Some(thumbprint) = accepted_key(annotation, seen.uid)
    {
        next.keys = next.keys.accept(&thumbprint, annotation, now);
    }
    if let Some(annotation) = seen.rebootstrap
        && next.rebootstrap.as_deref() != Some(annotation)
        && rearms(annotation, seen.uid)
    {
        next.rebootstrap = Some(annotation.to_owned());
        next.keys.open_until = Some(now + TOKEN_LIFE);
        // A reinstalled machine brings one new key; those that came before count no more.
        next.keys.candidates.clear();
        let epoch = next.credential.as_ref().map_or(0, |credential| credential.epoch);
        let kind = next.credential.as_ref().map_or(seen.kind, |credential| credential.kind);
        // The very token that the userdata holds, for one hour more.
        let (expires, limit) = match kind {
            CredentialKind::Token => (now + TOKEN_LIFE, now + TOKEN_LIFE),
            CredentialKind::ServiceAccount => (now + CREDENTIAL_LIMIT, now + CREDENTIAL_LIMIT),
        };
        next.credential = Some(Credential {
            kind,
            epoch,
            allocated: now,
            expires,
            limit,
            revoked: None,
        });
    }
    if next.keys.open_until.is_some_and(|until| until <= now) {
        next.keys.open_until = None;
    }
    if let Some(annotation) = seen.export
        && !seen.blind
        && next.export.as_deref() != Some(annotation)
        && rearms(annotation, seen.uid)
    {
        next.export = Some(annotation.to_owned());
        // It is the operator's word that this seed is the right one.
        if let Some(ahead) = handover::ahead(next, seen) {
            next.order.authority = ahead.authority + 1;
        }
        // For the machine that is known: no other key comes in with it, so it is a token that nobody has seen.
        let held = next.credential.as_ref();
        let epoch = held.map_or(0, |credential| credential.epoch.saturating_add(1));
        let limit = now + TOKEN_LIFE;
        next.credential = Some(Credential {
            expires: limit,
            limit,
            ..fresh(seen.kind, epoch, now)
        });
        if next.settled() {
            handover::open(next, Reason::Requested, seen, now);
        }
    }
}

/// `<thumbprint>@<Firewall UID>`, for this very Firewall.
pub fn accepted_key(annotation: &str, uid: &str) -> Option<Thumbprint> {
    let (thumbprint, of) = annotation.split_once('@')?;
    if of != uid {
        return None;
    }
    Thumbprint::parse(thumbprint).ok()
}

/// Which of the operator's annotations says nothing to us, and why: so that nobody waits for it.
pub fn ignored(seen: &Seen<'_>) -> Option<String> {
    let uid = seen.uid;
    let accept = seen.accept_key.filter(|value| accepted_key(value, uid).is_none());
    let rebootstrap = seen.rebootstrap.filter(|value| !rearms(value, uid));
    let export = seen.export.filter(|value| !rearms(value, uid));
    let unlike = |annotation: &str| format!("annotation {annotation} is ignored: it has to be {uid}/<any new value>");
    accept
        .map(|_| {
            format!(
                "annotation {} is ignored: it has to be <thumbprint>@{uid}",
                names::ACCEPT_KEY
            )
        })
        .or_else(|| rebootstrap.map(|_| unlike(names::REBOOTSTRAP)))
        .or_else(|| export.map(|_| unlike(names::EXPORT)))
}

/// `<Firewall UID>/<value>`, for this very Firewall, so that it dies when the control plane moves.
fn rearms(annotation: &str, uid: &str) -> bool {
    annotation
        .split_once('/')
        .is_some_and(|(of, value)| of == uid && !value.is_empty())
}

fn prove(next: &mut Record, seen: &Seen<'_>, now: Timestamp) {
    let (Some(report), Some(certificate)) = (seen.report, &next.certificate) else {
        return;
    };
    if next.keys.pin.as_ref().is_some_and(|pin| pin.proven.is_none())
        && report.proves_use(seen.firewall, seen.seed, &certificate.serial)
    {
        next.keys = next.keys.prove(now);
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
