//! Finds secrets where none may be: in what a program has written, and in what stands where others read it. Every log of
//! every test is read with it, when the program ends and when its place is cleared away.

use std::fs;
use std::path::Path;

use contract::kubeconfig::{Credential, Kubeconfig};
use secrecy::ExposeSecret;

/// A piece of a secret that is this long is no accident.
const PIECE: usize = 24;

/// What looks like a secret, whosever it may be.
#[must_use]
pub fn suspicious(text: &str) -> Option<String> {
    // PKCS#8 of a P-256 key in DER, as base64, and what stands around it in PEM.
    for mark in ["PRIVATE KEY-----", "MIGHAgEAMBMGByqGSM49", "MHcCAQEEI"] {
        if let Some(at) = text.find(mark) {
            return Some(around(text, at));
        }
    }
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)));
    words
        .filter(|word| is_jws(word) || is_bootstrap_token(word))
        .map(|word| format!("{word:.12}..."))
        .next()
}

/// Whether one of these stands in the text, whole or in a piece.
#[must_use]
pub fn shown(text: &str, secrets: &[String]) -> Option<String> {
    let in_text = |piece: &str| text.contains(piece);
    secrets
        .iter()
        .filter(|secret| secret.len() >= 12)
        .find(|secret| {
            let pieces = secret.as_bytes().chunks_exact(PIECE);
            in_text(secret) || pieces.filter_map(|piece| std::str::from_utf8(piece).ok()).any(in_text)
        })
        .map(|secret| format!("{secret:.6}..."))
}

/// The tokens and private keys in the files below a directory.
#[must_use]
pub fn below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(below(&path));
        } else if let Ok(text) = fs::read_to_string(&path) {
            found.extend(in_file(&text));
        }
    }
    found
}

/// The secrets in a kubeconfig or a PEM file.
#[must_use]
pub fn in_file(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((_, key)) = text.split_once("-----BEGIN PRIVATE KEY-----\n") {
        // The first line is the same in every such key.
        let body: Vec<&str> = key.lines().take_while(|line| !line.starts_with("-----")).collect();
        found.extend(body.iter().skip(1).map(ToString::to_string));
    }
    if let Ok(kubeconfig) = Kubeconfig::read_operators("a kubeconfig", text)
        && let Credential::Token(token) = kubeconfig.credential
    {
        let token = token.expose_secret();
        // Of what is signed the signature is the secret, of a bootstrap token what is behind its id.
        found.push(token.rsplit('.').next().unwrap_or_default().to_owned());
    }
    found
}

fn is_jws(word: &str) -> bool {
    let parts: Vec<&str> = word.split('.').collect();
    parts.len() == 3 && parts[0].starts_with("eyJ") && parts[1].starts_with("eyJ") && parts[2].len() > 40
}

fn is_bootstrap_token(word: &str) -> bool {
    let plain = |part: &str| part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    word.split_once('.').is_some_and(|(id, secret)| {
        let digits = secret.bytes().filter(u8::is_ascii_digit).count();
        // Sixteen characters without any digit are a word.
        id.len() == 6 && secret.len() == 16 && plain(id) && plain(secret) && digits > 0
    })
}

fn around(text: &str, at: usize) -> String {
    let line = text.get(..at).unwrap_or_default().matches('\n').count();
    format!("a private key in line {}", line + 1)
}

#[cfg(test)]
mod tests {
    use contract::key::PrivateKey;

    use super::*;

    #[test]
    fn a_secret_is_found_and_words_are_not() {
        let key = PrivateKey::generate().unwrap().to_pem();
        let jws = format!("eyJhbGciOi.eyJpc3MiOi.{}", "s".repeat(43));
        for text in [key.as_str(), "token=ganeaj.s5xvmpamm3dq8816,", &jws, &key[28..90]] {
            assert!(suspicious(text).is_some(), "{text}");
        }
        for text in [
            "firewall.metal-stack.io",
            "events.k8s.io",
            "a PUBLIC KEY",
            "tokens.authentications",
        ] {
            assert_eq!(suspicious(text), None, "{text}");
        }
        let secrets = in_file(&key);
        assert!(shown(&format!("x{}y", &key[95..160]), &secrets).is_some());
        assert_eq!(shown("nothing of it", &secrets), None);
    }
}
