//! Which bytes are approved: a firewall's subject and key, and nothing that is read in two ways.

use std::path::Path;

use contract::names::{self, FIREWALL_NAME_MAX, FirewallName};
use futures::{StreamExt as _, stream};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::{POLICY, SUBJECT, approve, create, foreign_subject, renewing, request};
use crate::{Site, firewall, refused};

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
