//! The agent's package on a whole machine: systemd, a kernel with a VRF, a disk that loses what was not flushed, a clock
//! that jumps. `make test-machine` gives it a network of its own; the API servers are on the host's end of the one wire.
// Whoever waits for it reads what it tells.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod clocks;
mod cuts;
mod support;

use std::time::Duration;

use anyhow::ensure;
use tests::harness::{PATIENCE, eventually};
use tests::world::World;

use crate::support::{Firewall, VRF};

/// What `systemd-analyze security` may say of the unit as it runs, of 10.
const EXPOSURE: f64 = 3.0;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots a machine: make test-machine"]
async fn a9_a10_a_machine_comes_in_through_its_vrf_and_after_a_reboot_with_the_same_key_and_certificate() {
    let mut firewall = Firewall::boot().await.unwrap();
    let world = World::new("shoot--machine--in").await.unwrap();
    let _approver = world.approver().unwrap();
    only_the_vrf_leads_out(&firewall, &world).await;

    firewall.install(&world).await.unwrap();
    firewall.is_in(&world).await.unwrap();
    world.await_reason(&firewall.name, "Bootstrapped").await.unwrap();
    firewall.tell("the firewall is in");
    let identity = firewall.identity(&world).await.unwrap();
    runs_within_its_limits(&firewall).await;

    renewal_restarts_nothing(&firewall, &world).await;
    let (serial, renewed) = (
        firewall.serial().await.unwrap(),
        firewall.identity(&world).await.unwrap(),
    );
    let took = firewall.guest.reboot().await.unwrap();
    firewall.tell(&format!("it has booted anew, in {took:.1?}"));
    let last_words = "journalctl -b -1 -o cat --no-pager -u firewall-agent | tail -n 4";
    let last_words = firewall.guest.run(last_words).await.unwrap();
    assert!(
        last_words.contains("Deactivated successfully"),
        "it did not end in good order: {last_words}"
    );
    firewall.is_in(&world).await.unwrap();
    assert_eq!(firewall.serial().await.unwrap(), serial, "a certificate was made anew");
    assert_eq!(
        firewall.identity(&world).await.unwrap(),
        renewed,
        "something was asked for anew"
    );
    assert_eq!(firewall.key().await.unwrap(), identity.key);
    let sums = firewall.requests_of_controller().await.unwrap();
    assert!(sums.requests > 10 && sums.failed == 0, "{sums:?}");
    firewall.tell(&format!(
        "it is in with the same key and certificate; firewall-controller: {sums:?}"
    ));
    firewall.has_told_no_secret().await.unwrap();
}

/// Or all of this would show nothing of the VRF.
async fn only_the_vrf_leads_out(firewall: &Firewall, world: &World) {
    let server = world.seed.server_url();
    let address = server.strip_prefix("https://").unwrap().replace(':', "/");
    let connect = format!("timeout 20 bash -c '</dev/tcp/{address}'");
    let outside = firewall.guest.answer(&connect, b"").await.unwrap();
    assert!(outside.err.contains("Network is unreachable"), "{outside:?}");
    eventually("a way to the seed within the VRF", PATIENCE, || async {
        firewall.guest.run(&format!("ip vrf exec {VRF} {connect}")).await
    })
    .await
    .unwrap();
    firewall.tell("the seed is reached within the VRF, and is unreachable outside of it");
}

/// The unit's limits are in force, and the agent is where the only way out is.
async fn runs_within_its_limits(firewall: &Firewall) {
    let pid = "$(systemctl show -P MainPID firewall-agent)";
    let processes =
        format!("ip vrf pids {VRF}; echo; cat /proc/{pid}/cgroup; grep -E 'Cap(Eff|Prm)' /proc/{pid}/status");
    let said = firewall.guest.run(&processes).await.unwrap();
    assert!(said.contains("firewall-agent\n"), "{said}");
    assert!(said.contains(&format!("/firewall-agent.service/vrf/{VRF}\n")), "{said}");
    for held in ["CapPrm", "CapEff"] {
        assert!(said.contains(&format!("{held}:\t0000000000000000\n")), "{said}");
    }
    let security = "systemd-analyze security firewall-agent --no-pager | tail -n 1";
    let security = firewall.guest.run(security).await.unwrap();
    let level = security.split_whitespace().find_map(|word| word.parse::<f64>().ok());
    assert!(level.is_some_and(|level| level <= EXPOSURE), "{security}");
    let state = firewall
        .guest
        .run("systemctl show -P StatusText firewall-agent")
        .await
        .unwrap();
    firewall.tell(&format!(
        "it runs without a capability; {}; {}",
        security.trim(),
        state.trim()
    ));
}

async fn renewal_restarts_nothing(firewall: &Firewall, world: &World) {
    let (key, serial) = (firewall.key().await.unwrap(), firewall.serial().await.unwrap());
    let controller = firewall.controller().await.unwrap();
    world
        .annotate(&firewall.name, "firewall.metal-stack.io/renew-seed-access=once")
        .await
        .unwrap();
    eventually("a new certificate", PATIENCE, || async {
        ensure!(firewall.serial().await? != serial, "it is still {serial}");
        Ok(())
    })
    .await
    .unwrap();
    // A hook that comes late would be one, too.
    tokio::time::sleep(Duration::from_secs(5)).await;
    firewall.is_in(world).await.unwrap();
    assert_eq!(firewall.key().await.unwrap(), key);
    assert_eq!(
        firewall.controller().await.unwrap(),
        controller,
        "a renewal restarts nobody"
    );
    firewall.tell("its certificate was renewed; firewall-controller was not restarted");
}
