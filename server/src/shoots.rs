//! The shoots: a client for each, made from its Secret, and what stands in the FirewallMonitors of its firewalls. A shoot belongs to a tenant: nothing that happens in one holds up another, and
//! nothing that stands in one is believed unless a pinned key signed it.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::handover::HANDOVER_MAX;
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use contract::names;
use contract::reasons::Reason;
use contract::report::Report;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use cluster::api::call_opt;
use cluster::client;
use cluster::failure::Failure;
use cluster::firewall::FirewallMonitor;
use cluster::lease::Leadership;
use cluster::process::named;

use crate::core::handover;
use crate::core::health::Watch;
use crate::pulse::Pulse;
use crate::watches::watched;

/// How much of a tenant's is read at a time, and kept.
const PAGE: u32 = 10;
const REPORT_MAX: usize = 16 * 1024;
/// So long the first list of a shoot that was just opened is waited for.
const FIRST_LOOK: Duration = Duration::from_secs(10);
const KEPT_MAX: usize = 4 * 1024 * 1024;
const TURN: Duration = Duration::from_secs(1);

/// Why a shoot is not open, in words for the operator.
pub type Closed = (Reason, String);

pub struct Shoots {
    open: Mutex<HashMap<String, Arc<Shoot>>>,
    /// Namespace and name of a firewall whose monitor changed.
    changed: tokio::sync::mpsc::UnboundedSender<(String, String)>,
    poll: Duration,
    /// In shoots, too, only one replica writes.
    leads: Option<Leadership>,
}

/// What we read of a FirewallMonitor, unopened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Monitor {
    pub uid: String,
    pub report: Option<String>,
    pub handover: Option<String>,
}

pub struct Shoot {
    pub client: Client,
    pub ca: CaBundle,
    monitors: Arc<Monitors>,
    opened: Instant,
    /// The newest report of each firewall.
    newest: Arc<Mutex<HashMap<String, Report>>>,
    /// When the lifeline of each was tried last.
    tried: Mutex<HashMap<String, Instant>>,
    turn: Semaphore,
    version: u64,
    pulse: Pulse,
    watch: JoinHandle<()>,
}

impl Shoots {
    pub fn new(
        changed: tokio::sync::mpsc::UnboundedSender<(String, String)>,
        poll: Duration,
        leads: Option<Leadership>,
    ) -> Self {
        Self {
            open: Mutex::default(),
            changed,
            poll,
            leads,
        }
    }

    /// The shoot whose control plane stands in this namespace. A changed Secret makes a fresh client.
    pub fn get(&self, namespace: &str, secret: Option<&Secret>, api_server_url: &str) -> Result<Arc<Shoot>, Closed> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let kubeconfig = match kubeconfig(namespace, secret, api_server_url) {
            Ok(kubeconfig) => kubeconfig,
            Err(closed) => {
                open.remove(namespace);
                return Err(closed);
            }
        };
        let version = fingerprint(&kubeconfig);
        if let Some(shoot) = open.get(namespace)
            && shoot.version == version
        {
            return Ok(Arc::clone(shoot));
        }
        let what = format!("Secret {namespace}/{}", names::SHOOT_ACCESS_SECRET);
        let client = client::connect(&what, &kubeconfig).map_err(|e| (Reason::ShootAccessMissing, e.to_string()))?;
        let client = self.leads.as_ref().map_or(client.clone(), |leads| leads.client(client));
        let before = open.get(namespace).map(Arc::as_ref);
        let shoot = Arc::new(self.watch(namespace, client, kubeconfig.ca, version, before));
        open.insert(namespace.to_owned(), Arc::clone(&shoot));
        Ok(shoot)
    }

    /// The shoot as it was opened last.
    pub fn known(&self, namespace: &str) -> Option<Arc<Shoot>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.get(namespace).cloned()
    }

    /// How the watch in each fares.
    pub fn watches(&self) -> Vec<(String, Watch)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter()
            .map(|(namespace, shoot)| (namespace.clone(), shoot.pulse.watch()))
            .collect()
    }

    /// Forgets the shoots whose namespaces have no Firewall any more.
    pub fn keep(&self, in_use: impl Fn(&str) -> bool) {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|namespace, _| in_use(namespace));
    }

    fn watch(&self, namespace: &str, client: Client, ca: CaBundle, version: u64, before: Option<&Shoot>) -> Shoot {
        let api: Api<PartialObjectMeta<FirewallMonitor>> = Api::namespaced(client.clone(), names::MONITOR_NAMESPACE);
        // A tenant fills these objects as he likes: few are read at a time, and of each only what is ours is kept.
        let config = watcher::Config::default().page_size(PAGE);
        let pulse = Pulse::new("monitors", self.poll);
        let stream = watched(api, config, self.poll, pulse.clone()).default_backoff();
        // Another way into the same shoot: what is known of it is still known.
        let (monitors, newest) = before.map_or_else(Default::default, |shoot| {
            (Arc::clone(&shoot.monitors), Arc::clone(&shoot.newest))
        });
        let (namespace, changed, kept) = (namespace.to_owned(), self.changed.clone(), Arc::clone(&monitors));
        let watch = tokio::spawn(named("watch of FirewallMonitors", async move {
            let mut stream = std::pin::pin!(stream);
            let mut failing = false;
            while let Some(event) = stream.next().await {
                let touched = match event {
                    Ok(watcher::Event::Init) => {
                        kept.begin();
                        None
                    }
                    Ok(watcher::Event::InitDone) => {
                        failing = false;
                        kept.complete();
                        None
                    }
                    Ok(watcher::Event::Apply(monitor) | watcher::Event::InitApply(monitor)) => {
                        let name = monitor.name_any();
                        kept.keep(&name, read(monitor)).then_some(name)
                    }
                    Ok(watcher::Event::Delete(monitor)) => {
                        let name = monitor.name_any();
                        kept.forget(&name).then_some(name)
                    }
                    Err(error) => {
                        if !failing {
                            tracing::warn!(%namespace, %error, "the watch of FirewallMonitors in the shoot failed and is tried again");
                        }
                        failing = true;
                        None
                    }
                };
                if let Some(name) = touched {
                    let _ = changed.send((namespace.clone(), name));
                }
            }
        }));
        Shoot {
            client,
            ca,
            monitors,
            opened: Instant::now(),
            newest,
            tried: Mutex::default(),
            turn: Semaphore::new(1),
            version,
            pulse,
            watch,
        }
    }
}

fn read(mut monitor: PartialObjectMeta<FirewallMonitor>) -> Monitor {
    let mut take = |key: &str, max: usize| monitor.annotations_mut().remove(key).filter(|text| text.len() <= max);
    Monitor {
        report: take(names::SEED_ACCESS_REPORT, REPORT_MAX),
        handover: take(names::SEED_ACCESS, HANDOVER_MAX),
        uid: monitor.uid().unwrap_or_default(),
    }
}

impl Shoot {
    /// The FirewallMonitor of this name as it was seen last.
    pub fn monitor(&self, firewall: &str) -> Option<Monitor> {
        self.monitors.lock().seen.get(firewall).cloned()
    }

    /// Of this report and those before it, the one that was made last.
    pub fn newest(&self, firewall: &str, report: Report, now: Timestamp) -> Report {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let (latest, keep) = handover::latest(newest.get(firewall), report, now);
        if keep {
            newest.insert(firewall.to_owned(), latest.clone());
        }
        latest
    }

    pub fn newest_known(&self, firewall: &str) -> Option<Report> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        newest.get(firewall).cloned()
    }

    /// Whether this firewall's lifeline was seen to work a short while ago.
    pub fn tried_lately(&self, firewall: &str, within: Duration) -> bool {
        let tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.get(firewall).is_some_and(|at| at.elapsed() < within)
    }

    pub fn works(&self, firewall: &str) {
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        tried.insert(firewall.to_owned(), Instant::now());
    }

    /// Whether all monitors were seen and kept: only then is one that is unknown not there.
    pub fn is_complete(&self) -> bool {
        let monitors = self.monitors.lock();
        monitors.complete && !monitors.dropped
    }

    /// Whether it was opened a moment ago, and this firewall's monitor has not been read yet.
    pub fn is_blind(&self, firewall: &str) -> bool {
        let monitors = self.monitors.lock();
        !monitors.complete && !monitors.looked.contains(firewall) && self.opened.elapsed() < FIRST_LOOK
    }

    /// Reads this firewall's monitor without waiting for the list: the tenant may have made it long.
    pub async fn look(&self, firewall: &str) -> Result<(), Failure> {
        let api: Api<FirewallMonitor> = Api::namespaced(self.client.clone(), names::MONITOR_NAMESPACE);
        let what = format!("get FirewallMonitor {}/{firewall}", names::MONITOR_NAMESPACE);
        let found = call_opt(what, api.get_metadata(firewall)).await?;
        if let Some(monitor) = found {
            self.monitors.keep(firewall, read(monitor));
        }
        self.monitors.lock().looked.insert(firewall.to_owned());
        Ok(())
    }

    /// The right to work in this shoot; none if another worker has it and the shoot is slow. So one tenant's slow
    /// webhooks hold one worker and not all of them.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(TURN, self.turn.acquire()).await.ok()?.ok()
    }
}

/// What is known of each FirewallMonitor.
#[derive(Default)]
struct Monitors(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    seen: HashMap<String, Monitor>,
    /// Those that a new list has brought so far.
    listed: HashSet<String>,
    /// Those that were read on their own, before the first list was complete.
    looked: HashSet<String>,
    complete: bool,
    /// There were more than is kept.
    dropped: bool,
    bytes: usize,
}

impl Monitor {
    fn bytes(&self) -> usize {
        self.report.as_ref().map_or(0, String::len) + self.handover.as_ref().map_or(0, String::len) + 128
    }
}

impl Monitors {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut kept = self.lock();
        kept.listed.clear();
        kept.dropped = false;
    }

    fn complete(&self) {
        let mut kept = self.lock();
        let listed = std::mem::take(&mut kept.listed);
        kept.seen.retain(|name, _| listed.contains(name));
        kept.bytes = kept.seen.values().map(Monitor::bytes).sum();
        kept.complete = true;
    }

    /// Whether it says something new.
    fn keep(&self, firewall: &str, monitor: Monitor) -> bool {
        let mut kept = self.lock();
        if kept.seen.get(firewall) == Some(&monitor) {
            kept.listed.insert(firewall.to_owned());
            return false;
        }
        let freed = kept.seen.get(firewall).map_or(0, Monitor::bytes);
        let bytes = kept.bytes - freed + monitor.bytes();
        if bytes > KEPT_MAX {
            kept.dropped = true;
            return false;
        }
        kept.bytes = bytes;
        kept.listed.insert(firewall.to_owned());
        kept.seen.insert(firewall.to_owned(), monitor);
        true
    }

    fn forget(&self, firewall: &str) -> bool {
        let mut kept = self.lock();
        let gone = kept.seen.remove(firewall);
        kept.bytes -= gone.as_ref().map_or(0, Monitor::bytes);
        gone.is_some()
    }
}

impl Drop for Shoot {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// The Secret holds either a whole kubeconfig, or what Gardener's token requestor fills in: token and CA.
fn kubeconfig(namespace: &str, secret: Option<&Secret>, api_server_url: &str) -> Result<Kubeconfig, Closed> {
    let name = names::SHOOT_ACCESS_SECRET;
    let missing = |why: String| (Reason::ShootAccessMissing, why);
    let Some(secret) = secret else {
        return Err(missing(format!(
            "Secret {namespace}/{name} is missing: deploy it (key `kubeconfig`, or Gardener's token requestor with its CA) and manifests/shoot in the shoot"
        )));
    };
    let text = |key: &str| {
        let bytes = secret.data.as_ref()?.get(key)?;
        String::from_utf8(bytes.0.clone()).ok()
    };
    let what = format!("Secret {namespace}/{name}");
    if let Some(kubeconfig) = text("kubeconfig") {
        return Kubeconfig::read_operators(&what, &kubeconfig).map_err(|e| missing(e.to_string()));
    }
    let (Some(token), Some(ca)) = (text("token"), text("bundle.crt")) else {
        return Err(missing(format!(
            "{what} has neither a key `kubeconfig` nor `token` and `bundle.crt`: is the token requestor at work?"
        )));
    };
    let ca = CaBundle::from_pem(&ca).map_err(|e| missing(format!("{what}, key bundle.crt: {e}")))?;
    let built = Kubeconfig {
        server: api_server_url.to_owned(),
        tls_server_name: None,
        ca,
        credential: Credential::Token(token.into()),
        namespace: namespace.to_owned(),
        bootstrap: None,
    };
    // Through our own reader: an address without TLS would be sent the token in clear.
    let what = format!("status.shootAccess.apiServerURL of a Firewall in {namespace}, with {what}");
    Kubeconfig::read_operators(&what, &built.write()).map_err(|e| missing(e.to_string()))
}

fn fingerprint(kubeconfig: &Kubeconfig) -> u64 {
    let mut hasher = DefaultHasher::new();
    kubeconfig.write().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(data: &[(&str, &str)]) -> Secret {
        let data = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        Secret {
            data: Some(data.collect()),
            ..Secret::default()
        }
    }

    fn ca() -> String {
        let key = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::new(vec!["shoot".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap()
            .pem()
    }

    #[test]
    fn the_token_requestors_form_leads_to_the_firewalls_server_and_never_without_tls() {
        let filled = secret(&[("token", "a-token"), ("bundle.crt", &ca())]);
        let read = |server: &str| kubeconfig("shoot--a", Some(&filled), server);
        assert_eq!(read("https://api.shoot").unwrap().server, "https://api.shoot");
        for bad in ["http://api.shoot", "", "api.shoot"] {
            let (reason, why) = read(bad).unwrap_err();
            assert_eq!(reason, Reason::ShootAccessMissing);
            assert!(why.contains("apiServerURL") && !why.contains("a-token"), "{why}");
        }
    }

    #[test]
    fn what_is_missing_of_a_shoots_secret_is_named() {
        let why = |secret: Option<&Secret>| kubeconfig("shoot--a", secret, "https://api.shoot").unwrap_err().1;
        assert!(why(None).contains("shoot--a/shoot-access-firewall-approver is missing"));
        assert!(why(Some(&secret(&[("token", "a-token")]))).contains("`bundle.crt`"));
        assert!(why(Some(&secret(&[("token", "a-token"), ("bundle.crt", "x")]))).contains("bundle.crt"));
    }

    fn monitor(report: String) -> Monitor {
        Monitor {
            report: Some(report),
            ..Monitor::default()
        }
    }

    #[test]
    fn of_what_a_tenant_writes_only_so_much_is_kept_and_what_is_known_goes_on() {
        let monitors = Monitors::default();
        assert!(monitors.keep("fw-1", monitor("one".into())));
        assert!(!monitors.keep("fw-1", monitor("one".into())), "nothing new");
        assert!(monitors.keep("fw-1", monitor("two".into())));
        for n in 0..2 * KEPT_MAX / REPORT_MAX {
            monitors.keep(&format!("fw-{n}"), monitor("x".repeat(REPORT_MAX)));
        }
        let bytes: usize = monitors.lock().seen.values().map(Monitor::bytes).sum();
        assert_eq!(bytes, monitors.lock().bytes);
        assert!(bytes <= KEPT_MAX && bytes > KEPT_MAX / 2);
        assert!(monitors.keep("fw-1", monitor("three".into())));
    }

    #[test]
    fn a_monitor_that_a_new_list_does_not_have_is_gone() {
        let monitors = Monitors::default();
        monitors.keep("fw-1", monitor("one".into()));
        monitors.keep("fw-2", monitor("two".into()));
        monitors.begin();
        monitors.keep("fw-2", monitor("two".into()));
        monitors.complete();
        assert!(!monitors.lock().seen.contains_key("fw-1") && monitors.lock().seen.contains_key("fw-2"));
        assert!(monitors.forget("fw-2") && !monitors.forget("fw-2"));
        assert_eq!(monitors.lock().bytes, 0);
    }
}
