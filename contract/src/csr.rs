//! A firewall's certificate request (PKCS#10): written, named, and read back strictly.
//! A request of ours is completely determined by the firewall's name and its public point, so the
//! reader takes those two out, builds the request again and compares bytes: nothing can hide in it.
//! Who may have it signed is decided elsewhere.

mod der;
mod pem;
mod read;

use crate::digest::sha256_hex;
use crate::key::{KeyError, PrivateKey, PublicKey};
use crate::names::{CANARY_USER, FirewallName, NameError, ORGANIZATION, USER_PREFIX};
use jiff::SignedDuration;

use der::{BIT_STRING, CONTEXT_0, INTEGER, OID, SEQUENCE, SET, UTF8_STRING, element};

/// Ours have some 600 bytes. What is larger is not looked at.
pub const REQUEST_MAX: usize = 4096;
/// A request that nobody has decided after this time is given up by its agent, who makes another.
pub const GIVEN_UP: SignedDuration = SignedDuration::from_mins(15);

const ORGANIZATION_OID: [u8; 3] = [0x55, 0x04, 0x0a];
const COMMON_NAME_OID: [u8; 3] = [0x55, 0x04, 0x03];
/// AlgorithmIdentifier of ecdsa-with-SHA256, without parameters.
const SIGNATURE_ALGORITHM: [u8; 12] = [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

/// What a well-formed request says, and all it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Csr {
    pub firewall: FirewallName,
    pub key: PublicKey,
}

/// Why a request is not one of ours. Texts from the request are cut short and escaped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    #[error("certificate request: carries attributes ({found}); none is allowed")]
    Attributes { found: String },
    #[error("certificate request: its signature was not made with the key it carries")]
    BadSelfSignature,
    #[error("certificate request: asks for extensions ({found}); none is allowed")]
    Extensions { found: String },
    #[error("certificate request: {0}")]
    Key(#[from] KeyError),
    #[error("certificate request: its key is {found}; only ECDSA P-256 is accepted")]
    KeyType { found: String },
    #[error("certificate request: text stands before the PEM block")]
    LeadingText,
    #[error("certificate request: {0}")]
    Name(#[from] NameError),
    #[error("certificate request: differs from the only accepted encoding at byte {offset}")]
    NotCanonical { offset: usize },
    #[error("certificate request: {what} is not a DER encoding of what belongs there")]
    NotDer { what: &'static str },
    #[error("certificate request: not a PEM block CERTIFICATE REQUEST")]
    NotPem,
    #[error("certificate request: the PEM block carries headers")]
    PemHeaders,
    #[error("certificate request: the PEM block is a {found}, not a CERTIFICATE REQUEST")]
    PemLabel { found: String },
    #[error("certificate request: the PEM text differs at byte {offset} from 64 columns, LF and a newline at the end")]
    PemNotCanonical { offset: usize },
    #[error("certificate request: more than one PEM block")]
    SeveralPemBlocks,
    #[error("certificate request: its signature is not a DER ECDSA signature")]
    Signature,
    #[error("certificate request: signed with {found}; only ecdsa-with-SHA256 without parameters is accepted")]
    SignatureAlgorithm { found: String },
    #[error(
        "certificate request: its subject is {found}; it has to be O={ORGANIZATION}, then CN={USER_PREFIX}<firewall>"
    )]
    Subject { found: String },
    #[error("certificate request: its subject is encoded as {found}; both parts have to be UTF8String")]
    SubjectEncoding { found: String },
    #[error("certificate request: {found} bytes, {REQUEST_MAX} at most")]
    TooLarge { found: usize },
    #[error("certificate request: bytes follow behind its end")]
    TrailingDer,
    #[error("certificate request: text follows behind the PEM block")]
    TrailingPem,
    #[error("certificate request: its version is not 0, the only one PKCS#10 knows")]
    Version,
}

/// A fresh request as PEM. ECDSA is randomised: two calls give two requests, and two object names.
pub fn write(name: &FirewallName, key: &PrivateKey) -> Result<String, CsrError> {
    sign(&info(&subject(name), &key.public()), key)
}

/// A request for the approver's own canary: a user without any group, so without any rights.
pub fn write_canary(key: &PrivateKey) -> Result<String, CsrError> {
    sign(&info(&canary_subject(), &key.public()), key)
}

/// Whether a request is for the canary, by its subject alone: nobody is harmed by one, so no more is looked at.
pub fn is_canary(request: &[u8]) -> bool {
    let der = check_size(request).and_then(|()| pem::decode(request));
    der.is_ok_and(|der| read::has_subject(&der, &canary_subject()))
}

/// The name of the CertificateSigningRequest object that carries this request, and no other one.
pub fn object_name(pem: &str) -> Result<String, CsrError> {
    check_size(pem.as_bytes())?;
    let hash = sha256_hex(&pem::decode(pem.as_bytes())?);
    Ok(format!("firewall-{}", &hash[..40]))
}

/// Reads a request that anybody may have sent. What it returns is the whole content of the request.
pub fn read(request: &[u8]) -> Result<Csr, CsrError> {
    check_size(request)?;
    let der = pem::decode(request)?;
    let parts = read::parts(&der)?;
    let info = info(&subject(&parts.firewall), &parts.key);
    let canonical = assemble(&info, parts.signature);
    if der != canonical {
        let offset = der
            .iter()
            .zip(&canonical)
            .take_while(|(found, wanted)| found == wanted)
            .count();
        return Err(CsrError::NotCanonical { offset });
    }
    if !parts.key.verifies(&info, parts.signature) {
        return Err(CsrError::BadSelfSignature);
    }
    Ok(Csr {
        firewall: parts.firewall,
        key: parts.key,
    })
}

/// Whether a name of ours stands in it, in any encoding and place.
/// Lenient on purpose: it raises an alarm about somebody else's request and decides nothing.
pub fn claims_our_names(request: &[u8]) -> bool {
    read::claims(request)
}

/// CertificationRequestInfo: version 0, the subject, the key, and an empty set of attributes.
fn info(subject: &[u8], key: &PublicKey) -> Vec<u8> {
    element(
        SEQUENCE,
        &[
            &element(INTEGER, &[&[0]]),
            subject,
            &key.spki_der(),
            &element(CONTEXT_0, &[]),
        ],
    )
}

fn subject(name: &FirewallName) -> Vec<u8> {
    let organization = rdn(&ORGANIZATION_OID, ORGANIZATION);
    element(SEQUENCE, &[&organization, &rdn(&COMMON_NAME_OID, &name.user())])
}

fn canary_subject() -> Vec<u8> {
    element(SEQUENCE, &[&rdn(&COMMON_NAME_OID, CANARY_USER)])
}

fn rdn(kind: &[u8], value: &str) -> Vec<u8> {
    let attribute = element(
        SEQUENCE,
        &[&element(OID, &[kind]), &element(UTF8_STRING, &[value.as_bytes()])],
    );
    element(SET, &[&attribute])
}

fn sign(info: &[u8], key: &PrivateKey) -> Result<String, CsrError> {
    let signature = key.sign(info)?;
    Ok(pem::encode(&assemble(info, &signature)))
}

fn assemble(info: &[u8], signature: &[u8]) -> Vec<u8> {
    element(
        SEQUENCE,
        &[info, &SIGNATURE_ALGORITHM, &element(BIT_STRING, &[&[0], signature])],
    )
}

fn check_size(request: &[u8]) -> Result<(), CsrError> {
    if request.len() > REQUEST_MAX {
        Err(CsrError::TooLarge { found: request.len() })
    } else {
        Ok(())
    }
}

/// A stranger's text, fit for a log line and an event: escaped, and never long.
fn shown(text: &str) -> String {
    const MAX: usize = 120;
    let mut escaped: String = text.escape_debug().take(MAX + 1).collect();
    if escaped.chars().count() > MAX {
        escaped = escaped.chars().take(MAX).collect();
        escaped.push('…');
    }
    escaped
}

#[cfg(test)]
mod tests;
