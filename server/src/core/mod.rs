//! What the approver decides, without a clock, a network or a thread: facts in, decision out.
//!
//! - `decide`: what becomes of a request (the whole approval policy)
//! - `life`: how a firewall's record goes on
//! - `plan`: which objects should stand for a firewall

pub mod decide;
pub mod life;
pub mod plan;
