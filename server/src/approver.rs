//! What the two workers share: the seed, the caches of what stands in it, the shoots, and how each wakes the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use contract::access::Mode;
use contract::names::{self, FirewallName};
use contract::record::{CredentialKind, Record};
use contract::token::SeedKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::{ObjectRef, Store};
use secrecy::SecretString;
use tokio::sync::mpsc::UnboundedSender;

use cluster::firewall::Firewall;

use crate::canary::Canaries;
use crate::core::heard::Refused;
use crate::events::Events;
use crate::evidence::Keys;
use crate::fleet::Fleet;
use crate::handover::Told;
use crate::health::Words;
use crate::metrics::Metrics;
use crate::pulse::Pulse;
use crate::retries::Retries;
use crate::seed::Seed;
use crate::shoots::Shoots;
use crate::state::{State, StateError};
use crate::watches::Complete;

/// An object that was applied is applied again after this time even if nothing of ours changed: somebody may have
/// changed it there.
const REAPPLY: Duration = Duration::from_secs(240);
/// So long what was written here counts before what the watch brings. Versions of a store that is set back would otherwise
/// look older for ever.
const WRITTEN: Duration = Duration::from_secs(60);
const REFUSED_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// A flood of requests must not grow what is remembered of them.
const SAID_MAX: usize = 10_000;

pub struct Approver {
    pub seed: Seed,
    pub key: SeedKey,
    pub kind: RwLock<CredentialKind>,
    /// What firewalls are to work with.
    pub mode: Mode,
    /// The life in seconds of the certificates that they are to ask for; none: theirs to choose.
    pub life: Option<i64>,
    pub dry_run: bool,
    pub poll: Duration,
    /// Empty: all.
    pub namespaces: Vec<String>,
    pub firewalls: Vec<Store<DeserializeGuard<Firewall>>>,
    pub complete: Vec<Complete>,
    pub states: Vec<Store<Secret>>,
    pub shoot_secrets: Vec<Store<Secret>>,
    pub requests: Store<CertificateSigningRequest>,
    pub keys: Keys,
    pub shoots: Shoots,
    pub canaries: Canaries,
    pub events: Events,
    pub wake_firewall: UnboundedSender<(String, String)>,
    pub wake_request: UnboundedSender<String>,
    pub applied: Applied,
    /// The states that were written or read here last, by namespace: the watch brings them a moment later.
    pub written: Mutex<HashMap<String, (State, Instant)>>,
    /// What was handed out, by namespace and firewall, so that it is read once and not at each look.
    pub handed_out: Mutex<HashMap<(String, String), HandedOut>>,
    /// Of each watch of the seed.
    pub pulses: Vec<Pulse>,
    pub fleet: Fleet,
    pub words: Words,
    pub metrics: Metrics,
    pub retries: Retries,
    /// The request of each firewall that came to nothing last, by namespace and firewall.
    pub refused: Mutex<HashMap<(String, String), Refused>>,
    /// What was last said of an object, as a fingerprint.
    pub said: Mutex<HashMap<String, u64>>,
}

#[derive(Clone, Default)]
pub struct HandedOut {
    pub lifeline: Option<SecretString>,
    pub bootstrap_kubeconfig: Option<SecretString>,
    /// The handover that was written last.
    pub told: Option<Told>,
}

impl Approver {
    pub fn kind(&self) -> CredentialKind {
        *self.kind.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every Firewall and request is known: of two of one name, nobody is right by having been seen first.
    pub async fn ready(&self) {
        for complete in &self.complete {
            complete.wait().await;
        }
    }

    /// A worker looks at this object (`namespace/name`) now.
    pub fn taken(&self, watch: &str, object: &str) {
        for pulse in self.pulses.iter().filter(|pulse| pulse.name == watch) {
            pulse.taken(object);
        }
    }

    /// A worker was told to look at it.
    pub fn waits(&self, watch: &str, object: &str) {
        if let Some(pulse) = self.pulses.iter().find(|pulse| pulse.name == watch) {
            pulse.waits(object);
        }
    }

    /// Whether this approver works on that namespace.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|of| of == namespace)
    }

    /// Lets go of what is remembered of Firewalls that are gone.
    pub fn forget_the_gone(&self) {
        let there: BTreeSet<(String, String)> = self
            .all_firewalls()
            .map(|f| (f.namespace().unwrap_or_default(), f.name_any()))
            .collect();
        let bereft = self.bereft();
        self.shoots.keep(|namespace| {
            there.iter().any(|(of, _)| of == namespace) || bereft.iter().any(|(of, _)| of == namespace)
        });
        self.handed_out
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|firewall, _| there.contains(firewall));
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|firewall, _| there.contains(firewall));
        self.applied.keep(|object| {
            object
                .split_once('/')
                .is_some_and(|(namespace, name)| there.contains(&(namespace.into(), name.into())))
        });
    }

    /// Every Firewall of this name that can be read, in whatever namespace.
    pub fn firewalls_named(&self, name: &str) -> Vec<Arc<DeserializeGuard<Firewall>>> {
        let stores = self.firewalls.iter().flat_map(Store::state);
        stores
            .filter(|firewall| firewall.name_any() == name && firewall.0.is_ok())
            .collect()
    }

    pub fn all_firewalls(&self) -> impl Iterator<Item = Arc<DeserializeGuard<Firewall>>> {
        self.firewalls.iter().flat_map(Store::state)
    }

    /// The shoot's state as the watch brought it last, or as it was written here since. Whatever is written on its ground is
    /// refused if it was stale.
    pub fn cached_state(&self, namespace: &str) -> Option<State> {
        let seen = cached(&self.states, namespace, names::STATE_SECRET).map(|s| State::of(namespace, (*s).clone()));
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = written.get(namespace).filter(|(state, at)| {
            at.elapsed() < WRITTEN && seen.as_ref().is_some_and(|seen| seen.version() < state.version())
        });
        newer.map(|(state, _)| state.clone()).or(seen)
    }

    /// Writes a record over the version that the state was read in; `None` if somebody else was faster, and then what he
    /// wrote is read: a watch that is cut would not bring it.
    pub async fn save(&self, state: &State, name: &FirewallName, record: &Record) -> Result<Option<State>, StateError> {
        let saved = state.save(&self.seed, name, record).await?;
        let known = match &saved {
            Some(saved) => Some(saved.clone()),
            None => State::load(&self.seed, state.namespace()).await?,
        };
        if let Some(known) = known {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.insert(state.namespace().to_owned(), (known, Instant::now()));
        }
        Ok(saved)
    }

    pub fn cached_record(&self, namespace: &str, firewall: &FirewallName) -> Result<Option<Record>, StateError> {
        self.cached_state(namespace)
            .map_or(Ok(None), |state| state.record(firewall))
    }

    /// Namespaces, other than this one, whose state holds a certificate of a firewall of this name that is still good.
    pub fn holders_of_certificates(&self, name: &FirewallName, except: &str, now: Timestamp) -> Vec<String> {
        let secrets = self.states.iter().flat_map(Store::state);
        secrets
            .filter_map(|secret| Some((secret.namespace()?, secret)))
            .filter(|(namespace, secret)| {
                let record = State::of(namespace, (**secret).clone()).record(name).ok().flatten();
                namespace != except
                    && record
                        .and_then(|r| r.name_taken_until())
                        .is_some_and(|until| until > now)
            })
            .map(|(namespace, _)| namespace)
            .collect()
    }

    pub fn shoot_secret(&self, namespace: &str) -> Option<Arc<Secret>> {
        cached(&self.shoot_secrets, namespace, names::SHOOT_ACCESS_SECRET)
    }

    /// Whether this very Firewall is known to stand.
    pub fn is_there(&self, namespace: &str, name: &FirewallName, uid: &str) -> bool {
        self.all_firewalls().any(|f| {
            f.namespace().as_deref() == Some(namespace)
                && f.name_any() == name.as_str()
                && f.uid().as_deref() == Some(uid)
        })
    }

    /// Every record whose Firewall is not there.
    pub fn bereft(&self) -> Vec<(String, FirewallName)> {
        let there: BTreeSet<(String, String)> = self
            .all_firewalls()
            .map(|f| (f.namespace().unwrap_or_default(), f.name_any()))
            .collect();
        let secrets: Vec<_> = self.states.iter().flat_map(Store::state).collect();
        let records = secrets.iter().flat_map(|secret| {
            let namespace = secret.namespace().unwrap_or_default();
            let names = State::of(&namespace, (**secret).clone()).firewalls();
            names.into_iter().map(move |name| (namespace.clone(), name))
        });
        records
            .filter(|(namespace, name)| !there.contains(&(namespace.clone(), name.to_string())))
            .collect()
    }

    /// Has the worker look at every firewall.
    pub fn wake_all(&self) {
        for firewall in self.all_firewalls() {
            self.wake_firewall(&firewall.namespace().unwrap_or_default(), &firewall.name_any());
        }
    }

    /// Has the worker look at this firewall now.
    pub fn wake_firewall(&self, namespace: &str, name: &str) {
        let _ = self.wake_firewall.send((namespace.to_owned(), name.to_owned()));
    }

    /// Has the workers look at every firewall of a shoot, and at every undecided request for one of them.
    pub fn wake_shoot(&self, namespace: &str) {
        let of_shoot = |firewall: &Arc<DeserializeGuard<Firewall>>| firewall.namespace().as_deref() == Some(namespace);
        let names: BTreeSet<String> = self.all_firewalls().filter(of_shoot).map(|f| f.name_any()).collect();
        for name in &names {
            self.wake_firewall(namespace, name);
        }
        for request in self.requests.state() {
            let open = request.status.as_ref().is_none_or(|status| status.conditions.is_none());
            if open
                && contract::csr::read(&request.spec.request.0).is_ok_and(|csr| names.contains(csr.firewall.as_str()))
            {
                let _ = self.wake_request.send(request.name_any());
            }
        }
    }

    /// Puts on the Firewall what became of a request of its. One of a kind a minute: whoever holds its credential may make
    /// many, and each would be a write.
    pub fn refuse(&self, namespace: &str, firewall: &FirewallName, refused: Refused) {
        let mut known = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (namespace.to_owned(), firewall.to_string());
        let lately = |before: &Refused| {
            let apart = refused.time.duration_since(before.time);
            apart.is_negative() || before.reason == refused.reason && apart < REFUSED_AGAIN
        };
        if known.get(&id).is_some_and(lately) {
            return;
        }
        known.insert(id, refused);
        drop(known);
        self.wake_firewall(namespace, firewall.as_str());
    }

    pub fn refused(&self, namespace: &str, firewall: &str) -> Option<Refused> {
        let known = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(namespace.to_owned(), firewall.to_owned())).cloned()
    }

    pub fn handed_out(&self, namespace: &str, firewall: &FirewallName) -> Option<HandedOut> {
        let handed_out = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        handed_out.get(&(namespace.to_owned(), firewall.to_string())).cloned()
    }

    pub fn forget_handed_out(&self, namespace: &str, firewall: &FirewallName) {
        let mut handed_out = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        handed_out.remove(&(namespace.to_owned(), firewall.to_string()));
    }

    pub fn remember_handed_out(&self, namespace: &str, firewall: &FirewallName, what: HandedOut) {
        let mut handed_out = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        handed_out.insert((namespace.to_owned(), firewall.to_string()), what);
    }
}

impl Approver {
    /// Whether this has not just been said of that object: what waits must not fill the log.
    pub fn is_news(&self, object: &str, what: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() > SAID_MAX {
            said.clear();
        }
        let what = fingerprint(what.as_bytes());
        said.insert(object.to_owned(), what) != Some(what)
    }
}

fn cached(stores: &[Store<Secret>], namespace: &str, name: &str) -> Option<Arc<Secret>> {
    stores
        .iter()
        .find_map(|store| store.get(&ObjectRef::new(name).within(namespace)))
}

/// Remembers what was applied, so that a firewall that is merely looked at costs no request.
#[derive(Default)]
pub struct Applied(Mutex<BTreeMap<String, (u64, Instant)>>);

impl Applied {
    /// Whether this very content was applied under this key a short while ago.
    pub fn recently(&self, key: &str, content: &[u8]) -> bool {
        let applied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        applied
            .get(key)
            .is_some_and(|(hash, at)| *hash == fingerprint(content) && at.elapsed() < REAPPLY)
    }

    /// How long ago anything was applied under this key.
    pub fn elapsed(&self, key: &str) -> Option<Duration> {
        let applied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        applied.get(key).map(|(_, at)| at.elapsed())
    }

    pub fn remember(&self, key: &str, content: &[u8]) {
        let mut applied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        applied.insert(key.to_owned(), (fingerprint(content), Instant::now()));
    }

    /// Keeps what was applied for these objects only (a key is a kind, a space and `namespace/name`).
    pub fn keep(&self, in_use: impl Fn(&str) -> bool) {
        let mut applied = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        applied.retain(|key, _| key.split_once(' ').is_some_and(|(_, object)| in_use(object)));
    }

    pub fn forget(&self, key: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

fn fingerprint(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}
