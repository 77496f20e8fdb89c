//! Which key issued a certificate. Owns the authorities that were seen, and the name of an issuer: the SHA-256 of the
//! public key that verifies the signature. A CA and its successor often have one name; they never have one key.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::digest::sha256_hex;

/// More than a seed sees in its life: whoever writes the bundle must not grow us.
const KNOWN_MAX: usize = 64;

/// The authorities that were seen so far.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Vec<Authority>);

#[derive(Clone, Debug)]
struct Authority {
    key: String,
    der: CertificateDer<'static>,
}

impl Authorities {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes up those of a PEM bundle that were not seen yet, and says whether there were any. What cannot be read is
    /// passed over: another entry may be the one that matters.
    pub fn learn(&mut self, bundle: &str) -> bool {
        let mut news = false;
        for der in CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten() {
            let Some(key) = key_of(&der) else { continue };
            if self.0.iter().any(|known| known.key == key) {
                continue;
            }
            if self.0.len() == KNOWN_MAX {
                self.0.remove(0);
            }
            self.0.push(Authority { key, der });
            news = true;
        }
        news
    }

    /// The issuer of the first certificate of a PEM chain, if it is one of those that were seen.
    pub fn issuer_of(&self, pem: &str) -> Option<String> {
        let der = CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()?;
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        // The newest first: it is the likeliest.
        let issuer = self.0.iter().rev().find(|authority| {
            X509Certificate::from_der(&authority.der)
                .is_ok_and(|(_, ca)| certificate.verify_signature(Some(ca.public_key())).is_ok())
        })?;
        Some(issuer.key.clone())
    }
}

fn key_of(der: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(sha256_hex(certificate.public_key().raw))
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
        PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm,
    };

    use super::*;

    fn ca(kind: &'static SignatureAlgorithm) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "client-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate_for(kind).unwrap()).unwrap()
    }

    fn issue(ca: &CertifiedIssuer<'static, KeyPair>) -> String {
        let key = KeyPair::generate().unwrap();
        CertificateParams::default().signed_by(&key, ca).unwrap().pem()
    }

    #[test]
    fn b2_two_authorities_of_one_name_are_told_apart_by_their_keys() {
        let all = [&rcgen::PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519].map(ca);
        let mut known = Authorities::default();
        let bundle: String = all.iter().map(|ca| ca.pem()).collect();
        assert!(known.learn(&bundle) && !known.learn(&bundle), "learnt once");
        let issuers: Vec<_> = all.iter().map(|ca| known.issuer_of(&issue(ca)).unwrap()).collect();
        assert_eq!(issuers.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert!(issuers.iter().all(|issuer| issuer.len() == 64));
        // Of the same name and unknown.
        assert_eq!(known.issuer_of(&issue(&ca(&PKCS_ED25519))), None);
    }

    #[test]
    fn b2_what_left_the_bundle_stays_known_and_what_cannot_be_read_is_passed_over() {
        let (old, new) = (ca(&PKCS_ED25519), ca(&PKCS_ED25519));
        let mut known = Authorities::default();
        known.learn(&old.pem());
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert!(!known.learn(garbage) && !known.learn(""));
        assert!(known.learn(&format!("{garbage}{}", new.pem())));
        assert!(known.issuer_of(&issue(&old)).is_some() && known.issuer_of(&issue(&new)).is_some());
        assert_eq!(known.issuer_of("x"), None);
        for _ in 0..KNOWN_MAX {
            known.learn(&ca(&PKCS_ED25519).pem());
        }
        assert_eq!(known.0.len(), KNOWN_MAX);
    }
}
