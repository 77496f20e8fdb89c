//! A seed as Gardener makes it: whoever holds a bootstrap token may have a node's certificate, which is approved and signed
//! with nobody looking. What we hand out there must not get one.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions, client_from, eventually};
use tests::programs::{ApproverHome, bootstrap_kubeconfig};
use tests::upstream::{Shoot, install_crds};
use tests::world::{install_seed, install_shoot};

use crate::support::{condition, user_of};

const NODES: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const OURS: &str = "kubernetes.io/kube-apiserver-client";
const POLICY: &str = "firewall-approver-requesters";
const SOON: Duration = Duration::from_secs(30);

/// With the two ClusterRoleBindings that Gardener deploys, and the controller that approves nodes' requests.
async fn gardeners_seed() -> Cluster {
    let options = ClusterOptions {
        more_controllers: vec!["certificatesigningrequest-approving-controller"],
        ..ClusterOptions::new("seed-nodes")
    };
    let seed = Cluster::start(options).await.unwrap();
    install_crds(&seed, &seed).await.unwrap();
    install_shoot(&seed).await.unwrap();
    let binding = |name: &str, role: &str| {
        let group = "rbac.authorization.k8s.io";
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:bootstrappers"}],
        })
    };
    let ask = binding("system:node-bootstrapper", "system:node-bootstrapper");
    let nodes = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    let approved = binding(nodes, nodes);
    seed.kubectl_apply_text(&format!("{ask}\n---\n{approved}"))
        .await
        .unwrap();
    seed
}

/// What a kubelet sends that joins as node `thief`.
async fn ask(client: &Client, name: &str, signer: &str) -> kube::Result<CertificateSigningRequest> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, "system:node:thief");
    params.distinguished_name = subject;
    let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "request": k8s_openapi::ByteString(request.pem().unwrap().into_bytes()), "signerName": signer,
            "usages": ["digital signature", "client auth"],
        },
    });
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let object = serde_json::from_value(object).unwrap();
    requests.create(&PostParams::default(), &object).await
}

async fn get(seed: &Cluster, name: &str) -> anyhow::Result<CertificateSigningRequest> {
    let requests: Api<CertificateSigningRequest> = Api::all(seed.client().await?);
    Ok(requests.get(name).await?)
}

async fn issued(seed: &Cluster, name: &str) -> anyhow::Result<()> {
    eventually(&format!("{name} is issued"), SOON, || async {
        let status = get(seed, name).await?.status.unwrap_or_default();
        status.certificate.context("no certificate").map(drop)
    })
    .await
}

#[track_caller]
fn refused_by_policy(what: &str, answer: kube::Result<CertificateSigningRequest>) {
    match answer {
        Err(kube::Error::Api(status)) => assert!(status.message.contains(POLICY), "{what}: {status:?}"),
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: it was taken"),
    }
}

/// Asks in every way that there is, and has no certificate in the end.
async fn gets_no_node(seed: &Cluster, thief: &Client, name: &str) {
    for (index, signer) in [NODES, "kubernetes.io/kubelet-serving"].iter().enumerate() {
        refused_by_policy(signer, ask(thief, &format!("{name}-{index}"), signer).await);
    }
    // Of our own signer it may ask; the approver reads what for.
    let ours = format!("{name}-ours");
    ask(thief, &ours, OURS).await.unwrap();
    eventually("it is denied", SOON, || async {
        let csr = get(seed, &ours).await?;
        ensure!(condition(&csr, "Approved").is_none(), "it was approved");
        let (reason, _) = condition(&csr, "Denied").context("not decided yet")?;
        ensure!(reason == "MalformedRequest", "{reason}");
        Ok(())
    })
    .await
    .unwrap();
}

/// What was deleted may hold for a moment more.
async fn ask_without_policy(thief: &Client, name: &str) {
    eventually("nothing holds it", SOON, || async {
        ask(thief, name, NODES).await?;
        Ok(())
    })
    .await
    .unwrap();
}

async fn credential(home: &ApproverHome, seed: &Cluster, shoot: &Shoot<'_>, suffix: &str, user: &str) -> Client {
    let firewall = shoot.create_firewall(suffix).await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(seed, &shoot.namespace, &firewall)
        .await
        .with_context(|| home.log())
        .unwrap();
    let client = client_from(&kubeconfig).await.unwrap();
    // The API server has to learn of a token first.
    let found = eventually("it lets in", SOON, || user_of(&client)).await.unwrap();
    assert!(found.starts_with(user), "{found}");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_where_every_bootstrap_token_may_join_a_node_what_we_hand_out_may_not() {
    let seed = gardeners_seed().await;
    // It is such a seed: a token of somebody else's has a node's certificate at once.
    let token: Value = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-worker", "namespace": "kube-system"},
        "stringData": {
            "token-id": "worker", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
        },
    });
    seed.kubectl_apply_text(&token.to_string()).await.unwrap();
    let worker = seed.kubeconfig_with_token("worker.0123456789abcdef");
    let worker = client_from(&worker).await.unwrap();
    eventually("a worker's token", SOON, || user_of(&worker)).await.unwrap();
    ask(&worker, "worker", NODES).await.unwrap();
    issued(&seed, "worker").await.unwrap();

    install_seed(&seed).await.unwrap();
    let shoot = Shoot::create(&seed, &seed, "shoot--a1--nodes").await.unwrap();
    shoot.write_approver_access().await.unwrap();
    let home = ApproverHome::new(&seed).await.unwrap();
    let approver = home.start(&[]).unwrap();
    let account = "system:serviceaccount:firewall-bootstrap:";
    let thief = credential(&home, &seed, &shoot, "00001", account).await;
    gets_no_node(&seed, &thief, "account").await;
    approver.stop().await.unwrap();
    // An operator insists on tokens.
    let approver = home.start(&["--bootstrap-credential", "token"]).unwrap();
    let token = credential(&home, &seed, &shoot, "00002", "system:bootstrap:").await;
    gets_no_node(&seed, &token, "token").await;
    approver.stop().await.unwrap();

    // Where the policy is gone, the ServiceAccount of `auto` has no node's certificate all the same; the token has.
    seed.kubectl_ok(&["delete", "validatingadmissionpolicybinding", POLICY])
        .await
        .unwrap();
    ask_without_policy(&token, "token-free").await;
    issued(&seed, "token-free").await.unwrap();
    ask_without_policy(&thief, "account-free").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let csr = get(&seed, "account-free").await.unwrap();
    assert!(csr.status.is_none_or(|status| status.conditions.is_none()));
}
