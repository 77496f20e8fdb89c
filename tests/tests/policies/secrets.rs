//! Secrets: bootstrap tokens, the state of a shoot, what belongs to one firewall, and everybody else's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use contract::names;
use contract::token::SeedKey;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use secrecy::SecretString;
use serde_json::{Value, json};
use server::core::plan;

use super::{SHOOT, Site, firewall, refused, with};

const POLICY: &str = "secrets";

fn token(of: &str) -> Value {
    let name = firewall(of);
    let token = SeedKey::from_bytes(&[7; 32]).unwrap().token(SHOOT, &name, 0);
    let expires = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    serde_json::to_value(plan::token_secret(
        &token,
        plan::labels(SHOOT, &name),
        "a test",
        expires,
    ))
    .unwrap()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// Kubernetes fills such a Secret with a token of that ServiceAccount.
fn service_account_token() -> Value {
    json!({
        "type": "kubernetes.io/service-account-token",
        "metadata": { "annotations": { "kubernetes.io/service-account.name": "default" } },
    })
}

async fn patch(site: &Site, namespace: &str, name: &str, change: &Value) -> kube::Result<Secret> {
    site.secrets(namespace)
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await
}

async fn delete(site: &Site, namespace: &str, name: &str) -> kube::Result<()> {
    site.secrets(namespace)
        .delete(name, &DeleteParams::default())
        .await
        .map(drop)
}

#[tokio::test]
async fn its_own_tokens_are_made_read_extended_and_revoked_but_never_deleted() {
    let site = Site::new().await.unwrap();
    let token = token("fw-token");
    let name = name(&token);
    for _ in 0..2 {
        site.apply::<Secret>("kube-system", &token).await.unwrap();
    }
    let read = patch(&site, "kube-system", name, &json!({})).await.unwrap();
    assert!(read.data.unwrap().contains_key("token-secret"));
    let past = json!({ "data": { "expiration": base64("1970-01-01T00:00:00Z") } });
    refused(
        "deleting a token",
        delete(&site, "kube-system", name).await,
        POLICY,
        "only bootstrap tokens of firewalls",
    );
    patch(&site, "kube-system", name, &past).await.unwrap();

    let probe = SeedKey::from_bytes(&[8; 32]).unwrap().probe_token();
    let labels = [(names::MANAGED_BY_LABEL.to_owned(), names::APPROVER.to_owned())].into();
    let probe = plan::token_secret(
        &probe,
        labels,
        "the probe",
        Timestamp::now() + jiff::SignedDuration::from_mins(10),
    );
    site.apply::<Secret>("kube-system", &serde_json::to_value(probe).unwrap())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_token_that_opens_more_or_is_misnamed_is_not_made() {
    let site = Site::new().await.unwrap();
    let good = token("fw-bad-token");
    let id = &name(&good)["bootstrap-token-".len()..];
    let other_id = if id == "aaaaaa" { "bbbbbb" } else { "aaaaaa" };
    let group = |group: &str| json!({ "data": { "auth-extra-groups": base64(group) } });
    let ours = names::BOOTSTRAP_GROUP;
    let what = "only bootstrap tokens of firewalls";
    for (case, change, words) in [
        (
            "kubeadm's group",
            group("system:bootstrappers:kubeadm:default-node-token"),
            what,
        ),
        ("two groups", group(&format!("{ours},system:bootstrappers:more")), what),
        ("no group", json!({ "data": { "auth-extra-groups": null } }), what),
        ("no end", json!({ "data": { "expiration": null } }), what),
        (
            "another's id",
            json!({ "data": { "token-id": base64(other_id) } }),
            what,
        ),
        (
            "a name that is no token's",
            json!({ "metadata": { "name": "clustertoken" } }),
            what,
        ),
        ("one key more", json!({ "data": { "more": base64("x") } }), what),
        ("another type", json!({ "type": "Opaque" }), what),
        ("a token of a ServiceAccount", service_account_token(), what),
        (
            "a group behind stringData",
            json!({ "stringData": { "auth-extra-groups": "system:bootstrappers:x" } }),
            what,
        ),
        (
            "no label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
            "with the label",
        ),
        (
            "another's label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: "kubeadm" } } }),
            "with the label",
        ),
    ] {
        let bad = with(&good, &change);
        refused(case, site.apply::<Secret>("kube-system", &bad).await, POLICY, words);
        let posted = serde_json::from_value(bad).unwrap();
        refused(
            case,
            site.secrets("kube-system")
                .create(&PostParams::default(), &posted)
                .await,
            POLICY,
            words,
        );
    }
    // And of its own that stands it can make none of these either.
    site.apply::<Secret>("kube-system", &good).await.unwrap();
    for change in [
        group("system:bootstrappers:x"),
        json!({ "data": { "expiration": null } }),
    ] {
        refused(
            "spoiling a token",
            patch(&site, "kube-system", name(&good), &change).await,
            POLICY,
            what,
        );
    }
}

#[tokio::test]
async fn a_foreign_token_can_neither_be_read_nor_changed_nor_taken_over() {
    let site = Site::new().await.unwrap();
    let foreign = |id: &str, group: &str, labels: Value| {
        json!({
            "metadata": { "name": format!("bootstrap-token-{id}"), "namespace": "kube-system", "labels": labels },
            "type": names::TOKEN_SECRET_TYPE,
            "data": {
                "token-id": base64(id), "token-secret": base64("0123456789abcdef"),
                "expiration": base64("2100-01-01T00:00:00Z"), "auth-extra-groups": base64(group),
            },
        })
    };
    let kubeadm = "system:bootstrappers:kubeadm:default-node-token";
    let label = json!({ names::MANAGED_BY_LABEL: names::APPROVER });
    let take_over =
        json!({ "metadata": { "labels": label }, "data": { "auth-extra-groups": base64(names::BOOTSTRAP_GROUP) } });
    // By label alone, by group alone, and by neither.
    for (id, group, labels) in [
        ("kubeaa", kubeadm, json!({})),
        ("kubebb", kubeadm, label.clone()),
        ("kubecc", names::BOOTSTRAP_GROUP, json!({})),
    ] {
        let foreign = foreign(id, group, labels);
        site.given::<Secret>("kube-system", &foreign).await;
        let secret = json!({ "data": { "token-secret": base64("fedcba9876543210") } });
        for change in [json!({}), take_over.clone(), secret] {
            let answer = patch(&site, "kube-system", name(&foreign), &change).await;
            refused(&format!("{id} with {change}"), answer, POLICY, "the approver");
        }
        refused(
            id,
            delete(&site, "kube-system", name(&foreign)).await,
            POLICY,
            "the approver",
        );
    }
}

#[tokio::test]
async fn what_serves_as_anchor_of_a_service_account_s_token_is_empty_and_named_after_a_firewall() {
    let site = Site::new().await.unwrap();
    let namespace = names::SERVICE_ACCOUNT_NAMESPACE;
    let good = json!({
        "metadata": { "name": "fw-anchor", "labels": plan::labels(SHOOT, &firewall("fw-anchor")) },
        "type": "Opaque",
    });
    let what = "only empty Secrets";
    for (case, change, words) in [
        ("a token of a ServiceAccount", service_account_token(), what),
        ("data", json!({ "data": { "x": "" } }), what),
        ("another name", json!({ "metadata": { "name": "fw-other" } }), what),
        (
            "no firewall",
            json!({ "metadata": { "labels": { names::FIREWALL_LABEL: null } } }),
            what,
        ),
        (
            "no label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
            "with the label",
        ),
    ] {
        refused(
            case,
            site.apply::<Secret>(namespace, &with(&good, &change)).await,
            POLICY,
            words,
        );
    }
    site.apply::<Secret>(namespace, &good).await.unwrap();
    delete(&site, namespace, "fw-anchor").await.unwrap();
}

#[tokio::test]
async fn the_key_of_the_seed_is_made_once_and_never_touched_again() {
    let site = Site::new().await.unwrap();
    let namespace = names::APPROVER_NAMESPACE;
    let secrets = site.secrets(namespace);
    let key = |name: &str, type_: &str| {
        let labels = json!({ names::MANAGED_BY_LABEL: names::APPROVER });
        serde_json::from_value::<Secret>(
            json!({ "metadata": { "name": name, "labels": labels }, "type": type_, "data": { "key": "" } }),
        )
        .unwrap()
    };
    let what = "only creates firewall-approver-key";
    for (name, type_) in [("another", "Opaque"), (names::SEED_KEY_SECRET, "example.com/other")] {
        refused(
            name,
            secrets.create(&PostParams::default(), &key(name, type_)).await,
            POLICY,
            what,
        );
    }
    let name = names::SEED_KEY_SECRET;
    secrets
        .create(&PostParams::default(), &key(name, "Opaque"))
        .await
        .unwrap();
    secrets.get(name).await.unwrap();
    refused(
        "changing it",
        patch(&site, namespace, name, &json!({ "data": { "key": "eA==" } })).await,
        POLICY,
        what,
    );
    refused("deleting it", delete(&site, namespace, name).await, POLICY, what);
}

#[tokio::test]
async fn a_shoot_s_state_is_written_and_carried_along_and_never_deleted() {
    let site = Site::new().await.unwrap();
    let good = json!({
        "metadata": { "name": names::STATE_SECRET, "labels": { names::MANAGED_BY_LABEL: names::APPROVER, names::PERSIST_LABEL: "true" } },
        "type": "Opaque",
        "data": { names::STATE_HANDOVER_KEY: "" },
    });
    let what = "in a shoot's namespace";
    for (case, change, words) in [
        (
            "not carried along",
            json!({ "metadata": { "labels": { names::PERSIST_LABEL: null } } }),
            what,
        ),
        (
            "carried along: false",
            json!({ "metadata": { "labels": { names::PERSIST_LABEL: "false" } } }),
            what,
        ),
        ("another type", json!({ "type": "example.com/other" }), what),
        (
            "no label",
            json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
            "with the label",
        ),
    ] {
        refused(
            case,
            site.apply::<Secret>(SHOOT, &with(&good, &change)).await,
            POLICY,
            words,
        );
    }
    for namespace in [
        "kube-system",
        names::SERVICE_ACCOUNT_NAMESPACE,
        names::APPROVER_NAMESPACE,
    ] {
        refused(
            namespace,
            site.apply::<Secret>(namespace, &good).await,
            POLICY,
            "the approver",
        );
    }
    let made: Secret = site.apply(SHOOT, &good).await.unwrap();
    let record =
        json!({ "metadata": { "resourceVersion": made.metadata.resource_version }, "data": { "fw.json": "" } });
    patch(&site, SHOOT, names::STATE_SECRET, &record).await.unwrap();
    let unpersist = json!({ "metadata": { "labels": { names::PERSIST_LABEL: null } } });
    refused(
        "no longer carried along",
        patch(&site, SHOOT, names::STATE_SECRET, &unpersist).await,
        POLICY,
        what,
    );
    refused(
        "deleting it",
        delete(&site, SHOOT, names::STATE_SECRET).await,
        POLICY,
        what,
    );
}

#[tokio::test]
async fn a_firewall_s_own_secrets_are_written_read_and_deleted() {
    let site = Site::new().await.unwrap();
    let name = firewall("fw-own.1");
    let uid = super::firewalls::make(&site.admin, name.as_str()).await.unwrap();
    let target = plan::Firewall {
        name: &name,
        namespace: SHOOT,
        uid: &uid,
        shoot: None,
    };
    let bootstrap = plan::bootstrap_kubeconfig_secret(&target, &SecretString::from("text"));
    for secret in [site.planned(&name).await.agent_secret, bootstrap] {
        let good = serde_json::to_value(secret).unwrap();
        let own = super::secrets::name(&good);
        let what = "in a shoot's namespace";
        let owner = |change: Value| json!({ "metadata": { "ownerReferences": [with(&good["metadata"]["ownerReferences"][0], &change)] } });
        for (case, change, words) in [
            (
                "another name",
                json!({ "metadata": { "name": "fw-own.1-cloudprovider" } }),
                what,
            ),
            (
                "another firewall's",
                json!({ "metadata": { "labels": { names::FIREWALL_LABEL: "fw-other" } } }),
                what,
            ),
            (
                "nobody's",
                json!({ "metadata": { "labels": { names::FIREWALL_LABEL: null } } }),
                what,
            ),
            ("no owner", json!({ "metadata": { "ownerReferences": null } }), what),
            (
                "a foreign owner",
                owner(json!({ "apiVersion": "v1", "kind": "ConfigMap" })),
                what,
            ),
            (
                "an owner of another group",
                owner(json!({ "apiVersion": "example.com/v2" })),
                what,
            ),
            ("an owner of another name", owner(json!({ "name": "fw-other" })), what),
            ("a token of a ServiceAccount", service_account_token(), what),
            (
                "no label",
                json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } }),
                "with the label",
            ),
        ] {
            refused(
                case,
                site.apply::<Secret>(SHOOT, &with(&good, &change)).await,
                POLICY,
                words,
            );
        }
        site.apply::<Secret>(SHOOT, &good).await.unwrap();
        assert!(patch(&site, SHOOT, own, &json!({})).await.unwrap().data.is_some());
        let unlabel = json!({ "metadata": { "labels": { names::MANAGED_BY_LABEL: null } } });
        refused(
            "letting go of it",
            patch(&site, SHOOT, own, &unlabel).await,
            POLICY,
            "with the label",
        );
        delete(&site, SHOOT, own).await.unwrap();
    }
}

#[tokio::test]
async fn nobody_else_s_secret_can_be_read_changed_made_or_deleted() {
    let site = Site::new().await.unwrap();
    let label = json!({ "labels": { names::MANAGED_BY_LABEL: names::APPROVER, names::FIREWALL_LABEL: "fw-x", names::PERSIST_LABEL: "true" } });
    let owned =
        serde_json::to_value(site.planned(&firewall("fw-x")).await.agent_secret).unwrap()["metadata"]["ownerReferences"].clone();
    // Names of others', and ours where somebody else was first.
    for foreign in [
        "cloudprovider",
        "ca",
        "kube-apiserver-etcd-client",
        "fw-x.fw.metal-stack.io",
        "fw-x-bootstrap-kubeconfig",
    ] {
        for namespace in ["default", SHOOT] {
            let object = json!({ "metadata": { "name": foreign }, "type": "Opaque", "data": { "key": "eA==" } });
            site.given::<Secret>(namespace, &object).await;
            let mut ours = json!({ "metadata": with(&label, &json!({ "ownerReferences": owned })) });
            for change in [
                json!({}),
                json!({ "data": { "key": "" } }),
                json!({ "metadata": label }),
                ours.take(),
            ] {
                refused(
                    foreign,
                    patch(&site, namespace, foreign, &change).await,
                    POLICY,
                    "the approver",
                );
            }
            refused(foreign, delete(&site, namespace, foreign).await, POLICY, "the approver");
            let read: Secret = kube::Api::namespaced(site.admin.clone(), namespace)
                .get(foreign)
                .await
                .unwrap();
            assert_eq!(read.data.unwrap()["key"].0, b"x");
        }
    }
    // Labelled as ours by whoever: still only by our names and types.
    let labelled = json!({ "metadata": with(&label, &json!({ "name": "labelled" })), "type": "Opaque" });
    site.given::<Secret>(SHOOT, &labelled).await;
    refused(
        "labelled",
        patch(&site, SHOOT, "labelled", &json!({})).await,
        POLICY,
        "in a shoot's namespace",
    );
    refused(
        "labelled",
        delete(&site, SHOOT, "labelled").await,
        POLICY,
        "in a shoot's namespace",
    );
    refused(
        "new",
        site.apply::<Secret>("default", &with(&labelled, &json!({ "metadata": { "name": "new" } })))
            .await,
        POLICY,
        "in a shoot's namespace",
    );
}
