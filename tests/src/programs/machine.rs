//! A firewall's machine: folders that stand for its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;

use super::release::Release;
use super::{AGENT, KilledAt, Program, installed, no_secrets, write_private};
use crate::harness::{Cluster, Way, eventually};
use crate::ignition;
use crate::secrets;

/// A firewall machine: the folders that the agent knows, somewhere else.
pub struct Machine {
    dir: TempDir,
    pub firewall: String,
    pub namespace: String,
}

impl Machine {
    /// Installed with the userdata that a bootstrap kubeconfig was put into.
    pub async fn install(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<Self> {
        let kubeconfig = bootstrap_kubeconfig(seed, namespace, firewall).await?;
        Self::with_kubeconfig(namespace, firewall, &kubeconfig)
    }

    pub fn with_kubeconfig(namespace: &str, firewall: &str, kubeconfig: &str) -> anyhow::Result<Self> {
        let machine = Self {
            dir: TempDir::new()?,
            firewall: firewall.to_owned(),
            namespace: namespace.to_owned(),
        };
        fs::create_dir_all(machine.config())?;
        fs::create_dir_all(machine.state())?;
        fs::set_permissions(machine.state(), fs::Permissions::from_mode(0o700))?;
        write_private(&machine.config().join(".bootstrap.kubeconfig"), kubeconfig)?;
        Ok(machine)
    }

    /// At its first boot, with this userdata and nothing else.
    pub fn first_boot(namespace: &str, firewall: &str, userdata: &str) -> anyhow::Result<Self> {
        let nothing = |url: &str| anyhow::bail!("nothing is to be loaded, {url} neither");
        Self::first_boot_loading(namespace, firewall, userdata, nothing)
    }

    /// The same where something is loaded.
    pub fn first_boot_loading(
        namespace: &str,
        firewall: &str,
        userdata: &str,
        fetch: impl Fn(&str) -> anyhow::Result<Vec<u8>>,
    ) -> anyhow::Result<Self> {
        let machine = Self {
            dir: TempDir::new()?,
            firewall: firewall.to_owned(),
            namespace: namespace.to_owned(),
        };
        let made = ignition::lay_out(userdata, machine.path(), fetch)?;
        let unit = "firewall-agent.service".to_owned();
        anyhow::ensure!(made.enabled.contains(&unit), "the agent's unit is not on: {made:?}");
        // systemd does that, by the unit.
        fs::create_dir_all(machine.state())?;
        fs::set_permissions(machine.state(), fs::Permissions::from_mode(0o700))?;
        Ok(machine)
    }

    /// Starts the agent; the hook leaves a line in a file.
    pub fn start(&self) -> anyhow::Result<Program> {
        self.start_with(&[])
    }

    pub fn start_with(&self, more: &[&str]) -> anyhow::Result<Program> {
        self.start_killed(more, None)
    }

    pub fn start_killed(&self, more: &[&str], killed: Option<KilledAt<'_>>) -> anyhow::Result<Program> {
        Program::start(&self.program()?, &self.run_args(more), &self.log_path(), killed)
    }

    /// A package brings this version; what runs is not touched.
    pub fn put(&self, release: &Release) -> anyhow::Result<()> {
        release.put(AGENT, &self.bin())
    }

    /// What is started here.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        installed(AGENT, &self.bin())
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("usr/local/bin")
    }

    pub fn start_in(&self, environment: &[(&str, &str)]) -> anyhow::Result<Program> {
        let args = self.run_args(&[]);
        Program::start_in(&self.program()?, &args, &self.log_path(), None, environment)
    }

    /// In another network, say.
    pub fn start_at(&self, way: &Way, environment: &[(&str, &str)], more: &[&str]) -> anyhow::Result<Program> {
        let args = self.run_args(more);
        Program::start_at(way, &self.program()?, &args, &self.log_path(), environment)
    }

    fn run_args(&self, more: &[&str]) -> Vec<String> {
        let hook = format!("touch {}", self.dir.path().join("hook").display());
        let mut args = vec!["run".to_owned()];
        args.extend(self.places());
        if !more.contains(&"--hook") {
            args.extend(["--hook".to_owned(), hook]);
        }
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    /// Runs a command of the agent to its end.
    pub fn command(&self, command: &str, more: &[&str]) -> anyhow::Result<std::process::Output> {
        Ok(Command::new(self.program()?)
            .arg(command)
            .args(self.places())
            .args(more)
            .output()?)
    }

    fn places(&self) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        vec![
            "--config-dir".into(),
            path(self.config()),
            "--state-dir".into(),
            path(self.state()),
        ]
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("etc/firewall-controller")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("var/lib/firewall-agent")
    }

    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.config().join(".bootstrap.kubeconfig")
    }

    /// What an operator carries to the machine.
    pub fn put_bootstrap_kubeconfig(&self, kubeconfig: &str) -> anyhow::Result<()> {
        write_private(&self.bootstrap_kubeconfig(), kubeconfig)
    }

    /// `firewall-agent status`, as people read it.
    pub fn status(&self) -> anyhow::Result<String> {
        let output = self.command("status", &[])?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The machine's private key, to the byte.
    pub fn key(&self) -> anyhow::Result<Vec<u8>> {
        Ok(fs::read(self.state().join("key.pem"))?)
    }

    pub fn seed_kubeconfig(&self) -> PathBuf {
        self.config().join(".seed.kubeconfig")
    }

    pub fn shoot_kubeconfig(&self) -> PathBuf {
        self.config().join(".shoot.kubeconfig")
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Loses its disk: everything but what the userdata put there.
    pub fn reinstall(&self) -> anyhow::Result<()> {
        let kubeconfig = fs::read(self.config().join(".bootstrap.kubeconfig"))?;
        fs::remove_dir_all(self.state())?;
        fs::remove_dir_all(self.config())?;
        fs::create_dir_all(self.config())?;
        fs::create_dir_all(self.state())?;
        fs::set_permissions(self.state(), fs::Permissions::from_mode(0o700))?;
        write_private(
            &self.config().join(".bootstrap.kubeconfig"),
            &String::from_utf8(kubeconfig)?,
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let found = secrets::shown(&self.log(), &secrets::below(self.dir.path()));
        no_secrets(&self.log_path(), found);
    }
}

/// What userdata would carry, once the approver has made it.
pub async fn bootstrap_kubeconfig(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<String> {
    let name = format!("{firewall}-bootstrap-kubeconfig");
    let client = seed.client().await?;
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::namespaced(client, namespace);
    eventually(
        &format!("Secret {namespace}/{name}"),
        Duration::from_secs(30),
        || async {
            let secret = secrets.get(&name).await?;
            let bytes = secret
                .data
                .unwrap_or_default()
                .remove("kubeconfig")
                .context("no key kubeconfig")?;
            Ok(String::from_utf8(bytes.0)?)
        },
    )
    .await
}
