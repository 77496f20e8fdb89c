//! Events on Firewalls and requests, for people with kubectl. Best effort: an event that cannot be written costs a log
//! line and nothing else, and the same event again within minutes is only counted (kube's recorder does that).

use contract::names;
use contract::reasons::Reason;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use cluster::api::call;

/// What the API server takes as an event's note.
const NOTE_MAX: usize = 1024;

#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: names::APPROVER.into(),
            instance: None,
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    pub fn normal(&self, on: ObjectReference, reason: Reason, action: &'static str, note: &str) {
        self.publish(on, EventType::Normal, reason, action, note);
    }

    pub fn warning(&self, on: ObjectReference, reason: Reason, action: &'static str, note: &str) {
        self.publish(on, EventType::Warning, reason, action, note);
    }

    fn publish(&self, on: ObjectReference, type_: EventType, reason: Reason, action: &'static str, note: &str) {
        let note = note
            .char_indices()
            .take_while(|(at, c)| at + c.len_utf8() <= NOTE_MAX)
            .map(|(_, c)| c)
            .collect();
        let event = Event {
            type_,
            reason: reason.as_str().into(),
            note: Some(note),
            action: action.into(),
            secondary: None,
        };
        let recorder = self.recorder.clone();
        // After the decision and beside it: nobody waits for an event.
        tokio::spawn(async move {
            let name = on.name.clone().unwrap_or_default();
            if let Err(failure) = call(format!("write an event on {name}"), recorder.publish(&event, &on)).await {
                tracing::warn!(%failure, "no event written");
            }
        });
    }
}
