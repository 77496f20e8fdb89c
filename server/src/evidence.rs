//! What there is to know about a request: read from its bytes, from the caches, and from the API server's review.
//! Gathers the facts that `core::decide` judges; decides nothing and writes nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use contract::csr;
use contract::key::PublicKey;
use contract::names::FirewallName;
use contract::record::Record;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};

use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::decide::{Candidate, Decision, Facts, Request, Requester, Review, Sibling, decide};
use crate::core::heard::named;
use crate::state::StateError;

/// More than anybody says of a request.
const ANNOTATIONS_MAX: usize = 8 * 1024;
const KEYS_MAX: usize = 4096;

/// Puts all that is known before the policy.
pub fn gather_and_decide(
    csr: &CertificateSigningRequest,
    request: &Request,
    review: Option<Review>,
    approver: &Approver,
    now: Timestamp,
) -> Result<Decision, StateError> {
    let Ok(read) = &request.read else {
        let none = Facts {
            firewalls: &[],
            token_owner: None,
            siblings: &[],
            review,
        };
        return Ok(decide(request, &none, now));
    };
    let found = approver.firewalls_named(read.firewall.as_str());
    let mut records = Vec::with_capacity(found.len());
    for firewall in &found {
        records.push(approver.cached_record(&firewall.namespace().unwrap_or_default(), &read.firewall)?);
    }
    let namespaces: Vec<String> = found
        .iter()
        .map(|firewall| firewall.namespace().unwrap_or_default())
        .collect();
    let candidates: Vec<Candidate<'_>> = found
        .iter()
        .zip(&namespaces)
        .zip(&records)
        .map(|((f, namespace), record)| candidate(f, namespace, record.as_ref()))
        .collect();
    let owner = match &request.requester {
        Requester::Token(id) => token_owner(approver, id, Some(&read.firewall)),
        _ => None,
    };
    let facts = Facts {
        firewalls: &candidates,
        token_owner: owner
            .as_ref()
            .map(|(namespace, firewall)| (namespace.as_str(), firewall)),
        siblings: &siblings(csr, approver),
        review,
    };
    Ok(decide(request, &facts, now))
}

/// The request as the policy sees it.
pub fn request(csr: &CertificateSigningRequest) -> Request {
    let spec = &csr.spec;
    Request {
        name: csr.name_any(),
        signer: spec.signer_name.clone(),
        read: csr::read(&spec.request.0),
        claims_our_names: csr::claims_our_names(&spec.request.0),
        usages: spec.usages.clone().unwrap_or_default(),
        expiration_seconds: spec.expiration_seconds,
        requester: Requester::of(
            spec.username.as_deref().unwrap_or_default(),
            spec.groups.as_deref().unwrap_or_default(),
        ),
        created: csr.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
    }
}

fn candidate<'a>(
    firewall: &'a DeserializeGuard<Firewall>,
    namespace: &'a str,
    record: Option<&'a Record>,
) -> Candidate<'a> {
    let meta = firewall.meta();
    Candidate {
        namespace,
        uid: meta.uid.as_deref().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map_or(Timestamp::MAX, |time| time.0),
        deleting: meta.deletion_timestamp.is_some(),
        record,
    }
}

/// The Firewall that a requester is bound to, whatever it asks for.
pub fn whose(request: &Request, approver: &Approver) -> Option<(String, FirewallName)> {
    if let Requester::Token(id) = &request.requester {
        let asked = request.read.as_ref().ok().map(|read| &read.firewall);
        return token_owner(approver, id, asked);
    }
    let name = named(&request.requester)?;
    let on_record = |namespace: &String| matches!(approver.cached_record(namespace, &name), Ok(Some(_)));
    let found = approver.firewalls_named(name.as_str());
    let mut namespaces = found.iter().filter_map(|firewall| firewall.namespace());
    namespaces.find(on_record).map(|namespace| (namespace, name.clone()))
}

/// Whose bootstrap token this is: the requested firewall's own in all but the bad cases, so that is tried first.
fn token_owner(approver: &Approver, id: &str, asked: Option<&FirewallName>) -> Option<(String, FirewallName)> {
    let asked = asked.map_or("", FirewallName::as_str);
    let rest = approver.all_firewalls().filter(|firewall| firewall.name_any() != asked);
    for firewall in approver.firewalls_named(asked).into_iter().chain(rest) {
        let namespace = firewall.namespace().unwrap_or_default();
        let Ok(name) = FirewallName::parse(&firewall.name_any()) else {
            continue;
        };
        // Another shoot's record that cannot be read is that shoot's trouble.
        let Ok(Some(record)) = approver.cached_record(&namespace, &name) else {
            continue;
        };
        let Some(credential) = record.credential else { continue };
        if approver.key.token(&namespace, &name, credential.epoch).id == id {
            return Some((namespace, name));
        }
    }
    None
}

/// One for another signer is never decided by us and would hold this one up for ever; so would one of somebody else's user of
/// the same name, without our groups.
fn is_sibling(other: &CertificateSigningRequest, of: &CertificateSigningRequest) -> bool {
    other.spec.signer_name == of.spec.signer_name
        && other.spec.username == of.spec.username
        && is_firewalls(other)
        && other.name_any() != of.name_any()
        && condition(other, "Denied").is_none()
        && condition(other, "Failed").is_none()
}

/// The identity's other requests that are neither denied nor failed.
fn siblings(csr: &CertificateSigningRequest, approver: &Approver) -> Vec<Sibling> {
    let others = approver.requests.state();
    others
        .iter()
        .filter(|other| is_sibling(other, csr))
        .map(|other| Sibling {
            name: other.name_any(),
            created: other.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
            approved: condition(other, "Approved")
                .map(|c| c.last_update_time.as_ref().map_or(Timestamp::MIN, |time| time.0)),
            key: approver.keys.of(other),
        })
        .collect()
}

/// The keys of requests that were read before: each of a crowd looks at all the others.
#[derive(Default)]
pub struct Keys(Mutex<HashMap<String, Option<PublicKey>>>);

impl Keys {
    fn of(&self, csr: &CertificateSigningRequest) -> Option<PublicKey> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(uid) = csr.uid() else {
            return key(csr);
        };
        if known.len() >= KEYS_MAX && !known.contains_key(&uid) {
            known.clear();
        }
        known.entry(uid).or_insert_with(|| key(csr)).clone()
    }
}

fn key(csr: &CertificateSigningRequest) -> Option<PublicKey> {
    csr::read(&csr.spec.request.0).ok().map(|read| read.key)
}

/// What nobody needs of a request is not kept: whoever may make requests may make many, and large ones.
pub fn shrink(csr: &mut CertificateSigningRequest) {
    csr.managed_fields_mut().clear();
    // Beside what is usual they are kept: the object is written back when it is decided.
    if csr
        .annotations()
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum::<usize>()
        > ANNOTATIONS_MAX
    {
        csr.annotations_mut().clear();
    }
    if csr.spec.request.0.len() > csr::REQUEST_MAX {
        // Too large to be one of ours, and denied for that all the same.
        csr.spec.request.0.truncate(csr::REQUEST_MAX + 1);
        csr.spec.request.0.shrink_to_fit();
    }
}

/// Whether one of our identities made it.
pub fn is_firewalls(csr: &CertificateSigningRequest) -> bool {
    let groups = csr.spec.groups.as_deref().unwrap_or_default();
    Requester::of(csr.spec.username.as_deref().unwrap_or_default(), groups) != Requester::Foreign
}

pub fn condition<'a>(
    csr: &'a CertificateSigningRequest,
    type_: &str,
) -> Option<&'a CertificateSigningRequestCondition> {
    csr.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == type_)
}

#[cfg(test)]
mod tests {
    use contract::names;

    use super::*;

    fn asked(name: &str, group: &str) -> CertificateSigningRequest {
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.name = Some(name.to_owned());
        csr.spec.username = Some(format!("{}fw", names::USER_PREFIX));
        csr.spec.groups = Some(vec![group.to_owned()]);
        csr.spec.signer_name = names::SIGNER.into();
        csr
    }

    fn concluded(type_: &str) -> CertificateSigningRequest {
        let mut csr = asked("b", names::ORGANIZATION);
        csr.status.get_or_insert_default().conditions = Some(vec![CertificateSigningRequestCondition {
            type_: type_.into(),
            ..CertificateSigningRequestCondition::default()
        }]);
        csr
    }

    #[test]
    fn a_request_waits_for_its_own_identitys_open_ones_only() {
        let own = asked("a", names::ORGANIZATION);
        assert!(is_sibling(&asked("b", names::ORGANIZATION), &own));
        assert!(is_sibling(&concluded("Approved"), &own));
        assert!(!is_sibling(&own, &own));
        assert!(!is_sibling(&asked("b", "a-group-of-somebody-else"), &own));
        assert!(!is_sibling(&concluded("Denied"), &own) && !is_sibling(&concluded("Failed"), &own));
        let mut other = asked("b", names::ORGANIZATION);
        other.spec.signer_name = "example.com/another".into();
        assert!(!is_sibling(&other, &own));
        other = asked("b", names::ORGANIZATION);
        other.spec.username = Some(format!("{}another", names::USER_PREFIX));
        assert!(!is_sibling(&other, &own));
    }
}
