//! End to end: real API servers, the real binaries, the identities that the manifests grant. One seed and one shoot
//! serve all tests; each has its own namespace and its own approver. Names carry the requirement that a test shows.
//!
//! - `baked`: userdata that holds a firewall's way in, from the moment at which the Firewall is made
//! - `alerts`: what Prometheus says of real faults, by the rules that are shipped (C3)
//! - `attacks`: what stands in the shoot may be anybody's
//! - `bootstrap`: a machine with nothing but a bootstrap kubeconfig comes to work, and goes on (A1-A7)
//! - `canaries`: the CA of client certificates changes, in good order and in none
//! - `consumers`: what a real client-go program sees of a roll, which is nothing
//! - `credentials`: both kinds of bootstrap credential, their choice and their end
//! - `endings`: how programs end: in good order, at once, and by a task that died
//! - `health`: what the approver says of itself, dependency by dependency, and who cannot keep it from that (E1-E5)
//! - `kills`: programs killed at each point of a move
//! - `least`: the approver holds no right that it does not use, and names each that it misses
//! - `lifetimes`: certificates that end, are late, refused or gone, and clocks that are wrong
//! - `metrics`: what Prometheus reads of it
//! - `modes`: certificates or tokens, by one flag, to and fro (B6)
//! - `moves`: the control plane goes to another seed, and the firewall comes along (A8-A10)
//! - `disasters`: backups, rolled keys, a shoot that sleeps
//! - `nodes`: on a seed where every bootstrap token may join a node, what firewalls get may not
//! - `thieves`: what stolen credentials are worth
//! - `offers`: what the seed tells of itself, tried before it is believed
//! - `proxied`: behind a proxy that ends TLS and answers with alerts
//! - `requests`: what becomes of requests that are not as they should be
//! - `restarts`: programs that die at any moment
//! - `rights`: what the issued certificate may do, and nothing else
//! - `told`: what one reads of a firewall with kubectl alone
//! - `upgrades`: other versions of both programs, before and after this one
//! - `settings`: what is said by flags and environment, shown, refused, and acted on when it changes (D4)
//! - `stories`: one firewall's story in the logs of both programs, and how much they say
//! - `selftest`: the approver does not serve where a policy does not hold it
//! - `ways`: IPv6, proxies, names that move, routes of a policy
//! - `input`: what people and other programs get wrong

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fault in a test is a failed test")]

mod alerts;
mod attacks;
mod baked;
mod bootstrap;
mod canaries;
mod consumers;
mod credentials;
mod disasters;
mod endings;
mod files;
mod floods;
mod follows;
mod health;
mod input;
mod kills;
mod least;
mod lifetimes;
mod metrics;
mod modes;
mod moves;
mod nodes;
mod offers;
mod proxied;
mod replicas;
mod requests;
mod restarts;
mod rights;
mod secrets;
mod selftest;
mod settings;
mod stories;
mod support;
mod thieves;
mod told;
mod upgrades;
mod ways;
