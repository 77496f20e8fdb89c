//! How to talk to a cluster: the one place that makes a client, the one that tells its failures apart, the deadline
//! that every call has, the count of what was asked, and upstream's types as far as we read them. And what both programs
//! are as processes: settings, log, end. Decides nothing.

pub mod api;
pub mod client;
pub mod clock;
mod connection;
pub mod count;
pub mod failure;
pub mod firewall;
pub mod lease;
pub mod log;
pub mod operator;
pub mod process;
pub mod proxy;
pub mod settings;
pub mod spans;
