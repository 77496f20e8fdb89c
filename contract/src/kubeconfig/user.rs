//! The one credential of a file. Inline, always; files only where we wrote the kubeconfig ourselves.

use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use secrecy::SecretString;
use zeroize::Zeroizing;

use super::Source;
use super::fields::Fields;
use super::{Credential, Fault, TOKEN_PLACEHOLDER};

const INLINE_CREDENTIAL: &str = "put the credential itself into token, or client-certificate-data and client-key-data";
const NO_IMPERSONATION: &str = "the credential itself has to be the one that acts; remove it";
const NO_PROGRAM: &str = "no program is run to get a credential; put it into the file itself";

pub(super) fn read_user(user: &Fields<'_>, source: Source) -> Result<Credential, Fault> {
    if source == Source::Template && user.string("tokenFile")? == Some(TOKEN_PLACEHOLDER) {
        user.only(&["tokenFile"], &[])?;
        return Ok(Credential::None);
    }
    let (inline, paths): (&[&str], &[&str]) = match source {
        Source::Given | Source::Operator => (&["client-certificate-data", "client-key-data", "token"], &[]),
        Source::Local => (
            &["client-certificate-data", "client-key-data", "token"],
            &["client-certificate", "client-key", "tokenFile"],
        ),
        Source::Template => (&[], &[]),
    };
    user.only(
        &[inline, paths].concat(),
        &[
            ("as", NO_IMPERSONATION),
            ("as-groups", NO_IMPERSONATION),
            ("as-uid", NO_IMPERSONATION),
            ("as-user-extra", NO_IMPERSONATION),
            ("auth-provider", NO_PROGRAM),
            ("client-certificate", INLINE_CREDENTIAL),
            (
                "client-certificate-data",
                "Gardener's template carries no credential; remove it",
            ),
            ("client-key", INLINE_CREDENTIAL),
            (
                "client-key-data",
                "Gardener's template carries no credential; remove it",
            ),
            ("exec", NO_PROGRAM),
            ("password", INLINE_CREDENTIAL),
            ("token", "Gardener's template carries no credential; remove it"),
            ("tokenFile", INLINE_CREDENTIAL),
            ("username", INLINE_CREDENTIAL),
        ],
    )?;
    if source == Source::Template {
        return Ok(Credential::None);
    }

    let token = user.string("token")?;
    let data = pair(user, "client-certificate-data", "client-key-data")?;
    let files = pair(user, "client-certificate", "client-key")?;
    let token_file = user.string("tokenFile")?;
    match (token, data, files, token_file) {
        (Some(token), None, None, None) => {
            if token.bytes().all(|byte| byte.is_ascii_graphic()) {
                Ok(Credential::Token(token.into()))
            } else {
                Err(user.wrong("token", "has characters that no token has"))
            }
        }
        (None, Some((certificate, key)), None, None) => inline_pair(user, certificate, key),
        (None, None, Some((certificate, key)), None) => Ok(Credential::CertificateFiles {
            certificate: absolute(user, "client-certificate", certificate)?,
            key: absolute(user, "client-key", key)?,
        }),
        (None, None, None, Some(path)) => Ok(Credential::TokenFile(absolute(user, "tokenFile", path)?)),
        (None, None, None, None) => Err(user.missing(
            "token",
            "a token, or client-certificate-data and client-key-data, is needed",
        )),
        _ => {
            let field = if token.is_some() { "token" } else { "client-certificate" };
            Err(Fault::Forbidden {
                field: user.path(field),
                instead: "there is another credential beside it; leave one",
            })
        }
    }
}

fn pair<'a>(
    user: &Fields<'a>,
    certificate: &'static str,
    key: &'static str,
) -> Result<Option<(&'a str, &'a str)>, Fault> {
    match (user.string(certificate)?, user.string(key)?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(user.missing(key, "a certificate needs its key")),
        (None, Some(_)) => Err(user.missing(certificate, "a key needs its certificate")),
    }
}

fn inline_pair(user: &Fields<'_>, certificate: &str, key: &str) -> Result<Credential, Fault> {
    let certificate_pem = decode(certificate)
        .and_then(|text| str::from_utf8(&text).ok().map(str::to_owned))
        .filter(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).is_ok())
        .ok_or_else(|| user.wrong("client-certificate-data", "is not base64 of a PEM certificate"))?;
    let key = decode(key).filter(|text| PrivateKeyDer::from_pem_slice(text).is_ok());
    let key_pem = key
        .as_deref()
        .and_then(|text| str::from_utf8(text).ok())
        .map(SecretString::from);
    let key_pem = key_pem.ok_or_else(|| user.wrong("client-key-data", "is not base64 of a PEM private key"))?;
    Ok(Credential::Certificate {
        certificate_pem,
        key_pem,
    })
}

fn decode(data: &str) -> Option<Zeroizing<Vec<u8>>> {
    BASE64_STANDARD.decode(data.trim_ascii()).ok().map(Zeroizing::new)
}

fn absolute(user: &Fields<'_>, field: &str, path: &str) -> Result<PathBuf, Fault> {
    if path.starts_with('/') && !path.chars().any(char::is_control) {
        Ok(PathBuf::from(path))
    } else {
        Err(user.wrong(field, "is not an absolute path"))
    }
}
