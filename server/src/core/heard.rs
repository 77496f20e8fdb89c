//! What people are shown of a firewall beside its state: the word of its own report, and which of its requests came to
//! nothing last. Texts that came from outside are cut and printable here; whether a report is the firewall's own was
//! judged before.

use contract::names::FirewallName;
use contract::reasons::Reason;
use contract::report::{FRESH, Report};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

const ERROR_MAX: usize = 160;
const VERSION_MAX: usize = 40;
const WHY_MAX: usize = 300;
/// While a firewall reports, that it does is told anew no more often: each time is a write that everybody who watches
/// Firewalls sees.
const REPORTED: SignedDuration = SignedDuration::from_hours(1);
/// Clocks are measured to a second or two.
const SKEW: u64 = 30;

/// The word of the firewall itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heard {
    /// Its last report, by the seed's clock: exact once it is silent, else up to an hour old.
    pub reported: Timestamp,
    pub version: String,
    /// Its clock is so far ahead of the seed's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
    /// Why it cannot do what it should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl Heard {
    pub fn of(report: &Report) -> Self {
        let error = report.last_error.as_deref().map(|error| printable(error, ERROR_MAX));
        Self {
            reported: seconds(report.made()),
            version: printable(&report.agent_version, VERSION_MAX),
            clock_skew_seconds: report.clock_skew_seconds,
            last_error: error.filter(|error| !error.is_empty()),
        }
    }

    /// What is to be told, where `told` is what was told last.
    pub fn after(self, told: Option<&Self>, now: Timestamp) -> Self {
        let silent = self.reported.duration_until(now) >= FRESH;
        match told {
            Some(told) if !silent && self.is_like(told) => told.clone(),
            _ => self,
        }
    }

    fn is_like(&self, told: &Self) -> bool {
        let skew = |of: &Self| of.clock_skew_seconds.unwrap_or(0);
        self.version == told.version
            && self.last_error == told.last_error
            && self.clock_skew_seconds.is_some() == told.clock_skew_seconds.is_some()
            && skew(self).abs_diff(skew(told)) < SKEW
            && self.reported.duration_since(told.reported).abs() < REPORTED
    }
}

/// A request of this firewall's that was denied, that nobody decides, or that nobody signs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub request: String,
    pub reason: String,
    pub message: String,
    pub time: Timestamp,
}

impl Refused {
    pub fn new(request: &str, reason: Reason, why: &str, time: Timestamp) -> Self {
        Self {
            request: request.to_owned(),
            reason: reason.as_str().to_owned(),
            message: printable(why, WHY_MAX),
            time: seconds(time),
        }
    }

    /// What is to be told: the later one. The same again stands with the time at which it was found first.
    pub fn after(last: Option<Self>, told: Option<Self>) -> Option<Self> {
        match (last, told) {
            (Some(last), Some(told)) => {
                let same = last.request == told.request && last.reason == told.reason;
                Some(if same || told.time > last.time { told } else { last })
            }
            (last, told) => last.or(told),
        }
    }
}

/// Whether a request that is not decided for this reason tells somebody something about the firewall. The others are
/// usual for a moment, or have no firewall.
pub fn is_worth_telling(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::FactsMissing | Reason::EarlierRequestOpen | Reason::FirewallUnknown | Reason::FirewallDeleted
    )
}

/// The firewall that a requester is bound to by its own name.
pub fn named(requester: &super::decide::Requester) -> Option<FirewallName> {
    use super::decide::Requester;
    match requester {
        Requester::ServiceAccount(name) | Requester::Firewall(name) => FirewallName::parse(name).ok(),
        Requester::Token(_) | Requester::Foreign => None,
    }
}

/// Fit for a terminal: nothing that moves a cursor, or turns text around.
fn printable(text: &str, max: usize) -> String {
    let turns =
        |c: char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    text.chars()
        .filter(|c| !c.is_control() && !turns(*c))
        .take(max)
        .collect()
}

/// For people, and the same when it is read back.
fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or_default()
}

#[cfg(test)]
#[path = "heard_tests.rs"]
mod tests;
