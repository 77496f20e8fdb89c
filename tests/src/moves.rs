//! The stage for a control plane that moves: one shoot, its place in seed A and its place in seed B, an approver for
//! each. What a move does is `upstream`'s; here is what has to hold after one.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use cluster::firewall::Firewall;
use contract::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::harness::{Cluster, PATIENCE, client_from, eventually};
use crate::programs::Machine;
use crate::upstream::{Saved, monitors};
use crate::world::{Place, other_seed, seed, shoot_cluster};

pub struct Stage<'a> {
    pub a: Place<'a>,
    pub b: Place<'a>,
}

/// What is taken away in the seed that a control plane leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// The Firewalls, and then the namespace with everything in it.
    Nothing,
    /// The Firewalls only.
    Namespace,
}

impl Stage<'static> {
    /// In the two seeds that all tests share. The control plane stands in A.
    pub async fn new(namespace: &str) -> anyhow::Result<Self> {
        Self::between(seed().await?, other_seed().await?, shoot_cluster().await?, namespace).await
    }
}

impl<'a> Stage<'a> {
    pub async fn between(a: &'a Cluster, b: &'a Cluster, shoot: &'a Cluster, namespace: &str) -> anyhow::Result<Self> {
        let stage = Self {
            a: Place::empty(a, shoot, namespace).await?,
            b: Place::empty(b, shoot, namespace).await?,
        };
        stage.a.settle().await?;
        Ok(stage)
    }
}

impl Place<'_> {
    /// The whole of Gardener's part. Returned is the moment in which the first Firewall was made over there.
    pub async fn move_to(&self, to: &Place<'_>, leaves: Leaves) -> anyhow::Result<Instant> {
        let saved = self.leave(leaves).await?;
        to.shoot.restore(&saved).await
    }

    pub async fn leave(&self, leaves: Leaves) -> anyhow::Result<Saved> {
        let saved = self.shoot.leave().await?;
        if leaves == Leaves::Nothing {
            self.shoot.delete_namespace().await?;
        }
        Ok(saved)
    }

    /// Waits until the files on the machine's disk open its own Firewall here, and says how long that took.
    pub async fn has(&self, machine: &Machine, since: Instant, limit: Duration) -> anyhow::Result<Duration> {
        let uid = self.firewall_uid(&machine.firewall).await?;
        let end = since + limit;
        loop {
            let reason = match tokio::time::timeout(Duration::from_secs(5), self.opens(machine, &uid)).await {
                Ok(Ok(())) => return Ok(since.elapsed()),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "the seed does not answer".to_owned(),
            };
            if Instant::now() > end {
                bail!(
                    "{} is not in {} after {limit:?}: {reason}\n--- agent\n{}\n--- approver\n{}",
                    machine.firewall,
                    self.seed.name(),
                    tail(&machine.log()),
                    tail(&self.home.log())
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// As a consumer would: with what lies there, and nothing else.
    async fn opens(&self, machine: &Machine, uid: &str) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(machine.seed_kubeconfig()).context("no .seed.kubeconfig")?;
        let server = self.home.server();
        ensure!(text.contains(server), "the machine's kubeconfig is not for {server}");
        let own: Api<Firewall> = Api::namespaced(client_from(&text).await?, self.namespace());
        let found = own.get(&machine.firewall).await?.uid();
        ensure!(found.as_deref() == Some(uid), "it is Firewall {found:?}, not {uid}");
        Ok(())
    }

    /// It works here now, and still does after a while.
    pub async fn keeps(&self, machine: &Machine, during: Duration) -> anyhow::Result<()> {
        let uid = self.firewall_uid(&machine.firewall).await?;
        let end = Instant::now() + during;
        while Instant::now() < end {
            self.opens(machine, &uid)
                .await
                .with_context(|| format!("{} was lost to {}", machine.firewall, self.seed.name()))?;
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    }

    /// Nothing of ours stands in this seed for the shoot that left it. Where the namespace stays, the shoot's state in
    /// it does too: it goes with the namespace, or a day later.
    pub async fn is_left_clean(&self, leaves: Leaves) -> anyhow::Result<()> {
        let what = format!("nothing left in {}", self.seed.name());
        let client = self.admin().await?;
        eventually(&what, PATIENCE, || async {
            let left = self.left_over(&client, leaves).await?;
            ensure!(left.is_empty(), "{}", left.join(", "));
            Ok(())
        })
        .await
        .with_context(|| tail(&self.home.log()))
    }

    /// A firewall that has come in needs no bootstrap credential any more.
    pub async fn holds_no_credential(&self) -> anyhow::Result<()> {
        let what = format!("no bootstrap credential in {}", self.seed.name());
        let client = self.admin().await?;
        eventually(&what, PATIENCE, || async {
            let open = self.credentials(&client).await?;
            ensure!(open.is_empty(), "{}", open.join(", "));
            Ok(())
        })
        .await
        .with_context(|| tail(&self.home.log()))
    }

    /// Those of the shoot's firewalls that the seed would take.
    async fn credentials(&self, client: &Client) -> anyhow::Result<Vec<String>> {
        let mut open = Vec::new();
        let of_shoot = self.ours();
        // An expired token is as good as gone; the token cleaner takes it away in its own time.
        for secret in labelled::<Secret>(client, names::TOKEN_NAMESPACE, &of_shoot).await? {
            let expiration = secret.data.as_ref().and_then(|data| data.get("expiration"));
            let expiration = expiration.and_then(|bytes| str::from_utf8(&bytes.0).ok()?.parse::<Timestamp>().ok());
            if expiration.is_none_or(|expiration| expiration > Timestamp::now()) {
                open.push(format!("Secret kube-system/{}", secret.name_any()));
            }
        }
        // The ServiceAccount's token is bound to this Secret.
        let accounts = names::SERVICE_ACCOUNT_NAMESPACE;
        open.extend(named(
            labelled::<Secret>(client, accounts, &of_shoot).await?,
            "Secret",
            accounts,
        ));
        Ok(open)
    }

    /// The label of everything of ours that stands for a firewall of this shoot.
    fn ours(&self) -> String {
        format!("{}={}", names::NAMESPACE_LABEL, self.namespace())
    }

    async fn left_over(&self, client: &Client, leaves: Leaves) -> anyhow::Result<Vec<String>> {
        let of_shoot = self.ours();
        let mut left = self.credentials(client).await?;
        let accounts = names::SERVICE_ACCOUNT_NAMESPACE;
        left.extend(named(
            labelled::<ServiceAccount>(client, accounts, &of_shoot).await?,
            "ServiceAccount",
            accounts,
        ));
        let access = names::ACCESS_NAMESPACE;
        left.extend(named(
            labelled::<ServiceAccount>(client, access, &of_shoot).await?,
            "ServiceAccount",
            access,
        ));
        left.extend(named(
            labelled::<Role>(client, access, &of_shoot).await?,
            "Role",
            access,
        ));
        left.extend(named(
            labelled::<RoleBinding>(client, access, &of_shoot).await?,
            "RoleBinding",
            access,
        ));
        let namespace = self.namespace();
        if leaves == Leaves::Nothing {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            if namespaces.get_opt(namespace).await?.is_some() {
                left.push(format!("Namespace {namespace}"));
            }
        }
        left.extend(named(
            labelled::<Secret>(client, namespace, &of_shoot).await?,
            "Secret",
            namespace,
        ));
        left.extend(named(
            labelled::<Role>(client, namespace, &of_shoot).await?,
            "Role",
            namespace,
        ));
        left.extend(named(
            labelled::<RoleBinding>(client, namespace, &of_shoot).await?,
            "RoleBinding",
            namespace,
        ));
        for firewall in self.firewalls().await?.list(&ListParams::default()).await? {
            left.push(format!(
                "Firewall {} with finalizers {:?}",
                firewall.name_any(),
                firewall.finalizers()
            ));
        }
        Ok(left)
    }

    /// How many Firewalls of this name stand here.
    pub async fn count(&self, firewall: &str) -> anyhow::Result<usize> {
        let all = self.firewalls().await?.list(&ListParams::default()).await?;
        Ok(all.iter().filter(|found| found.name_any() == firewall).count())
    }

    /// UID of the FirewallMonitor in the shoot: another one was deleted and made anew.
    pub async fn monitor_uid(&self, firewall: &str) -> anyhow::Result<String> {
        let monitor = monitors(self.shoot.cluster).await?.get(firewall).await?;
        monitor.uid().context("a FirewallMonitor without a UID")
    }
}

async fn labelled<K>(client: &Client, namespace: &str, label: &str) -> anyhow::Result<Vec<K>>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let all: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(all.list(&ListParams::default().labels(label)).await?.items)
}

fn named<K: kube::ResourceExt>(objects: Vec<K>, kind: &str, namespace: &str) -> Vec<String> {
    let name = |object: K| format!("{kind} {namespace}/{}", object.name_any());
    objects.into_iter().map(name).collect()
}

/// The end of a log: what a failure is explained with.
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
