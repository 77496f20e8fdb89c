//! Plays the parts that are not ours: Gardener and firewall-controller-manager. Writes only what they write, in the
//! form in which they write it, and imports nothing of ours.

mod migration;
mod monitors;

use std::collections::BTreeMap;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::harness::Cluster;

pub use migration::Saved;
pub use monitors::{Upstream, Writer, Written, monitors};

pub const GENERIC_KUBECONFIG: &str = "generic-token-kubeconfig-3f2a1b0c";
pub const SHOOT_TOKEN: &str = "shoot-access-firewall-controller-manager";
/// With it firewall-controller-manager waits for a machine to go.
pub const FINALIZER: &str = "firewall.metal-stack.io/firewall-controller-manager";
/// Where Gardener's own pods find their token; on a firewall there is no such file.
pub const TOKEN_PLACEHOLDER: &str = "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig/token";

/// The types, which upstream's own deployment brings.
pub async fn install_crds(seed: &Cluster, shoot: &Cluster) -> anyhow::Result<()> {
    for (cluster, crd) in [(seed, "firewalls"), (shoot, "firewallmonitors")] {
        let file = format!("{}/crds/{crd}.yaml", env!("CARGO_MANIFEST_DIR"));
        cluster.kubectl_apply(file.as_ref()).await?;
        let crd = format!("crd/{crd}.firewall.metal-stack.io");
        cluster
            .kubectl_ok(&["wait", "--for=condition=Established", "--timeout=30s", &crd])
            .await?;
    }
    Ok(())
}

/// A shoot: its control plane's namespace in the seed, and its own API server.
pub struct Shoot<'a> {
    pub seed: &'a Cluster,
    pub cluster: &'a Cluster,
    pub namespace: String,
    /// Where its API server is reached from outside.
    pub address: String,
}

impl<'a> Shoot<'a> {
    /// Gardener makes the control plane's namespace and its access Secrets, and its controller gets into the shoot.
    pub async fn create(seed: &'a Cluster, cluster: &'a Cluster, namespace: &str) -> anyhow::Result<Self> {
        let shoot = Self::somewhere(seed, cluster, namespace);
        shoot.write_namespace().await?;
        shoot.write_access().await?;
        Ok(shoot)
    }

    /// Where its control plane may come to stand. Nothing is written.
    pub fn somewhere(seed: &'a Cluster, cluster: &'a Cluster, namespace: &str) -> Self {
        Self {
            seed,
            cluster,
            namespace: namespace.to_owned(),
            address: cluster.server_url(),
        }
    }

    pub async fn write_namespace(&self) -> anyhow::Result<()> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        self.apply(self.seed, &[namespace]).await
    }

    /// With what the seed's own components, and firewalls, get into the shoot.
    pub async fn write_access(&self) -> anyhow::Result<()> {
        self.apply(self.cluster, &controller_manager_in_shoot()).await?;
        self.write_generic_kubeconfig(&self.generic_kubeconfig()).await?;
        self.write_shoot_token().await
    }

    /// Gardener's kubeconfig template: an address that only its own pods reach, and no credential.
    pub fn generic_kubeconfig(&self) -> Value {
        let name = &self.namespace;
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "current-context": name,
            "clusters": [{"name": name, "cluster": {
                "server": "https://kube-apiserver",
                "certificate-authority-data": STANDARD.encode(self.cluster.server_ca_pem()),
            }}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "users": [{"name": name, "user": {"tokenFile": TOKEN_PLACEHOLDER}}],
        })
    }

    pub async fn write_generic_kubeconfig(&self, kubeconfig: &Value) -> anyhow::Result<()> {
        self.secret(GENERIC_KUBECONFIG, json!({"kubeconfig": kubeconfig.to_string()}))
            .await
    }

    /// What Gardener's token requestor does every few hours.
    pub async fn write_shoot_token(&self) -> anyhow::Result<()> {
        self.put_shoot_token(&self.token("firewall-controller-manager", "12h").await?)
            .await
    }

    pub async fn put_shoot_token(&self, token: &str) -> anyhow::Result<()> {
        self.secret(SHOOT_TOKEN, json!({"token": token})).await
    }

    /// What an operator deploys for the approver: Gardener's token requestor fills it in.
    pub async fn write_approver_access(&self) -> anyhow::Result<()> {
        self.write_approver_access_to(&self.address).await
    }

    pub async fn write_approver_access_to(&self, server: &str) -> anyhow::Result<()> {
        let name = &self.namespace;
        let token = self.token("firewall-approver", "12h").await?;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {
                "server": server,
                "certificate-authority-data": STANDARD.encode(self.cluster.server_ca_pem()),
            }}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "users": [{"name": name, "user": {"token": token}}],
        });
        self.secret(
            "shoot-access-firewall-approver",
            json!({"kubeconfig": kubeconfig.to_string()}),
        )
        .await
    }

    /// firewall-controller-manager makes a Firewall; the FirewallMonitor and the status follow as it comes along.
    pub async fn create_firewall(&self, suffix: &str) -> anyhow::Result<String> {
        let name = format!("{}-firewall-{suffix}", self.namespace);
        self.create_firewall_object(&name).await?;
        self.create_monitor(&name).await?;
        self.write_status(&name, &self.shoot_access()).await?;
        Ok(name)
    }

    pub async fn create_firewall_object(&self, name: &str) -> anyhow::Result<()> {
        let firewall = json!({
            "apiVersion": "firewall.metal-stack.io/v2",
            "kind": "Firewall",
            "metadata": {"name": name, "namespace": self.namespace, "finalizers": [FINALIZER]},
            "spec": {
                "image": "firewall-ubuntu-3.0", "networks": ["internet"], "partition": "p", "project": "x",
                "size": "n1-medium-x86", "userdata": "{}",
            },
            "distance": 0,
        });
        self.apply(self.seed, &[firewall]).await
    }

    pub async fn create_monitor(&self, name: &str) -> anyhow::Result<()> {
        let monitor = json!({
            "apiVersion": "firewall.metal-stack.io/v2",
            "kind": "FirewallMonitor",
            "metadata": {"name": name, "namespace": "firewall"},
        });
        self.apply(self.cluster, &[monitor]).await
    }

    pub fn shoot_access(&self) -> Value {
        json!({
            "genericKubeconfigSecretName": GENERIC_KUBECONFIG,
            "tokenSecretName": SHOOT_TOKEN,
            "namespace": self.namespace,
            "apiServerURL": self.address,
        })
    }

    pub async fn write_status(&self, name: &str, shoot_access: &Value) -> anyhow::Result<()> {
        let patch = json!({"status": {"phase": "Running", "shootAccess": shoot_access}}).to_string();
        let object = format!("firewall/{name}");
        let arguments = [
            "patch",
            "-n",
            &self.namespace,
            &object,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        self.seed.kubectl_ok(&arguments).await.map(|_| ())
    }

    /// A firewall that is not wanted any more: firewall-controller-manager waits for the machine to go, takes its
    /// FirewallMonitor away and lets the Firewall end.
    pub async fn delete_firewall(&self, name: &str) -> anyhow::Result<()> {
        let object = format!("firewall/{name}");
        let delete = ["delete", "--wait=false", "-n", &self.namespace, &object];
        self.seed.kubectl_ok(&delete).await?;
        let monitor = format!("firewallmonitor/{name}");
        self.cluster
            .kubectl_ok(&["delete", "--ignore-not-found", "-n", "firewall", &monitor])
            .await?;
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        let release = ["patch", "-n", &self.namespace, &object, "--type=merge", "-p", patch];
        self.seed.kubectl_ok(&release).await?;
        let gone = ["wait", "--for=delete", "--timeout=30s", "-n", &self.namespace, &object];
        self.seed.kubectl_ok(&gone).await.map(|_| ())
    }

    async fn firewalls(&self) -> anyhow::Result<Api<DynamicObject>> {
        let kind = GroupVersionKind::gvk("firewall.metal-stack.io", "v2", "Firewall");
        let client = self.seed.client().await?;
        Ok(Api::namespaced_with(
            client,
            &self.namespace,
            &ApiResource::from_gvk(&kind),
        ))
    }

    async fn secret(&self, name: &str, data: Value) -> anyhow::Result<()> {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "type": "Opaque",
            "stringData": data,
        });
        self.apply(self.seed, &[secret]).await
    }

    async fn token(&self, account: &str, life: &str) -> anyhow::Result<String> {
        let life = format!("--duration={life}");
        let token = self
            .cluster
            .kubectl_ok(&["create", "token", "-n", "kube-system", account, &life])
            .await?;
        Ok(token.trim().to_owned())
    }

    async fn apply(&self, cluster: &Cluster, objects: &[Value]) -> anyhow::Result<()> {
        let text: Vec<String> = objects.iter().map(ToString::to_string).collect();
        cluster
            .kubectl_apply_text(&text.join("\n---\n"))
            .await
            .context("play upstream's part")
            .map(|_| ())
    }
}

/// firewall-controller-manager's identity in the shoot, which firewalls share today.
fn controller_manager_in_shoot() -> Vec<Value> {
    let name = BTreeMap::from([("name", "firewall-controller-manager")]);
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "firewall"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
               "metadata": {"name": "firewall-controller-manager", "namespace": "kube-system"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": name,
               "rules": [{"apiGroups": ["firewall.metal-stack.io"], "resources": ["firewallmonitors"], "verbs": ["*"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": name,
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "firewall-controller-manager"},
               "subjects": [{"kind": "ServiceAccount", "name": "firewall-controller-manager", "namespace": "kube-system"}]}),
    ]
}
