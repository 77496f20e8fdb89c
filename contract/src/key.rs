//! The machine's key: ECDSA P-256 and nothing else.
//! Owns the private key, the public point and the thumbprint that names it everywhere.
//! Does not own where a key is kept, nor what is signed with it.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING,
    ECDSA_P521_SHA512_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, ParsedPublicKey,
};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

/// An uncompressed point: 04, then x and y of 32 bytes each.
pub const POINT_LENGTH: usize = 65;

const COORDINATE_LENGTH: usize = 32;
const THUMBPRINT_LENGTH: usize = 43;
/// Everything of a P-256 SubjectPublicKeyInfo that comes before the point.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, // two sequences: the whole, then the algorithm
    0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, // id-ecPublicKey
    0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, // prime256v1
    0x03, 0x42, 0x00, // the point as a bit string without unused bits
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("private key: none in the PEM text; give one block PRIVATE KEY (PKCS#8) or EC PRIVATE KEY")]
    Absent,
    #[error("private key: the PEM text is damaged; write the file again")]
    DamagedPem,
    #[error("private key: cannot be encoded")]
    Encoding,
    #[error("private key: the system could not generate one")]
    Generation,
    #[error("public key: {found} bytes are not an uncompressed P-256 point, which has 65 and begins with 04")]
    NotAPoint { found: usize },
    #[error("private key: {found}; only ECDSA P-256 is accepted")]
    NotP256 { found: &'static str },
    #[error("public key: not encoded as a plain P-256 SubjectPublicKeyInfo with an uncompressed point")]
    NotP256Spki,
    #[error("thumbprint: not 43 characters of base64url")]
    NotAThumbprint,
    #[error("public key: the point does not lie on the curve P-256")]
    OffCurve,
    #[error("private key: {found} keys in the PEM text; exactly one is needed")]
    Several { found: usize },
    #[error("private key: signing failed")]
    Signing,
}

/// The private half. Its bytes leave it only through `to_pem` and `pkcs8_der`, and are wiped.
pub struct PrivateKey {
    pair: EcdsaKeyPair,
    pkcs8: Zeroizing<Vec<u8>>,
    public: PublicKey,
}

impl PrivateKey {
    pub fn generate() -> Result<Self, KeyError> {
        Self::from_pair(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| KeyError::Generation)?)
    }

    /// Reads PKCS#8 or SEC1. Certificates beside the key are passed over, because a pair is kept in
    /// one file; a second key is refused, because nobody could tell which one is meant.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let mut keys = PrivateKeyDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| KeyError::DamagedPem)?;
        let found = keys.len();
        match (keys.pop(), found) {
            (Some(key), 1) => Self::from_der(&Zeroizing::new(key.secret_der().to_vec())),
            (None, _) => Err(KeyError::Absent),
            (Some(_), _) => Err(KeyError::Several { found }),
        }
    }

    /// PKCS#8 as PEM with 64 columns, LF and a trailing newline.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(BASE64_STANDARD.encode(&*self.pkcs8));
        // Reserved at once: a string that grows leaves copies of the key behind.
        let mut pem = Zeroizing::new(String::with_capacity(2 * body.len() + 128));
        pem.push_str("-----BEGIN PRIVATE KEY-----\n");
        for (index, character) in body.chars().enumerate() {
            if index > 0 && index % 64 == 0 {
                pem.push('\n');
            }
            pem.push(character);
        }
        pem.push_str("\n-----END PRIVATE KEY-----\n");
        pem
    }

    pub fn pkcs8_der(&self) -> &[u8] {
        &self.pkcs8
    }

    pub fn public(&self) -> PublicKey {
        self.public.clone()
    }

    /// ECDSA with SHA-256; the signature as a DER ECDSA-Sig-Value.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self
            .pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| KeyError::Signing)?;
        Ok(signature.as_ref().to_vec())
    }

    /// The private number alone, as HPKE wants it: for what is sealed to this machine's key.
    pub(crate) fn scalar(&self) -> Result<Zeroizing<Vec<u8>>, KeyError> {
        let scalar: EcPrivateKeyBin<'_> = self.pair.private_key().as_be_bytes().map_err(|_| KeyError::Encoding)?;
        Ok(Zeroizing::new(scalar.as_ref().to_vec()))
    }

    fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        let is = |algorithm: &'static EcdsaSigningAlgorithm| EcdsaKeyPair::from_private_key_der(algorithm, der);
        match is(&ECDSA_P256_SHA256_ASN1_SIGNING) {
            Ok(pair) => Self::from_pair(pair),
            Err(_) if is(&ECDSA_P384_SHA384_ASN1_SIGNING).is_ok() => Err(KeyError::NotP256 { found: "ECDSA P-384" }),
            Err(_) if is(&ECDSA_P521_SHA512_ASN1_SIGNING).is_ok() => Err(KeyError::NotP256 { found: "ECDSA P-521" }),
            Err(_) => Err(KeyError::NotP256 {
                found: "another kind of key, or a damaged one",
            }),
        }
    }

    fn from_pair(pair: EcdsaKeyPair) -> Result<Self, KeyError> {
        let public = PublicKey::from_point(pair.public_key().as_ref())?;
        let document = pair.to_pkcs8v1().map_err(|_| KeyError::Encoding)?;
        let pkcs8 = Zeroizing::new(document.as_ref().to_vec());
        Ok(Self { pair, pkcs8, public })
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PrivateKey({})", self.public.thumbprint())
    }
}

/// A point that is known to lie on P-256: it cannot be made in another way.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; POINT_LENGTH]);

impl PublicKey {
    pub fn from_point(bytes: &[u8]) -> Result<Self, KeyError> {
        let not_a_point = KeyError::NotAPoint { found: bytes.len() };
        // The library would also take compressed points and a whole SubjectPublicKeyInfo.
        let point: [u8; POINT_LENGTH] = match bytes.try_into() {
            Ok(point) if bytes.first() == Some(&0x04) => point,
            _ => return Err(not_a_point),
        };
        ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point).map_err(|_| KeyError::OffCurve)?;
        Ok(Self(point))
    }

    /// One encoding only: id-ecPublicKey, the named curve, an uncompressed point, nothing behind it.
    pub fn from_spki_der(der: &[u8]) -> Result<Self, KeyError> {
        let point = der.strip_prefix(&SPKI_PREFIX).ok_or(KeyError::NotP256Spki)?;
        if point.len() != POINT_LENGTH {
            return Err(KeyError::NotP256Spki);
        }
        Self::from_point(point)
    }

    pub fn point(&self) -> &[u8; POINT_LENGTH] {
        &self.0
    }

    pub fn spki_der(&self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.0[..]].concat()
    }

    /// x and y in base64url, as a JWK carries them.
    pub fn coordinates(&self) -> (String, String) {
        let (x, y) = self.0[1..].split_at(COORDINATE_LENGTH);
        (BASE64_URL_SAFE_NO_PAD.encode(x), BASE64_URL_SAFE_NO_PAD.encode(y))
    }

    /// RFC 7638 with SHA-256: the required members of the JWK in alphabetical order, no white space.
    pub fn thumbprint(&self) -> Thumbprint {
        let (x, y) = self.coordinates();
        let jwk = format!(r#"{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}"#);
        Thumbprint(BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, jwk.as_bytes())))
    }

    /// Whether `signature` (a DER ECDSA-Sig-Value) was made over `message` by this key.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, self.0)
            .is_ok_and(|key| key.verify_sig(message, signature).is_ok())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({})", self.thumbprint())
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| KeyError::NotAPoint {
            found: text.len() * 3 / 4,
        })?;
        Self::from_point(&bytes)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The name of a key: 43 characters of base64url.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Thumbprint(String);

impl Thumbprint {
    /// Takes exactly one spelling: a last character with bits that no hash can set is refused, so
    /// two texts that differ never name the same key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let fits =
            text.len() == THUMBPRINT_LENGTH && BASE64_URL_SAFE_NO_PAD.decode(text).is_ok_and(|hash| hash.len() == 32);
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(KeyError::NotAThumbprint)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Thumbprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Thumbprint {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::parse(text)
    }
}

impl Serialize for Thumbprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Thumbprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
