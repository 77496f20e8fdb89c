//! The handover: how the approver tells a firewall of its way into a seed, by an annotation of the FirewallMonitor that
//! everybody in the shoot may read and write. Owns its form and its authenticity; when one is made, and what the agent
//! does with it, is theirs to decide.
//!
//! The claims are signed by the shoot's handover key, so nobody else can say them. Server, CA and credential stand only
//! in a part that is sealed (HPKE) to a key of that one agent, within the same signature and bound to the claims' very
//! bytes: it can be neither read nor put under other claims. Without a sealed part it is a notice: "report, and you
//! will get one".

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_P256_HKDF_SHA256_AES_128 as SUITE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::digest::sha256_hex;
use crate::jws::{self, JwsError};
use crate::key::{PrivateKey, PublicKey, Thumbprint};
use crate::names::FirewallName;

const TYPE: &str = "firewall-seed-handover+jwt";
/// Protocol and version: what was sealed under another cannot be opened under this one.
const INFO: &[u8] = b"firewall.metal-stack.io/seed-access handover v1";
/// An annotation of an object of Kubernetes has to share 256 KiB with all others.
pub const HANDOVER_MAX: usize = 64 * 1024;
/// So far ahead of ours the approver's clock may be.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// Which of two handovers is the newer one. The authority stands for a Firewall object (a control plane in one seed),
/// the generation counts what was said under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    pub authority: i64,
    pub generation: u64,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.authority, self.generation)
    }
}

/// What everybody may read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// UID of the kube-system namespace of the seed that it leads to.
    pub seed: String,
    /// Namespace of the Firewall there.
    pub namespace: String,
    pub firewall: FirewallName,
    /// The machine's key, as the approver has it pinned.
    pub key: Thumbprint,
    #[serde(flatten)]
    pub order: Order,
    pub issued: Timestamp,
    pub expires: Timestamp,
    /// Why it was made, as `reasons` has it.
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sealed {
    encapsulated: String,
    ciphertext: String,
}

#[derive(Serialize, Deserialize)]
struct Payload {
    claims: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<Sealed>,
}

/// A handover that one of the given keys signed.
#[derive(Clone, Debug)]
pub struct Handover {
    pub claims: Claims,
    sealed: Option<Sealed>,
    /// The claims as they were signed, to the byte.
    bytes: String,
    /// Hash of all that was signed: of two with the same order only the very same one counts. The signature is not in it:
    /// of each anybody can make a second one that verifies too, and would have the original refused.
    pub digest: String,
}

#[derive(Debug, Error)]
pub enum HandoverError {
    #[error("it has {0} bytes, more than {HANDOVER_MAX}")]
    TooLong(usize),
    #[error("it is signed by none of the {0} keys whose handovers are believed: {1}")]
    NotAuthentic(usize, JwsError),
    #[error("it cannot be read: {0}")]
    Form(String),
    #[error("it is for firewall {0}, not for this one")]
    OtherFirewall(FirewallName),
    #[error("it is for a machine with the key {0}, not for this one")]
    OtherKey(Thumbprint),
    #[error("it was issued at {0}, which is in the future: is this clock right?")]
    NotYet(Timestamp),
    #[error("it expired at {0}")]
    Expired(Timestamp),
    #[error("it is number {found}, and {taken} was taken up already")]
    Older { found: Order, taken: Order },
    #[error("it has no sealed part")]
    Notice,
    #[error("its sealed part was not sealed to this agent's key, or not for these claims")]
    NotForUs,
    #[error("it cannot be made: {0}")]
    Make(String),
}

/// The private key that an agent has handovers sealed to. Only in memory: whoever finds the disk opens nothing old.
pub struct SealKey {
    private: HpkePrivateKey,
    public: PublicKey,
}

impl SealKey {
    pub fn generate() -> Result<Self, HandoverError> {
        let (public, private) = SUITE
            .generate_key_pair()
            .map_err(|e| HandoverError::Make(e.to_string()))?;
        let public = PublicKey::from_point(&public.0).map_err(|e| HandoverError::Make(e.to_string()))?;
        Ok(Self { private, public })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealKey({})", self.public.thumbprint())
    }
}

/// Signs a handover. With a key to seal to it carries this bootstrap kubeconfig, without one it is a notice.
pub fn write(key: &PrivateKey, claims: &Claims, sealed: Option<(&PublicKey, &str)>) -> Result<String, HandoverError> {
    let make = |e: String| HandoverError::Make(e);
    let claims = serde_json::value::to_raw_value(claims).map_err(|e| make(e.to_string()))?;
    let sealed = match sealed {
        None => None,
        Some((to, kubeconfig)) => {
            let to = HpkePublicKey(to.point().to_vec());
            let (encapsulated, ciphertext) = SUITE
                .seal(INFO, claims.get().as_bytes(), kubeconfig.as_bytes(), &to)
                .map_err(|e| make(e.to_string()))?;
            Some(Sealed {
                encapsulated: URL_SAFE_NO_PAD.encode(encapsulated.0),
                ciphertext: URL_SAFE_NO_PAD.encode(ciphertext),
            })
        }
    };
    let message = jws::sign(TYPE, key, &Payload { claims, sealed }).map_err(|e| make(e.to_string()))?;
    if message.len() > HANDOVER_MAX {
        return Err(HandoverError::TooLong(message.len()));
    }
    Ok(message)
}

/// Reads a handover that one of these keys signed. Everything else about it is still to be checked.
pub fn read(message: &str, keys: &[PublicKey]) -> Result<Handover, HandoverError> {
    if message.len() > HANDOVER_MAX {
        return Err(HandoverError::TooLong(message.len()));
    }
    let mut refused = JwsError::Form;
    for key in keys {
        match jws::open::<Payload>(TYPE, key, message) {
            Ok(payload) => return Handover::of(message, payload),
            Err(error) => refused = error,
        }
    }
    Err(HandoverError::NotAuthentic(keys.len(), refused))
}

impl Handover {
    fn of(message: &str, payload: Payload) -> Result<Self, HandoverError> {
        let signed = message.rsplit_once('.').map_or(message, |(signed, _)| signed);
        let bytes = payload.claims.get().to_owned();
        let claims = serde_json::from_str(&bytes).map_err(|e| HandoverError::Form(jws::printable(&e.to_string())))?;
        Ok(Self {
            claims,
            sealed: payload.sealed,
            bytes,
            digest: sha256_hex(signed.as_bytes()),
        })
    }

    pub fn is_notice(&self) -> bool {
        self.sealed.is_none()
    }

    /// Whether it is meant for this machine, and for now.
    pub fn check(&self, firewall: &FirewallName, key: &PublicKey, now: Timestamp) -> Result<(), HandoverError> {
        let claims = &self.claims;
        if claims.firewall != *firewall {
            return Err(HandoverError::OtherFirewall(claims.firewall.clone()));
        }
        if claims.key != key.thumbprint() {
            return Err(HandoverError::OtherKey(claims.key.clone()));
        }
        if now.duration_until(claims.issued) > SKEW {
            return Err(HandoverError::NotYet(claims.issued));
        }
        if claims.expires <= now {
            return Err(HandoverError::Expired(claims.expires));
        }
        Ok(())
    }

    /// The bootstrap kubeconfig in it.
    pub fn open(&self, key: &SealKey) -> Result<Zeroizing<String>, HandoverError> {
        let sealed = self.sealed.as_ref().ok_or(HandoverError::Notice)?;
        let decode = |text: &str| {
            URL_SAFE_NO_PAD
                .decode(text)
                .map_err(|_| HandoverError::Form("the sealed part is not base64url".into()))
        };
        let encapsulated = EncapsulatedSecret(decode(&sealed.encapsulated)?);
        let ciphertext = decode(&sealed.ciphertext)?;
        let opened = SUITE
            .open(&encapsulated, INFO, self.bytes.as_bytes(), &ciphertext, &key.private)
            .map(Zeroizing::new)
            .map_err(|_| HandoverError::NotForUs)?;
        let text = str::from_utf8(&opened).map_err(|_| HandoverError::Form("what was sealed is not text".into()))?;
        Ok(Zeroizing::new(text.to_owned()))
    }
}

/// The newest handover that an agent took up. What is older is refused for ever, whoever signed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fence {
    #[serde(flatten)]
    pub order: Order,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl Fence {
    pub fn of(handover: &Handover) -> Self {
        Self {
            order: handover.claims.order,
            digest: Some(handover.digest.clone()),
        }
    }

    pub fn admits(&self, handover: &Handover) -> Result<(), HandoverError> {
        let found = handover.claims.order;
        let same = self.digest.as_ref() == Some(&handover.digest);
        if found > self.order || (found == self.order && same) {
            return Ok(());
        }
        Err(HandoverError::Older {
            found,
            taken: self.order,
        })
    }
}

#[cfg(test)]
mod compat;
#[cfg(test)]
mod tests;
