//! Firewalls: the approver annotates them with one annotation, and touches nothing else of them.

use cluster::firewall::Firewall;
use contract::names;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::{SHOOT, Site, refused};

const POLICY: &str = "firewalls";
const METADATA: &str = "metadata the approver changes only annotations";
const ANNOTATIONS: &str = "annotations the approver changes only firewall.metal-stack.io/seed-access-state";
const FIELDS: &str = "neither spec nor status nor any other field";

fn api(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(names::API_GROUP, "v2", "Firewall");
    Api::namespaced_with(client.clone(), SHOOT, &ApiResource::from_gvk(&kind))
}

/// A Firewall as upstream writes it, with something of everything.
fn upstreams(name: &str) -> Value {
    json!({
        "apiVersion": "firewall.metal-stack.io/v2",
        "kind": "Firewall",
        "metadata": {
            "name": name,
            "labels": { "app": "firewall" },
            "annotations": { "firewall.metal-stack.io/infrastructure-id": "x" },
            "finalizers": ["firewall.metal-stack.io/firewall-controller-manager"],
            "ownerReferences": [{
                "apiVersion": "firewall.metal-stack.io/v2", "kind": "FirewallSet", "name": "set",
                "uid": "7a3d1f0e-0000-4000-8000-000000000002", "controller": true,
            }],
        },
        "distance": 3,
        "spec": { "userdata": "ignition", "image": "firewall", "networks": ["internet", "underlay"] },
    })
}

/// Its UID is the answer.
pub async fn make(admin: &Client, name: &str) -> kube::Result<String> {
    let params = PatchParams::apply("firewall-controller-manager").force();
    let firewall = upstreams(name);
    let made = api(admin).patch(name, &params, &Patch::Apply(&firewall)).await?;
    let params = PatchParams::apply("firewall-controller-manager-status").force();
    let status = json!({
        "apiVersion": firewall["apiVersion"], "kind": firewall["kind"], "metadata": { "name": made.name_any() },
        "status": { "phase": "Running" },
    });
    api(admin).patch_status(name, &params, &Patch::Apply(&status)).await?;
    Ok(made.uid().unwrap_or_default())
}

/// A change that is refused, without effect if it is not.
pub async fn label(approver: &Client, name: &str) -> kube::Result<DynamicObject> {
    let label = json!({ "metadata": { "labels": { "more": "x" } } });
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    api(approver).patch(name, &params, &Patch::Merge(&label)).await
}

async fn merge(client: &Client, name: &str, change: &Value) -> kube::Result<DynamicObject> {
    api(client)
        .patch(name, &PatchParams::default(), &Patch::Merge(change))
        .await
}

/// Server-side apply as the approver does it.
async fn apply(client: &Client, name: &str, uid: Option<String>, rest: &Value) -> kube::Result<()> {
    let firewall = super::with(
        rest,
        &json!({
            "apiVersion": "firewall.metal-stack.io/v2", "kind": "Firewall",
            "metadata": { "name": name, "uid": uid },
        }),
    );
    let firewalls: Api<Firewall> = Api::namespaced(client.clone(), SHOOT);
    let params = PatchParams::apply(names::APPROVER).force();
    firewalls
        .patch_metadata(name, &params, &Patch::Apply(&firewall))
        .await
        .map(drop)
}

fn annotated(key: &str, value: &Value) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

#[tokio::test]
async fn a_firewall_is_annotated_with_how_its_access_stands() {
    let site = Site::new().await.unwrap();
    let name = "fw-annotated";
    make(&site.admin, name).await.unwrap();
    // Also where there was none before, and where none is left.
    let bare = "fw-annotated-bare";
    let mut firewall = upstreams(bare);
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        firewall["metadata"].as_object_mut().unwrap().remove(field);
    }
    firewall["spec"] = json!({});
    firewall.as_object_mut().unwrap().remove("distance");
    let params = PatchParams::apply("firewall-controller-manager");
    api(&site.admin)
        .patch(bare, &params, &Patch::Apply(&firewall))
        .await
        .unwrap();
    for name in [name, bare] {
        let before = api(&site.admin).get(name).await.unwrap();
        for value in ["one", "two"] {
            let state = annotated(names::SEED_ACCESS_STATE, &value.into());
            apply(&site.approver, name, before.uid(), &state).await.unwrap();
        }
        for value in [json!("three"), Value::Null, json!("four")] {
            let state = annotated(names::SEED_ACCESS_STATE, &value);
            merge(&site.approver, name, &state).await.unwrap();
        }
        let after = api(&site.admin).get(name).await.unwrap();
        assert_eq!(after.annotations()[names::SEED_ACCESS_STATE], "four");
        assert_eq!((&after.data, after.labels()), (&before.data, before.labels()));
    }
}

#[tokio::test]
async fn nothing_else_of_a_firewall_is_changed() {
    let site = Site::new().await.unwrap();
    let name = "fw-untouched";
    make(&site.admin, name).await.unwrap();
    let before = api(&site.admin).get(name).await.unwrap();
    let owner =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "7a3d1f0e-0000-4000-8000-000000000003" });
    let metadata = |change: Value| json!({ "metadata": change });
    for (case, change, words) in [
        (
            "another finalizer",
            metadata(json!({ "finalizers": ["example.com/x"] })),
            METADATA,
        ),
        ("no finalizer", metadata(json!({ "finalizers": null })), METADATA),
        ("a new label", metadata(json!({ "labels": { "more": "x" } })), METADATA),
        ("another label", metadata(json!({ "labels": { "app": "x" } })), METADATA),
        ("no labels", metadata(json!({ "labels": null })), METADATA),
        (
            "another owner",
            metadata(json!({ "ownerReferences": [owner] })),
            METADATA,
        ),
        ("no owner", metadata(json!({ "ownerReferences": null })), METADATA),
        ("a new annotation", annotated("example.com/x", &json!("x")), ANNOTATIONS),
        (
            "an operator's annotation",
            annotated(names::ACCEPT_KEY, &json!("x")),
            ANNOTATIONS,
        ),
        (
            "another value of an annotation",
            annotated("firewall.metal-stack.io/infrastructure-id", &json!("y")),
            ANNOTATIONS,
        ),
        (
            "an annotation less",
            annotated("firewall.metal-stack.io/infrastructure-id", &Value::Null),
            ANNOTATIONS,
        ),
        (
            "a changed field of spec",
            json!({ "spec": { "userdata": "#!/bin/sh" } }),
            FIELDS,
        ),
        ("a new field of spec", json!({ "spec": { "size": "xl" } }), FIELDS),
        ("a field of spec less", json!({ "spec": { "image": null } }), FIELDS),
        (
            "a list in spec",
            json!({ "spec": { "networks": ["internet"] } }),
            FIELDS,
        ),
        ("another distance", json!({ "distance": 0 }), FIELDS),
        ("no distance", json!({ "distance": null }), FIELDS),
    ] {
        refused(case, merge(&site.approver, name, &change).await, POLICY, words);
        // And hidden behind a change that is allowed.
        let both = super::with(&change, &annotated(names::SEED_ACCESS_STATE, &json!("x")));
        refused(case, merge(&site.approver, name, &both).await, POLICY, words);
    }
    let none = metadata(json!({ "annotations": null }));
    refused(
        "no annotations",
        merge(&site.approver, name, &none).await,
        POLICY,
        ANNOTATIONS,
    );
    // By apply as well, as its own field manager and in the name of another.
    let label = metadata(json!({ "labels": { "more": "x" } }));
    refused(
        "a label by apply",
        apply(&site.approver, name, before.uid(), &label).await,
        POLICY,
        METADATA,
    );
    let less = super::with(&upstreams(name), &json!({ "spec": { "userdata": null } }));
    let params = PatchParams::apply("firewall-controller-manager").force();
    refused(
        "taking back what upstream applied",
        api(&site.approver).patch(name, &params, &Patch::Apply(&less)).await,
        POLICY,
        FIELDS,
    );
    let after = api(&site.admin).get(name).await.unwrap();
    assert_eq!(after, before);
    // The same changes are anybody else's right.
    merge(
        &site.admin,
        name,
        &json!({ "metadata": { "finalizers": null }, "distance": 0 }),
    )
    .await
    .unwrap();
}
