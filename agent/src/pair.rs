//! What the seed knows this machine by: a certificate and the key that belongs to it, kept in one file so that a renewal
//! changes one file; or a token, in a file of its own.

use std::path::{Path, PathBuf};

use contract::access::Mode;
use contract::cert::{CertificateError, Issued, read_certificate};
use contract::grant::{GrantError, read_token};
use contract::key::PrivateKey;
use contract::kubeconfig::Credential;
use contract::names::FirewallName;
use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

/// A certificate with its chain, and the key that belongs to it; or a token, which tells of itself in the same words.
#[derive(Clone)]
pub(crate) struct OwnPair {
    pub issued: Issued,
    pub chain: String,
    key: SecretString,
    token: Option<SecretString>,
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
            token: None,
        })
    }

    /// Takes a token of our own ServiceAccount only.
    pub(crate) fn of_token(token: SecretString, firewall: &FirewallName, key: &PrivateKey) -> Result<Self, GrantError> {
        Ok(Self {
            issued: read_token(&token, firewall, &key.public())?,
            chain: String::new(),
            key: SecretString::from(key.to_pem().to_string()),
            token: Some(token),
        })
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.token.is_some() {
            Mode::Token
        } else {
            Mode::Certificate
        }
    }

    /// Who the seed has to say that we are by it.
    pub(crate) fn user(&self) -> String {
        match self.mode() {
            Mode::Certificate => self.issued.firewall.user(),
            Mode::Token => self.issued.firewall.access_user(),
        }
    }

    /// As it stands in its file.
    pub(crate) fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(match &self.token {
            // No newline: not every reader of a token file takes one off.
            Some(token) => token.expose_secret().to_owned(),
            None => format!("{}{}", self.chain, self.key.expose_secret()),
        })
    }

    pub(crate) fn credential(&self) -> Credential {
        if let Some(token) = &self.token {
            return Credential::Token(token.clone());
        }
        Credential::Certificate {
            certificate_pem: self.chain.clone(),
            key_pem: self.key.clone(),
        }
    }
}

/// Relative to the state folder, so that the folder can be moved.
pub(crate) fn pair_file(pair: &OwnPair) -> PathBuf {
    let ending = match pair.mode() {
        Mode::Certificate => "pem",
        Mode::Token => "token",
    };
    Path::new("pairs").join(format!("{}.{ending}", pair.issued.serial))
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
