//! Events (events.k8s.io) on Firewalls and requests, for people with kubectl. Best effort: one that cannot be written
//! costs a log line and nothing else, and nobody waits for it. How often is `core::said`'s to decide; the log has
//! everything.

use std::sync::Arc;
use std::time::Duration;

use contract::names;
use contract::reasons::Reason;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};

use cluster::api::{call, call_opt};
use cluster::failure::Failure;

use crate::core::said::{Book, Count, Object, Saying};

/// What the API server takes as an event's note, and as the name of who reports it.
const NOTE_MAX: usize = 1024;
const INSTANCE_MAX: usize = 128;
/// What is said faster than it can be written is left out.
const WAITING_MAX: usize = 1024;
const TICK: Duration = Duration::from_secs(1);
/// How often it is logged that some were left out.
const LEFT_OUT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Events {
    said: mpsc::Sender<(String, Saying)>,
}

impl Events {
    /// `replica`: which one says it.
    pub fn new(client: Client, replica: Option<&str>) -> Self {
        let (said, heard) = mpsc::channel(WAITING_MAX);
        let replica = replica.map_or_else(cluster::process::unique_name, str::to_owned);
        let writer = Writer {
            client,
            instance: cut(&replica, INSTANCE_MAX),
            failing: false,
        };
        tokio::spawn(writer.run(heard));
        Self { said }
    }

    /// Whatever is said of a Firewall, or of an object of our own, is said in its own name.
    pub fn normal(&self, on: ObjectReference, reason: Reason, action: &'static str, note: &str) {
        self.say(None, on, false, reason, action, note);
    }

    pub fn warning(&self, on: ObjectReference, reason: Reason, action: &'static str, note: &str) {
        self.say(None, on, true, reason, action, note);
    }

    /// Of a request, which anybody may have made: in the name of whoever made it, so that he alone goes short.
    pub fn of_request<K: Resource<DynamicType = ()>>(
        &self,
        request: &K,
        requester: &str,
        (warning, reason, action): (bool, Reason, &'static str),
        note: &str,
    ) {
        self.say(Some(requester), request.object_ref(&()), warning, reason, action, note);
    }

    fn say(
        &self,
        cause: Option<&str>,
        on: ObjectReference,
        warning: bool,
        reason: Reason,
        action: &'static str,
        note: &str,
    ) {
        let on = Object {
            api_version: on.api_version.unwrap_or_default(),
            kind: on.kind.unwrap_or_default(),
            namespace: on.namespace,
            name: on.name.unwrap_or_default(),
            uid: on.uid,
        };
        let own = || format!("{}/{}", on.namespace.as_deref().unwrap_or_default(), on.name);
        let cause = cause.map_or_else(own, str::to_owned);
        let note: String = note.chars().filter(|c| !c.is_control()).collect();
        let saying = Saying {
            on,
            warning,
            reason,
            action,
            note: cut(&note, NOTE_MAX),
        };
        // Nobody waits for an event. Where the queue is full, the log has it.
        let _ = self.said.try_send((cause, saying));
    }
}

struct Writer {
    client: Client,
    /// Which replica says it.
    instance: String,
    failing: bool,
}

impl Writer {
    async fn run(mut self, mut heard: mpsc::Receiver<(String, Saying)>) {
        let mut book = Book::default();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told: Option<Instant> = None;
        loop {
            tokio::select! {
                said = heard.recv() => {
                    let Some((cause, saying)) = said else { return };
                    let (saying, now) = (Arc::new(saying), Timestamp::now());
                    if let Some(name) = book.say(&cause, Arc::clone(&saying), now) {
                        let made = self.make(&name, &saying, now).await;
                        if !self.went(made) {
                            book.lost(&saying);
                        }
                    }
                }
                _ = tick.tick() => {
                    for count in book.counts(Timestamp::now()) {
                        let counted = self.count(&count).await;
                        // One that is gone is made anew. Where nobody answered, it is counted on.
                        if matches!(counted, Ok(false)) {
                            book.lost(&count.saying);
                        }
                        self.went(counted.map(drop));
                    }
                    if told.is_none_or(|told| told.elapsed() >= LEFT_OUT) {
                        let left_out = book.left_out();
                        if left_out > 0 {
                            told = Some(Instant::now());
                            tracing::warn!(left_out, "events were left out: too many for whoever gave cause for them; the log has each");
                        }
                    }
                }
            }
        }
    }

    async fn make(&self, name: &str, saying: &Saying, now: Timestamp) -> Result<(), Failure> {
        let on = &saying.on;
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace(on).to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            action: Some(saying.action.to_owned()),
            reason: Some(saying.reason.as_str().to_owned()),
            note: Some(saying.note.clone()),
            type_: Some(if saying.warning { "Warning" } else { "Normal" }.to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some(on.api_version.clone()),
                kind: Some(on.kind.clone()),
                namespace: on.namespace.clone(),
                name: Some(on.name.clone()),
                uid: on.uid.clone(),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(names::APPROVER.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        };
        let what = format!("write an event on {} {}", on.kind, on.name);
        call(what, self.events(on).create(&PostParams::default(), &event))
            .await
            .map(drop)
    }

    /// Of a standing event the API lets the series change, and nothing else. Whether it stands.
    async fn count(&self, count: &Count) -> Result<bool, Failure> {
        let on = &count.saying.on;
        let last = MicroTime(count.last);
        let patch = json!({ "series": { "count": count.count, "lastObservedTime": last } });
        let what = format!("count an event on {} {}", on.kind, on.name);
        let (events, params, patch) = (self.events(on), PatchParams::default(), Patch::Merge(patch));
        let patched = events.patch(&count.event, &params, &patch);
        Ok(call_opt(what, patched).await?.is_some())
    }

    fn events(&self, on: &Object) -> Api<Event> {
        Api::namespaced(self.client.clone(), namespace(on))
    }

    fn went(&mut self, outcome: Result<(), Failure>) -> bool {
        let Err(failure) = outcome else {
            self.failing = false;
            return true;
        };
        if !self.failing {
            tracing::warn!(%failure, "no event written");
        }
        self.failing = true;
        false
    }
}

/// Events on what has no namespace stand in this one.
fn namespace(on: &Object) -> &str {
    on.namespace.as_deref().unwrap_or("default")
}

fn cut(text: &str, max: usize) -> String {
    text.char_indices()
        .take_while(|(at, c)| at + c.len_utf8() <= max)
        .map(|(_, c)| c)
        .collect()
}
