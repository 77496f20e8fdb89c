//! The bootstrap credential: both kinds, how one is chosen, how it ends.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use tests::harness::{Cluster, ClusterOptions, PATIENCE, client_from, eventually};
use tests::programs::{ApproverHome, Machine, bootstrap_kubeconfig};
use tests::upstream::{Shoot, install_crds};
use tests::world::{World, bootstrapped, install_seed, install_shoot};

use crate::support::{is_refused, token_of, user_of};

/// An API server keeps an answer about a token for this long.
const CACHES: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn a1_the_literal_group_of_the_original_text_is_refused_and_ours_is_taken() {
    let world = World::new("shoot--a1--group").await.unwrap();
    let admin = world.admin().await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(admin, "kube-system");
    for (id, group, works) in [
        ("aaaaa1", "system:bootstrappers", false),
        ("aaaaa2", "system:bootstrappers:metal-stack:firewall", true),
    ] {
        let secret = json!({
            "metadata": {"name": format!("bootstrap-token-{id}")}, "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": group,
            },
        });
        secrets
            .create(&Default::default(), &serde_json::from_value(secret).unwrap())
            .await
            .unwrap();
        let kubeconfig = world.seed.kubeconfig_with_token(&format!("{id}.0123456789abcdef"));
        if works {
            let client = client_from(&kubeconfig).await.unwrap();
            let user = eventually("our group", PATIENCE, || user_of(&client)).await.unwrap();
            assert_eq!(user, format!("system:bootstrap:{id}"));
        } else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            is_refused(&kubeconfig, Duration::from_secs(2)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_bootstrap_token_opens_nothing_once_the_firewall_has_come_in() {
    let world = World::new("shoot--a1--spent").await.unwrap();
    let _approver = world.approver_with(&["--bootstrap-credential", "token"]).unwrap();
    let machine = world.machine("00001").await.unwrap();
    let kubeconfig = fs::read_to_string(machine.config().join(".bootstrap.kubeconfig")).unwrap();
    let _agent = machine.start().unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    is_refused(&kubeconfig, CACHES).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_service_account_serves_as_bootstrap_credential_and_is_spent_as_well() {
    let world = World::new("shoot--a1--account").await.unwrap();
    let _approver = world
        .approver_with(&["--bootstrap-credential", "service-account"])
        .unwrap();
    let machine = world.machine("00001").await.unwrap();
    let kubeconfig = fs::read_to_string(machine.config().join(".bootstrap.kubeconfig")).unwrap();
    let user = user_of(&client_from(&kubeconfig).await.unwrap()).await.unwrap();
    assert_eq!(
        user,
        format!("system:serviceaccount:firewall-bootstrap:{}", machine.firewall)
    );
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    is_refused(&kubeconfig, CACHES).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_another_kind_of_credential_by_flag_replaces_one_that_nobody_has_used() {
    let world = World::new("shoot--d4--kind").await.unwrap();
    let approver = world.approver_with(&["--bootstrap-credential", "token"]).unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let before = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    approver.stop().await.unwrap();
    let _approver = world
        .approver_with(&["--bootstrap-credential", "service-account"])
        .unwrap();
    eventually("a credential of the other kind", PATIENCE, || async {
        let now = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall).await?;
        anyhow::ensure!(token_of(&now)? != token_of(&before)?, "still the token");
        let user = user_of(&client_from(&now).await?).await?;
        anyhow::ensure!(
            user == format!("system:serviceaccount:firewall-bootstrap:{firewall}"),
            "{user}"
        );
        Ok(())
    })
    .await
    .unwrap();
    // The one that was replaced must not stay open.
    is_refused(&before, CACHES).await.unwrap();
}

/// As in every Gardener shoot, and so in every managed seed: whoever holds a bootstrap token may ask for a node's
/// certificate. There a token of ours would be a ticket to a node's identity.
#[tokio::test(flavor = "multi_thread")]
async fn a1_auto_takes_a_service_account_where_a_token_opens_more_or_is_not_taken() {
    for (name, tokens) in [("gardener", true), ("tokenless", false)] {
        let options = ClusterOptions {
            bootstrap_tokens: tokens,
            ..ClusterOptions::new(name)
        };
        let seed = Cluster::start(options).await.unwrap();
        install_crds(&seed, &seed).await.unwrap();
        install_seed(&seed).await.unwrap();
        install_shoot(&seed).await.unwrap();
        if tokens {
            let binding = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "gardener"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                            "name": "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
            });
            let role = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
                "rules": [{"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/nodeclient"], "verbs": ["create"]}],
            });
            seed.kubectl_apply_text(&format!("{role}\n---\n{binding}"))
                .await
                .unwrap();
        }
        let shoot = Shoot::create(&seed, &seed, "shoot--a1--auto").await.unwrap();
        shoot.write_approver_access().await.unwrap();
        let home = ApproverHome::new(&seed).await.unwrap();
        let _approver = home.start(&[]).unwrap();
        let firewall = shoot.create_firewall("00001").await.unwrap();
        let machine = Machine::install(&seed, &shoot.namespace, &firewall).await.unwrap();
        let kubeconfig = fs::read_to_string(machine.config().join(".bootstrap.kubeconfig")).unwrap();
        let user = user_of(&client_from(&kubeconfig).await.unwrap()).await.unwrap();
        assert_eq!(
            user,
            format!("system:serviceaccount:firewall-bootstrap:{firewall}"),
            "{name}: {}",
            home.log()
        );
        let _agent = machine.start().unwrap();
        bootstrapped(&machine).await.unwrap();
        if !tokens {
            let mut insists = home.start(&["--bootstrap-credential", "token"]).unwrap();
            assert_eq!(insists.ended(Duration::from_secs(20)).await.unwrap(), Some(1));
            assert!(home.log().contains("--enable-bootstrap-token-auth"), "{}", home.log());
        }
    }
}

/// The approver's clock goes ahead, the seed's does not: what the one writes down is what the other goes by.
#[tokio::test(flavor = "multi_thread")]
async fn a1_a_token_is_extended_in_place_until_its_day_is_over_and_then_refused() {
    let world = World::new("shoot--a1--day").await.unwrap();
    let kind = ["--namespace", world.namespace(), "--bootstrap-credential", "token"];
    let approver = world.home.start(&kind).unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let token = token_of(&kubeconfig).unwrap();
    let client = client_from(&kubeconfig).await.unwrap();
    eventually("it lets in", CACHES, || user_of(&client)).await.unwrap();
    let first = minutes_left(&world, &token).await.unwrap();
    assert!((59..=60).contains(&first), "{first}");
    approver.stop().await.unwrap();
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .into_iter()
        // tests/tools.sh installs it.
        .map(|dir| format!("{dir}/faketime/libfaketime.so.1"))
        .find(|path| fs::metadata(path).is_ok())
        .unwrap();
    for (ahead, end) in [("+20m", 60), ("+40m", 100), ("+23h", 24 * 60)] {
        let clock = [
            ("LD_PRELOAD", library.as_str()),
            ("FAKETIME", ahead),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        let approver = world.home.start_in(&clock, &kind).unwrap();
        eventually(&format!("at {ahead} it ends at minute {end}"), CACHES, || async {
            let left = minutes_left(&world, &token).await?;
            anyhow::ensure!((end - 1..=end).contains(&left), "{left}");
            Ok(())
        })
        .await
        .with_context(|| world.home.log())
        .unwrap();
        let now = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
            .await
            .unwrap();
        assert_eq!(token_of(&now).unwrap(), token, "{ahead}: it is another token");
        user_of(&client).await.unwrap();
        approver.stop().await.unwrap();
    }
    let clock = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", "+25h"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let _approver = world.home.start_in(&clock, &kind).unwrap();
    world.await_reason(&firewall, "CredentialExpired").await.unwrap();
    is_refused(&kubeconfig, CACHES).await.unwrap();
}

/// By the seed's clock.
async fn minutes_left(world: &World, token: &str) -> anyhow::Result<i64> {
    let (id, _) = token.split_once('.').context("no token")?;
    let secrets: Api<Secret> = Api::namespaced(world.admin().await?, "kube-system");
    let data = secrets.get(&format!("bootstrap-token-{id}")).await?.data;
    let end = data.unwrap_or_default().remove("expiration").context("no expiration")?;
    let end: Timestamp = String::from_utf8(end.0)?.parse()?;
    let seconds = end.duration_since(Timestamp::now()).as_secs();
    Ok((seconds + 59).div_euclid(60))
}
