//! What the webhook's component adds: one Secret that the policies leave to the approver, and a right that a policy of its own
//! holds.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tests::harness::{PATIENCE, eventually};
use tests::policies::webhook_file;

use super::*;

const POLICY: &str = "secrets";
/// The approver's own webhook configuration has one name, whoever tries something on it.
static CONFIGURATION: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn component() -> PathBuf {
    manifests().join("../webhook")
}

#[tokio::test]
async fn of_its_own_namespace_the_approver_writes_the_webhooks_certificate_and_nothing_else() {
    let site = Site::new().await.unwrap();
    let namespace = names::APPROVER_NAMESPACE;
    let secrets = site.secrets(namespace);
    let secret = |name: &str, type_: &str, label: &str| {
        let labels = json!({ names::MANAGED_BY_LABEL: label });
        let object =
            json!({ "metadata": { "name": name, "labels": labels }, "type": type_, "data": { "webhook.json": "" } });
        serde_json::from_value::<Secret>(object).unwrap()
    };
    let (params, what) = (PostParams::default(), "only creates firewall-approver-key");
    for name in [
        "firewall-approver-webhook-x",
        "x-firewall-approver-webhook",
        "firewall-approver-0123456789a-webhook",
        "firewall-approver-x123456789-webhook",
        "firewall-approver-token",
    ] {
        let made = secrets.create(&params, &secret(name, "Opaque", names::APPROVER)).await;
        refused(name, made, POLICY, what);
    }
    let name = "firewall-approver-webhook";
    let made = secrets
        .create(&params, &secret(name, "kubernetes.io/tls", names::APPROVER))
        .await;
    assert!(made.is_err());
    let made = secrets.create(&params, &secret(name, "Opaque", "somebody")).await;
    refused("of somebody", made, POLICY, "the label");
    for name in [name, "firewall-approver-0123456789-webhook"] {
        secrets
            .create(&params, &secret(name, "Opaque", names::APPROVER))
            .await
            .unwrap();
        let patch = json!({ "data": { "webhook.json": "eA==" } });
        let merge = Patch::Merge(&patch);
        secrets.patch(name, &PatchParams::default(), &merge).await.unwrap();
        let deleted = secrets.delete(name, &DeleteParams::default()).await;
        refused("deleting it", deleted, POLICY, what);
    }
}

#[test]
fn the_committed_policy_is_the_one_that_is_made() {
    let found = std::fs::read_to_string(component().join("policy.yaml")).unwrap();
    assert_eq!(found, webhook_file(), "run `cargo run -p tests --bin policies`");
}

#[tokio::test]
async fn of_all_webhook_configurations_the_approver_changes_its_own_and_there_the_cas_and_the_path() {
    let _turn = CONFIGURATION.lock().await;
    let site = Site::new().await.unwrap();
    for file in ["policy.yaml", "rbac.yaml", "webhook.yaml"] {
        site.cluster.kubectl_apply(&component().join(file)).await.unwrap();
    }
    let admin: Api<MutatingWebhookConfiguration> = Api::all(site.admin.clone());
    let all: Api<MutatingWebhookConfiguration> = Api::all(site.approver.clone());
    let policy = "webhooks";
    let own = names::APPROVER;
    let params = PatchParams::default();
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    let label = Patch::Merge(&labelled);
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    eventually("right and policy are in force", PATIENCE, async || {
        let answer = said(all.patch(own, &dry, &label).await);
        ensure!(answer.contains(&full_name(policy)), "{answer}");
        Ok(())
    })
    .await
    .unwrap();
    // What it has to write, and what is applied again beside it.
    let (create, update) = (
        "create.firewall-approver.metal-stack.io",
        "update.firewall-approver.metal-stack.io",
    );
    let entry = |name: &str, client: Value| json!({ "webhooks": [{ "name": name, "clientConfig": client }] });
    let both = json!({ "webhooks": [
        { "name": create, "clientConfig": { "caBundle": "LQ==", "service": { "path": "/mutate-firewalls/x" } } },
        { "name": update, "clientConfig": { "caBundle": "LQ==", "service": { "path": "/mutate-firewalls/x" } } },
    ] });
    let manager = PatchParams {
        field_manager: Some(own.into()),
        ..PatchParams::default()
    };
    all.patch(own, &manager, &Patch::Strategic(&both)).await.unwrap();
    site.cluster
        .kubectl_apply(&component().join("webhook.yaml"))
        .await
        .unwrap();
    let now = admin.get(own).await.unwrap();
    let path = now.webhooks.unwrap()[0].client_config.service.clone().unwrap().path;
    assert_eq!(path.as_deref(), Some("/mutate-firewalls/x"));

    // Whatever else there is.
    let what = "only caBundle and path";
    let pods = json!([{ "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"] }]);
    for change in [
        entry(create, json!({ "service": { "name": "another" } })),
        entry(create, json!({ "service": { "namespace": "another" } })),
        entry(create, json!({ "service": { "port": 8443 } })),
        entry(create, json!({ "service": null, "url": "https://thief.example/x" })),
        json!({ "webhooks": [{ "name": create, "rules": pods }] }),
        json!({ "webhooks": [{ "name": create, "failurePolicy": "Ignore" }] }),
        json!({ "webhooks": [{ "name": update, "failurePolicy": "Fail" }] }),
        json!({ "webhooks": [{ "name": create, "namespaceSelector": { "matchLabels": { "a": "b" } } }] }),
        json!({ "webhooks": [{ "name": create, "objectSelector": { "matchLabels": { "a": "b" } } }] }),
        json!({ "webhooks": [{ "name": update, "matchConditions": [{ "name": "another-spec", "expression": "true" }] }] }),
        json!({ "webhooks": [{ "name": create, "timeoutSeconds": 30 }] }),
        json!({ "webhooks": [{ "name": create, "reinvocationPolicy": "Never" }] }),
        json!({ "webhooks": [{ "name": create, "sideEffects": "None" }] }),
        json!({ "webhooks": [{ "name": create, "$patch": "delete" }] }),
        json!({ "webhooks": [{ "name": "a.thief.example", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": { "url": "https://thief.example/x" }, "rules": pods }] }),
    ] {
        let changed = all.patch(own, &params, &Patch::Strategic(&change)).await;
        refused(&change.to_string(), changed, policy, what);
    }
    refused("a label", all.patch(own, &params, &label).await, policy, "no metadata");
    // Where an address of its own stands there, its host stays.
    let to_url = |url: &str| {
        let client = json!({ "service": null, "url": url });
        json!({ "webhooks": [{ "name": create, "clientConfig": client }, { "name": update, "clientConfig": client }] })
    };
    let at_url = to_url("https://127.0.0.1:9443/a");
    admin.patch(own, &params, &Patch::Strategic(&at_url)).await.unwrap();
    let other_path = entry(create, json!({ "url": "https://127.0.0.1:9443/b" }));
    all.patch(own, &params, &Patch::Strategic(&other_path)).await.unwrap();
    for url in [
        "https://127.0.0.1:9444/b",
        "https://127.0.0.2:9443/b",
        "https://thief.example/b",
    ] {
        let change = entry(create, json!({ "url": url }));
        refused(
            url,
            all.patch(own, &params, &Patch::Strategic(&change)).await,
            policy,
            what,
        );
    }

    // And of others nothing, also where RBAC would let it.
    let other = json!({ "metadata": { "name": "of-somebody" }, "webhooks": [] });
    let other: MutatingWebhookConfiguration = serde_json::from_value(other).unwrap();
    admin.create(&PostParams::default(), &other).await.unwrap();
    let forbidden = said(all.patch("of-somebody", &params, &label).await);
    assert!(
        forbidden.contains("forbidden") && !forbidden.contains("Policy"),
        "{forbidden}"
    );
    for verb in ["create", "patch", "delete"] {
        site.give_too_much("admissionregistration.k8s.io", "mutatingwebhookconfigurations", verb)
            .await;
        eventually("too much", PATIENCE, async || {
            let answer = match verb {
                "create" => said(all.create(&PostParams::default(), &other).await),
                "patch" => said(all.patch("of-somebody", &params, &label).await),
                _ => said(all.delete(own, &DeleteParams::default()).await),
            };
            ensure!(answer.contains(&full_name(policy)), "{verb}: {answer}");
            Ok(())
        })
        .await
        .unwrap();
    }
    admin.delete(own, &DeleteParams::default()).await.unwrap();
    admin.delete("of-somebody", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_component_is_added_to_the_seeds_manifests_as_it_is() {
    let _turn = CONFIGURATION.lock().await;
    let site = Site::new().await.unwrap();
    let overlay = tempfile::tempdir().unwrap();
    let up = "../".repeat(overlay.path().components().count() - 1);
    let at = |dir: PathBuf| {
        format!(
            "{up}{}",
            dir.canonicalize()
                .unwrap()
                .display()
                .to_string()
                .trim_start_matches('/')
        )
    };
    let text = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": [at(manifests())], "components": [at(component())],
    });
    std::fs::write(overlay.path().join("kustomization.yaml"), text.to_string()).unwrap();
    let dir = overlay.path().display().to_string();
    let all = site.cluster.kubectl_ok(&["kustomize", &dir]).await.unwrap();
    for words in [
        "FIREWALL_APPROVER_WEBHOOK_LISTEN",
        "containerPort: 9443",
        "FIREWALL_APPROVER_IDENTITY",
        "kind: MutatingWebhookConfiguration",
    ] {
        assert!(all.contains(words), "{words} is not in\n{all}");
    }
    let tried = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-k",
        &dir,
    ];
    site.cluster.kubectl_ok(&tried).await.unwrap();
}
