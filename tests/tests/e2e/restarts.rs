//! Programs that die at any moment: nothing is minted again, nothing is lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::ensure;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use tests::harness::{PATIENCE, eventually};
use tests::programs::{Machine, bootstrap_kubeconfig};
use tests::world::{World, bootstrapped};

use crate::support::{certificate_of, requests_for, token_of};

/// What of ours is secret in the seed, by namespace, name and key: what a restart must not mint again.
async fn minted(world: &World) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let admin = world.admin().await?;
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=firewall-approver");
    let mut minted = BTreeMap::new();
    for secret in Api::<Secret>::all(admin).list(&ours).await? {
        let (namespace, name) = (secret.namespace().unwrap_or_default(), secret.name_any());
        let belongs = secret
            .labels()
            .get("firewall.metal-stack.io/firewall")
            .is_none_or(|f| f.starts_with(world.namespace()));
        if !belongs
            || (namespace != world.namespace() && !["kube-system", "firewall-approver"].contains(&namespace.as_str()))
        {
            continue;
        }
        for (key, value) in secret.data.unwrap_or_default() {
            // Records and dates go on; keys, tokens and ids do not change.
            if [
                "handover-key",
                "key",
                "token-id",
                "token-secret",
                "lifeline",
                "kubeconfig",
            ]
            .contains(&key.as_str())
            {
                minted.insert(format!("{namespace}/{name}/{key}"), value.0);
            }
        }
    }
    Ok(minted)
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_approver_that_is_killed_at_any_step_mints_nothing_again() {
    // Both kinds: the token is derived, the ServiceAccount's has to be restored.
    for kind in ["token", "service-account"] {
        let world = World::new(&format!("shoot--d1--{kind}")).await.unwrap();
        let firewall = world.shoot.create_firewall("00001").await.unwrap();
        let kind = ["--bootstrap-credential", kind];
        let bootstrap = format!("{}/{firewall}-bootstrap-kubeconfig/kubeconfig", world.namespace());
        let lifeline = format!("{}/{firewall}.fw.metal-stack.io/lifeline", world.namespace());
        let mut seen = BTreeMap::new();
        let mut kills = 0;
        // Killed as soon as one thing more of it stands, until all of it stands and a whole start changes nothing.
        while kills < 20 {
            let approver = world.approver_with(&kind).unwrap();
            let stands = seen.contains_key(&bootstrap) && seen.contains_key(&lifeline);
            // A start takes its time on a busy machine.
            let limit = if stands { Duration::from_secs(8) } else { PATIENCE };
            let end = Instant::now() + limit;
            let mut grown = false;
            while Instant::now() < end && !grown {
                let now = minted(&world).await.unwrap();
                for (key, value) in &seen {
                    assert_eq!(now.get(key), Some(value), "{key} was minted again after {kills} kills");
                }
                grown = now.len() > seen.len();
                seen = now;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            approver.kill();
            kills += 1;
            if !grown {
                break;
            }
        }
        assert!(
            kills >= 3,
            "the approver came to its end in {kills} starts: nothing was interrupted"
        );
        assert!(seen.contains_key(&bootstrap), "{:?}", seen.keys());
        assert!(seen.contains_key(&lifeline), "{:?}", seen.keys());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_approver_that_is_killed_while_requests_come_decides_each_once() {
    let world = World::new("shoot--d1--decide").await.unwrap();
    let mut approver = world.approver().unwrap();
    let mut machines = Vec::new();
    for n in 0..4 {
        machines.push(world.machine(&format!("0000{n}")).await.unwrap());
    }
    let agents: Vec<_> = machines.iter().map(|machine| machine.start().unwrap()).collect();
    for pause in [30, 120, 250, 400] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        approver.kill();
        approver = world.approver().unwrap();
    }
    for machine in &machines {
        bootstrapped(machine).await.unwrap();
        world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
        let requests = requests_for(&world, &machine.firewall).await.unwrap();
        assert_eq!(requests.len(), 1, "a request of {} was asked anew", machine.firewall);
        let conditions = requests[0].status.as_ref().unwrap().conditions.as_ref().unwrap();
        assert_eq!(conditions.len(), 1, "{conditions:?}");
    }
    drop(agents);
}

/// Everything in the machine's folders, by path, with what tells one write from another.
fn files(machine: &Machine) -> BTreeMap<String, (u64, Option<SystemTime>)> {
    fn walk(dir: &Path, found: &mut BTreeMap<String, (u64, Option<SystemTime>)>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => walk(&path, found),
                // What is still being written, what a start takes for itself and what only tells of it.
                Ok(_)
                    if [".firewall-agent-", "lock", "status.json", "writable"]
                        .iter()
                        .any(|p| entry.file_name().to_string_lossy().starts_with(p)) => {}
                Ok(meta) => {
                    use std::os::unix::fs::MetadataExt;
                    found.insert(path.display().to_string(), (meta.ino(), meta.modified().ok()));
                }
                Err(_) => {}
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&machine.config(), &mut found);
    walk(&machine.state(), &mut found);
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_agent_that_is_killed_after_each_of_its_writes_goes_on_with_the_same_key_and_request() {
    let world = World::new("shoot--d1--agent").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let key_file = machine.state().join("key.pem");
    let mut key: Option<Vec<u8>> = None;
    let mut kills = 0;
    loop {
        let agent = machine.start().unwrap();
        let before = files(&machine);
        let end = Instant::now() + Duration::from_secs(8);
        let mut written = false;
        while Instant::now() < end {
            if files(&machine) != before {
                written = true;
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        agent.kill();
        kills += 1;
        assert!(kills < 60, "it never comes to rest:\n{}", machine.log());
        if let Some(key) = &key {
            assert_eq!(&fs::read(&key_file).unwrap(), key, "the key changed");
        } else {
            key = fs::read(&key_file).ok();
        }
        // Nothing on disk is ever half: whatever stands under its own name can be read.
        if machine.seed_kubeconfig().exists() {
            certificate_of(&machine).unwrap();
        }
        if machine.shoot_kubeconfig().exists() {
            token_of(&fs::read_to_string(machine.shoot_kubeconfig()).unwrap()).unwrap();
        }
        // At rest, and not just waiting for a busy machine.
        if !written && machine.shoot_kubeconfig().exists() && machine.seed_kubeconfig().exists() {
            break;
        }
    }
    assert!(kills >= 6, "killed {kills} times only");
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    assert_eq!(fs::read(&key_file).unwrap(), key.unwrap());
    let requests = requests_for(&world, &machine.firewall).await.unwrap();
    assert_eq!(
        requests.len(),
        1,
        "the same request all along: {:?}",
        requests.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_work_on_one_shoot_goes_on_while_another_is_broken() {
    let world = World::new("shoot--d2--good").await.unwrap();
    let broken = World::new("shoot--d2--broken").await.unwrap();
    // The other shoot's Secret leads nowhere.
    let nowhere = world
        .shoot
        .cluster
        .server_url()
        .rsplit_once(':')
        .map(|(host, _)| format!("{host}:1"))
        .unwrap();
    broken.shoot.write_approver_access_to(&nowhere).await.unwrap();
    let namespaces = ["--namespace", world.namespace(), "--namespace", broken.namespace()];
    let _approver = world.home.start(&namespaces).unwrap();
    let stuck = broken.shoot.create_firewall("00001").await.unwrap();
    let machine = world.machine("00001").await.unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    // The bad one is named, and its firewall's seed access is provided all the same.
    let state = eventually("the unreachable shoot named", PATIENCE, || async {
        let state = broken.state(&stuck).await?;
        ensure!(state["reason"] == "ShootUnreachable", "{state}");
        Ok(state)
    })
    .await
    .unwrap();
    assert!(
        state["message"].as_str().unwrap().contains("cannot be reached"),
        "{state}"
    );
    bootstrap_kubeconfig(broken.seed, broken.namespace(), &stuck)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_key_or_a_link_that_was_lost_comes_back_from_the_last_good_pair() {
    let world = World::new("shoot--d1--lost").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let agent = machine.start().unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    agent.kill();
    let (issued, key) = (
        certificate_of(&machine).unwrap(),
        fs::read(machine.state().join("key.pem")).unwrap(),
    );
    fs::remove_file(machine.state().join("key.pem")).unwrap();
    fs::remove_file(machine.state().join("current.pem")).unwrap();
    let _agent = machine.start().unwrap();
    eventually("the pair", PATIENCE, || async {
        ensure!(certificate_of(&machine)?.serial == issued.serial, "another certificate");
        ensure!(fs::read(machine.state().join("key.pem"))? == key, "another key");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(requests_for(&world, &machine.firewall).await.unwrap().len(), 1);
}
