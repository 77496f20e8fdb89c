//! The worker for CertificateSigningRequests: gathers the facts, asks `core::decide`, carries out its answer. Level
//! triggered: whatever is undecided is looked at again, so no event is needed for correctness.

use std::sync::Arc;
use std::time::Duration;

use contract::access::Mode;
use contract::csr;
use contract::grant;
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use thiserror::Error;

use cluster::api::call;
use cluster::failure::{Class, Failure};

use crate::approver::Approver;
use crate::core::decide::{Change, Decision, Review};
use crate::core::heard::{Refused, is_worth_telling};
use crate::core::plan;
use crate::credential;
use crate::evidence::{condition, gather_and_decide, is_firewalls, request, whose};
use crate::metrics::Decided;
use crate::pulse::key;
use crate::state::StateError;

#[derive(Debug, Error)]
pub enum RequestError {
    #[error("CertificateSigningRequest {0}: {1}")]
    Call(String, Failure),
    #[error("CertificateSigningRequest {0}: {1}")]
    State(String, StateError),
    #[error("CertificateSigningRequest {0}: no token could be made for it: {1}; tried again")]
    Grant(String, String),
}

/// How long a signer may take before somebody is told.
const SIGNING_GRACE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(2);
const RETRY_AT_LAST: Duration = Duration::from_secs(60);

pub async fn reconcile(csr: Arc<CertificateSigningRequest>, approver: Arc<Approver>) -> Result<Action, RequestError> {
    let looked_at = look_at(&csr, &approver).await;
    if looked_at.is_ok() {
        approver.retries.worked(&failing(&csr));
    }
    looked_at
}

/// How a request is called that work fails on.
fn failing(csr: &CertificateSigningRequest) -> String {
    format!("request {}", csr.name_any())
}

/// After a failure; each request waits by itself.
#[allow(clippy::needless_pass_by_value, reason = "as the controller calls it")]
pub fn retry(csr: Arc<CertificateSigningRequest>, error: &RequestError, approver: Arc<Approver>) -> Action {
    let wait = approver.retries.failed(&failing(&csr), RETRY);
    tracing::warn!(firewall = firewall_of(&csr, &approver), request = %csr.name_any(), %error, seconds = wait.as_secs(), "tried again");
    Action::requeue(wait)
}

async fn look_at(csr: &CertificateSigningRequest, approver: &Approver) -> Result<Action, RequestError> {
    approver.ready().await;
    let name = csr.name_any();
    approver.taken("requests", &key(csr));
    // Made and approved by whoever keeps it; nobody gains anything by one.
    if csr::is_canary(&csr.spec.request.0) {
        return Ok(Action::await_change());
    }
    if let Some(denied) = condition(csr, "Denied") {
        // By whichever approver of this seed was first, perhaps before a restart.
        let at = denied.last_update_time.as_ref().map_or(Timestamp::now(), |time| time.0);
        if let Some(reason) = denied.reason.as_deref().and_then(Reason::parse) {
            tell_firewall(csr, reason, denied.message.as_deref().unwrap_or_default(), at, approver);
        }
        return Ok(Action::await_change());
    }
    if condition(csr, "Failed").is_some() {
        return Ok(Action::await_change());
    }
    if let Some(approved) = condition(csr, "Approved") {
        return Ok(follow(csr, approved, approver));
    }
    let now = Timestamp::now();
    let request = request(csr);
    let mut review = None;
    let decision = loop {
        let decision = gather_and_decide(csr, &request, review.take(), approver, now)
            .map_err(|e| RequestError::State(name.clone(), e))?;
        match decision {
            Decision::Review(subresource) => {
                let answer = ask(approver, csr, subresource).await;
                review = Some(answer.map_err(|e| RequestError::Call(name.clone(), e))?);
            }
            decision => break decision,
        }
    };
    tracing::debug!(firewall = firewall_of(csr, approver), request = %name, ?decision, "decided");
    carry_out(csr, decision, approver, now).await
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
        _ => RETRY_AT_LAST,
    }
}

/// Whoever stands further back in a crowd is asked about less often: all of them together cost as much as a few.
fn in_turn(soon: Duration, behind: usize) -> Duration {
    let turns = u32::try_from(behind.max(1)).unwrap_or(u32::MAX);
    soon.saturating_mul(turns).min(RETRY_AT_LAST).max(soon)
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
    if !is_firewalls(csr) {
        return Action::await_change();
    }
    let granted = condition(csr, grant::CONDITION).is_some();
    if granted || csr.status.as_ref().is_some_and(|status| status.certificate.is_some()) {
        approver.metrics.issued(&csr.name_any(), Timestamp::now());
        for firewall in approver.firewalls_named(read.firewall.as_str()) {
            approver.wake_firewall(&firewall.namespace().unwrap_or_default(), read.firewall.as_str());
        }
        return Action::await_change();
    }
    let since = approved
        .last_update_time
        .as_ref()
        .map_or(Timestamp::now(), |time| time.0);
    // Where others serve other namespaces of this seed, theirs are not timed here.
    if !approver.firewalls_named(read.firewall.as_str()).is_empty() {
        approver.metrics.awaits(&csr.name_any(), since);
    }
    let waiting = Timestamp::now().duration_since(since).unsigned_abs();
    if waiting < SIGNING_GRACE {
        return Action::requeue(SIGNING_GRACE.saturating_sub(waiting) + Duration::from_millis(100));
    }
    let why = format!(
        "it was approved at {since:.0} and no certificate came: does kube-controller-manager run with csrsigning and a key for {}? On a seed that signs none, run the approver with --seed-access=token",
        names::SIGNER
    );
    tracing::warn!(firewall = firewall_of(csr, approver), request = %csr.name_any(), reason = %Reason::ApprovedNotIssued, "{why}");
    tell_firewall(csr, Reason::ApprovedNotIssued, &why, Timestamp::now(), approver);
    let requester = csr.spec.username.as_deref().unwrap_or_default();
    let said = (true, Reason::ApprovedNotIssued, "Sign");
    approver.events.of_request(csr, requester, said, &why);
    Action::requeue(POLL)
}

/// Puts it on the Firewall of whoever asked: people look there first. Of a request for another's name, too, on the
/// asker's.
fn tell_firewall(csr: &CertificateSigningRequest, reason: Reason, why: &str, at: Timestamp, approver: &Approver) {
    if approver.dry_run || !is_worth_telling(reason) {
        return;
    }
    if let Some((namespace, firewall)) = whose(&request(csr), approver) {
        let refused = Refused::new(&csr.name_any(), reason, why, at);
        approver.refuse(&namespace, &firewall, refused);
    }
}

async fn carry_out(
    csr: &CertificateSigningRequest,
    decision: Decision,
    approver: &Approver,
    now: Timestamp,
) -> Result<Action, RequestError> {
    let name = csr.name_any();
    let requester = csr.spec.username.as_deref().unwrap_or_default();
    let firewall = firewall_of(csr, approver);
    let dry_run = approver.dry_run;
    match decision {
        Decision::Ignore { reason, why } => {
            if let Some(reason) = reason {
                approver.metrics.decided(Decided::Ignored, Some(reason));
                tracing::warn!(firewall, request = %name, %requester, %reason, dry_run, "ignored: {why}");
                if !dry_run {
                    approver
                        .events
                        .of_request(csr, requester, (true, reason, "Ignored"), &why);
                }
            }
            Ok(Action::await_change())
        }
        Decision::Retry {
            reason,
            why,
            record,
            behind,
        } => {
            if let Some(change) = record.filter(|_| !dry_run) {
                save(&name, change, approver).await?;
            }
            if approver.is_news(&name, reason.as_str()) {
                approver.metrics.decided(Decided::Waits, Some(reason));
                tracing::info!(firewall, request = %name, %requester, %reason, dry_run, "not decided yet: {why}");
                if !dry_run {
                    approver.events.of_request(csr, requester, (true, reason, "Wait"), &why);
                    tell_firewall(csr, reason, &why, now, approver);
                }
            }
            Ok(Action::requeue(in_turn(retry_after(csr, now), behind)))
        }
        Decision::Deny { reason, why } => {
            if !dry_run && !write(csr, &[("Denied", reason.as_str(), &why)], approver).await? {
                return Ok(Action::requeue(Duration::from_millis(100)));
            }
            approver.metrics.decided(Decided::Denied, Some(reason));
            tracing::warn!(firewall, request = %name, %requester, %reason, dry_run, "denied: {why}");
            if !dry_run {
                approver.events.of_request(csr, requester, (true, reason, "Deny"), &why);
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
                let mut conditions = vec![("Approved", names::APPROVED_REASON, names::APPROVED_MESSAGE)];
                let granted = match approver.mode {
                    Mode::Certificate => None,
                    Mode::Token => Some(grant(csr, &namespace, &firewall, approver).await?),
                };
                // In one write: who sees the approval sees the token.
                conditions.extend(
                    granted
                        .as_deref()
                        .map(|token| (grant::CONDITION, grant::CONDITION_REASON, token)),
                );
                if !write(csr, &conditions, approver).await? {
                    return Ok(Action::requeue(Duration::from_millis(100)));
                }
                let (made, now) = (csr.creation_timestamp().map(|time| time.0), Timestamp::now());
                approver.metrics.approved(made, now);
                approver.metrics.awaits(&name, now);
                let said = (false, Reason::AutoApproved, "Approve");
                approver
                    .events
                    .of_request(csr, requester, said, names::APPROVED_MESSAGE);
            }
            approver.metrics.decided(Decided::Approved, Some(Reason::AutoApproved));
            let firewall = format!("{namespace}/{firewall}");
            tracing::info!(firewall, request = %name, %requester, dry_run, "approved");
            Ok(Action::requeue(SIGNING_GRACE))
        }
        // Answered in the loop above; nothing is written for it.
        Decision::Review(_) => Ok(Action::requeue(retry_after(csr, now))),
    }
}

/// The firewall that a request names, as log lines name it: with its namespace, where there is one of that name.
pub fn firewall_of(csr: &CertificateSigningRequest, approver: &Approver) -> Option<String> {
    let name = csr::read(&csr.spec.request.0).ok()?.firewall.to_string();
    match approver.firewalls_named(&name).as_slice() {
        [only] => Some(key(&**only)),
        _ => Some(name),
    }
}

/// A token as the answer, sealed to the key of the request.
async fn grant(
    csr: &CertificateSigningRequest,
    namespace: &str,
    firewall: &FirewallName,
    approver: &Approver,
) -> Result<String, RequestError> {
    let (name, request) = (csr.name_any(), &csr.spec.request.0);
    let failed = |why: &dyn std::fmt::Display| RequestError::Grant(name.clone(), why.to_string());
    let read = csr::read(request).map_err(|e| failed(&e))?;
    let found = approver.firewalls_named(firewall.as_str());
    let found = found
        .iter()
        .find(|found| found.namespace().as_deref() == Some(namespace));
    let uid = found.and_then(|found| found.meta().uid.clone());
    let of = plan::Firewall {
        name: firewall,
        namespace,
        uid: &uid.ok_or_else(|| failed(&"its Firewall is gone"))?,
        shoot: None,
    };
    credential::grant(&approver.seed, &of, &read.key, request)
        .await
        .map_err(|e| failed(&e))
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
    let firewall = change.firewall.clone();
    let Some(record) = change.onto(record) else {
        return Ok(false);
    };
    let saved = approver.save(&stored, &firewall, &record).await;
    Ok(saved.map_err(state)?.is_some())
}

/// Writes the conditions over the object as it was read; false if it was changed meanwhile.
pub async fn write(
    csr: &CertificateSigningRequest,
    conditions: &[(&str, &str, &str)],
    approver: &Approver,
) -> Result<bool, RequestError> {
    let name = csr.name_any();
    let now = Time(Timestamp::now());
    let mut decided = csr.clone();
    let added = conditions
        .iter()
        .map(|(type_, reason, message)| CertificateSigningRequestCondition {
            type_: (*type_).into(),
            status: "True".into(),
            reason: Some((*reason).into()),
            message: Some((*message).into()),
            last_update_time: Some(now.clone()),
            last_transition_time: Some(now.clone()),
        });
    let status = decided.status.get_or_insert_default();
    status.conditions.get_or_insert_default().extend(added);
    let requests: Api<CertificateSigningRequest> = Api::all(approver.seed.client.clone());
    let params = PostParams {
        field_manager: Some(names::APPROVER.into()),
        ..PostParams::default()
    };
    let what = format!("write condition {}", conditions.first().map_or("", |(type_, ..)| type_));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p30_a_crowd_is_asked_about_no_more_often_than_a_few() {
        let soon = Duration::from_millis(250);
        assert_eq!((in_turn(soon, 0), in_turn(soon, 1)), (soon, soon));
        let a_second: f64 = (0..crate::crowd::PER_IDENTITY)
            .map(|behind| 1.0 / in_turn(soon, behind).as_secs_f64())
            .sum();
        assert!(a_second < 30.0, "{a_second} times a second");
        assert_eq!(in_turn(RETRY_AT_LAST, 100), RETRY_AT_LAST);
    }
}
