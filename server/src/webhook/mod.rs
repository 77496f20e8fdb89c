//! The webhook that API servers ask when a Firewall is made or changed: it puts into its userdata what its machine comes in
//! with. Every replica answers, whoever leads, with one certificate and the same credential. Owns the HTTPS listener and
//! what a replica knows of that; what is answered is in `review` and `baking`, who keeps the certificate in `keep`.

mod baking;
mod configured;
mod keep;
mod review;
mod stored;

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use contract::names;
use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::args::{Agent, Run};
use crate::core::health::Check;
use crate::core::serving::{self, Known, Times};
use crate::core::userdata::Download;
use crate::http;
use crate::metrics::Metrics;
use crate::seed::Seed;

pub use keep::keep;

use configured::Configured;
use stored::{Pair, Stored};

/// So many are answered at a time: each may be megabytes.
const TURNS: u32 = 4;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(5);
/// As long as an answer may take, and the rest.
const CONNECTION_LIFE: Duration = Duration::from_secs(20);
/// So long what is being answered may take yet when the process is to end.
const DRAINED_WITHIN: Duration = Duration::from_secs(9);
/// How often a replica that waits looks where firewalls reach this seed.
const ENDPOINT_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Error)]
pub enum WebhookError {
    #[error("--webhook-listen {0}: {1}: give an address of this machine and a port that nobody else listens at")]
    Listen(SocketAddr, std::io::Error),
    #[error("--webhook-listen: {0}")]
    Tls(#[from] rustls::Error),
}

pub struct Hook {
    /// Of its own: it reads and answers while another replica leads.
    seed: Seed,
    /// As the lease is called, so that approvers for other namespaces have others.
    pub name: String,
    pub secret: String,
    times: Times,
    namespaces: Vec<String>,
    agent: Agent,
    download: Option<Download>,
    metrics: Metrics,
    look: RwLock<Look>,
    turns: Semaphore,
}

/// What a replica knows of what is stored and configured.
#[derive(Clone, Default)]
struct Look {
    stored: Option<Arc<Stored>>,
    certified: Option<Arc<CertifiedKey>>,
    /// When both were read last, and why they could not be read since.
    at: Option<Instant>,
    failed: Option<String>,
    /// Whether API servers trust what is served; None: they are not told of the webhook at all.
    trusted: Option<bool>,
}

/// What the webhook of an approver is called in the cluster, and the Secret that it is served by.
pub fn names_of(lease: &str) -> (String, String) {
    (lease.to_owned(), format!("{lease}{}", names::WEBHOOK_SECRET_SUFFIX))
}

impl Hook {
    pub fn new(seed: Seed, lease: &str, run: &Run, metrics: Metrics) -> Self {
        let (name, secret) = names_of(lease);
        Self {
            seed,
            name,
            secret,
            times: Times::of(run.webhook_certificate_duration),
            namespaces: run.namespaces.clone(),
            agent: run.agent.clone(),
            download: run.agent.download(),
            metrics,
            look: RwLock::default(),
            turns: Semaphore::new(TURNS as usize),
        }
    }

    fn serves(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|of| of == namespace)
    }

    fn looked(&self) -> Look {
        self.look.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn check(&self) -> Check {
        let look = self.looked();
        let known = Known {
            ago: look.at.map(|at| at.elapsed()),
            failed: look.failed.as_deref(),
            serving: look
                .stored
                .as_ref()
                .and_then(|stored| Some(&stored.serving.as_ref()?.facts)),
            trusted: look.trusted,
        };
        Check::new(
            "webhook",
            serving::health(&known, &self.name, Timestamp::now(), &self.times),
        )
    }

    /// Waits until what was asked is answered.
    pub async fn drain(&self) {
        let _ = tokio::time::timeout(DRAINED_WITHIN, self.turns.acquire_many(TURNS)).await;
    }

    /// Looks again and again at what is stored and configured, and where firewalls reach this seed.
    pub async fn follow(self: Arc<Self>, run: Run, leads: impl Fn() -> bool) {
        let mut endpoint = Instant::now();
        loop {
            self.look().await;
            // Whoever leads does that himself, and wakes its firewalls by it.
            if !leads() && endpoint.elapsed() >= ENDPOINT_AGAIN {
                endpoint = Instant::now();
                if let Err(error) = self.seed.look_again(&run).await {
                    tracing::debug!(%error, "where firewalls reach this seed could not be found out anew");
                }
            }
            tokio::time::sleep(self.times.look.unsigned_abs()).await;
        }
    }

    async fn look(&self) {
        let read = Stored::read(&self.seed, &self.secret).await;
        let configured = Configured::read(&self.seed.client, &self.name).await;
        let mut look = self.look.write().unwrap_or_else(PoisonError::into_inner);
        let read = match read {
            Ok(read) => read,
            Err(error) => {
                look.failed = Some(error.to_string());
                return;
            }
        };
        let stored = read.map(|read| Arc::new(read.stored));
        let serving = stored.as_ref().and_then(|stored| stored.serving.as_ref());
        let same = look.stored.as_ref().and_then(|stored| stored.serving.as_ref()) == serving;
        if !same {
            look.certified = serving.and_then(Pair::certified);
        }
        match configured {
            Ok(configured) => {
                look.trusted = configured.map(|configured| {
                    let trusted = stored.as_ref().map(|stored| configured.trusted(&stored.path_key));
                    let ca = serving.map(|pair| &pair.facts.ca);
                    ca.zip(trusted).is_some_and(|(ca, trusted)| trusted.contains(ca))
                });
                (look.at, look.failed) = (Some(Instant::now()), None);
            }
            Err(failure) => look.failed = Some(failure.to_string()),
        }
        look.stored = stored;
    }
}

/// The certificate of the moment.
#[derive(Clone)]
struct Resolver(Arc<Hook>);

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.looked().certified
    }
}

/// Listens from here on; the task is what serves.
pub async fn start(address: SocketAddr, hook: Arc<Hook>) -> Result<impl Future<Output = ()>, WebhookError> {
    let failed = |e| WebhookError::Listen(address, e);
    let listener = http::bind(address).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    tracing::info!(%listen, "the webhook for userdata is served");
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Resolver(Arc::clone(&hook))));
    // A session that is resumed would outlive its certificate.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let router = review::router(hook);
    let serve = move |stream: TcpStream| {
        let (acceptor, router) = (acceptor.clone(), router.clone());
        async move {
            // Whoever broke it off knows.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                http::serve(stream, router, CONNECTION_LIFE).await;
            }
        }
    };
    Ok(http::accept(listener, "the webhook", serve))
}
