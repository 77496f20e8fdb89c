//! What every replica serves the webhook by: one Secret in the approver's own namespace, written by whoever leads and read
//! by all. Owns its form, and how its certificates are made.

use std::sync::Arc;

use contract::digest::sha256_hex;
use contract::names;
use contract::record::CredentialKind;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

use cluster::api::{call, call_opt};
use cluster::failure::{Class, Failure};

use crate::core::serving::{Facts, Stood};
use crate::seed::Seed;

const DATA: &str = "webhook.json";
/// Clocks of API servers may be behind, and whoever makes it far ahead: its beginning is nothing that anybody goes by.
const BEFORE: SignedDuration = SignedDuration::from_hours(10 * 366 * 24);

#[derive(Debug, Error)]
pub enum StoredError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("Secret {0} cannot be read ({1}): delete it to have another one made")]
    Form(String, String),
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error("no random bytes from the operating system")]
    Random,
}

/// It has private keys in it and is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// The end of the path, which API servers alone are told: whoever else reaches the port gets no credential.
    pub path_key: String,
    /// What the leader found that firewalls may come in with.
    pub kind: CredentialKind,
    #[serde(default)]
    pub serving: Option<Pair>,
    #[serde(default)]
    pub since: Option<Timestamp>,
    #[serde(default)]
    pub next: Option<Pair>,
    #[serde(default)]
    pub trusted: Option<Timestamp>,
    #[serde(default)]
    pub old: Option<Old>,
}

/// A certificate, its key, and the CA that nobody can sign with any more.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    pub facts: Facts,
    /// PEM.
    pub ca: String,
    certificate: String,
    key: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Old {
    pub id: String,
    pub ca: String,
}

/// As it was read.
pub struct Read {
    pub stored: Stored,
    version: Option<String>,
}

impl Stored {
    pub fn new(kind: CredentialKind) -> Result<Self, StoredError> {
        let random = contract::token::SeedKey::generate().map_err(|_| StoredError::Random)?;
        Ok(Self {
            path_key: sha256_hex(random.as_bytes()),
            kind,
            serving: None,
            since: None,
            next: None,
            trusted: None,
            old: None,
        })
    }

    pub fn stood(&self) -> Stood<'_> {
        Stood {
            serving: self.serving.as_ref().map(|pair| &pair.facts),
            since: self.since,
            next: self.next.as_ref().map(|pair| &pair.facts),
            trusted: self.trusted,
            old: self.old.as_ref().map(|old| old.id.as_str()),
        }
    }

    /// Every CA that should be trusted, PEM, the newest first.
    pub fn bundle(&self) -> String {
        let pairs = [&self.next, &self.serving].into_iter().flatten().map(|pair| &pair.ca);
        pairs
            .chain(self.old.as_ref().map(|old| &old.ca))
            .map(String::as_str)
            .collect()
    }

    pub async fn read(seed: &Seed, name: &str) -> Result<Option<Read>, StoredError> {
        let namespace = &seed.own_namespace;
        let what = format!("get Secret {namespace}/{name}");
        let Some(secret) = call_opt(what, seed.secrets(namespace).get(name)).await? else {
            return Ok(None);
        };
        let wrong = |why: String| StoredError::Form(format!("{namespace}/{name}"), why);
        let data = secret.data.and_then(|mut data| data.remove(DATA));
        let data = data.ok_or_else(|| wrong(format!("it has no key {DATA}")))?;
        // Nothing of the content is told: there are keys in it.
        let stored = serde_json::from_slice(&data.0)
            .map_err(|error| wrong(format!("{DATA}, line {}, column {}", error.line(), error.column())))?;
        Ok(Some(Read {
            stored,
            version: secret.metadata.resource_version,
        }))
    }

    /// Over what was read; `false` if somebody else was faster.
    pub async fn write(&self, seed: &Seed, name: &str, over: Option<&Read>) -> Result<bool, StoredError> {
        let namespace = &seed.own_namespace;
        let bytes = serde_json::to_vec(self).map_err(|error| StoredError::Form(name.to_owned(), error.to_string()))?;
        let data = ByteString(bytes);
        if let Some(over) = over {
            let patch = json!({ "metadata": { "resourceVersion": over.version }, "data": { DATA: data } });
            return match seed.patch_secret(namespace, name, &patch).await {
                Ok(patched) => Ok(patched.is_some()),
                Err(failure) if failure.is(Class::Conflict) => Ok(false),
                Err(failure) => Err(failure.into()),
            };
        }
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.clone()),
                labels: Some([(names::MANAGED_BY_LABEL.to_owned(), names::APPROVER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".into()),
            data: Some([(DATA.to_owned(), data)].into()),
            ..Secret::default()
        };
        let what = format!("create Secret {namespace}/{name}");
        match call(what, seed.secrets(namespace).create(&PostParams::default(), &secret)).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is(Class::AlreadyExists) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }
}

impl Pair {
    /// For `host`, a name or an address. The CA's key is gone when this returns.
    pub fn make(host: &str, now: Timestamp, life: SignedDuration) -> Result<Self, StoredError> {
        let until = now + life;
        let epoch = date_time_ymd(1970, 1, 1);
        let moment =
            |time: Timestamp| epoch + std::time::Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0));
        let dated = |mut params: CertificateParams, name: &str| {
            let mut subject = DistinguishedName::new();
            subject.push(DnType::CommonName, name);
            params.distinguished_name = subject;
            params.not_before = moment(now - BEFORE);
            params.not_after = moment(until);
            params
        };
        let mut ca = dated(CertificateParams::default(), "firewall-approver webhook CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let mut leaf = dated(
            CertificateParams::new(vec![host.to_owned()])?,
            "firewall-approver webhook",
        );
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &Issuer::from_params(&ca, &ca_key))?;
        Ok(Self {
            facts: Facts {
                ca: sha256_hex(ca_certificate.der()),
                host: host.to_owned(),
                until,
            },
            ca: ca_certificate.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// As it is served.
    pub fn certified(&self) -> Option<Arc<CertifiedKey>> {
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).ok()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).ok()?;
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).ok()?;
        Some(Arc::new(CertifiedKey::new(vec![certificate], key)))
    }
}
