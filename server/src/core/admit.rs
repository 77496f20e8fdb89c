//! What becomes of a Firewall that is made or changed: whether its userdata gets its way into the seed, and which one.
//! Facts in, answer out; fetches nothing.
//!
//! A Firewall that is made gets it or is refused: a machine without it never comes in. One that is changed is never held up:
//! its machine may run already.

use contract::names::{self, FirewallName};
use contract::record::Record;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::credential::{first_epoch, next_epoch};

/// So far an epoch may be from the making of its Firewall: clocks differ, and ids may be taken. Whatever else stands there
/// came from another seed, or from somebody else.
const NEAR: SignedDuration = SignedDuration::from_mins(10);
/// So long after the webhook was asked it may be asked again about the same Firewall, by then with its own answer in it.
const ASKED_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// A Firewall on its way into the API server.
pub struct Asked<'a> {
    pub create: bool,
    pub namespace: &'a str,
    /// Empty where the API server is to choose it.
    pub name: &'a str,
    /// None: it has none.
    pub userdata: Option<&'a str>,
    /// Whether it has any annotations, and ours.
    pub annotated: bool,
    pub epoch: Option<&'a str>,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    /// Whether this approver works on the namespace.
    pub served: bool,
}

/// A Firewall of that name that stands, in whatever namespace.
pub struct Standing {
    pub namespace: String,
    pub created: Option<Timestamp>,
    pub epoch: Option<String>,
}

/// What it takes to answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Need {
    /// It is none of ours, or has nothing to be put into.
    Nothing,
    Refuse(String),
    /// A credential of this epoch; none: a new one is to be chosen.
    Credential(FirewallName, Option<u32>),
}

/// Why the userdata could not be written.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// Somebody has another use for it.
    NotIgnition(String),
    /// Anything else, in a sentence.
    Other(String),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    /// A JSON patch.
    Patch(Vec<Value>),
    Warn(String),
    Refuse(String),
}

impl Answer {
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Patch(_) => "patched",
            Self::Warn(_) => "warned",
            Self::Refuse(_) => "refused",
        }
    }
}

/// The epoch in a Firewall's annotation, if it can be of this Firewall.
pub fn kept(epoch: &str, created: Timestamp) -> Option<u32> {
    near(epoch, created, NEAR)
}

fn near(epoch: &str, time: Timestamp, apart: SignedDuration) -> Option<u32> {
    let epoch: u32 = epoch.parse().ok()?;
    let at = Timestamp::from_second(i64::from(epoch)).ok()?;
    (at.duration_since(time).abs() <= apart).then_some(epoch)
}

pub fn need(asked: &Asked<'_>, now: Timestamp) -> Need {
    if !asked.served || asked.deleting {
        return Need::Nothing;
    }
    let name = match FirewallName::parse(asked.name) {
        Ok(name) => name,
        Err(_) if asked.create && asked.name.is_empty() => {
            return Need::Refuse(format!(
                "{}: its userdata holds its name: give it one (metadata.name), generateName is too late",
                object(asked)
            ));
        }
        Err(error) if asked.create => return Need::Refuse(format!("{}: {error}", object(asked))),
        Err(_) => return Need::Nothing,
    };
    if asked.create {
        // The annotation comes along from another seed, with a token that was of use there.
        return Need::Credential(name, asked.epoch.and_then(|epoch| near(epoch, now, ASKED_AGAIN)));
    }
    // Without one it was made when nobody asked us: its machine came in by another way, or will.
    let kept = asked
        .epoch
        .zip(asked.created)
        .and_then(|(epoch, created)| kept(epoch, created));
    kept.map_or(Need::Nothing, |epoch| Need::Credential(name, Some(epoch)))
}

/// The same with what stands in the seed, which counts more than what the question says of it: whoever has come by the webhook's
/// path could ask what he likes, and gets nothing that is not his Firewall's.
pub fn against(need: Need, asked: &Asked<'_>, standing: &[Standing]) -> Need {
    let Need::Credential(name, epoch) = need else {
        return need;
    };
    let here = standing.iter().find(|standing| standing.namespace == asked.namespace);
    if asked.create {
        return match (here, standing.first()) {
            // The API server refuses it, and in its own words.
            (Some(_), _) => Need::Nothing,
            (None, Some(other)) => Need::Refuse(format!(
                "{}: there is a Firewall of this name in namespace {}, and a firewall's name is its identity in the seed: give it another",
                object(asked),
                other.namespace
            )),
            (None, None) => Need::Credential(name, epoch),
        };
    }
    let kept = here.and_then(|here| kept(here.epoch.as_deref()?, here.created?));
    kept.map_or(Need::Nothing, |epoch| Need::Credential(name, Some(epoch)))
}

/// Whether the worker will believe this epoch of a Firewall that is made now.
pub fn is_believed(epoch: u32, now: Timestamp) -> bool {
    near(&epoch.to_string(), now, NEAR / 2).is_some()
}

/// The first epoch that a new Firewall of this name may have: never one of before. `given` is what was answered a moment ago,
/// or came along from another seed that it was left for as quickly.
pub fn epoch(given: Option<u32>, record: Option<&Record>, now: Timestamp) -> u32 {
    let held = record.and_then(|record| record.credential.as_ref());
    given
        .filter(|given| held.is_none_or(|held| held.epoch < *given))
        .unwrap_or_else(|| next_epoch(held, Some(first_epoch(now))))
}

/// The answer to what came of it: epoch and userdata as they should be.
pub fn answer(asked: &Asked<'_>, outcome: Result<(u32, String), Problem>) -> Answer {
    match outcome {
        Ok((epoch, userdata)) => patch(asked, epoch, &userdata),
        Err(Problem::NotIgnition(why)) => Answer::Warn(format!(
            "{}: its userdata is no ignition config and is left as it is: nobody puts its way into the seed there ({why})",
            object(asked)
        )),
        Err(Problem::Other(why)) if asked.create => Answer::Refuse(format!(
            "{}: its way into the seed cannot be put into its userdata: {why}",
            object(asked)
        )),
        Err(Problem::Other(why)) => Answer::Warn(format!(
            "{}: its userdata is taken as it is, perhaps without its way into the seed: {why}",
            object(asked)
        )),
    }
}

fn patch(asked: &Asked<'_>, epoch: u32, userdata: &str) -> Answer {
    let mut patch = Vec::new();
    let epoch = epoch.to_string();
    if asked.create && asked.epoch != Some(epoch.as_str()) {
        let key = names::BOOTSTRAP_EPOCH;
        patch.push(if asked.annotated {
            let path = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
            json!({ "op": "add", "path": path, "value": epoch })
        } else {
            json!({ "op": "add", "path": "/metadata/annotations", "value": { key: epoch } })
        });
    }
    if asked.userdata != Some(userdata) {
        patch.push(json!({ "op": "add", "path": "/spec/userdata", "value": userdata }));
    }
    if patch.is_empty() {
        Answer::Nothing
    } else {
        Answer::Patch(patch)
    }
}

fn object(asked: &Asked<'_>) -> String {
    let name = if asked.name.is_empty() { "<no name>" } else { asked.name };
    format!("Firewall {}/{name}", asked.namespace)
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
