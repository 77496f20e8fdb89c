//! One control plane: its options, its identities, its files and its end; dropping it ends every process
//! and removes its directory. Its processes are run in `lifecycle`, its CAs rolled in `roll`.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use rcgen::KeyPair;
use tempfile::TempDir;

use super::audit::{self, AuditEvent};
use super::binaries::Binaries;
use super::client::{self, User};
use super::components::{self, Layout};
use super::pki::{Authority, Pair};
use super::process::Process;

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The server's certificate is for `<name>.test` as well as for its address.
    pub name: String,
    pub bootstrap_tokens: bool,
    /// Whether approved certificate signing requests are signed.
    pub signer: bool,
    /// Controllers beside those that every cluster here runs.
    pub more_controllers: Vec<&'static str>,
    /// The longest life of a certificate; Kubernetes' default if not set.
    pub signing_duration: Option<Duration>,
    pub audit: bool,
    /// More arguments for kube-apiserver, `--name=value`.
    pub apiserver_args: Vec<String>,
    /// Where everything listens; an IPv4 address of loopback if not set.
    pub ip: Option<IpAddr>,
    /// The server's certificate is for these, too: somebody passes on what arrives there.
    pub addresses: Vec<IpAddr>,
}

impl ClusterOptions {
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            bootstrap_tokens: true,
            signer: true,
            more_controllers: Vec::new(),
            signing_duration: None,
            audit: false,
            apiserver_args: Vec::new(),
            ip: None,
            addresses: Vec::new(),
        }
    }
}

pub struct Cluster {
    pub(super) options: ClusterOptions,
    pub(super) binaries: Binaries,
    pub(super) layout: Layout,
    trust: Mutex<Trust>,
    admin_token: String,
    controller_manager_token: String,
    // Dropped in this order: those who use a process before it, the directory last.
    pub(super) controller_manager: Slot,
    pub(super) apiserver: Slot,
    pub(super) etcd: Slot,
    _dir: TempDir,
}

/// Empty while the process is stopped.
pub(super) type Slot = tokio::sync::Mutex<Option<Process>>;

/// Who signs now, and what each side trusts (PEM, the newest first).
#[derive(Clone)]
pub(super) struct Trust {
    pub(super) client: Arc<Authority>,
    pub(super) client_bundle: Vec<String>,
    pub(super) server: Arc<Authority>,
    pub(super) server_bundle: Vec<String>,
}

impl Cluster {
    /// Starts everything and waits until it can be used. Builds the programs first, if it has to.
    pub async fn start(options: ClusterOptions) -> anyhow::Result<Self> {
        super::init_crypto();
        let binaries = Binaries::find().await?;
        let mut attempt = 1;
        loop {
            match Self::start_once(options.clone(), binaries.clone()).await {
                // Somebody else took a port between our look and the program's.
                Err(error) if attempt < 3 && format!("{error:#}").contains("address already in use") => attempt += 1,
                result => return result.with_context(|| format!("cluster {} does not start", options.name)),
            }
        }
    }

    async fn start_once(options: ClusterOptions, binaries: Binaries) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("control-plane-").tempdir()?;
        let layout = Layout::new(dir.path(), options.ip)?;
        let client = Arc::new(Authority::new("client-ca")?);
        let server = Arc::new(Authority::new("server-ca")?);
        let trust = Trust {
            client_bundle: vec![client.certificate()],
            server_bundle: vec![server.certificate()],
            client,
            server,
        };
        let cluster = Self {
            options,
            binaries,
            layout,
            trust: Mutex::new(trust),
            admin_token: random_token()?,
            controller_manager_token: random_token()?,
            controller_manager: Slot::default(),
            apiserver: Slot::default(),
            etcd: Slot::default(),
            _dir: dir,
        };
        cluster.write_files()?;
        cluster.start_etcd().await?;
        cluster.start_apiserver().await?;
        cluster.start_controller_manager().await?;
        Ok(cluster)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.options.name
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    #[must_use]
    pub fn server_url(&self) -> String {
        self.layout.server_url()
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.layout.address()
    }

    /// The name, besides its address, that the server's certificate is for.
    #[must_use]
    pub fn server_name(&self) -> String {
        format!("{}.test", self.options.name)
    }

    /// What clients have to trust now, as published in `kube-root-ca.crt`.
    #[must_use]
    pub fn server_ca_pem(&self) -> String {
        self.trust().server_bundle.concat()
    }

    /// What the server trusts now for client certificates.
    #[must_use]
    pub fn client_ca_pem(&self) -> String {
        self.trust().client_bundle.concat()
    }

    /// The authority that signs client certificates now.
    #[must_use]
    pub fn client_ca(&self) -> Arc<Authority> {
        self.trust().client.clone()
    }

    /// A token of group system:masters, so that no roll of a CA takes it away.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> String {
        self.kubeconfig_with(&User::Token(&self.admin_token))
    }

    /// A client certificate from the client CA that signs now, outside of the signing API.
    pub fn kubeconfig_for(&self, user: &str, groups: &[&str]) -> anyhow::Result<String> {
        let pair = self.client_ca().sign_client(user, groups)?;
        Ok(self.kubeconfig_with_certificate(&pair))
    }

    #[must_use]
    pub fn kubeconfig_with_certificate(&self, pair: &Pair) -> String {
        self.kubeconfig_with(&User::Certificate(pair))
    }

    #[must_use]
    pub fn kubeconfig_with_token(&self, token: &str) -> String {
        self.kubeconfig_with(&User::Token(token))
    }

    /// The admin's client. Made anew each time, for the runtime it is called in and the CA of now.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client::client_from(&self.admin_kubeconfig()).await
    }

    /// What was answered so far. The cluster must have been started with `audit`.
    pub fn audit(&self) -> anyhow::Result<Vec<AuditEvent>> {
        audit::read(&self.layout.file(components::AUDIT_LOG))
    }

    pub(super) fn trust(&self) -> MutexGuard<'_, Trust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the programs read of the trust of now. Each file is watched or read at the next start.
    pub(super) fn write_trust(&self) -> anyhow::Result<()> {
        let trust = self.trust().clone();
        let files = &self.layout;
        files.write(components::CLIENT_CA, &trust.client_bundle.concat())?;
        files.write(components::SERVER_CA, &trust.server_bundle.concat())?;
        let signer = trust.client.pair();
        files.write(components::SIGNER_KEY, &signer.key)?;
        files.write(components::SIGNER_CERTIFICATE, &signer.certificate)?;
        files.write(components::ADMIN_KUBECONFIG, &self.admin_kubeconfig())?;
        let token = User::Token(&self.controller_manager_token);
        files.write(components::CONTROLLER_MANAGER_KUBECONFIG, &self.kubeconfig_with(&token))
    }

    /// A new serving certificate from the server CA of now.
    pub(super) fn write_serving_certificate(&self) -> anyhow::Result<()> {
        let authority = self.trust().server.clone();
        let mut ips = vec![self.layout.ip];
        ips.extend(&self.options.addresses);
        let serving = authority.sign_server(&ips, &self.server_name())?;
        self.layout.write(components::SERVER_KEY, &serving.key)?;
        self.layout.write(components::SERVER_CERTIFICATE, &serving.certificate)
    }

    fn write_files(&self) -> anyhow::Result<()> {
        self.write_trust()?;
        self.write_serving_certificate()?;
        let files = &self.layout;
        let service_account = KeyPair::generate()?;
        files.write(components::SERVICE_ACCOUNT_KEY, &service_account.serialize_pem())?;
        // On its own: kube-apiserver takes no public key out of a PKCS#8 private one.
        files.write(components::SERVICE_ACCOUNT_PUBLIC, &service_account.public_key_pem())?;
        files.write(components::AUDIT_POLICY, audit::POLICY)?;
        // The controller-manager holds its usual name, and so its usual rights and no more.
        let tokens = format!(
            "{},admin,admin,system:masters\n{},system:kube-controller-manager,controller-manager\n",
            self.admin_token, self.controller_manager_token
        );
        files.write(components::TOKENS, &tokens)
    }

    fn kubeconfig_with(&self, user: &User<'_>) -> String {
        client::kubeconfig(&self.options.name, &self.server_url(), &self.server_ca_pem(), user)
    }
}

fn random_token() -> anyhow::Result<String> {
    use std::fmt::Write as _;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
