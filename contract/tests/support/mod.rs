//! Builds certificate requests with one thing wrong in each, independently of the code under test.
//! Every request is signed after it was spoilt, so that only the one fault can refuse it.

use aws_lc_rs::encoding::{AsBigEndian, EcPublicKeyCompressedBin};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{KeyPair, PublicKeyData, SigningKey};

pub(crate) mod requests;

pub(crate) const UTF8: u8 = 0x0c;
pub(crate) const PRINTABLE: u8 = 0x13;
pub(crate) const TELETEX: u8 = 0x14;
pub(crate) const BMP: u8 = 0x1e;
pub(crate) const ORGANIZATION: &str = "fw.metal-stack.io:firewalls";
pub(crate) const NAME: &str = "fw.metal-stack.io:shoot--project--cluster-firewall-0a1b2";
pub(crate) const O: &[u8] = &[0x55, 0x04, 0x0a];
pub(crate) const CN: &[u8] = &[0x55, 0x04, 0x03];
pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
pub(crate) const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
pub(crate) const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
pub(crate) const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
pub(crate) const CHALLENGE_PASSWORD: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07];

/// Makes the signature over a request info.
type Signer = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// A request in pieces; `der` puts them together and signs.
pub(crate) struct Request {
    pub(crate) version: u8,
    pub(crate) subject: Vec<u8>,
    pub(crate) spki: Vec<u8>,
    pub(crate) attributes: Vec<u8>,
    pub(crate) algorithm: Vec<u8>,
    pub(crate) unused_bits: u8,
    pub(crate) signer: Signer,
}

impl Request {
    /// What the machine would send.
    pub(crate) fn good() -> Self {
        Self::with_key(KeyPair::generate().unwrap(), ecdsa_sha256())
    }

    pub(crate) fn with_key(key: KeyPair, algorithm: Vec<u8>) -> Self {
        Self {
            version: 0,
            subject: seq(&[&rdn(O, UTF8, ORGANIZATION.as_bytes()), &rdn(CN, UTF8, NAME.as_bytes())]),
            spki: key.subject_public_key_info(),
            attributes: tlv(0xa0, &[]),
            algorithm,
            unused_bits: 0,
            signer: Box::new(move |message| key.sign(message).unwrap()),
        }
    }

    pub(crate) fn subject(mut self, rdns: &[Vec<u8>]) -> Self {
        self.subject = tlv(0x30, &rdns.concat());
        self
    }

    pub(crate) fn attributes(mut self, attributes: &[Vec<u8>]) -> Self {
        self.attributes = tlv(0xa0, &attributes.concat());
        self
    }

    pub(crate) fn info(&self) -> Vec<u8> {
        seq(&[&tlv(2, &[self.version]), &self.subject, &self.spki, &self.attributes])
    }

    pub(crate) fn der(&self) -> Vec<u8> {
        self.der_over(&self.info())
    }

    pub(crate) fn der_over(&self, info: &[u8]) -> Vec<u8> {
        let mut bits = vec![self.unused_bits];
        bits.extend((self.signer)(info));
        seq(&[info, &self.algorithm, &tlv(3, &bits)])
    }
}

pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match content.len() {
        length @ 0..128 => out.push(length as u8),
        length @ 128..256 => out.extend([0x81, length as u8]),
        length => out.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    out.extend(content);
    out
}

pub(crate) fn seq(parts: &[&[u8]]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

pub(crate) fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    seq(&[&tlv(6, kind), &tlv(tag, value)])
}

pub(crate) fn rdn(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    tlv(0x31, &attribute(kind, tag, value))
}

pub(crate) fn ecdsa_sha256() -> Vec<u8> {
    seq(&[&tlv(6, ECDSA_SHA256)])
}

/// An extensionRequest with these (OID, DER value) extensions.
pub(crate) fn extension_request(extensions: &[(&[u8], Vec<u8>)]) -> Vec<u8> {
    let list: Vec<u8> = extensions
        .iter()
        .flat_map(|(kind, value)| seq(&[&tlv(6, kind), &tlv(4, value)]))
        .collect();
    seq(&[&tlv(6, EXTENSION_REQUEST), &tlv(0x31, &tlv(0x30, &list))])
}

pub(crate) fn key_usage() -> (&'static [u8], Vec<u8>) {
    (&[0x55, 0x1d, 0x0f], tlv(3, &[7, 0x80]))
}

/// A subjectAltName with one general name.
pub(crate) fn san(general_name: &[u8]) -> (&'static [u8], Vec<u8>) {
    (&[0x55, 0x1d, 0x11], tlv(0x30, general_name))
}

pub(crate) fn pem(der: &[u8]) -> String {
    pem_with(der, 64, "\n")
}

pub(crate) fn pem_with(der: &[u8], columns: usize, newline: &str) -> String {
    let body = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(columns)
        .map(|line| str::from_utf8(line).unwrap())
        .collect();
    let lines = lines.join(newline);
    format!("-----BEGIN CERTIFICATE REQUEST-----{newline}{lines}{newline}-----END CERTIFICATE REQUEST-----{newline}")
}

/// A P-256 key in another encoding of its point, with a signer that belongs to it.
pub(crate) fn p256_as(encode: impl Fn(&EcdsaKeyPair, &[u8]) -> Vec<u8>) -> Request {
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let point = pair.public_key().as_ref().to_vec();
    let mut request = Request::good();
    request.spki = encode(&pair, &point);
    request.signer = Box::new(move |message| {
        pair.sign(&aws_lc_rs::rand::SystemRandom::new(), message)
            .unwrap()
            .as_ref()
            .to_vec()
    });
    request
}

pub(crate) fn p256_spki(point: &[u8]) -> Vec<u8> {
    let bits = [&[0], point].concat();
    seq(&[&seq(&[&tlv(6, EC_PUBLIC_KEY), &tlv(6, PRIME256V1)]), &tlv(3, &bits)])
}

pub(crate) fn compressed(pair: &EcdsaKeyPair) -> Vec<u8> {
    let compressed: EcPublicKeyCompressedBin<'_> = pair.public_key().as_be_bytes().unwrap();
    compressed.as_ref().to_vec()
}

/// The curve P-256 spelled out instead of named: a reader that takes it can be given a curve on
/// which anybody can sign (CVE-2020-0601).
pub(crate) fn explicit_curve_spki(point: &[u8]) -> Vec<u8> {
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    };
    let p = hex("00ffffffff00000001000000000000000000000000ffffffffffffffffffffffff");
    let a = hex("ffffffff00000001000000000000000000000000fffffffffffffffffffffffc");
    let b = hex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b");
    let g = hex(concat!(
        "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296",
        "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
    ));
    let n = hex("00ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551");
    let prime_field = seq(&[&tlv(6, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x01, 0x01]), &tlv(2, &p)]);
    let curve = seq(&[&tlv(4, &a), &tlv(4, &b)]);
    let parameters = seq(&[
        &tlv(2, &[1]),
        &prime_field,
        &curve,
        &tlv(4, &g),
        &tlv(2, &n),
        &tlv(2, &[1]),
    ]);
    let bits = [&[0], point].concat();
    seq(&[&seq(&[&tlv(6, EC_PUBLIC_KEY), &parameters]), &tlv(3, &bits)])
}
