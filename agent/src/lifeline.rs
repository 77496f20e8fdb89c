//! The lifeline: the kubeconfig for the shoot that lives without any seed. Owns that it is renewed by itself, that it
//! follows the shoot's CA, and that nothing is written over it that was not tried.

use std::time::{Duration, Instant};

use cluster::api::call;
use cluster::failure::{Class, Failure};
use contract::access::AgentAccess;
use contract::digest::sha256_hex;
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use contract::names::{FirewallName, MONITOR_NAMESPACE};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use tracing::info;

use crate::core::{Event, Job, Patience, lifeline_renewal_at};
use crate::link::who_am_i;
use crate::machine::Machine;
use crate::shoot::{Life, life};
use crate::store::{Handled, StoreError};

/// How this way into the shoot is called.
pub(crate) const LIFELINE: &str = "lifeline";
/// Where each namespace of a cluster has its CA.
const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_KEY: &str = "ca.crt";
/// A year. The server may give less.
const ASKED: i64 = 365 * 24 * 3600;
/// An offer that did not work is not tried again sooner.
const OFFER_AGAIN: Duration = Duration::from_secs(60);

pub(crate) struct Lifeline {
    pub(crate) client: Client,
    kubeconfig: Kubeconfig,
    /// What its token says of itself.
    life: Life,
}

/// What is remembered of it while it is in use.
#[derive(Default)]
pub(crate) struct LifelineState {
    /// The shoot does not let it in, or is not the server that it trusts.
    refused: bool,
    /// When a token that does not say when it ends was last renewed.
    renewed: Option<Timestamp>,
    /// Hash of the offer that failed last, and when.
    failed: Option<(String, Instant)>,
}

#[derive(Debug, Error)]
pub(crate) enum LifelineError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the shoot knows it as {found:?}, not as {wanted:?}: refused")]
    OtherUser { found: String, wanted: String },
    #[error("{0}")]
    Content(String),
}

impl Lifeline {
    pub(crate) fn new(kubeconfig: Kubeconfig) -> Option<Self> {
        let client = cluster::client::connect("the shoot (lifeline)", &kubeconfig).ok()?;
        let life = match &kubeconfig.credential {
            Credential::Token(token) => life(token.expose_secret()),
            _ => None,
        };
        Some(Self {
            client,
            kubeconfig,
            life,
        })
    }

    pub(crate) fn access(&self) -> (&str, Option<&str>, &CaBundle) {
        let kubeconfig = &self.kubeconfig;
        (
            &kubeconfig.server,
            kubeconfig.tls_server_name.as_deref(),
            &kubeconfig.ca,
        )
    }

    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.life.map(|(_, expires)| expires)
    }
}

impl Machine {
    /// Needs no seed at all.
    pub(crate) async fn renew_lifeline(&mut self) {
        match self.try_renewal().await {
            Ok(()) => {
                self.way_worked(LIFELINE);
                self.done(Job::Lifeline, self.settings.poll_interval);
            }
            Err(error) => {
                if let LifelineError::Failed(failure) = &error {
                    self.way_failed(LIFELINE, failure);
                }
                self.failed(Job::Lifeline, Patience::Normal, &error);
            }
        }
    }

    async fn try_renewal(&mut self) -> Result<(), LifelineError> {
        let Some(lifeline) = &self.lifeline else { return Ok(()) };
        let now = self.seed_time();
        let ca = match root_ca(&lifeline.client).await {
            Ok(found) => wanted_ca(&lifeline.kubeconfig.ca, &found)?,
            // A shoot that does not show its CA is no reason to let the token end.
            Err(LifelineError::Failed(failure)) if failure.is(Class::Forbidden) || failure.is(Class::NotFound) => None,
            Err(error) => return Err(error),
        };
        let since = lifeline
            .life
            .or(self.lifeline_state.renewed.map(|at| (at, Timestamp::MAX)));
        if ca.is_none() && since.is_some_and(|life| now < lifeline_renewal_at(life)) {
            return Ok(());
        }
        let token = request_token(&lifeline.client, &self.firewall).await?;
        let old = &lifeline.kubeconfig;
        let kubeconfig = Kubeconfig {
            server: old.server.clone(),
            tls_server_name: old.tls_server_name.clone(),
            ca: ca.unwrap_or_else(|| old.ca.clone()),
            credential: Credential::Token(token),
            namespace: old.namespace.clone(),
            bootstrap: None,
        };
        let until = self.put_lifeline(kubeconfig).await?;
        self.lifeline_state.renewed = Some(now);
        info!(firewall = %self.object(), until, "lifeline renewed");
        Ok(())
    }

    /// What the seed offers is taken if it is another than the last one, or ours does not work: ours may be newer.
    pub(crate) async fn lifeline_offered(&mut self, told: &AgentAccess) {
        let Some(text) = &told.lifeline else { return };
        let hash = sha256_hex(text.expose_secret().as_bytes());
        let known = self.handled.lifeline.as_ref() == Some(&hash);
        if known && self.lifeline.is_some() && !self.lifeline_state.refused {
            return;
        }
        let failed = self.lifeline_state.failed.as_ref();
        if failed.is_some_and(|(failed, at)| *failed == hash && at.elapsed() < OFFER_AGAIN) {
            return;
        }
        match self.take_offered(text, &hash).await {
            Ok(until) => {
                info!(firewall = %self.object(), until, "lifeline into the shoot received");
                self.lifeline_state.failed = None;
                self.problems.remove(OFFERED);
            }
            Err(error) => {
                self.lifeline_state.failed = Some((hash, Instant::now()));
                self.problem(OFFERED, &error.to_string());
            }
        }
    }

    async fn take_offered(&mut self, text: &SecretString, hash: &str) -> Result<String, LifelineError> {
        let content = |e: String| LifelineError::Content(e);
        let kubeconfig =
            Kubeconfig::read("in key \"lifeline\"", text.expose_secret()).map_err(|e| content(e.to_string()))?;
        let until = self.put_lifeline(kubeconfig).await?;
        let handled = Handled {
            lifeline: Some(hash.to_owned()),
            ..self.handled.clone()
        };
        self.store.write_handled(&handled)?;
        self.handled = handled;
        // What made another lifeline necessary may have made another token so.
        self.after(Event::Done(Job::Shoot, Timestamp::UNIX_EPOCH));
        Ok(until)
    }

    /// Tries it, and only then writes it over the one before. Says until when it is good.
    async fn put_lifeline(&mut self, kubeconfig: Kubeconfig) -> Result<String, LifelineError> {
        let text = kubeconfig.write();
        let candidate = Lifeline::new(kubeconfig)
            .ok_or_else(|| LifelineError::Content("no client can be made of the lifeline".into()))?;
        let found = who_am_i(&candidate.client, "the shoot").await?;
        let wanted = format!("system:serviceaccount:{MONITOR_NAMESPACE}:{}", self.firewall.lifeline());
        if found != wanted {
            return Err(LifelineError::OtherUser { found, wanted });
        }
        self.store.write_kubeconfig(&self.store.paths.lifeline(), &text)?;
        let until = candidate.expires().map(|at| at.to_string()).unwrap_or_default();
        self.lifeline = Some(candidate);
        self.lifeline_state.refused = false;
        self.ways_changed();
        Ok(until)
    }

    pub(crate) fn way_worked(&mut self, way: &'static str) {
        if way == LIFELINE {
            self.lifeline_state.refused = false;
        }
    }

    pub(crate) fn way_failed(&mut self, way: &'static str, failure: &Failure) {
        if !matches!(failure.class, Class::Unauthenticated | Class::Untrusted) {
            return;
        }
        if way == LIFELINE {
            self.lifeline_state.refused = true;
        } else if self.state.pace(Job::Shoot).failures == 0 {
            self.after(Event::Done(Job::Shoot, Timestamp::UNIX_EPOCH));
        }
    }
}

const OFFERED: &str = "lifeline that the seed offers";

async fn root_ca(client: &Client) -> Result<CaBundle, LifelineError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), MONITOR_NAMESPACE);
    let name = format!("ConfigMap {MONITOR_NAMESPACE}/{ROOT_CA}");
    let map = call(format!("get {name}"), maps.get(ROOT_CA)).await?;
    let text = map
        .data
        .and_then(|mut data| data.remove(ROOT_CA_KEY))
        .unwrap_or_default();
    CaBundle::from_pem(&text).map_err(|e| LifelineError::Content(format!("{name}: key {ROOT_CA_KEY:?} {e}")))
}

async fn request_token(client: &Client, firewall: &FirewallName) -> Result<SecretString, LifelineError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), MONITOR_NAMESPACE);
    let account = firewall.lifeline();
    let asked = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(ASKED),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let what = format!("create a token of ServiceAccount {MONITOR_NAMESPACE}/{account}");
    let made = call(
        what,
        accounts.create_token_request(&account, &PostParams::default(), &asked),
    )
    .await?;
    made.status
        .map(|status| SecretString::from(status.token))
        .ok_or_else(|| LifelineError::Content("the shoot answered without a token".into()))
}

/// Another bundle to trust, if there is one. A CA that is new is trusted beside the old ones, for servers change to it
/// one after the other; one that the shoot dropped is dropped.
fn wanted_ca(ours: &CaBundle, found: &CaBundle) -> Result<Option<CaBundle>, LifelineError> {
    let (mut old, new) = (blocks(ours), blocks(found));
    if new.iter().all(|block| old.contains(block)) {
        return Ok((new.len() < old.len()).then(|| found.clone()));
    }
    old.retain(|block| !new.contains(block));
    let both: String = new.into_iter().chain(old).collect();
    let bundle = CaBundle::from_pem(&both);
    bundle.map(Some).map_err(|e| {
        LifelineError::Content(format!(
            "ConfigMap {MONITOR_NAMESPACE}/{ROOT_CA} and the CA of before: {e}"
        ))
    })
}

/// The certificates of a bundle, as it writes them.
fn blocks(bundle: &CaBundle) -> Vec<&str> {
    let mut blocks: Vec<&str> = bundle
        .pem()
        .split_inclusive("-----END CERTIFICATE-----\n")
        .filter(|block| !block.trim().is_empty())
        .collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
#[path = "lifeline_tests.rs"]
mod tests;
