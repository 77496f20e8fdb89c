//! A certificate and the key that belongs to it, kept in one file so that a renewal changes one file.

use std::path::{Path, PathBuf};

use contract::cert::{CertificateError, Issued, read_certificate};
use contract::key::PrivateKey;
use contract::kubeconfig::Credential;
use secrecy::SecretString;

/// A certificate with its chain, and the key that belongs to it.
#[derive(Clone)]
pub(crate) struct OwnPair {
    pub issued: Issued,
    pub chain: String,
    key: SecretString,
}

impl OwnPair {
    /// Takes a chain for our key and name only.
    pub(crate) fn new(chain: &str, key: &PrivateKey) -> Result<Self, CertificateError> {
        let issued = read_certificate(chain)?;
        let chain = format!("{}\n", chain.trim_end());
        Ok(Self {
            issued,
            chain,
            key: SecretString::from(key.to_pem().to_string()),
        })
    }

    pub(crate) fn credential(&self) -> Credential {
        Credential::Certificate {
            certificate_pem: self.chain.clone(),
            key_pem: self.key.clone(),
        }
    }
}

/// Relative to the state folder, so that the folder can be moved.
pub(crate) fn pair_file(pair: &OwnPair) -> PathBuf {
    Path::new("pairs").join(format!("{}.pem", pair.issued.serial))
}

/// Reads such a file; none if it is not whole.
pub(crate) fn parse_pair(text: &str) -> Option<(OwnPair, PrivateKey)> {
    let key = PrivateKey::from_pem(text).ok()?;
    let chain = text
        .split_once("-----BEGIN PRIVATE KEY-----")
        .map_or(text, |(chain, _)| chain);
    let pair = OwnPair::new(chain, &key).ok()?;
    (pair.issued.key == key.public()).then_some((pair, key))
}
