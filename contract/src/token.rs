//! The bootstrap token of a firewall: derived, never stored, so that any replica renders the same one and a restart
//! mints nothing. Owns the derivation and the token's form; not its Secret and not its life.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::names::{BOOTSTRAP_USER_PREFIX, FirewallName, TOKEN_SECRET_PREFIX};

pub const SEED_KEY_LENGTH: usize = 32;

/// The key that all bootstrap tokens of one seed come from.
pub struct SeedKey(Zeroizing<[u8; SEED_KEY_LENGTH]>);

#[derive(Debug, Error)]
pub enum TokenError {
    #[error(
        "the seed key has {0} bytes instead of {SEED_KEY_LENGTH}: restore the Secret, or delete it to have a new one made (every unused bootstrap token then changes)"
    )]
    KeyLength(usize),
    #[error("no random bytes for a new seed key from the operating system")]
    Random,
}

/// `<id>.<secret>` as Kubernetes has it: 6 and 16 characters of [a-z0-9].
#[derive(Clone)]
pub struct BootstrapToken {
    pub id: String,
    pub secret: SecretString,
}

impl SeedKey {
    pub fn generate() -> Result<Self, TokenError> {
        let mut key = Zeroizing::new([0; SEED_KEY_LENGTH]);
        aws_lc_rs::rand::fill(key.as_mut_slice()).map_err(|_| TokenError::Random)?;
        Ok(Self(key))
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenError> {
        let key = <[u8; SEED_KEY_LENGTH]>::try_from(bytes).map_err(|_| TokenError::KeyLength(bytes.len()))?;
        Ok(Self(Zeroizing::new(key)))
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// The token of one firewall. The epoch moves on only if the id belongs to somebody else.
    pub fn token(&self, namespace: &str, firewall: &FirewallName, epoch: u32) -> BootstrapToken {
        self.derive("firewall", namespace, firewall.as_str(), epoch)
    }

    /// The short-lived token that finds out what a bootstrap token may do on this seed.
    pub fn probe_token(&self) -> BootstrapToken {
        self.derive("probe", "", "", 0)
    }

    fn derive(&self, purpose: &str, namespace: &str, firewall: &str, epoch: u32) -> BootstrapToken {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice());
        let mut characters = Zeroizing::new(String::with_capacity(22));
        // As many blocks as the 22 unbiased characters need: the first one or two in practice.
        for block in 0_u32.. {
            let mut context = hmac::Context::with_key(&key);
            for part in [purpose, namespace, firewall] {
                // Each part with its length, so that no two inputs run into the same bytes.
                context.update(&(part.len() as u64).to_be_bytes());
                context.update(part.as_bytes());
            }
            context.update(&epoch.to_be_bytes());
            context.update(&block.to_be_bytes());
            for &byte in context.sign().as_ref() {
                // 252 = 7 * 36: bytes above it would favour the first four characters.
                if byte < 252 && characters.len() < 22 {
                    characters.push(char::from(
                        b"abcdefghijklmnopqrstuvwxyz0123456789"[usize::from(byte % 36)],
                    ));
                }
            }
            if characters.len() == 22 {
                break;
            }
        }
        let (id, secret) = characters.split_at(6);
        BootstrapToken {
            id: id.to_owned(),
            secret: SecretString::from(secret.to_owned()),
        }
    }
}

impl std::fmt::Debug for SeedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SeedKey")
    }
}

impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BootstrapToken({}.…)", self.id)
    }
}

impl BootstrapToken {
    /// What a client sends as bearer token.
    pub fn bearer(&self) -> SecretString {
        SecretString::from(format!("{}.{}", self.id, self.secret.expose_secret()))
    }

    pub fn secret_name(&self) -> String {
        format!("{TOKEN_SECRET_PREFIX}{}", self.id)
    }

    /// The Kubernetes user that this token makes.
    pub fn user(&self) -> String {
        format!("{BOOTSTRAP_USER_PREFIX}{}", self.id)
    }
}

/// The claims of a ServiceAccount token, unverified: for its dates, never for a decision about whom to trust.
pub fn unverified_claims(jwt: &str) -> Option<serde_json::Value> {
    let payload = jwt.split('.').nth(1)?;
    let json = Zeroizing::new(URL_SAFE_NO_PAD.decode(payload).ok()?);
    serde_json::from_slice(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SeedKey {
        SeedKey::from_bytes(&[7; 32]).unwrap()
    }

    fn firewall(name: &str) -> FirewallName {
        FirewallName::parse(name).unwrap()
    }

    #[test]
    fn d1_the_same_firewall_gets_the_same_token_again() {
        let token = key().token("shoot--a", &firewall("fw-1"), 0);
        assert_eq!(
            token.bearer().expose_secret(),
            key().token("shoot--a", &firewall("fw-1"), 0).bearer().expose_secret()
        );
        // A stored token must still open after an upgrade: the derivation is part of the contract.
        assert_eq!(token.bearer().expose_secret(), "ganeaj.s5xvmpamm3dq8816");
    }

    #[test]
    fn d2_another_firewall_namespace_epoch_or_key_gets_another() {
        let one = key().token("shoot--a", &firewall("fw-1"), 0);
        let others = [
            key().token("shoot--b", &firewall("fw-1"), 0),
            key().token("shoot--a", &firewall("fw-2"), 0),
            key().token("shoot--a", &firewall("fw-1"), 1),
            // Parts that would be equal if they were just strung together.
            key().token("shoot--af", &firewall("w-1"), 0),
            SeedKey::from_bytes(&[8; 32])
                .unwrap()
                .token("shoot--a", &firewall("fw-1"), 0),
            key().probe_token(),
        ];
        for other in &others {
            assert_ne!(one.id, other.id);
            assert_ne!(one.secret.expose_secret(), other.secret.expose_secret());
        }
    }

    #[test]
    fn a_token_has_the_form_that_kubernetes_demands() {
        for n in 0..500 {
            let token = key().token("shoot--a", &firewall(&format!("fw-{n}")), n);
            let allowed = |s: &str| s.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            assert!(token.id.len() == 6 && allowed(&token.id));
            assert!(token.secret.expose_secret().len() == 16 && allowed(token.secret.expose_secret()));
        }
    }

    #[test]
    fn neither_key_nor_token_can_be_printed() {
        let token = key().token("shoot--a", &firewall("fw-1"), 0);
        assert!(!format!("{token:?}{:?}", key()).contains(token.secret.expose_secret()));
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        assert!(matches!(SeedKey::from_bytes(&[0; 31]), Err(TokenError::KeyLength(31))));
    }
}
