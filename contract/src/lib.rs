//! The contract between the two programs: what they name things, what they send each other, and how each side reads
//! it. Pure: no I/O, no clock of its own (`now` is an argument), no Kubernetes client.

pub mod access;
pub mod cert;
pub mod csr;
pub mod digest;
pub mod grant;
pub mod handover;
pub mod issuer;
pub mod jws;
pub mod key;
pub mod kubeconfig;
pub mod names;
pub mod reasons;
pub mod record;
pub mod report;
pub mod token;
