//! Replays every stored certificate request: who wrote the file does not matter, what it contains does.
//! `UPDATE_CORPUS=1 cargo test -p contract --test corpus` writes the files anew.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Once;
use std::{env, fs};

use contract::csr::{claims_our_names, read};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "tests", "corpus", "csr"]
        .iter()
        .collect()
}

fn files() -> Vec<(String, Vec<u8>)> {
    static UPDATE: Once = Once::new();
    UPDATE.call_once(|| {
        if env::var_os("UPDATE_CORPUS").is_some() {
            for (name, _, text) in support::requests::all() {
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
    let files: BTreeMap<String, Vec<u8>> = files().into_iter().collect();
    let cases: BTreeMap<&str, &str> = support::requests::all()
        .into_iter()
        .map(|(name, expected, _)| (name, expected))
        .collect();
    let named: Vec<&str> = cases.keys().copied().collect();
    assert_eq!(files.keys().collect::<Vec<_>>(), named, "files and table differ");

    let mut wrong = Vec::new();
    for ((name, request), expected) in files.iter().zip(cases.values()) {
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
    for (name, expected, text) in support::requests::all() {
        let found = read(text.as_bytes()).map_or_else(|error| variant(&error), |_| "Ok".to_owned());
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
    const SILENT: &[&str] = &["pem-empty", "subject-empty"];
    let silent: Vec<String> = files()
        .into_iter()
        .filter(|(_, request)| !claims_our_names(request))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(silent, SILENT);
}
