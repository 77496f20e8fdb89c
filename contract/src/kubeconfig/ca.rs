//! The certificates that a server is checked against. Never empty, never garbage: a client that is
//! given such a list would fail much later, or fall back to whatever the machine trusts.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// More than a roll of an authority ever needs.
const CERTIFICATES_MAX: usize = 16;

#[derive(Clone, PartialEq, Eq)]
pub struct CaBundle {
    pem: String,
    certificates: Vec<CertificateDer<'static>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CaError {
    #[error("holds no certificate; put the server's CA there")]
    Empty,
    #[error("certificate {number} is damaged; write the CA again")]
    Damaged { number: usize },
    #[error("is not base64 of PEM text")]
    NotBase64,
    #[error("is not clean PEM text; write the CA again")]
    NotPem,
    #[error("holds something that is no certificate; only blocks CERTIFICATE belong there")]
    Other,
    #[error("holds more than {CERTIFICATES_MAX} certificates")]
    TooMany,
}

impl CaBundle {
    pub fn from_pem(pem: &str) -> Result<Self, CaError> {
        let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| CaError::NotPem)?;
        if pem.matches("-----BEGIN ").count() != certificates.len() {
            return Err(CaError::Other);
        }
        match certificates.len() {
            0 => return Err(CaError::Empty),
            1..=CERTIFICATES_MAX => {}
            _ => return Err(CaError::TooMany),
        }
        for (index, der) in certificates.iter().enumerate() {
            if !X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty()) {
                return Err(CaError::Damaged { number: index + 1 });
            }
        }
        Ok(Self {
            pem: certificates.iter().map(|der| block(der)).collect(),
            certificates,
        })
    }

    /// As it stands in `certificate-authority-data`.
    pub fn from_base64(data: &str) -> Result<Self, CaError> {
        let text = BASE64_STANDARD
            .decode(data.trim_ascii())
            .map_err(|_| CaError::NotBase64)?;
        Self::from_pem(str::from_utf8(&text).map_err(|_| CaError::NotBase64)?)
    }

    /// The certificates alone, in their order, with 64 columns and LF: equal bundles have equal texts.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn to_base64(&self) -> String {
        BASE64_STANDARD.encode(&self.pem)
    }

    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }
}

impl fmt::Debug for CaBundle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "CaBundle({} certificates)", self.certificates.len())
    }
}

fn block(der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for (index, character) in body.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push_str("\n-----END CERTIFICATE-----\n");
    text
}
