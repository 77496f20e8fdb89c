//! The command lines of the three programs and the files they read: where everything of a cluster lies.
//! Nothing is started here.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context as _;

use super::cluster::ClusterOptions;

/// Addresses and files of one cluster.
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) ip: IpAddr,
    etcd: u16,
    etcd_peer: u16,
    apiserver: u16,
}

impl Layout {
    pub(super) fn new(dir: &Path, ip: Option<IpAddr>) -> anyhow::Result<Self> {
        let ip = ip.unwrap_or_else(own_address);
        let [etcd, etcd_peer, apiserver] = free_ports(ip)?;
        Ok(Self {
            dir: dir.to_owned(),
            ip,
            etcd,
            etcd_peer,
            apiserver,
        })
    }

    pub(super) fn server_url(&self) -> String {
        format!("https://{}", self.address())
    }

    pub(super) fn address(&self) -> SocketAddr {
        (self.ip, self.apiserver).into()
    }

    pub(super) fn etcd_address(&self) -> (IpAddr, u16) {
        (self.ip, self.etcd)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Renamed into place: the programs watch these files and must never see half of one.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.file(name);
        let new = self.file(&format!("{name}.new"));
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| format!("{} cannot be written", path.display()))
    }

    pub(super) fn etcd_args(&self) -> Vec<String> {
        let client = format!("http://{}", SocketAddr::from((self.ip, self.etcd)));
        let peer = format!("http://{}", SocketAddr::from((self.ip, self.etcd_peer)));
        vec![
            flag("data-dir", self.path("etcd")),
            flag("listen-client-urls", &client),
            flag("advertise-client-urls", &client),
            flag("listen-peer-urls", &peer),
            flag("initial-advertise-peer-urls", &peer),
            flag("initial-cluster", format!("default={peer}")),
            // What a test leaves behind is thrown away: nothing has to survive the machine.
            "--unsafe-no-fsync".to_owned(),
        ]
    }

    pub(super) fn apiserver_args(&self, options: &ClusterOptions) -> Vec<String> {
        let mut args = vec![
            flag(
                "etcd-servers",
                format!("http://{}", SocketAddr::from((self.ip, self.etcd))),
            ),
            flag("bind-address", self.ip),
            flag("advertise-address", self.ip),
            flag("secure-port", self.apiserver),
            // A loopback address is refused as an endpoint of the Service `kubernetes`; nothing uses that.
            flag("endpoint-reconciler-type", "none"),
            flag("service-cluster-ip-range", "10.96.0.0/16"),
            flag("tls-cert-file", self.path(SERVER_CERTIFICATE)),
            flag("tls-private-key-file", self.path(SERVER_KEY)),
            flag("client-ca-file", self.path(CLIENT_CA)),
            flag("token-auth-file", self.path(TOKENS)),
            flag("authorization-mode", "Node,RBAC"),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("service-account-signing-key-file", self.path(SERVICE_ACCOUNT_KEY)),
            flag("service-account-key-file", self.path(SERVICE_ACCOUNT_PUBLIC)),
            // Longer than a year: such a token is asked for, and must not be cut short in silence.
            flag("service-account-max-token-expiration", "9000h"),
            flag("enable-bootstrap-token-auth", options.bootstrap_tokens),
        ];
        if options.audit {
            args.push(flag("audit-policy-file", self.path(AUDIT_POLICY)));
            args.push(flag("audit-log-path", self.path(AUDIT_LOG)));
        }
        args.extend(options.apiserver_args.iter().cloned());
        args
    }

    pub(super) fn controller_manager_args(&self, options: &ClusterOptions) -> Vec<String> {
        let mut controllers = CONTROLLERS.to_vec();
        controllers.extend(&options.more_controllers);
        if options.signer {
            controllers.push("certificatesigningrequest-signing-controller");
        }
        let mut args = vec![
            flag("kubeconfig", self.path(CONTROLLER_MANAGER_KUBECONFIG)),
            flag("controllers", controllers.join(",")),
            flag("leader-elect", false),
            flag("secure-port", 0),
            flag("use-service-account-credentials", true),
            flag("service-account-private-key-file", self.path(SERVICE_ACCOUNT_KEY)),
            flag("root-ca-file", self.path(SERVER_CA)),
            flag("cluster-signing-cert-file", self.path(SIGNER_CERTIFICATE)),
            flag("cluster-signing-key-file", self.path(SIGNER_KEY)),
        ];
        if let Some(duration) = options.signing_duration {
            args.push(flag("cluster-signing-duration", format!("{}s", duration.as_secs())));
        }
        args
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

pub(super) const CLIENT_CA: &str = "client-ca.crt";
pub(super) const SERVER_CA: &str = "server-ca.crt";
pub(super) const SERVER_CERTIFICATE: &str = "server.crt";
pub(super) const SERVER_KEY: &str = "server.key";
pub(super) const SIGNER_CERTIFICATE: &str = "signer.crt";
pub(super) const SIGNER_KEY: &str = "signer.key";
pub(super) const SERVICE_ACCOUNT_KEY: &str = "service-account.key";
pub(super) const SERVICE_ACCOUNT_PUBLIC: &str = "service-account.pub";
pub(super) const TOKENS: &str = "tokens.csv";
pub(super) const AUDIT_POLICY: &str = "audit-policy.json";
pub(super) const AUDIT_LOG: &str = "audit.log";
pub(super) const ADMIN_KUBECONFIG: &str = "admin.kubeconfig";
pub(super) const CONTROLLER_MANAGER_KUBECONFIG: &str = "controller-manager.kubeconfig";

const CONTROLLERS: &[&str] = &[
    "bootstrap-signer-controller",
    "token-cleaner-controller",
    "certificatesigningrequest-cleaner-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "namespace-controller",
    "garbage-collector-controller",
];

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// One of its own for each cluster of this process where loopback is a whole network (Linux), so that clusters are told
/// apart by address in logs.
fn own_address() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let last = NEXT.fetch_add(1, Ordering::Relaxed) % 250 + 1;
    let own = Ipv4Addr::new(127, 0, 0, last);
    if TcpListener::bind((own, 0)).is_ok() {
        own.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    }
}

/// They are only free now: who starts has to expect that one is taken meanwhile.
fn free_ports(ip: IpAddr) -> anyhow::Result<[u16; 3]> {
    // All open at once, or the same port could come twice.
    let listen = || TcpListener::bind((ip, 0)).context("no free port on loopback");
    let open = [listen()?, listen()?, listen()?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&open) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
