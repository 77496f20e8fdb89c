//! The worker for CertificateSigningRequests: gathers the facts, asks `core::decide`, carries out its answer. Level
//! triggered: whatever is undecided is looked at again, so no event is needed for correctness.

use std::sync::Arc;
use std::time::Duration;

use contract::csr;
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::Record;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use thiserror::Error;

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::decide::{Candidate, Change, Decision, Facts, Request, Requester, Review, Sibling, decide};
use crate::state::StateError;

#[derive(Debug, Error)]
pub enum RequestError {
    #[error("CertificateSigningRequest {0}: {1}")]
    Call(String, Failure),
    #[error("CertificateSigningRequest {0}: {1}")]
    State(String, StateError),
}

/// How long a signer may take before somebody is told.
const SIGNING_GRACE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(300);
/// More than anybody says of a request.
const ANNOTATIONS_MAX: usize = 8 * 1024;

pub async fn reconcile(csr: Arc<CertificateSigningRequest>, approver: Arc<Approver>) -> Result<Action, RequestError> {
    approver.ready().await;
    let name = csr.name_any();
    if condition(&csr, "Denied").is_some() || condition(&csr, "Failed").is_some() {
        return Ok(Action::await_change());
    }
    if let Some(approved) = condition(&csr, "Approved") {
        return Ok(follow(&csr, approved, &approver));
    }
    let now = Timestamp::now();
    let request = request(&csr);
    let mut review = None;
    let decision = loop {
        let decision = gather_and_decide(&csr, &request, review.take(), &approver, now)
            .map_err(|e| RequestError::State(name.clone(), e))?;
        match decision {
            Decision::Review(subresource) => {
                let answer = ask(&approver, &csr, subresource).await;
                review = Some(answer.map_err(|e| RequestError::Call(name.clone(), e))?);
            }
            decision => break decision,
        }
    };
    carry_out(&csr, decision, &approver, now).await
}

/// How soon an undecided request is looked at again: at once while it is young, for a fact that is on its way.
fn retry_after(csr: &CertificateSigningRequest, now: Timestamp) -> Duration {
    let age = csr
        .creation_timestamp()
        .map_or(0, |created| now.duration_since(created.0).as_secs());
    match age {
        0..5 => Duration::from_millis(250),
        5..60 => Duration::from_secs(2),
        60..600 => Duration::from_secs(15),
        _ => Duration::from_secs(60),
    }
}

/// An approved request: its certificate belongs on record while it can be read.
fn follow(
    csr: &CertificateSigningRequest,
    approved: &CertificateSigningRequestCondition,
    approver: &Approver,
) -> Action {
    let Ok(read) = csr::read(&csr.spec.request.0) else {
        return Action::await_change();
    };
    if Requester::of(
        csr.spec.username.as_deref().unwrap_or_default(),
        csr.spec.groups.as_deref().unwrap_or_default(),
    ) == Requester::Foreign
    {
        return Action::await_change();
    }
    if csr.status.as_ref().is_some_and(|status| status.certificate.is_some()) {
        for firewall in approver.firewalls_named(read.firewall.as_str()) {
            approver.wake_firewall(&firewall.namespace().unwrap_or_default(), read.firewall.as_str());
        }
        return Action::await_change();
    }
    let since = approved
        .last_update_time
        .as_ref()
        .map_or(Timestamp::now(), |time| time.0);
    let waiting = Timestamp::now().duration_since(since).unsigned_abs();
    if waiting < SIGNING_GRACE {
        return Action::requeue(SIGNING_GRACE.saturating_sub(waiting) + Duration::from_millis(100));
    }
    let why = format!(
        "it was approved {} s ago and no certificate came: does kube-controller-manager run with csrsigning and a key for {}?",
        waiting.as_secs(),
        names::SIGNER
    );
    tracing::warn!(request = %csr.name_any(), firewall = %read.firewall, reason = %Reason::ApprovedNotIssued, "{why}");
    approver
        .events
        .warning(csr.object_ref(&()), Reason::ApprovedNotIssued, "Sign", &why);
    Action::requeue(POLL)
}

fn gather_and_decide(
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
        Requester::Token(id) => token_owner(approver, id, &read.firewall)?,
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

async fn carry_out(
    csr: &CertificateSigningRequest,
    decision: Decision,
    approver: &Approver,
    now: Timestamp,
) -> Result<Action, RequestError> {
    let name = csr.name_any();
    let requester = csr.spec.username.as_deref().unwrap_or_default();
    let dry_run = approver.dry_run;
    match decision {
        Decision::Ignore { reason, why } => {
            if let Some(reason) = reason {
                tracing::warn!(request = %name, %requester, %reason, dry_run, "ignored: {why}");
                if !dry_run {
                    approver.events.warning(csr.object_ref(&()), reason, "Ignored", &why);
                }
            }
            Ok(Action::await_change())
        }
        Decision::Retry { reason, why, record } => {
            if let Some(change) = record.filter(|_| !dry_run) {
                save(&name, change, approver).await?;
            }
            if approver.is_news(&name, reason.as_str()) {
                tracing::info!(request = %name, %requester, %reason, dry_run, "not decided yet: {why}");
                if !dry_run {
                    approver.events.warning(csr.object_ref(&()), reason, "Wait", &why);
                }
            }
            Ok(Action::requeue(retry_after(csr, now)))
        }
        Decision::Deny { reason, why } => {
            if !dry_run && !write(csr, "Denied", reason.as_str(), &why, approver).await? {
                return Ok(Action::requeue(Duration::from_millis(100)));
            }
            tracing::warn!(request = %name, %requester, %reason, dry_run, "denied: {why}");
            if !dry_run {
                approver.events.warning(csr.object_ref(&()), reason, "Deny", &why);
            }
            Ok(Action::await_change())
        }
        Decision::Approve {
            namespace,
            firewall,
            record,
        } => {
            if !dry_run {
                // The key goes on record first: of two approvers, or of two requests, one then finds it there.
                if let Some(change) = record
                    && !save(&name, change, approver).await?
                {
                    return Ok(Action::requeue(Duration::from_millis(50)));
                }
                if !write(
                    csr,
                    "Approved",
                    names::APPROVED_REASON,
                    names::APPROVED_MESSAGE,
                    approver,
                )
                .await?
                {
                    return Ok(Action::requeue(Duration::from_millis(100)));
                }
                approver.events.normal(
                    csr.object_ref(&()),
                    Reason::AutoApproved,
                    "Approve",
                    names::APPROVED_MESSAGE,
                );
            }
            tracing::info!(request = %name, %requester, %namespace, %firewall, dry_run, "approved");
            Ok(Action::requeue(SIGNING_GRACE))
        }
        // Answered in the loop above; nothing is written for it.
        Decision::Review(_) => Ok(Action::requeue(retry_after(csr, now))),
    }
}

/// Writes keys into a record; false if somebody else was faster and the facts have to be looked at again.
async fn save(name: &str, change: Change, approver: &Approver) -> Result<bool, RequestError> {
    let state = |e| RequestError::State(name.to_owned(), e);
    let Some(stored) = approver.cached_state(&change.namespace) else {
        return Ok(false);
    };
    let Some(record) = stored.record(&change.firewall).map_err(state)? else {
        return Ok(false);
    };
    if record.keys != change.before {
        return Ok(false);
    }
    let record = Record {
        keys: change.keys,
        ..record
    };
    Ok(stored
        .save(&approver.seed, &change.firewall, &record)
        .await
        .map_err(state)?
        .is_some())
}

/// Writes the condition over the object as it was read; false if it was changed meanwhile.
async fn write(
    csr: &CertificateSigningRequest,
    type_: &str,
    reason: &str,
    message: &str,
    approver: &Approver,
) -> Result<bool, RequestError> {
    let name = csr.name_any();
    let now = Time(Timestamp::now());
    let mut decided = csr.clone();
    decided
        .status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default()
        .push(CertificateSigningRequestCondition {
            type_: type_.into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now),
        });
    let requests: Api<CertificateSigningRequest> = Api::all(approver.seed.client.clone());
    let params = PostParams {
        field_manager: Some(names::APPROVER.into()),
        ..PostParams::default()
    };
    let what = format!("write condition {type_}");
    match call(what, requests.replace_subresource("approval", &name, &params, &decided)).await {
        Ok(_) => Ok(true),
        // Changed or gone meanwhile: look again, somebody may have decided already.
        Err(failure) if matches!(failure.class, Class::Conflict | Class::NotFound) => Ok(false),
        Err(failure) => Err(RequestError::Call(name, failure)),
    }
}

async fn ask(approver: &Approver, csr: &CertificateSigningRequest, subresource: &str) -> Result<Review, Failure> {
    let reviews: Api<SubjectAccessReview> = Api::all(approver.seed.client.clone());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: csr.spec.username.clone(),
            uid: csr.spec.uid.clone(),
            groups: csr.spec.groups.clone(),
            extra: csr.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                verb: Some("create".into()),
                group: Some("certificates.k8s.io".into()),
                resource: Some("certificatesigningrequests".into()),
                subresource: Some(subresource.into()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = call(
        "ask for a SubjectAccessReview",
        reviews.create(&PostParams::default(), &review),
    )
    .await?;
    let status = answer.status.unwrap_or_default();
    // Denied outranks allowed.
    if status.allowed && status.denied != Some(true) {
        return Ok(Review::Allowed);
    }
    let reason = status
        .reason
        .or(status.evaluation_error)
        .filter(|reason| !reason.is_empty());
    let may = format!(
        "{} may not create certificatesigningrequests/{subresource}",
        csr.spec.username.as_deref().unwrap_or("")
    );
    Ok(Review::Refused(
        reason.map_or(may.clone(), |reason| format!("{may} ({reason})")),
    ))
}

fn request(csr: &CertificateSigningRequest) -> Request {
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

/// Whose bootstrap token this is: the requested firewall's own in all but the bad cases, so that is tried first.
fn token_owner(
    approver: &Approver,
    id: &str,
    asked: &FirewallName,
) -> Result<Option<(String, FirewallName)>, StateError> {
    let rest = approver
        .all_firewalls()
        .filter(|firewall| firewall.name_any() != asked.as_str());
    for firewall in approver.firewalls_named(asked.as_str()).into_iter().chain(rest) {
        let namespace = firewall.namespace().unwrap_or_default();
        let Ok(name) = FirewallName::parse(&firewall.name_any()) else {
            continue;
        };
        let Some(record) = approver.cached_record(&namespace, &name)? else {
            continue;
        };
        let Some(credential) = record.credential else { continue };
        if approver.key.token(&namespace, &name, credential.epoch).id == id {
            return Ok(Some((namespace, name)));
        }
    }
    Ok(None)
}

/// The identity's other requests that are neither denied nor failed.
fn siblings(csr: &CertificateSigningRequest, approver: &Approver) -> Vec<Sibling> {
    let is_open = |c: &CertificateSigningRequest| condition(c, "Denied").is_none() && condition(c, "Failed").is_none();
    let others = approver.requests.state();
    others
        .iter()
        // One for another signer is never decided by us and would hold this one up for ever.
        .filter(|other| other.spec.signer_name == csr.spec.signer_name)
        .filter(|other| {
            other.spec.username == csr.spec.username && other.name_any() != csr.name_any() && is_open(other)
        })
        .map(|other| Sibling {
            name: other.name_any(),
            created: other.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
            decided: condition(other, "Approved").is_some(),
            key: csr::read(&other.spec.request.0).ok().map(|read| read.key),
        })
        .collect()
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
