//! C4 and D1: the agent's Debian package on a machine, for real: installed, upgraded, downgraded, removed and purged by dpkg
//! under a systemd, while a client-go program works with what the agent keeps there. `make test-package` says where Debian
//! and packages are.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a fault in a test is a failed test")]

mod container;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::consumer::{Sums, binary};
use tests::harness::{PATIENCE, eventually};
use tests::programs::bootstrap_kubeconfig;
use tests::watcher::Watcher;
use tests::world::World;

use container::Container;

const UNIT: &str = "firewall-agent.service";
const CONFIG: &str = "/etc/firewall-controller";
const STATE: &str = "/var/lib/firewall-agent";
/// `ip vrf exec`, as far as it goes where no interface is a VRF: it puts itself into the cgroup and becomes the command.
const IP: &str = r#"#!/bin/sh
set -e
[ "$1 $2" = 'vrf exec' ]
cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/vrf/$3
mkdir -p "$cgroup"
echo $$ >"$cgroup/cgroup.procs"
shift 3
exec "$@"
"#;
/// Upstream's, in its VRF; it does nothing.
const CONTROLLER: &str = "[Service]\nExecStart=/bin/ip vrf exec lo /bin/sleep infinity\n";

/// What `make test-package` made.
fn made(variable: &str) -> PathBuf {
    let path =
        std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: `make test-package` sets it"));
    PathBuf::from(path)
}

/// The consumer, in there: it reads the files that are named by path.
struct Consumer(Child, PathBuf);

impl Consumer {
    async fn start(container: &Container, firewall: &str) -> Self {
        let log = container.path("/root/consumer.jsonl");
        fs::copy(binary().await.unwrap(), container.path("/root/consumer")).unwrap();
        let child = Command::new("chroot")
            .arg(container.root())
            .args([
                "/root/consumer",
                "-kubeconfig",
                "/etc/firewall-controller/.seed.kubeconfig",
            ])
            .args(["-firewall", firewall])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin")
            .stdin(Stdio::null())
            .stdout(fs::File::create(&log).unwrap())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child, log)
    }

    fn end(mut self) -> Sums {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        self.0.wait().unwrap();
        let log = fs::read_to_string(&self.1).unwrap();
        let last = log.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}:\n{log}"))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The key, what is worked with, and where to: to the byte.
fn kept(container: &Container) -> BTreeMap<String, String> {
    let files = [
        format!("{STATE}/key.pem"),
        format!("{STATE}/current.pem"),
        format!("{STATE}/seed.json"),
        format!("{CONFIG}/.seed.kubeconfig"),
        "/etc/default/firewall-agent".to_owned(),
    ];
    files
        .into_iter()
        .map(|path| (path.clone(), container.read(&path).unwrap()))
        .collect()
}

fn installed(container: &Container) -> String {
    let asked = "dpkg-query -W -f '${db:Status-Status} ${Version}' firewall-agent";
    container.run(asked).unwrap()
}

/// In force, and all is well with it: the process id.
async fn well(container: &Container) -> String {
    eventually("an agent with which all is well", PATIENCE, || async {
        let [active, status, pid] = ["ActiveState", "StatusText", "MainPID"]
            .map(|name| container.property(UNIT, name))
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?
            .try_into()
            .unwrap_or_default();
        ensure!(active == "active", "it is {active}: {status}");
        ensure!(
            status.starts_with("all is well; certificate until 2"),
            "it says {status:?}"
        );
        Ok(pid)
    })
    .await
    .with_context(|| container.run("journalctl --no-pager -n 40").unwrap_or_default())
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-package"]
async fn c4_d1_the_package_comes_changes_and_goes_and_the_consumer_does_not_notice() {
    let (before, after) = (made("PACKAGE_BEFORE"), made("PACKAGE_AFTER"));
    let world = World::new("shoot--package--one").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();

    let mut container = Container::of(&made("PACKAGE_ROOT")).unwrap();
    let bootstrap = format!("{CONFIG}/.bootstrap.kubeconfig");
    container.put(&bootstrap, &kubeconfig, 0o600).unwrap();
    container.put("/usr/bin/ip", IP, 0o755).unwrap();
    container
        .put("/etc/systemd/system/firewall-controller.service", CONTROLLER, 0o644)
        .unwrap();
    for (name, package) in [("before.deb", &before), ("after.deb", &after)] {
        container
            .put(&format!("/root/{name}"), fs::read(package).unwrap(), 0o644)
            .unwrap();
    }
    container.boot().await.unwrap();
    container.run("systemctl start firewall-controller").unwrap();
    let told = container.property("firewall-controller", "MainPID").unwrap();

    // It comes, is enabled and started, and comes in.
    container.run("dpkg -i /root/before.deb").unwrap();
    let first = well(&container).await;
    world.await_reason(&firewall, "Bootstrapped").await.unwrap();
    assert_eq!(
        container.run("systemctl is-enabled firewall-agent").unwrap().trim(),
        "enabled"
    );
    held(&container, &first);
    // Without any right it tells firewall-controller, by systemd's own socket.
    assert_ne!(container.property("firewall-controller", "MainPID").unwrap(), told);

    let was = kept(&container);
    let watcher = Watcher::of(Some(&container.root()), &container.path(CONFIG));
    let consumer = Consumer::start(&container, &firewall).await;
    let mut pid = first;
    for (package, version) in ["after", "before", "after", "before"].into_iter().zip(1..) {
        container.run(&format!("dpkg -i /root/{package}.deb")).unwrap();
        let now = well(&container).await;
        assert_ne!(now, pid, "{version}: it still runs the version of before");
        assert_eq!(kept(&container), was, "{version}");
        pid = now;
    }
    assert_eq!(container.property(UNIT, "NRestarts").unwrap(), "0");
    operators_word(&container).await;
    hung(&container).await;

    // Removed it is gone, and what it made stays; when it comes back it finds that.
    container.run("dpkg -r firewall-agent").unwrap();
    assert!(
        installed(&container).starts_with("config-files"),
        "{}",
        installed(&container)
    );
    assert!(!container.path("/usr/bin/firewall-agent").exists());
    assert_eq!(container.run("pidof firewall-agent || true").unwrap(), "");
    assert_eq!(kept(&container), was);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    container.run("dpkg -i /root/before.deb").unwrap();
    well(&container).await;
    assert_eq!(kept(&container), was);

    let (sums, looks) = (consumer.end(), watcher.end().unwrap());
    println!("{} requests, {looks} looks at the files", sums.requests);
    assert!(sums.requests > 100 && looks > 1000, "{sums:?}, {looks} looks");
    assert_eq!((sums.failed, sums.retried, sums.other), (0, 0, 0), "{sums:?}");
    // Its first one is good throughout: nothing that it reads was written anew.
    assert_eq!(sums.clients, 0, "{sums:?}");
    purged(&container, &bootstrap, &kubeconfig);
}

/// The running agent is held as its unit says, in the VRF of firewall-controller.
fn held(container: &Container, pid: &str) {
    let status = container.run(&format!("cat /proc/{pid}/status")).unwrap();
    for wanted in [
        "CapPrm:\t0000000000000000",
        "CapBnd:\t",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        assert!(status.contains(wanted), "{wanted}: {status}");
    }
    // CAP_NET_ADMIN and CAP_BPF are what entering the VRF took.
    assert!(status.contains("CapBnd:\t0000008000001000"), "{status}");
    let cgroup = container.run(&format!("cat /proc/{pid}/cgroup")).unwrap();
    assert!(cgroup.contains("/firewall-agent.service/vrf/lo"), "{cgroup}");
    assert_eq!(container.property(UNIT, "WatchdogUSec").unwrap(), "2min");
}

/// What an operator stopped, disabled or set is not overruled by another version.
async fn operators_word(container: &Container) {
    container
        .run("echo FIREWALL_AGENT_LOG_LEVEL=debug >>/etc/default/firewall-agent")
        .unwrap();
    container.run("systemctl disable --now firewall-agent").unwrap();
    container.run("dpkg -i /root/after.deb").unwrap();
    assert_eq!(container.property(UNIT, "ActiveState").unwrap(), "inactive");
    assert_eq!(container.property(UNIT, "UnitFileState").unwrap(), "disabled");
    container.run("systemctl enable --now firewall-agent").unwrap();
    well(container).await;
    let settings = container.read("/etc/default/firewall-agent").unwrap();
    assert!(settings.ends_with("FIREWALL_AGENT_LOG_LEVEL=debug\n"), "{settings}");
    assert!(container.run("journalctl -u firewall-agent").unwrap().contains("DEBUG"));
    container
        .run("sed -i '$d' /etc/default/firewall-agent && systemctl restart firewall-agent")
        .unwrap();
    well(container).await;
}

/// One that does not move any more is ended by systemd and begun anew.
async fn hung(container: &Container) {
    container
        .run("mkdir -p /run/systemd/system/firewall-agent.service.d && printf '[Service]\\nWatchdogSec=6\\n' >/run/systemd/system/firewall-agent.service.d/soon.conf && systemctl daemon-reload && systemctl restart firewall-agent")
        .unwrap();
    let pid = well(container).await;
    // By itself it goes on: longer than the watchdog waits.
    tokio::time::sleep(std::time::Duration::from_secs(8)).await;
    assert_eq!(well(container).await, pid);
    container.run(&format!("kill -STOP {pid}")).unwrap();
    eventually("another process", PATIENCE, || async {
        let now = container.property(UNIT, "MainPID")?;
        ensure!(now != "0" && now != pid, "it is still {now}");
        Ok(())
    })
    .await
    .unwrap();
    let log = container.run("journalctl -u firewall-agent").unwrap();
    assert!(log.contains("Watchdog timeout"), "{log}");
    assert_ne!(well(container).await, pid);
    assert_eq!(container.property(UNIT, "NRestarts").unwrap(), "1");
    container
        .run("rm -r /run/systemd/system/firewall-agent.service.d && systemctl daemon-reload")
        .unwrap();
}

/// Of what the agent and its package made nothing is left, of what others made everything.
fn purged(container: &Container, bootstrap: &str, kubeconfig: &str) {
    container.put(&format!("{CONFIG}/note"), "another's", 0o644).unwrap();
    container.run("dpkg -P firewall-agent").unwrap();
    let left = container.run(&format!("ls -A {CONFIG}")).unwrap();
    assert_eq!(
        left.split_whitespace().collect::<Vec<_>>(),
        [".bootstrap.kubeconfig", "note"]
    );
    assert_eq!(container.read(bootstrap).unwrap(), kubeconfig);
    let left = container
        .run("find / -xdev -name '*firewall-agent*' ! -path '/proc/*' ! -path '/var/log/*'")
        .unwrap();
    assert_eq!(left, "");
    let known = container.run("dpkg-query -W firewall-agent 2>&1 || true").unwrap();
    assert!(known.contains("no packages found"), "{known}");
    // Where nobody else has anything the folder goes, too.
    container
        .run(&format!(
            "rm -r {CONFIG} && dpkg -i /root/after.deb; dpkg -P firewall-agent"
        ))
        .unwrap();
    assert!(!container.path(CONFIG).exists());
}
