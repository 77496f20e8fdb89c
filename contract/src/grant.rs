//! A token as the answer to a certificate request, where a seed gives tokens instead of certificates. It stands in a
//! condition of the request, which many may read, so it is sealed (HPKE) to the very key that signed the request: like
//! a certificate, it is of use to the holder of that key alone. Owns the condition's form and what a token says of
//! itself; who gets one is decided as for a certificate.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_P256_HKDF_SHA256_AES_128 as SUITE;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::cert::Issued;
use crate::digest::sha256_hex;
use crate::key::{PrivateKey, PublicKey};
use crate::names::{ACCESS_USER_PREFIX, FirewallName};
use crate::token::unverified_claims;

/// Type and reason of the condition that carries it.
pub const CONDITION: &str = "SeedAccessToken";
pub const CONDITION_REASON: &str = "SealedToRequester";
/// Protocol and version: a key that handovers are sealed to opens nothing of this, nor the other way round.
const INFO: &[u8] = b"firewall.metal-stack.io/seed-access token v1";
/// A token has a KiB or two.
pub const GRANT_MAX: usize = 16 * 1024;
const SERIAL_LENGTH: usize = 40;

#[derive(Debug, Error)]
pub enum GrantError {
    #[error("it has {0} bytes, more than {GRANT_MAX}")]
    TooLong(usize),
    #[error("it cannot be read: {0}")]
    Form(&'static str),
    #[error("it was not sealed to this machine's key, or not for this request")]
    NotForUs,
    #[error("it is the token of {found:?}, not of {expected:?}")]
    OtherUser { found: String, expected: String },
    #[error("it cannot be made: {0}")]
    Make(String),
}

/// What everybody may read of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// The user that the token makes its holder.
    pub user: String,
    encapsulated: String,
    ciphertext: String,
}

/// Seals a token to the key of a request; `request` is the request as it was sent, to the byte.
pub fn write(
    to: &PublicKey,
    request: &[u8],
    firewall: &FirewallName,
    token: &SecretString,
) -> Result<String, GrantError> {
    let make = |e: String| GrantError::Make(e);
    let issued = read_token(token, firewall, to)?;
    let aad = sha256_hex(request);
    let (encapsulated, ciphertext) = SUITE
        .seal(
            INFO,
            aad.as_bytes(),
            token.expose_secret().as_bytes(),
            &HpkePublicKey(to.point().to_vec()),
        )
        .map_err(|e| make(e.to_string()))?;
    let grant = Grant {
        serial: issued.serial,
        not_before: issued.not_before,
        not_after: issued.not_after,
        user: issued.issuer,
        encapsulated: URL_SAFE_NO_PAD.encode(encapsulated.0),
        ciphertext: URL_SAFE_NO_PAD.encode(ciphertext),
    };
    serde_json::to_string(&grant).map_err(|e| make(e.to_string()))
}

pub fn read(message: &str) -> Result<Grant, GrantError> {
    if message.len() > GRANT_MAX {
        return Err(GrantError::TooLong(message.len()));
    }
    serde_json::from_str(message).map_err(|_| GrantError::Form("it is not what the approver writes"))
}

impl Grant {
    pub fn open(&self, key: &PrivateKey, request: &[u8]) -> Result<SecretString, GrantError> {
        let decode = |text: &str| {
            URL_SAFE_NO_PAD
                .decode(text)
                .map_err(|_| GrantError::Form("the sealed part is not base64url"))
        };
        let scalar = key.scalar().map_err(|e| GrantError::Make(e.to_string()))?;
        let private = HpkePrivateKey::from(scalar.to_vec());
        let opened = SUITE
            .open(
                &EncapsulatedSecret(decode(&self.encapsulated)?),
                INFO,
                sha256_hex(request).as_bytes(),
                &decode(&self.ciphertext)?,
                &private,
            )
            .map(Zeroizing::new)
            .map_err(|_| GrantError::NotForUs)?;
        let text = str::from_utf8(&opened).map_err(|_| GrantError::Form("what was sealed is not text"))?;
        Ok(SecretString::from(text))
    }
}

/// A token, told in the words of a certificate: it has dates and a number too, and `issuer` names its ServiceAccount's
/// user. The API server alone verifies it; here its claims are read for their dates, and so that none of another account is
/// taken for ours.
pub fn read_token(token: &SecretString, firewall: &FirewallName, key: &PublicKey) -> Result<Issued, GrantError> {
    let text = token.expose_secret();
    let claims = unverified_claims(text).ok_or(GrantError::Form("it is no token of a ServiceAccount"))?;
    let time = |claim: &str| {
        let seconds = claims.get(claim).and_then(serde_json::Value::as_i64);
        seconds
            .and_then(|seconds| Timestamp::from_second(seconds).ok())
            .ok_or(GrantError::Form("the token has no dates"))
    };
    let user = claims
        .get("sub")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let expected = firewall.access_user();
    if user != expected {
        return Err(GrantError::OtherUser {
            found: user.chars().filter(|c| !c.is_control()).take(160).collect(),
            expected,
        });
    }
    Ok(Issued {
        serial: sha256_hex(text.as_bytes()).split_at(SERIAL_LENGTH).0.to_owned(),
        not_before: time("nbf")?,
        not_after: time("exp")?,
        firewall: firewall.clone(),
        key: key.clone(),
        issuer: expected,
        authority_key_id: None,
        client_auth: true,
    })
}

/// Whether what stands as an issuer is a firewall's ServiceAccount: no certificate's issuer is written like this.
pub fn is_token(issuer: &str) -> bool {
    issuer.starts_with(ACCESS_USER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firewall(name: &str) -> FirewallName {
        FirewallName::parse(name).unwrap()
    }

    fn token(user: &str) -> SecretString {
        let claims = serde_json::json!({ "sub": user, "nbf": 1_000, "iat": 1_000, "exp": 87_400 });
        format!("head.{}.signature", URL_SAFE_NO_PAD.encode(claims.to_string())).into()
    }

    #[test]
    fn b6_a_token_is_opened_by_the_key_of_its_request_only_and_for_that_request_only() {
        let (key, thief) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let (fw, token) = (firewall("fw-1"), token("system:serviceaccount:firewall-access:fw-1"));
        let message = write(&key.public(), b"request", &fw, &token).unwrap();
        assert!(!message.contains(token.expose_secret()));
        let grant = read(&message).unwrap();
        assert_eq!(
            grant.open(&key, b"request").unwrap().expose_secret(),
            token.expose_secret()
        );
        assert!(matches!(grant.open(&thief, b"request"), Err(GrantError::NotForUs)));
        assert!(matches!(grant.open(&key, b"another"), Err(GrantError::NotForUs)));
        // A key that came back from disk opens it too.
        let restored = PrivateKey::from_pem(&key.to_pem()).unwrap();
        grant.open(&restored, b"request").unwrap();
    }

    #[test]
    fn b6_a_token_of_another_account_is_neither_sealed_nor_taken() {
        let key = PrivateKey::generate().unwrap().public();
        for user in [
            "system:serviceaccount:firewall-access:fw-2",
            "system:serviceaccount:firewall-bootstrap:fw-1",
            "system:serviceaccount:kube-system:fw-1",
            "",
        ] {
            let (fw, token) = (firewall("fw-1"), token(user));
            assert!(write(&key, b"request", &fw, &token).is_err(), "{user}");
            assert!(read_token(&token, &fw, &key).is_err(), "{user}");
        }
    }

    #[test]
    fn a_token_has_the_dates_and_the_number_of_what_it_stands_for() {
        let (fw, key) = (firewall("fw-1"), PrivateKey::generate().unwrap().public());
        let issued = read_token(&token(&fw.access_user()), &fw, &key).unwrap();
        assert_eq!(
            (issued.not_before.as_second(), issued.not_after.as_second()),
            (1_000, 87_400)
        );
        assert_eq!(issued.serial.len(), SERIAL_LENGTH);
        assert!(is_token(&issued.issuer) && !is_token("CN=system:serviceaccount:firewall-access:fw-1"));
    }
}
