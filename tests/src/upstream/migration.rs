//! Gardener moves a control plane to another seed: what it takes away, what it carries along, what it makes anew.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{FINALIZER, Shoot};
use crate::harness::{PATIENCE, eventually};

/// What Gardener keeps of a control plane outside its seed.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    secrets: Vec<Value>,
    firewalls: Vec<Value>,
}

impl Saved {
    /// A backup in which this Secret is missing.
    #[must_use]
    pub fn without_secret(mut self, name: &str) -> Self {
        self.secrets.retain(|secret| secret["metadata"]["name"] != name);
        self
    }

    /// A backup in which this key of that Secret is missing.
    #[must_use]
    pub fn without_key(mut self, name: &str, key: &str) -> Self {
        for secret in &mut self.secrets {
            if secret["metadata"]["name"] == name
                && let Some(data) = secret["data"].as_object_mut()
            {
                data.remove(key);
            }
        }
        self
    }

    pub fn firewalls(&self) -> Vec<String> {
        let name = |firewall: &Value| firewall["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.firewalls.iter().map(name).collect()
    }
}

impl Shoot<'_> {
    /// Leaves the seed: the Firewalls go without anybody waiting for their machines, and only then the state is saved.
    pub async fn leave(&self) -> anyhow::Result<Saved> {
        let firewalls = self.saved_firewalls().await?;
        self.drop_firewalls().await?;
        Ok(Saved {
            firewalls,
            secrets: self.saved_secrets().await?,
        })
    }

    /// What Gardener saves now and then, for the day on which the seed does not answer.
    pub async fn backup(&self) -> anyhow::Result<Saved> {
        Ok(Saved {
            firewalls: self.saved_firewalls().await?,
            secrets: self.saved_secrets().await?,
        })
    }

    /// Finalizers off, so that nobody releases a machine, and nothing that hangs on a Firewall goes with it.
    pub async fn drop_firewalls(&self) -> anyhow::Result<()> {
        let api = self.firewalls().await?;
        for firewall in api.list(&ListParams::default()).await? {
            let name = firewall.name_any();
            let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            api.patch(&name, &PatchParams::default(), &bare).await?;
            api.delete(&name, &DeleteParams::orphan()).await?;
        }
        // With Orphan it is the garbage collector that lets them go, and it may have to come up first.
        eventually("the Firewalls are gone", PATIENCE, || async {
            let left = api.list(&ListParams::default()).await?.items.len();
            anyhow::ensure!(left == 0, "{left} are left in {}", self.namespace);
            Ok(())
        })
        .await
    }

    /// Gardener cleans up behind itself. Returns before everything in it is gone.
    pub async fn delete_namespace(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.seed.client().await?);
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Comes to stand in the seed. Returned is the moment in which the first Firewall was made there.
    pub async fn restore(&self, saved: &Saved) -> anyhow::Result<Instant> {
        self.old_namespace_gone().await?;
        self.write_namespace().await?;
        let client = self.seed.client().await?;
        self.restore_secrets(&client, saved).await?;
        self.write_access().await?;
        self.write_approver_access().await?;
        let began = Instant::now();
        let api = self.firewalls().await?;
        for firewall in &saved.firewalls {
            let firewall: DynamicObject = serde_json::from_value(firewall.clone())?;
            api.create(&PostParams::default(), &firewall)
                .await
                .with_context(|| format!("restore Firewall {}", firewall.name_any()))?;
        }
        // firewall-controller-manager comes along a little later.
        for firewall in saved.firewalls() {
            self.write_status(&firewall, &self.shoot_access()).await?;
        }
        Ok(began)
    }

    async fn restore_secrets(&self, client: &Client, saved: &Saved) -> anyhow::Result<()> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        let manager = PatchParams::apply("gardenlet").force();
        for secret in &saved.secrets {
            let name = secret["metadata"]["name"].as_str().context("a Secret without a name")?;
            secrets.patch(name, &manager, &Patch::Apply(secret)).await?;
        }
        Ok(())
    }

    /// A namespace of that name may still be going, from an earlier stay.
    async fn old_namespace_gone(&self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.seed.client().await?);
        eventually("the old namespace is gone", PATIENCE, || async {
            let found = namespaces.get_opt(&self.namespace).await?;
            let going = found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some());
            anyhow::ensure!(!going, "{} is still being deleted", self.namespace);
            Ok(())
        })
        .await
    }

    /// Name, labels, data and type: no annotations.
    async fn saved_secrets(&self) -> anyhow::Result<Vec<Value>> {
        let secrets: Api<Secret> = Api::namespaced(self.seed.client().await?, &self.namespace);
        let persisted = secrets.list(&ListParams::default().labels("persist=true")).await?;
        let saved = persisted.into_iter().map(|secret| {
            json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": secret.name_any(), "labels": secret.labels()},
                "type": secret.type_,
                "data": secret.data,
            })
        });
        Ok(saved.collect())
    }

    /// Name, labels, annotations and spec: no status. Its controller gives it the finalizer again.
    async fn saved_firewalls(&self) -> anyhow::Result<Vec<Value>> {
        let firewalls = self.firewalls().await?.list(&ListParams::default()).await?;
        let saved = firewalls.into_iter().map(|firewall| {
            json!({
                "apiVersion": "firewall.metal-stack.io/v2",
                "kind": "Firewall",
                "metadata": {
                    "name": firewall.name_any(),
                    "namespace": self.namespace,
                    "labels": firewall.labels(),
                    "annotations": firewall.annotations(),
                    "finalizers": [FINALIZER],
                },
                "spec": firewall.data["spec"],
                "distance": firewall.data["distance"],
            })
        });
        Ok(saved.collect())
    }
}
