//! The real kubectl, as the cluster's admin: what an operator types is what a test runs.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::binaries::Program;
use super::cluster::Cluster;
use super::components::ADMIN_KUBECONFIG;

impl Cluster {
    /// How a person calls the kubectl that belongs to this cluster.
    pub fn kubectl_command_line(&self) -> String {
        self.binaries.command_line(Program::Kubectl)
    }

    /// Whatever the outcome: the caller judges it.
    pub async fn kubectl(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.kubectl_with(args, "").await
    }

    /// What it printed; a failure is an error with what it said.
    pub async fn kubectl_ok(&self, args: &[&str]) -> anyhow::Result<String> {
        succeeded(args, self.kubectl(args).await?)
    }

    /// A file or a directory of manifests.
    pub async fn kubectl_apply(&self, path: &Path) -> anyhow::Result<String> {
        self.kubectl_ok(&["apply", "--server-side", "-f", text(path)?]).await
    }

    /// The text of one or more manifests.
    pub async fn kubectl_apply_text(&self, manifests: &str) -> anyhow::Result<String> {
        let args = ["apply", "--server-side", "-f", "-"];
        succeeded(&args, self.kubectl_with(&args, manifests).await?)
    }

    /// A directory with a kustomization.
    pub async fn kubectl_apply_kustomize(&self, dir: &Path) -> anyhow::Result<String> {
        self.kubectl_ok(&["apply", "--server-side", "-k", text(dir)?]).await
    }

    async fn kubectl_with(&self, args: &[&str], input: &str) -> anyhow::Result<Output> {
        let mut command = Command::from(self.binaries.command(Program::Kubectl, self.dir()));
        command
            .arg("--kubeconfig")
            .arg(self.layout.file(ADMIN_KUBECONFIG))
            .args(args);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let run = async {
            let mut child = command.spawn().context("kubectl cannot be started")?;
            let mut stdin = child.stdin.take().context("kubectl has no standard input")?;
            // At once, not one after the other: neither side may wait for a full pipe.
            let (written, output) = tokio::join!(
                async move { stdin.write_all(input.as_bytes()).await },
                child.wait_with_output()
            );
            // A kubectl that ends early says why on its stderr, better than a broken pipe does.
            drop(written);
            anyhow::Ok(output?)
        };
        timeout(LIMIT, run)
            .await
            .with_context(|| format!("kubectl {} does not end", args.join(" ")))?
    }
}

const LIMIT: Duration = Duration::from_secs(60);

fn succeeded(args: &[&str], output: Output) -> anyhow::Result<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "kubectl {}: {}: {said}",
        args.join(" "),
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}
