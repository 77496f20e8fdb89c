//! A proxy in front of an API server that ends TLS, as a managed seed's ingress does: it verifies client certificates
//! itself and passes on who it was in headers. To a certificate that it does not trust it answers in the handshake,
//! with an alert; whoever shows none is let through, with a token.

use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::client::{User, client_from, kubeconfig};
use super::cluster::Cluster;
use super::eventually;
use super::pki::{Authority, Pair};

/// What an API server has to know of such a proxy from its start on.
pub struct FrontProxy {
    dir: TempDir,
    authority: Authority,
}

impl FrontProxy {
    pub fn new() -> anyhow::Result<Self> {
        let front = Self {
            dir: tempfile::Builder::new().prefix("haproxy-").tempdir()?,
            authority: Authority::new("front-proxy-ca")?,
        };
        front.write(FRONT_CA, &front.authority.certificate())?;
        let identity = front.authority.sign_client(NAME, &[])?;
        front.write(IDENTITY, &joined(&identity))?;
        Ok(front)
    }

    /// For `ClusterOptions::apiserver_args`. Whoever holds a certificate of that CA and name is believed.
    #[must_use]
    pub fn apiserver_args(&self) -> Vec<String> {
        vec![
            format!("--requestheader-client-ca-file={}", self.file(FRONT_CA).display()),
            format!("--requestheader-allowed-names={NAME}"),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        ]
    }

    /// Returns when it serves. The cluster must have been started with the arguments of above.
    pub async fn before(self, cluster: &Cluster) -> anyhow::Result<HaProxy<'_>> {
        // Only free now, as every port that is asked for beforehand.
        let address = TcpListener::bind((cluster.layout.ip, 0)).await?.local_addr()?;
        let serving = cluster
            .trust()
            .server
            .sign_server(&[cluster.layout.ip], &cluster.server_name())?;
        self.write(SERVING, &joined(&serving))?;
        write_config(&self, cluster, address, 0)?;
        let mut proxy = HaProxy {
            child: start(&self)?,
            cluster,
            front: self,
            address,
            generation: 0,
        };
        proxy.until_serving().await?;
        Ok(proxy)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.file(name);
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// Ends when dropped.
pub struct HaProxy<'a> {
    child: Child,
    front: FrontProxy,
    cluster: &'a Cluster,
    address: SocketAddr,
    generation: u32,
}

impl HaProxy<'_> {
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.front.file(LOG)).unwrap_or_default()
    }

    /// Takes up the cluster's CAs of now, and a new certificate of its own. Connections of before are ended.
    pub async fn reload(&mut self) -> anyhow::Result<()> {
        self.generation += 1;
        let cluster = self.cluster;
        let serving = cluster
            .trust()
            .server
            .sign_server(&[cluster.layout.ip], &cluster.server_name())?;
        self.front.write(SERVING, &joined(&serving))?;
        write_config(&self.front, cluster, self.address, self.generation)?;
        kill_process(Pid::from_child(&self.child), Signal::USR2)?;
        self.until_serving().await?;
        // Those who were let in before are thrown out by then.
        tokio::time::sleep(HARD_STOP + Duration::from_millis(500)).await;
        Ok(())
    }

    async fn until_serving(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("HAProxy ended ({status}): {}", self.log());
        }
        let (url, wanted) = (self.url(), self.generation.to_string());
        let text = kubeconfig("haproxy", &url, &self.cluster.server_ca_pem(), &User::Token("none"));
        let served = eventually("HAProxy serves with its files of now", SERVES, || async {
            let client = client_from(&text).await?;
            let found = client
                .request_text(http::Request::get(GENERATION).body(Vec::new())?)
                .await?;
            ensure!(found == wanted, "it is at {found}, not {wanted}");
            Ok(())
        });
        served.await.with_context(|| self.log())
    }
}

impl Drop for HaProxy<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // The one error is that nobody is left to get it.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

const NAME: &str = "front-proxy";
const FRONT_CA: &str = "front-proxy-ca.crt";
const IDENTITY: &str = "front-proxy.pem";
const SERVING: &str = "serving.pem";
const CLIENT_CA: &str = "client-ca.crt";
const SERVER_CA: &str = "server-ca.crt";
const CONFIG: &str = "haproxy.cfg";
const LOG: &str = "log";
const GENERATION: &str = "/haproxy-generation";
const HARD_STOP: Duration = Duration::from_secs(1);
const SERVES: Duration = Duration::from_secs(20);

fn joined(pair: &Pair) -> String {
    format!("{}{}", pair.certificate, pair.key)
}

fn write_config(front: &FrontProxy, cluster: &Cluster, address: SocketAddr, generation: u32) -> anyhow::Result<()> {
    front.write(CLIENT_CA, &cluster.client_ca_pem())?;
    front.write(SERVER_CA, &cluster.server_ca_pem())?;
    let file = |name: &str| front.file(name).display().to_string();
    let url = cluster.server_url();
    let apiserver = url
        .strip_prefix("https://")
        .with_context(|| format!("{url} has no address"))?;
    let (serving, clients, identity, servers) = (file(SERVING), file(CLIENT_CA), file(IDENTITY), file(SERVER_CA));
    let stop = HARD_STOP.as_secs();
    // No session may bring back who somebody was before a CA was dropped. Of organizations one is passed on: a
    // firewall has no more.
    let text = format!(
        "global
    hard-stop-after {stop}s
defaults
    mode http
    timeout connect 5s
    timeout client 10m
    timeout server 10m
frontend clients
    bind {address} ssl crt {serving} ca-file {clients} verify optional alpn h2,http/1.1 no-tls-tickets
    http-request return status 200 content-type text/plain string {generation} if {{ path {GENERATION} }}
    http-request del-header X-Remote- -m beg
    http-request set-header X-Remote-User %[ssl_c_s_dn(CN)] if {{ ssl_c_used }}
    http-request set-header X-Remote-Group %[ssl_c_s_dn(O)] if {{ ssl_c_used }} {{ ssl_c_s_dn(O) -m found }}
    default_backend apiserver
backend apiserver
    server apiserver {apiserver} ssl crt {identity} ca-file {servers} verify required
"
    );
    front.write(CONFIG, &text)
}

/// `-W`: one process that stays, and workers that it replaces. All are of one group, which ends with this process: the
/// kernel closes the pipe to its standard input however that dies.
fn start(front: &FrontProxy) -> anyhow::Result<Child> {
    let log = OpenOptions::new().create(true).append(true).open(front.file(LOG))?;
    // Where Debian has it, which is not in every user's path.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let found = std::env::split_paths(&path)
        .map(|dir| dir.join("haproxy"))
        .find(|program| program.is_file())
        .context("haproxy is not installed: run `make tools`, or apt-get install haproxy")?;
    let mut child = Command::new("sh");
    child
        .args(["-c", RUN])
        .arg(found)
        .arg(front.file(CONFIG))
        .arg(front.dir.path())
        .env_clear()
        .env("PATH", path)
        .current_dir(front.dir.path())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log);
    child.spawn().context("HAProxy cannot be started")
}

/// `$0` is the program, `$1` its configuration, `$2` the directory to remove, `$$` the group.
const RUN: &str = r#"
exec 3<&0
( cat <&3 >/dev/null; rm -rf "$2"; kill -9 -$$ ) &
exec "$0" -W -f "$1" </dev/null 3<&-
"#;
