//! What the issued certificate may do: what firewall-controller needs, its own renewal, what everybody may, and
//! nothing else. Asked of the real API server, and tried.

use std::collections::BTreeSet;

use anyhow::Context;
use cluster::firewall::{Firewall, FirewallMonitor};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PostParams};
use kube::discovery::{Discovery, verbs};
use kube::{Api, Client};
use serde_json::json;
use tests::harness::{PATIENCE, eventually};
use tests::programs::Machine;
use tests::upstream::{GENERIC_KUBECONFIG, SHOOT_TOKEN};
use tests::world::{World, bootstrapped};

use crate::support::{client_of, user_of};

struct Question<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

async fn may(client: &Client, question: &Question<'_>) -> anyhow::Result<bool> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: some(question.verb),
                group: Some(question.group.into()),
                resource: some(question.resource),
                subresource: some(question.subresource),
                namespace: some(question.namespace),
                name: some(question.name),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    Ok(answer.status.context("no status")?.allowed)
}

/// Every (group, resource, subresource) that the API server serves, and those that RBAC alone knows.
async fn resources(admin: &Client) -> anyhow::Result<BTreeSet<(String, String, String)>> {
    let discovery = Discovery::new(admin.clone()).run().await?;
    let mut found = BTreeSet::new();
    for group in discovery.groups() {
        for version in group.versions() {
            for (resource, capabilities) in group.versioned_resources(version) {
                let key = |sub: &str| (resource.group.clone(), resource.plural.clone(), sub.to_owned());
                found.insert(key(""));
                for (sub, _) in &capabilities.subresources {
                    found.insert(key(sub.plural.rsplit('/').next().unwrap_or_default()));
                }
            }
        }
    }
    anyhow::ensure!(found.len() > 50, "only {} resources were found", found.len());
    for (group, resource, sub) in [
        ("certificates.k8s.io", "certificatesigningrequests", "nodeclient"),
        ("certificates.k8s.io", "certificatesigningrequests", "selfnodeclient"),
        (
            "certificates.k8s.io",
            "certificatesigningrequests",
            "firewallcontroller",
        ),
        (
            "certificates.k8s.io",
            "certificatesigningrequests",
            "selffirewallcontroller",
        ),
        ("certificates.k8s.io", "certificatesigningrequests", "approval"),
        ("certificates.k8s.io", "certificatesigningrequests", "status"),
        ("certificates.k8s.io", "signers", ""),
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("", "users", ""),
        ("", "groups", ""),
        ("", "nodes", "proxy"),
        ("", "pods", "exec"),
    ] {
        found.insert((group.into(), resource.into(), sub.into()));
    }
    Ok(found)
}

const VERBS: [&str; 14] = [
    verbs::GET,
    verbs::LIST,
    verbs::WATCH,
    verbs::CREATE,
    verbs::UPDATE,
    verbs::PATCH,
    verbs::DELETE,
    verbs::DELETE_COLLECTION,
    "approve",
    "sign",
    "impersonate",
    "bind",
    "escalate",
    "use",
];

/// What `system:basic-user` gives to everybody who is known at all.
fn everybody_may(verb: &str, group: &str, resource: &str, sub: &str) -> bool {
    verb == "create"
        && sub.is_empty()
        && matches!(
            (group, resource),
            (
                "authorization.k8s.io",
                "selfsubjectaccessreviews" | "selfsubjectrulesreviews"
            ) | ("authentication.k8s.io", "selfsubjectreviews")
        )
}

fn its_renewal_takes(verb: &str, group: &str, resource: &str, sub: &str) -> bool {
    group == "certificates.k8s.io"
        && resource == "certificatesigningrequests"
        && matches!(
            (verb, sub),
            ("create" | "get", "") | ("create", "selffirewallcontroller")
        )
}

fn reads(verb: &str) -> bool {
    matches!(verb, "get" | "list" | "watch")
}

/// Asks for every verb on every resource, cluster-wide, in the shoot's namespace and in kube-system.
async fn may_exactly(world: &World, client: &Client, expected: impl Fn(&str, &str, &str, &str, &str) -> bool) {
    let all = resources(&world.admin().await.unwrap()).await.unwrap();
    let mut asked = 0;
    for (group, resource, sub) in &all {
        let mut questions = Vec::new();
        for verb in VERBS {
            for namespace in ["", world.namespace(), "kube-system"] {
                questions.push(Question {
                    verb,
                    group,
                    resource,
                    subresource: sub,
                    namespace,
                    name: "",
                });
            }
        }
        let answers = futures::future::try_join_all(questions.iter().map(|question| may(client, question))).await;
        for (question, allowed) in questions.iter().zip(answers.unwrap()) {
            assert_eq!(
                allowed,
                expected(question.verb, group, resource, sub, question.namespace),
                "{} {group}/{resource}/{sub} in namespace {:?}",
                question.verb,
                question.namespace
            );
            asked += 1;
        }
    }
    assert!(asked > 2_000, "only {asked} questions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_bootstrap_credential_of_either_kind_may_ask_for_a_certificate_and_nothing_else() {
    let world = World::new("shoot--rights--boot").await.unwrap();
    for (kind, suffix) in [("token", "00001"), ("service-account", "00002")] {
        let approver = world.approver_with(&["--bootstrap-credential", kind]).unwrap();
        let machine = world.machine(suffix).await.unwrap();
        let client = client_of(&machine.bootstrap_kubeconfig()).await.unwrap();
        eventually("it lets in", PATIENCE, || user_of(&client)).await.unwrap();
        may_exactly(&world, &client, |verb, group, resource, sub, _| {
            let requests = group == "certificates.k8s.io" && resource == "certificatesigningrequests";
            everybody_may(verb, group, resource, sub)
                || (requests && matches!((verb, sub), ("create" | "get", "") | ("create", "firewallcontroller")))
        })
        .await;
        approver.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_the_certificate_may_do_what_firewall_controller_needs_and_nothing_else() {
    let world = World::new("shoot--rights--all").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
    let own = world.namespace();
    may_exactly(&world, &client, |verb, group, resource, sub, namespace| {
        let of_firewalls =
            group == "firewall.metal-stack.io" && resource == "firewalls" && ["", "status"].contains(&sub);
        everybody_may(verb, group, resource, sub)
            || its_renewal_takes(verb, group, resource, sub)
            || (namespace == own && of_firewalls && reads(verb))
    })
    .await;

    // Secrets: three by name in the own namespace, to read.
    let agent_secret = format!("{}.fw.metal-stack.io", machine.firewall);
    for name in [
        agent_secret.as_str(),
        GENERIC_KUBECONFIG,
        SHOOT_TOKEN,
        "firewall-bootstrap",
        "shoot-access-firewall-approver",
        "ca",
    ] {
        for verb in VERBS {
            for namespace in [own, "kube-system", ""] {
                let question = Question {
                    verb,
                    group: "",
                    resource: "secrets",
                    subresource: "",
                    namespace,
                    name,
                };
                let expected = namespace == own
                    && reads(verb)
                    && [agent_secret.as_str(), GENERIC_KUBECONFIG, SHOOT_TOKEN].contains(&name);
                assert_eq!(
                    may(&client, &question).await.unwrap(),
                    expected,
                    "{verb} Secret {namespace}/{name}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d2_of_two_shoots_side_by_side_neither_sees_the_others_secrets_or_firewalls() {
    let (one, two) = (
        World::new("shoot--d2--one").await.unwrap(),
        World::new("shoot--d2--two").await.unwrap(),
    );
    let namespaces = ["--namespace", one.namespace(), "--namespace", two.namespace()];
    let _approver = one.home.start(&namespaces).unwrap();
    let machines = [
        one.machine("00001").await.with_context(|| one.home.log()).unwrap(),
        two.machine("00001").await.unwrap(),
    ];
    let _agents = [machines[0].start().unwrap(), machines[1].start().unwrap()];
    for (world, machine) in [&one, &two].into_iter().zip(&machines) {
        bootstrapped(machine).await.with_context(|| one.home.log()).unwrap();
        world.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();
    }
    for (machine, other_machine, other) in [(&machines[0], &machines[1], &two), (&machines[1], &machines[0], &one)] {
        let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
        let firewalls: Api<Firewall> = Api::namespaced(client.clone(), other.namespace());
        forbidden("get the other's Firewall", firewalls.get(&other_machine.firewall).await);
        forbidden("list the other's Firewalls", firewalls.list(&Default::default()).await);
        forbidden(
            "list all Firewalls",
            Api::<Firewall>::all(client.clone()).list(&Default::default()).await,
        );
        let secrets: Api<Secret> = Api::namespaced(client.clone(), other.namespace());
        for name in [
            format!("{}.fw.metal-stack.io", other_machine.firewall),
            GENERIC_KUBECONFIG.into(),
            SHOOT_TOKEN.into(),
            "firewall-bootstrap".into(),
        ] {
            forbidden("get the other's Secret", secrets.get(&name).await);
        }
        forbidden("list the other's Secrets", secrets.list(&Default::default()).await);
        let own: Api<Secret> = Api::namespaced(client.clone(), &machine.namespace);
        forbidden("list Secrets in its own namespace", own.list(&Default::default()).await);
        own.get(GENERIC_KUBECONFIG).await.unwrap();
        // Nor does it change anything where it may read.
        let firewalls: Api<Firewall> = Api::namespaced(client, &machine.namespace);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        forbidden(
            "patch its own Firewall",
            firewalls.patch(&machine.firewall, &Default::default(), &patch).await,
        );
    }
    // The lifelines: each patches its own FirewallMonitor in the shoot, and no other.
    for (machine, other) in [(&machines[0], &machines[1]), (&machines[1], &machines[0])] {
        let client = lifeline(machine).await.unwrap();
        assert_eq!(
            user_of(&client).await.unwrap(),
            format!("system:serviceaccount:firewall:firewall-agent-{}", machine.firewall)
        );
        let monitors: Api<FirewallMonitor> = Api::namespaced(client.clone(), "firewall");
        monitors.get(&machine.firewall).await.unwrap();
        forbidden("read the other's FirewallMonitor", monitors.get(&other.firewall).await);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
        forbidden(
            "patch the other's FirewallMonitor",
            monitors.patch(&other.firewall, &Default::default(), &patch).await,
        );
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "firewall");
        maps.get("kube-root-ca.crt").await.unwrap();
        forbidden(
            "list Secrets in the shoot",
            Api::<Secret>::namespaced(client, "firewall")
                .list(&Default::default())
                .await,
        );
    }
}

async fn lifeline(machine: &Machine) -> anyhow::Result<Client> {
    client_of(&machine.state().join("lifeline.kubeconfig")).await
}

fn forbidden<T>(what: &str, answer: kube::Result<T>) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what}: it was allowed"),
    }
}
