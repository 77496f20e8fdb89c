//! The forms in which the agent keeps what it knows. Owns their fields; where they lie and in which order they are written
//! is the store's.

use contract::access::Mode;
use contract::csr::{self, CsrError};
use contract::handover::Order;
use contract::key::{PrivateKey, PublicKey};
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use contract::names::FirewallName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The seed as it is worked with. Written before the first certificate is switched on, and when the seed tells of
/// something new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Access {
    pub firewall: FirewallName,
    pub namespace: String,
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// PEM.
    pub ca: String,
    /// The seed's id, once it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Whose handovers are authentic.
    #[serde(default)]
    pub handover_keys: Vec<PublicKey>,
    /// What this firewall works with, as `Mode` has it: `current.pem`, or `current.token`.
    pub mode: String,
}

impl Access {
    pub(crate) fn mode(&self) -> Mode {
        Mode::parse(&self.mode).unwrap_or(Mode::Certificate)
    }

    /// A kubeconfig for this access with a credential.
    pub(crate) fn with(&self, credential: Credential) -> Result<Kubeconfig, String> {
        let ca = CaBundle::from_pem(&self.ca).map_err(|e| format!("the seed's CA {e}"))?;
        Ok(Kubeconfig {
            server: self.server.clone(),
            tls_server_name: self.tls_server_name.clone(),
            ca,
            credential,
            namespace: self.namespace.clone(),
            bootstrap: None,
        })
    }
}

/// A certificate request in flight, kept so that a restart sends the very same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRequest {
    pub name: String,
    pub pem: String,
    #[serde(default)]
    pub replacement: bool,
    /// The life in seconds that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<i64>,
}

/// What was taken up, so that it is taken up once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Handled {
    /// The last value of the annotation that asks for a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<String>,
    /// That renewal, or one that was asked for here, is not done yet.
    #[serde(default)]
    pub pending: bool,
    /// Hash of the consumer's kubeconfig that the consumer was last told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// When its hook was run last, so that a restart of the agent makes it no more frequent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook_run: Option<Timestamp>,
    /// Hash of the bootstrap kubeconfig that was used or found last: another one was put there by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,
    /// Hash of the lifeline that the seed offered last and that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifeline: Option<String>,
    /// The life in seconds that was asked for what we work with: the signer may have given less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<i64>,
}

/// A switch to another seed under way. Until the pair is in force, the seed of before is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switching {
    /// Of the certificate that is switched to.
    pub serial: String,
    /// The handover that led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Access>,
}

/// A fresh request for this key, with the name of its object.
pub(crate) fn new_request(
    firewall: &FirewallName,
    key: &PrivateKey,
    replacement: bool,
    life: i64,
) -> Result<StoredRequest, CsrError> {
    let pem = csr::write(firewall, key)?;
    Ok(StoredRequest {
        name: csr::object_name(&pem)?,
        pem,
        replacement,
        life: Some(life),
    })
}
