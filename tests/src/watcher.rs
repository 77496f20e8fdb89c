//! Looks at the files that a consumer reads, all the time: whether one is missing, half written, or at odds with another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use contract::cert::read_certificate;
use contract::key::PrivateKey;
use contract::kubeconfig::{Credential, Kubeconfig};

/// Reads what the consumer reads, every millisecond.
pub struct Watcher {
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), String>>,
}

impl Watcher {
    /// Of the folder with the kubeconfigs. What they name by path is below the root, if there is another than our own.
    pub fn of(root: Option<&Path>, config: &Path) -> Self {
        let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&looks));
        let files = [".seed.kubeconfig", ".seed-kubeconfig"].map(|name| config.join(name));
        let root = root.map(Path::to_owned);
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                for path in &files {
                    whole(root.as_deref(), path)
                        .map_err(|e| format!("{} after {count:?} looks: {e:#}", path.display()))?;
                }
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        Self { stop, looks, thread }
    }

    /// How often it looked, or what it saw.
    pub fn end(self) -> anyhow::Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.thread.join().map_err(|_| anyhow::anyhow!("the watcher died"))?;
        seen.map_err(anyhow::Error::msg)?;
        Ok(self.looks.load(Ordering::Relaxed))
    }
}

fn whole(root: Option<&Path>, path: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(path).context("kubeconfig")?;
    let kubeconfig = Kubeconfig::read_local("it", &text)?;
    ensure!(!kubeconfig.ca.certificates().is_empty(), "it has no CA");
    let Credential::CertificateFiles { certificate, key } = &kubeconfig.credential else {
        anyhow::bail!("it names no files");
    };
    ensure!(certificate == key, "certificate and key are in two files");
    let pem = fs::read_to_string(below(root, certificate)).context("the pair")?;
    let (issued, key) = (read_certificate(&pem)?, PrivateKey::from_pem(&pem)?);
    ensure!(issued.key == key.public(), "the key is another certificate's");
    Ok(())
}

fn below(root: Option<&Path>, path: &Path) -> PathBuf {
    match (root, path.strip_prefix("/")) {
        (Some(root), Ok(path)) => root.join(path),
        _ => path.to_owned(),
    }
}
