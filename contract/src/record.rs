//! What the approver remembers of one firewall, in the shoot's state Secret: which key is pinned, which credential was
//! allotted, which certificate was issued last. Never a token, never a private key. Owns the form; what becomes
//! of the keys in it is in `keys`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::keys::{KeyVerdict, Keys, Pin};
use crate::cert::counts_from;
use crate::handover::Order;
use crate::key::Thumbprint;

mod keys;

#[derive(Debug, Error)]
pub enum RecordError {
    #[error("it is not a record of ours: {0}")]
    Form(String),
    #[error("it has version {0}, this program reads version {VERSION}: run the version that wrote it or a newer one")]
    Version(u32),
}

pub const VERSION: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub version: u32,
    /// UID of the Firewall that this record was last kept for.
    pub uid: String,
    /// UID of the kube-system namespace of the seed it was kept in.
    pub seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Credential>,
    #[serde(default)]
    pub keys: Keys,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// The end of the last certificate that was seen of this firewall's name, of whatever key: until then the name is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified_until: Option<Timestamp>,
    /// The firewall has a ServiceAccount for its access here: it is to work with tokens, or did and is not known to have left
    /// them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tokens: bool,
    /// Until when they are left to it yet, since it said that it works with a certificate: its consumer may be slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_until: Option<Timestamp>,
    /// The value of the rebootstrap annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebootstrap: Option<String>,
    /// The value of the export annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Authority of this Firewall, and the number of the last handover that was made for it.
    #[serde(flatten)]
    pub order: Order,
    /// A handover is on its way: the firewall has to come in anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Pending>,
    /// Where firewalls reach this seed, as it was when this was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The Firewall is gone, or going.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
}

/// Why a firewall has to come in anew, and how far that has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// As `reasons` has it.
    pub reason: String,
    pub since: Timestamp,
    /// The key of the issuer that is refused, where that is the reason: a certificate of it does not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// What was sent last; none while there was nothing to send it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
}

/// A handover that was made under the record's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub issued: Timestamp,
    pub expires: Timestamp,
    /// The agent's key that it is sealed to; a notice has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_to: Option<Thumbprint>,
}

/// Fingerprints of a server's address and of the CAs that its certificate may come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub server: String,
    pub ca: String,
    pub since: Timestamp,
}

/// How a Firewall went. A control plane that moves takes its Firewalls away as well, so this alone is no reason to
/// forget one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gone {
    pub since: Timestamp,
    /// It was deleted for good: whoever deleted it waited for the machine to go.
    #[serde(default)]
    pub deleted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    pub kind: CredentialKind,
    pub epoch: u32,
    pub allocated: Timestamp,
    /// Until when it is good as it stands; extended in place while the firewall has not come in.
    pub expires: Timestamp,
    /// Nothing extends it past this.
    pub limit: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialKind {
    Token,
    ServiceAccount,
}

/// The certificate as last issued, read from the CSR's status while it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub issuer: String,
    /// SHA-256 of the key that signed it, where that is known: two CAs may have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_key: Option<String>,
    pub request: String,
}

impl Certificate {
    /// A token stands in the place of a certificate: with dates and a number, and its ServiceAccount's user as issuer.
    pub fn is_token(&self) -> bool {
        crate::grant::is_token(&self.issuer)
    }

    /// From when on its life counts, for telling which of two came later.
    pub fn began(&self) -> Timestamp {
        if self.is_token() {
            self.not_before
        } else {
            counts_from(self.not_before, self.not_after)
        }
    }
}

impl Record {
    pub fn read(json: &[u8]) -> Result<Self, RecordError> {
        // The version first: a newer record may not parse as one of ours.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let form = |e: serde_json::Error| RecordError::Form(e.to_string());
        let Versioned { version } = serde_json::from_slice(json).map_err(form)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        serde_json::from_slice(json).map_err(form)
    }

    pub fn write(&self) -> Result<Vec<u8>, RecordError> {
        serde_json::to_vec(self).map_err(|e| RecordError::Form(e.to_string()))
    }

    /// Whether the firewall has come in with the pinned key.
    pub fn proven(&self) -> bool {
        self.keys.pin.as_ref().is_some_and(|pin| pin.proven.is_some())
    }

    /// Until when somebody may hold a certificate of this name. A token ends with its account.
    pub fn name_taken_until(&self) -> Option<Timestamp> {
        let certificate = self.certificate.as_ref().filter(|certificate| !certificate.is_token());
        self.certified_until
            .max(certificate.map(|certificate| certificate.not_after))
    }

    /// Whether it is known whose key this firewall's is: proved, or vouched for by an operator.
    pub fn settled(&self) -> bool {
        let pin = self.keys.pin.as_ref();
        pin.is_some_and(|pin| pin.proven.is_some() || pin.accepted)
    }

    /// Two keys came with one credential: nobody but the operator can tell which is the machine's.
    pub fn contested(&self) -> bool {
        self.keys.contested()
    }
}

#[cfg(test)]
mod tests;
