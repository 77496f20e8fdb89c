//! A9, B2, C1: what a real client-go program on the machine sees of a planned roll, which is nothing; and what one that
//! reads its kubeconfig at its start only sees of all that can happen, with nobody but the agent's hook to restart it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use contract::digest::sha256_hex;
use jiff::{SignedDuration, Timestamp};
use tests::consumer::Kind;
use tests::harness::{Cluster, PATIENCE, eventually};
use tests::moves::{Leaves, Stage, tail};
use tests::programs::Machine;
use tests::soak::{Plan, run};
use tests::unit::{Hook, Unit};
use tests::world::{World, other_seed, own_seed, shoot_cluster};
use tokio::time::sleep;

use crate::moves::{PROMISED, settled};
use crate::support::{certificate_of, renewed};

/// The hook is run no more often, and what is to be told waits for that.
const BETWEEN: Duration = Duration::from_secs(60);
/// The hook itself says when it was run, and no two start equally fast.
const STARTS: Duration = Duration::from_secs(1);
/// From the Firewall's appearance in the new seed to the first good request there: the agent's way into it, the hook, and
/// the start of a program.
const RECOVERED: Duration = Duration::from_secs(PROMISED.as_secs() + 5);

/// `make soak` is the same for 12 minutes.
#[tokio::test(flavor = "multi_thread")]
async fn b2_c1_both_cas_are_rolled_and_no_request_of_a_consumer_fails() {
    let seed = own_seed("seed-soak").await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    let plan = Plan::new(Duration::from_secs(120), Kind::Watching);
    let sums = run(&seed, shoot, "shoot--soak--minutes", plan).await.unwrap();
    println!("{sums:?}");
    assert_eq!(sums.failed, 0, "{sums:?}");
    // Another certificate, one CA more, one CA less.
    assert!(sums.clients >= 3, "{sums:?}");
    // Beside other tests on a busy machine, it still asked all the time.
    assert!(sums.requests >= 600 && sums.other * 10 <= sums.requests, "{sums:?}");
}

/// The hook was run for the kubeconfig as it stands.
async fn told(machine: &Machine) {
    eventually("the hook", BETWEEN + PATIENCE, || async {
        let handled = fs::read_to_string(machine.state().join("handled.json"))?;
        let handled: serde_json::Value = serde_json::from_str(&handled)?;
        let hash = sha256_hex(&fs::read(machine.seed_kubeconfig())?);
        ensure!(handled["told"] == hash, "not run");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
}

/// Until its kubeconfig trusts what the seed publishes, and its consumer knows.
async fn trusts(machine: &Machine, seed: &Cluster) {
    eventually("the CAs of now on the machine", PATIENCE, || async {
        let text = fs::read_to_string(machine.seed_kubeconfig())?;
        let found = contract::kubeconfig::Kubeconfig::read_local("it", &text)?.ca;
        ensure!(found.pem().trim() == seed.server_ca_pem().trim(), "others");
        Ok(())
    })
    .await
    .with_context(|| tail(&machine.log()))
    .unwrap();
    told(machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_b2_c1_todays_consumer_goes_through_renewal_roll_and_move_restarted_by_the_hook_alone() {
    let seed = own_seed("seed-today").await.unwrap();
    let (other, shoot) = (other_seed().await.unwrap(), shoot_cluster().await.unwrap());
    let stage = Stage::between(&seed, other, shoot, "shoot--c1--today").await.unwrap();
    let Stage { a, b } = &stage;
    let _approvers = [a.approver().unwrap(), b.approver().unwrap()];
    let machine = a.machine("00001").await.unwrap();
    let hook = Hook::of(&machine).unwrap();
    let mut agent = machine.start_with(&["--hook", &hook.command()]).unwrap();
    settled(a, &machine).await;
    told(&machine).await;
    assert_eq!(hook.runs().unwrap().len(), 1, "once for the first kubeconfig");
    let unit = Unit::start(&machine, &hook).await.unwrap();
    // Whatever it has in its hands in the beginning is from here on somebody's to keep good.
    sleep(Duration::from_secs(2)).await;

    // It reads certificate and key again by itself.
    let old = certificate_of(&machine).unwrap();
    a.annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=once")
        .await
        .unwrap();
    renewed(&machine, &old, PATIENCE).await.unwrap();
    told(&machine).await;
    assert_eq!(hook.runs().unwrap().len(), 1, "a renewal restarts nobody");

    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    a.home.renew(&seed).await.unwrap();
    trusts(&machine, &seed).await;
    assert_eq!(hook.runs().unwrap().len(), 2, "once for the CA that is new");
    roll.switch_signer().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    roll.drop_old().await.unwrap();
    trusts(&machine, &seed).await;
    let runs = hook.runs().unwrap();
    assert_eq!(runs.len(), 3, "once for the CA that is gone");

    // A move within a minute of that would be told at its end.
    let free = runs[2] + SignedDuration::try_from(BETWEEN).unwrap();
    let wait = Timestamp::now().duration_until(free).max(SignedDuration::ZERO);
    sleep(wait.unsigned_abs()).await;
    let leaves = Timestamp::now();
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let appeared = Timestamp::now() - SignedDuration::try_from(began.elapsed()).unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    told(&machine).await;
    sleep(RECOVERED).await;
    assert!(agent.runs());

    let requests = unit.stop().await.unwrap();
    let runs = hook.runs().unwrap();
    let took = runs[3].duration_since(appeared);
    println!(
        "{} requests, {} lost in the move, restarted {took:#} after the Firewall was in the new seed",
        requests.count,
        requests.lost.len()
    );
    assert_eq!((runs.len(), requests.starts), (4, 4), "{runs:?}");
    for two in runs.windows(2) {
        assert!(
            two[1].duration_since(two[0]).unsigned_abs() >= BETWEEN - STARTS,
            "{runs:?}"
        );
    }
    assert!(requests.count >= 500, "{requests:?}");
    let until = appeared + SignedDuration::try_from(RECOVERED).unwrap();
    for (time, error) in &requests.lost {
        assert!((leaves..until).contains(time), "{time}: {error}; it left at {leaves}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_hook_that_fails_is_said_and_run_again_and_a_restart_of_the_agent_makes_it_no_more_frequent() {
    let world = World::new("shoot--c1--fails").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let hook = Hook::of(&machine).unwrap();
    hook.fails(true).unwrap();
    let command = hook.command();
    let agent = machine.start_with(&["--hook", &command]).unwrap();
    settled(&world, &machine).await;
    eventually("the failure in the status", PATIENCE, || async {
        let status = machine.status()?;
        ensure!(status.contains("restart failed: exit status: 3"), "{status}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(machine.log().contains("restart failed: exit status: 3"));
    hook.fails(false).unwrap();
    agent.kill();
    let _agent = machine.start_with(&["--hook", &command]).unwrap();
    told(&machine).await;
    let runs = hook.runs().unwrap();
    assert!(runs.len() == 2, "{runs:?}");
    let between = runs[1].duration_since(runs[0]).unsigned_abs();
    assert!((BETWEEN - STARTS..BETWEEN * 2).contains(&between), "{between:?}");
    assert!(!machine.status().unwrap().contains("restart failed"));
}
