//! What the webhook's component adds: one Secret that the policies leave to the approver, and a right that no policy can
//! hold.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tests::harness::{PATIENCE, eventually};

use super::*;

const POLICY: &str = "secrets";

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

/// If this fails, Kubernetes has learnt it: then a policy is to hold the approver to the bundle and the path.
#[tokio::test]
async fn no_policy_is_asked_about_webhook_configurations() {
    let site = Site::new().await.unwrap();
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "nobody-writes" },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [
                { "apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["*"], "operations": ["*"],
                  "resources": ["mutatingwebhookconfigurations"] },
                { "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                  "resourceNames": ["nobody-writes"] },
            ] },
            "validations": [{ "expression": "false" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "nobody-writes" },
        "spec": { "policyName": "nobody-writes", "validationActions": ["Deny"] },
    });
    for object in [policy, binding] {
        site.cluster.kubectl_apply_text(&object.to_string()).await.unwrap();
    }
    let try_it = ["create", "configmap", "nobody-writes", "--dry-run=server"];
    eventually("the policy is in force", PATIENCE, async || {
        let output = site.cluster.kubectl(&try_it).await?;
        ensure!(!output.status.success(), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let configuration = json!({ "metadata": { "name": "nobody-asks" }, "webhooks": [] });
    let configuration: MutatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    let all: Api<MutatingWebhookConfiguration> = Api::all(site.admin.clone());
    all.create(&PostParams::default(), &configuration).await.unwrap();
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    all.patch("nobody-asks", &PatchParams::default(), &Patch::Merge(&labelled))
        .await
        .unwrap();
    all.delete("nobody-asks", &DeleteParams::default()).await.unwrap();
    let delete = [
        "delete",
        "validatingadmissionpolicy,validatingadmissionpolicybinding",
        "nobody-writes",
    ];
    site.cluster.kubectl_ok(&delete).await.unwrap();
}

#[tokio::test]
async fn with_the_component_the_approver_changes_its_own_webhook_configuration_and_no_other() {
    let site = Site::new().await.unwrap();
    for file in ["rbac.yaml", "webhook.yaml", "service.yaml"] {
        site.cluster.kubectl_apply(&component().join(file)).await.unwrap();
    }
    let other = json!({ "metadata": { "name": "of-somebody" }, "webhooks": [] });
    let other: MutatingWebhookConfiguration = serde_json::from_value(other).unwrap();
    let admin: Api<MutatingWebhookConfiguration> = Api::all(site.admin.clone());
    admin.create(&PostParams::default(), &other).await.unwrap();
    let all: Api<MutatingWebhookConfiguration> = Api::all(site.approver.clone());
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    let label = Patch::Merge(&labelled);
    let params = PatchParams::default();
    eventually("its right", PATIENCE, async || {
        Ok(all.patch(names::APPROVER, &params, &label).await.map(drop)?)
    })
    .await
    .unwrap();
    for answer in [
        said(all.patch("of-somebody", &params, &label).await),
        said(all.get("of-somebody").await),
        said(all.delete(names::APPROVER, &DeleteParams::default()).await),
        said(all.create(&PostParams::default(), &other).await),
        said(all.list(&kube::api::ListParams::default()).await),
    ] {
        assert!(answer.contains("forbidden"), "{answer}");
    }
    // What is applied again leaves alone what the approver wrote.
    let bundle = json!({ "webhooks": [{ "name": "create.firewall-approver.metal-stack.io",
        "clientConfig": { "caBundle": "", "service": { "path": "/mutate-firewalls/x" } } }] });
    let manager = PatchParams {
        field_manager: Some(names::APPROVER.into()),
        ..PatchParams::default()
    };
    all.patch(names::APPROVER, &manager, &Patch::Strategic(&bundle))
        .await
        .unwrap();
    site.cluster
        .kubectl_apply(&component().join("webhook.yaml"))
        .await
        .unwrap();
    let now = admin.get(names::APPROVER).await.unwrap();
    let path = now.webhooks.unwrap()[0].client_config.service.clone().unwrap().path;
    assert_eq!(path.as_deref(), Some("/mutate-firewalls/x"));
    admin.delete(names::APPROVER, &DeleteParams::default()).await.unwrap();
    admin.delete("of-somebody", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_component_is_added_to_the_seeds_manifests_as_it_is() {
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
