//! What has to hold whatever a stranger sends. Each check takes the bytes and fails by itself: the fuzz targets call
//! them with whatever they come up with, `replay` with the stored corpus and with mutations of the named cases.
//! Nothing here uses the reader under test to judge the reader under test.

pub mod csr;
pub mod handover;
pub mod jws;
pub mod kubeconfig;
pub mod report;

use contract::key::PrivateKey;
use jiff::Timestamp;

/// Longer than any sentence of ours; what a stranger wrote may take no more than its share of a log line.
const ERROR_MAX: usize = 1200;

/// The key that is believed. Fixed, so that what it signed can be stored in the corpus. Protects nothing.
pub const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgk2LZVxvFYl6BV0d5
ThSyfB5H4sxYZXSCtXBPyNduXMyhRANCAATXcidoqTd76z/spiJnRA2JJV3XmHpN
SoqKbkkUbBaIPP0mgWkFk3YUV6ICtEB9rJTpcfyNjmI2iCm7eHwL7wNB
-----END PRIVATE KEY-----
";
/// A key that nobody believes.
pub const OTHER: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWbeO9fQ2nX8tj45B
LM85lrGA+InV93fa9AXIlEaFEiehRANCAAQJagCSdITx+R0t57kbUcqnic/V9W7J
Etx5fYBJQ7BLsLA0Vd0AZoncklLAW9Lj9jmcbSBS7MjAjQ/I4yJ9Zg+T
-----END PRIVATE KEY-----
";
pub const FIREWALL: &str = "shoot--project--cluster-firewall-0a1b2";

pub fn key() -> PrivateKey {
    PrivateKey::from_pem(KEY).unwrap()
}

pub fn other_key() -> PrivateKey {
    PrivateKey::from_pem(OTHER).unwrap()
}

/// The time at which the stored messages are good.
pub fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// The first byte says how the rest is to be used, so that one corpus holds what needs a signature and what does not.
pub fn split(input: &[u8]) -> (u8, &[u8]) {
    input.split_first().map_or((0, input), |(mode, rest)| (*mode, rest))
}

/// An error is one short line, whatever it is about.
pub fn is_fit_for_a_log(error: &dyn std::error::Error) {
    let text = error.to_string();
    assert!(text.len() <= ERROR_MAX, "{} bytes: {text:.200}", text.len());
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// The order of P-256 less s: with (r, s) also (r, n - s) verifies.
pub fn other_half(s: [u8; 32]) -> [u8; 32] {
    const ORDER: [u8; 32] = [
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc, 0xe6, 0xfa, 0xad,
        0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
    let mut difference = [0; 32];
    let mut borrow = 0;
    for at in (0..32).rev() {
        let digit = i16::from(ORDER[at]) - i16::from(s[at]) - borrow;
        borrow = i16::from(digit < 0);
        difference[at] = digit.rem_euclid(256) as u8;
    }
    difference
}
