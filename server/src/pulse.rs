//! How each watch lives, and what waits for a worker behind it: told by the watches as they go, judged in
//! `core::health`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};

use cluster::failure::{Class, classify};

use crate::core::health::Watch;

#[derive(Clone, Debug)]
pub struct Pulse {
    pub name: &'static str,
    poll: Duration,
    /// Whether a worker stands behind it.
    pub queues: bool,
    beat: Arc<Mutex<Beat>>,
}

#[derive(Debug)]
struct Beat {
    last: Instant,
    listed: bool,
    failed: Option<(Instant, Class)>,
    /// What came or changed since a worker looked at it last, as `namespace/name`.
    waiting: BTreeSet<String>,
}

impl Pulse {
    pub fn new(name: &'static str, poll: Duration) -> Self {
        let beat = Beat {
            last: Instant::now(),
            listed: false,
            failed: None,
            waiting: BTreeSet::new(),
        };
        Self {
            name,
            poll,
            queues: false,
            beat: Arc::new(Mutex::new(beat)),
        }
    }

    /// A watch whose objects are worked on.
    pub fn queued(name: &'static str, poll: Duration) -> Self {
        Self {
            queues: true,
            ..Self::new(name, poll)
        }
    }

    pub fn feel<K>(&self, event: &watcher::Result<Event<K>>) {
        let mut beat = self.beat();
        match event {
            // Said before anything is asked.
            Ok(Event::Init) => {}
            Ok(event) => {
                beat.last = Instant::now();
                beat.failed = None;
                beat.listed |= matches!(event, Event::InitDone);
            }
            Err(error) => beat.failed = Some((Instant::now(), class(error))),
        }
    }

    /// An object that a worker will be given came by.
    pub fn queue<K: ResourceExt>(&self, event: &Event<K>) {
        match event {
            Event::Apply(object) | Event::InitApply(object) => self.waits(&key(object)),
            Event::Delete(object) => self.taken(&key(object)),
            Event::Init | Event::InitDone => {}
        }
    }

    pub fn waits(&self, object: &str) {
        self.beat().waiting.insert(object.to_owned());
    }

    /// A worker looks at it.
    pub fn taken(&self, object: &str) {
        self.beat().waiting.remove(object);
    }

    /// How many wait, of those that are there.
    pub fn depth(&self, is_there: impl Fn(&str) -> bool) -> usize {
        let mut beat = self.beat();
        beat.waiting.retain(|object| is_there(object));
        beat.waiting.len()
    }

    pub fn watch(&self) -> Watch {
        let beat = self.beat();
        Watch {
            quiet: beat.last.elapsed(),
            listed: beat.listed,
            failed: beat.failed.map(|(at, class)| (at.elapsed(), class)),
            poll: self.poll,
        }
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub fn key(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

fn class(error: &watcher::Error) -> Class {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => classify(error),
        // An error within the watch, most often that it was too old: it begins with a list anew.
        _ => Class::Busy,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use kube::api::ObjectMeta;

    use super::*;

    fn secret(name: &str) -> Secret {
        Secret {
            metadata: ObjectMeta {
                namespace: Some("shoot--a--b".into()),
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        }
    }

    #[test]
    fn e1_only_what_the_server_said_is_a_sign_of_life() {
        let pulse = Pulse::new("states", Duration::from_secs(1));
        assert!(!pulse.watch().listed);
        pulse.feel::<Secret>(&Err(watcher::Error::NoResourceVersion));
        // Nobody was asked yet.
        pulse.feel::<Secret>(&Ok(Event::Init));
        assert!(pulse.watch().failed.is_some_and(|(_, class)| class == Class::Busy));
        pulse.feel(&Ok(Event::InitApply(secret("a"))));
        assert!(pulse.watch().failed.is_none() && !pulse.watch().listed);
        pulse.feel::<Secret>(&Ok(Event::InitDone));
        assert!(pulse.watch().listed);
        pulse.feel::<Secret>(&Err(watcher::Error::NoResourceVersion));
        pulse.feel(&Ok(Event::Apply(secret("a"))));
        assert!(pulse.watch().failed.is_none());
    }

    #[test]
    fn what_waits_is_counted_once_until_it_is_looked_at_or_gone() {
        let pulse = Pulse::queued("firewalls", Duration::from_secs(1));
        let depth = || pulse.depth(|_| true);
        pulse.queue(&Event::InitApply(secret("a")));
        pulse.queue(&Event::Apply(secret("a")));
        pulse.queue(&Event::Apply(secret("b")));
        pulse.waits("shoot--a--b/a");
        assert_eq!(depth(), 2);
        pulse.taken("shoot--a--b/a");
        assert_eq!(depth(), 1);
        pulse.queue(&Event::Delete(secret("b")));
        assert_eq!(depth(), 0);
        // Somebody was woken who does not exist.
        pulse.waits("shoot--a--b/nobody");
        assert_eq!(pulse.depth(|object| object != "shoot--a--b/nobody"), 0);
        assert_eq!(depth(), 0);
    }
}
