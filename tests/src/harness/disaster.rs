//! What no control plane should suffer, and every one does: a store that is set back to an older backup, and a key of
//! ServiceAccount tokens that is rolled. Each returns when the cluster works again.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use rcgen::KeyPair;
use tempfile::TempDir;

use super::cluster::Cluster;
use super::components;

const STORE: &str = "etcd";

/// All that an API server had stored.
pub struct Backup(TempDir);

impl Cluster {
    /// Takes a backup. The API server is without its store for a moment.
    pub async fn backup(&self) -> anyhow::Result<Backup> {
        let backup = Backup(tempfile::Builder::new().prefix("backup-").tempdir()?);
        self.stop_etcd().await;
        let copied = copy(&self.layout.file(STORE), backup.0.path());
        self.start_etcd().await?;
        copied?;
        self.stop_apiserver().await;
        self.start_apiserver().await?;
        Ok(backup)
    }

    /// Sets everything back to a backup. What the API server remembers itself goes too: it is started anew.
    pub async fn restore(&self, backup: &Backup) -> anyhow::Result<()> {
        self.stop_controller_manager().await;
        self.stop_apiserver().await;
        self.stop_etcd().await;
        fs::remove_dir_all(self.layout.file(STORE))?;
        copy(backup.0.path(), &self.layout.file(STORE))?;
        self.start_etcd().await?;
        self.start_apiserver().await?;
        self.start_controller_manager().await
    }

    /// New tokens are signed with a new key. Those of before are good on, or not.
    pub async fn roll_service_account_key(&self, old_is_good: bool) -> anyhow::Result<()> {
        let key = KeyPair::generate()?;
        let old = fs::read_to_string(self.layout.file(components::SERVICE_ACCOUNT_PUBLIC))?;
        let kept = if old_is_good { old.as_str() } else { "" };
        let files = &self.layout;
        files.write(
            components::SERVICE_ACCOUNT_PUBLIC,
            &format!("{}{kept}", key.public_key_pem()),
        )?;
        files.write(components::SERVICE_ACCOUNT_KEY, &key.serialize_pem())?;
        self.stop_controller_manager().await;
        self.stop_apiserver().await;
        self.start_apiserver().await?;
        self.start_controller_manager().await
    }

    /// Tokens of the key before the newest are refused from now on.
    pub async fn drop_old_service_account_key(&self) -> anyhow::Result<()> {
        let all = fs::read_to_string(self.layout.file(components::SERVICE_ACCOUNT_PUBLIC))?;
        let end = "-----END PUBLIC KEY-----\n";
        let newest = all.split_inclusive(end).next().context("no public key")?;
        self.layout.write(components::SERVICE_ACCOUNT_PUBLIC, newest)?;
        self.stop_apiserver().await;
        self.start_apiserver().await
    }
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{} cannot be read", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("{} cannot be copied", target.display()))?;
        }
    }
    Ok(())
}
