//! The approver's own requests: one subject, which nothing gives any rights.

use contract::csr;
use contract::key::PrivateKey;
use contract::names;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::{POLICY, SUBJECT, approve, create, renewing, request};
use crate::{Site, firewall, refused};

/// Subjects with nothing but these, in this order.
fn subject_of(parts: &[(DnType, &str)]) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let mut subject = DistinguishedName::new();
    for (kind, value) in parts {
        subject.push(kind.clone(), *value);
    }
    params.distinguished_name = subject;
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

/// A stolen approver must gain nothing by requests of its own: the canary's user has no rights.
#[tokio::test]
async fn c1_of_its_own_requests_the_approver_approves_the_canary_s_and_no_other() {
    let site = Site::new().await.unwrap();
    let canary = || csr::write_canary(&PrivateKey::generate().unwrap()).unwrap();
    for _ in 0..20 {
        let made = create(&site.approver, names::SIGNER, &canary()).await.unwrap();
        approve(&site, &made).await.unwrap();
    }
    let name = DnType::CommonName;
    let group = DnType::OrganizationName;
    for (what, text) in [
        ("a firewall's", request(&firewall("fw"))),
        (
            "a firewall's user alone",
            subject_of(&[(name.clone(), "fw.metal-stack.io:fw")]),
        ),
        (
            "another's of that length",
            subject_of(&[(name.clone(), "fw.metal-stack.io:_canarz")]),
        ),
        (
            "a longer one",
            subject_of(&[(name.clone(), "fw.metal-stack.io:_canary2")]),
        ),
        (
            "a cluster's",
            subject_of(&[(name.clone(), "system:kube-controller-manager")]),
        ),
        (
            "with a group",
            subject_of(&[(group.clone(), names::ORGANIZATION), (name.clone(), names::CANARY_USER)]),
        ),
        (
            "with a group behind",
            subject_of(&[(name.clone(), names::CANARY_USER), (group, "system:nodes")]),
        ),
        ("nobody's", subject_of(&[])),
    ] {
        let made = create(&site.approver, names::SIGNER, &text).await.unwrap();
        refused(
            what,
            approve(&site, &made).await,
            POLICY,
            "only the subject CN=fw.metal-stack.io:_canary",
        );
    }
    // The same writer with the canary's subject passes: nothing else about these was wrong.
    let made = create(
        &site.approver,
        names::SIGNER,
        &subject_of(&[(name, names::CANARY_USER)]),
    )
    .await
    .unwrap();
    approve(&site, &made).await.unwrap();
    // Nor is it anybody else's.
    let made = create(&renewing(&site).await, names::SIGNER, &canary()).await.unwrap();
    refused("a firewall as canary", approve(&site, &made).await, POLICY, SUBJECT);
    let made = create(&site.admin, names::SIGNER, &canary()).await.unwrap();
    refused(
        "somebody as canary",
        approve(&site, &made).await,
        POLICY,
        "on requests of firewalls only",
    );
}

#[tokio::test]
async fn c1_no_text_shows_the_policy_a_canary_and_the_signer_another() {
    let site = Site::new().await.unwrap();
    let good = csr::write_canary(&PrivateKey::generate().unwrap()).unwrap();
    let bad = subject_of(&[(DnType::CommonName, "system:kube-controller-manager")]);
    let decoy = good.replace(
        "-----BEGIN CERTIFICATE REQUEST-----",
        "----- BEGIN CERTIFICATE REQUEST----",
    );
    let body = good.find('\n').unwrap() + 1;
    let mut spaced = good.clone();
    spaced.replace_range(body + 64..=body + 64, " ");
    // A key of another kind leaves room for an extension.
    let mut params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, names::CANARY_USER);
    params.distinguished_name = subject;
    let ed25519 = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let extended = params.serialize_request(&ed25519).unwrap().pem().unwrap();
    let own = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    for (what, text) in [
        ("a decoy", decoy + &bad),
        ("a space for a newline", spaced),
        ("Ed25519 and a DNS name", extended),
        ("a DNS name", own),
    ] {
        let made = create(&site.approver, names::SIGNER, &text).await.unwrap();
        refused(
            what,
            approve(&site, &made).await,
            POLICY,
            "only the subject CN=fw.metal-stack.io:_canary",
        );
    }
}
