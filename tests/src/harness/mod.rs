//! A real Kubernetes control plane for tests and the demo: etcd, kube-apiserver and
//! kube-controller-manager as processes of this machine, and nothing simulated.
//! It knows Kubernetes and no firewall: what is under test stays out of here.

mod audit;
mod binaries;
mod client;
mod cluster;
mod components;
mod csr;
mod disaster;
mod haproxy;
mod kubectl;
mod lifecycle;
mod net;
mod pki;
mod process;
mod proxy;
mod roll;
mod tinyproxy;

use std::future::Future;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

pub use audit::{AuditEvent, AuditObject, AuditStatus, AuditUser};
pub use binaries::{Binaries, Program};
pub use client::client_from;
pub use cluster::{Cluster, ClusterOptions};
pub use haproxy::{FrontProxy, HaProxy};
pub use net::{FAR, FAR6, NEAR, Net, Way};
pub use pki::{Authority, Pair};
pub use process::Process;
pub use proxy::Proxy;
pub use roll::{ClientCaRoll, ServerCaRoll};
pub use tinyproxy::{PASSWORD, TinyProxy, USER};

/// Makes aws-lc the crypto library of this process. Every client needs it; calling it again is fine.
pub fn init_crypto() {
    // An error means that one is installed already, and only aws-lc is compiled in.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// For what has to come, on a machine that does other things too. What the product promises has bounds of its own.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Asks until the answer is there, and fails with the last reason why it was not.
pub async fn eventually<T, F, Fut>(what: &str, limit: Duration, mut ask: F) -> anyhow::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = anyhow::Result<T>>,
{
    let end = Instant::now() + limit;
    let mut reason = "the first attempt did not come to an end".to_owned();
    loop {
        // An attempt that hangs must not outlive the limit either; what the one before it found still says more.
        match tokio::time::timeout_at(end, ask()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => reason = format!("{error:#}"),
            Err(_) => {}
        }
        if Instant::now() + POLL >= end {
            bail!("{what}: not within {limit:?}: {reason}");
        }
        sleep(POLL).await;
    }
}

const POLL: Duration = Duration::from_millis(100);

/// One cluster for all tests of a test binary, started by the first that asks:
/// `static SEED: Shared = Shared::new();`. A static is never dropped; the processes end and the
/// directory goes when this process is gone (see `process`).
#[derive(Default)]
pub struct Shared(OnceCell<Cluster>);

impl Shared {
    #[must_use]
    pub const fn new() -> Self {
        Self(OnceCell::const_new())
    }

    pub async fn get(&self, options: impl FnOnce() -> ClusterOptions + Send) -> anyhow::Result<&Cluster> {
        self.0.get_or_try_init(|| Cluster::start(options())).await
    }
}
