//! Handovers as anybody in the shoot can put them where the agent looks, and as a leaked handover key could sign them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::handover::{Fence, HandoverError, Order, read};
use contract::names::FirewallName;
use serde_json::json;

use super::draft::{Draft, parts};
use super::variant;
use crate::properties::handover::seal;
use crate::properties::{FIREWALL, jws, key, now, other_key};

/// Name, answer, and what makes it different from the good one.
pub type Case = (&'static str, &'static str, fn(&mut Draft));

// One line each.
#[rustfmt::skip]
pub const CASES: &[Case] = &[
    ("good", "Ok", |_| {}),
    ("good-other-signature", "Ok", |d| d.text = |t| jws::with_the_other_signature(&t)),
    ("good-says-more", "Ok", |d| d.claims["later"] = json!(1)),
    ("notice", "Notice", |d| d.sealed = None),
    ("notice-sealed-null", "Notice", |d| { d.sealed = None; d.payload = |p| format!("{},\"sealed\":null}}", &p[..p.len() - 1]) }),
    ("header-alg-none", "Header", |d| d.header["alg"] = json!("none")),
    ("header-alg-none-unsigned", "Header", |d| { d.header["alg"] = json!("none"); d.text = |t| format!("{}.{}.", parts(&t)[0], parts(&t)[1]) }),
    ("header-alg-hs256", "Header", |d| d.header["alg"] = json!("HS256")),
    ("header-alg-es384", "Header", |d| d.header["alg"] = json!("ES384")),
    ("header-alg-lower-case", "Header", |d| d.header["alg"] = json!("es256")),
    ("header-alg-twice", "Header", |d| d.header = json!(d.header.to_string().replacen('{', "{\"alg\":\"ES256\",", 1))),
    ("header-alg-missing", "Header", |d| drop(d.header.as_object_mut().unwrap().remove("alg"))),
    ("header-b64-false", "Header", |d| d.header["b64"] = json!(false)),
    ("header-crit", "Header", |d| d.header["crit"] = json!(["exp"])),
    ("header-jku", "Header", |d| d.header["jku"] = json!("https://evil.example.org/keys")),
    ("header-jwk", "Header", |d| d.header["jwk"] = json!({"kty": "EC", "crv": "P-256"})),
    ("header-x5c", "Header", |d| d.header["x5c"] = json!(["MIIB"])),
    ("header-zip", "Header", |d| d.header["zip"] = json!("DEF")),
    ("header-control-characters", "Header", |d| d.header["\u{1b}[31m\n"] = json!(1)),
    ("header-long-name", "Header", |d| d.header["a".repeat(20_000)] = json!(1)),
    ("header-long-value", "Header", |d| d.header["alg"] = json!({"a".repeat(20_000): 1})),
    ("header-no-object", "Header", |d| d.header = json!(["ES256"])),
    ("header-empty", "Header", |d| d.header = json!("")),
    ("kid-missing", "Header", |d| drop(d.header.as_object_mut().unwrap().remove("kid"))),
    ("kid-of-another", "OtherKey", |d| d.header["kid"] = json!(other_key().public().thumbprint())),
    ("kid-of-another-who-signed", "OtherKey", |d| { d.header["kid"] = json!(other_key().public().thumbprint()); d.key = other_key() }),
    ("typ-missing", "Header", |d| drop(d.header.as_object_mut().unwrap().remove("typ"))),
    ("typ-jwt", "Type", |d| d.header["typ"] = json!("JWT")),
    ("typ-report", "Type", |d| d.header["typ"] = json!("firewall-seed-access-report+jwt")),
    ("signature-by-another", "Signature", |d| d.key = other_key()),
    ("signature-cut", "Signature", |d| d.text = |t| t[..t.len() - 4].to_owned()),
    ("signature-der", "Signature", |d| d.text = |t| format!("{}.{}.{}", parts(&t)[0], parts(&t)[1], URL_SAFE_NO_PAD.encode(key().sign(format!("{}.{}", parts(&t)[0], parts(&t)[1]).as_bytes()).unwrap()))),
    ("signature-empty", "Signature", |d| d.text = |t| format!("{}.{}.", parts(&t)[0], parts(&t)[1])),
    ("signature-of-another-message", "Signature", |d| d.text = |t| format!("{}.{}.{}", parts(&t)[0], parts(&t)[1], parts(&jws::sign(b"{}", b"{}", &key()))[2])),
    ("signature-padded", "Signature", |d| d.text = |t| t + "="),
    ("signature-twice", "Signature", |d| d.text = |t| format!("{t}{}", parts(&t)[2])),
    ("signature-zero", "Signature", |d| d.text = |t| format!("{}.{}.{}", parts(&t)[0], parts(&t)[1], URL_SAFE_NO_PAD.encode([0; 64]))),
    ("form-empty", "Form", |d| d.text = |_| String::new()),
    ("form-dots", "Header", |d| d.text = |_| "..".to_owned()),
    ("form-two-parts", "Header", |d| d.text = |t| t.rsplit_once('.').unwrap().0.rsplit_once('.').map(|(h, p)| format!("{p}.{h}.x")).unwrap()),
    ("form-four-parts", "Form", |d| d.text = |t| t + ".e30"),
    ("form-json", "Form", |d| d.text = |t| json!({"protected": parts(&t)[0], "payload": parts(&t)[1], "signature": parts(&t)[2]}).to_string()),
    ("form-space-before", "Form", |d| d.text = |t| format!(" {t}")),
    ("form-newline-behind", "Signature", |d| d.text = |t| t + "\n"),
    ("form-padded-payload", "Signature", |d| d.text = |t| format!("{}.{}=.{}", parts(&t)[0], parts(&t)[1], parts(&t)[2])),
    ("form-not-ascii", "Form", |d| d.text = |t| format!("é{t}")),
    ("form-too-long", "TooLong", |d| d.text = |t| t + &"a".repeat(64 * 1024)),
    ("payload-too-long", "TooLong", |d| d.claims["reason"] = json!("a".repeat(64 * 1024))),
    ("payload-no-json", "Claims", |d| d.payload = |_| "kubeconfig".to_owned()),
    ("payload-claims-missing", "Claims", |d| d.payload = |_| "{}".to_owned()),
    ("payload-claims-twice", "Claims", |d| d.payload = |p| p.replacen('{', "{\"claims\":{},", 1)),
    ("payload-behind-the-end", "Claims", |d| d.payload = |p| p + "{}"),
    ("payload-deep", "Claims", |d| d.payload = |_| format!("{{\"claims\":{}", "[".repeat(30_000))),
    ("claims-as-text", "Form", |d| d.payload = |_| "{\"claims\":\"{}\"}".to_owned()),
    ("claims-firewall-with-a-path", "Form", |d| d.claims["firewall"] = json!("../etc")),
    ("claims-firewall-twice", "Form", |d| d.payload = |p| p.replacen("\"firewall\"", "\"firewall\":\"fw-2\",\"firewall\"", 1)),
    ("claims-firewall-long", "Form", |d| d.claims["firewall"] = json!("a".repeat(20_000))),
    ("claims-key-none", "Form", |d| d.claims["key"] = json!("")),
    ("claims-key-long", "Form", |d| d.claims["key"] = json!({"a".repeat(20_000): "\u{1b}"})),
    ("claims-generation-negative", "Form", |d| d.claims["generation"] = json!(-1)),
    ("claims-generation-text", "Form", |d| d.claims["generation"] = json!("7")),
    ("claims-generation-beyond", "Form", |d| d.claims["generation"] = json!(1e20)),
    ("claims-authority-beyond", "Form", |d| d.claims["authority"] = json!(u64::MAX)),
    ("claims-issued-none", "Form", |d| drop(d.claims.as_object_mut().unwrap().remove("issued"))),
    ("claims-issued-number", "Form", |d| d.claims["issued"] = json!(1_800_000_000)),
    ("for-another-firewall", "OtherFirewall", |d| d.claims["firewall"] = json!("fw-2")),
    ("for-another-key", "OtherKey", |d| d.claims["key"] = json!(other_key().public().thumbprint())),
    ("from-the-future", "NotYet", |d| d.claims["issued"] = json!("2030-01-01T00:00:00Z")),
    ("from-the-last-year", "NotYet", |d| d.claims["issued"] = json!("9999-12-30T22:00:00Z")),
    ("expired", "Expired", |d| d.claims["expires"] = json!("2020-01-01T00:00:00Z")),
    ("expired-for-ever", "Expired", |d| d.claims["expires"] = json!("-009999-01-02T01:59:59Z")),
    ("older-authority", "Older", |d| { d.claims["authority"] = json!(4); d.claims["generation"] = json!(u64::MAX) }),
    ("older-authority-lowest", "Older", |d| d.claims["authority"] = json!(i64::MIN)),
    ("older-generation", "Older", |d| d.claims["generation"] = json!(0)),
    ("older-order-missing", "Older", |d| d.claims.as_object_mut().unwrap().retain(|name, _| name != "authority" && name != "generation")),
    ("sealed-to-another", "NotForUs", |d| d.sealed.as_mut().unwrap().0 = seal()[1].public().clone()),
    ("sealed-under-other-claims", "NotForUs", |d| d.sealed.as_mut().unwrap().2 = Some("{}".to_owned())),
    ("sealed-under-the-same-claims-spelled-otherwise", "NotForUs", |d| d.payload = |p| p.replacen("\"claims\":{", "\"claims\":{ ", 1)),
    ("sealed-ciphertext-empty", "NotForUs", |d| d.payload = |p| p.replacen("\"ciphertext\":\"", "\"ciphertext\":\"\",\"was\":\"", 1)),
    ("sealed-ciphertext-longer", "NotForUs", |d| d.payload = |p| p.replacen("\"ciphertext\":\"", "\"ciphertext\":\"AAAA", 1)),
    ("sealed-ciphertext-no-base64", "Form", |d| d.payload = |p| p.replacen("\"ciphertext\":\"", "\"ciphertext\":\"*", 1)),
    ("sealed-encapsulated-empty", "NotForUs", |d| d.payload = |p| p.replacen("\"encapsulated\":\"", "\"encapsulated\":\"\",\"was\":\"", 1)),
    ("sealed-encapsulated-compressed", "NotForUs", |d| d.payload = |p| p.replacen("\"encapsulated\":\"B", "\"encapsulated\":\"A", 1)),
    ("sealed-part-missing", "Claims", |d| d.payload = |p| p.replacen("\"ciphertext\"", "\"ciphers\"", 1)),
    ("sealed-twice", "Claims", |d| d.payload = |p| p.replacen("\"sealed\"", "\"sealed\":null,\"sealed\"", 1)),
];

/// What an agent that believes `key` and has taken up 5/0 makes of a message, in its own order.
pub fn answer(message: &str) -> String {
    let firewall = FirewallName::parse(FIREWALL).unwrap();
    let fence = Fence {
        order: Order {
            authority: 5,
            generation: 0,
        },
        digest: None,
    };
    let verdict = read(message, &[key().public()]).and_then(|handover| {
        handover.check(&firewall, &key().public(), now())?;
        fence.admits(&handover)?;
        handover.open(&seal()[0])
    });
    match verdict {
        Ok(_) => "Ok".to_owned(),
        Err(HandoverError::NotAuthentic(_, error)) => variant(&error),
        Err(error) => variant(&error),
    }
}
