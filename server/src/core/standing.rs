//! How a firewall stands, in words for whoever is on call: what is the matter, and what there is to do.

use contract::access::Mode;
use contract::handover::Order;
use contract::key::Thumbprint;
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::{Certificate, CredentialKind, Pending, Record};
use contract::report::Report;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::decide::two_keys;
use super::heard::Heard;
use super::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The firewall works with its certificate.
    Ready,
    /// All is well so far; something is still to come.
    Waiting,
    /// Somebody has to do something: the message says what.
    Refused,
    /// The approver itself cannot do its work for this firewall.
    Failing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub state: State,
    pub reason: Reason,
    pub message: String,
    /// When the state ends by itself (a certificate's or a credential's end).
    pub until: Option<Timestamp>,
    pub heard: Word,
}

/// What the firewall itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    Heard(Heard),
    /// Nothing now; what was told before was its own word and stands.
    AsBefore,
    /// Nothing by the key that counts.
    Nothing,
}

/// What there is to know of a firewall.
pub struct Stands<'a> {
    pub name: &'a FirewallName,
    /// `namespace/name` and UID of its Firewall.
    pub object: &'a str,
    pub uid: &'a str,
    pub record: &'a Record,
    pub verdict: Verdict,
    /// What firewalls are to work with.
    pub mode: Mode,
    /// The higher authority under which another seed speaks for it.
    pub ahead: Option<Order>,
    /// Its report, if the pinned key signed it.
    pub report: Option<&'a Report>,
    /// What stands there as a report, believed by nobody: an operator may recognise the key in it.
    pub unverified: Option<Report>,
    /// Its FirewallMonitor was seen.
    pub monitor: bool,
    /// The key that this shoot's handovers are signed with.
    pub handover_key: Thumbprint,
    pub has_shoot_access: bool,
    /// Why it does not get the Secrets of its shoot, or why nobody gets into that.
    pub refused: Option<(Reason, String)>,
    pub closed: Option<(Reason, String)>,
}

pub fn of(stands: &Stands<'_>, now: Timestamp) -> Status {
    let heard = match stands.report {
        Some(report) => Word::Heard(Heard::of(report)),
        None if stands.record.proven() => Word::AsBefore,
        None => Word::Nothing,
    };
    Status {
        heard,
        ..state(stands, now)
    }
}

/// The most urgent comes first.
fn state(stands: &Stands<'_>, now: Timestamp) -> Status {
    let record = stands.record;
    let until = record.certificate.as_ref().map(|certificate| certificate.not_after);
    let status = |state, reason, message: String| Status {
        state,
        reason,
        message,
        until,
        heard: Word::Nothing,
    };
    let refused = |reason, message| status(State::Refused, reason, message);
    if record.contested() {
        return refused(Reason::TwoKeys, two_keys(stands.name, &record.keys));
    }
    if let Some(ahead) = stands.ahead {
        let message = format!(
            "another seed speaks for this firewall with a higher authority ({}, here it is {}), so nothing is done here; only if the shoot's control plane is in this seed, take the firewall back with {}",
            ahead.authority,
            record.order.authority,
            export(stands)
        );
        return refused(Reason::OtherSeedAhead, message);
    }
    if let Some((reason, message)) = unknown(stands) {
        return refused(reason, message);
    }
    if let Some(pending) = &record.handover {
        return coming(stands, pending, status);
    }
    if let Some((reason, why)) = &stands.refused {
        return refused(*reason, why.clone());
    }
    let unreachable = stands
        .closed
        .as_ref()
        .filter(|(reason, _)| *reason == Reason::ShootUnreachable);
    // A token is renewed by the firewall itself, which cannot say so where nobody gets into the shoot.
    let unheard = unreachable.is_some() && record.certificate.as_ref().is_some_and(Certificate::is_token);
    let works = record.proven() && until.is_some_and(|until| now < until || unheard);
    match &stands.closed {
        // A shoot that is away, hibernated perhaps, is no trouble to a firewall that works.
        Some((reason, why)) if !works || unreachable.is_none() => return refused(*reason, why.clone()),
        _ => {}
    }
    if works {
        return ready(stands, unreachable, status);
    }
    if record.proven() && until.is_some() {
        let message = format!("the certificate ended and nothing renewed it: {}", export(stands));
        return refused(Reason::Expired, message);
    }
    if record.certificate.is_some() {
        let message = "a certificate was issued; the firewall has not reported from it yet";
        return status(State::Waiting, Reason::WaitingForReport, message.into());
    }
    before_the_first(stands)
}

/// What nobody but an operator can vouch for any more.
fn unknown(stands: &Stands<'_>) -> Option<(Reason, String)> {
    let record = stands.record;
    let told = record.handover.is_some() || record.keys.pin.is_none();
    let guessed = stands
        .unverified
        .as_ref()
        .filter(|report| report.firewall == *stands.name);
    let report = stands.report.or(guessed).filter(|_| told)?;
    if !report.handover_keys.is_empty() && !report.handover_keys.contains(&stands.handover_key) {
        let whether = if stands.report.is_some() {
            ""
        } else {
            // Anybody in the shoot may have written it.
            "if `firewall-agent status` on the machine shows a certificate: "
        };
        let message = format!(
            "{whether}the firewall believes handovers of another key than this shoot's state holds (was it not restored?), so it cannot be told of its way in: only {} helps",
            export(stands)
        );
        return Some((Reason::HandoverKeyLost, message));
    }
    if record.keys.pin.is_some() {
        return None;
    }
    let key = report.key.thumbprint();
    let (namespace, name) = stands.object.split_once('/').unwrap_or_default();
    let message = format!(
        "nothing on record says which key is this machine's; its report is signed by {key}. If `firewall-agent status` on the machine shows that key: kubectl annotate --overwrite firewall -n {namespace} {name} {}={key}@{}",
        names::ACCEPT_KEY,
        stands.uid
    );
    Some((Reason::KeyUnknown, message))
}

/// It has to come in anew.
fn coming(stands: &Stands<'_>, pending: &Pending, status: impl Fn(State, Reason, String) -> Status) -> Status {
    let record = stands.record;
    let reason = Reason::parse(&pending.reason).unwrap_or(Reason::Requested);
    let why = lower(reason.meaning());
    if record.keys.pin.is_none() {
        let message = format!(
            "this machine has never come in, and its userdata leads to the seed that its control plane left: run {} and put what it prints on the machine",
            export(stands)
        );
        return status(State::Refused, Reason::UserdataOutdated, message);
    }
    if let Some((closed, problem)) = &stands.closed {
        let message = format!("the firewall has to come in anew ({why}) and cannot be told: {problem}");
        return status(State::Refused, *closed, message);
    }
    let sent = pending.sent.as_ref().map(|sent| sent.sealed_to.is_some());
    let order = record.order;
    let taken = stands.report.is_some_and(|report| report.taken_up == order);
    let how = match sent {
        Some(true) if taken => format!("it has taken up handover {order} and is coming in"),
        Some(true) => format!("handover {order} is sealed for it and lies in its FirewallMonitor"),
        Some(false) => format!(
            "it has not reported for a while; notice {order} lies in its FirewallMonitor. If the machine runs and stays silent: {}",
            export(stands)
        ),
        None if !stands.has_shoot_access => "status.shootAccess of the Firewall is not set yet".to_owned(),
        None if !stands.monitor => "its FirewallMonitor is not there yet".to_owned(),
        None => "its report is awaited".to_owned(),
    };
    status(State::Waiting, reason, format!("{why}: {how}"))
}

fn ready(
    stands: &Stands<'_>,
    unreachable: Option<&(Reason, String)>,
    status: impl Fn(State, Reason, String) -> Status,
) -> Status {
    let (serial, with) = stands
        .record
        .certificate
        .as_ref()
        .map_or(("", Mode::Certificate), |certificate| {
            let with = if certificate.is_token() {
                Mode::Token
            } else {
                Mode::Certificate
            };
            (&certificate.serial, with)
        });
    let kind = with.as_str();
    if let Verdict::Renew(reason) = stands.verdict {
        let message = format!("{kind} {serial}: {}", lower(reason.meaning()));
        return status(State::Waiting, reason, message);
    }
    let mut message = format!("the firewall reported that it works with {kind} {serial}");
    if with != stands.mode {
        message = format!(
            "{message}; it is to take a {wanted} (--seed-access={wanted})",
            wanted = stands.mode.as_str()
        );
    } else if with == Mode::Token {
        message.push_str(" (--seed-access=token)");
    }
    if let Some((_, why)) = unreachable {
        message = format!("{message}; it could not be told of a move now ({why})");
    }
    status(State::Ready, Reason::Bootstrapped, message)
}

fn before_the_first(stands: &Stands<'_>) -> Status {
    let status = |state, reason, message: String, until| Status {
        state,
        reason,
        message,
        until,
        heard: Word::Nothing,
    };
    match &stands.record.credential {
        Some(credential) if credential.revoked.is_some() => {
            let then = match credential.kind {
                CredentialKind::Token => "start the machine's agent within the hour".to_owned(),
                CredentialKind::ServiceAccount => format!(
                    "give the machine the new content of Secret {} within a day",
                    stands.name.bootstrap_kubeconfig_secret()
                ),
            };
            let message = format!(
                "the bootstrap credential ran out before the firewall came in: annotate the Firewall with {}=<its UID>/<any new value> and {then}",
                names::REBOOTSTRAP
            );
            status(State::Refused, Reason::CredentialExpired, message, None)
        }
        credential => {
            let until = credential.as_ref().map(|credential| credential.limit);
            let (reason, message) = if stands.has_shoot_access {
                (
                    Reason::WaitingForFirewall,
                    "the bootstrap credential is good; the firewall has not come in yet",
                )
            } else {
                (
                    Reason::ShootAccessPending,
                    "the bootstrap credential is good; status.shootAccess of the Firewall is not set yet",
                )
            };
            status(State::Waiting, reason, message.into(), until)
        }
    }
}

fn export(stands: &Stands<'_>) -> String {
    format!("`firewall-approver export {}`", stands.object)
}

/// A meaning in the midst of a sentence.
fn lower(meaning: &str) -> String {
    let meaning = meaning.trim_end_matches('.');
    let mut letters = meaning.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
#[path = "standing_tests.rs"]
mod tests;
