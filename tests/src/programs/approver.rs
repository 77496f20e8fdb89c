//! The approver's place, with exactly the identity that the manifests grant; as in a pod, too.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::release::Release;
use super::{APPROVER, KilledAt, Program, binary, clean, installed, no_secrets, write_private};
use crate::harness::{Cluster, Way};
use crate::secrets;

/// The approver's place: its kubeconfig and its log.
pub struct ApproverHome {
    dir: TempDir,
    server: String,
}

impl ApproverHome {
    /// As the manifests have it: ServiceAccount firewall-approver, and nothing more.
    pub async fn new(seed: &Cluster) -> anyhow::Result<Self> {
        Self::with_server(seed, &seed.server_url()).await
    }

    /// Firewalls are told to reach the seed there.
    pub async fn with_server(seed: &Cluster, server: &str) -> anyhow::Result<Self> {
        let home = Self {
            dir: TempDir::new()?,
            server: server.to_owned(),
        };
        home.renew(seed).await?;
        Ok(home)
    }

    /// Writes its kubeconfig anew, with a token and the CAs of now.
    pub async fn renew(&self, seed: &Cluster) -> anyhow::Result<()> {
        let token = own_token(seed).await?;
        write_private(&self.kubeconfig(), &seed.kubeconfig_with_token(&token))
    }

    pub fn start(&self, more: &[&str]) -> anyhow::Result<Program> {
        self.start_killed(more, None)
    }

    pub fn start_killed(&self, more: &[&str], killed: Option<KilledAt<'_>>) -> anyhow::Result<Program> {
        self.spawn(&self.args(more), killed, &[])
    }

    /// As a pod that starts anew keeps its name, an approver that is started here again is the one of before.
    fn spawn(
        &self,
        args: &[String],
        killed: Option<KilledAt<'_>>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Program> {
        let name = self.name();
        let mut all = named(&name).to_vec();
        all.extend(environment);
        Program::start_in(&self.program()?, args, &self.log_path(), killed, &all)
    }

    /// Of this replica.
    pub fn name(&self) -> String {
        let dir = self.dir.path().file_name().unwrap_or_default();
        format!("firewall-approver{}", dir.to_string_lossy().replace('.', "-"))
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let mut args = ["run", "--kubeconfig", &kubeconfig, "--seed-server", &self.server]
            .map(str::to_owned)
            .to_vec();
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    /// Where the environment says more, or something else.
    pub fn start_in(&self, environment: &[(&str, &str)], more: &[&str]) -> anyhow::Result<Program> {
        let args = self.args(more);
        self.spawn(&args, None, environment)
    }

    /// From the next start on it is this version.
    pub fn put(&self, release: &Release) -> anyhow::Result<()> {
        release.put(APPROVER, &self.bin())
    }

    /// What is started here.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        installed(APPROVER, &self.bin())
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// As in a pod: no kubeconfig, but the ServiceAccount's files where the kubelet puts them.
    pub async fn start_in_pod(&self, pod: &Pod, seed: &Cluster, more: &[&str]) -> anyhow::Result<Program> {
        pod.refresh(seed).await?;
        let address = seed.server_url();
        let (host, port) = address
            .strip_prefix("https://")
            .and_then(|address| address.rsplit_once(':'))
            .context("no port")?;
        let mount = format!(
            "mount -t tmpfs none /run && mkdir -p {POD_FILES} && mount --bind '{}' {POD_FILES} && exec \"$@\"",
            pod.0.path().display()
        );
        let program = self.program()?.display().to_string();
        let mut args = [
            "-m",
            "sh",
            "-c",
            &mount,
            "sh",
            &program,
            "run",
            "--seed-server",
            &self.server,
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(more.iter().map(ToString::to_string));
        let name = self.name();
        let mut environment = named(&name).to_vec();
        environment.extend([("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)]);
        Program::spawn(clean(Command::new("unshare")), &args, &self.log_path(), &environment)
    }

    /// Firewalls are told to reach the seed there, from the next start on.
    pub fn move_server(&mut self, server: &str) {
        server.clone_into(&mut self.server);
    }

    /// Where firewalls are told to reach the seed.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// In another network, say.
    pub fn start_at(&self, way: &Way, more: &[&str]) -> anyhow::Result<Program> {
        let name = self.name();
        let program = self.program()?;
        Program::start_at(way, &program, &self.args(more), &self.log_path(), &named(&name))
    }

    /// With arguments of the caller's alone.
    pub fn start_with(&self, args: &[&str]) -> anyhow::Result<Program> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        self.spawn(&args, None, &[])
    }

    /// Both of the caller's alone.
    pub fn start_alone(&self, environment: &[(&str, &str)], args: &[&str]) -> anyhow::Result<Program> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        self.spawn(&args, None, environment)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for ApproverHome {
    fn drop(&mut self) {
        let found = secrets::shown(&self.log(), &secrets::below(self.dir.path()));
        no_secrets(&self.log_path(), found);
    }
}

/// Who a replica is, in this version's words and in those of 0.1.0.
fn named(name: &str) -> [(&'static str, &str); 2] {
    [("FIREWALL_APPROVER_IDENTITY", name), ("POD_NAME", name)]
}

/// What the kubelet puts into a pod, and keeps up to date.
pub struct Pod(TempDir);

impl Pod {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(TempDir::new()?))
    }

    /// A token and the CAs of now.
    pub async fn refresh(&self, seed: &Cluster) -> anyhow::Result<()> {
        write_private(&self.0.path().join("namespace"), "firewall-approver")?;
        write_private(&self.0.path().join("token"), &own_token(seed).await?)?;
        write_private(&self.0.path().join("ca.crt"), &seed.server_ca_pem())
    }
}

const POD_FILES: &str = "/run/secrets/kubernetes.io/serviceaccount";

async fn own_token(seed: &Cluster) -> anyhow::Result<String> {
    let arguments = [
        "create",
        "token",
        "-n",
        "firewall-approver",
        "firewall-approver",
        "--duration=24h",
    ];
    Ok(seed.kubectl_ok(&arguments).await?.trim().to_owned())
}

/// `firewall-approver export`, as an operator runs it: a bootstrap kubeconfig to carry to the machine.
pub async fn export(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<String> {
    printed(seed, &["export", &format!("{namespace}/{firewall}")]).await
}

/// What the program prints for an operator with his own kubeconfig.
pub async fn printed(seed: &Cluster, args: &[&str]) -> anyhow::Result<String> {
    let operator = seed.dir().join("admin.kubeconfig");
    let output = tokio::process::Command::new(binary(APPROVER)?)
        .args(args)
        .arg("--kubeconfig")
        .arg(operator)
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output)
        .await
        .with_context(|| format!("firewall-approver {args:?} does not end"))??;
    if !output.status.success() {
        bail!(
            "firewall-approver {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
