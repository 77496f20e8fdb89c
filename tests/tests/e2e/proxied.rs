//! Behind a proxy that ends TLS, as a managed seed's ingress does: a client certificate that it does not trust is
//! refused in the handshake, by an alert, and who somebody is the API server reads from the proxy's headers.

use anyhow::{Context, ensure};
use kube::Client;
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions, FrontProxy, HaProxy, Pair, client_from, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, Machine};
use tests::world::{Place, install_seed, seed, shoot_cluster};
use tokio::time::Instant;

use crate::canaries::{FOUND, logged, published};
use crate::moves::{EVENTUALLY, came_in, settled};
use crate::support::{certificate_of, client_of, renewed, user_of};

/// A seed that stands behind such a proxy; the proxy has to be started before it.
async fn seed_behind(front: &FrontProxy, name: &str) -> Cluster {
    // The shoot has to know its types first.
    seed().await.unwrap();
    let options = ClusterOptions {
        apiserver_args: front.apiserver_args(),
        ..ClusterOptions::new(name)
    };
    let own = Cluster::start(options).await.unwrap();
    tests::upstream::install_crds(&own, shoot_cluster().await.unwrap())
        .await
        .unwrap();
    install_seed(&own).await.unwrap();
    own
}

async fn place_behind<'a>(proxy: &HaProxy<'_>, seed: &'a Cluster, namespace: &str) -> Place<'a> {
    let shoot = shoot_cluster().await.unwrap();
    let mut place = Place::empty(seed, shoot, namespace).await.unwrap();
    place.home = ApproverHome::with_server(seed, &proxy.url()).await.unwrap();
    place.settle().await.unwrap();
    place
}

/// Who the API server takes somebody for who sends these headers.
async fn user_with(client: &Client, headers: &[(&str, &str)]) -> anyhow::Result<Value> {
    let mut request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let review: Value = client.request(request.body(body.to_string().into_bytes())?).await?;
    Ok(review["status"]["userInfo"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_a7_a_firewall_comes_in_and_renews_behind_a_proxy_that_ends_tls() {
    let front = FrontProxy::new().unwrap();
    let seed = seed_behind(&front, "seed-proxied").await;
    let proxy = front.before(&seed).await.unwrap();
    let place = place_behind(&proxy, &seed, "shoot--a2--proxied").await;
    let _approver = place.approver().unwrap();
    let (machine, _agent) = came_in(&place, "00001").await;

    let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
    let user = format!("fw.metal-stack.io:{}", machine.firewall);
    // Nobody becomes another by a header of his own.
    let claim = [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")];
    let found = user_with(&client, &claim).await.unwrap();
    assert_eq!(found["username"], user.as_str(), "{found}");
    let groups = json!(["fw.metal-stack.io:firewalls", "system:authenticated"]);
    assert_eq!(found["groups"], groups, "{found}");
    let unknown = seed.kubeconfig_with_token("none");
    let unknown = client_from(&unknown.replace(&seed.server_url(), &proxy.url())).await;
    let spoofed = user_with(&unknown.unwrap(), &claim).await;
    assert!(spoofed.is_err(), "{spoofed:?}");

    let old = certificate_of(&machine).unwrap();
    place
        .annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=once")
        .await
        .unwrap();
    let now = renewed(&machine, &old, EVENTUALLY).await.unwrap();
    assert_eq!(now.key, old.key);
    let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
    assert_eq!(user_of(&client).await.unwrap(), user);
    settled(&place, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a9_b2_a_client_ca_that_is_dropped_at_once_behind_a_proxy_is_an_alert_and_found_by_the_canary() {
    let front = FrontProxy::new().unwrap();
    let seed = seed_behind(&front, "seed-alert").await;
    let mut proxy = front.before(&seed).await.unwrap();
    let place = place_behind(&proxy, &seed, "shoot--a9--alert").await;
    let _approver = place.approver().unwrap();
    let (machine, _agent) = came_in(&place, "00001").await;
    let key = machine.key().unwrap();
    settled(&place, &machine).await;
    let certificate = certificate_of(&machine).unwrap();
    let dead = seed
        .kubeconfig_with_certificate(&pair_of(&machine).unwrap())
        .replace(&seed.server_url(), &proxy.url());
    user_of(&client_from(&dead).await.unwrap()).await.unwrap();
    logged(&place, "certificates come from this issuer", EVENTUALLY).await;

    let roll = seed.roll_client_ca().unwrap();
    roll.replace().await.unwrap();
    let dropped = Instant::now();
    proxy.reload().await.unwrap();
    place.await_reason(&machine.firewall, "IssuerRefused").await.unwrap();
    let found = dropped.elapsed();
    assert_eq!(
        published(seed.client().await.unwrap()).await,
        2,
        "the seed has forgotten"
    );
    let now = renewed(&machine, &certificate, EVENTUALLY)
        .await
        .with_context(|| tail(&place.home.log()))
        .unwrap();
    place.has(&machine, dropped, EVENTUALLY).await.unwrap();
    println!(
        "behind a proxy: found after {found:.1?}, back after {:.1?}",
        dropped.elapsed()
    );
    assert!(found < FOUND, "found after {found:?}");
    assert_eq!((now.key, machine.key().unwrap()), (certificate.key, key));
    settled(&place, &machine).await;

    eventually("an alert", EVENTUALLY, || async {
        let Err(error) = client_from(&dead).await?.apiserver_version().await else {
            panic!("it was let in");
        };
        assert!(!matches!(error, kube::Error::Api(_)), "no alert but an answer: {error}");
        // Where it comes before the request was sent, the client tells of a connection that is gone and not why.
        ensure!(format!("{error:?}").contains("AlertReceived"), "{error:?}");
        Ok(())
    })
    .await
    .unwrap();
}

fn pair_of(machine: &Machine) -> anyhow::Result<Pair> {
    let text = std::fs::read_to_string(machine.state().join("current.pem"))?;
    let key = text.find("-----BEGIN PRIVATE KEY-----").context("no key")?;
    let (certificate, key) = text.split_at(key);
    Ok(Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    })
}
