//! The agent as a service: its unit as systemd reads it, what it tells systemd, and the VRF that it enters. No API server
//! is needed: an agent without a seed is what is shown here.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fault in a test is a failed test")]

mod told;
mod unit;
mod vrf;

use tests::programs::Machine;

/// A machine with the bootstrap kubeconfig of an older version's dump, whose seed is long gone.
fn machine() -> Machine {
    let kubeconfig = include_str!("../../compat/v0.1.0/messages/bootstrap.kubeconfig");
    let server = kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: "))
        .unwrap();
    // Nobody listens there.
    let kubeconfig = kubeconfig.replace(server, "\"https://127.0.0.1:1\"");
    Machine::with_kubeconfig("shoot--compat--one", "shoot--compat--one-firewall-00001", &kubeconfig).unwrap()
}
