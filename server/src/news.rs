//! What changed in a firewall's record, in the words of log and events: once, after it was written.

use contract::names::FirewallName;
use contract::reasons::Reason;
use contract::record::Record;
use jiff::Timestamp;
use kube::Resource;

use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::decide::two_keys;
use crate::core::life;
use crate::core::seen::Seen;

/// A Firewall that something is said of.
pub struct News<'a> {
    pub approver: &'a Approver,
    pub firewall: &'a Firewall,
    /// `namespace/name`.
    pub object: &'a str,
}

impl News<'_> {
    pub fn explain(&self, name: &FirewallName, before: Option<&Record>, after: &Record) {
        let firewall = self.object;
        if !before.is_some_and(Record::proven) && after.proven() {
            tracing::info!(%firewall, "the firewall reported from its certificate: its key is proved, its bootstrap credential is revoked");
        }
        if !before.is_some_and(Record::contested) && after.contested() {
            let why = two_keys(name, &after.keys);
            let events = &self.approver.events;
            events.warning(self.firewall.object_ref(&()), Reason::TwoKeys, "Pin", &why);
        }
        if before.and_then(|b| b.keys.accepted.as_ref()) != after.keys.accepted.as_ref() {
            let key = after.keys.pin.as_ref().map(|pin| pin.thumbprint.to_string());
            tracing::info!(%firewall, key, "an operator accepted this key");
        }
        if before.and_then(|b| b.rebootstrap.as_ref()) != after.rebootstrap.as_ref() {
            tracing::info!(%firewall, "an operator re-armed the bootstrap credential for one new key");
        }
        if before.and_then(|b| b.export.as_ref()) != after.export.as_ref() {
            tracing::info!(%firewall, "an operator asked for a new bootstrap credential");
        }
        let pending = |record: &Record| record.handover.as_ref().map(|pending| pending.reason.clone());
        match (before.and_then(pending), pending(after)) {
            (None, Some(reason)) => {
                self.approver.metrics.hands_over(&reason);
                tracing::warn!(%firewall, %reason, handover = %after.order, "the firewall has to come in anew");
            }
            (Some(reason), None) => {
                let since = before.and_then(|b| b.handover.as_ref()).map(|pending| pending.since);
                if let Some(since) = since {
                    self.approver.metrics.recovered(since, Timestamp::now());
                }
                let seconds = since.map(|since| since.duration_until(Timestamp::now()).as_secs());
                tracing::info!(%firewall, %reason, seconds, "the firewall has come in anew");
            }
            _ => {}
        }
        if before.is_none() {
            let kind = after.credential.as_ref().map(|credential| credential.kind);
            tracing::info!(%firewall, ?kind, "a bootstrap credential is allotted");
        }
    }

    /// An annotation that nobody acts on is named, so that nobody waits for it.
    pub fn say_what_is_ignored(&self, seen: &Seen<'_>) {
        let Some(why) = life::ignored(seen) else { return };
        if self.approver.is_news(&format!("annotation {}", self.object), &why) {
            let reason = Reason::AnnotationIgnored;
            tracing::warn!(firewall = %self.object, %reason, "{why}");
            let events = &self.approver.events;
            events.warning(self.firewall.object_ref(&()), reason, "Annotate", &why);
        }
    }
}
