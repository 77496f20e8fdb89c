//! The policies against a real API server, with exactly the identity and the rights that `manifests/seed` gives the
//! approver: everything that it has to write passes, everything else is refused by the policy that is meant to.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a fault in what a test builds on is a failed test"
)]

mod firewalls;
mod rbac;
mod requesters;
mod requests;
mod secrets;
mod webhook;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use contract::record::Record;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use server::core::plan;
use tests::harness::{Cluster, ClusterOptions, PATIENCE, Shared, client_from, eventually};
use tests::policies::{files, full_name};
use tests::upstream::install_crds;
use tokio::sync::OnceCell;

/// Between two questions about a right that takes a moment to be known.
const POLL: Duration = Duration::from_millis(50);
const SHOOT: &str = "shoot--policies--one";

#[test]
fn the_committed_policies_are_those_that_the_contract_makes() {
    let dir = manifests().join("policies");
    let mut committed: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut wanted = Vec::new();
    for (file, text) in files() {
        let found = std::fs::read_to_string(dir.join(&file)).unwrap_or_default();
        assert_eq!(
            found, text,
            "{file}: run `cargo run -p tests --bin policies` and look at what changed"
        );
        wanted.push(file);
    }
    committed.sort();
    wanted.sort();
    assert_eq!(committed, wanted);
}

struct Site {
    cluster: &'static Cluster,
    admin: Client,
    approver: Client,
}

impl Site {
    async fn new() -> anyhow::Result<Self> {
        static SEED: Shared = Shared::new();
        static INSTALLED: OnceCell<String> = OnceCell::const_new();
        let cluster = SEED.get(|| ClusterOptions::new("seed")).await?;
        let approver = INSTALLED.get_or_try_init(|| install(cluster)).await?;
        Ok(Self {
            cluster,
            admin: cluster.client().await?,
            approver: client_from(approver).await?,
        })
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.approver.clone(), namespace)
    }

    /// Server-side apply as the approver, as it does it.
    async fn apply<K>(&self, namespace: &str, object: &Value) -> kube::Result<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        apply(&self.approver, namespace, object).await
    }

    /// A right that the manifests do not give: what a policy refuses must not hang on RBAC refusing it first.
    async fn give_too_much(&self, group: &str, resource: &str, verb: &str) {
        let name = format!("too-much-{resource}");
        let rbac = "rbac.authorization.k8s.io";
        let rights = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": { "name": name },
              "rules": [{ "apiGroups": [group], "resources": [resource], "verbs": [verb] }] },
            { "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": name },
              "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": name },
              "subjects": [{ "kind": "ServiceAccount", "namespace": names::APPROVER_NAMESPACE, "name": names::APPROVER }] },
        ]});
        self.cluster.kubectl_apply_text(&rights.to_string()).await.unwrap();
    }

    /// What the approver itself makes for a firewall, which stands: what belongs to none is collected as garbage.
    async fn planned(&self, name: &FirewallName) -> plan::Plan {
        self.planned_with(name, &Record::default()).await
    }

    async fn planned_with(&self, name: &FirewallName, record: &Record) -> plan::Plan {
        let uid = firewalls::make(&self.admin, name.as_str()).await.unwrap();
        let shoot = plan::ShootSecrets {
            generic_kubeconfig: format!("{}-0a1b2c3d", names::GENERIC_KUBECONFIG_PREFIX),
            token: names::SHOOT_TOKEN_SECRET.to_owned(),
        };
        let target = plan::Firewall {
            name,
            namespace: SHOOT,
            uid: &uid,
            shoot: Some(&shoot),
        };
        let access = contract::access::AgentAccess {
            server: "https://seed.test".to_owned(),
            ca: "-".to_owned(),
            mode: contract::access::Mode::Certificate,
            seed: "a-seed".to_owned(),
            handover_keys: vec![PrivateKey::generate().unwrap().public()],
            lifeline: None,
            renew: None,
            life: None,
        };
        plan::plan(&target, record, &access).unwrap()
    }

    /// What somebody else made.
    async fn given<K>(&self, namespace: &str, object: &Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        apply::<K>(&self.admin, namespace, object).await.unwrap();
    }
}

/// The approver's kubeconfig, once the policies are in force.
async fn install(cluster: &'static Cluster) -> anyhow::Result<String> {
    install_crds(cluster, cluster).await?;
    cluster.kubectl_apply_kustomize(&manifests()).await?;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SHOOT } });
    cluster.kubectl_apply_text(&namespace.to_string()).await?;
    let token = ["create", "token", "-n", names::APPROVER_NAMESPACE, names::APPROVER];
    let kubeconfig = cluster.kubeconfig_with_token(cluster.kubectl_ok(&token).await?.trim());
    let approver = client_from(&kubeconfig).await?;
    firewalls::make(&cluster.client().await?, "fw-installed").await?;
    // A policy is in force a moment after it was created. A dry run is asked about like any other write.
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    eventually("the policies are in force", PATIENCE, async || {
        let meta = json!({ "name": "anything", "namespace": SHOOT });
        let role = json!({ "metadata": meta, "rules": [] });
        let binding = json!({ "metadata": meta, "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x" } });
        let secrets: Api<Secret> = Api::namespaced(approver.clone(), SHOOT);
        let roles: Api<k8s_openapi::api::rbac::v1::Role> = Api::namespaced(approver.clone(), SHOOT);
        let bindings: Api<k8s_openapi::api::rbac::v1::RoleBinding> = Api::namespaced(approver.clone(), SHOOT);
        let answers = [
            said(secrets.create(&params, &serde_json::from_value(json!({ "metadata": meta }))?).await),
            said(roles.create(&params, &serde_json::from_value(role)?).await),
            said(bindings.create(&params, &serde_json::from_value(binding)?).await),
            said(requests::approve_a_foreign_one(cluster, &approver).await?),
            said(requesters::ask_another(cluster).await?),
            said(firewalls::label(&approver, "fw-installed").await),
        ];
        for (answer, policy) in answers.iter().zip(["secrets", "roles", "rolebindings", "requests", "requesters", "firewalls"]) {
            ensure!(answer.contains(&full_name(policy)), "{policy}: {answer}");
        }
        Ok(())
    })
    .await?;
    Ok(kubeconfig)
}

async fn apply<K>(client: &Client, namespace: &str, object: &Value) -> kube::Result<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let mut object = object.clone();
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    object["metadata"].as_object_mut().unwrap().remove("namespace");
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.patch(
        &name,
        &PatchParams::apply(names::APPROVER).force(),
        &Patch::Apply(&object),
    )
    .await
}

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/seed")
}

fn said<T>(result: kube::Result<T>) -> String {
    result.map_or_else(|error| error.to_string(), |_| "it was allowed".to_owned())
}

/// Refused by this policy, by the validation whose message has these words.
#[track_caller]
fn refused<T>(what: &str, result: kube::Result<T>, policy: &str, words: &str) {
    match result {
        Err(kube::Error::Api(status)) => {
            let named = status
                .message
                .contains(&format!("ValidatingAdmissionPolicy '{}'", full_name(policy)));
            assert!(status.code == 422 && named, "{what}: {status:?}");
            assert!(
                status.message.contains(words),
                "{what}: {words:?} was expected: {}",
                status.message
            );
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: it was allowed"),
    }
}

fn firewall(name: &str) -> FirewallName {
    FirewallName::parse(name).unwrap()
}

/// The object with some of it changed: `null` removes.
fn with(object: &Value, change: &Value) -> Value {
    let mut changed = object.clone();
    merge(&mut changed, change);
    changed
}

fn merge(target: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *target = change.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in change {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}
