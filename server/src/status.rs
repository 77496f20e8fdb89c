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
use crate::core::heard::{Heard, Refused};
use crate::core::standing::{State, Status, Word};

/// What a person reads at a glance, and an annotation holds.
const MESSAGE_MAX: usize = 600;
/// The same reason in other words is not told more often.
const REWORDED: Duration = Duration::from_secs(10);
/// Nor more often what stands beside it.
const BESIDE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize, PartialEq)]
struct Told {
    state: State,
    reason: String,
    message: String,
    since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    /// The word of the firewall itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    agent: Option<Heard>,
    /// The request of its that came to nothing last.
    #[serde(default, rename = "lastRefused", skip_serializing_if = "Option::is_none")]
    last_refused: Option<Refused>,
}

/// Whether only something changed that stands beside the state, and stood there before: others give cause for that, as
/// often as they like.
fn is_beside(told: &Told, tell: &Told) -> bool {
    (&told.message, told.until) == (&tell.message, tell.until)
        && told.agent.is_some() == tell.agent.is_some()
        && told.last_refused.is_some() == tell.last_refused.is_some()
}

/// Writes the annotation if it says something new; or says after what time it may be written.
pub async fn tell(approver: &Approver, firewall: &Firewall, status: &Status) -> Result<Option<Duration>, Failure> {
    let told = firewall.annotations().get(names::SEED_ACCESS_STATE);
    let told: Option<Told> = told.and_then(|json| serde_json::from_str(json).ok());
    // One that is older than the Firewall came along from another seed.
    let ours = told
        .as_ref()
        .filter(|told| firewall.creation_timestamp().is_none_or(|made| made.0 <= told.since));
    let since = match ours {
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
    let (namespace, name) = (firewall.namespace().unwrap_or_default(), firewall.name_any());
    let heard = ours.and_then(|told| told.agent.as_ref());
    let agent = match &status.heard {
        Word::Heard(now_heard) => Some(now_heard.clone().after(heard, Timestamp::now())),
        Word::AsBefore => heard.cloned(),
        Word::Nothing => None,
    };
    let refused_before = ours.and_then(|told| told.last_refused.clone());
    let last_refused = Refused::after(approver.refused(&namespace, &name), refused_before);
    let tell = Told {
        state: status.state,
        reason: status.reason.as_str().into(),
        message,
        since,
        until: status.until,
        agent,
        last_refused,
    };
    if told.as_ref() == Some(&tell) {
        return Ok(None);
    }
    // Another wording alone is told now and then: a message that differs each time would make this a loop, since what
    // is written here is a change of the Firewall that is looked at.
    let key = format!("state {namespace}/{name}");
    let reworded = told
        .as_ref()
        .is_some_and(|told| told.state == tell.state && told.reason == tell.reason);
    let pause = if told.as_ref().is_some_and(|told| is_beside(told, &tell)) {
        BESIDE
    } else {
        REWORDED
    };
    if let Some(elapsed) = approver
        .applied
        .elapsed(&key)
        .filter(|elapsed| reworded && *elapsed < pause)
    {
        return Ok(Some(pause - elapsed));
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
