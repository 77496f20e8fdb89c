//! A signed message in pieces, to be spoilt in one of them before or after it is signed.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::key::{PrivateKey, PublicKey};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_P256_HKDF_SHA256_AES_128 as SUITE;
use rustls::crypto::hpke::{Hpke as _, HpkePublicKey};
use serde_json::{Value, json};

use crate::properties::{handover, jws, key};

const INFO: &[u8] = b"firewall.metal-stack.io/seed-access handover v1";
pub const SEALED: &str = "apiVersion: v1 # what only this agent may read";

pub struct Draft {
    pub header: Value,
    /// The payload, or of a handover the claims in it.
    pub claims: Value,
    /// Of a handover: to whom, what, and under which claims if not these.
    pub sealed: Option<(PublicKey, &'static str, Option<String>)>,
    pub key: PrivateKey,
    /// On the payload's text, before it is signed.
    pub payload: fn(String) -> String,
    /// On the finished message.
    pub text: fn(String) -> String,
}

impl Draft {
    pub fn handover() -> Self {
        Self {
            header: jws::header(handover::TYPE, &key().public()),
            claims: serde_json::to_value(handover::claims()).unwrap(),
            sealed: Some((handover::seal()[0].public().clone(), SEALED, None)),
            key: key(),
            payload: |payload| payload,
            text: |text| text,
        }
    }

    pub fn report() -> Self {
        use crate::properties::report;
        Self {
            header: jws::header(report::TYPE, &key().public()),
            claims: serde_json::to_value(report::report()).unwrap(),
            sealed: None,
            ..Self::handover()
        }
    }

    /// What is signed as payload.
    pub fn payload_of(&self, is_handover: bool) -> String {
        let claims = self.claims.to_string();
        let payload = match &self.sealed {
            _ if !is_handover => claims,
            None => format!("{{\"claims\":{claims}}}"),
            Some((to, text, other)) => {
                let to = HpkePublicKey(to.point().to_vec());
                let bound = other.as_ref().unwrap_or(&claims);
                let (encapsulated, ciphertext) = SUITE.seal(INFO, bound.as_bytes(), text.as_bytes(), &to).unwrap();
                let sealed = json!({
                    "encapsulated": URL_SAFE_NO_PAD.encode(encapsulated.0),
                    "ciphertext": URL_SAFE_NO_PAD.encode(ciphertext),
                });
                format!("{{\"claims\":{claims},\"sealed\":{sealed}}}")
            }
        };
        (self.payload)(payload)
    }

    pub fn message(&self, payload: &str) -> String {
        let header = match &self.header {
            Value::String(text) => text.clone(),
            header => header.to_string(),
        };
        (self.text)(jws::sign(header.as_bytes(), payload.as_bytes(), &self.key))
    }
}

/// The three parts of a message.
pub fn parts(text: &str) -> [&str; 3] {
    let parts: Vec<&str> = text.split('.').collect();
    parts.try_into().unwrap()
}
