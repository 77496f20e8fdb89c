//! Says how a firewall stands (`core::standing`) in one annotation of its Firewall: for people with kubectl. Written only
//! on change; nothing of ours reads it back but its own `since`.

use std::time::Duration;

use contract::names;
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;

use cluster::api::call_opt;
use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::standing::{State, Status};

/// What a person reads at a glance, and an annotation holds.
const MESSAGE_MAX: usize = 600;
/// The same reason in other words is not told more often.
const REWORDED: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize, PartialEq)]
struct Told {
    state: State,
    reason: String,
    message: String,
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

/// Writes the annotation if it says something new; or says after what time it may be written.
pub async fn tell(approver: &Approver, firewall: &Firewall, status: &Status) -> Result<Option<Duration>, Failure> {
    let told = firewall.annotations().get(names::SEED_ACCESS_STATE);
    let told: Option<Told> = told.and_then(|json| serde_json::from_str(json).ok());
    let since = match &told {
        // One that is older than the Firewall came along from another seed.
        Some(told)
            if told.state == status.state
                && told.reason == status.reason.as_str()
                && firewall.creation_timestamp().is_none_or(|made| made.0 <= told.since) =>
        {
            told.since
        }
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
    match call_opt(what, firewalls.patch_metadata(&name, &params, &Patch::Apply(&patch))).await {
        // Gone meanwhile, or another one by now: nobody is left to tell.
        Err(failure) if failure.is(Class::Conflict) => return Ok(None),
        written => written.map(drop)?,
    }
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
