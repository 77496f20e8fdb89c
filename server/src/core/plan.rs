//! Which objects should stand in the seed for a firewall. Pure: observed in, objects out; applying them is the same
//! whatever they are.

use std::collections::BTreeMap;

use contract::access::{AccessError, AgentAccess};
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::Record;
use contract::token::BootstrapToken;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use secrecy::{ExposeSecret, SecretString};

/// A Firewall as far as the plan needs it.
pub struct Firewall<'a> {
    pub name: &'a FirewallName,
    pub namespace: &'a str,
    pub uid: &'a str,
    pub shoot: Option<&'a ShootSecrets>,
}

/// The Secrets that a firewall reads to get into its shoot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShootSecrets {
    pub generic_kubeconfig: String,
    pub token: String,
}

/// The objects of one firewall in its own namespace.
pub struct Plan {
    pub role: Role,
    /// None while two keys contend for the name: neither holder may use it.
    pub role_binding: Option<RoleBinding>,
    pub agent_secret: Secret,
    /// Where it works with tokens.
    pub tokens: Option<Tokens>,
}

/// The ServiceAccount of a firewall, and its right to renew that account's tokens: all in the namespace of access.
pub struct Tokens {
    pub account: ServiceAccount,
    pub role: Role,
    pub role_binding: Option<RoleBinding>,
}

/// What a Firewall's status says about its shoot, checked: a firewall's Role must never open another Secret.
pub fn shoot_secrets(
    firewall_namespace: &str,
    namespace: &str,
    generic_kubeconfig: &str,
    token: &str,
) -> Result<ShootSecrets, (Reason, String)> {
    let refuse = |why: String| Err((Reason::ShootAccessRefused, why));
    if namespace != firewall_namespace {
        return refuse(format!(
            "status.shootAccess.namespace is {namespace}, the Firewall stands in {firewall_namespace}"
        ));
    }
    let suffix = generic_kubeconfig.strip_prefix(names::GENERIC_KUBECONFIG_PREFIX);
    let is_hash = |s: &str| s.len() > 1 && s[1..].bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !suffix.is_some_and(|s| s.is_empty() || (s.starts_with('-') && is_hash(s))) {
        return refuse(format!(
            "status.shootAccess.genericKubeconfigSecretName is {generic_kubeconfig:?}, not {}(-<hash>)",
            names::GENERIC_KUBECONFIG_PREFIX
        ));
    }
    if token != names::SHOOT_TOKEN_SECRET {
        return refuse(format!(
            "status.shootAccess.tokenSecretName is {token:?}, firewalls may read {} only",
            names::SHOOT_TOKEN_SECRET
        ));
    }
    Ok(ShootSecrets {
        generic_kubeconfig: generic_kubeconfig.to_owned(),
        token: token.to_owned(),
    })
}

pub fn plan(firewall: &Firewall<'_>, record: &Record, access: &AgentAccess) -> Result<Plan, AccessError> {
    let meta = |name: String| owned(firewall, name);
    let name = firewall.name.role();
    let role_binding = binding(meta(name.clone()), firewall.name, record.tokens);
    let tokens = record.tokens.then(|| Tokens {
        account: access_account(firewall),
        role: Role {
            metadata: access_meta(firewall, name.clone()),
            rules: Some(vec![PolicyRule {
                api_groups: Some(vec![String::new()]),
                resources: Some(vec!["serviceaccounts/token".into()]),
                resource_names: Some(vec![firewall.name.to_string()]),
                verbs: vec!["create".into()],
                ..PolicyRule::default()
            }]),
        },
        role_binding: (!record.contested()).then(|| binding(access_meta(firewall, name.clone()), firewall.name, true)),
    });
    Ok(Plan {
        role: Role {
            metadata: meta(name),
            rules: Some(rules(firewall)),
        },
        role_binding: (!record.contested()).then_some(role_binding),
        agent_secret: Secret {
            metadata: meta(firewall.name.agent_secret()),
            data: Some(bytes(access.write()?)),
            type_: Some("Opaque".into()),
            ..Secret::default()
        },
        tokens,
    })
}

/// The ServiceAccount whose tokens are this firewall's access. Its labels say for which Firewall it was made: with
/// another's it dies, and its tokens with it.
pub fn access_account(firewall: &Firewall<'_>) -> ServiceAccount {
    ServiceAccount {
        metadata: access_meta(firewall, firewall.name.to_string()),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// Of one namespace for all: an owner could not stand in another one.
fn access_meta(firewall: &Firewall<'_>, name: String) -> ObjectMeta {
    let mut labels = labels(firewall.namespace, firewall.name);
    labels.insert(names::UID_LABEL.to_owned(), firewall.uid.to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: Some(names::ACCESS_NAMESPACE.into()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// Gives the Role of the binding's name to the firewall: to its certificate's user, and to its ServiceAccount.
fn binding(metadata: ObjectMeta, firewall: &FirewallName, tokens: bool) -> RoleBinding {
    let user = Subject {
        api_group: Some(RBAC.into()),
        kind: "User".into(),
        name: firewall.user(),
        namespace: None,
    };
    let account = Subject {
        api_group: None,
        kind: "ServiceAccount".into(),
        name: firewall.to_string(),
        namespace: Some(names::ACCESS_NAMESPACE.into()),
    };
    RoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: RBAC.into(),
            kind: "Role".into(),
            name: firewall.role(),
        },
        subjects: Some([Some(user), tokens.then_some(account)].into_iter().flatten().collect()),
    }
}

/// The Secret with the bootstrap kubeconfig, for whoever writes userdata.
pub fn bootstrap_kubeconfig_secret(firewall: &Firewall<'_>, kubeconfig: &SecretString) -> Secret {
    let data = BTreeMap::from([("kubeconfig".to_owned(), kubeconfig.expose_secret().to_owned().into())]);
    Secret {
        metadata: owned(firewall, firewall.name.bootstrap_kubeconfig_secret()),
        data: Some(bytes(data)),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// The Secret that makes a bootstrap token known to the API server.
pub fn token_secret(
    token: &BootstrapToken,
    labels: BTreeMap<String, String>,
    what_for: &str,
    expires: Timestamp,
) -> Secret {
    let data = [
        ("description", format!("bootstrap of {what_for} by {}", names::APPROVER)),
        ("token-id", token.id.clone()),
        ("token-secret", token.secret.expose_secret().to_owned()),
        ("expiration", rfc3339(expires)),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("usage-bootstrap-signing", "true".to_owned()),
        ("auth-extra-groups", names::BOOTSTRAP_GROUP.to_owned()),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(token.secret_name()),
            namespace: Some(names::TOKEN_NAMESPACE.into()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        data: Some(
            data.into_iter()
                .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
                .collect(),
        ),
        type_: Some(names::TOKEN_SECRET_TYPE.into()),
        ..Secret::default()
    }
}

/// The labels by which everything of ours is found and swept.
pub fn labels(namespace: &str, firewall: &FirewallName) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::NAMESPACE_LABEL.to_owned(), namespace.to_owned()),
        (names::MANAGED_BY_LABEL.to_owned(), names::APPROVER.to_owned()),
        (names::FIREWALL_LABEL.to_owned(), firewall.to_string()),
    ])
}

/// Kubernetes reads a token's expiration as RFC 3339 in whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

const RBAC: &str = "rbac.authorization.k8s.io";

/// The seed permissions that firewall-controller has today, and our own Secret. A rule about Secrets always has names:
/// without any it would open all of them.
fn rules(firewall: &Firewall<'_>) -> Vec<PolicyRule> {
    let read = |group: &str, resources: &[&str], names: Option<Vec<String>>| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(resources.iter().map(ToString::to_string).collect()),
        resource_names: names,
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    };
    let mut secrets = vec![firewall.name.agent_secret()];
    if let Some(shoot) = firewall.shoot {
        secrets.extend([shoot.generic_kubeconfig.clone(), shoot.token.clone()]);
    }
    vec![
        read(names::API_GROUP, &["firewalls", "firewalls/status"], None),
        read("", &["secrets"], Some(secrets)),
    ]
}

fn owned(firewall: &Firewall<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(firewall.namespace.to_owned()),
        labels: Some(labels(firewall.namespace, firewall.name)),
        owner_references: Some(vec![OwnerReference {
            api_version: format!("{}/v2", names::API_GROUP),
            kind: "Firewall".into(),
            name: firewall.name.to_string(),
            uid: firewall.uid.to_owned(),
            // A migration deletes with Orphan and must not wait for us.
            block_owner_deletion: Some(false),
            controller: None,
        }]),
        ..ObjectMeta::default()
    }
}

fn bytes(data: BTreeMap<String, SecretString>) -> BTreeMap<String, ByteString> {
    data.into_iter()
        .map(|(key, value)| (key, ByteString(value.expose_secret().as_bytes().to_vec())))
        .collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
