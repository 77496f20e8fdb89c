//! Signed messages, made and verified independently of the code under test.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::key::{PrivateKey, PublicKey};
use serde_json::{Value, json};

use super::other_half;

pub fn header(typ: &str, key: &PublicKey) -> Value {
    json!({"alg": "ES256", "typ": typ, "kid": key.thumbprint().as_str()})
}

/// Signs whatever it is given, as a thief of the key could.
pub fn sign(header: &[u8], payload: &[u8], key: &PrivateKey) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.pkcs8_der()).unwrap();
    let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The message that an input of the fuzzer stands for: text as it is; a payload, signed; or header, newline and payload,
/// signed.
pub fn message(mode: u8, rest: &[u8], typ: &str, key: &PrivateKey) -> String {
    match mode % 3 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        1 => sign(header(typ, &key.public()).to_string().as_bytes(), rest, key),
        _ => {
            let at = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
            sign(&rest[..at], rest.get(at + 1..).unwrap_or_default(), key)
        }
    }
}

/// The bytes of the payload, if this is a message of that type by that key. What is accepted has to be.
pub fn verified(message: &str, typ: &str, key: &PublicKey) -> Option<Vec<u8>> {
    let parts: Vec<&str> = message.split('.').collect();
    let [head, payload, signature] = parts.as_slice() else {
        return None;
    };
    let decode = |part: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
        // One spelling only.
        (URL_SAFE_NO_PAD.encode(&bytes) == part).then_some(bytes)
    };
    let found: Value = serde_json::from_slice(&decode(head)?).ok()?;
    let verifier = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.point());
    let signed = &message[..head.len() + 1 + payload.len()];
    verifier.verify(signed.as_bytes(), &decode(signature)?).ok()?;
    (found == header(typ, key)).then(|| decode(payload))?
}

/// The message with the other signature that verifies over the same bytes: the one change that a stranger can make.
pub fn with_the_other_signature(message: &str) -> String {
    let (signed, signature) = message.rsplit_once('.').unwrap();
    let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let other = other_half(signature[32..].try_into().unwrap());
    format!(
        "{signed}.{}",
        URL_SAFE_NO_PAD.encode([&signature[..32], &other].concat())
    )
}
