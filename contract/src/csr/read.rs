//! Takes a request apart, step by step, so that a refusal says what is wrong with it.
//! What comes out here is trusted only after the caller has built the request again from it.

use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::der::{BIT_STRING, CONTEXT_0, Der, INTEGER, OID, SEQUENCE, SET, UTF8_STRING, oid_text};
use super::{COMMON_NAME_OID, CsrError, ORGANIZATION, ORGANIZATION_OID, SIGNATURE_ALGORITHM, USER_PREFIX, shown};
use crate::key::{KeyError, PublicKey};
use crate::names::FirewallName;

const EC_PUBLIC_KEY: [u8; 7] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// PKCS#9 extensionRequest.
const EXTENSION_REQUEST: [u8; 9] = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
const BMP_STRING: u8 = 0x1e;
/// How many attributes or extensions a message names.
const NAMED_MAX: usize = 8;

pub(super) struct Parts<'a> {
    pub(super) firewall: FirewallName,
    pub(super) key: PublicKey,
    pub(super) signature: &'a [u8],
}

pub(super) fn parts(der: &[u8]) -> Result<Parts<'_>, CsrError> {
    let mut outermost = Der(der);
    let mut request = Der(outermost
        .expect(SEQUENCE)
        .ok_or(CsrError::NotDer { what: "the whole" })?);
    if !outermost.is_empty() {
        return Err(CsrError::TrailingDer);
    }

    let mut info = Der(request.expect(SEQUENCE).ok_or(CsrError::NotDer {
        what: "the request info",
    })?);
    let version = info.expect(INTEGER).ok_or(CsrError::NotDer { what: "the version" })?;
    if version != [0] {
        return Err(CsrError::Version);
    }
    let firewall = subject(info.expect(SEQUENCE).ok_or(CsrError::NotDer { what: "the subject" })?)?;
    let spki = info
        .next()
        .filter(|spki| spki.tag == SEQUENCE)
        .ok_or(CsrError::NotDer { what: "the public key" })?;
    let key = key(spki.whole, spki.content)?;
    attributes(info.expect(CONTEXT_0).ok_or(CsrError::NotDer {
        what: "the set of attributes",
    })?)?;
    if !info.is_empty() {
        return Err(CsrError::NotDer {
            what: "the end of the request info",
        });
    }

    let algorithm = request
        .next()
        .filter(|algorithm| algorithm.tag == SEQUENCE)
        .ok_or(CsrError::NotDer {
            what: "the signature algorithm",
        })?;
    if algorithm.whole != SIGNATURE_ALGORITHM {
        let mut content = Der(algorithm.content);
        let name = content
            .expect(OID)
            .map_or_else(|| "no algorithm".to_owned(), algorithm_text);
        let found = if content.is_empty() {
            name
        } else {
            format!("{name} with parameters")
        };
        return Err(CsrError::SignatureAlgorithm { found });
    }
    let bits = request.expect(BIT_STRING).ok_or(CsrError::Signature)?;
    let signature = bits
        .strip_prefix(&[0])
        .filter(|value| is_ecdsa_signature(value))
        .ok_or(CsrError::Signature)?;
    if !request.is_empty() {
        return Err(CsrError::TrailingDer);
    }
    Ok(Parts {
        firewall,
        key,
        signature,
    })
}

/// One attribute of a subject: what it is, how it is encoded, and its bytes.
struct Attribute<'a> {
    kind: &'a [u8],
    tag: u8,
    value: &'a [u8],
    /// The first of its relative distinguished name; further ones share the name with it.
    first: bool,
}

fn subject(content: &[u8]) -> Result<FirewallName, CsrError> {
    let attributes = subject_attributes(content).ok_or(CsrError::NotDer { what: "the subject" })?;
    let found = || CsrError::Subject {
        found: subject_text(&attributes),
    };
    let [organization, name] = attributes.as_slice() else {
        return Err(found());
    };
    let in_place = organization.kind == ORGANIZATION_OID && name.kind == COMMON_NAME_OID && name.first;
    if !in_place {
        return Err(found());
    }
    if organization.tag != UTF8_STRING || name.tag != UTF8_STRING {
        let found = format!("{}, {}", string_type(organization.tag), string_type(name.tag));
        return Err(CsrError::SubjectEncoding { found });
    }
    if organization.value != ORGANIZATION.as_bytes() {
        return Err(found());
    }
    let firewall = str::from_utf8(name.value)
        .ok()
        .and_then(|name| name.strip_prefix(USER_PREFIX));
    Ok(FirewallName::parse(firewall.ok_or_else(found)?)?)
}

fn subject_attributes(content: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut attributes = Vec::new();
    let mut rdns = Der(content);
    while !rdns.is_empty() {
        let mut rdn = Der(rdns.expect(SET)?);
        let mut first = true;
        while !rdn.is_empty() {
            let mut attribute = Der(rdn.expect(SEQUENCE)?);
            let kind = attribute.expect(OID)?;
            let value = attribute.next()?;
            if !attribute.is_empty() {
                return None;
            }
            attributes.push(Attribute {
                kind,
                tag: value.tag,
                value: value.content,
                first,
            });
            first = false;
        }
    }
    Some(attributes)
}

fn subject_text(attributes: &[Attribute<'_>]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().take(NAMED_MAX) {
        if !text.is_empty() {
            text.push_str(if attribute.first { ", " } else { " + " });
        }
        text.push_str(&match attribute.kind {
            kind if kind == ORGANIZATION_OID => "O".to_owned(),
            kind if kind == COMMON_NAME_OID => "CN".to_owned(),
            kind => oid_text(kind),
        });
        text.push('=');
        text.push_str(&String::from_utf8_lossy(
            attribute.value.get(..80).unwrap_or(attribute.value),
        ));
    }
    if text.is_empty() {
        "empty".to_owned()
    } else {
        shown(&text)
    }
}

fn string_type(tag: u8) -> &'static str {
    match tag {
        UTF8_STRING => "UTF8String",
        0x13 => "PrintableString",
        0x14 => "TeletexString",
        0x16 => "IA5String",
        0x1c => "UniversalString",
        BMP_STRING => "BMPString",
        _ => "something that is no string",
    }
}

fn key(whole: &[u8], content: &[u8]) -> Result<PublicKey, CsrError> {
    let error = match PublicKey::from_spki_der(whole) {
        Ok(key) => return Ok(key),
        Err(error) => error,
    };
    // The right algorithm and curve, but not our one encoding of the point: say that instead.
    let mut spki = Der(content);
    let mut algorithm = Der(spki.expect(SEQUENCE).unwrap_or_default());
    let kind = algorithm.expect(OID).unwrap_or_default();
    let named_curve = algorithm.expect(OID).filter(|_| algorithm.is_empty());
    match (kind == EC_PUBLIC_KEY, named_curve.map(algorithm_text)) {
        (true, Some(curve)) if curve == "P-256" => match error {
            KeyError::OffCurve => Err(error.into()),
            _ => Err(CsrError::KeyType {
                found: "P-256 with a point that is not uncompressed".to_owned(),
            }),
        },
        (true, Some(curve)) => Err(CsrError::KeyType {
            found: format!("ECDSA {curve}"),
        }),
        (true, None) => Err(CsrError::KeyType {
            found: "ECDSA without a named curve".to_owned(),
        }),
        (false, _) => Err(CsrError::KeyType {
            found: algorithm_text(kind),
        }),
    }
}

fn algorithm_text(oid: &[u8]) -> String {
    let text = oid_text(oid);
    let name = match text.as_str() {
        "1.2.840.113549.1.1.1" => "RSA",
        "1.2.840.113549.1.1.11" => "RSA with SHA-256",
        "1.2.840.10045.3.1.7" => "P-256",
        "1.2.840.10045.4.3.2" => "ecdsa-with-SHA256",
        "1.2.840.10045.4.3.3" => "ecdsa-with-SHA384",
        "1.2.840.10045.4.3.4" => "ecdsa-with-SHA512",
        "1.3.101.112" => "Ed25519",
        "1.3.132.0.34" => "P-384",
        "1.3.132.0.35" => "P-521",
        _ => return shown(&text),
    };
    name.to_owned()
}

/// The attack: the signer in kube-controller-manager merges *all* extensionRequest attributes, where
/// many readers look at the first only. Here, any attribute at all is one too many.
fn attributes(content: &[u8]) -> Result<(), CsrError> {
    if content.is_empty() {
        return Ok(());
    }
    let mut kinds = Vec::new();
    let mut extensions = Vec::new();
    let mut only_extensions = true;
    let mut set = Der(content);
    while let Some(attribute) = set.next() {
        let mut attribute = Der(attribute.content);
        let kind = attribute.expect(OID).unwrap_or_default();
        kinds.push(oid_text(kind));
        only_extensions &= kind == EXTENSION_REQUEST;
        let mut list = Der(Der(attribute.expect(SET).unwrap_or_default())
            .expect(SEQUENCE)
            .unwrap_or_default());
        while let Some(extension) = list.next() {
            extensions.push(oid_text(Der(extension.content).expect(OID).unwrap_or_default()));
        }
    }
    kinds.truncate(NAMED_MAX);
    extensions.truncate(NAMED_MAX);
    if only_extensions && !kinds.is_empty() {
        Err(CsrError::Extensions {
            found: shown(&extensions.join(", ")),
        })
    } else {
        Err(CsrError::Attributes {
            found: shown(&kinds.join(", ")),
        })
    }
}

/// ECDSA-Sig-Value: two positive integers of at most 32 significant bytes, and nothing behind them.
fn is_ecdsa_signature(bytes: &[u8]) -> bool {
    let positive = |integer: Option<&[u8]>| match integer {
        Some([0, rest @ ..]) => rest.len() <= 32 && rest.first().is_some_and(|&byte| byte >= 0x80),
        Some(integer @ [1..=0x7f, ..]) => integer.len() <= 32,
        _ => false,
    };
    let mut outer = Der(bytes);
    let Some(content) = outer.expect(SEQUENCE) else {
        return false;
    };
    let mut pair = Der(content);
    let both = positive(pair.expect(INTEGER)) && positive(pair.expect(INTEGER));
    both && pair.is_empty() && outer.is_empty()
}

/// Any PEM block in the text, or bare DER.
pub(super) fn claims(request: &[u8]) -> bool {
    // However long: the API server bounds it, and padding must not be a way past the alarm.
    let text = String::from_utf8_lossy(request);
    let mut blocks = text.split("-----BEGIN ").skip(1);
    let is_der = request.first() == Some(&SEQUENCE);
    (is_der && der_claims(request)) || blocks.any(|block| block_contents(block).is_some_and(|der| der_claims(&der)))
}

/// Whether this request has exactly this subject.
pub(super) fn has_subject(der: &[u8], subject: &[u8]) -> bool {
    let found = || {
        let mut info = Der(Der(Der(der).expect(SEQUENCE)?).expect(SEQUENCE)?);
        info.expect(INTEGER)?;
        info.next()
    };
    found().is_some_and(|found| found.whole == subject)
}

fn block_contents(block: &str) -> Option<Vec<u8>> {
    let body = block.split("-----").nth(1)?;
    let base64: String = body
        .lines()
        .filter(|line| !line.contains(':'))
        .flat_map(str::split_whitespace)
        .collect();
    lenient_base64().decode(base64).ok()
}

/// Looked for in the bytes, not in the structure: the signer reads past what no strict reader reads past, such as further
/// elements behind an attribute's value.
fn der_claims(der: &[u8]) -> bool {
    // The signer decodes UTF-16 too, and would issue the name in it.
    let wide: Vec<u8> = USER_PREFIX.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let has = |name: &[u8]| der.windows(name.len()).any(|window| window == name);
    has(USER_PREFIX.as_bytes()) || has(&wide)
}

fn lenient_base64() -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&base64::alphabet::STANDARD, config)
}
