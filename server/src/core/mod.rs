//! What the approver decides, without a clock, a network or a thread: facts in, decision out.
//!
//! - `decide`: what becomes of a request (the whole approval policy)
//! - `admit`: what becomes of a Firewall's userdata when it is made or changed
//! - `serving`: the certificate that this is served with, and the CAs that it is trusted by
//! - `canary`: which CAs' certificates the seed accepts
//! - `verdict`: whether a firewall's access is still good
//! - `seen`: the facts of one firewall
//! - `credential`: how long its bootstrap credential stands
//! - `life`: how a firewall's record goes on
//! - `handover`: how its record goes on while it has to come in anew
//! - `standing`: how it stands, in words
//! - `heard`: what people are shown of a firewall beside that
//! - `plan`: which objects should stand for a firewall
//! - `said`: which events are written, and how often
//! - `retry`: how long to wait after a failure
//! - `health`: whether the approver itself can do its work
//! - `userdata`: what a machine carries so that its agent begins by itself

pub mod admit;
pub mod canary;
pub mod credential;
pub mod decide;
pub mod handover;
pub mod health;
pub mod heard;
pub mod life;
pub mod plan;
pub mod retry;
pub mod said;
pub mod seen;
pub mod serving;
pub mod standing;
pub mod userdata;
pub mod verdict;
