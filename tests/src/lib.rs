//! What the end-to-end tests and the demo stand on: a real control plane and the programs under test.
//! Nothing of this is shipped; a fault here is a failed test, so `expect` is fine throughout.
#![allow(clippy::expect_used, clippy::panic)]

pub mod consumer;
pub mod demo;
pub mod flood;
pub mod guest;
pub mod harness;
pub mod http;
pub mod ignition;
pub mod monitoring;
pub mod moves;
pub mod policies;
pub mod programs;
pub mod prometheus;
pub mod secrets;
pub mod soak;
pub mod unit;
pub mod upstream;
pub mod watcher;
pub mod webhook;
pub mod world;
