//! Tests of the objects that stand for a firewall: word for word, because each word is a permission.

use contract::access::Mode;
use contract::key::PrivateKey;
use contract::record::Keys;
use contract::token::SeedKey;
use serde_json::{Value, json};

use super::*;

const NAMESPACE: &str = "shoot--a";

#[test]
fn the_role_opens_three_secrets_and_the_firewalls_and_nothing_else() {
    let expected = json!([
        {
            "apiGroups": ["firewall.metal-stack.io"],
            "resources": ["firewalls", "firewalls/status"],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": ["fw-1.fw.metal-stack.io", "generic-token-kubeconfig-0a1b", "shoot-access-firewall-controller-manager"],
            "verbs": ["get", "list", "watch"],
        },
    ]);
    let plan = planned(Some(&shoot()), &Record::default());
    assert_eq!(json_of(&plan.role)["rules"], expected);
}

#[test]
fn without_shoot_access_the_role_opens_its_own_secret_only() {
    let rules = json_of(&planned(None, &Record::default()).role)["rules"].clone();
    assert_eq!(rules[1]["resourceNames"], json!(["fw-1.fw.metal-stack.io"]));
    for rule in rules.as_array().unwrap() {
        let names = rule["resourceNames"].as_array().map_or(0, Vec::len);
        assert!(
            names > 0 || rule["resources"] != json!(["secrets"]),
            "without names it opens all Secrets: {rule}"
        );
    }
}

#[test]
fn the_role_binding_gives_the_role_to_the_firewalls_user_alone() {
    let binding = json_of(&planned(Some(&shoot()), &Record::default()).role_binding.unwrap());
    let group = "rbac.authorization.k8s.io";
    assert_eq!(
        binding["roleRef"],
        json!({ "apiGroup": group, "kind": "Role", "name": "fw.metal-stack.io:fw-1" })
    );
    assert_eq!(
        binding["subjects"],
        json!([{ "apiGroup": group, "kind": "User", "name": "fw.metal-stack.io:fw-1" }])
    );
}

#[test]
fn while_two_keys_contend_nobody_may_use_the_name() {
    let key = || PrivateKey::generate().unwrap().public();
    let of = |candidates| {
        let keys = Keys {
            candidates,
            ..Keys::default()
        };
        planned(
            Some(&shoot()),
            &Record {
                keys,
                ..Record::default()
            },
        )
    };
    let contested = of(vec![key(), key()]);
    assert!(contested.role_binding.is_none());
    assert_eq!(
        json_of(&contested.role),
        json_of(&of(vec![key()]).role),
        "the Role alone gives nothing"
    );
    assert!(of(vec![key()]).role_binding.is_some());
}

#[test]
fn everything_carries_our_labels_and_goes_with_its_firewall_without_holding_it_up() {
    let name = name();
    let plan = planned(Some(&shoot()), &Record::default());
    let kubeconfig = bootstrap_kubeconfig_secret(&firewall(&name, None), &"kubeconfig".to_owned().into());
    let objects = [
        ("fw.metal-stack.io:fw-1", json_of(&plan.role)),
        ("fw.metal-stack.io:fw-1", json_of(&plan.role_binding.unwrap())),
        ("fw-1.fw.metal-stack.io", json_of(&plan.agent_secret)),
        ("fw-1-bootstrap-kubeconfig", json_of(&kubeconfig)),
    ];
    for (name, object) in objects {
        let expected = json!({
            "name": name,
            "namespace": NAMESPACE,
            "labels": {
                "app.kubernetes.io/managed-by": "firewall-approver",
                "firewall.metal-stack.io/firewall": "fw-1",
            "firewall.metal-stack.io/namespace": NAMESPACE,
            },
            "ownerReferences": [{
                "apiVersion": "firewall.metal-stack.io/v2",
                "kind": "Firewall",
                "name": "fw-1",
                "uid": "uid-a",
                "blockOwnerDeletion": false,
            }],
        });
        assert_eq!(object["metadata"], expected);
    }
}

#[test]
fn the_agents_secret_holds_what_the_agent_reads() {
    let secret = planned(None, &Record::default()).agent_secret;
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    let data = secret
        .data
        .unwrap()
        .into_iter()
        .map(|(key, ByteString(value))| (key, value))
        .collect();
    let read = AgentAccess::read(&data).unwrap();
    assert_eq!(
        (read.server.as_str(), read.ca.as_str(), read.seed.as_str()),
        ("https://seed", "pem", "seed-uid")
    );
    assert_eq!(read.lifeline.unwrap().expose_secret(), "lifeline");
}

#[test]
fn the_bootstrap_kubeconfig_stands_under_one_key() {
    let name = name();
    let secret = bootstrap_kubeconfig_secret(&firewall(&name, None), &"text".to_owned().into());
    assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    assert_eq!(
        secret.data,
        Some(BTreeMap::from([(
            "kubeconfig".to_owned(),
            ByteString(b"text".to_vec())
        )]))
    );
}

#[test]
fn a1_the_bootstrap_token_secret_is_as_kubernetes_wants_it() {
    let name = name();
    let token = SeedKey::from_bytes(&[7; 32]).unwrap().token(NAMESPACE, &name, 0);
    let expires = "2026-01-02T03:04:05.678Z".parse().unwrap();
    let secret = token_secret(&token, labels(NAMESPACE, &name), "firewall shoot--a/fw-1", expires);
    let meta = json!({
        "name": "bootstrap-token-ganeaj",
        "namespace": "kube-system",
        "labels": {
            "app.kubernetes.io/managed-by": "firewall-approver",
            "firewall.metal-stack.io/firewall": "fw-1",
            "firewall.metal-stack.io/namespace": NAMESPACE,
        },
    });
    assert_eq!(json_of(&secret)["metadata"], meta);
    assert_eq!(secret.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
    let data = secret.data.unwrap();
    let data: BTreeMap<_, _> = data
        .iter()
        .map(|(key, value)| (key.as_str(), std::str::from_utf8(&value.0).unwrap()))
        .collect();
    let expected = BTreeMap::from([
        ("auth-extra-groups", "system:bootstrappers:metal-stack:firewall"),
        (
            "description",
            "bootstrap of firewall shoot--a/fw-1 by firewall-approver",
        ),
        ("expiration", "2026-01-02T03:04:05Z"),
        ("token-id", "ganeaj"),
        ("token-secret", "s5xvmpamm3dq8816"),
        ("usage-bootstrap-authentication", "true"),
        ("usage-bootstrap-signing", "true"),
    ]);
    assert_eq!(data, expected);
}

#[test]
fn an_expiration_is_in_whole_seconds_of_utc() {
    for (time, written) in [
        ("2026-01-02T03:04:05.999999999Z", "2026-01-02T03:04:05Z"),
        ("2026-12-31T23:59:59+01:00", "2026-12-31T22:59:59Z"),
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
    ] {
        assert_eq!(rfc3339(time.parse().unwrap()), written);
    }
}

#[test]
fn shoot_access_that_upstream_writes_is_taken() {
    for generic in [
        "generic-token-kubeconfig",
        "generic-token-kubeconfig-0a1b2c3d",
        "generic-token-kubeconfig-z",
    ] {
        let token = "shoot-access-firewall-controller-manager";
        let expected = ShootSecrets {
            generic_kubeconfig: generic.into(),
            token: token.into(),
        };
        assert_eq!(shoot_secrets(NAMESPACE, NAMESPACE, generic, token), Ok(expected));
    }
}

#[test]
fn shoot_access_never_opens_another_secret() {
    let (generic, token) = ("generic-token-kubeconfig", "shoot-access-firewall-controller-manager");
    let table = [
        ("shoot--b", generic, token, "namespace"),
        ("", generic, token, "namespace"),
        (NAMESPACE, "", token, "genericKubeconfigSecretName"),
        (NAMESPACE, "ca", token, "genericKubeconfigSecretName"),
        (
            NAMESPACE,
            "generic-token-kubeconfig-",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-UPPER",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-a-b",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-a.b",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-ä",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfigä",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfigs",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-a\n",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "generic-token-kubeconfig-*",
            token,
            "genericKubeconfigSecretName",
        ),
        (
            NAMESPACE,
            "x-generic-token-kubeconfig",
            token,
            "genericKubeconfigSecretName",
        ),
        (NAMESPACE, generic, "", "tokenSecretName"),
        (NAMESPACE, generic, "*", "tokenSecretName"),
        (
            NAMESPACE,
            generic,
            "shoot-access-gardener-resource-manager",
            "tokenSecretName",
        ),
        (
            NAMESPACE,
            generic,
            "shoot-access-firewall-controller-manager ",
            "tokenSecretName",
        ),
        (NAMESPACE, generic, generic, "tokenSecretName"),
    ];
    for (namespace, generic, token, field) in table {
        let (reason, why) = shoot_secrets(NAMESPACE, namespace, generic, token).unwrap_err();
        assert_eq!(reason, Reason::ShootAccessRefused);
        assert!(why.starts_with(&format!("status.shootAccess.{field} is")), "{why}");
    }
}

fn name() -> FirewallName {
    FirewallName::parse("fw-1").unwrap()
}

fn shoot() -> ShootSecrets {
    ShootSecrets {
        generic_kubeconfig: "generic-token-kubeconfig-0a1b".into(),
        token: "shoot-access-firewall-controller-manager".into(),
    }
}

fn firewall<'a>(name: &'a FirewallName, shoot: Option<&'a ShootSecrets>) -> Firewall<'a> {
    Firewall {
        name,
        namespace: NAMESPACE,
        uid: "uid-a",
        shoot,
    }
}

fn planned(shoot: Option<&ShootSecrets>, record: &Record) -> Plan {
    let access = AgentAccess {
        server: "https://seed".into(),
        ca: "pem".into(),
        mode: Mode::Certificate,
        seed: "seed-uid".into(),
        handover_keys: vec![PrivateKey::generate().unwrap().public()],
        lifeline: Some("lifeline".to_owned().into()),
        renew: None,
        life: None,
    };
    plan(&firewall(&name(), shoot), record, &access).unwrap()
}

fn json_of(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}
