//! The one form of signed message between the programs: a compact JWS, ES256, with exactly the header we write.
//! Owns signing and opening; what the claims mean is their module's business.
//!
//! A header decides how a message is verified, so nothing in it is obeyed: the key and the algorithm are ours, and a
//! header with one more or one other field (`jwk`, `jku`, `x5c`, `crit`, another `alg`) is refused.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, crypto};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::key::{PrivateKey, PublicKey, Thumbprint};

/// More than any message of ours has; what is longer is not even looked at.
pub const MAX_LENGTH: usize = 128 * 1024;

#[derive(Debug, Error)]
pub enum JwsError {
    #[error("the message has {0} bytes, more than {MAX_LENGTH}")]
    TooLong(usize),
    #[error("the message is not a compact JWS of three base64url parts")]
    Form,
    #[error("the header is not exactly {{alg: ES256, typ, kid}}: {0}")]
    Header(String),
    #[error("the message is a {found:?}, not a {expected:?}")]
    Type { expected: &'static str, found: String },
    #[error("the message names the key {found}, not {expected}")]
    OtherKey { expected: Thumbprint, found: String },
    #[error("the signature does not verify with the key {0}")]
    Signature(Thumbprint),
    #[error("the claims cannot be read: {0}")]
    Claims(String),
    #[error("the message cannot be signed: {0}")]
    Sign(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
}

/// Signs claims as a message of the given type.
pub fn sign<C: Serialize>(typ: &str, key: &PrivateKey, claims: &C) -> Result<String, JwsError> {
    let header = Header {
        alg: "ES256".into(),
        typ: typ.into(),
        kid: key.public().thumbprint().to_string(),
    };
    let encode = |json: Result<Vec<u8>, serde_json::Error>| {
        json.map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
            .map_err(|e| JwsError::Sign(e.to_string()))
    };
    let signed = format!(
        "{}.{}",
        encode(serde_json::to_vec(&header))?,
        encode(serde_json::to_vec(claims))?
    );
    let signature = crypto::sign(
        signed.as_bytes(),
        &EncodingKey::from_ec_der(key.pkcs8_der()),
        Algorithm::ES256,
    )
    .map_err(|e| JwsError::Sign(e.to_string()))?;
    Ok(format!("{signed}.{signature}"))
}

/// Opens a message of the given type that the given key must have signed. Time is the caller's to check.
pub fn open<C: DeserializeOwned>(typ: &'static str, key: &PublicKey, message: &str) -> Result<C, JwsError> {
    let (signed, signature, header) = split(message)?;
    let expected = key.thumbprint();
    if header.typ != typ {
        return Err(JwsError::Type {
            expected: typ,
            found: printable(&header.typ),
        });
    }
    if header.kid != expected.to_string() {
        return Err(JwsError::OtherKey {
            expected,
            found: printable(&header.kid),
        });
    }
    let (x, y) = key.coordinates();
    let verified = DecodingKey::from_ec_components(&x, &y)
        .and_then(|decoding| crypto::verify(signature, signed.as_bytes(), &decoding, Algorithm::ES256));
    if !matches!(verified, Ok(true)) {
        return Err(JwsError::Signature(expected));
    }
    let payload = signed
        .split_once('.')
        .map(|(_, payload)| payload)
        .ok_or(JwsError::Form)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| JwsError::Form)?;
    serde_json::from_slice(&payload).map_err(|e| JwsError::Claims(printable(&e.to_string())))
}

/// The claims of a message that nobody vouches for.
pub fn unverified<C: DeserializeOwned>(message: &str) -> Option<C> {
    let (signed, _, _) = split(message).ok()?;
    let (_, payload) = signed.split_once('.')?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

fn split(message: &str) -> Result<(&str, &str, Header), JwsError> {
    if message.len() > MAX_LENGTH {
        return Err(JwsError::TooLong(message.len()));
    }
    let (signed, signature) = message.rsplit_once('.').ok_or(JwsError::Form)?;
    let (header, payload) = signed.split_once('.').ok_or(JwsError::Form)?;
    if payload.contains('.') {
        return Err(JwsError::Form);
    }
    let header = URL_SAFE_NO_PAD.decode(header).map_err(|_| JwsError::Form)?;
    let header: Header = serde_json::from_slice(&header).map_err(|e| JwsError::Header(printable(&e.to_string())))?;
    if header.alg != "ES256" {
        return Err(JwsError::Header(format!("alg is {:?}", printable(&header.alg))));
    }
    Ok((signed, signature, header))
}

/// What a stranger wrote, cut to what belongs into an error. So do errors of libraries, which quote what they were given.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(160).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TYP: &str = "test+jwt";

    fn key() -> PrivateKey {
        PrivateKey::generate().unwrap()
    }

    /// A message signed by `key` under a header of our choice, as an attacker who holds a key could make it.
    fn with_header(key: &PrivateKey, header: &Value) -> String {
        let part = |v: &Value| URL_SAFE_NO_PAD.encode(v.to_string());
        let signed = format!("{}.{}", part(header), part(&json!({"a": 1})));
        let encoding = EncodingKey::from_ec_der(key.pkcs8_der());
        let signature = crypto::sign(signed.as_bytes(), &encoding, Algorithm::ES256).unwrap();
        format!("{signed}.{signature}")
    }

    #[test]
    fn what_was_signed_can_be_opened_with_that_key_only() {
        let (mine, other) = (key(), key());
        let message = sign(TYP, &mine, &json!({"a": 1})).unwrap();
        assert_eq!(open::<Value>(TYP, &mine.public(), &message).unwrap(), json!({"a": 1}));
        assert!(matches!(
            open::<Value>(TYP, &other.public(), &message),
            Err(JwsError::OtherKey { .. })
        ));
        assert!(matches!(
            open::<Value>("other+jwt", &mine.public(), &message),
            Err(JwsError::Type { .. })
        ));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let mine = key();
        let message = sign(TYP, &mine, &json!({"a": 1, "b": "text"})).unwrap();
        for at in 0..message.len() {
            let mut bytes = message.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(open::<Value>(TYP, &mine.public(), &changed).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_header_that_would_choose_key_or_algorithm_is_refused() {
        let mine = key();
        let kid = mine.public().thumbprint().to_string();
        let good = json!({"alg": "ES256", "typ": TYP, "kid": kid});
        assert!(open::<Value>(TYP, &mine.public(), &with_header(&mine, &good)).is_ok());
        for (field, value) in [
            ("jwk", json!({"kty": "EC"})),
            ("jku", json!("https://example.org")),
            ("x5c", json!([])),
            ("crit", json!(["b64"])),
            ("b64", json!(false)),
            ("alg", json!("none")),
            ("alg", json!("HS256")),
            ("alg", json!("ES384")),
        ] {
            let mut header = good.clone();
            header[field] = value;
            let opened = open::<Value>(TYP, &mine.public(), &with_header(&mine, &header));
            assert!(matches!(opened, Err(JwsError::Header(_))), "{field}");
        }
        for missing in ["alg", "typ", "kid"] {
            let mut header = good.clone();
            header.as_object_mut().unwrap().remove(missing);
            let opened = open::<Value>(TYP, &mine.public(), &with_header(&mine, &header));
            assert!(matches!(opened, Err(JwsError::Header(_))), "{missing}");
        }
    }

    #[test]
    fn a_foreign_signature_under_our_kid_is_refused() {
        let (mine, thief) = (key(), key());
        let header = json!({"alg": "ES256", "typ": TYP, "kid": mine.public().thumbprint().to_string()});
        let opened = open::<Value>(TYP, &mine.public(), &with_header(&thief, &header));
        assert!(matches!(opened, Err(JwsError::Signature(_))));
    }

    #[test]
    fn what_is_not_three_parts_or_too_long_is_refused() {
        let mine = key().public();
        for bad in ["", ".", "..", "a.b", "a.b.c.d", "a.b.c", "\u{1f980}.b.c"] {
            assert!(open::<Value>(TYP, &mine, bad).is_err(), "{bad}");
        }
        let long = "a".repeat(MAX_LENGTH + 1);
        assert!(matches!(open::<Value>(TYP, &mine, &long), Err(JwsError::TooLong(_))));
    }
}
