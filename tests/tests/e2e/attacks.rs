//! What stands in the shoot may be anybody's: messages that are not what they seem, and a shoot admin who does what he
//! can. Nothing of it moves a firewall, costs it its seed, or opens one.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use contract::handover::{self, Claims, Order, SealKey};
use contract::key::{PrivateKey, PublicKey};
use contract::kubeconfig::{BootstrapExtension, CaBundle, Credential, Kubeconfig};
use contract::names::{self, FirewallName};
use contract::report::Report;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tests::harness::{client_from, eventually};
use tests::moves::{Leaves, Stage, tail};
use tests::programs::Machine;
use tests::upstream::monitors;
use tests::world::Place;

use crate::moves::{PROMISED, both, came_in};
use crate::support::{certificate_of, client_of, requests_for, user_of};

const SOON: Duration = Duration::from_secs(30);

/// All that somebody could ever have got hold of: the shoot's handover key and the firewall's newest report.
struct Known {
    key: PrivateKey,
    report: Report,
}

impl Known {
    async fn of(place: &Place<'_>, machine: &Machine) -> anyhow::Result<Self> {
        let secret = place.secrets().await?.get("firewall-bootstrap").await?;
        let pem = secret
            .data
            .unwrap_or_default()
            .remove("handover-key")
            .context("no key")?;
        let monitor = monitors(place.shoot.cluster).await?.get(&machine.firewall).await?;
        let report = monitor.annotations().get(names::SEED_ACCESS_REPORT).cloned();
        Ok(Self {
            key: PrivateKey::from_pem(&String::from_utf8(pem.0)?)?,
            report: Report::unverified(&report.context("no report")?).context("no report")?,
        })
    }

    /// Newer than anything that was said before.
    fn claims(&self, generation: u64) -> Claims {
        let now = Timestamp::now();
        Claims {
            seed: "another-seed".into(),
            namespace: self.report.namespace.clone(),
            firewall: self.report.firewall.clone(),
            key: self.report.key.thumbprint(),
            order: Order {
                authority: now.as_second() + 1_000,
                generation,
            },
            issued: now,
            expires: now + SignedDuration::from_hours(1),
            reason: "SeedMoved".into(),
        }
    }

    fn seal(&self) -> &PublicKey {
        self.report.seal.as_ref().unwrap()
    }

    /// Leads to where nobody should be led.
    fn kubeconfig(&self, place: &Place<'_>) -> String {
        let firewall = self.report.firewall.clone();
        let handover_keys = vec![self.key.public()];
        let kubeconfig = Kubeconfig {
            server: "https://127.0.0.1:1".into(),
            tls_server_name: None,
            ca: CaBundle::from_pem(&place.seed.server_ca_pem()).unwrap(),
            credential: Credential::Token("thief.token".to_owned().into()),
            namespace: self.report.namespace.clone(),
            bootstrap: Some(BootstrapExtension {
                firewall,
                handover_keys,
            }),
        };
        kubeconfig.write().to_string()
    }
}

async fn put(place: &Place<'_>, machine: &Machine, message: &str) {
    let api = monitors(place.shoot.cluster).await.unwrap();
    let patch = json!({"metadata": {"annotations": {names::SEED_ACCESS: message}}});
    api.patch(&machine.firewall, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// How many messages of this kind the agent has refused.
fn refused(machine: &Machine, kind: &str) -> anyhow::Result<u64> {
    let output = machine.command("status", &["--output", "json"])?;
    let status: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    Ok(status["refusedHandovers"][kind].as_u64().unwrap_or(0))
}

fn encoded(value: &serde_json::Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_handovers_that_are_not_what_they_seem_are_refused_and_counted_and_the_old_access_goes_on() {
    let stage = Stage::new("shoot--attack--handover").await.unwrap();
    let Stage { a, b } = &stage;
    let (machine, _agent) = came_in_twice(&stage).await;
    let known = Known::of(b, &machine).await.unwrap();
    let (serial, kubeconfig) = (
        certificate_of(&machine).unwrap().serial,
        fs::read_to_string(machine.seed_kubeconfig()).unwrap(),
    );
    let requests = (
        requests_for(a, &machine.firewall).await.unwrap().len(),
        requests_for(b, &machine.firewall).await.unwrap().len(),
    );
    // What was said when it came here: authentic, and its time has not even run out.
    let api = monitors(b.shoot.cluster).await.unwrap();
    let said = api.get(&machine.firewall).await.unwrap();
    let said = said.annotations()[names::SEED_ACCESS].clone();

    let there = known.kubeconfig(b);
    let good = |claims: &Claims| handover::write(&known.key, claims, Some((known.seal(), &there))).unwrap();
    let parts: Vec<String> = good(&known.claims(1)).split('.').map(str::to_owned).collect();
    let header = |alg: &str| json!({"alg": alg, "typ": "firewall-seed-handover+jwt", "kid": known.key.public().thumbprint().to_string()});
    let under = |header: &serde_json::Value, signature: &str| format!("{}.{}.{signature}", encoded(header), parts[1]);
    let hs256 = {
        let (header, key) = (header("HS256"), known.key.public());
        let signed = format!("{}.{}", encoded(&header), parts[1]);
        let mac = jsonwebtoken::crypto::sign(
            signed.as_bytes(),
            &jsonwebtoken::EncodingKey::from_secret(key.point()),
            jsonwebtoken::Algorithm::HS256,
        );
        format!("{signed}.{}", mac.unwrap())
    };
    let mixed = {
        let payload = |generation| -> serde_json::Value {
            let message = good(&known.claims(generation));
            let payload = message.split('.').nth(1).unwrap().to_owned();
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
        };
        let (one, mut two) = (payload(1), payload(2));
        two["sealed"] = one["sealed"].clone();
        format!("{}.{}.{}", parts[0], encoded(&two), parts[2])
    };
    let thief = PrivateKey::generate().unwrap();
    let changed = |change: &dyn Fn(&mut Claims)| {
        let mut claims = known.claims(1);
        change(&mut claims);
        good(&claims)
    };
    let now = Timestamp::now();
    let hour = SignedDuration::from_hours(1);
    let other = SealKey::generate().unwrap();
    let exec = there.replace("token: \"thief.token\"", "exec: {command: \"/bin/true\"}");
    let table: Vec<(&str, &str, String)> = vec![
        (
            "forged",
            "not authentic",
            handover::write(&thief, &known.claims(1), Some((known.seal(), &there))).unwrap(),
        ),
        ("without a signature", "not authentic", under(&header("none"), "")),
        ("signed with the public key as a secret", "not authentic", hs256),
        (
            "the algorithm is another",
            "not authentic",
            under(&header("ES384"), &parts[2]),
        ),
        ("the header brings its own key", "not authentic", {
            let mut header = header("ES256");
            header["jwk"] = json!({"kty": "EC"});
            under(&header, &parts[2])
        }),
        ("claims and sealed part of different ones", "not authentic", mixed),
        (
            "a report instead",
            "not authentic",
            known.report.sign(&known.key).unwrap(),
        ),
        ("not even a message", "not authentic", "hello".into()),
        ("larger than any", "too long", "a".repeat(70 * 1024)),
        (
            "for the sibling",
            "for another firewall",
            changed(&|claims| claims.firewall = FirewallName::parse("fw-2").unwrap()),
        ),
        (
            "for a machine of before",
            "for another key",
            changed(&|claims| claims.key = thief.public().thumbprint()),
        ),
        (
            "expired",
            "expired",
            changed(&|claims| (claims.issued, claims.expires) = (now - hour - hour, now - hour)),
        ),
        (
            "of tomorrow",
            "from the future",
            changed(&|claims| claims.issued = now + hour),
        ),
        (
            "older",
            "older than the one taken up",
            changed(&|claims| {
                claims.order = Order {
                    authority: 1,
                    generation: 9,
                }
            }),
        ),
        (
            "replayed",
            "older than the one taken up",
            stage_message(&stage, &machine).await,
        ),
        (
            "sealed to somebody else",
            "sealed to another key",
            handover::write(&known.key, &known.claims(1), Some((other.public(), &there))).unwrap(),
        ),
        (
            "a kubeconfig that runs a program",
            "wrong content",
            handover::write(&known.key, &known.claims(1), Some((known.seal(), &exec))).unwrap(),
        ),
        (
            "a kubeconfig for another namespace",
            "wrong content",
            changed(&|claims| claims.namespace = "elsewhere".into()),
        ),
    ];
    for (what, kind, message) in table {
        let before = refused(&machine, kind).unwrap();
        put(b, &machine, &message).await;
        eventually(&format!("{what} is refused as {kind:?}"), SOON, || async {
            ensure!(refused(&machine, kind)? > before, "{}", machine.status()?);
            Ok(())
        })
        .await
        .with_context(|| tail(&machine.log()))
        .unwrap();
        assert_eq!(
            fs::read_to_string(machine.seed_kubeconfig()).unwrap(),
            kubeconfig,
            "{what}"
        );
    }
    // What is true now is still what was said last; put back, it changes nothing either.
    put(b, &machine, &said).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(certificate_of(&machine).unwrap().serial, serial);
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    let after = (
        requests_for(a, &machine.firewall).await.unwrap().len(),
        requests_for(b, &machine.firewall).await.unwrap().len(),
    );
    assert_eq!(after, requests, "it asked for a certificate anew");
}

/// From A to B and back and to B again: so there is a handover that was authentic once. No approver is left to repair.
async fn came_in_twice(stage: &Stage<'static>) -> (Machine, tests::programs::Program) {
    let Stage { a, b } = stage;
    let approvers = both(stage);
    let (machine, agent) = came_in(a, "00001").await;
    let mut first = None;
    for (from, to) in [(a, b), (b, a), (a, b)] {
        let began = from.move_to(to, Leaves::Nothing).await.unwrap();
        to.has(&machine, began, PROMISED).await.unwrap();
        to.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
        let monitor = monitors(to.shoot.cluster)
            .await
            .unwrap()
            .get(&machine.firewall)
            .await
            .unwrap();
        first.get_or_insert(monitor.annotations()[names::SEED_ACCESS].clone());
    }
    fs::write(machine.path().join("first-handover"), first.unwrap()).unwrap();
    for approver in approvers {
        approver.stop().await.unwrap();
    }
    (machine, agent)
}

async fn stage_message(_: &Stage<'static>, machine: &Machine) -> String {
    fs::read_to_string(machine.path().join("first-handover")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a_shoot_admin_who_rewrites_and_deletes_everything_gains_nothing_and_moves_nothing() {
    let stage = Stage::new("shoot--attack--admin").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, mut agent) = came_in(a, "00001").await;
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    b.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    let serial = certificate_of(&machine).unwrap().serial;
    let requests = requests_for(b, &machine.firewall).await.unwrap().len();
    let shoot = b.shoot.cluster.client().await.unwrap();
    let monitor_api = monitors(b.shoot.cluster).await.unwrap();

    // He reads everything: of all that looks like a token, and of all credentials in his Secrets, none opens a seed.
    let secrets: Api<Secret> = Api::all(shoot.clone());
    let mut tokens: Vec<String> = Vec::new();
    for secret in secrets.list(&ListParams::default()).await.unwrap() {
        for value in secret.data.unwrap_or_default().into_values() {
            tokens.extend(String::from_utf8(value.0).ok());
        }
    }
    let lifeline = FirewallName::parse(&machine.firewall).unwrap().lifeline();
    for account in [("firewall", lifeline.as_str()), ("kube-system", "firewall-approver")] {
        let args = ["create", "token", "-n", account.0, account.1];
        tokens.push(b.shoot.cluster.kubectl_ok(&args).await.unwrap().trim().to_owned());
    }
    let monitor = monitor_api.get(&machine.firewall).await.unwrap();
    tokens.extend(monitor.annotations().values().cloned());
    for token in tokens
        .iter()
        .filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        for place in [a, b] {
            let client = client_from(&place.seed.kubeconfig_with_token(token)).await.unwrap();
            assert!(user_of(&client).await.is_err(), "a seed takes what lies in the shoot");
        }
    }

    // He rewrites and deletes, over and over, and puts old words back.
    let old = monitor.annotations().clone();
    let end = tokio::time::Instant::now() + Duration::from_secs(25);
    let mut round = 0_u32;
    while tokio::time::Instant::now() < end {
        round += 1;
        let value = match round % 4 {
            0 => json!(null),
            1 => json!("garbage"),
            2 => json!(old.get(names::SEED_ACCESS)),
            _ => json!("a".repeat(100_000)),
        };
        let report = if round.is_multiple_of(3) {
            json!(null)
        } else {
            json!(old.get(names::SEED_ACCESS_REPORT))
        };
        let patch =
            json!({"metadata": {"annotations": {names::SEED_ACCESS: value, names::SEED_ACCESS_REPORT: report}}});
        let _ = monitor_api
            .patch(&machine.firewall, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        if round.is_multiple_of(10) {
            let accounts: Api<ServiceAccount> = Api::namespaced(shoot.clone(), "firewall");
            let roles: Api<Role> = Api::namespaced(shoot.clone(), "firewall");
            let bindings: Api<RoleBinding> = Api::namespaced(shoot.clone(), "firewall");
            let _ = accounts.delete(&lifeline, &DeleteParams::default()).await;
            let _ = roles.delete(&lifeline, &DeleteParams::default()).await;
            let _ = bindings.delete(&lifeline, &DeleteParams::default()).await;
        }
        if round.is_multiple_of(15) {
            let _ = monitor_api.delete(&machine.firewall, &DeleteParams::default()).await;
            // firewall-controller-manager makes it again.
            b.shoot.create_monitor(&machine.firewall).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(agent.runs(), "{}", tail(&machine.log()));
    assert_eq!(
        certificate_of(&machine).unwrap().serial,
        serial,
        "he made it bootstrap again"
    );
    assert_eq!(requests_for(b, &machine.firewall).await.unwrap().len(), requests);
    user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
        .await
        .unwrap();
    let state = b.state(&machine.firewall).await.unwrap();
    assert_eq!(state["state"], "Ready", "{state}");

    // He stops, and the next move goes as always: within what a repair may wait.
    let began = b.move_to(a, Leaves::Nothing).await.unwrap();
    let took = a.has(&machine, began, Duration::from_secs(90)).await.unwrap();
    println!("after the admin has stopped: {took:?}");
}
