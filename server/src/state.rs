//! The shoot's state Secret: the handover key and one record per firewall. Written before what it describes takes
//! effect, and always against the version that was read: two writers never overwrite each other.

use std::collections::BTreeMap;

use contract::key::{KeyError, PrivateKey};
use contract::names::{self, FirewallName};
use contract::record::{Record, RecordError};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::json;
use thiserror::Error;

use cluster::api::{call, call_opt};
use cluster::failure::{Class, Failure};

use crate::seed::Seed;

#[derive(Debug, Error)]
pub enum StateError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("Secret {namespace}/firewall-bootstrap, record of firewall {firewall}: {source}")]
    Record {
        namespace: String,
        firewall: FirewallName,
        source: RecordError,
    },
    #[error(
        "Secret {namespace}/firewall-bootstrap: key handover-key cannot be read: {source}; restore the Secret from its backup"
    )]
    HandoverKey { namespace: String, source: KeyError },
    #[error("Secret {namespace}/firewall-bootstrap has no key handover-key: restore the Secret from its backup")]
    NoHandoverKey { namespace: String },
    #[error("no handover key can be made: {0}")]
    MakeKey(KeyError),
}

/// The state of one shoot, as it was read.
#[derive(Clone)]
pub struct State {
    namespace: String,
    secret: Secret,
}

impl State {
    pub fn of(namespace: &str, secret: Secret) -> Self {
        Self {
            namespace: namespace.to_owned(),
            secret,
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Of two states of one shoot the newer one has the higher version.
    pub fn version(&self) -> u64 {
        let version = self.secret.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse().ok()).unwrap_or(0)
    }

    /// The state as the API server has it now; made if there is none. A handover key that was lost is made anew: on a
    /// living seed firewalls learn of it by their own Secret.
    pub async fn load_or_make(seed: &Seed, namespace: &str) -> Result<Self, StateError> {
        let key = PrivateKey::generate().map_err(StateError::MakeKey)?;
        if let Some(state) = Self::load(seed, namespace).await? {
            if state.has_handover_key() {
                return Ok(state);
            }
            tracing::warn!(%namespace, "Secret {} has no handover key any more: another one is made", names::STATE_SECRET);
            let data = json!({ names::STATE_HANDOVER_KEY: ByteString(key.to_pem().as_bytes().to_vec()) });
            let saved = state.write(seed, data).await?;
            return saved.ok_or_else(|| StateError::NoHandoverKey {
                namespace: namespace.to_owned(),
            });
        }
        Self::post(seed, namespace, &key).await
    }

    async fn post(seed: &Seed, namespace: &str, key: &PrivateKey) -> Result<Self, StateError> {
        let labels = [
            (names::MANAGED_BY_LABEL, names::APPROVER),
            (names::PERSIST_LABEL, "true"),
        ];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(names::STATE_SECRET.into()),
                namespace: Some(namespace.to_owned()),
                labels: Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".into()),
            data: Some(BTreeMap::from([(
                names::STATE_HANDOVER_KEY.to_owned(),
                ByteString(key.to_pem().as_bytes().to_vec()),
            )])),
            ..Secret::default()
        };
        // A POST: of two that find none, one makes the key and the other reads it.
        let what = format!("create Secret {namespace}/{}", names::STATE_SECRET);
        match call(what, seed.secrets(namespace).create(&PostParams::default(), &secret)).await {
            Ok(secret) => Ok(Self::of(namespace, secret)),
            Err(failure) if failure.is(Class::AlreadyExists) => {
                let made = Self::load(seed, namespace).await?;
                made.ok_or_else(|| StateError::NoHandoverKey {
                    namespace: namespace.to_owned(),
                })
            }
            Err(failure) => Err(failure.into()),
        }
    }

    pub async fn load(seed: &Seed, namespace: &str) -> Result<Option<Self>, StateError> {
        let what = format!("get Secret {namespace}/{}", names::STATE_SECRET);
        let secret = call_opt(what, seed.secrets(namespace).get(names::STATE_SECRET)).await?;
        Ok(secret.map(|secret| Self::of(namespace, secret)))
    }

    pub fn has_handover_key(&self) -> bool {
        self.value(names::STATE_HANDOVER_KEY).is_some()
    }

    pub fn handover_key(&self) -> Result<PrivateKey, StateError> {
        let namespace = || self.namespace.clone();
        let pem = self
            .value(names::STATE_HANDOVER_KEY)
            .ok_or_else(|| StateError::NoHandoverKey { namespace: namespace() })?;
        PrivateKey::from_pem(&String::from_utf8_lossy(pem)).map_err(|source| StateError::HandoverKey {
            namespace: namespace(),
            source,
        })
    }

    /// Every firewall that there is a record of.
    pub fn firewalls(&self) -> Vec<FirewallName> {
        let data = self.secret.data.as_ref();
        let names = data.into_iter().flat_map(BTreeMap::keys);
        names
            .filter_map(|key| FirewallName::parse(key.strip_suffix(names::RECORD_SUFFIX)?).ok())
            .collect()
    }

    pub fn record(&self, firewall: &FirewallName) -> Result<Option<Record>, StateError> {
        let read = self.value(&firewall.record_key()).map(Record::read).transpose();
        read.map_err(|source| self.record_error(firewall, source))
    }

    /// Writes one record over the version that this state was read in; `None` if somebody else was faster.
    pub async fn save(
        &self,
        seed: &Seed,
        firewall: &FirewallName,
        record: &Record,
    ) -> Result<Option<Self>, StateError> {
        let bytes = record.write().map_err(|source| self.record_error(firewall, source))?;
        self.write(seed, json!({ firewall.record_key(): ByteString(bytes) }))
            .await
    }

    /// Forgets a firewall; `None` if somebody else was faster.
    pub async fn remove(&self, seed: &Seed, firewall: &FirewallName) -> Result<Option<Self>, StateError> {
        self.write(seed, json!({ firewall.record_key(): null })).await
    }

    async fn write(&self, seed: &Seed, data: serde_json::Value) -> Result<Option<Self>, StateError> {
        let patch = json!({
            "metadata": { "resourceVersion": self.secret.resource_version() },
            "data": data,
        });
        match seed.patch_secret(&self.namespace, names::STATE_SECRET, &patch).await {
            Ok(Some(secret)) => Ok(Some(Self::of(&self.namespace, secret))),
            Ok(None) => Ok(None),
            Err(failure) if failure.is(Class::Conflict) => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    fn value(&self, key: &str) -> Option<&[u8]> {
        self.secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice())
    }

    fn record_error(&self, firewall: &FirewallName, source: RecordError) -> StateError {
        StateError::Record {
            namespace: self.namespace.clone(),
            firewall: firewall.clone(),
            source,
        }
    }
}
