//! One seed and one shoot's API server for all tests of a binary. Tests are apart by namespace: each has its own
//! control plane's namespace in the seed, its own approver that looks at that namespace only, its own machines.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::harness::{Cluster, ClusterOptions, Shared, eventually};
use crate::programs::{ApproverHome, Machine, Program};
use crate::upstream::Shoot;

static SEED: Shared = Shared::new();
static SHOOT: Shared = Shared::new();
static INSTALLED: OnceCell<()> = OnceCell::const_new();

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

async fn shoot_cluster() -> anyhow::Result<&'static Cluster> {
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

/// A shoot of its own for one test, and an approver that serves it.
pub struct World {
    pub seed: &'static Cluster,
    pub shoot: Shoot<'static>,
    pub home: ApproverHome,
}

impl World {
    /// The namespace is the test's own.
    pub async fn new(namespace: &str) -> anyhow::Result<Self> {
        let seed = seed().await?;
        let shoot = Shoot::create(seed, shoot_cluster().await?, namespace).await?;
        shoot.write_approver_access().await?;
        Ok(Self {
            seed,
            shoot,
            home: ApproverHome::new(seed).await?,
        })
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
        let path = r"jsonpath={.metadata.annotations.firewall\.metal-stack\.io/seed-access-state}";
        let text = self
            .seed
            .kubectl_ok(&["get", "firewall", "-n", self.namespace(), firewall, "-o", path])
            .await?;
        serde_json::from_str(&text).with_context(|| format!("Firewall {firewall} has no state yet: {text:?}"))
    }

    pub async fn await_reason(&self, firewall: &str, reason: &str) -> anyhow::Result<Value> {
        let what = format!("Firewall {firewall} with reason {reason}");
        eventually(&what, Duration::from_secs(30), || async {
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
        let args = [
            "get",
            "firewall",
            "-n",
            self.namespace(),
            firewall,
            "-o",
            "jsonpath={.metadata.uid}",
        ];
        self.seed.kubectl_ok(&args).await
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
    eventually("both kubeconfigs on the machine", Duration::from_secs(30), || async {
        anyhow::ensure!(machine.seed_kubeconfig().is_file(), "no .seed.kubeconfig");
        anyhow::ensure!(machine.shoot_kubeconfig().is_file(), "no .shoot.kubeconfig");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
}
