//! The approver's own access: it goes on when that is written anew, and with no worse one.

use std::fs;
use std::time::Duration;

use anyhow::ensure;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use contract::key::PrivateKey;
use tests::harness::{Cluster, eventually};
use tests::programs::{ApproverHome, Pod};
use tests::world::{Place, own_seed, seed, shoot_cluster};

use crate::moves::{EVENTUALLY, came_in};
use crate::support::token_of;

async fn place_in<'a>(seed: &'a Cluster, namespace: &str) -> Place<'a> {
    let place = Place::empty(seed, shoot_cluster().await.unwrap(), namespace)
        .await
        .unwrap();
    place.settle().await.unwrap();
    place
}

/// How often the approver has said so.
fn said(home: &ApproverHome, what: &str) -> usize {
    home.log().matches(what).count()
}

async fn says(home: &ApproverHome, what: &str, before: usize, limit: Duration) {
    eventually(what, limit, || async {
        ensure!(said(home, what) > before, "not yet:\n{}", home.log());
        Ok(())
    })
    .await
    .unwrap();
}

const FOLLOWED: &str = "gone on with it";
const KEPT: &str = "what was there before stays in use";

#[tokio::test(flavor = "multi_thread")]
async fn d4_the_approver_outlives_its_token_and_the_ca_of_its_kubeconfig_without_a_restart() {
    let seed = own_seed("seed-follows").await.unwrap();
    let place = place_in(&seed, "shoot--follows--both").await;
    let mut approver = place.approver().unwrap();
    let (_first, _agent) = came_in(&place, "00001").await;

    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    seed.roll_service_account_key(true).await.unwrap();
    place.home.renew(&seed).await.unwrap();
    says(&place.home, FOLLOWED, 0, EVENTUALLY).await;
    // From here on whoever has the old token or the old CA alone is nobody, and sees nobody.
    roll.switch_signer().await.unwrap();
    roll.drop_old().await.unwrap();
    seed.drop_old_service_account_key().await.unwrap();
    let (_second, _other) = came_in(&place, "00002").await;
    assert!(approver.runs(), "{}", place.home.log());
    assert_eq!(said(&place.home, FOLLOWED), 1, "{}", place.home.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_a_kubeconfig_that_is_broken_refused_or_of_another_seed_changes_nothing() {
    let place = place_in(seed().await.unwrap(), "shoot--follows--worse").await;
    let other = own_seed("seed-follows-not").await.unwrap();
    let mut approver = place.approver().unwrap();
    let file = place.home.kubeconfig();
    let good = fs::read_to_string(&file).unwrap();
    let elsewhere = ApproverHome::new(&other).await.unwrap();
    let elsewhere = fs::read_to_string(elsewhere.kubeconfig()).unwrap();
    let refused = place.seed.kubeconfig_with_token("none");
    says(&place.home, "serving this seed", 0, EVENTUALLY).await;

    let token = token_of(&good).unwrap();
    let in_the_token = good.find(&token).unwrap() + token.len() - 5;
    let key = BASE64_STANDARD.encode(PrivateKey::generate().unwrap().to_pem().as_str());
    let misplaced = format!("{{\"client-key\": \"{key}\", ");
    let misplaced = good.replacen("{\"token\":", &format!("{misplaced}\"token\":"), 1);
    assert_ne!(misplaced, good);
    let may = [
        "create",
        "clusterrole",
        "follows",
        "--verb=get",
        "--resource=namespaces",
    ];
    place.seed.kubectl_ok(&may).await.unwrap();
    let bound = [
        "create",
        "clusterrolebinding",
        "follows",
        "--clusterrole=follows",
        "--user=follows",
    ];
    place.seed.kubectl_ok(&bound).await.unwrap();
    let other = place.seed.kubeconfig_for("follows", &[]).unwrap();
    let admin = place.seed.admin_kubeconfig();
    for (what, text, why) in [
        ("cut off", &good[..in_the_token], "cut off"),
        ("empty", "", "kubeconfig"),
        ("refused", &refused, "does not accept our credential"),
        ("another seed's", &elsewhere, "leads to another cluster"),
        ("a key where a file was meant", &misplaced, "that client-key names"),
        ("of other rights", &other, "lacks permissions"),
        ("held by no policy", &admin, "do not hold the approver"),
        (
            "without a CA",
            &good.replace("certificate-authority-data", "some-data"),
            "certificate-authority",
        ),
    ] {
        let before = said(&place.home, KEPT);
        fs::write(&file, text).unwrap();
        says(&place.home, KEPT, before, EVENTUALLY).await;
        let log = place.home.log();
        let line = log.lines().rfind(|line| line.contains(KEPT)).unwrap_or_default();
        println!("{what}: {line}");
        assert!(line.contains(why), "{what}: {line}");
    }
    assert!(!place.home.log().contains(&key[100..140]));
    // Nor is any part of the file shown of what cannot be read.
    assert!(!place.home.log().contains(&token[token.len() - 20..token.len() - 5]));
    // What was tried and refused leaves no request behind at each look.
    let tried = selftests(&place).await;
    assert!(tried > 0);
    fs::write(&file, &admin).unwrap();
    tokio::time::sleep(LOOKS).await;
    assert_eq!(selftests(&place).await, tried, "{}", place.home.log());
    let (_machine, _agent) = came_in(&place, "00001").await;
    let before = said(&place.home, KEPT);
    fs::write(&file, &good).unwrap();
    assert_eq!(said(&place.home, KEPT), before, "{}", place.home.log());
    assert_eq!(said(&place.home, FOLLOWED), 0, "{}", place.home.log());
    assert!(approver.runs());
}

/// More than two looks of the approver at its kubeconfig.
const LOOKS: Duration = Duration::from_secs(25);

/// How many requests self-tests made with the administrator's kubeconfig.
async fn selftests(place: &Place<'_>) -> usize {
    let args = [
        "get",
        "csr",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}/{.spec.username}{\"\\n\"}{end}",
    ];
    let made = place.seed.kubectl_ok(&args).await.unwrap();
    let own = place
        .seed
        .kubectl_ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])
        .await
        .unwrap();
    let mut made = made.lines().filter_map(|line| line.split_once('/'));
    made.by_ref()
        .filter(|(name, user)| name.starts_with("firewall-selftest-") && *user == own)
        .count()
}

/// A client reads a pod's token and CAs again once a minute.
const POD_FOLLOWS: Duration = Duration::from_secs(65);

#[tokio::test(flavor = "multi_thread")]
async fn d4_in_a_pod_the_approver_outlives_its_token_and_the_ca_too() {
    let seed = own_seed("seed-pod").await.unwrap();
    let place = place_in(&seed, "shoot--follows--pod").await;
    let pod = Pod::new().unwrap();
    let only = ["--namespace", place.namespace()];
    let mut approver = place.home.start_in_pod(&pod, &seed, &only).await.unwrap();
    let (_first, _agent) = came_in(&place, "00001").await;

    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    seed.roll_service_account_key(true).await.unwrap();
    pod.refresh(&seed).await.unwrap();
    tokio::time::sleep(POD_FOLLOWS).await;
    roll.switch_signer().await.unwrap();
    roll.drop_old().await.unwrap();
    seed.drop_old_service_account_key().await.unwrap();
    let (_second, _other) = came_in(&place, "00002").await;
    assert!(approver.runs(), "{}", place.home.log());
}
