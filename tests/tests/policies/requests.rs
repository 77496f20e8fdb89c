//! Approvals: whose requests, for which signer, with which conditions, and above all which bytes.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use contract::csr;
use contract::key::PrivateKey;
use contract::names::{self, FIREWALL_NAME_MAX, FirewallName};
use futures::{StreamExt as _, stream};
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
fn foreign_subject(organization: &str, common_name: &str) -> String {
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

async fn create(client: &Client, signer: &str, request: &str) -> kube::Result<CertificateSigningRequest> {
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

fn approved() -> Value {
    json!([condition("Approved", names::APPROVED_REASON)])
}

async fn approve(site: &Site, request: &CertificateSigningRequest) -> kube::Result<CertificateSigningRequest> {
    decide(&site.approver, request, approved(), false).await
}

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
async fn identity(site: &Site, user: &str, groups: &[&str]) -> Client {
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

#[tokio::test]
async fn another_signer_s_request_is_not_approved_even_if_somebody_gave_the_right_to() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let signer = "kubernetes.io/kube-apiserver-client-kubelet";
    let made = create(&client, "example.com/signer", &request(&firewall("fw")))
        .await
        .unwrap();
    let kubelet = create(&client, signer, &foreign_subject("system:nodes", "system:node:one"))
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
    ] {
        let what = conditions.to_string();
        refused(
            &what,
            decide(&site.approver, &made, conditions, false).await,
            POLICY,
            words,
        );
    }
    // What is wrong in a request of ours is denied, whatever it asks for.
    let bad = create(&client, names::SIGNER, &foreign_subject("x", "admin"))
        .await
        .unwrap();
    decide(&site.approver, &bad, json!([condition("Denied", "BadSubject")]), false)
        .await
        .unwrap();
}

#[tokio::test]
async fn only_a_firewall_s_subject_is_approved() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    for (organization, common_name) in [
        ("system:nodes", "system:node:one"),
        (names::ORGANIZATION, "admin"),
        (names::ORGANIZATION, "system:kube-controller-manager"),
        (names::ORGANIZATION, "fw.metal-stack.io:"),
        (names::ORGANIZATION, "fw.metal-stack.io:-fw"),
        (names::ORGANIZATION, "fw.metal-stack.io:fw."),
        (names::ORGANIZATION, "fw.metal-stack.io:f:w"),
        (names::ORGANIZATION, "fw.metal-stack.io:f/w"),
        (names::ORGANIZATION, "fw.metal-stack.io:fW"),
        (names::ORGANIZATION, "fw-metal-stack.io:fw"),
        ("fw.metal-stack.io:firewallz", "fw.metal-stack.io:fw"),
        ("system:authenticated", "fw.metal-stack.io:fw"),
    ] {
        let made = create(&client, names::SIGNER, &foreign_subject(organization, common_name))
            .await
            .unwrap();
        refused(
            &format!("O={organization} CN={common_name}"),
            approve(&site, &made).await,
            POLICY,
            SUBJECT,
        );
    }
    // The same writer with a firewall's subject passes: nothing else about these was wrong.
    let made = create(
        &client,
        names::SIGNER,
        &foreign_subject(names::ORGANIZATION, "fw.metal-stack.io:fw"),
    )
    .await
    .unwrap();
    approve(&site, &made).await.unwrap();
}

/// A shorter key leaves room for an extension, with every length that the policy reads as it should be.
#[tokio::test]
async fn a_key_of_another_kind_makes_no_room_for_an_extension() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let der = |pem: &str| x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents;
    let length = |der: &[u8]| der[if der[1] == 0x81 { 5 } else { 6 }];
    let good = length(&der(&request(&firewall("fw"))));
    let smuggler = (1..60).find_map(|length_of_name| {
        let mut params = CertificateParams::new(vec!["x".repeat(length_of_name)]).unwrap();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, names::ORGANIZATION);
        subject.push(DnType::CommonName, "fw.metal-stack.io:fw");
        params.distinguished_name = subject;
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        (length(&der(&pem)) == good).then_some(pem)
    });
    let made = create(&client, names::SIGNER, &smuggler.unwrap()).await.unwrap();
    refused("Ed25519 and a DNS name", approve(&site, &made).await, POLICY, SUBJECT);
}

/// CEL reads the text at fixed places; what is signed is what Go's lenient PEM reader finds. The two must not differ.
#[tokio::test]
async fn no_text_shows_one_subject_to_the_policy_and_another_to_the_signer() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let good = request(&firewall("fw"));
    let bad = foreign_subject(names::ORGANIZATION, "admin");
    // A line as long as PEM's first, so that all that follows stands where a good request has it; then another request.
    let decoy = good.replace(
        "-----BEGIN CERTIFICATE REQUEST-----",
        "----- BEGIN CERTIFICATE REQUEST----",
    );
    // Spaces are skipped: nothing in a skipped place is looked at.
    let body = good.find('\n').unwrap() + 1;
    let mut spaced = good.clone();
    spaced.replace_range(body + 64..=body + 64, " ");
    for (what, text) in [("a decoy", decoy + &bad), ("a space for a newline", spaced)] {
        let made = create(&client, names::SIGNER, &text)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        refused(what, approve(&site, &made).await, POLICY, SUBJECT);
    }
}

/// Of every malformed request that the API server takes at all, none is approved but those whose fault is harmless: what
/// is signed has a firewall's subject and key and nothing else. (The approver's own reader refuses these too.)
#[tokio::test]
async fn no_malformed_request_of_the_corpus_is_approved() {
    const HARMLESS: &[&str] = &[
        "der-hidden-after-signature",
        "pem-no-last-newline",
        "pem-trailing-text",
        "pem-two-blocks",
        "pem-two-last-newlines",
        "signature-algorithm-null-parameters",
    ];
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/csr");
    let (mut approved, mut taken) = (Vec::new(), 0);
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Ok(made) = create(
            &client,
            names::SIGNER,
            &String::from_utf8_lossy(&std::fs::read(&path).unwrap()),
        )
        .await
        else {
            continue;
        };
        taken += 1;
        // None of them is the canary's.
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let own = create(&site.approver, names::SIGNER, &text).await.unwrap();
        refused(&name, approve(&site, &own).await, POLICY, "only the subject CN=");
        match approve(&site, &made).await {
            Ok(_) => approved.push(name),
            answer => refused(&name, answer, POLICY, SUBJECT),
        }
    }
    approved.sort();
    let (good, bad): (Vec<_>, Vec<_>) = approved.into_iter().partition(|name| name.starts_with("good-"));
    assert_eq!(good, ["good-longest-name", "good-plain"]);
    assert!(bad.iter().all(|name| HARMLESS.contains(&name.as_str())), "{bad:?}");
    assert!(taken > 20, "the API server took only {taken} of the corpus");
}

#[tokio::test]
async fn no_good_request_is_refused() {
    let site = Site::new().await.unwrap();
    let client = renewing(&site).await;
    let random = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    println!("the names come from {random}");
    let mut random = Random(u64::from(random));
    let names: Vec<FirewallName> = (0..300)
        .map(|index| random.name(1 + index % FIREWALL_NAME_MAX))
        .collect();
    let refusals: Vec<String> = stream::iter(names)
        .map(async |name| {
            let made = create(&client, names::SIGNER, &request(&name)).await.unwrap();
            approve(&site, &made)
                .await
                .err()
                .map(|error| format!("{name}: {error}"))
        })
        .buffer_unordered(16)
        .filter_map(async |refusal| refusal)
        .collect()
        .await;
    assert_eq!(refusals, Vec::<String>::new());
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }

    fn name(&mut self, length: usize) -> FirewallName {
        const CHARACTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789-.";
        loop {
            let name: String = (0..length)
                .map(|_| char::from(CHARACTERS[self.below(CHARACTERS.len())]))
                .collect();
            if let Ok(name) = FirewallName::parse(&name) {
                return name;
            }
        }
    }
}
