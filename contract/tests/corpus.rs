//! Replays every stored certificate request: who wrote the file does not matter, what it contains does.
//! `UPDATE_CORPUS=1 cargo test -p contract --test corpus` writes the files anew.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Once;
use std::{env, fs};

use contract::csr::{claims_our_names, read};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

/// File, expected variant of the refusal. `Ok`: accepted.
const EXPECTED: &[(&str, &str)] = &[
    ("attribute-challenge-password", "Attributes"),
    ("attribute-unknown", "Attributes"),
    ("attributes-as-set", "NotDer"),
    ("attributes-missing", "NotDer"),
    ("common-name-admin", "Subject"),
    ("common-name-bmpstring", "SubjectEncoding"),
    ("common-name-first", "Subject"),
    ("common-name-only", "Subject"),
    ("common-name-printablestring", "SubjectEncoding"),
    ("common-name-teletexstring", "SubjectEncoding"),
    ("common-name-twice", "Subject"),
    ("common-name-wrong-prefix", "Subject"),
    ("der-hidden-after-attributes", "NotDer"),
    ("der-hidden-after-signature", "TrailingDer"),
    ("der-indefinite-length", "NotDer"),
    ("der-padded-length", "NotDer"),
    ("der-padded-length-in-subject", "NotDer"),
    ("der-trailing-bytes", "TrailingDer"),
    ("der-truncated", "NotDer"),
    ("extension-basic-constraints-ca", "Extensions"),
    ("extension-key-usage", "Extensions"),
    ("extension-request-empty", "Extensions"),
    ("extension-request-twice", "Extensions"),
    ("extension-san-dns", "Extensions"),
    ("extension-san-other-name", "Extensions"),
    ("extension-san-uri", "Extensions"),
    ("good-longest-name", "Ok"),
    ("good-plain", "Ok"),
    ("key-ed25519", "KeyType"),
    ("key-p256-compressed", "KeyType"),
    ("key-p256-explicit-curve", "KeyType"),
    ("key-p256-hybrid", "KeyType"),
    ("key-p256-off-curve", "Key"),
    ("key-p384", "KeyType"),
    ("key-p521", "KeyType"),
    ("key-rsa-2048", "KeyType"),
    ("name-empty", "Name"),
    ("name-too-long", "Name"),
    ("name-upper-case", "Name"),
    ("name-with-newline", "Name"),
    ("name-with-nul", "Name"),
    ("organization-after", "Subject"),
    ("organization-and-name-in-one-rdn", "Subject"),
    ("organization-masters", "Subject"),
    ("organization-printablestring", "SubjectEncoding"),
    ("organization-twice", "Subject"),
    ("pem-76-columns", "PemNotCanonical"),
    ("pem-crlf", "PemNotCanonical"),
    ("pem-empty", "NotPem"),
    ("pem-headers", "PemHeaders"),
    ("pem-leading-text", "LeadingText"),
    ("pem-new-certificate-request", "PemLabel"),
    ("pem-no-last-newline", "PemNotCanonical"),
    ("pem-trailing-text", "TrailingPem"),
    ("pem-two-blocks", "SeveralPemBlocks"),
    ("pem-two-last-newlines", "PemNotCanonical"),
    ("signature-algorithm-null-parameters", "SignatureAlgorithm"),
    ("signature-by-another-key", "BadSelfSignature"),
    ("signature-padded-integer", "Signature"),
    ("signature-trailing-byte", "Signature"),
    ("signature-unused-bits", "Signature"),
    ("subject-empty", "Subject"),
    ("subject-with-empty-rdn", "NotCanonical"),
    ("subject-with-serial-number", "Subject"),
    ("version-1", "Version"),
];

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "tests", "corpus", "csr"]
        .iter()
        .collect()
}

fn files() -> Vec<(String, Vec<u8>)> {
    static UPDATE: Once = Once::new();
    UPDATE.call_once(|| {
        if env::var_os("UPDATE_CORPUS").is_some() {
            for (name, text) in support::requests::all() {
                fs::write(folder().join(format!("{name}.pem")), text).unwrap();
            }
        }
    });
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// `Subject { found: .. }` -> `Subject`
fn variant(error: &impl std::fmt::Debug) -> String {
    format!("{error:?}")
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect()
}

#[test]
fn every_stored_request_gets_its_verdict() {
    let files = files();
    let stored: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let expected: BTreeSet<&str> = EXPECTED.iter().map(|(name, _)| *name).collect();
    assert_eq!(stored, expected, "files and table differ");
    let generated: BTreeSet<&str> = support::requests::all().iter().map(|(name, _)| *name).collect();
    assert_eq!(generated, expected, "generator and table differ");

    let mut wrong = Vec::new();
    for ((name, request), (_, expected)) in files.iter().zip(EXPECTED) {
        let verdict = read(request);
        let found = verdict.as_ref().map_or_else(variant, |_| "Ok".to_owned());
        assert_eq!(found == "Ok", name.starts_with("good-"), "{name}: {verdict:?}");
        if found != *expected {
            wrong.push(format!("{name}: expected {expected}, found {verdict:?}"));
        }
        if let Err(error) = &verdict {
            let text = error.to_string();
            assert!(text.len() < 1000 && !text.contains(char::is_control), "{name}: {text}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_fresh_set_of_requests_gets_the_same_verdicts() {
    for (name, text) in support::requests::all() {
        let found = read(text.as_bytes()).map_or_else(|error| variant(&error), |_| "Ok".to_owned());
        let expected = EXPECTED.iter().find(|(file, _)| *file == name).unwrap().1;
        assert_eq!(found, expected, "{name}");
    }
}

/// Another library finds nothing wrong with these requests: a reader that is not strict takes them.
#[test]
fn most_refused_requests_are_otherwise_sound() {
    const UNSOUND: &[&str] = &[
        "attributes-as-set",
        "attributes-missing",
        "der-hidden-after-attributes",
        "der-indefinite-length",
        "der-truncated",
        "key-p256-explicit-curve",
        "key-p256-off-curve",
        "key-p521", // not supported by that library
        "pem-empty",
        "pem-headers",
        "signature-by-another-key",
        "signature-padded-integer",
        "signature-trailing-byte",
        "signature-unused-bits",
    ];
    let unsound: Vec<String> = files()
        .into_iter()
        .filter(|(_, request)| {
            let Ok((_, block)) = x509_parser::pem::parse_x509_pem(request) else {
                return true;
            };
            let Ok((_, csr)) = X509CertificationRequest::from_der(&block.contents) else {
                return true;
            };
            csr.verify_signature().is_err()
        })
        .map(|(name, _)| name)
        .collect();
    assert_eq!(unsound, UNSOUND);
}

#[test]
fn a_foreign_request_that_claims_our_names_is_noticed_in_whatever_encoding() {
    const SILENT: &[&str] = &[
        "der-indefinite-length",
        "der-padded-length",
        "der-padded-length-in-subject",
        "der-truncated",
        "pem-empty",
        "subject-empty",
    ];
    let silent: Vec<String> = files()
        .into_iter()
        .filter(|(_, request)| !claims_our_names(request))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(silent, SILENT);
}
