//! Puts a handover into the FirewallMonitor, where the firewall still sees it when its seed is gone. What is to be said
//! is on record (`core::handover`); here it is signed, sealed and written, and written again if somebody in the shoot
//! takes it away. Behind this one function: when upstream's object gets a field for it, this file changes.

use std::time::{Duration, Instant};

use contract::handover::{self, Claims, Order};
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use contract::record::{Pin, Record, Sent};
use contract::report::Report;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use thiserror::Error;

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::FirewallMonitor;

use crate::shoots::{Monitor, Shoot};

/// A monitor whose annotation somebody keeps changing is repaired this often at most.
const REPAIR_SLOWEST: Duration = Duration::from_secs(60);

#[derive(Debug, Error)]
pub enum HandoverError {
    #[error("handover {order} to firewall {firewall}: {source}")]
    Make {
        firewall: FirewallName,
        order: Order,
        source: handover::HandoverError,
    },
    #[error(transparent)]
    Call(#[from] Failure),
}

/// What was written last, kept in memory: it is not made twice under one number.
#[derive(Clone)]
pub struct Told {
    order: Order,
    message: String,
    writes: u32,
    at: Instant,
}

pub struct Sending<'a> {
    pub firewall: &'a FirewallName,
    pub namespace: &'a str,
    pub record: &'a Record,
    pub key: &'a PrivateKey,
    pub report: Option<&'a Report>,
    pub kubeconfig: Option<&'a SecretString>,
}

/// Has the monitor say what is on record. Answers after what time it may be repaired, where it may not yet.
pub async fn publish(
    sending: &Sending<'_>,
    shoot: &Shoot,
    monitor: &Monitor,
    told: &mut Option<Told>,
) -> Result<Option<Duration>, HandoverError> {
    let record = sending.record;
    let Some((sent, pin)) = to_send(record) else {
        return Ok(None);
    };
    // It has it, and knows no message of this number but that one.
    if sending.report.is_some_and(|report| report.taken_up == record.order) {
        return Ok(None);
    }
    let standing = monitor.handover.as_deref();
    if told.as_ref().is_none_or(|told| told.order != record.order) {
        // After a restart: what was written before is in the monitor still.
        let ours = standing.filter(|text| is_ours(text, sending, sent, pin));
        let (message, writes) = match ours {
            Some(message) => (message.to_owned(), 1),
            None => match make(sending, sent, pin)? {
                Some(message) => (message, 0),
                None => return Ok(None),
            },
        };
        *told = Some(Told {
            order: record.order,
            message,
            writes,
            at: Instant::now(),
        });
    }
    let Some(told) = told else { return Ok(None) };
    if standing == Some(told.message.as_str()) {
        return Ok(None);
    }
    let wait = Duration::from_secs(1 << told.writes.min(6)).min(REPAIR_SLOWEST);
    if told.writes > 0 && told.at.elapsed() < wait {
        return Ok(Some(wait - told.at.elapsed()));
    }
    write(sending.firewall, shoot, monitor, &told.message).await?;
    told.writes += 1;
    told.at = Instant::now();
    let (order, reason) = (
        record.order,
        record.handover.as_ref().map(|pending| pending.reason.as_str()),
    );
    let sealed = sent.sealed_to.is_some();
    tracing::info!(firewall = %format!("{}/{}", sending.namespace, sending.firewall), handover = %order, reason, sealed, "handover written into the FirewallMonitor");
    Ok(None)
}

fn to_send(record: &Record) -> Option<(&Sent, &Pin)> {
    let sent = record.handover.as_ref()?.sent.as_ref()?;
    Some((sent, record.keys.pin.as_ref()?))
}

/// Whether this is the very message that is on record: one of another firewall of this shoot, or of another time, is
/// signed by the same key and may have the same number.
fn is_ours(message: &str, sending: &Sending<'_>, sent: &Sent, pin: &Pin) -> bool {
    handover::read(message, &[sending.key.public()])
        .is_ok_and(|read| read.claims == claims(sending, sent, pin) && read.is_notice() != sent.sealed_to.is_some())
}

fn claims(sending: &Sending<'_>, sent: &Sent, pin: &Pin) -> Claims {
    let record = sending.record;
    let pending = record.handover.as_ref();
    Claims {
        seed: record.seed.clone(),
        namespace: sending.namespace.to_owned(),
        firewall: sending.firewall.clone(),
        key: pin.thumbprint.clone(),
        order: record.order,
        issued: sent.issued,
        expires: sent.expires,
        reason: pending.map(|pending| pending.reason.clone()).unwrap_or_default(),
    }
}

/// None where the agent's key is another by now: the record will say so at the next look.
fn make(sending: &Sending<'_>, sent: &Sent, pin: &Pin) -> Result<Option<String>, HandoverError> {
    let claims = claims(sending, sent, pin);
    let written = match &sent.sealed_to {
        None => handover::write(sending.key, &claims, None),
        Some(thumbprint) => {
            let seal = sending.report.and_then(|report| report.seal.as_ref());
            let (Some(seal), Some(kubeconfig)) =
                (seal.filter(|seal| seal.thumbprint() == *thumbprint), sending.kubeconfig)
            else {
                return Ok(None);
            };
            handover::write(sending.key, &claims, Some((seal, kubeconfig.expose_secret())))
        }
    };
    written.map(Some).map_err(|source| HandoverError::Make {
        firewall: sending.firewall.clone(),
        order: sending.record.order,
        source,
    })
}

async fn write(firewall: &FirewallName, shoot: &Shoot, monitor: &Monitor, message: &str) -> Result<(), Failure> {
    let monitors: Api<FirewallMonitor> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    let patch = json!({
        "apiVersion": FirewallMonitor::api_version(&()),
        "kind": FirewallMonitor::kind(&()),
        "metadata": {
            "name": firewall,
            // With the UID a patch never creates, nor touches another monitor of the same name.
            "uid": monitor.uid,
            "annotations": { names::SEED_ACCESS: message },
        },
    });
    let params = PatchParams::apply(names::APPROVER).force();
    let what = format!("annotate FirewallMonitor {}/{firewall}", names::MONITOR_NAMESPACE);
    match call(
        what,
        monitors.patch_metadata(firewall.as_str(), &params, &Patch::Apply(&patch)),
    )
    .await
    {
        // Made anew meanwhile: the watch brings its new UID.
        Err(failure) if failure.is(Class::Conflict) => Ok(()),
        answer => answer.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use contract::handover::{SealKey, write};
    use contract::record::{Keys, Pending};
    use jiff::Timestamp;

    use super::*;

    /// The handover key signs for every firewall of the shoot, and numbers are alike: a sibling's message, or one of
    /// another time, must not pass for what is on record.
    #[test]
    fn only_the_very_message_on_record_is_taken_for_ours() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (key, machine, seal) = (
            PrivateKey::generate().unwrap(),
            PrivateKey::generate().unwrap().public(),
            SealKey::generate().unwrap(),
        );
        let sent = Sent {
            issued: at(8),
            expires: at(3608),
            sealed_to: Some(seal.public().thumbprint()),
        };
        let record = Record {
            seed: "seed-b".into(),
            keys: Keys::default().restore(&machine.thumbprint(), at(1)),
            order: Order {
                authority: 5,
                generation: 2,
            },
            handover: Some(Pending {
                reason: "SeedMoved".into(),
                since: at(7),
                issuer: None,
                sent: Some(sent.clone()),
            }),
            ..Record::default()
        };
        let firewall = FirewallName::parse("fw-1").unwrap();
        let sending = Sending {
            firewall: &firewall,
            namespace: "shoot--a",
            record: &record,
            key: &key,
            report: None,
            kubeconfig: None,
        };
        let pin = record.keys.pin.as_ref().unwrap();
        let right = claims(&sending, &sent, pin);
        let sealed = |claims: &Claims| write(&key, claims, Some((seal.public(), "kubeconfig"))).unwrap();
        assert!(is_ours(&sealed(&right), &sending, &sent, pin));
        type Change = fn(&mut Claims);
        let changes: [Change; 5] = [
            |claims| claims.firewall = FirewallName::parse("fw-2").unwrap(),
            |claims| claims.namespace = "shoot--b".into(),
            |claims| claims.seed = "seed-a".into(),
            |claims| claims.issued = Timestamp::UNIX_EPOCH,
            |claims| claims.order.generation = 1,
        ];
        for change in changes {
            let mut other = right.clone();
            change(&mut other);
            assert!(!is_ours(&sealed(&other), &sending, &sent, pin), "{other:?}");
        }
        let notice = write(&key, &right, None).unwrap();
        assert!(!is_ours(&notice, &sending, &sent, pin));
        let foreign = PrivateKey::generate().unwrap();
        let forged = write(&foreign, &right, Some((seal.public(), "kubeconfig"))).unwrap();
        assert!(!is_ours(&forged, &sending, &sent, pin));
    }
}
