//! Programs that are killed in the midst of a move, at every point: it ends with working access, one key, at most one
//! undecided request and no second token.

use std::fs;
use std::time::Duration;

use tests::moves::{Leaves, Stage, tail};
use tests::programs::{KilledAt, Machine};
use tests::world::Place;
use tokio::time::Instant;

use crate::moves::{both, came_in, settled};
use crate::support::{certificate_of, requests_for};

/// The state folder's content that a move changes; the report and the status say nothing about it.
fn written(machine: &Machine) -> Vec<(String, Option<std::time::SystemTime>, u64)> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    for folder in [machine.state(), machine.config(), machine.state().join("pairs")] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = [".firewall-agent-", "lock", "status.json", "writable", ".shoot"];
            if let Ok(meta) = fs::symlink_metadata(entry.path())
                && !meta.is_dir()
                && !ours.iter().any(|start| name.starts_with(start))
            {
                found.push((name, meta.modified().ok(), meta.ino()));
            }
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_agent_that_is_killed_after_each_write_of_a_move_comes_in_with_one_key_and_one_request() {
    let stage = Stage::new("shoot--disaster--agent").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    agent.kill();
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let mut kills = 0;
    // Killed as soon as it has written one thing more, until it writes nothing more.
    loop {
        let agent = machine.start().unwrap();
        let before = written(&machine);
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && written(&machine) == before {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        let more = written(&machine) != before;
        agent.kill();
        kills += 1;
        assert_eq!(machine.key().unwrap(), key);
        certificate_of(&machine).unwrap();
        undecided(b, &machine).await;
        assert!(kills < 60, "it never comes to rest:\n{}", tail(&machine.log()));
        if !more {
            break;
        }
    }
    println!("killed {kills} times");
    assert!(kills >= 5, "nothing was interrupted");
    let _agent = machine.start().unwrap();
    b.has(&machine, began, Duration::from_secs(600)).await.unwrap();
    settled(b, &machine).await;
    one_token(b).await;
}

/// Killed when it enters a system call for the first time, then for the second time, and so on, until nothing kills it any
/// more. Each start goes on from what the one before had left.
#[tokio::test(flavor = "multi_thread")]
async fn d1_an_agent_that_is_killed_at_each_system_call_of_a_move_comes_in_with_one_key() {
    let stage = Stage::new("shoot--kill--agent").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    agent.kill();
    let (mut from, mut to) = (a, b);
    for syscall in [
        "rename,renameat,renameat2",
        "fsync",
        "connect",
        "sendto",
        "writev,sendmsg",
    ] {
        let began = from.move_to(to, Leaves::Nothing).await.unwrap();
        let mut kills = 0;
        for nth in 1.. {
            let mut agent = machine.start_killed(&[], Some(KilledAt { syscall, nth })).unwrap();
            let killed = agent.ended(Duration::from_secs(6)).await.is_ok();
            agent.kill();
            assert_eq!(machine.key().unwrap(), key);
            certificate_of(&machine).unwrap();
            undecided(to, &machine).await;
            if !killed {
                break;
            }
            kills += 1;
            assert!(kills < 80, "it never comes to rest:\n{}", tail(&machine.log()));
        }
        println!("killed {kills} times at {syscall}");
        let _agent = machine.start().unwrap();
        to.has(&machine, began, Duration::from_secs(600)).await.unwrap();
        settled(to, &machine).await;
        one_token(to).await;
        (from, to) = (to, from);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_approver_that_is_killed_at_each_call_of_a_move_makes_no_second_token() {
    let stage = Stage::new("shoot--kill--approver").await.unwrap();
    let Stage { a, b } = &stage;
    let _a = a.approver().unwrap();
    let (machine, _agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let namespace = ["--namespace", b.namespace()];
    // At its first send, at its second one, and so on, until the firewall has come in under that.
    let syscall = "writev,sendmsg,sendto";
    let mut kills = 0;
    for nth in 1.. {
        let mut approver = b
            .home
            .start_killed(&namespace, Some(KilledAt { syscall, nth }))
            .unwrap();
        let killed = approver.ended(Duration::from_secs(20)).await.is_ok();
        approver.kill();
        one_token(b).await;
        undecided(b, &machine).await;
        let record = b.record(&machine.firewall).await.unwrap();
        if record["handover"].is_null() && record["generation"].as_u64() >= Some(1) {
            break;
        }
        assert!(
            killed,
            "it sends nothing more, and the firewall has not come in: {record}"
        );
        kills += 1;
        assert!(kills < 300, "it never comes in: {record}");
    }
    println!("killed {kills} times");
    assert!(kills >= 40, "{kills} kills: it was not interrupted at each send");
    let _b = b.approver().unwrap();
    b.has(&machine, began, Duration::from_secs(600)).await.unwrap();
    settled(b, &machine).await;
    one_token(b).await;
    assert_eq!(machine.key().unwrap(), key);
    for request in requests_for(b, &machine.firewall).await.unwrap() {
        let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
        assert!(
            conditions.is_some_and(|conditions| conditions.len() == 1),
            "{request:?}"
        );
    }
}

async fn undecided(place: &Place<'_>, machine: &Machine) {
    let requests = requests_for(place, &machine.firewall).await.unwrap();
    let undecided = requests
        .iter()
        .filter(|request| request.status.as_ref().is_none_or(|status| status.conditions.is_none()));
    assert!(undecided.count() <= 1, "more than one undecided request");
}

/// Of all tokens that were ever made here for this shoot there is at most one.
async fn one_token(place: &Place<'_>) {
    let label = format!("firewall.metal-stack.io/namespace={}", place.namespace());
    let args = ["get", "secret", "-n", "kube-system", "-l", &label, "-o", "name"];
    let tokens = place.seed.kubectl_ok(&args).await.unwrap();
    assert!(tokens.lines().count() <= 1, "{tokens}");
}
