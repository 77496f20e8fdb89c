//! Our reader of certificate requests against Go's: whatever Kubernetes' signer would put into a certificate is what our
//! reader saw, and nothing else. The signer's own functions are called, by the program in `tests/differential`.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "an integration test; of what it shares with the contract's it needs a part"
)]

#[path = "../../contract/tests/cases/mutations.rs"]
mod mutations;
#[path = "../../contract/tests/properties/mod.rs"]
mod properties;
#[path = "../../contract/tests/support/mod.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use contract::csr::{Csr, claims_our_names, is_canary, read};
use contract::names::{CANARY_USER, ORGANIZATION, USER_PREFIX};
use mutations::{Random, der_of, signed_again};
use properties::csr;
use serde::Deserialize;
use support::{CN, O, PRINTABLE, pem, rdn, seq};

/// Of each request of the corpus, and each kind.
const MUTATIONS: usize = 60;
/// What the signer puts in by itself: key usage, extended key usage, basic constraints, authority key identifier.
const OF_THE_SIGNER: &[&str] = &["2.5.29.15", "2.5.29.37", "2.5.29.19", "2.5.29.35"];

/// As `tests/differential` writes it.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<String>,
    #[serde(default)]
    requested: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    key: String,
    user: String,
    groups: Option<Vec<String>>,
    names: Option<Vec<String>>,
    extensions: Option<Vec<String>>,
}

fn folder(path: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read(path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

fn requests() -> Vec<(String, Vec<u8>)> {
    let named = folder("tests/corpus/csr");
    let mut all: Vec<_> = folder("fuzz/corpus/csr")
        .into_iter()
        .map(|(name, input)| (name, csr::request(&input)))
        .collect();
    for (name, original) in &named {
        let mut random = Random::new(name);
        let der = der_of(original).unwrap_or_default();
        for _ in 0..MUTATIONS {
            let text = mutations::bytes(original, &mut random);
            let bytes = pem(&mutations::bytes(&der, &mut random)).into_bytes();
            // Signed again, because Go looks into nothing whose signature is wrong.
            let signed = [(); 4].map(|()| signed_again(&der, &mut random).map(|der| pem(&der).into_bytes()));
            let mutated = [text, bytes].into_iter().chain(signed.into_iter().flatten());
            all.extend(mutated.map(|request| (format!("a mutation of {name}"), request)));
        }
    }
    all.extend(named);
    all
}

/// What the signer makes of each.
fn signed(requests: &[(String, Vec<u8>)]) -> Vec<Answer> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/differential/build.sh");
    let built = Command::new(script).stderr(Stdio::inherit()).output().unwrap();
    assert!(built.status.success(), "{script} failed: what it said is above");
    let program = String::from_utf8(built.stdout).unwrap();
    let mut child = Command::new(program.trim_end())
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let lines: String = requests
        .iter()
        .map(|(_, request)| BASE64_STANDARD.encode(request) + "\n")
        .collect();
    // It answers while it is asked: somebody has to write and somebody to read.
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let answers: Vec<Answer> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), requests.len());
    answers
}

/// The certificate says what we have read, and nothing else.
fn says_what_we_read(csr: &Csr, answer: &Answer) -> bool {
    let user = csr.firewall.user();
    let issued = seq(&[
        &rdn(O, PRINTABLE, ORGANIZATION.as_bytes()),
        &rdn(CN, PRINTABLE, user.as_bytes()),
    ]);
    let extensions = answer.extensions.iter().flatten();
    answer.error.is_none()
        && answer.requested == BASE64_STANDARD.encode(csr::subject(csr))
        && answer.subject == BASE64_STANDARD.encode(issued)
        && answer.key == BASE64_STANDARD.encode(csr.key.spki_der())
        && answer.user == user
        && answer.groups.as_deref() == Some(&[ORGANIZATION.to_owned()])
        && answer.names.iter().flatten().count() == 0
        && extensions
            .into_iter()
            .all(|kind| OF_THE_SIGNER.contains(&kind.as_str()))
}

#[test]
fn a3_the_signer_puts_nothing_into_a_certificate_that_our_reader_did_not_see() {
    let requests = requests();
    let (mut accepted, mut refused) = (0, 0);
    let mut wrong = Vec::new();
    for ((name, request), answer) in requests.iter().zip(signed(&requests)) {
        let text = String::from_utf8_lossy(request);
        let groups = answer.groups.clone().unwrap_or_default();
        match read(request) {
            Ok(csr) => {
                accepted += 1;
                if !says_what_we_read(&csr, &answer) {
                    wrong.push(format!("{name}: we read {csr:?}, and Go {answer:?}\n{text}"));
                }
            }
            Err(error) if answer.error.is_none() => {
                refused += 1;
                let ours = answer.user.starts_with(USER_PREFIX) || groups.iter().any(|group| group == ORGANIZATION);
                if ours && !claims_our_names(request) {
                    wrong.push(format!(
                        "{name}: nobody is told ({error}), and Go signs {answer:?}\n{text}"
                    ));
                }
            }
            Err(_) => {}
        }
        let is_only_the_canary = answer.user == CANARY_USER && groups.is_empty();
        if is_canary(request) && answer.error.is_none() && !is_only_the_canary {
            wrong.push(format!(
                "{name}: taken for the canary's, and Go signs {answer:?}\n{text}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        requests.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    // Else the two were not compared.
    assert!(
        accepted > 300 && refused > 1500,
        "{accepted} accepted, {refused} refused but signed by Go"
    );
}
