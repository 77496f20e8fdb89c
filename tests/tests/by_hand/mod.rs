//! A firewall's surroundings, made by hand as the cluster's admin: what a seed and a shoot hold before an agent
//! comes, an approver that approves everything, and the machine's folders. One cluster is both seed and shoot; a test
//! has a namespace and a firewall of its own.
#![allow(dead_code, reason = "not every test uses every part")]

mod approver;
mod objects;
mod process;
mod trap;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use agent::{Paths, Settings};
use anyhow::{Context as _, ensure};
use cluster::firewall::{Firewall, FirewallMonitor};
use contract::cert::read_certificate;
use contract::names::{FirewallName, SEED_ACCESS_REPORT};
use jiff::SignedDuration;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ListParams;
use kube::{Api, Client};
use tempfile::TempDir;
use tests::harness::{Cluster, ClusterOptions, Shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

static SEED: Shared = Shared::new();

pub struct Site {
    pub firewall: FirewallName,
    pub namespace: String,
    pub(crate) cluster: &'static Cluster,
    pub(crate) admin: Client,
    pub(crate) token_id: String,
    seed_id: String,
    dir: TempDir,
}

/// An agent in this process.
pub struct RunningAgent {
    stop: CancellationToken,
    task: JoinHandle<Result<(), agent::StartError>>,
}

impl RunningAgent {
    pub async fn stop(self) -> anyhow::Result<()> {
        self.stop.cancel();
        Ok(self.task.await??)
    }
}

impl Site {
    pub async fn new(name: &str) -> anyhow::Result<Self> {
        cluster::log::init(cluster::log::Format::Text);
        let cluster = SEED.get(|| ClusterOptions::new("seed")).await?;
        let admin = cluster.client().await?;
        let namespaces: Api<Namespace> = Api::all(admin.clone());
        let seed_id = namespaces
            .get("kube-system")
            .await?
            .metadata
            .uid
            .context("kube-system has no UID")?;
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("config"))?;
        let site = Self {
            firewall: FirewallName::parse(&format!("{name}-firewall"))?,
            namespace: format!("shoot--{name}"),
            cluster,
            admin,
            token_id: objects::token_id(name),
            seed_id,
            dir,
        };
        site.provision().await?;
        Ok(site)
    }

    pub fn seed_id(&self) -> &str {
        &self.seed_id
    }

    /// A path in the machine's folder.
    pub fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub fn paths(&self) -> Paths {
        Paths {
            config: self.dir.path().join("config"),
            state: self.dir.path().join("state"),
        }
    }

    pub fn read_config(&self, name: &str) -> anyhow::Result<String> {
        read(&self.paths().config.join(name))
    }

    pub fn read_state(&self, name: &str) -> anyhow::Result<String> {
        read(&self.paths().state.join(name))
    }

    pub fn current_serial(&self) -> anyhow::Result<String> {
        Ok(read_certificate(&self.read_state("current.pem")?)?.serial)
    }

    /// Name and PEM of the request that the machine has made.
    pub fn stored_request(&self) -> anyhow::Result<(String, String)> {
        let stored: serde_json::Value = serde_json::from_str(&self.read_state("request.json")?)?;
        let text = |field: &str| stored[field].as_str().map(str::to_owned).context("not text");
        Ok((text("name")?, text("pem")?))
    }

    pub fn write_bootstrap(&self, text: &str, mode: u32) -> anyhow::Result<()> {
        let path = self.paths().bootstrap();
        std::fs::write(&path, text)?;
        Ok(std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?)
    }

    pub fn settings(&self, hook: &[&str]) -> Settings {
        Settings {
            paths: self.paths(),
            certificate_duration: SignedDuration::from_hours(1),
            hook: hook.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    pub fn start_agent(&self, hook: &[&str]) -> anyhow::Result<RunningAgent> {
        let stop = CancellationToken::new();
        let task = tokio::spawn(agent::run(self.settings(hook), stop.clone()));
        Ok(RunningAgent { stop, task })
    }

    /// What an agent says that does not start.
    pub async fn refused_start(&self) -> String {
        let running = agent::run(self.settings(&[]), CancellationToken::new());
        match tokio::time::timeout(std::time::Duration::from_secs(5), running).await {
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(())) => "it ended without an error".into(),
            Err(_) => "it started".into(),
        }
    }

    pub async fn firewall_as(&self, client: &Client) -> anyhow::Result<Firewall> {
        Ok(Api::namespaced(client.clone(), &self.namespace)
            .get(self.firewall.as_str())
            .await?)
    }

    pub async fn secrets_as(&self, client: &Client) -> anyhow::Result<()> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.namespace);
        Ok(secrets.list(&ListParams::default()).await.map(drop)?)
    }

    /// The report in our FirewallMonitor.
    pub async fn report_as(&self, shoot: &Client) -> anyhow::Result<String> {
        let monitors: Api<FirewallMonitor> = Api::namespaced(shoot.clone(), "firewall");
        let annotations = monitors
            .get(self.firewall.as_str())
            .await?
            .metadata
            .annotations
            .unwrap_or_default();
        annotations
            .get(SEED_ACCESS_REPORT)
            .cloned()
            .context("there is no report yet")
    }

    /// Names of the requests that this firewall sent, by whichever credential.
    pub async fn requests(&self) -> anyhow::Result<Vec<String>> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.admin.clone());
        let ours = [self.firewall.user(), format!("system:bootstrap:{}", self.token_id)];
        let all = requests.list(&ListParams::default()).await?;
        let names = all.items.into_iter().filter_map(|request| {
            let requester = request.spec.username.unwrap_or_default();
            ours.contains(&requester).then_some(request.metadata.name).flatten()
        });
        Ok(names.collect())
    }

    /// What stands on the machine now: each file with the time of its last write.
    pub fn fingerprint(&self) -> Vec<(PathBuf, String)> {
        let mut found = Vec::new();
        for dir in [self.paths().config, self.paths().state, self.paths().pairs()] {
            let Ok(entries) = std::fs::read_dir(&dir) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let Ok(metadata) = std::fs::symlink_metadata(entry.path()) else {
                    continue;
                };
                // Neither what is on its way to be renamed, nor what only says how it is going.
                let passing = [".firewall-agent-", "lock", "writable", "status.json"];
                if metadata.is_dir() || passing.iter().any(|prefix| name.starts_with(prefix)) {
                    continue;
                }
                found.push((entry.path(), format!("{:?}", metadata.modified().ok())));
            }
        }
        found.sort();
        found
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
    ensure!(
        mode == 0o600 || path.ends_with(".bootstrap.kubeconfig"),
        "{} has mode {mode:o}",
        path.display()
    );
    Ok(text)
}
