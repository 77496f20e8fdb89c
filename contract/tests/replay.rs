//! Replays what strangers may send: the named cases with their answers, mutations of each, and what the fuzzer found
//! worth keeping (`fuzz/corpus`). What has to hold of each is in `properties`.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

mod cases;
mod properties;
mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cases::draft::{Draft, SEALED, parts};
use cases::handovers::Case;
use cases::kubeconfigs::TOKEN;
use cases::mutations::{self, Random, der_of, signed_again};
use cases::{handovers, kubeconfigs, reports};
use contract::kubeconfig::Fault;
use properties::kubeconfig::Source;
use properties::{csr, handover, jws, kubeconfig, report};

/// Of each case, and each kind of mutation.
const MUTATIONS: usize = 150;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// Every file that the fuzzer kept.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(fuzz().join("corpus").join(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() > 20, "{target}: the corpus was not found");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Where the fuzzer is to begin, if it is it that asks: with every case, as it is signed now.
fn seed(target: &str, name: &str, mode: u8, bytes: &[u8]) {
    if let Some(folder) = env::var_os("FUZZ_SEEDS") {
        let folder = Path::new(&folder).join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}-{mode}")), [&[mode], bytes].concat()).unwrap();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_the_fuzzer_kept_breaks_no_property() {
    corpus("csr")
        .iter()
        .for_each(|input| drop(csr::check(&csr::request(input))));
    corpus("handover").iter().for_each(|input| handover::check_input(input));
    corpus("kubeconfig")
        .iter()
        .for_each(|input| kubeconfig::check_input(input));
    corpus("report").iter().for_each(|input| report::check_input(input));
}

#[test]
fn each_name_is_given_once() {
    let names: Vec<(&str, &str)> = (support::requests::all().iter().map(|(name, ..)| ("csr", *name)))
        .chain(handovers::CASES.iter().map(|(name, ..)| ("handover", *name)))
        .chain(kubeconfigs::CASES.iter().map(|(name, ..)| ("kubeconfig", *name)))
        .chain(reports::CASES.iter().map(|(name, ..)| ("report", *name)))
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

/// Only the holder of the key can have said what is accepted: without him every change is refused, and with him what is
/// accepted is still the whole of the request.
#[test]
fn no_mutation_of_a_request_hides_anything() {
    for (name, _, original) in support::requests::all() {
        let mut random = Random::new(name);
        let der = der_of(original.as_bytes()).unwrap_or_default();
        seed("csr", name, 0, original.as_bytes());
        seed("csr", name, 1, &der);
        for _ in 0..MUTATIONS {
            let of_lines = mutations::parts(&original, '\n', &mut random).into_bytes();
            let of_text = mutations::bytes(original.as_bytes(), &mut random);
            let of_der = support::pem(&mutations::bytes(&der, &mut random)).into_bytes();
            for mutated in [of_lines, of_text, of_der] {
                if let Ok(csr) = csr::check(&mutated) {
                    let info = csr::info(&csr);
                    assert!(
                        der.windows(info.len()).any(|window| window == info),
                        "{name}: {}",
                        text(&mutated)
                    );
                }
            }
            if let Some(der) = signed_again(&der, &mut random) {
                let _ = csr::check(support::pem(&der).as_bytes());
            }
        }
    }
}

/// (r, s) and (r, n - s): the one change that a stranger can make, and what does not follow from it.
#[test]
fn a_request_with_the_other_signature_is_the_same_request_under_another_name() {
    let (_, _, original) = support::requests::all().swap_remove(0);
    let der = der_of(original.as_bytes()).unwrap();
    let other = support::pem(&csr::with_the_other_signature(&der));
    assert_ne!(other, original);
    assert_eq!(csr::check(other.as_bytes()), csr::check(original.as_bytes()));
    assert_ne!(
        contract::csr::object_name(&other),
        contract::csr::object_name(&original)
    );
}

fn answers(cases: &[Case], draft: fn() -> Draft, is_handover: bool, answer: fn(&str) -> String) -> Vec<String> {
    let target = if is_handover { "handover" } else { "report" };
    let mut wrong = Vec::new();
    for (name, expected, edit) in cases {
        let mut draft = draft();
        edit(&mut draft);
        let payload = draft.payload_of(is_handover);
        let message = draft.message(&payload);
        seed(target, name, 0, message.as_bytes());
        seed(target, name, 1, payload.as_bytes());
        seed(target, name, 2, format!("{}\n{payload}", draft.header).as_bytes());
        let found = answer(&message);
        if found != *expected {
            wrong.push(format!("{name}: expected {expected}, found {found}"));
        }
    }
    wrong
}

#[test]
fn each_handover_gets_its_answer() {
    let wrong = answers(handovers::CASES, Draft::handover, true, handovers::answer);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_report_gets_its_answer() {
    let wrong = answers(reports::CASES, Draft::report, false, reports::answer);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whatever is accepted is, but for the signature's own spelling, to the byte what the key signed.
fn nothing_but_what_was_signed(
    cases: &[Case],
    draft: fn() -> Draft,
    is_handover: bool,
    answer: fn(&str) -> String,
    accepted: fn(&str) -> bool,
) {
    for (name, _, edit) in cases {
        let mut random = Random::new(name);
        let mut draft = draft();
        edit(&mut draft);
        let payload = draft.payload_of(is_handover);
        let sent = draft.message(&payload);
        draft.text = |text| text;
        let signed = draft.message(&payload);
        // Long ones are refused at once, and would only take time.
        let mutations = if sent.len() > 10_000 { 5 } else { MUTATIONS };
        for round in 0..mutations {
            let mutated = match round % 4 {
                0 => mutations::parts(&sent, '.', &mut random),
                _ => text(&mutations::bytes(sent.as_bytes(), &mut random)),
            };
            if accepted(&mutated) {
                assert_eq!(parts(&mutated)[..2], parts(&signed)[..2], "{name}");
                assert_eq!(answer(&mutated), answer(&signed), "{name}");
            }
        }
    }
}

#[test]
fn no_mutation_of_a_handover_says_anything_else() {
    nothing_but_what_was_signed(handovers::CASES, Draft::handover, true, handovers::answer, |message| {
        handover::check(message).is_ok()
    });
}

#[test]
fn no_mutation_of_a_report_says_anything_else() {
    nothing_but_what_was_signed(reports::CASES, Draft::report, false, reports::answer, |message| {
        report::check(message).is_ok()
    });
}

/// Who holds the handover key, and not the credential, cannot make a sealed part say anything else or go with anything
/// else.
#[test]
fn no_mutation_that_is_signed_again_moves_what_is_sealed() {
    let mut opened = 0;
    for (name, _, edit) in handovers::CASES {
        let mut random = Random::new(name);
        let mut draft = Draft::handover();
        edit(&mut draft);
        let payload = draft.payload_of(true);
        if payload.len() > 10_000 {
            continue;
        }
        let header = jws::header(handover::TYPE, &properties::key().public()).to_string();
        let sealed = draft
            .sealed
            .map(|(_, _, other)| other.unwrap_or_else(|| draft.claims.to_string()));
        for _ in 0..MUTATIONS {
            let mutated = mutations::bytes(payload.as_bytes(), &mut random);
            let message = jws::sign(header.as_bytes(), &mutated, &properties::key());
            let Ok(handover) = handover::check(&message) else {
                continue;
            };
            if let Ok(content) = handover.open(&handover::seal()[0]) {
                assert_eq!(*content, SEALED, "{name}");
                let claims = sealed.as_ref().unwrap();
                assert!(text(&mutated).contains(claims), "{name}: {}", text(&mutated));
                opened += 1;
            }
        }
    }
    assert!(opened > 0, "no mutation left a sealed part whole");
}

#[test]
fn no_mutation_of_a_report_that_is_signed_again_makes_the_reader_panic() {
    let payload = Draft::report().payload_of(false);
    let header = jws::header(report::TYPE, &properties::key().public()).to_string();
    let mut random = Random::new("report");
    for _ in 0..10 * MUTATIONS {
        let mutated = mutations::bytes(payload.as_bytes(), &mut random);
        let _ = report::check(&jws::sign(header.as_bytes(), &mutated, &properties::key()));
    }
}

/// A second handover of the same claims is one that somebody else made of the first: it counts as the first.
#[test]
fn a_handover_with_the_other_signature_is_the_very_same_one() {
    let draft = Draft::handover();
    let message = draft.message(&draft.payload_of(true));
    let other = jws::with_the_other_signature(&message);
    assert_ne!(message, other);
    let (one, other) = (handover::check(&message).unwrap(), handover::check(&other).unwrap());
    contract::handover::Fence::of(&other).admits(&one).unwrap();
    assert_eq!(one.digest, other.digest);
}

#[test]
fn each_kubeconfig_gets_its_answer() {
    let mut wrong = Vec::new();
    for (name, source, expected, edit) in kubeconfigs::CASES {
        let file = kubeconfigs::text(edit);
        let at = Source::ALL.iter().position(|other| other == source).unwrap();
        seed("kubeconfig", name, at as u8, file.as_bytes());
        let found = kubeconfigs::answer(*source, &file);
        if found != *expected {
            wrong.push(format!("{name}: expected {expected}, found {found}"));
        }
        let _ = kubeconfig::check(*source, &file);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A kubeconfig is signed by nobody: a mutation may lead elsewhere, but never says more than was read from it, and no
/// complaint about it holds the credential.
#[test]
fn no_mutation_of_a_kubeconfig_hides_anything() {
    let key = properties::OTHER.lines().nth(1).unwrap();
    for (name, source, _, edit) in kubeconfigs::CASES {
        let mut random = Random::new(name);
        let original = kubeconfigs::text(edit);
        let mutations = if original.len() > 20_000 { 5 } else { MUTATIONS };
        for round in 0..mutations {
            let mutated = match round % 5 {
                0 => mutations::parts(&original, ',', &mut random),
                1 => mutations::parts(&original, '"', &mut random),
                _ => text(&mutations::bytes(original.as_bytes(), &mut random)),
            };
            if let Err(error) = kubeconfig::check(*source, &mutated) {
                // A name is shown, whatever somebody has put there.
                if matches!(error.fault, Fault::Name { .. }) {
                    continue;
                }
                let error = error.to_string();
                for secret in [TOKEN, key, &URL_SAFE_NO_PAD.encode(key)] {
                    assert!(!error.contains(secret), "{name}: {error}");
                }
            }
        }
    }
}
