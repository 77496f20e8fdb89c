//! The lifeline against a shoot's API server that answers as told.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::handover::tests::Fixture;

use super::*;

fn ca() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
}

fn bundle(pems: &[&String]) -> CaBundle {
    let text: String = pems.iter().map(|pem| pem.as_str()).collect();
    CaBundle::from_pem(&text).unwrap()
}

#[test]
fn d4_the_lifeline_follows_the_cas_of_its_shoot() {
    let (old, new) = (ca(), ca());
    let wanted = |ours: &[&String], found: &[&String]| wanted_ca(&bundle(ours), &bundle(found)).unwrap();
    assert_eq!(wanted(&[&old], &[&old]), None);
    assert_eq!(wanted(&[&old, &new], &[&new, &old]), None, "the order says nothing");
    let both = wanted(&[&old], &[&new]).unwrap();
    assert_eq!(
        blocks(&both),
        blocks(&bundle(&[&old, &new])),
        "until the old one is dropped"
    );
    assert_eq!(wanted(&[&old], &[&old, &new]).map(|both| blocks(&both).len()), Some(2));
    assert_eq!(wanted(&[&old, &new], &[&new]), Some(bundle(&[&new])));
}

/// A shoot's API server that knows everybody as `user`, and gives `token` to whoever asks for one.
struct Shoot {
    port: u16,
    ca: CaBundle,
    user: Arc<Mutex<String>>,
    asked: Arc<Mutex<Vec<String>>>,
}

fn token(issued: i64) -> String {
    let claims = format!(r#"{{"iat":{issued},"exp":{}}}"#, issued + ASKED);
    format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

fn shoot(new: String) -> Shoot {
    cluster::client::install_crypto();
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&authority).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, authority);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let shoot = Shoot {
        port: listener.local_addr().unwrap().port(),
        ca: CaBundle::from_pem(&ca).unwrap(),
        user: Arc::default(),
        asked: Arc::default(),
    };
    let (user, asked) = (shoot.user.clone(), shoot.asked.clone());
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let (config, user, asked) = (config.clone(), user.clone(), asked.clone());
            let (ca, new) = (ca.clone(), new.clone());
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                let mut stream = BufReader::new(StreamOwned::new(connection, socket));
                while let Some(path) = read_request(&mut stream) {
                    let body = if path.contains("selfsubjectreviews") {
                        serde_json::json!({ "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                            "metadata": {}, "status": { "userInfo": { "username": *user.lock().unwrap() } } })
                    } else if path.ends_with("/token") || path.contains("/token?") {
                        serde_json::json!({ "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
                            "metadata": {}, "spec": { "audiences": [] },
                            "status": { "token": new, "expirationTimestamp": "2100-01-01T00:00:00Z" } })
                    } else {
                        serde_json::json!({ "kind": "ConfigMap", "apiVersion": "v1",
                            "metadata": { "name": ROOT_CA }, "data": { ROOT_CA_KEY: ca } })
                    };
                    asked.lock().unwrap().push(path);
                    let body = body.to_string();
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                    stream.get_mut().flush().unwrap();
                }
            });
        }
    });
    shoot
}

fn read_request(stream: &mut impl BufRead) -> Option<String> {
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok()?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(path)
}

impl Shoot {
    fn lifeline(&self, token: String) -> Kubeconfig {
        Kubeconfig {
            server: format!("https://127.0.0.1:{}", self.port),
            tls_server_name: None,
            ca: self.ca.clone(),
            credential: Credential::Token(token.into()),
            namespace: "shoot--p--s".into(),
            bootstrap: None,
        }
    }

    fn asked_for_a_token(&self) -> bool {
        self.asked.lock().unwrap().iter().any(|path| path.contains("/token"))
    }
}

const OURS: &str = "system:serviceaccount:firewall:firewall-agent-fw-1";

#[tokio::test]
async fn d4_the_lifeline_is_renewed_without_a_seed_and_not_before_it_is_due() {
    let now = Timestamp::now().as_second();
    let (young, old, new) = (token(now - 3_600), token(now - 90_000), token(now));
    let (shoot, fixture) = (shoot(new.clone()), Fixture::new());
    *shoot.user.lock().unwrap() = OURS.into();
    let mut machine = fixture.machine();
    machine.lifeline = Lifeline::new(shoot.lifeline(young));
    machine.renew_lifeline().await;
    assert!(
        machine.problems.is_empty() && !shoot.asked_for_a_token(),
        "{:?}",
        machine.problems
    );

    machine.lifeline = Lifeline::new(shoot.lifeline(old.clone()));
    // Whoever answers under another name has made it for somebody else.
    *shoot.user.lock().unwrap() = "system:serviceaccount:firewall:other".into();
    machine.renew_lifeline().await;
    assert!(
        machine.problems["lifeline"].contains("refused"),
        "{:?}",
        machine.problems
    );
    assert!(!machine.store.paths.lifeline().exists());

    *shoot.user.lock().unwrap() = OURS.into();
    machine.renew_lifeline().await;
    let text = std::fs::read_to_string(machine.store.paths.lifeline()).unwrap();
    assert!(text.contains(&new) && !text.contains(&old));
    assert!(machine.problems.is_empty(), "{:?}", machine.problems);
}

#[tokio::test]
async fn d4_an_offered_lifeline_is_taken_once_and_only_if_it_works() {
    let now = Timestamp::now().as_second();
    let (shoot, fixture) = (shoot(token(now)), Fixture::new());
    let mut machine = fixture.machine();
    let offer = |token: String| AgentAccess {
        server: String::new(),
        ca: String::new(),
        mode: contract::access::Mode::Certificate,
        seed: String::new(),
        handover_keys: Vec::new(),
        lifeline: Some(SecretString::from(shoot.lifeline(token).write().to_string())),
        renew: None,
        life: None,
    };
    let first = offer(token(now - 10));
    machine.lifeline_offered(&first).await;
    assert!(machine.lifeline.is_none() && machine.handled.lifeline.is_none());
    *shoot.user.lock().unwrap() = OURS.into();
    machine.lifeline_state.failed = None;
    machine.lifeline_offered(&first).await;
    assert!(machine.lifeline.is_some() && machine.state.lifeline && machine.state.shoot_way);
    // Ours is newer than what is still offered.
    let newer = shoot.lifeline(token(now));
    machine.put_lifeline(newer).await.unwrap();
    let kept = std::fs::read_to_string(machine.store.paths.lifeline()).unwrap();
    machine.lifeline_offered(&first).await;
    assert_eq!(std::fs::read_to_string(machine.store.paths.lifeline()).unwrap(), kept);
    // But it does not work any more.
    machine.lifeline_state.refused = true;
    machine.lifeline_offered(&first).await;
    assert_ne!(std::fs::read_to_string(machine.store.paths.lifeline()).unwrap(), kept);
    assert!(!machine.lifeline_state.refused);
}
