//! Watches, and what is built on them: caches, controllers, and how one is woken by another. Knows no decision.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt, stream};
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::{Controller, WatchStreamExt, controller, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, mpsc, watch};

use cluster::firewall::Firewall;

use crate::core::retry;
use crate::pulse::Pulse;
use crate::tasks::Tasks;

const WAIT_FIRST: Duration = Duration::from_millis(500);
const WAIT_LONGEST: Duration = Duration::from_secs(5);
/// A watch that did not fail for so long begins with the first again.
const WAIT_FORGET: Duration = Duration::from_secs(60);

/// The API of every namespace that is worked on.
pub fn scopes<K>(client: &Client, namespaces: &[String]) -> impl Iterator<Item = Api<K>>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    let all = namespaces.is_empty().then(|| Api::all(client.clone()));
    let some: Vec<_> = namespaces
        .iter()
        .map(|namespace| Api::namespaced(client.clone(), namespace))
        .collect();
    all.into_iter().chain(some)
}

/// How long a watch waits after it failed. kube's own waits go up to a minute with their jitter, so that after an outage
/// of twenty seconds a new Firewall was not seen for thirty. The watches of a seed are a handful for each replica, however
/// many firewalls there are: five seconds are no storm. (Those of shoots are as many as there are shoots, asleep or not,
/// and keep the longer ones.)
struct Waits {
    failures: u32,
    /// Different for each watch and each start.
    name: String,
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(retry::after(self.failures, WAIT_FIRST, WAIT_LONGEST, &self.name))
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

fn backoff() -> impl Backoff {
    let waits = Waits {
        failures: 0,
        name: RandomState::new().hash_one(0).to_string(),
    };
    // A list that fails begins with an event that does not: that alone is no success.
    ResetTimerBackoff::new(waits, WAIT_FORGET)
}

/// A watch that begins anew with a list after `poll`: whatever events were lost on the way are noticed then, and a
/// connection that died silently is given up.
pub fn watched<K>(
    api: Api<K>,
    config: watcher::Config,
    poll: Duration,
    pulse: Pulse,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    stream::repeat_with(move || watcher(api.clone(), config.clone()).take_until(tokio::time::sleep(poll)))
        .flatten()
        .inspect(move |event| pulse.feel(event))
}

/// A controller over a watch, and whether that watch has brought all there is. (The store's own `wait_until_ready` wakes
/// one waiter only, and that has to be the controller.) What `admits` refuses is passed over, `shrink` drops what nobody
/// needs of the rest before it is kept, `gone` is told of what was deleted.
pub fn controlled<K>(
    api: Api<K>,
    config: watcher::Config,
    poll: Duration,
    pulse: Pulse,
    mut admits: impl FnMut(&watcher::Event<K>) -> bool + Send + 'static,
    shrink: fn(&mut K),
    gone: impl Fn(&K) + Send + Sync + 'static,
) -> (Controller<K>, Complete)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let (complete, completed) = watch::channel(false);
    let events = watched(api, config, poll, pulse.clone())
        .backoff(backoff())
        .try_filter(move |event| std::future::ready(admits(event)))
        .modify(shrink)
        .reflect(writer)
        .inspect_ok(move |event| pulse.queue(event))
        .inspect_ok(move |event| match event {
            watcher::Event::InitDone => {
                complete.send_replace(true);
            }
            watcher::Event::Delete(object) => gone(object),
            _ => {}
        });
    (Controller::for_stream(kept(events), store), Complete(completed))
}

/// What was applied, as soon as the cache has it: of a list that is only at its end, and whoever is woken before finds
/// nothing.
fn kept<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<K>> + Send {
    let mut listed = Vec::new();
    events
        .map_ok(move |event| {
            let now = match event {
                watcher::Event::Init => {
                    listed.clear();
                    Vec::new()
                }
                watcher::Event::InitApply(object) => {
                    listed.push(object);
                    Vec::new()
                }
                watcher::Event::InitDone => std::mem::take(&mut listed),
                watcher::Event::Apply(object) => vec![object],
                watcher::Event::Delete(_) => Vec::new(),
            };
            stream::iter(now.into_iter().map(Ok))
        })
        .try_flatten()
}

/// Tells when a watch has brought all there is.
#[derive(Clone)]
pub struct Complete(watch::Receiver<bool>);

impl Complete {
    pub async fn wait(&self) {
        // An error means that the watch is gone, and with it this process soon.
        let _ = self.0.clone().wait_for(|complete| *complete).await;
    }
}

/// A cache of objects that is kept by a watch; the namespaces of those that changed are told to `changed`.
pub fn cache<K>(
    tasks: &mut Tasks,
    what: &'static str,
    api: Api<K>,
    config: watcher::Config,
    poll: Duration,
    pulse: Pulse,
    changed: mpsc::UnboundedSender<String>,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let events = watched(api, config, poll, pulse)
        .backoff(backoff())
        .reflect(writer)
        .touched_objects();
    tasks.spawn(what, async move {
        let mut events = std::pin::pin!(events);
        let mut failing = false;
        while let Some(event) = events.next().await {
            if let Err(error) = &event
                && !failing
            {
                tracing::warn!(%error, "the {what} failed and is tried again");
            }
            failing = event.is_err();
            if let Ok(object) = event {
                let _ = changed.send(object.namespace().unwrap_or_default());
            }
        }
    });
    store
}

pub fn listen(
    woken: broadcast::Receiver<(String, String)>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<Firewall>>> {
    stream::unfold(woken, |mut woken| async move {
        loop {
            match woken.recv().await {
                Ok((namespace, name)) => return Some((ObjectRef::new(&name).within(&namespace), woken)),
                // Missed some under load: the poll looks at everything.
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    })
}

pub fn received<T>(receiver: mpsc::UnboundedReceiver<T>) -> impl Stream<Item = T> {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|item| (item, receiver))
    })
}

/// Runs a worker to its end. Its own errors were logged where they arose; those of its watch are said here, once each
/// time they begin.
pub async fn drain<T, E, Q>(name: &'static str, results: impl Stream<Item = Result<T, controller::Error<E, Q>>>)
where
    E: std::error::Error + 'static,
    Q: std::error::Error + 'static,
{
    let mut results = std::pin::pin!(results);
    let mut failing = false;
    while let Some(result) = results.next().await {
        let queue_failed = matches!(&result, Err(controller::Error::QueueError(_)));
        if let Err(controller::Error::QueueError(error)) = &result
            && !failing
        {
            tracing::warn!(%error, "the watch of the {name} failed and is tried again");
        }
        failing = queue_failed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_a_watch_that_fails_again_and_again_is_never_put_off_for_long() {
        let waits: Vec<Duration> = backoff().take(50).collect();
        assert_eq!(waits.len(), 50, "it gives up");
        assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(5)), "{waits:?}");
        let storm = |wait: &Duration| *wait < Duration::from_secs(3);
        assert!(!waits.iter().skip(4).any(storm), "{waits:?}");
        // Not all at once.
        assert_ne!(waits, backoff().take(50).collect::<Vec<_>>());
    }
}
