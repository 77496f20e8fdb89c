//! The shoots: a client for each, made from its Secret, the reports that firewalls leave in their FirewallMonitors, and
//! the lifeline of each firewall. A shoot belongs to a tenant: nothing that happens in one holds up another, and
//! nothing that stands in one is believed unless a pinned key signed it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use contract::names;
use contract::reasons::Reason;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use cluster::client;
use cluster::firewall::FirewallMonitor;

/// How much of a tenant's is read at a time, and kept.
const PAGE: u32 = 10;
const REPORT_MAX: usize = 16 * 1024;
const REPORTS_MAX: usize = 1000;
const TURN: Duration = Duration::from_secs(1);

/// Why a shoot is not open, in words for the operator.
pub type Closed = (Reason, String);

pub struct Shoots {
    open: Mutex<HashMap<String, Arc<Shoot>>>,
    /// Namespace and name of a firewall whose report changed.
    reported: tokio::sync::mpsc::UnboundedSender<(String, String)>,
}

pub struct Shoot {
    pub client: Client,
    pub ca: CaBundle,
    reports: Arc<Reports>,
    turn: Semaphore,
    version: u64,
    watch: JoinHandle<()>,
}

impl Shoots {
    pub fn new(reported: tokio::sync::mpsc::UnboundedSender<(String, String)>) -> Self {
        Self {
            open: Mutex::default(),
            reported,
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
        let shoot = Arc::new(self.watch(namespace, client, kubeconfig.ca, version));
        open.insert(namespace.to_owned(), Arc::clone(&shoot));
        Ok(shoot)
    }

    /// Forgets the shoots whose namespaces have no Firewall any more.
    pub fn keep(&self, in_use: impl Fn(&str) -> bool) {
        self.open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|namespace, _| in_use(namespace));
    }

    fn watch(&self, namespace: &str, client: Client, ca: CaBundle, version: u64) -> Shoot {
        let api: Api<PartialObjectMeta<FirewallMonitor>> = Api::namespaced(client.clone(), names::MONITOR_NAMESPACE);
        // A tenant fills these objects as he likes: few are read at a time, and of each only the report is kept.
        let config = watcher::Config::default().page_size(PAGE);
        let stream = watcher(api, config).default_backoff().applied_objects();
        let reports = Arc::new(Reports::default());
        let (namespace, reported, kept) = (namespace.to_owned(), self.reported.clone(), Arc::clone(&reports));
        let watch = tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            let mut failing = false;
            while let Some(event) = stream.next().await {
                match event {
                    Ok(mut monitor) => {
                        failing = false;
                        let report = monitor.annotations_mut().remove(names::SEED_ACCESS_REPORT);
                        if report.is_some_and(|report| kept.keep(&monitor.name_any(), report)) {
                            let _ = reported.send((namespace.clone(), monitor.name_any()));
                        }
                    }
                    Err(error) if !failing => {
                        failing = true;
                        tracing::warn!(%namespace, %error, "the watch of FirewallMonitors in the shoot failed and is tried again");
                    }
                    Err(_) => {}
                }
            }
        });
        Shoot {
            client,
            ca,
            reports,
            turn: Semaphore::new(1),
            version,
            watch,
        }
    }
}

impl Shoot {
    /// What a firewall left as its report, unopened.
    pub fn report(&self, firewall: &str) -> Option<String> {
        self.reports
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(firewall)
            .cloned()
    }

    /// The right to work in this shoot; none if another worker has it and the shoot is slow. So one tenant's slow
    /// webhooks hold one worker and not all of them.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(TURN, self.turn.acquire()).await.ok()?.ok()
    }
}

/// The newest report of each firewall, as it came.
#[derive(Default)]
struct Reports(Mutex<HashMap<String, String>>);

impl Reports {
    /// Whether it says something new.
    fn keep(&self, firewall: &str, report: String) -> bool {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = reports.get(firewall);
        if known == Some(&report) || report.len() > REPORT_MAX || (known.is_none() && reports.len() >= REPORTS_MAX) {
            return false;
        }
        reports.insert(firewall.to_owned(), report);
        true
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

    #[test]
    fn of_what_a_tenant_writes_only_a_new_report_of_a_sane_size_is_kept() {
        let reports = Reports::default();
        assert!(reports.keep("fw-1", "one".into()));
        assert!(!reports.keep("fw-1", "one".into()), "nothing new");
        assert!(reports.keep("fw-1", "two".into()));
        assert!(!reports.keep("fw-1", "x".repeat(REPORT_MAX + 1)));
        for n in 0..2 * REPORTS_MAX {
            reports.keep(&format!("fw-{n}"), "one".into());
        }
        assert_eq!(reports.0.lock().unwrap().len(), REPORTS_MAX);
        assert!(reports.keep("fw-1", "three".into()), "those that are known go on");
    }
}
