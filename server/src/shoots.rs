//! The shoots: a client for each, made from its Secret, the reports that firewalls leave in their FirewallMonitors, and
//! the lifeline of each firewall. A shoot belongs to a tenant: nothing that happens in one holds up another, and
//! nothing that stands in one is believed unless a pinned key signed it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use contract::names;
use contract::reasons::Reason;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::task::JoinHandle;

use cluster::client;
use cluster::firewall::FirewallMonitor;

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
    monitors: Store<PartialObjectMeta<FirewallMonitor>>,
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
        let (monitors, writer) = reflector::store();
        let stream = watcher(api, watcher::Config::default())
            .default_backoff()
            .reflect(writer)
            .applied_objects();
        let (namespace, reported) = (namespace.to_owned(), self.reported.clone());
        let watch = tokio::spawn(async move {
            let mut stream = std::pin::pin!(stream);
            let mut failing = false;
            while let Some(event) = stream.next().await {
                match event {
                    Ok(monitor) => {
                        failing = false;
                        if monitor.annotations().contains_key(names::SEED_ACCESS_REPORT) {
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
            monitors,
            version,
            watch,
        }
    }
}

impl Shoot {
    /// What a firewall left as its report, unopened.
    pub fn report(&self, firewall: &str) -> Option<String> {
        let monitor = self
            .monitors
            .get(&ObjectRef::new(firewall).within(names::MONITOR_NAMESPACE))?;
        monitor.annotations().get(names::SEED_ACCESS_REPORT).cloned()
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
    Ok(Kubeconfig {
        server: api_server_url.to_owned(),
        tls_server_name: None,
        ca,
        credential: Credential::Token(token.into()),
        namespace: namespace.to_owned(),
        bootstrap: None,
    })
}

fn fingerprint(kubeconfig: &Kubeconfig) -> u64 {
    let mut hasher = DefaultHasher::new();
    kubeconfig.write().hash(&mut hasher);
    hasher.finish()
}
