//! The tasks of the approver, each under its name, and how they end: the first one that does so by itself ends the
//! process; when it is told to stop, what they are at ends first.

use std::future::Future;

use cluster::lease::{Elector, Leadership};
use cluster::process::{DRAIN, named};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub struct Tasks {
    set: JoinSet<&'static str>,
    /// Cancelled when the process is told to stop.
    pub stop: CancellationToken,
}

impl Tasks {
    pub fn new(stop: CancellationToken) -> Self {
        let set = JoinSet::new();
        Self { set, stop }
    }

    pub fn spawn<F>(&mut self, name: &'static str, work: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.set.spawn(named(name, async move {
            work.await;
            name
        }));
    }

    /// The first that ended by itself.
    pub async fn ended(&mut self) -> anyhow::Error {
        match self.set.join_next().await {
            Some(Ok(name)) => anyhow::anyhow!("the {name} ended by itself"),
            // Whoever panics ends the process before.
            Some(Err(error)) => anyhow::anyhow!("a task ended by itself: {error}"),
            None => std::future::pending().await,
        }
    }

    async fn all_ended(&mut self) {
        while self.set.join_next().await.is_some() {}
    }
}

/// Of a process that was told to stop: `workers`, which were told so, finish the objects that they are at; then nothing
/// more is written, and what is on its way arrives.
pub async fn drain(mut workers: Tasks, mut others: Tasks, leads: Option<&Leadership>) {
    let end = Instant::now() + DRAIN;
    if tokio::time::timeout_at(end, workers.all_ended()).await.is_err() {
        tracing::warn!(
            "what {} workers are at did not end in time: whoever leads next begins it anew",
            workers.set.len()
        );
    }
    if let Some(leads) = leads
        && tokio::time::timeout_at(end, leads.close()).await.is_err()
    {
        tracing::warn!("a write has no answer yet and is given up");
    }
    workers.set.shutdown().await;
    others.set.shutdown().await;
}

/// Lets another lead at once, where it would take until the end of the lease.
pub async fn release(elector: &Elector) {
    if let Err(failure) = elector.release().await {
        tracing::warn!(%failure, "the lease was not released: the next replica waits until it ends");
    }
}
