//! A certificate request that is accepted is, to the byte, the one that its name, its key and its signature make.
//!
//! The signature is the one free part: with (r, s) also (r, n - s) verifies. So whoever sees a request can make a second
//! one with other bytes and another object name, and the same name and key in it; a certificate for it is of use only to
//! the holder of the key, and the agent takes none but that of its own bytes.

use contract::csr::{Csr, CsrError, REQUEST_MAX, claims_our_names, is_canary, object_name, read};
use contract::digest::sha256_hex;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::{is_fit_for_a_log, key, other_half, split};
use crate::support::{CN, O, ORGANIZATION, UTF8, ecdsa_sha256, p256_spki, pem, rdn, seq, tlv};

/// The request that an input of the fuzzer stands for: text as it is; DER in a PEM block; or a request info, signed.
pub fn request(input: &[u8]) -> Vec<u8> {
    match split(input) {
        (mode, text) if mode % 3 == 0 => text.to_vec(),
        (mode, der) if mode % 3 == 1 => pem(der).into_bytes(),
        (_, info) => pem(&signed(info)).into_bytes(),
    }
}

pub fn signed(info: &[u8]) -> Vec<u8> {
    let signature = key().sign(info).unwrap();
    seq(&[info, &ecdsa_sha256(), &tlv(3, &[&[0], &signature[..]].concat())])
}

/// Subject and request info, as another writer than ours makes them.
pub fn subject(csr: &Csr) -> Vec<u8> {
    let name = format!("fw.metal-stack.io:{}", csr.firewall);
    seq(&[&rdn(O, UTF8, ORGANIZATION.as_bytes()), &rdn(CN, UTF8, name.as_bytes())])
}

pub fn info(csr: &Csr) -> Vec<u8> {
    seq(&[
        &tlv(2, &[0]),
        &subject(csr),
        &p256_spki(csr.key.point()),
        &tlv(0xa0, &[]),
    ])
}

/// Gives what the reader made of it.
pub fn check(request: &[u8]) -> Result<Csr, CsrError> {
    let verdict = read(request);
    assert_eq!(verdict, read(request));
    let claims = claims_our_names(request);
    assert!(!is_canary(request) || verdict.is_err());
    match &verdict {
        Err(error) => is_fit_for_a_log(error),
        Ok(csr) => {
            assert!(request.len() <= REQUEST_MAX && claims);
            let text = str::from_utf8(request).unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(request).unwrap();
            let (rest, other) = X509CertificationRequest::from_der(&block.contents).unwrap();
            assert!(rest.is_empty());
            other.verify_signature().unwrap();
            let bits = [&[0], &*other.signature_value.data].concat();
            let der = seq(&[&info(csr), &ecdsa_sha256(), &tlv(3, &bits)]);
            assert_eq!(pem(&der), text);
            assert_eq!(
                object_name(text).unwrap(),
                format!("firewall-{}", &sha256_hex(&der)[..40])
            );
        }
    }
    verdict
}

/// A good request with the other signature that verifies over the same bytes.
pub fn with_the_other_signature(der: &[u8]) -> Vec<u8> {
    let (_, request) = X509CertificationRequest::from_der(der).unwrap();
    let info = request.certification_request_info.raw;
    let signature = &request.signature_value.data;
    let (r, s) = signature[2..].split_at(2 + usize::from(signature[3]));
    let digits: Vec<u8> = s[2..].iter().copied().skip_while(|&byte| byte == 0).collect();
    let mut number = [0; 32];
    number[32 - digits.len()..].copy_from_slice(&digits);
    let mut other: Vec<u8> = other_half(number).into_iter().skip_while(|&byte| byte == 0).collect();
    if other[0] >= 0x80 {
        other.insert(0, 0);
    }
    let signature = seq(&[r, &tlv(2, &other)]);
    seq(&[info, &ecdsa_sha256(), &tlv(3, &[&[0], &signature[..]].concat())])
}
