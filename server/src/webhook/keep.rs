//! Whoever leads keeps the webhook's certificate: carries out what `core::serving` says, one step after the other.

use std::sync::Arc;

use contract::record::CredentialKind;
use jiff::Timestamp;
use thiserror::Error;

use cluster::failure::Failure;

use super::Hook;
use super::configured::Configured;
use super::stored::{Old, Pair, Read, Stored, StoredError};
use crate::approver::Approver;
use crate::core::serving::{Step, step};

#[derive(Debug, Error)]
pub enum KeepError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error(transparent)]
    Stored(#[from] StoredError),
    #[error("MutatingWebhookConfiguration {0} is not there: apply manifests/webhook, or leave --webhook-listen away")]
    NotConfigured(String),
    #[error(
        "what is written into MutatingWebhookConfiguration {0} or Secret {1} does not stay: somebody else writes caBundle or path"
    )]
    Undone(String, String),
    #[error("MutatingWebhookConfiguration {0} has entries for several addresses, or none: apply manifests/webhook")]
    NoHost(String),
}

/// More steps than that follow one another at once only where somebody else undoes them.
const STEPS: u32 = 8;

pub async fn keep(approver: Arc<Approver>, hook: Arc<Hook>) {
    loop {
        match steps(&approver, &hook).await {
            Ok(()) => {
                approver.is_news("webhook", "");
            }
            Err(error) if approver.is_news("webhook", &error.to_string()) => {
                tracing::warn!(%error, "the webhook's certificate is not looked after; tried again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(hook.times.look.unsigned_abs()).await;
    }
}

/// What comes next may be due already.
async fn steps(approver: &Approver, hook: &Hook) -> Result<(), KeepError> {
    for _ in 0..STEPS {
        if !advance(approver, hook).await? {
            return Ok(());
        }
    }
    Err(KeepError::Undone(hook.name.clone(), hook.secret.clone()))
}

/// One step; whether there was any.
async fn advance(approver: &Approver, hook: &Hook) -> Result<bool, KeepError> {
    let (seed, name) = (&approver.seed, &hook.name);
    let read = Stored::read(seed, &hook.secret).await?;
    let configured = Configured::read(&seed.client, name).await?;
    let configured = configured.ok_or_else(|| KeepError::NotConfigured(name.clone()))?;
    let host = configured.host().ok_or_else(|| KeepError::NoHost(name.clone()))?;
    let now = Timestamp::now();
    let kind = approver.kind();
    let Some(read) = read else {
        let first = Stored::new(kind)?;
        first.write(seed, &hook.secret, None).await?;
        return Ok(true);
    };
    let stored = &read.stored;
    let trusted = configured.trusted(&stored.path_key);
    let step = step(&stored.stood(), &trusted, &host, now, &hook.times);
    if step == Step::Trust {
        configured
            .write(&seed.client, name, &stored.bundle(), &stored.path_key)
            .await?;
        return Ok(true);
    }
    let next = carried_out(stored, &step, &host, now, hook, kind)?;
    if next == *stored {
        return Ok(false);
    }
    write(seed, hook, &next, &read, &step).await?;
    Ok(true)
}

fn carried_out(
    stored: &Stored,
    step: &Step,
    host: &str,
    now: Timestamp,
    hook: &Hook,
    kind: CredentialKind,
) -> Result<Stored, StoredError> {
    let mut next = stored.clone();
    next.kind = kind;
    match step {
        Step::Make => (next.next, next.trusted) = (Some(Pair::make(host, now, hook.times.life)?), None),
        Step::Note => next.trusted = Some(now),
        Step::Unnote => next.trusted = None,
        Step::Serve => {
            next.old = next.serving.take().map(|pair| Old {
                id: pair.facts.ca,
                ca: pair.ca,
            });
            (next.serving, next.since, next.trusted) = (next.next.take(), Some(now), None);
        }
        Step::Forget => next.old = None,
        Step::Trust | Step::Wait => {}
    }
    Ok(next)
}

async fn write(
    seed: &crate::seed::Seed,
    hook: &Hook,
    next: &Stored,
    over: &Read,
    step: &Step,
) -> Result<(), StoredError> {
    if next.write(seed, &hook.secret, Some(over)).await?
        && *step == Step::Serve
        && let Some(pair) = &next.serving
    {
        tracing::info!(host = %pair.facts.host, until = %pair.facts.until, "the webhook is served with a new certificate");
    }
    Ok(())
}
