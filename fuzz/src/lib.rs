//! The checks of the contract's tests, for the fuzz targets: what they assert is written once.

#![allow(dead_code, reason = "the targets need a part of what the tests do")]

#[path = "../../contract/tests/properties/mod.rs"]
pub mod properties;
#[path = "../../contract/tests/support/mod.rs"]
mod support;
