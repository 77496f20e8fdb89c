//! Requests that are not as they should be, and the operator's word on them.

use std::time::Duration;

use anyhow::{Context, ensure};
use contract::key::PrivateKey;
use contract::names::FirewallName;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tests::harness::{PATIENCE, client_from, eventually};
use tests::programs::{Machine, bootstrap_kubeconfig};
use tests::world::{World, bootstrapped};

use crate::support::{certificate_of, client_of, condition, requests_for, user_of};

fn csr(name: &str, pem: &str, signer: &str) -> CertificateSigningRequest {
    let request = json!({
        "metadata": {"name": name},
        "spec": {
            "request": k8s_openapi::ByteString(pem.as_bytes().to_vec()), "signerName": signer,
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
        },
    });
    serde_json::from_value(request).unwrap()
}

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

async fn create(client: &Client, csr: &CertificateSigningRequest) -> anyhow::Result<()> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    requests
        .create(&PostParams::default(), csr)
        .await
        .map(|_| ())
        .context("create a request")
}

async fn get(world: &World, name: &str) -> anyhow::Result<CertificateSigningRequest> {
    let requests: Api<CertificateSigningRequest> = Api::all(world.admin().await?);
    Ok(requests.get(name).await?)
}

/// Makes a request with a key of its own, as whoever holds that kubeconfig.
pub(crate) async fn ask(client: &Client, firewall: &str) -> anyhow::Result<(PrivateKey, String)> {
    let key = PrivateKey::generate()?;
    let pem = contract::csr::write(&FirewallName::parse(firewall)?, &key)?;
    let name = contract::csr::object_name(&pem)?;
    create(client, &csr(&name, &pem, SIGNER)).await?;
    Ok((key, name))
}

async fn denied(world: &World, name: &str) -> anyhow::Result<String> {
    eventually(&format!("request {name} denied"), PATIENCE, || async {
        let csr = get(world, name).await?;
        ensure!(condition(&csr, "Approved").is_none(), "it was approved");
        Ok(condition(&csr, "Denied").context("not denied yet")?.0)
    })
    .await
    .with_context(|| world.home.log())
}

async fn stays_open(world: &World, name: &str) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    let csr = get(world, name).await?;
    ensure!(
        csr.status.as_ref().is_none_or(|status| status.conditions.is_none()),
        "it was decided: {:?}",
        csr.status
    );
    Ok(())
}

async fn approved(world: &World, name: &str) -> anyhow::Result<()> {
    eventually(&format!("request {name} approved"), PATIENCE, || async {
        condition(&get(world, name).await?, "Approved")
            .context("not approved yet")
            .map(|_| ())
    })
    .await
    .with_context(|| world.home.log())
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_a_request_that_was_made_while_the_approver_was_down_is_decided_when_it_comes() {
    let world = World::new("shoot--r--down").await.unwrap();
    let approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    approver.kill();
    let _agent = machine.start().unwrap();
    eventually("a request", PATIENCE, || async {
        ensure!(!requests_for(&world, &machine.firewall).await?.is_empty(), "none yet");
        Ok(())
    })
    .await
    .unwrap();
    let name = requests_for(&world, &machine.firewall).await.unwrap()[0].name_any();
    stays_open(&world, &name).await.unwrap();
    let _approver = world.approver().unwrap();
    bootstrapped(&machine).await.unwrap();
    assert_eq!(requests_for(&world, &machine.firewall).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_a_planted_request_does_not_stop_the_agent() {
    let world = World::new("shoot--r--plant").await.unwrap();
    let approver = world.approver().unwrap();
    let (planted, refused) = (
        world.machine("00001").await.unwrap(),
        world.machine("00002").await.unwrap(),
    );
    approver.kill();
    for (machine, deny) in [(&planted, false), (&refused, true)] {
        let agent = machine.start().unwrap();
        let request = eventually("a request", PATIENCE, || async {
            requests_for(&world, &machine.firewall).await?.pop().context("none yet")
        })
        .await
        .unwrap();
        agent.kill();
        // Under the very name that the agent will look for when it goes on.
        let requests: Api<CertificateSigningRequest> = Api::all(world.admin().await.unwrap());
        let name = request.name_any();
        requests.delete(&name, &DeleteParams::default()).await.unwrap();
        let text = String::from_utf8(request.spec.request.0.clone()).unwrap();
        if deny {
            // Its own bytes, made and denied by somebody else.
            create(&world.admin().await.unwrap(), &csr(&name, &text, SIGNER))
                .await
                .unwrap();
            world.seed.kubectl_ok(&["certificate", "deny", &name]).await.unwrap();
        } else {
            let other = contract::csr::write(
                &FirewallName::parse(&machine.firewall).unwrap(),
                &PrivateKey::generate().unwrap(),
            );
            create(&world.admin().await.unwrap(), &csr(&name, &other.unwrap(), SIGNER))
                .await
                .unwrap();
        }
    }
    let _approver = world.approver().unwrap();
    for machine in [&planted, &refused] {
        let key = std::fs::read(machine.state().join("key.pem")).unwrap();
        let _agent = machine.start().unwrap();
        bootstrapped(machine).await.unwrap();
        assert_eq!(std::fs::read(machine.state().join("key.pem")).unwrap(), key);
        user_of(&client_of(&machine.seed_kubeconfig()).await.unwrap())
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_a_credential_gets_no_other_firewalls_certificate_and_nothing_but_a_firewalls() {
    let world = World::new("shoot--r--wrong").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let other = world.shoot.create_firewall("00002").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    bootstrap_kubeconfig(world.seed, world.namespace(), &other)
        .await
        .unwrap();
    let thief = client_from(&kubeconfig).await.unwrap();

    let (_, name) = ask(&thief, &other).await.unwrap();
    assert_eq!(denied(&world, &name).await.unwrap(), "NotYours");
    // Every kind of smuggling that the corpus knows, through the real API server.
    let corpus = format!("{}/corpus/csr", env!("CARGO_MANIFEST_DIR"));
    let mut tried = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        let path = file.unwrap().path();
        let stem = path
            .file_stem()
            .unwrap()
            .to_string_lossy()
            .replace('_', "-")
            .to_lowercase();
        if stem.starts_with("good") {
            continue;
        }
        let name = format!("smuggled-{stem}");
        let pem = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        // Some the API server refuses by itself; what it takes, the approver has to refuse.
        if create(&thief, &csr(&name, &pem, SIGNER)).await.is_ok() {
            assert_eq!(denied(&world, &name).await.unwrap(), "MalformedRequest", "{name}");
            tried += 1;
        }
    }
    assert!(tried > 10, "only {tried} of the corpus came through the API server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_requests_of_others_and_for_others_are_left_alone() {
    let world = World::new("shoot--r--ignore").await.unwrap();
    let approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let ours = client_from(&kubeconfig).await.unwrap();
    // Somebody else's identity that claims a firewall's name.
    let (_, foreign) = ask(&world.admin().await.unwrap(), &firewall).await.unwrap();
    // One of ours, for a signer that gives node certificates: a policy keeps it from even asking.
    let pem = contract::csr::write(
        &FirewallName::parse(&firewall).unwrap(),
        &PrivateKey::generate().unwrap(),
    )
    .unwrap();
    let other = csr(
        "for-another-signer",
        &pem,
        "kubernetes.io/kube-apiserver-client-kubelet",
    );
    let refusal = format!("{:#}", create(&ours, &other).await.unwrap_err());
    assert!(refusal.contains("firewall-approver-requesters"), "{refusal}");
    stays_open(&world, &foreign).await.unwrap();
    // It does not stand in the way of the right one that comes after it.
    let (_, right) = ask(&ours, &firewall).await.unwrap();
    approved(&world, &right).await.unwrap();
    assert!(approver.log().contains("ForeignRequester"), "{}", approver.log());
    // People see it with kubectl.
    eventually("an event", PATIENCE, || async {
        let events = world
            .seed
            .kubectl_ok(&["get", "events.events.k8s.io", "-A", "-o", "json"])
            .await?;
        let events: Value = serde_json::from_str(&events)?;
        let found = events["items"]
            .as_array()
            .context("no list")?
            .iter()
            .any(|event| event["reason"] == "ForeignRequester" && event["regarding"]["name"] == foreign.as_str());
        ensure!(found, "none with reason ForeignRequester");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_two_keys_on_one_credential_pin_neither_until_an_operator_accepts_one() {
    let world = World::new("shoot--r--twokeys").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let client = client_from(&kubeconfig).await.unwrap();
    // A sibling that read the userdata comes first.
    let (_, first) = ask(&client, &firewall).await.unwrap();
    approved(&world, &first).await.unwrap();
    // Then the machine.
    let machine = Machine::with_kubeconfig(world.namespace(), &firewall, &kubeconfig).unwrap();
    let _agent = machine.start().unwrap();
    let state = world.await_reason(&firewall, "TwoKeys").await.unwrap();
    let record = world.record(&firewall).await.unwrap();
    assert!(record["keys"].get("pin").is_none(), "{record}");
    // Both may have been made within one second, so it is not simply the last.
    let requests = requests_for(&world, &firewall).await.unwrap();
    let request = requests
        .iter()
        .map(ResourceExt::name_any)
        .find(|name| *name != first)
        .unwrap();
    stays_open(&world, &request).await.unwrap();
    // Meanwhile nobody holds the name: the first one's certificate opens nothing.
    let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> =
        Api::namespaced(world.admin().await.unwrap(), world.namespace());
    eventually("no RoleBinding", PATIENCE, || async {
        ensure!(
            bindings
                .get_opt(&format!("fw.metal-stack.io:{firewall}"))
                .await?
                .is_none(),
            "it stands"
        );
        Ok(())
    })
    .await
    .unwrap();

    // The operator compares with the machine, and says so. The message has both thumbprints.
    let status = machine.command("status", &["--output", "json"]).unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let thumbprint = find(&status, "key").unwrap();
    assert!(
        state["message"].as_str().unwrap().contains(&thumbprint),
        "{state} {thumbprint}"
    );
    let uid = world.firewall_uid(&firewall).await.unwrap();
    world
        .annotate(
            &firewall,
            &format!("firewall.metal-stack.io/accept-key={thumbprint}@{uid}"),
        )
        .await
        .unwrap();
    bootstrapped(&machine).await.unwrap();
    world.await_reason(&firewall, "Bootstrapped").await.unwrap();
    assert_eq!(
        certificate_of(&machine).unwrap().key.thumbprint().to_string(),
        thumbprint
    );
    // The other key stays out.
    let (_, again) = ask(&client, &firewall)
        .await
        .map_or((None, None), |(key, name)| (Some(key), Some(name)));
    if let Some(again) = again {
        assert_eq!(denied(&world, &again).await.unwrap(), "OtherKey");
    }
}

fn find(status: &Value, key: &str) -> Option<String> {
    status.get(key).and_then(Value::as_str).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_an_accepted_key_of_another_firewall_object_counts_for_nothing() {
    let world = World::new("shoot--r--accept").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let thumbprint = PrivateKey::generate().unwrap().public().thumbprint();
    let value = format!("firewall.metal-stack.io/accept-key={thumbprint}@00000000-0000-0000-0000-000000000000");
    world.annotate(&firewall, &value).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let record = world.record(&firewall).await.unwrap();
    assert!(
        record["keys"].get("pin").is_none() && record["keys"].get("accepted").is_none(),
        "{record}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_a_reinstalled_machine_comes_in_again_with_the_same_userdata_when_the_operator_says_so() {
    let world = World::new("shoot--r--reinstall").await.unwrap();
    let _approver = world.approver_with(&["--bootstrap-credential", "token"]).unwrap();
    let machine = world.machine("00001").await.unwrap();
    let agent = machine.start().unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    let old = certificate_of(&machine).unwrap();
    agent.kill();
    let userdata = std::fs::read_to_string(machine.config().join(".bootstrap.kubeconfig")).unwrap();
    crate::support::is_refused(&userdata, Duration::from_secs(15))
        .await
        .unwrap();

    machine.reinstall().unwrap();
    let _agent = machine.start().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!machine.seed_kubeconfig().exists(), "a spent token let a new key in");
    let uid = world.firewall_uid(&machine.firewall).await.unwrap();
    world
        .annotate(
            &machine.firewall,
            &format!("firewall.metal-stack.io/rebootstrap={uid}/first"),
        )
        .await
        .unwrap();
    bootstrapped(&machine).await.unwrap();
    let new = certificate_of(&machine).unwrap();
    assert_ne!(new.key, old.key);
    // And is closed again behind it: another new key is one too many.
    crate::support::is_refused(&userdata, Duration::from_secs(20))
        .await
        .unwrap();
    let record = world.record(&machine.firewall).await.unwrap();
    assert_eq!(record["keys"]["pin"]["thumbprint"], new.key.thumbprint().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn p33_of_two_firewalls_of_one_name_the_first_keeps_it_and_the_other_gets_no_binding() {
    let world = World::new("shoot--r--name").await.unwrap();
    let other = World::new("shoot--r--name2").await.unwrap();
    let namespaces = ["--namespace", world.namespace(), "--namespace", other.namespace()];
    let _approver = world.home.start(&namespaces).unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    other.shoot.create_firewall_object(&firewall).await.unwrap();
    other.await_reason(&firewall, "NameTaken").await.unwrap();
    let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> =
        Api::namespaced(world.admin().await.unwrap(), other.namespace());
    assert!(
        bindings
            .get_opt(&format!("fw.metal-stack.io:{firewall}"))
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        other
            .secrets()
            .await
            .unwrap()
            .list(&Default::default())
            .await
            .unwrap()
            .iter()
            .all(|secret| { secret.name_any() != format!("{firewall}-bootstrap-kubeconfig") })
    );
}

/// The user in a certificate is the firewall's name, without its namespace.
#[tokio::test(flavor = "multi_thread")]
async fn p33_a_name_stays_taken_while_a_certificate_of_it_is_good() {
    let world = World::new("shoot--r--gone").await.unwrap();
    let other = World::new("shoot--r--gone2").await.unwrap();
    let namespaces = ["--namespace", world.namespace(), "--namespace", other.namespace()];
    let _approver = world.home.start(&namespaces).unwrap();
    let machine = world.machine("00001").await.unwrap();
    let agent = machine.start().unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    agent.kill();
    world.shoot.delete_firewall(&machine.firewall).await.unwrap();
    other.shoot.create_firewall_object(&machine.firewall).await.unwrap();
    other.await_reason(&machine.firewall, "NameTaken").await.unwrap();
    let old = client_of(&machine.seed_kubeconfig()).await.unwrap();
    let firewalls: Api<cluster::firewall::Firewall> = Api::namespaced(old, other.namespace());
    assert!(
        firewalls.get(&machine.firewall).await.is_err(),
        "the old certificate opens the new namespace"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_explains_and_changes_nothing() {
    let world = World::new("shoot--r--dry").await.unwrap();
    let approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    approver.stop().await.unwrap();
    let dry = world.approver_with(&["--dry-run"]).unwrap();
    let record = world.record(&firewall).await.unwrap();
    let (_, name) = ask(&client_from(&kubeconfig).await.unwrap(), &firewall).await.unwrap();
    eventually("an explained decision", PATIENCE, || async {
        let line = dry
            .log()
            .lines()
            .find(|line| line.contains(&name) && line.contains("approved"))
            .map(str::to_owned);
        ensure!(
            line.context("nothing said")?.contains("\"dry_run\":true"),
            "not as a dry run"
        );
        Ok(())
    })
    .await
    .unwrap();
    stays_open(&world, &name).await.unwrap();
    assert_eq!(world.record(&firewall).await.unwrap(), record);
    dry.stop().await.unwrap();
    let _approver = world.approver().unwrap();
    approved(&world, &name).await.unwrap();
}
