//! What is stolen: the bootstrap kubeconfig out of the userdata, a certificate, with its key or without.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use contract::key::PrivateKey;
use contract::kubeconfig::{Credential, Kubeconfig};
use contract::names::FirewallName;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme, StreamOwned};
use serde_json::json;
use tests::harness::{Cluster, Pair, client_from, eventually};
use tests::programs::Machine;
use tests::world::{World, bootstrapped};

use crate::moves::came_in;
use crate::support::{certificate_of, condition, renewed, user_of};

const SOON: Duration = Duration::from_secs(30);
/// So long an API server believes in a token that it has seen before.
const CACHE: SignedDuration = SignedDuration::from_secs(10);

/// Asks for a certificate of this firewall with this key. The name of the request is the answer.
async fn ask(client: &Client, firewall: &str, key: &PrivateKey) -> kube::Result<String> {
    let pem = contract::csr::write(&FirewallName::parse(firewall).unwrap(), key).unwrap();
    let name = contract::csr::object_name(&pem).unwrap();
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "request": k8s_openapi::ByteString(pem.into_bytes()), "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
        },
    });
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let object = serde_json::from_value(object).unwrap();
    requests.create(&PostParams::default(), &object).await?;
    Ok(name)
}

async fn get(world: &World, name: &str) -> anyhow::Result<CertificateSigningRequest> {
    let requests: Api<CertificateSigningRequest> = Api::all(world.admin().await?);
    Ok(requests.get(name).await?)
}

async fn denied(world: &World, what: &str, client: &Client, firewall: &str, key: &PrivateKey, reason: &str) {
    let name = ask(client, firewall, key).await.unwrap();
    eventually(&format!("{what}: denied"), SOON, || async {
        let csr = get(world, &name).await?;
        ensure!(condition(&csr, "Approved").is_none(), "it was approved");
        let (found, why) = condition(&csr, "Denied").context("not decided yet")?;
        ensure!(found == reason, "{found}: {why}");
        Ok(())
    })
    .await
    .with_context(|| world.home.log())
    .unwrap();
}

/// Certificate and key as they lie on the machine.
fn pair_of(machine: &Machine) -> Pair {
    let text = fs::read_to_string(machine.seed_kubeconfig()).unwrap();
    let kubeconfig = Kubeconfig::read_local("the machine's kubeconfig", &text).unwrap();
    let Credential::CertificateFiles { certificate, .. } = kubeconfig.credential else {
        panic!("no certificate")
    };
    let text = fs::read_to_string(certificate).unwrap();
    let key = text
        .find("-----BEGIN PRIVATE KEY")
        .or(text.find("-----BEGIN EC PRIVATE KEY"))
        .unwrap();
    let certificate = text.find("-----BEGIN CERTIFICATE").unwrap();
    let (first, second) = text.split_at(key.max(certificate));
    let (certificate, key) = if certificate < key {
        (first, second)
    } else {
        (second, first)
    };
    Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    }
}

async fn client_with(seed: &Cluster, pair: &Pair) -> Client {
    client_from(&seed.kubeconfig_with_certificate(pair)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_stolen_bootstrap_kubeconfig_is_worth_nothing_ten_seconds_after_its_use() {
    for kind in ["token", "service-account"] {
        let world = World::new(&format!("shoot--thief--{}", &kind[..5])).await.unwrap();
        let _approver = world.approver_with(&["--bootstrap-credential", kind]).unwrap();
        let machine = world.machine("00001").await.unwrap();
        let firewall = machine.firewall.clone();
        let stolen = fs::read_to_string(machine.bootstrap_kubeconfig()).unwrap();
        let thief = client_from(&stolen).await.unwrap();
        eventually("it lets in", SOON, || user_of(&thief)).await.unwrap();
        let _agent = machine.start().unwrap();
        // He keeps it in the API server's cache, and asks as soon as the machine has proved its own key.
        let mut asked = Vec::new();
        let mut revoked: Option<Timestamp> = None;
        let end = tokio::time::Instant::now() + SOON;
        let refused = loop {
            assert!(tokio::time::Instant::now() < end, "{kind}: it is still good");
            if revoked.is_none()
                && let Ok(record) = world.record(&firewall).await
            {
                revoked = record["credential"]["revoked"]
                    .as_str()
                    .map(|time| time.parse().unwrap());
            }
            let answer = if revoked.is_some() {
                ask(&thief, &firewall, &PrivateKey::generate().unwrap()).await
            } else {
                user_of(&thief).await.unwrap();
                Ok(String::new())
            };
            match answer {
                Ok(name) => asked.extend((!name.is_empty()).then_some(name)),
                Err(kube::Error::Api(status)) if status.code == 401 => break Timestamp::now(),
                Err(error) => panic!("{kind}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        };
        let took = refused.duration_since(revoked.unwrap());
        println!(
            "{kind}: refused {took:?} after it was revoked; {} requests meanwhile",
            asked.len()
        );
        assert!(took <= CACHE + SignedDuration::from_secs(1), "{kind}: {took:?}");
        // It stays so, and what he asked for meanwhile got him nothing.
        for _ in 0..10 {
            assert!(user_of(&thief).await.is_err(), "{kind}: it is good again");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        for name in asked {
            let csr = get(&world, &name).await.unwrap();
            assert!(condition(&csr, "Approved").is_none(), "{kind}: {csr:?}");
        }
        let record = world.record(&firewall).await.unwrap();
        let own = certificate_of(&machine).unwrap().key.thumbprint().to_string();
        assert_eq!(record["keys"]["pin"]["thumbprint"], own, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_no_stolen_certificate_moves_the_pin_not_even_while_a_new_key_is_let_in() {
    let world = World::new("shoot--thief--pin").await.unwrap();
    let _approver = world.approver_with(&["--bootstrap-credential", "token"]).unwrap();
    let (machine, agent) = came_in(&world, "00001").await;
    let (sibling, _other_agent) = came_in(&world, "00002").await;
    let firewall = machine.firewall.clone();
    let old_key = PrivateKey::from_pem(&String::from_utf8(machine.key().unwrap()).unwrap()).unwrap();
    let old = pair_of(&machine);
    let before = certificate_of(&machine).unwrap();
    world
        .annotate(&firewall, "firewall.metal-stack.io/renew-seed-access=now")
        .await
        .unwrap();
    renewed(&machine, &before, SOON).await.unwrap();
    let stolen = [
        ("an old certificate", client_with(world.seed, &old).await, "OtherKey"),
        (
            "the newest",
            client_with(world.seed, &pair_of(&machine)).await,
            "OtherKey",
        ),
        (
            "the sibling's",
            client_with(world.seed, &pair_of(&sibling)).await,
            "NotYours",
        ),
    ];
    let pin = || async { world.record(&firewall).await.unwrap()["keys"]["pin"]["thumbprint"].clone() };
    let own = pin().await;
    assert_eq!(own, old_key.public().thumbprint().to_string());
    let uid = world.firewall_uid(&firewall).await.unwrap();
    agent.kill();
    for window in [false, true] {
        if window {
            let rebootstrap = format!("firewall.metal-stack.io/rebootstrap={uid}/stolen");
            world.annotate(&firewall, &rebootstrap).await.unwrap();
            eventually("a new key is let in", SOON, || async {
                let record = world.record(&firewall).await?;
                ensure!(record["keys"]["openUntil"].is_string(), "{record}");
                Ok(())
            })
            .await
            .unwrap();
        }
        for (what, client, reason) in &stolen {
            let key = PrivateKey::generate().unwrap();
            denied(
                &world,
                &format!("{what}, window {window}"),
                client,
                &firewall,
                &key,
                reason,
            )
            .await;
            assert_eq!(pin().await, own, "{what}, window {window}");
        }
    }
    // The machine was reinstalled: the window was still open for it, and its old key is nobody's now.
    machine.reinstall().unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    let new = certificate_of(&machine).unwrap().key.thumbprint().to_string();
    assert_eq!(pin().await, new);
    assert_ne!(own, new);
    for (what, client, reason) in &stolen {
        denied(&world, what, client, &firewall, &old_key, reason).await;
    }
    assert_eq!(pin().await, new);
}

/// A certificate is public; who holds it without its key is nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a3_a_stolen_certificate_without_its_key_opens_nothing() {
    let world = World::new("shoot--thief--key").await.unwrap();
    let _approver = world.approver().unwrap();
    let (machine, _agent) = came_in(&world, "00001").await;
    let pair = pair_of(&machine);
    let thiefs = PrivateKey::generate().unwrap().to_pem().to_string();
    let (server, ca) = (world.seed.server_url(), world.seed.server_ca_pem());
    let with = |key: String| {
        let (server, ca, certificate) = (server.clone(), ca.clone(), pair.certificate.clone());
        tokio::task::spawn_blocking(move || version(&server, &ca, &certificate, &key))
    };
    // With the right key the same bytes are answered.
    let answer = with(pair.key.clone()).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let refusal = with(thiefs).await.unwrap().unwrap_err();
    assert!(format!("{refusal:#}").contains("alert"), "{refusal:#}");
}

/// One request over TLS, with a key that the certificate does not have to fit.
fn version(server: &str, ca: &str, certificate: &str, key: &str) -> anyhow::Result<String> {
    #[derive(Debug)]
    struct Always(Arc<CertifiedKey>);
    impl ResolvesClientCert for Always {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(root?)?;
    }
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key)?;
    let resolver = Arc::new(Always(Arc::new(CertifiedKey::new(chain, key))));
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_cert_resolver(resolver);
    let address = server.trim_start_matches("https://");
    let (host, _) = address.split_once(':').context("no port")?;
    let name = ServerName::try_from(host.to_owned())?;
    let connection = ClientConnection::new(Arc::new(config), name)?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    let request = format!("GET /apis/authentication.k8s.io HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
