//! SHA-256 in the one form in which we show and compare it.

use std::fmt::Write as _;

use aws_lc_rs::digest::{SHA256, digest};

/// In lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes)
        .as_ref()
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing into a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}
