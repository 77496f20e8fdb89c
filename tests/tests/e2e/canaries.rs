//! The CA that client certificates come from changes. In good order nobody notices; in no order the approver finds it out
//! by its canaries, and the firewall comes in anew. A seed that is at fault with itself has nobody handed over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::failure::{Class, classify};
use cluster::firewall::Firewall;
use kube::{Api, Client};
use tests::harness::{Cluster, eventually};
use tests::moves::tail;
use tests::programs::Machine;
use tests::world::{Place, own_seed, shoot_cluster};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::moves::{EVENTUALLY, came_in};
use crate::support::{certificate_of, client_of, renewed};

/// So soon the approver knows of a CA that is refused.
pub(crate) const FOUND: Duration = Duration::from_secs(10);
/// A firewall reads every 10 s what its seed tells it.
const RENEWED: Duration = Duration::from_secs(25);
/// Longer than any verdict takes.
const A_WHILE: Duration = Duration::from_secs(15);

async fn place<'a>(seed: &'a Cluster, namespace: &str) -> Place<'a> {
    let shoot = shoot_cluster().await.unwrap();
    let place = Place::empty(seed, shoot, namespace).await.unwrap();
    place.settle().await.unwrap();
    place
}

/// Somebody on the machine who goes to the seed several times a second, with what lies there at that time.
pub(crate) struct Consumer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(u32, Vec<String>)>,
}

impl Consumer {
    pub(crate) fn start(machine: &Machine) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (kubeconfig, namespace, name) = (
            machine.seed_kubeconfig(),
            machine.namespace.clone(),
            machine.firewall.clone(),
        );
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let (mut requests, mut failed) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                match client_of(&kubeconfig).await {
                    Ok(client) => {
                        let firewalls: Api<Firewall> = Api::namespaced(client, &namespace);
                        requests += 1;
                        if let Err(error) = firewalls.get(&name).await
                            // A server that is down is no fault of a certificate.
                            && !matches!(classify(&error), Class::Unreachable | Class::Busy)
                        {
                            failed.push(error.to_string());
                        }
                    }
                    Err(error) => failed.push(format!("{error:#}")),
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            (requests, failed)
        });
        Self { stop, task }
    }

    pub(crate) async fn unharmed(self) {
        self.stop.store(true, Ordering::Relaxed);
        let (requests, failed) = self.task.await.unwrap();
        assert!(
            requests > 20 && failed.is_empty(),
            "{requests} requests, failed: {failed:?}"
        );
    }
}

async fn restart_apiserver(seed: &Cluster) {
    seed.stop_apiserver().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    seed.start_apiserver().await.unwrap();
}

/// How many CAs the seed publishes.
pub(crate) async fn published(admin: Client) -> usize {
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(admin, "kube-system");
    let map = maps.get("extension-apiserver-authentication").await.unwrap();
    map.data.unwrap()["client-ca-file"].matches("BEGIN CERTIFICATE").count()
}

pub(crate) async fn logged(place: &Place<'_>, words: &str, limit: Duration) {
    eventually(&format!("{words} in the log"), limit, || async {
        ensure!(place.home.log().contains(words), "not there");
        Ok(())
    })
    .await
    .with_context(|| tail(&place.home.log()))
    .unwrap();
}

async fn never_handed_over(place: &Place<'_>, machine: &Machine) {
    let record = place.record(&machine.firewall).await.unwrap();
    assert!(record["handover"].is_null() && record["generation"] == 0, "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_b2_a_client_ca_that_is_rolled_in_good_order_is_noticed_by_nobody() {
    let seed = own_seed("seed-rolled").await.unwrap();
    let a = place(&seed, "shoot--canary--roll").await;
    let _approver = a.approver().unwrap();
    let (machine, _agent) = came_in(&a, "00001").await;
    let before = certificate_of(&machine).unwrap();
    let key = machine.key().unwrap();
    logged(&a, "certificates come from this issuer", EVENTUALLY).await;
    let record = a.record(&machine.firewall).await.unwrap();
    let issuer = record["certificate"]["issuerKey"].clone();
    assert_eq!(issuer.as_str().unwrap().len(), 64, "{record}");
    let consumer = Consumer::start(&machine);

    let roll = seed.roll_client_ca().unwrap();
    roll.add().await.unwrap();
    let switched = Instant::now();
    roll.switch_signer().await.unwrap();
    let after = renewed(&machine, &before, RENEWED).await;
    let after = after.with_context(|| tail(&a.home.log())).unwrap();
    println!("renewed {:.1?} after the new CA began to sign", switched.elapsed());
    a.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    let record = a.record(&machine.firewall).await.unwrap();
    assert!(record["certificate"]["issuerKey"] != issuer, "{record}");
    // Once.
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(certificate_of(&machine).unwrap().serial, after.serial);

    consumer.unharmed().await;
    // While it starts, an API server forbids everybody everything: that is no certificate's fault.
    restart_apiserver(&seed).await;
    let consumer = Consumer::start(&machine);
    roll.drop_old().await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    consumer.unharmed().await;
    restart_apiserver(&seed).await;
    tokio::time::sleep(A_WHILE).await;
    a.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    never_handed_over(&a, &machine).await;
    assert_eq!(certificate_of(&machine).unwrap().serial, after.serial);
    assert_eq!(machine.key().unwrap(), key);
    // The old one's end was seen, and was nobody's.
    let log = a.home.log();
    assert!(
        log.contains("IssuerRefused") && !log.contains("SignerNotTrusted"),
        "{}",
        tail(&log)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_b2_a_client_ca_that_is_dropped_at_once_is_found_by_the_canary() {
    let seed = own_seed("seed-dropped").await.unwrap();
    let a = place(&seed, "shoot--canary--drop").await;
    let _approver = a.approver().unwrap();
    let (machine, _agent) = came_in(&a, "00001").await;
    let before = certificate_of(&machine).unwrap();
    logged(&a, "certificates come from this issuer", EVENTUALLY).await;

    let dropped = Instant::now();
    let roll = seed.roll_client_ca().unwrap();
    roll.replace().await.unwrap();
    let effect = dropped.elapsed();
    a.await_reason(&machine.firewall, "IssuerRefused").await.unwrap();
    let found = dropped.elapsed();
    assert_eq!(
        published(a.admin().await.unwrap()).await,
        2,
        "the seed has forgotten the old one"
    );
    let after = renewed(&machine, &before, EVENTUALLY).await.unwrap();
    a.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    println!(
        "refused after {effect:.1?}, found after {found:.1?}, back after {:.1?}",
        dropped.elapsed()
    );
    assert!(found < FOUND, "found after {found:?}");
    assert_ne!(after.serial, before.serial);
    a.keeps(&machine, Duration::from_secs(3)).await.unwrap();
    let record = a.record(&machine.firewall).await.unwrap();
    assert!(record["handover"].is_null(), "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b2_a_signer_whose_ca_the_seed_does_not_trust_has_nobody_handed_over() {
    let seed = own_seed("seed-at-odds").await.unwrap();
    let a = place(&seed, "shoot--canary--odds").await;
    let _approver = a.approver().unwrap();
    let (machine, _agent) = came_in(&a, "00001").await;
    let before = certificate_of(&machine).unwrap();
    logged(&a, "certificates come from this issuer", EVENTUALLY).await;
    let consumer = Consumer::start(&machine);

    let roll = seed.roll_client_ca().unwrap();
    roll.switch_signer().await.unwrap();
    // Whoever renews now is the first to be told nonsense; nobody falls for it.
    a.annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=now")
        .await
        .unwrap();
    logged(&a, "SignerNotTrusted", EVENTUALLY).await;
    tokio::time::sleep(A_WHILE).await;
    consumer.unharmed().await;
    restart_apiserver(&seed).await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(certificate_of(&machine).unwrap().serial, before.serial);
    never_handed_over(&a, &machine).await;
    let events = seed
        .kubectl_ok(&["get", "events", "-n", "default", "-o", "wide"])
        .await
        .unwrap();
    assert!(events.contains("SignerNotTrusted"), "{events}");

    // It is mended: the server trusts what is issued.
    roll.add().await.unwrap();
    logged(&a, "accepts what its signer issues", EVENTUALLY).await;
    tokio::time::sleep(A_WHILE).await;
    never_handed_over(&a, &machine).await;
    a.keeps(&machine, Duration::from_secs(3)).await.unwrap();
}
