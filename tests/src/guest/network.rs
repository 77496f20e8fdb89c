//! The wire between this process and its machine. Owns the tap, in a network namespace that whoever started this process
//! made for it: so nothing has to be cleared away, however it ends.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// The host's end, where the API servers listen. The guest's is in `tests/machine/root`.
pub const HOST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const TAP: &str = "fw0";

/// Once for each process. The first machine of it has to be made before the first API server.
pub(super) fn lay() -> anyhow::Result<()> {
    let devices = fs::read_to_string("/proc/self/net/dev").context("the network devices cannot be read")?;
    let mut names = devices.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    if names.any(|name| name == TAP) {
        return Ok(());
    }
    let others: Vec<&str> = devices
        .lines()
        .filter_map(|line| Some(line.split_once(':')?.0.trim()))
        .filter(|name| *name != "lo")
        .collect();
    ensure!(
        others.is_empty(),
        "this is the network of {}: start the test with `make test-machine`, which gives it one of its own",
        others.join(", ")
    );
    let address = format!("{HOST}/30");
    for args in [
        &["link", "set", "lo", "up"][..],
        &["tuntap", "add", "dev", TAP, "mode", "tap"],
        &["addr", "add", &address, "dev", TAP],
        &["link", "set", TAP, "up"],
    ] {
        let output = Command::new("ip").args(args).output().context("ip cannot be started")?;
        if !output.status.success() {
            bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
    }
    Ok(())
}
