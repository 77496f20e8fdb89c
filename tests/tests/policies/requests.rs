//! Approvals: whose requests, for which signer, with which conditions.
//!
//! - `subjects`: which bytes
//! - `canary`: the approver's own requests

mod canary;
mod subjects;

use std::sync::atomic::{AtomicU32, Ordering};

use contract::csr;
use contract::grant;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tests::harness::{Cluster, client_from};

use super::{POLL, Site, firewall, refused};

const POLICY: &str = "requests";
const SUBJECT: &str = "only the subject O=fw.metal-stack.io:firewalls";

fn request(name: &FirewallName) -> String {
    csr::write(name, &PrivateKey::generate().unwrap()).unwrap()
}

/// A request as anybody else might write it.
pub fn foreign_subject(organization: &str, common_name: &str) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, organization);
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap()
}

pub async fn create(client: &Client, signer: &str, request: &str) -> kube::Result<CertificateSigningRequest> {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("request-{}", NAMES.fetch_add(1, Ordering::Relaxed))),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            signer_name: signer.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    Api::all(client.clone()).create(&PostParams::default(), &object).await
}

async fn decide(
    approver: &Client,
    request: &CertificateSigningRequest,
    conditions: Value,
    dry_run: bool,
) -> kube::Result<CertificateSigningRequest> {
    let mut request = request.clone();
    request.status = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
    let name = request.metadata.name.clone().unwrap();
    let requests: Api<CertificateSigningRequest> = Api::all(approver.clone());
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    requests.replace_subresource("approval", &name, &params, &request).await
}

fn condition(type_: &str, reason: &str) -> Value {
    json!({ "type": type_, "status": "True", "reason": reason, "message": "-" })
}

fn token() -> Value {
    condition(grant::CONDITION, grant::CONDITION_REASON)
}

fn approved() -> Value {
    json!([condition("Approved", names::APPROVED_REASON)])
}

async fn approve(site: &Site, request: &CertificateSigningRequest) -> kube::Result<CertificateSigningRequest> {
    decide(&site.approver, request, approved(), false).await
}

/// For the wait until the policies are in force.
pub async fn approve_a_foreign_one(
    cluster: &Cluster,
    approver: &Client,
) -> anyhow::Result<kube::Result<CertificateSigningRequest>> {
    let admin = cluster.client().await?;
    let foreign = create(&admin, names::SIGNER, &request(&firewall("fw"))).await?;
    Ok(decide(approver, &foreign, approved(), true).await)
}

/// A client with this identity.
pub async fn identity(site: &Site, user: &str, groups: &[&str]) -> Client {
    client_from(&site.cluster.kubeconfig_for(user, groups).unwrap())
        .await
        .unwrap()
}

async fn renewing(site: &Site) -> Client {
    identity(site, "fw.metal-stack.io:fw", &[names::ORGANIZATION]).await
}

#[tokio::test]
async fn a_request_of_each_of_a_firewall_s_identities_is_approved() {
    let site = Site::new().await.unwrap();
    for (user, group) in [
        ("system:bootstrap:abcdef", names::BOOTSTRAP_GROUP),
        (
            "system:serviceaccount:firewall-bootstrap:fw",
            names::SERVICE_ACCOUNT_GROUP,
        ),
        ("system:serviceaccount:firewall-access:fw", names::ACCESS_GROUP),
        ("fw.metal-stack.io:fw", names::ORGANIZATION),
    ] {
        let client = identity(&site, user, &[group]).await;
        let made = create(&client, names::SIGNER, &request(&firewall("fw"))).await.unwrap();
        approve(&site, &made)
            .await
            .unwrap_or_else(|error| panic!("{user}: {error}"));
    }
}

#[tokio::test]
async fn a_request_of_anybody_else_is_neither_approved_nor_denied() {
    let site = Site::new().await.unwrap();
    let may_ask = names::ORGANIZATION;
    for (user, groups) in [
        ("admin", ["system:masters", "x"]),
        // Names without the group that belongs to them, and groups without the name.
        ("fw.metal-stack.io:fw", [names::BOOTSTRAP_GROUP, "x"]),
        ("system:bootstrap:abcdef", [may_ask, "x"]),
        ("system:serviceaccount:firewall-bootstrap:fw", [may_ask, "x"]),
        (
            "system:serviceaccount:default:fw",
            [may_ask, names::SERVICE_ACCOUNT_GROUP],
        ),
        ("somebody", [may_ask, names::BOOTSTRAP_GROUP]),
    ] {
        let client = identity(&site, user, &groups).await;
        let made = create(&client, names::SIGNER, &request(&firewall("fw"))).await.unwrap();
        for conditions in [approved(), json!([condition("Denied", "NoReason")])] {
            let answer = decide(&site.approver, &made, conditions, false).await;
            refused(
                &format!("{user} {groups:?}"),
                answer,
                POLICY,
                "on requests of firewalls only",
            );
        }
    }
}

#[tokio::test]
async fn another_signer_s_request_is_not_approved_even_if_somebody_gave_the_right_to() {
    let site = Site::new().await.unwrap();
    // A firewall may not even ask for these: somebody else does.
    let client = &site.admin;
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let made = create(client, "example.com/signer", &request(&firewall("fw")))
        .await
        .unwrap();
    let kubelet = create(client, signer, &foreign_subject("system:nodes", "system:node:one"))
        .await
        .unwrap();
    for request in [&made, &kubelet] {
        let Err(kube::Error::Api(status)) = approve(&site, request).await else {
            panic!("it was approved")
        };
        assert_eq!(status.code, 403, "{status:?}");
    }
    site.give_too_much("certificates.k8s.io", "signers", "approve").await;
    let words = "for the signer kubernetes.io/kube-apiserver-client only";
    for request in [&made, &kubelet] {
        // The right takes a moment to be known.
        let answer = loop {
            match approve(&site, request).await {
                Err(kube::Error::Api(status)) if status.code == 403 => tokio::time::sleep(POLL).await,
                answer => break answer,
            }
        };
        refused("another signer", answer, POLICY, words);
    }
}

#[tokio::test]
async fn one_condition_of_ours_is_added_and_no_other() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let made = create(&client, names::SIGNER, &request(&firewall("fw"))).await.unwrap();
    let words = "adds one condition";
    for conditions in [
        json!([]),
        json!([condition("Approved", "BecauseICan")]),
        json!([condition("Failed", names::APPROVED_REASON)]),
        json!([condition("Approved", names::APPROVED_REASON), condition("Checked", "x")]),
        json!([
            condition("Approved", names::APPROVED_REASON),
            condition(grant::CONDITION, "x")
        ]),
        json!([condition("Denied", "BadSubject"), token()]),
        json!([token()]),
    ] {
        let what = conditions.to_string();
        refused(
            &what,
            decide(&site.approver, &made, conditions, false).await,
            POLICY,
            words,
        );
    }
    let conditions = json!([condition("Approved", names::APPROVED_REASON), token()]);
    decide(&site.approver, &made, conditions, false).await.unwrap();
    // What is wrong in a request of ours is denied, whatever it asks for.
    let bad = create(&client, names::SIGNER, &foreign_subject("x", "admin"))
        .await
        .unwrap();
    decide(&site.approver, &bad, json!([condition("Denied", "BadSubject")]), false)
        .await
        .unwrap();
}
