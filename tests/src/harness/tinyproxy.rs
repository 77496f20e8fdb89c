//! An HTTP proxy that passes on what CONNECT asks for, and wants a password: tinyproxy, in a far network namespace.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::eventually;
use super::net::{FAR, Net};

pub const USER: &str = "firewall";
pub const PASSWORD: &str = "s3cret.PASS-word";

/// Ends when dropped.
pub struct TinyProxy {
    child: Child,
    dir: TempDir,
}

impl TinyProxy {
    /// At the far end of the cable. What the names mean to it, the far namespace says.
    pub async fn start(net: &Net) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("tinyproxy-").tempdir()?;
        let config = format!(
            "Port {PORT}\nListen {FAR}\nTimeout 600\nLogLevel Connect\nMaxClients 100\nAllow 10.200.0.0/24\nBasicAuth {USER} {PASSWORD}\n"
        );
        fs::write(dir.path().join("config"), config)?;
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.path().join("log"))?;
        let child = net
            .to_far()
            .command("tinyproxy".as_ref())
            .arg("-d")
            .arg("-c")
            .arg(dir.path().join("config"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("tinyproxy cannot be started: run `make tools`")?;
        let mut proxy = Self { child, dir };
        let address = SocketAddr::new(FAR.parse()?, PORT);
        let listens = eventually("tinyproxy listens", Duration::from_secs(20), || {
            let (ended, answers) = (proxy.child.try_wait(), net.answers(address));
            async move {
                ensure!(ended?.is_none(), "it ended, is it installed? (`make tools`)");
                answers
            }
        });
        listens.await.with_context(|| proxy.log())?;
        Ok(proxy)
    }

    /// With the password as a URL has it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{USER}:{}@{FAR}:{PORT}", PASSWORD.replace('.', "%2E"))
    }

    #[must_use]
    pub fn address(&self) -> String {
        format!("http://{FAR}:{PORT}")
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for TinyProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PORT: u16 = 3128;
