//! The text around a certificate request: one block, 64 columns, LF, a newline at the end.
//! One request has exactly one text, so nothing can stand in it that is not also in the bytes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::CsrError;

const BEGIN: &str = "-----BEGIN ";
const LABEL: &str = "CERTIFICATE REQUEST";
const FIRST_LINE: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
const LAST_LINE: &str = "-----END CERTIFICATE REQUEST-----\n";

pub(super) fn encode(der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    let mut text = String::from(FIRST_LINE);
    for (index, character) in body.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            text.push('\n');
        }
        text.push(character);
    }
    text.push('\n');
    text.push_str(LAST_LINE);
    text
}

pub(super) fn decode(request: &[u8]) -> Result<Vec<u8>, CsrError> {
    let text = str::from_utf8(request).map_err(|_| CsrError::NotPem)?;
    let der = contents(text)?;
    let canonical = encode(&der);
    if text == canonical {
        return Ok(der);
    }
    let offset = text
        .bytes()
        .zip(canonical.bytes())
        .take_while(|(found, wanted)| found == wanted)
        .count();
    Err(CsrError::PemNotCanonical { offset })
}

/// Takes the text apart only as far as a good message needs; what decides is the comparison above.
fn contents(text: &str) -> Result<Vec<u8>, CsrError> {
    let start = text.find(BEGIN).ok_or(CsrError::NotPem)?;
    if start > 0 {
        return Err(CsrError::LeadingText);
    }
    let (label, rest) = text[BEGIN.len()..].split_once("-----").ok_or(CsrError::NotPem)?;
    if label != LABEL {
        return Err(CsrError::PemLabel {
            found: super::shown(label),
        });
    }
    let (body, after) = rest.split_once("-----END ").ok_or(CsrError::NotPem)?;
    let after = after.strip_prefix("CERTIFICATE REQUEST-----").ok_or(CsrError::NotPem)?;
    if after.contains(BEGIN) {
        return Err(CsrError::SeveralPemBlocks);
    }
    if !after.trim_ascii().is_empty() {
        return Err(CsrError::TrailingPem);
    }
    // A colon is no base64: it only occurs in RFC 1421 headers.
    if body.contains(':') {
        return Err(CsrError::PemHeaders);
    }
    let body: String = body.split_ascii_whitespace().collect();
    BASE64_STANDARD.decode(body).map_err(|_| CsrError::NotPem)
}
