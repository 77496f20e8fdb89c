//! B6: one flag of the approver, `--seed-access`, and what it asks of nobody on the machine.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use cluster::firewall::Firewall;
use contract::digest::sha256_hex;
use contract::kubeconfig::{Credential, Kubeconfig};
use contract::names;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tests::consumer::{Consumer, Kind};
use tests::harness::{Cluster, ClusterOptions, client_from, eventually};
use tests::moves::{Leaves, Stage};
use tests::programs::{KilledAt, Machine};
use tests::upstream::install_crds;
use tests::world::{Place, World, install_seed, seed, shoot_cluster};
use tokio::time::Instant;

use crate::moves::{EVENTUALLY, came_in, said, settled};
use crate::support::{certificate_of, client_of, is_refused, requests_for, user_of};

const TOKENS: [&str; 2] = ["--seed-access", "token"];

/// The token that the machine's kubeconfig for the seed points to.
fn token_file(machine: &Machine) -> anyhow::Result<String> {
    let text = fs::read_to_string(machine.seed_kubeconfig())?;
    match Kubeconfig::read_local("the machine's kubeconfig", &text)?.credential {
        Credential::TokenFile(path) => Ok(fs::read_to_string(path)?.trim().to_owned()),
        other => anyhow::bail!("no token file but {other:?}"),
    }
}

async fn works_with_token(place: &Place<'_>, machine: &Machine) -> String {
    eventually("a token on the machine", EVENTUALLY, || async { token_file(machine) })
        .await
        .with_context(|| format!("{}\n--- approver\n{}", machine.log(), place.home.log()))
        .unwrap();
    let words = "works with token";
    let state = said(place, &machine.firewall, "Bootstrapped", words).await;
    assert!(
        state["message"].as_str().unwrap().contains("--seed-access=token"),
        "{state}"
    );
    let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
    assert_eq!(
        user_of(&client).await.unwrap(),
        format!("system:serviceaccount:firewall-access:{}", machine.firewall)
    );
    token_file(machine).unwrap()
}

async fn works_with_certificate(place: &Place<'_>, machine: &Machine) {
    eventually("a certificate on the machine", EVENTUALLY, || async {
        certificate_of(machine)
    })
    .await
    .with_context(|| format!("{}\n--- approver\n{}", machine.log(), place.home.log()))
    .unwrap();
    said(place, &machine.firewall, "Bootstrapped", "works with certificate").await;
}

/// The consumer was told of the kubeconfig as it stands. That is done once a minute at most.
async fn told(machine: &Machine) {
    eventually("the hook", Duration::from_secs(90), || async {
        let handled: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(machine.state().join("handled.json"))?)?;
        let kubeconfig = fs::read(machine.seed_kubeconfig())?;
        ensure!(handled["told"] == sha256_hex(&kubeconfig), "not run");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
}

async fn make_token(client: &Client, of: &str) -> kube::Result<TokenRequest> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), names::ACCESS_NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(600),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    accounts
        .create_subresource("token", of, &PostParams::default(), &request)
        .await
}

fn is_forbidden<T>(result: kube::Result<T>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403)
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_the_flag_goes_to_and_fro_under_two_consumers_and_no_request_fails() {
    let world = World::new("shoot--b6--fleet").await.unwrap();
    let approver = world.approver().unwrap();
    let (watched, _agent) = came_in(&world, "00001").await;
    let (stock, mut stock_agent) = came_in(&world, "00002").await;
    let consumers = [
        Consumer::start(&watched, Kind::Watching).await.unwrap(),
        Consumer::start(&stock, Kind::Stock).await.unwrap(),
    ];
    let keys = [watched.key().unwrap(), stock.key().unwrap()];

    told(&stock).await;
    approver.stop().await.unwrap();
    let approver = world.approver_with(&TOKENS).unwrap();
    for machine in [&watched, &stock] {
        works_with_token(&world, machine).await;
    }
    told(&stock).await;
    let token = token_file(&stock).unwrap();
    // A restart of either makes nothing new.
    stock_agent.kill();
    stock_agent = stock.start().unwrap();
    approver.stop().await.unwrap();
    let approver = world.approver_with(&TOKENS).unwrap();
    let log = stock.log();
    eventually("the agent's word that all is well", EVENTUALLY, || async {
        ensure!(stock.log().len() > log.len(), "it says nothing");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(works_with_token(&world, &stock).await, token);

    approver.stop().await.unwrap();
    let approver = world.approver().unwrap();
    for machine in [&watched, &stock] {
        works_with_certificate(&world, machine).await;
    }
    told(&stock).await;
    // What the consumers may still hold is not taken away under their feet.
    let account: Api<ServiceAccount> = Api::namespaced(world.admin().await.unwrap(), names::ACCESS_NAMESPACE);
    account.get(&stock.firewall).await.unwrap();

    approver.stop().await.unwrap();
    let _approver = world.approver_with(&TOKENS).unwrap();
    for machine in [&watched, &stock] {
        works_with_token(&world, machine).await;
    }
    assert_eq!(keys, [watched.key().unwrap(), stock.key().unwrap()]);
    assert!(stock_agent.runs());
    for consumer in consumers {
        let sums = consumer.stop().await.unwrap();
        println!("{sums:?}");
        assert_eq!(sums.failed, 0, "{sums:?}");
        assert!(sums.clients >= 2 && sums.other * 10 <= sums.requests, "{sums:?}");
    }
}

/// A seed whose control plane signs no certificate at all.
async fn unsigned_seed(name: &str) -> Cluster {
    let options = ClusterOptions {
        signer: false,
        ..ClusterOptions::new(name)
    };
    // The shoot's own objects come with the seed that all share.
    seed().await.unwrap();
    let own = Cluster::start(options).await.unwrap();
    install_crds(&own, shoot_cluster().await.unwrap()).await.unwrap();
    install_seed(&own).await.unwrap();
    own
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_where_no_certificate_is_signed_a_token_comes_sealed_and_opens_no_more() {
    let seed = unsigned_seed("seed-unsigned").await;
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--b6--unsigned")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let _approver = place.approver_with(&TOKENS).unwrap();
    let machine = place.machine("00001").await.unwrap();
    let other = place.machine("00002").await.unwrap();
    let bootstrap = fs::read_to_string(machine.bootstrap_kubeconfig()).unwrap();
    let agent = machine.start().unwrap();
    settled(&place, &machine).await;
    let first = works_with_token(&place, &machine).await;
    let _other_agent = other.start().unwrap();
    settled(&place, &other).await;

    // What lies in the request is of no use to whoever reads it.
    let requests = requests_for(&place, &machine.firewall).await.unwrap();
    let shown = serde_json::to_string(&requests).unwrap();
    assert!(requests.len() == 1 && !shown.contains(&first), "{}", requests.len());
    let status = requests[0].status.as_ref().unwrap();
    assert!(status.certificate.is_none() && status.conditions.as_ref().unwrap().len() == 2);

    // It opens what a certificate opens.
    let mine = client_of(&machine.seed_kubeconfig()).await.unwrap();
    let firewalls: Api<Firewall> = Api::namespaced(mine.clone(), place.namespace());
    firewalls.get(&machine.firewall).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(mine.clone(), place.namespace());
    secrets
        .get(&format!("{}.fw.metal-stack.io", machine.firewall))
        .await
        .unwrap();
    assert!(is_forbidden(
        secrets.get(&format!("{}.fw.metal-stack.io", other.firewall)).await
    ));
    assert!(is_forbidden(secrets.list(&ListParams::default()).await));
    let accounts: Api<ServiceAccount> = Api::namespaced(mine.clone(), names::ACCESS_NAMESPACE);
    assert!(is_forbidden(accounts.list(&ListParams::default()).await));
    let all: Api<CertificateSigningRequest> = Api::all(mine.clone());
    assert!(is_forbidden(all.list(&ListParams::default()).await));
    // A token makes one of its own account, and of no other; a bootstrap credential makes none.
    make_token(&mine, &machine.firewall).await.unwrap();
    assert!(is_forbidden(make_token(&mine, &other.firewall).await));
    is_refused(&bootstrap, EVENTUALLY).await.unwrap();

    // It is renewed with itself, and without any approver.
    drop(_approver);
    assert!(machine.command("renew", &[]).unwrap().status.success());
    eventually("another token", EVENTUALLY, || async {
        ensure!(token_file(&machine)? != first, "still the first");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    assert_eq!(requests_for(&place, &machine.firewall).await.unwrap().len(), 1);
    let renewed = token_file(&machine).unwrap();
    agent.kill();
    let _agent = machine.start().unwrap();
    let _approver = place.approver_with(&TOKENS).unwrap();
    assert_eq!(works_with_token(&place, &machine).await, renewed);

    // With the Firewall goes its account, and every token of it.
    let kubeconfig = seed.kubeconfig_with_token(&renewed);
    user_of(&client_from(&kubeconfig).await.unwrap()).await.unwrap();
    place.shoot.delete_firewall(&machine.firewall).await.unwrap();
    is_refused(&kubeconfig, EVENTUALLY).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_a9_a_firewall_with_a_token_comes_along_when_its_control_plane_moves() {
    let stage = Stage::new("shoot--b6--moves").await.unwrap();
    let _approvers = [
        stage.a.approver_with(&TOKENS).unwrap(),
        stage.b.approver_with(&TOKENS).unwrap(),
    ];
    let (machine, _agent) = came_in(&stage.a, "00001").await;
    let old = works_with_token(&stage.a, &machine).await;
    let key = machine.key().unwrap();
    let since = stage.a.move_to(&stage.b, Leaves::Namespace).await.unwrap();
    let took = stage.b.has(&machine, since, EVENTUALLY).await.unwrap();
    println!("in the new seed with a token after {took:?}");
    works_with_token(&stage.b, &machine).await;
    assert_eq!(machine.key().unwrap(), key);
    is_refused(&stage.a.seed.kubeconfig_with_token(&old), EVENTUALLY)
        .await
        .unwrap();
    stage.a.is_left_clean(Leaves::Namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_a_token_is_taken_back_with_its_account_and_only_the_machines_key_brings_another() {
    let world = World::new("shoot--b6--revoked").await.unwrap();
    let _approver = world.approver_with(&TOKENS).unwrap();
    let (machine, _agent) = came_in(&world, "00001").await;
    let stolen = works_with_token(&world, &machine).await;
    let account = [
        "delete",
        "serviceaccount",
        "-n",
        names::ACCESS_NAMESPACE,
        &machine.firewall,
    ];
    world.seed.kubectl_ok(&account).await.unwrap();
    is_refused(&world.seed.kubeconfig_with_token(&stolen), EVENTUALLY)
        .await
        .unwrap();
    // A firewall that says it is refused is let in anew five minutes after it was last.
    eventually("another token", Duration::from_secs(420), || async {
        ensure!(token_file(&machine)? != stolen, "still the one that was taken back");
        Ok(())
    })
    .await
    .with_context(|| format!("{}\n--- approver\n{}", machine.log(), world.home.log()))
    .unwrap();
    works_with_token(&world, &machine).await;
}

/// What the files on the machine open, at this very moment.
async fn opens_its_own(machine: &Machine) -> anyhow::Result<()> {
    let client = client_of(&machine.seed_kubeconfig()).await?;
    let firewalls: Api<Firewall> = Api::namespaced(client, &machine.namespace);
    firewalls.get(&machine.firewall).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_c4_an_agent_that_is_killed_at_each_rename_of_a_change_leaves_files_that_work() {
    let world = World::new("shoot--b6--kills").await.unwrap();
    let approver = world.approver().unwrap();
    let (machine, agent) = came_in(&world, "00001").await;
    let key = machine.key().unwrap();
    agent.kill();
    approver.stop().await.unwrap();
    let mut kills = 0;
    for mode in ["token", "certificate"] {
        let approver = world.approver_with(&["--seed-access", mode]).unwrap();
        let (secrets, name) = (
            world.secrets().await.unwrap(),
            format!("{}.fw.metal-stack.io", machine.firewall),
        );
        eventually("the mode in the firewall's Secret", EVENTUALLY, || async {
            let data = secrets.get(&name).await?.data.unwrap_or_default();
            ensure!(
                data.get("mode").is_some_and(|found| found.0 == mode.as_bytes()),
                "not yet"
            );
            Ok(())
        })
        .await
        .unwrap();
        let switched = || token_file(&machine).is_ok() == (mode == "token");
        let busy = || !switched() || machine.state().join("request.json").exists();
        for nth in 1.. {
            let killed = KilledAt {
                syscall: "rename,renameat,renameat2",
                nth,
            };
            let mut agent = machine.start_killed(&[], Some(killed)).unwrap();
            let end = Instant::now() + Duration::from_secs(60);
            while agent.runs() && busy() {
                assert!(Instant::now() < end, "it comes to nothing:\n{}", machine.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let rests = agent.runs();
            agent.kill();
            opens_its_own(&machine)
                .await
                .with_context(|| format!("{mode}, killed at rename {nth}:\n{}", machine.log()))
                .unwrap();
            assert_eq!(machine.key().unwrap(), key);
            if rests {
                break;
            }
            kills += 1;
            assert!(nth < 60, "it never comes to rest:\n{}", machine.log());
        }
        assert!(switched());
        approver.stop().await.unwrap();
    }
    println!("killed {kills} times");
    assert!(kills >= 6, "nothing was interrupted");
}
