//! Whoever holds a bootstrap credential makes requests without end. (How fast others are meanwhile: `make flood`.)

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use contract::csr;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use tests::flood::{decided, make};
use tests::harness::{client_from, eventually};
use tests::world::{Place, own_seed, shoot_cluster};

use crate::moves::{EVENTUALLY, came_in};
use crate::support::client_of;

/// And one more, the first whose key was looked at.
const KEPT: usize = 128;

const A_MINUTE: usize = 8;

/// Which of the API server's levels a client's requests are in.
async fn flow_schema(client: &Client) -> anyhow::Result<String> {
    let request = http::Request::get("/version").body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    let uid = response.headers().get("x-kubernetes-pf-flowschema-uid");
    Ok(uid.map_or("", |uid| uid.to_str().unwrap_or_default()).to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn p30_of_one_identity_so_many_requests_are_decided_and_no_more_while_others_come_in() {
    let seed = own_seed("seed-floods").await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    let place = Place::empty(&seed, shoot, "shoot--floods--one").await.unwrap();
    place.settle().await.unwrap();
    let _approver = place.approver_with(&["--poll-interval", "5s"]).unwrap();
    let stolen = place.machine("thief").await.unwrap();
    let thief = fs::read_to_string(stolen.bootstrap_kubeconfig()).unwrap();
    let thief = client_from(&thief).await.unwrap();
    let name = FirewallName::parse(&stolen.firewall).unwrap();
    let request = csr::write(&name, &PrivateKey::generate().unwrap()).unwrap();

    let began = Instant::now();
    // More at once, and the API server itself says no.
    let made = stream::iter(0..3 * KEPT).map(|_| make(&thief, names::SIGNER, &request));
    let made: Result<Vec<()>, kube::Error> = made.buffer_unordered(32).try_collect().await;
    made.unwrap();
    eventually("the first of them are decided", EVENTUALLY, || async {
        let decided = decided(&seed, &request).await?;
        ensure!(decided > 3, "{decided}");
        Ok(())
    })
    .await
    .unwrap();
    let (other, _agent) = came_in(&place, "00001").await;
    // Two lists later.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let minutes = usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    let decided = decided(&seed, &request).await.unwrap();
    assert!(decided <= A_MINUTE * (minutes + 2), "{decided}");
    let log = place.home.log();
    assert_eq!(log.matches("more than 128 requests").count(), 1, "{log}");
    assert!(log.contains(&format!("\"firewall\":\"{}\"", stolen.firewall)), "{log}");

    // The machine itself comes last, and it is not hidden by the crowd that there are two keys.
    let _machine = stolen.start().unwrap();
    place.await_reason(&stolen.firewall, "TwoKeys").await.unwrap();

    // Whatever they hold, firewalls are in queues of their own.
    let schemas = seed
        .kubectl_ok(&[
            "get",
            "flowschema",
            "firewall-bootstrap",
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .await
        .unwrap();
    let firewall = client_of(&other.seed_kubeconfig()).await.unwrap();
    let admin = seed.client().await.unwrap();
    assert_eq!(flow_schema(&thief).await.unwrap(), schemas);
    assert_eq!(flow_schema(&firewall).await.unwrap(), schemas);
    let account = "system:serviceaccounts:firewall-access";
    let with_token = seed
        .kubeconfig_for("system:serviceaccount:firewall-access:fw", &[account])
        .unwrap();
    let with_token = client_from(&with_token).await.unwrap();
    assert_eq!(flow_schema(&with_token).await.unwrap(), schemas);
    assert_ne!(flow_schema(&admin).await.unwrap(), schemas);
}
