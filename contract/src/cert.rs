//! A certificate that was issued to a firewall, read the same way by both programs.
//! Owns what such a certificate says; who signed it and whether it is in force is asked elsewhere.

use jiff::{SignedDuration, Timestamp};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

use crate::key::{KeyError, PublicKey};
use crate::names::{FirewallName, NameError, ORGANIZATION, USER_PREFIX};

/// A chain of a certificate and its issuers has a few KiB.
const CHAIN_MAX: usize = 64 * 1024;
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("certificate: no PEM block CERTIFICATE in the text")]
    Absent,
    #[error("certificate: damaged, {what} cannot be read")]
    Damaged { what: &'static str },
    #[error("certificate: {0}")]
    Key(#[from] KeyError),
    #[error("certificate: {0}")]
    Name(#[from] NameError),
    #[error("certificate: its subject is {found}; a firewall's is O={ORGANIZATION}, then CN={USER_PREFIX}<firewall>")]
    Subject { found: String },
    #[error("certificate: {found} bytes of text, {CHAIN_MAX} at most")]
    TooLarge { found: usize },
}

/// What the certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// As hexadecimal digits, without separators.
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub firewall: FirewallName,
    pub key: PublicKey,
    /// The issuer's distinguished name as text, for people.
    pub issuer: String,
    /// As hexadecimal digits: which of the authority's keys signed.
    pub authority_key_id: Option<String>,
    /// Whether it may be used to log in.
    pub client_auth: bool,
}

/// Reads the first certificate of a PEM chain: that is the one a client shows.
pub fn read_certificate(pem: &str) -> Result<Issued, CertificateError> {
    let der = first(pem)?;
    issued(&parse(&der)?)
}

/// From when until when the first certificate of a PEM chain is good, whoever's it is.
pub fn validity(pem: &str) -> Result<(Timestamp, Timestamp), CertificateError> {
    let der = first(pem)?;
    let certificate = parse(&der)?;
    let validity = certificate.validity();
    Ok((timestamp(validity.not_before)?, timestamp(validity.not_after)?))
}

fn first(pem: &str) -> Result<CertificateDer<'static>, CertificateError> {
    if pem.len() > CHAIN_MAX {
        return Err(CertificateError::TooLarge { found: pem.len() });
    }
    match CertificateDer::pem_slice_iter(pem.as_bytes()).next() {
        Some(Ok(der)) => Ok(der),
        Some(Err(_)) => Err(CertificateError::Damaged { what: "its PEM text" }),
        None => Err(CertificateError::Absent),
    }
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateError::Damaged {
        what: "its DER encoding",
    })?;
    if rest.is_empty() {
        Ok(certificate)
    } else {
        Err(CertificateError::Damaged {
            what: "what follows its end",
        })
    }
}

fn issued(certificate: &X509Certificate<'_>) -> Result<Issued, CertificateError> {
    let authority_key_id = certificate
        .extensions()
        .iter()
        .find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(identifier) => identifier.key_identifier.as_ref(),
            _ => None,
        });
    let usage = certificate
        .extended_key_usage()
        .map_err(|_| CertificateError::Damaged {
            what: "its extended key usage",
        })?;
    Ok(Issued {
        serial: hex(certificate.raw_serial()),
        not_before: timestamp(certificate.validity().not_before)?,
        not_after: timestamp(certificate.validity().not_after)?,
        firewall: firewall(certificate.subject())?,
        key: PublicKey::from_spki_der(certificate.public_key().raw)?,
        issuer: certificate.issuer().to_string(),
        authority_key_id: authority_key_id.map(|identifier| hex(identifier.0)),
        client_auth: usage.is_some_and(|usage| usage.value.client_auth),
    })
}

/// Every part of the subject counts: of two common names, an API server takes the last one.
fn firewall(subject: &X509Name<'_>) -> Result<FirewallName, CertificateError> {
    let found = || CertificateError::Subject {
        found: shown(&subject.to_string()),
    };
    let mut attributes = subject.iter_attributes();
    let (Some(organization), Some(name), None) = (attributes.next(), attributes.next(), attributes.next()) else {
        return Err(found());
    };
    let ours = *organization.attr_type() == OID_X509_ORGANIZATION_NAME
        && *name.attr_type() == OID_X509_COMMON_NAME
        && organization
            .as_str()
            .is_ok_and(|organization| organization == ORGANIZATION);
    let firewall = name
        .as_str()
        .ok()
        .and_then(|name| name.strip_prefix(USER_PREFIX))
        .filter(|_| ours);
    Ok(FirewallName::parse(firewall.ok_or_else(found)?)?)
}

fn timestamp(time: ASN1Time) -> Result<Timestamp, CertificateError> {
    Timestamp::from_second(time.timestamp()).map_err(|_| CertificateError::Damaged { what: "its validity" })
}

/// From when on a certificate's life counts, for whoever renews at a part of it. Kubernetes' signer backdates by five
/// minutes, which is most of a very short one.
pub fn counts_from(not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    match not_before.checked_add(BACKDATED) {
        Ok(shifted) if shifted.duration_until(not_after) >= BACKDATED / 10 => shifted,
        _ => not_before,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn shown(text: &str) -> String {
    text.escape_debug().take(160).collect()
}

#[cfg(test)]
mod tests;
