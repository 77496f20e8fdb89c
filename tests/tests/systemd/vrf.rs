//! The VRF that the agent enters before anything else. Not every kernel has VRFs, so `ip` is played here by a script that
//! writes down how it was called; an interface that every machine has stands for the VRF.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::geteuid;
use tests::harness::{PATIENCE, eventually};
use tests::programs::{Machine, Program};

use crate::machine;

/// The rights that entering takes: CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_BPF.
const RIGHTS: u64 = 1 << 12 | 1 << 21 | 1 << 39;

/// Runs the command where it is, as the very process, as the real one does.
fn put_ip(machine: &Machine) -> String {
    let bin = machine.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let ip = bin.join("ip");
    let calls = machine.path().join("calls").display().to_string();
    let text =
        format!("#!/bin/sh\necho \"$$ $*\" >>{calls}\n[ \"$1 $2\" = 'vrf exec' ] || exit 1\nshift 3\nexec \"$@\"\n");
    fs::write(&ip, text).unwrap();
    fs::set_permissions(&ip, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

fn calls(machine: &Machine) -> Vec<String> {
    let text = fs::read_to_string(machine.path().join("calls")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn says(agent: &Program, word: &str) {
    eventually(word, PATIENCE, || async {
        anyhow::ensure!(agent.log().contains(word), "{}", agent.log());
        Ok(())
    })
    .await
    .unwrap();
}

fn rights(status: &Path, set: &str) -> u64 {
    let text = fs::read_to_string(status).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(set)).unwrap();
    u64::from_str_radix(found.trim_start_matches(':').trim(), 16).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_enters_the_vrf_as_the_same_process_once_and_keeps_no_right_that_only_that_took() {
    let machine = machine();
    let path = put_ip(&machine);
    let agent = machine
        .start_in(&[("PATH", &path), ("FIREWALL_AGENT_VRF", "lo")])
        .unwrap();
    says(&agent, "runs in a VRF").await;
    says(&agent, "started, bootstrapping").await;
    let program = machine.program().unwrap().canonicalize().unwrap();
    let called = format!("{} vrf exec lo {} run --config-dir", agent.id(), program.display());
    let calls = calls(&machine);
    assert!(calls.len() == 1 && calls[0].starts_with(&called), "{calls:?}\n{called}");
    // Each of its threads, and nothing gets them back.
    let mut threads = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", agent.id())).unwrap() {
        let status = thread.unwrap().path().join("status");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(rights(&status, set) & RIGHTS, 0, "{set} of {}", status.display());
        }
        assert_eq!(rights(&status, "NoNewPrivs"), 1);
        threads += 1;
    }
    assert!(threads > 1, "{threads}");
    // Whoever has none shows nothing by not keeping them.
    if geteuid().is_root() {
        assert_ne!(rights(Path::new("/proc/self/status"), "CapPrm") & RIGHTS, 0);
    }
    assert_eq!(agent.stop().await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vrf_that_is_not_there_yet_or_cannot_be_entered_is_named_and_nothing_is_begun() {
    let machine = machine();
    let path = put_ip(&machine);
    let absent = [("PATH", path.as_str()), ("FIREWALL_AGENT_VRF", "vrf-of-tomorrow")];
    let mut agent = machine.start_in(&absent).unwrap();
    assert_eq!(agent.ended(PATIENCE).await.unwrap(), Some(1));
    assert!(
        agent.log().contains("VRF vrf-of-tomorrow is not there (yet)"),
        "{}",
        agent.log()
    );

    // Nothing is there that could be run.
    let nothing = [("PATH", "/nowhere"), ("FIREWALL_AGENT_VRF", "lo")];
    let mut agent = machine.start_in(&nothing).unwrap();
    assert_eq!(agent.ended(PATIENCE).await.unwrap(), Some(1));
    assert!(agent.log().contains("is iproute2 installed?"), "{}", agent.log());
    assert!(calls(&machine).is_empty() && !machine.state().join("key.pem").exists());

    let odd = [("FIREWALL_AGENT_VRF", "a/b")];
    let mut agent = machine.start_in(&odd).unwrap();
    assert_eq!(agent.ended(PATIENCE).await.unwrap(), Some(2));
    assert!(agent.log().contains("--vrf (FIREWALL_AGENT_VRF)"), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_vrf_it_runs_where_it_is_and_drops_the_rights_all_the_same() {
    let machine = machine();
    let path = put_ip(&machine);
    let agent = machine
        .start_in(&[("PATH", &path), ("FIREWALL_AGENT_VRF", "none")])
        .unwrap();
    says(&agent, "started, bootstrapping").await;
    assert!(
        calls(&machine).is_empty() && !agent.log().contains("VRF"),
        "{}",
        agent.log()
    );
    let status = format!("/proc/{}/status", agent.id());
    assert_eq!(rights(Path::new(&status), "CapPrm") & RIGHTS, 0);
    // Of the machine that only asks for its state nothing is wanted.
    machine.command("status", &[]).unwrap();
    assert!(calls(&machine).is_empty());
}

/// What it was entered by is told here as of another interface: so it looks to an agent whose VRF is made anew under it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_vrf_was_made_anew_ends_in_good_order_as_a_failure_and_says_why() {
    let machine = machine();
    let path = put_ip(&machine);
    let before = [
        ("PATH", path.as_str()),
        ("FIREWALL_AGENT_VRF", "lo"),
        ("VRF_ENTERED", "lo:99"),
    ];
    let mut agent = machine.start_in(&before).unwrap();
    says(&agent, "started, bootstrapping").await;
    assert_eq!(agent.ended(PATIENCE).await.unwrap(), Some(1));
    let log = agent.log();
    assert!(
        log.contains("VRF lo was made anew (interface 99 before, 1 now)"),
        "{log}"
    );
    assert!(log.contains("stopped"), "{log}");
    assert!(calls(&machine).is_empty(), "it was in already");
}
