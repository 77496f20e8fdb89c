//! How a firewall stands, in one annotation of its Firewall: for people with kubectl. Written only on change; nothing
//! of ours reads it back but its own `since`.

use std::time::Duration;

use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::{CredentialKind, Record};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use cluster::api::call_opt;
use cluster::failure::Failure;
use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::decide::two_keys;
use crate::shoots::Closed;

/// What a person reads at a glance, and an annotation holds.
const MESSAGE_MAX: usize = 600;
/// The same reason in other words is not told more often.
const REWORDED: Duration = Duration::from_secs(10);

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
}

#[derive(Serialize, Deserialize, PartialEq)]
struct Told {
    state: State,
    reason: String,
    message: String,
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// How a firewall with this record stands.
pub fn of(
    name: &FirewallName,
    record: &Record,
    has_shoot_access: bool,
    closed: Option<Closed>,
    now: Timestamp,
) -> Status {
    let until = record.certificate.as_ref().map(|certificate| certificate.not_after);
    let status = |state, reason, message: String| Status {
        state,
        reason,
        message,
        until,
    };
    if record.contested() {
        return status(State::Refused, Reason::TwoKeys, two_keys(name, &record.keys));
    }
    if let Some(certificate) = record
        .certificate
        .as_ref()
        .filter(|c| record.proven() && c.not_after <= now)
    {
        let message = format!(
            "certificate {} ended and nothing renewed it: look at the machine (`firewall-agent status`), and annotate the Firewall with {}=<its UID>/<any new value> to let it in again",
            certificate.serial,
            names::REBOOTSTRAP
        );
        return status(State::Refused, Reason::CertificateExpired, message);
    }
    if let Some((reason, why)) = closed {
        return status(State::Refused, reason, why);
    }
    if record.proven() {
        let serial = record
            .certificate
            .as_ref()
            .map_or("", |certificate| &certificate.serial);
        return status(
            State::Ready,
            Reason::Bootstrapped,
            format!("the firewall reported that it works with certificate {serial}"),
        );
    }
    if record.certificate.is_some() {
        return status(
            State::Waiting,
            Reason::WaitingForReport,
            "a certificate was issued; the firewall has not reported from it yet".into(),
        );
    }
    match &record.credential {
        Some(credential) if credential.revoked.is_some() => {
            let then = match credential.kind {
                CredentialKind::Token => "start the machine's agent within the hour".to_owned(),
                CredentialKind::ServiceAccount => format!(
                    "give the machine the new content of Secret {} within a day",
                    name.bootstrap_kubeconfig_secret()
                ),
            };
            let message = format!(
                "the bootstrap credential ran out before the firewall came in: annotate the Firewall with {}=<its UID>/<any new value> and {then}",
                names::REBOOTSTRAP
            );
            Status {
                state: State::Refused,
                reason: Reason::CredentialExpired,
                message,
                until: None,
            }
        }
        credential => {
            let until = credential.as_ref().map(|credential| credential.limit);
            let (reason, message) = if has_shoot_access {
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
            Status {
                state: State::Waiting,
                reason,
                message: message.into(),
                until,
            }
        }
    }
}

/// Writes the annotation if it says something new; or says after what time it may be written.
pub async fn tell(approver: &Approver, firewall: &Firewall, status: &Status) -> Result<Option<Duration>, Failure> {
    let told = firewall.annotations().get(names::SEED_ACCESS_STATE);
    let told: Option<Told> = told.and_then(|json| serde_json::from_str(json).ok());
    let since = match &told {
        Some(told) if told.state == status.state && told.reason == status.reason.as_str() => told.since,
        // Whole seconds: for people, and the same when it is read back.
        _ => Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default(),
    };
    let message: String = status
        .message
        .chars()
        .filter(|c| !c.is_control())
        .take(MESSAGE_MAX)
        .collect();
    let tell = Told {
        state: status.state,
        reason: status.reason.as_str().into(),
        message,
        since,
        until: status.until,
    };
    if told.as_ref() == Some(&tell) {
        return Ok(None);
    }
    let (namespace, name) = (firewall.namespace().unwrap_or_default(), firewall.name_any());
    // Another wording alone is told now and then: a message that differs each time would make this a loop, since what
    // is written here is a change of the Firewall that is looked at.
    let key = format!("state {namespace}/{name}");
    let reworded = told
        .as_ref()
        .is_some_and(|told| told.state == tell.state && told.reason == tell.reason);
    if let Some(elapsed) = approver
        .applied
        .elapsed(&key)
        .filter(|elapsed| reworded && *elapsed < REWORDED)
    {
        return Ok(Some(REWORDED - elapsed));
    }
    approver.applied.remember(&key, b"");
    let patch = json!({
        "apiVersion": Firewall::api_version(&()),
        "kind": Firewall::kind(&()),
        "metadata": {
            "name": name,
            "namespace": namespace,
            // With the UID a patch never creates, nor touches a Firewall of the same name that came later.
            "uid": firewall.uid(),
            "annotations": { names::SEED_ACCESS_STATE: serde_json::to_string(&tell).unwrap_or_default() },
        },
    });
    let firewalls: Api<Firewall> = Api::namespaced(approver.seed.client.clone(), &namespace);
    let params = PatchParams::apply(names::APPROVER).force();
    let what = format!("annotate Firewall {namespace}/{name}");
    // Gone meanwhile: nobody is left to tell.
    call_opt(what, firewalls.patch_metadata(&name, &params, &Patch::Apply(&patch))).await?;
    if told.is_none_or(|told| told.reason != tell.reason) {
        let message = &tell.message;
        match status.state {
            State::Ready | State::Waiting => {
                tracing::info!(firewall = %format!("{namespace}/{name}"), reason = %status.reason, "{message}");
                approver
                    .events
                    .normal(firewall.object_ref(&()), status.reason, "Provision", message);
            }
            State::Refused | State::Failing => {
                tracing::warn!(firewall = %format!("{namespace}/{name}"), reason = %status.reason, "{message}");
                approver
                    .events
                    .warning(firewall.object_ref(&()), status.reason, "Provision", message);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use contract::key::{PrivateKey, PublicKey};
    use contract::record::{Certificate, Credential, CredentialKind, KeyVerdict, Keys};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn pinned() -> Keys {
        match Keys::default().present(&key(), at(1)) {
            KeyVerdict::Pin(keys) => keys,
            other => panic!("{other:?}"),
        }
    }

    /// A credential stands; nobody came.
    fn waiting() -> Record {
        let (kind, epoch) = (CredentialKind::Token, 0);
        let credential = Credential {
            kind,
            epoch,
            allocated: at(0),
            expires: at(3600),
            limit: at(86_400),
            revoked: None,
        };
        Record {
            credential: Some(credential),
            ..Record::default()
        }
    }

    fn revoked() -> Record {
        Record {
            credential: waiting().credential.map(|c| Credential {
                revoked: Some(at(9)),
                ..c
            }),
            ..waiting()
        }
    }

    fn issued(keys: Keys) -> Record {
        let (not_before, not_after) = (at(5), at(31_536_000));
        let (serial, issuer, request) = ("1f".into(), "CN=ca".into(), "firewall-x".into());
        Record {
            keys,
            certificate: Some(Certificate {
                serial,
                not_before,
                not_after,
                issuer,
                request,
            }),
            ..revoked()
        }
    }

    #[test]
    fn each_step_of_a_firewall_has_its_words_and_its_end() {
        let closed = || Some((Reason::ShootAccessMissing, "deploy the Secret".to_owned()));
        let contested = || Keys {
            candidates: vec![key(), key()],
            ..Keys::default()
        };
        let (limit, end) = (Some(at(86_400)), Some(at(31_536_000)));
        let table = [
            (
                waiting(),
                false,
                None,
                State::Waiting,
                Reason::ShootAccessPending,
                limit,
                "shootAccess",
            ),
            (
                waiting(),
                true,
                None,
                State::Waiting,
                Reason::WaitingForFirewall,
                limit,
                "not come in",
            ),
            (
                revoked(),
                true,
                None,
                State::Refused,
                Reason::CredentialExpired,
                None,
                "firewall.metal-stack.io/rebootstrap=",
            ),
            (
                issued(pinned()),
                true,
                None,
                State::Waiting,
                Reason::WaitingForReport,
                end,
                "not reported",
            ),
            (
                issued(pinned().prove(at(6))),
                true,
                None,
                State::Ready,
                Reason::Bootstrapped,
                end,
                "1f",
            ),
            // What somebody has to act on comes before what goes on by itself.
            (
                waiting(),
                true,
                closed(),
                State::Refused,
                Reason::ShootAccessMissing,
                None,
                "deploy the Secret",
            ),
            (
                issued(pinned().prove(at(6))),
                true,
                closed(),
                State::Refused,
                Reason::ShootAccessMissing,
                end,
                "deploy",
            ),
            (
                Record {
                    keys: contested(),
                    ..waiting()
                },
                true,
                closed(),
                State::Refused,
                Reason::TwoKeys,
                None,
                "2 keys",
            ),
            (
                issued(contested()),
                true,
                None,
                State::Refused,
                Reason::TwoKeys,
                end,
                "firewall.metal-stack.io/accept-key=",
            ),
        ];
        let name = FirewallName::parse("fw-1").unwrap();
        for (record, has_shoot_access, closed, state, reason, until, words) in table {
            let status = of(&name, &record, has_shoot_access, closed, at(10));
            assert_eq!((status.state, status.reason, status.until), (state, reason, until));
            assert!(status.message.contains(words), "{}", status.message);
        }
    }

    #[test]
    fn a_firewall_whose_certificate_has_ended_is_not_called_ready() {
        let name = FirewallName::parse("fw-1").unwrap();
        let record = issued(pinned().prove(at(2)));
        let end = record.certificate.as_ref().unwrap().not_after;
        let before = of(&name, &record, true, None, end - jiff::SignedDuration::from_secs(1));
        assert_eq!(before.state, State::Ready);
        let after = of(&name, &record, true, None, end);
        assert_eq!(
            (after.state, after.reason),
            (State::Refused, Reason::CertificateExpired)
        );
    }
}
