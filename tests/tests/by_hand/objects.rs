//! The objects that stand in the seed and the shoot before an agent comes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use contract::access::{AgentAccess, Mode};
use contract::csr;
use contract::key::PrivateKey;
use contract::kubeconfig::{BootstrapExtension, CaBundle, Credential, Kubeconfig};
use contract::names::BOOTSTRAP_GROUP;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tests::harness::{Authority, client_from};

use super::Site;
use cluster::firewall::Firewall;

const TOKEN_SECRET: &str = "0123456789abcdef";
const TEMPLATE: &str = "generic-token-kubeconfig-1";
const SHOOT_TOKEN: &str = "shoot-access-firewall-controller-manager";

/// Six characters, different for each test.
pub(super) fn token_id(name: &str) -> String {
    let sum = name
        .bytes()
        .fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
    format!("{sum:08x}").chars().take(6).collect()
}

impl Site {
    pub(super) async fn provision(&self) -> anyhow::Result<()> {
        let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
        self.cluster.kubectl_apply(&crds).await?;
        for crd in ["firewalls", "firewallmonitors"] {
            let crd = format!("crd/{crd}.firewall.metal-stack.io");
            self.cluster
                .kubectl_ok(&["wait", "--for=condition=Established", "--timeout=30s", &crd])
                .await?;
        }
        let (ns, fw) = (&self.namespace, self.firewall.as_str());
        self.apply(&[
            object("v1", "Namespace", None, ns, json!({})),
            object("v1", "Namespace", None, "firewall", json!({})),
            cluster_role(
                "by-hand-renewer",
                &json!([{ "apiGroups": ["certificates.k8s.io"],
                "resources": ["certificatesigningrequests"], "verbs": ["create", "get"] }]),
            ),
            bind(
                "ClusterRole",
                None,
                "by-hand-renewer",
                &json!([{ "kind": "Group",
                "apiGroup": "rbac.authorization.k8s.io", "name": contract::names::ORGANIZATION }]),
            ),
            cluster_role(
                "by-hand-bootstrapper",
                &json!([{ "apiGroups": ["certificates.k8s.io"],
                "resources": ["certificatesigningrequests"], "verbs": ["create", "get"] }]),
            ),
            object(
                "v1",
                "Secret",
                Some("kube-system"),
                &format!("bootstrap-token-{}", self.token_id),
                json!({
                    "type": "bootstrap.kubernetes.io/token",
                    "stringData": {
                        "token-id": self.token_id, "token-secret": TOKEN_SECRET,
                        "usage-bootstrap-authentication": "true", "auth-extra-groups": BOOTSTRAP_GROUP,
                    },
                }),
            ),
        ])
        .await?;
        self.apply(&[
            object(
                "firewall.metal-stack.io/v2",
                "Firewall",
                Some(ns),
                fw,
                json!({ "spec": {} }),
            ),
            object(
                "firewall.metal-stack.io/v2",
                "FirewallMonitor",
                Some("firewall"),
                fw,
                json!({}),
            ),
            object("v1", "ServiceAccount", Some("firewall"), fw, json!({})),
            role(
                Some("firewall"),
                fw,
                &json!([{ "apiGroups": ["firewall.metal-stack.io"],
                "resources": ["firewallmonitors"], "resourceNames": [fw], "verbs": ["get", "patch"] }]),
            ),
            bind(
                "Role",
                Some("firewall"),
                fw,
                &json!([{ "kind": "ServiceAccount", "name": fw, "namespace": "firewall" }]),
            ),
            role(
                Some(ns),
                fw,
                &json!([
                    { "apiGroups": ["firewall.metal-stack.io"], "resources": ["firewalls", "firewalls/status"],
                      "verbs": ["get", "list", "watch"] },
                    { "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"],
                      "resourceNames": [TEMPLATE, SHOOT_TOKEN, self.firewall.agent_secret()] },
                ]),
            ),
            bind(
                "Role",
                Some(ns),
                fw,
                &json!([{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io",
                "name": self.firewall.user() }]),
            ),
        ])
        .await?;
        self.revoke_bootstrap_rights(false).await?;
        self.write_generic_kubeconfig("{}", None).await?;
        self.write_shoot_token().await?;
        self.write_agent_secret(None, None).await?;
        self.touch_shoot_access().await?;
        self.write_bootstrap(&self.bootstrap_kubeconfig()?, 0o600)
    }

    /// What the bootstrap token may do is bound to this firewall's token alone.
    pub async fn revoke_bootstrap_rights(&self, revoked: bool) -> anyhow::Result<()> {
        let name = format!("by-hand-{}", self.firewall);
        let subjects = if revoked {
            json!([])
        } else {
            let user = format!("system:bootstrap:{}", self.token_id);
            json!([{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user }])
        };
        let mut binding = bind("ClusterRole", None, &name, &subjects);
        binding["roleRef"]["name"] = json!("by-hand-bootstrapper");
        self.apply(&[binding]).await
    }

    pub async fn write_generic_kubeconfig(&self, user: &str, server: Option<&str>) -> anyhow::Result<()> {
        let ca = BASE64_STANDARD.encode(self.cluster.server_ca_pem());
        let user: Value = serde_json::from_str(user)?;
        let server = server.map_or_else(|| self.cluster.server_url(), str::to_owned);
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a-shoot",
            "clusters": [{ "name": "a-shoot", "cluster": { "server": server, "certificate-authority-data": ca } }],
            "contexts": [{ "name": "a-shoot", "context": { "cluster": "a-shoot", "user": "a-shoot" } }],
            "users": [{ "name": "a-shoot", "user": user }],
        });
        self.secret(TEMPLATE, json!({ "kubeconfig": kubeconfig.to_string() }))
            .await
    }

    /// Writes the status, with a server that differs in nothing but its spelling from the time before.
    pub async fn touch_shoot_access(&self) -> anyhow::Result<()> {
        let firewalls: Api<Firewall> = Api::namespaced(self.admin.clone(), &self.namespace);
        let known = firewalls
            .get(self.firewall.as_str())
            .await?
            .status
            .and_then(|status| status.shoot_access);
        let slash = known.is_some_and(|access| !access.api_server_url.ends_with('/'));
        let url = format!("{}{}", self.cluster.server_url(), if slash { "/" } else { "" });
        let status = json!({ "status": { "shootAccess": {
            "genericKubeconfigSecretName": TEMPLATE, "tokenSecretName": SHOOT_TOKEN,
            "namespace": self.namespace, "apiServerURL": url,
        } } });
        firewalls
            .patch_status(self.firewall.as_str(), &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    pub async fn annotate(&self, annotation: &str, value: &str) -> anyhow::Result<()> {
        let firewalls: Api<Firewall> = Api::namespaced(self.admin.clone(), &self.namespace);
        let patch = json!({ "metadata": { "annotations": { annotation: value } } });
        firewalls
            .patch_metadata(self.firewall.as_str(), &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Another's request under the name that the machine's own will have.
    pub async fn plant(&self, name: &str) -> anyhow::Result<()> {
        let other = csr::write(&self.firewall, &PrivateKey::generate()?)?;
        let mut request = object(
            "certificates.k8s.io/v1",
            "CertificateSigningRequest",
            None,
            name,
            json!({}),
        );
        request["spec"] = json!({
            "request": BASE64_STANDARD.encode(other), "signerName": contract::names::SIGNER,
            "usages": ["digital signature", "client auth"],
        });
        let attacker = client_from(&self.cluster.kubeconfig_for("attacker", &["system:masters"])?).await?;
        let requests: Api<k8s_openapi::api::certificates::v1::CertificateSigningRequest> = Api::all(attacker);
        requests
            .create(&PostParams::default(), &serde_json::from_value(request)?)
            .await?;
        Ok(())
    }

    async fn write_shoot_token(&self) -> anyhow::Result<()> {
        let token = self.shoot_token().await?;
        self.secret(SHOOT_TOKEN, json!({ "token": token })).await
    }

    async fn shoot_token(&self) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), "firewall");
        let request: TokenRequest =
            serde_json::from_value(json!({ "spec": { "audiences": [], "expirationSeconds": 3600 } }))?;
        let answer = accounts
            .create_token_request(self.firewall.as_str(), &PostParams::default(), &request)
            .await?;
        Ok(answer.status.context("no token was given")?.token)
    }

    /// With a lifeline if there is something new to tell.
    pub async fn write_agent_secret(&self, server: Option<&str>, ca: Option<&str>) -> anyhow::Result<()> {
        let mut lifeline = None;
        if server.is_some() || ca.is_some() {
            let token = Credential::Token(SecretString::from(self.shoot_token().await?));
            lifeline = Some(SecretString::from(self.kubeconfig(token)?.write().to_string()));
        }
        let access = AgentAccess {
            server: server.map_or_else(|| self.cluster.server_url(), str::to_owned),
            ca: ca.map_or_else(|| self.server_ca(), str::to_owned),
            mode: Mode::Certificate,
            seed: self.seed_id().to_owned(),
            handover_keys: vec![PrivateKey::generate()?.public()],
            lifeline,
        };
        let data: BTreeMap<String, String> = access
            .write()?
            .into_iter()
            .map(|(key, value)| (key, value.expose_secret().to_owned()))
            .collect();
        self.secret(&self.firewall.agent_secret(), json!(data)).await
    }

    pub fn server_ca(&self) -> String {
        self.cluster.server_ca_pem()
    }

    pub fn other_ca(&self) -> anyhow::Result<String> {
        Ok(Authority::new("another-ca")?.certificate())
    }

    fn bootstrap_kubeconfig(&self) -> anyhow::Result<String> {
        let token = SecretString::from(format!("{}.{TOKEN_SECRET}", self.token_id));
        let keys = vec![PrivateKey::generate()?.public()];
        let kubeconfig = Kubeconfig {
            bootstrap: Some(BootstrapExtension {
                firewall: self.firewall.clone(),
                handover_keys: keys,
            }),
            ..self.kubeconfig(Credential::Token(token))?
        };
        Ok(kubeconfig.write().to_string())
    }

    fn kubeconfig(&self, credential: Credential) -> anyhow::Result<Kubeconfig> {
        Ok(Kubeconfig {
            server: self.cluster.server_url(),
            tls_server_name: None,
            ca: CaBundle::from_pem(&self.server_ca())?,
            credential,
            namespace: self.namespace.clone(),
            bootstrap: None,
        })
    }

    async fn secret(&self, name: &str, data: Value) -> anyhow::Result<()> {
        self.apply(&[object(
            "v1",
            "Secret",
            Some(&self.namespace),
            name,
            json!({ "stringData": data }),
        )])
        .await
    }

    async fn apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        self.cluster.kubectl_apply_text(&list.to_string()).await.map(drop)
    }
}

fn object(api: &str, kind: &str, namespace: Option<&str>, name: &str, rest: Value) -> Value {
    let mut object = json!({ "apiVersion": api, "kind": kind, "metadata": { "name": name } });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    if let Value::Object(rest) = rest {
        for (field, value) in rest {
            object[field] = value;
        }
    }
    object
}

fn cluster_role(name: &str, rules: &Value) -> Value {
    object(
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        None,
        name,
        json!({ "rules": rules }),
    )
}

fn role(namespace: Option<&str>, name: &str, rules: &Value) -> Value {
    object(
        "rbac.authorization.k8s.io/v1",
        "Role",
        namespace,
        name,
        json!({ "rules": rules }),
    )
}

fn bind(kind: &str, namespace: Option<&str>, name: &str, subjects: &Value) -> Value {
    let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let rest = json!({ "roleRef": reference, "subjects": subjects });
    object(
        "rbac.authorization.k8s.io/v1",
        &format!("{kind}Binding"),
        namespace,
        name,
        rest,
    )
}
