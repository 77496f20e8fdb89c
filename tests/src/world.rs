//! The seeds and the one shoot's API server that all tests of a binary share, each started by the first that asks. Tests
//! are apart by namespace: each has its own control plane's namespace in a seed, its own approver that looks at that
//! namespace only, its own machines.

use anyhow::Context;
use cluster::firewall::Firewall;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::harness::{Cluster, ClusterOptions, PATIENCE, Shared, Way, eventually};
use crate::programs::{ApproverHome, Machine, Program};
use crate::upstream::Shoot;

static SEED: Shared = Shared::new();
static OTHER_SEED: Shared = Shared::new();
static SHOOT: Shared = Shared::new();
static INSTALLED: OnceCell<()> = OnceCell::const_new();
static OTHER_INSTALLED: OnceCell<()> = OnceCell::const_new();

/// The seed with what an operator installs there: `manifests/seed` and nothing else.
pub async fn seed() -> anyhow::Result<&'static Cluster> {
    let options = || ClusterOptions {
        audit: true,
        ..ClusterOptions::new("seed")
    };
    let seed = SEED.get(options).await?;
    let shoot = shoot_cluster().await?;
    INSTALLED
        .get_or_try_init(|| async {
            crate::upstream::install_crds(seed, shoot).await?;
            install_seed(seed).await?;
            install_shoot(shoot).await
        })
        .await?;
    Ok(seed)
}

/// A second seed, for control planes that move.
pub async fn other_seed() -> anyhow::Result<&'static Cluster> {
    let other = OTHER_SEED.get(|| ClusterOptions::new("seed-b")).await?;
    let shoot = shoot_cluster().await?;
    OTHER_INSTALLED.get_or_try_init(|| equip_seed(other, shoot)).await?;
    Ok(other)
}

/// A seed of a test's own, which it may stop or break.
pub async fn own_seed(name: &str) -> anyhow::Result<Cluster> {
    let own = Cluster::start(ClusterOptions::new(name)).await?;
    equip_seed(&own, shoot_cluster().await?).await?;
    Ok(own)
}

async fn equip_seed(seed: &Cluster, shoot: &Cluster) -> anyhow::Result<()> {
    self::seed().await?;
    crate::upstream::install_crds(seed, shoot).await?;
    install_seed(seed).await
}

pub async fn shoot_cluster() -> anyhow::Result<&'static Cluster> {
    SHOOT.get(|| ClusterOptions::new("shoot")).await
}

pub async fn install_seed(seed: &Cluster) -> anyhow::Result<()> {
    seed.kubectl_apply_kustomize(manifests("seed").as_ref())
        .await
        .context("apply manifests/seed")
        .map(|_| ())
}

pub async fn install_shoot(shoot: &Cluster) -> anyhow::Result<()> {
    shoot
        .kubectl_apply_kustomize(manifests("shoot").as_ref())
        .await
        .context("apply manifests/shoot")
        .map(|_| ())
}

pub fn manifests(part: &str) -> String {
    format!("{}/../manifests/{part}", env!("CARGO_MANIFEST_DIR"))
}

/// A shoot in a seed where its control plane stands, or may come to stand, and the approver that serves it there.
pub struct Place<'a> {
    pub seed: &'a Cluster,
    pub shoot: Shoot<'a>,
    pub home: ApproverHome,
}

/// A shoot of its own for one test, in the seed that all share.
pub type World = Place<'static>;

impl World {
    /// The namespace is the test's own.
    pub async fn new(namespace: &str) -> anyhow::Result<Self> {
        let world = Self::empty(seed().await?, shoot_cluster().await?, namespace).await?;
        world.settle().await?;
        Ok(world)
    }
}

impl<'a> Place<'a> {
    /// Nothing of the shoot is there yet but its namespace: an approver of a test looks at no other, and wants it.
    pub async fn empty(seed: &'a Cluster, shoot: &'a Cluster, namespace: &str) -> anyhow::Result<Self> {
        let place = Self::somewhere(seed, shoot, namespace).await?;
        place.shoot.write_namespace().await?;
        Ok(place)
    }

    /// Nothing of the shoot is there yet.
    pub async fn somewhere(seed: &'a Cluster, shoot: &'a Cluster, namespace: &str) -> anyhow::Result<Self> {
        Ok(Self {
            seed,
            shoot: Shoot::somewhere(seed, shoot, namespace),
            home: ApproverHome::new(seed).await?,
        })
    }

    /// Gardener makes the control plane here.
    pub async fn settle(&self) -> anyhow::Result<()> {
        self.shoot.write_access().await?;
        self.shoot.write_approver_access().await
    }

    pub fn namespace(&self) -> &str {
        &self.shoot.namespace
    }

    pub fn approver(&self) -> anyhow::Result<Program> {
        self.approver_with(&[])
    }

    pub fn approver_with(&self, more: &[&str]) -> anyhow::Result<Program> {
        let mut args = vec!["--namespace", self.namespace()];
        args.extend(more);
        self.home.start(&args)
    }

    /// In another network, say.
    pub fn approver_at(&self, way: &Way) -> anyhow::Result<Program> {
        self.home.start_at(way, &["--namespace", self.namespace()])
    }

    /// A Firewall with a machine that was installed with its userdata.
    pub async fn machine(&self, suffix: &str) -> anyhow::Result<Machine> {
        let firewall = self.shoot.create_firewall(suffix).await?;
        Machine::install(self.seed, self.namespace(), &firewall).await
    }

    pub async fn secrets(&self) -> anyhow::Result<Api<Secret>> {
        Ok(Api::namespaced(self.seed.client().await?, self.namespace()))
    }

    pub async fn admin(&self) -> anyhow::Result<Client> {
        self.seed.client().await
    }

    /// What the approver says of a firewall, in its annotation.
    pub async fn state(&self, firewall: &str) -> anyhow::Result<Value> {
        let object = self.firewalls().await?.get(firewall).await?;
        let text = object.annotations().get("firewall.metal-stack.io/seed-access-state");
        let text = text.with_context(|| format!("Firewall {firewall} has no state yet"))?;
        serde_json::from_str(text).with_context(|| format!("Firewall {firewall} has a state that is none: {text:?}"))
    }

    pub async fn await_reason(&self, firewall: &str, reason: &str) -> anyhow::Result<Value> {
        let what = format!("Firewall {firewall} with reason {reason}");
        eventually(&what, PATIENCE, || async {
            let state = self.state(firewall).await?;
            anyhow::ensure!(state["reason"] == reason, "it is {state}");
            Ok(state)
        })
        .await
        .with_context(|| self.home.log())
    }

    pub async fn annotate(&self, firewall: &str, annotation: &str) -> anyhow::Result<()> {
        let args = [
            "annotate",
            "--overwrite",
            "firewall",
            "-n",
            self.namespace(),
            firewall,
            annotation,
        ];
        self.seed.kubectl_ok(&args).await.map(|_| ())
    }

    pub async fn firewall_uid(&self, firewall: &str) -> anyhow::Result<String> {
        let object = self.firewalls().await?.get(firewall).await?;
        object.uid().context("a Firewall without a UID")
    }

    pub async fn firewalls(&self) -> anyhow::Result<Api<Firewall>> {
        Ok(Api::namespaced(self.admin().await?, self.namespace()))
    }

    /// The firewall's record in the state Secret.
    pub async fn record(&self, firewall: &str) -> anyhow::Result<Value> {
        let secret = self.secrets().await?.get("firewall-bootstrap").await?;
        let bytes = secret
            .data
            .unwrap_or_default()
            .remove(&format!("{firewall}.json"))
            .context("no record")?;
        Ok(serde_json::from_slice(&bytes.0)?)
    }
}

/// Waits for a machine to have both kubeconfigs.
pub async fn bootstrapped(machine: &Machine) -> anyhow::Result<()> {
    eventually("both kubeconfigs on the machine", PATIENCE, || async {
        anyhow::ensure!(machine.seed_kubeconfig().is_file(), "no .seed.kubeconfig");
        anyhow::ensure!(machine.shoot_kubeconfig().is_file(), "no .shoot.kubeconfig");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
}
