//! What the workers found of each firewall when they looked at it last, for whoever asks about all of them: health and
//! metrics. Nothing is decided by it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use contract::names::FirewallName;
use contract::reasons::Reason;
use contract::record::Record;
use jiff::Timestamp;

use crate::core::verdict::Verdict;
use crate::shoots::Closed;

/// Namespace and name.
pub type Id = (String, String);

#[derive(Default)]
pub struct Fleet(Mutex<BTreeMap<Id, Known>>);

#[derive(Clone, Debug)]
pub struct Known {
    pub verdict: Verdict,
    /// End of the certificate that was issued last.
    pub certificate_ends: Option<Timestamp>,
    /// When the bootstrap credential that stands was made.
    pub credential_made: Option<Timestamp>,
    /// Why it has to come in anew, and since when.
    pub handover: Option<(Reason, Timestamp)>,
    /// Why the approver cannot work in the shoot.
    pub closed: Option<Closed>,
}

impl Fleet {
    pub fn learn(
        &self,
        namespace: &str,
        name: &FirewallName,
        record: &Record,
        verdict: Verdict,
        closed: Option<Closed>,
    ) {
        let credential = record
            .credential
            .as_ref()
            .filter(|credential| credential.revoked.is_none());
        let known = Known {
            verdict,
            certificate_ends: record.certificate.as_ref().map(|certificate| certificate.not_after),
            credential_made: credential.map(|credential| credential.allocated),
            handover: record.handover.as_ref().map(|pending| {
                let reason = Reason::parse(&pending.reason).unwrap_or(Reason::Requested);
                (reason, pending.since)
            }),
            closed,
        };
        let mut fleet = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fleet.insert((namespace.to_owned(), name.to_string()), known);
    }

    /// Everything that is known, of those that are there.
    pub fn known(&self, is_there: impl Fn(&Id) -> bool) -> BTreeMap<Id, Known> {
        let mut fleet = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fleet.retain(|id, _| is_there(id));
        fleet.clone()
    }
}
