//! The certificate that the webhook is served with, and the CAs that the API server trusts it by: how one follows another
//! without an admission that fails. Facts in, the next step out, so that a restart goes on where it was.
//!
//! Each certificate has a CA of its own, whose key nobody keeps. A new one is made, and its CA put beside those that are
//! trusted; when every API server has heard of that it is served; when every replica serves it the old CA goes.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::health::Health;

/// How long things may take, by the life of a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub life: SignedDuration,
    /// So long before its end a certificate is followed by another.
    pub ahead: SignedDuration,
    /// So long every API server may take to hear of a CA.
    pub spread: SignedDuration,
    /// So long every replica may take to hear of a certificate.
    pub settle: SignedDuration,
    /// How often a replica looks.
    pub look: SignedDuration,
}

impl Times {
    pub fn of(life: SignedDuration) -> Self {
        let seconds = SignedDuration::from_secs;
        let part = |of: i32, least: i64, most: i64| (life / of).clamp(seconds(least), seconds(most));
        Self {
            life,
            ahead: life / 3,
            spread: part(20, 2, 60),
            settle: part(10, 5, 600),
            look: part(60, 1, 5),
        }
    }
}

/// What of a certificate the steps go by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// SHA-256 of its CA's certificate.
    pub ca: String,
    /// Whom it is for.
    pub host: String,
    pub until: Timestamp,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stood<'a> {
    pub serving: Option<&'a Facts>,
    /// Since when that is served.
    pub since: Option<Timestamp>,
    pub next: Option<&'a Facts>,
    /// Since when the next one's CA is known to be trusted.
    pub trusted: Option<Timestamp>,
    /// The CA of the one before, while a replica may serve that yet.
    pub old: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the next one.
    Make,
    /// Have exactly these CAs trusted.
    Trust,
    /// Put on record that the next one's CA is trusted from now on.
    Note,
    /// Put on record that it is not, after all.
    Unnote,
    /// From now on the next one is served.
    Serve,
    /// No replica serves the old one any more.
    Forget,
    Wait,
}

/// The CAs that should be trusted, the newest first.
pub fn wanted<'a>(stood: &Stood<'a>) -> Vec<&'a str> {
    let facts = [stood.next, stood.serving].into_iter().flatten();
    facts.map(|facts| facts.ca.as_str()).chain(stood.old).collect()
}

/// What is to be done now. `trusted` are the CAs in force; `host` is whom the API server asks.
pub fn step(stood: &Stood<'_>, trusted: &[String], host: &str, now: Timestamp, times: &Times) -> Step {
    let useless = |facts: &Facts| facts.until <= now || facts.host != host;
    let serves = stood.serving.is_some_and(|serving| !useless(serving));
    if stood.next.is_some_and(useless) || (stood.next.is_none() && stood.serving.is_none()) {
        return Step::Make;
    }
    let is_trusted = |ca: &str| trusted.iter().any(|known| known == ca);
    let next_trusted = stood.next.is_some_and(|next| is_trusted(&next.ca));
    // What was written by a clock that was ahead says nothing of how long ago that was.
    if stood.trusted.is_some_and(|since| since > now) || (stood.trusted.is_some() && !next_trusted) {
        return Step::Unnote;
    }
    let wanted = wanted(stood);
    if trusted.len() != wanted.len() || !wanted.iter().all(|ca| is_trusted(ca)) {
        return Step::Trust;
    }
    if stood.next.is_some() {
        return match stood.trusted {
            None => Step::Note,
            // Nobody is let down by one that nobody would believe.
            Some(since) if !serves || since + times.spread <= now => Step::Serve,
            Some(_) => Step::Wait,
        };
    }
    if stood.old.is_some()
        && stood
            .since
            .is_none_or(|since| since > now || since + times.settle <= now)
    {
        return Step::Forget;
    }
    let ends_soon = stood.serving.is_some_and(|serving| serving.until - times.ahead <= now);
    if !serves || (ends_soon && stood.old.is_none()) {
        return Step::Make;
    }
    Step::Wait
}

/// What a replica knows of what it serves.
pub struct Known<'a> {
    /// How long ago it looked.
    pub ago: Option<Duration>,
    pub failed: Option<&'a str>,
    pub serving: Option<&'a Facts>,
    /// Whether API servers trust it; none: they are not told of the webhook.
    pub trusted: Option<bool>,
}

/// Whether API servers that ask this replica get an answer.
pub fn health(known: &Known<'_>, name: &str, now: Timestamp, times: &Times) -> Health {
    let late = times.settle.unsigned_abs() / 2;
    let Some(ago) = known.ago.filter(|ago| *ago <= late) else {
        // What it serves may be another's turn by now.
        let why = known.failed.unwrap_or("it was not looked at yet");
        return Health::Away(why.into());
    };
    let Some(trusted) = known.trusted else {
        return Health::Away(format!(
            "MutatingWebhookConfiguration {name} is not there: apply manifests/webhook"
        ));
    };
    match known.serving {
        None => Health::Away("there is no certificate yet: whoever leads makes one".into()),
        Some(facts) if facts.until <= now => Health::Away(format!("its certificate ended at {}", facts.until)),
        Some(_) if !trusted => Health::Away(format!(
            "MutatingWebhookConfiguration {name} does not have its CA or path: whoever leads puts them there, seen {} s ago",
            ago.as_secs()
        )),
        Some(_) => Health::Good,
    }
}

#[cfg(test)]
#[path = "serving_tests.rs"]
mod tests;
