//! What we read of firewall-controller-manager's resources, written down once: our cut-down CRDs hold it,
//! and so do the real ones (`UPSTREAM_CRDS=<their directory> cargo test -p tests --test crds`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions};

/// CRD file, path of the field, its type.
const READ: &[(&str, &str, &str)] = &[
    ("firewalls", "distance", "integer"),
    ("firewalls", "spec.userdata", "string"),
    ("firewalls", "status.phase", "string"),
    ("firewalls", "status.shootAccess", "object"),
    ("firewalls", "status.shootAccess.genericKubeconfigSecretName", "string"),
    ("firewalls", "status.shootAccess.tokenSecretName", "string"),
    ("firewalls", "status.shootAccess.namespace", "string"),
    ("firewalls", "status.shootAccess.apiServerURL", "string"),
    ("firewallmonitors", "controllerStatus.lastRun", "string"),
    ("firewallmonitors", "controllerStatus.lastRunAgainstSeed", "string"),
];

/// Whether status is a subresource decides which writes reach it.
const STATUS_SUBRESOURCE: &[(&str, bool)] = &[("firewalls", true), ("firewallmonitors", false)];

#[test]
fn our_crds_hold_what_we_read() {
    holds_what_we_read(&ours()).unwrap();
}

/// Passes without a word where nobody named the directory: the real CRDs are not part of this project.
#[test]
fn the_real_crds_hold_what_we_read_and_all_that_ours_say() {
    let Some(dir) = std::env::var_os("UPSTREAM_CRDS").map(PathBuf::from) else {
        return;
    };
    holds_what_we_read(&dir).unwrap();
    for (name, _) in STATUS_SUBRESOURCE {
        let (ours, real) = (crd(&ours(), name).unwrap(), crd(&dir, name).unwrap());
        for part in ["/spec/group", "/spec/scope", "/spec/names"] {
            assert_eq!(ours.pointer(part), real.pointer(part), "{name}: {part}");
        }
        within(schema(&ours).unwrap(), schema(&real).unwrap(), name).unwrap();
    }
}

#[tokio::test]
async fn a_server_takes_our_crds_and_prunes_what_is_not_in_them() {
    let cluster = Cluster::start(ClusterOptions {
        signer: false,
        ..ClusterOptions::new("crds")
    })
    .await
    .unwrap();
    for (name, _) in STATUS_SUBRESOURCE {
        cluster
            .kubectl_apply(&ours().join(format!("{name}.yaml")))
            .await
            .unwrap();
        let crd = format!("crd/{name}.firewall.metal-stack.io");
        cluster
            .kubectl_ok(&["wait", "--for=condition=Established", "--timeout=30s", &crd])
            .await
            .unwrap();
        // A schema that is not structural would be kept, with this condition.
        let odd = r#"jsonpath={.status.conditions[?(@.type=="NonStructuralSchema")].status}"#;
        assert_eq!(cluster.kubectl_ok(&["get", &crd, "-o", odd]).await.unwrap(), "");
    }
    let api = "firewall.metal-stack.io/v2";
    let monitor = json!({
        "apiVersion": api, "kind": "FirewallMonitor",
        "metadata": { "name": "one", "namespace": "default", "annotations": { "kept": "yes" } },
        "controllerStatus": { "lastRun": "2026-01-02T03:04:05Z", "seedAccess": "gone" },
        "seedAccess": "gone",
    });
    let firewall = json!({
        "apiVersion": api, "kind": "Firewall", "metadata": { "name": "one", "namespace": "default" },
        "distance": 0, "spec": { "userdata": "{}", "unknown": "gone" }, "status": { "phase": "not by this way" },
    });
    let dir = tempfile::tempdir().unwrap();
    for (short, object) in [("fwmon", monitor), ("fw", firewall)] {
        let file = dir.path().join(format!("{short}.json"));
        std::fs::write(&file, object.to_string()).unwrap();
        cluster
            .kubectl_ok(&["create", "--validate=ignore", "-f", file.to_str().unwrap()])
            .await
            .unwrap();
        let stored = cluster.kubectl_ok(&["get", short, "one", "-o", "json"]).await.unwrap();
        assert!(
            !stored.contains("gone") && !stored.contains("not by this way"),
            "{stored}"
        );
        assert_eq!(stored.contains("kept"), short == "fwmon", "{stored}");
    }
}

fn ours() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crds")
}

fn crd(dir: &Path, name: &str) -> anyhow::Result<Value> {
    let file = dir.join(format!("{name}.yaml"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    serde_saphyr::from_str(&text).with_context(|| file.display().to_string())
}

fn version(crd: &Value) -> anyhow::Result<&Value> {
    let versions = crd
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .context("no versions")?;
    versions
        .iter()
        .find(|version| version["name"] == "v2")
        .context("no version v2")
}

fn schema(crd: &Value) -> anyhow::Result<&Value> {
    version(crd)?.pointer("/schema/openAPIV3Schema").context("no schema")
}

fn holds_what_we_read(dir: &Path) -> anyhow::Result<()> {
    for (name, path, kind) in READ {
        let crd = crd(dir, name)?;
        let field = path
            .split('.')
            .try_fold(schema(&crd)?, |at, part| at.pointer(&format!("/properties/{part}")));
        let field = field.with_context(|| format!("{name}: no field {path}"))?;
        ensure!(
            field["type"] == *kind,
            "{name}: {path} is {}, not {kind}",
            field["type"]
        );
    }
    for (name, wanted) in STATUS_SUBRESOURCE {
        let crd = crd(dir, name)?;
        let has = version(&crd)?.pointer("/subresources/status").is_some();
        ensure!(has == *wanted, "{name}: status is a subresource: {has}");
    }
    Ok(())
}

/// Everything that our schema knows is in the real one, with the same type and format, and nothing is
/// required by ours alone.
fn within(ours: &Value, real: &Value, at: &str) -> anyhow::Result<()> {
    for part in ["type", "format"] {
        ensure!(
            ours.get(part) == real.get(part),
            "{at}: {part} is {:?} and really {:?}",
            ours.get(part),
            real.get(part)
        );
    }
    for name in ours["required"].as_array().into_iter().flatten() {
        let required = real["required"].as_array().is_some_and(|names| names.contains(name));
        ensure!(required, "{at}: {name} is required by ours alone");
    }
    for (name, field) in ours["properties"].as_object().into_iter().flatten() {
        let other = real["properties"]
            .get(name)
            .with_context(|| format!("{at}: {name} is in ours alone"))?;
        within(field, other, &format!("{at}.{name}"))?;
    }
    if let Some(items) = ours.get("items") {
        within(items, real.get("items").context("no items")?, &format!("{at}[]"))?;
    }
    Ok(())
}
