//! Reports as anybody in the shoot can put them where the approver looks, and as a machine that was taken over signs them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::names::FirewallName;
use contract::report::Report;
use serde_json::json;

use super::draft::parts;
use super::handovers::Case;
use super::variant;
use crate::properties::{FIREWALL, jws, key, now, other_key};

// One line each.
#[rustfmt::skip]
pub const CASES: &[Case] = &[
    ("good", "Ok", |_| {}),
    ("good-other-signature", "Ok", |d| d.text = |t| jws::with_the_other_signature(&t)),
    ("good-says-more", "Ok", |d| d.claims["later"] = json!(1)),
    ("good-clock-behind", "Ok", |d| { d.claims["time"] = json!("2020-01-01T00:00:00Z"); d.claims["clockSkewSeconds"] = json!(1_577_836_800_i64 - 1_800_000_000) }),
    ("header-alg-none", "Header", |d| d.header["alg"] = json!("none")),
    ("header-alg-hs256", "Header", |d| d.header["alg"] = json!("HS256")),
    ("header-jwk", "Header", |d| d.header["jwk"] = json!({"kty": "EC", "crv": "P-256"})),
    ("header-control-characters", "Header", |d| d.header["\u{1b}[31m\n"] = json!(1)),
    ("header-long-name", "Header", |d| d.header["a".repeat(20_000)] = json!(1)),
    ("header-alg-long", "Header", |d| d.header["alg"] = json!("\n".repeat(20_000))),
    ("kid-of-another", "OtherKey", |d| d.header["kid"] = json!(other_key().public().thumbprint())),
    ("kid-long", "OtherKey", |d| d.header["kid"] = json!("\u{1b}".repeat(3_000))),
    ("typ-handover", "Type", |d| d.header["typ"] = json!("firewall-seed-handover+jwt")),
    ("typ-long", "Type", |d| d.header["typ"] = json!("\u{1b}[31m".repeat(3_000))),
    ("signature-by-another", "Signature", |d| d.key = other_key()),
    ("signature-empty", "Signature", |d| d.text = |t| format!("{}.{}.", parts(&t)[0], parts(&t)[1])),
    ("signature-zero", "Signature", |d| d.text = |t| format!("{}.{}.{}", parts(&t)[0], parts(&t)[1], URL_SAFE_NO_PAD.encode([0; 64]))),
    ("form-empty", "Form", |d| d.text = |_| String::new()),
    ("form-four-parts", "Form", |d| d.text = |t| t + ".e30"),
    ("form-newline-behind", "Signature", |d| d.text = |t| t + "\n"),
    ("form-too-long", "TooLong", |d| d.text = |t| t + &"a".repeat(128 * 1024)),
    ("payload-no-json", "Claims", |d| d.payload = |_| "report".to_owned()),
    ("payload-deep", "Claims", |d| d.payload = |p| p.replacen('{', &format!("{{\"later\":{}", "[".repeat(30_000)), 1)),
    ("payload-behind-the-end", "Claims", |d| d.payload = |p| p + "{}"),
    ("claims-firewall-missing", "Claims", |d| drop(d.claims.as_object_mut().unwrap().remove("firewall"))),
    ("claims-firewall-twice", "Claims", |d| d.payload = |p| p.replacen('{', "{\"firewall\":\"fw-2\",", 1)),
    ("claims-firewall-upper-case", "Claims", |d| d.claims["firewall"] = json!("Firewall")),
    ("claims-certificate-text", "Claims", |d| d.claims["certificate"] = json!("\u{1b}".repeat(3_000))),
    ("claims-seal-compressed", "Claims", |d| d.claims["seal"] = json!(URL_SAFE_NO_PAD.encode([2; 33]))),
    ("claims-seal-off-curve", "Claims", |d| d.claims["seal"] = json!(URL_SAFE_NO_PAD.encode([4; 65]))),
    ("claims-seal-at-infinity", "Claims", |d| d.claims["seal"] = json!("AA")),
    ("claims-handover-key-none", "Claims", |d| d.claims["handoverKeys"] = json!([""])),
    ("claims-generation-negative", "Claims", |d| d.claims["generation"] = json!(-1)),
    ("claims-skew-beyond", "Claims", |d| d.claims["clockSkewSeconds"] = json!(u64::MAX)),
    ("claims-time-none", "Claims", |d| d.claims["time"] = json!(null)),
    ("key-of-another", "another key", |d| d.claims["key"] = json!(other_key().public())),
    ("for-another-firewall", "another firewall", |d| d.claims["firewall"] = json!("fw-2")),
    ("stale", "stale", |d| d.claims["time"] = json!("2020-01-01T00:00:00Z")),
    ("from-the-future", "stale", |d| d.claims["time"] = json!("2040-01-01T00:00:00Z")),
    ("from-the-last-year", "stale", |d| d.claims["time"] = json!("9999-12-30T22:00:00Z")),
    // Beyond all time: it is not counted. Who signs it could as well leave it out.
    ("skew-lowest", "Ok", |d| d.claims["clockSkewSeconds"] = json!(i64::MIN)),
    ("skew-highest", "Ok", |d| d.claims["clockSkewSeconds"] = json!(i64::MAX)),
];

/// What an approver that has `key` pinned makes of a message: an error of the reader, or why it is not proof of use.
pub fn answer(message: &str) -> String {
    let firewall = FirewallName::parse(FIREWALL).unwrap();
    match Report::open(message, &key().public()) {
        Err(error) => variant(&error),
        Ok(report) if report.key != key().public() => "another key".to_owned(),
        Ok(report) if !report.proves_use(&firewall, &report.seed, "1f") => "another firewall".to_owned(),
        Ok(report) if !report.is_fresh(now()) => "stale".to_owned(),
        Ok(_) => "Ok".to_owned(),
    }
}
