//! An approver's webhook in a seed of the tests: the shipped manifests, but that API servers reach it at an address of this
//! machine and are told of it for one namespace only. `Front` stands for the Service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use contract::digest::sha256_hex;
use contract::names;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::harness::{PATIENCE, eventually};
use crate::programs::Program;
use crate::upstream::FINALIZER;
use crate::world::{Place, manifests};

/// As firewall-controller-manager has it in its template.
pub const TEMPLATE: &str = r#"{"ignition":{"version":"2.3.0","config":{}},"storage":{"files":[{"filesystem":"root","path":"/etc/hostname","mode":420,"contents":{"source":"data:,a%20name"}}]},"systemd":{"units":[{"name":"droptailer.service","enabled":true,"contents":"[Unit]\n"}]}}"#;
pub const TO_ALL: &str = "127.0.0.1:0";

/// What the approver of one namespace calls its lease, and its webhook.
pub fn lease(namespace: &str) -> String {
    format!("{}-{}", names::APPROVER, &sha256_hex(namespace.as_bytes())[..10])
}

/// An address that leads to whichever of the replicas takes the connection.
pub struct Front {
    address: SocketAddr,
    to: Arc<Mutex<Vec<SocketAddr>>>,
    accept: JoinHandle<()>,
}

impl Front {
    pub async fn new() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let to = Arc::new(Mutex::new(Vec::<SocketAddr>::new()));
        let known = Arc::clone(&to);
        let accept = tokio::spawn(async move {
            let mut turn = 0_usize;
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut all = known.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if !all.is_empty() {
                    let first = turn % all.len();
                    all.rotate_left(first);
                }
                turn += 1;
                tokio::spawn(async move {
                    for address in all {
                        if let Ok(mut replica) = TcpStream::connect(address).await {
                            let _ = copy_bidirectional(&mut connection, &mut replica).await;
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { address, to, accept })
    }

    /// From now on it leads to these, in turn.
    pub fn lead_to(&self, replicas: &[SocketAddr]) {
        replicas.clone_into(&mut self.to.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accept.abort();
    }
}

/// The webhook of a place's approver.
pub struct Hooked<'a> {
    place: &'a Place<'a>,
    pub front: Front,
    pub name: String,
}

impl<'a> Hooked<'a> {
    /// Installed, and nobody answers yet.
    pub async fn install(place: &'a Place<'a>) -> anyhow::Result<Self> {
        let hooked = Self {
            place,
            front: Front::new().await?,
            name: lease(place.namespace()),
        };
        let policy = format!("{}/policy.yaml", manifests("webhook"));
        place.seed.kubectl_apply(policy.as_ref()).await?;
        let rbac = std::fs::read_to_string(format!("{}/rbac.yaml", manifests("webhook")))?;
        let rbac = rbac
            .replace("firewall-approver-webhook", &format!("{}-webhook", hooked.name))
            .replace("[firewall-approver]", &format!("[{}]", hooked.name));
        place.seed.kubectl_apply_text(&rbac).await?;
        hooked.write().await?;
        Ok(hooked)
    }

    async fn write(&self) -> anyhow::Result<()> {
        let text = std::fs::read_to_string(format!("{}/webhook.yaml", manifests("webhook")))?;
        let mut configuration: Value = serde_saphyr::from_str(&text)?;
        configuration["metadata"]["name"] = json!(self.name);
        for entry in configuration["webhooks"].as_array_mut().context("no webhooks")? {
            entry["clientConfig"] = json!({ "url": format!("https://{}/", self.front.address) });
            let namespace = self.place.namespace();
            entry["namespaceSelector"] = json!({ "matchLabels": { "kubernetes.io/metadata.name": namespace } });
        }
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(configuration)?;
        let all: Api<MutatingWebhookConfiguration> = Api::all(self.place.admin().await?);
        all.create(&PostParams::default(), &configuration).await?;
        Ok(())
    }

    pub async fn configuration(&self) -> anyhow::Result<MutatingWebhookConfiguration> {
        let all: Api<MutatingWebhookConfiguration> = Api::all(self.place.admin().await?);
        Ok(all.get(&self.name).await?)
    }

    /// The approver with its webhook; returns when API servers get answers from it.
    pub async fn approver(&self, more: &[&str]) -> anyhow::Result<Program> {
        let mut args = vec!["--webhook-listen", TO_ALL];
        args.extend(more);
        let program = self.place.approver_with(&args)?;
        self.front.lead_to(&[program.webhook().await?]);
        self.answers(&program).await?;
        Ok(program)
    }

    /// Returns when this replica is one that API servers get answers from.
    pub async fn answers(&self, program: &Program) -> anyhow::Result<()> {
        let http = program.http().await?;
        eventually("/readyz/webhook", PATIENCE, || async {
            let answer = http.get("/readyz/webhook").await?;
            ensure!(answer.status == 200, "{}", answer.body);
            Ok(())
        })
        .await
        .with_context(|| program.log())?;
        // The API server's own watch has to bring it what is to be trusted.
        eventually("an admission", PATIENCE, || async {
            self.try_it("probe").await.map(drop)
        })
        .await
        .with_context(|| program.log())
    }

    /// Makes a Firewall as a dry run, and returns it as it would have been made.
    pub async fn try_it(&self, suffix: &str) -> anyhow::Result<DynamicObject> {
        self.create(suffix, TEMPLATE, true).await
    }

    pub async fn make(&self, suffix: &str, userdata: &str) -> anyhow::Result<DynamicObject> {
        self.create(suffix, userdata, false).await
    }

    async fn create(&self, suffix: &str, userdata: &str, dry_run: bool) -> anyhow::Result<DynamicObject> {
        let firewall: DynamicObject = serde_json::from_value(self.firewall(suffix, userdata))?;
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        Ok(self.firewalls().await?.create(&params, &firewall).await?)
    }

    /// As firewall-controller-manager makes it.
    pub fn firewall(&self, suffix: &str, userdata: &str) -> Value {
        let namespace = self.place.namespace();
        json!({
            "apiVersion": "firewall.metal-stack.io/v2",
            "kind": "Firewall",
            "metadata": {"name": self.name_of(suffix), "namespace": namespace, "finalizers": [FINALIZER]},
            "spec": {
                "image": "firewall-ubuntu-3.0", "networks": ["internet"], "partition": "p", "project": "x",
                "size": "n1-medium-x86", "userdata": userdata,
            },
            "distance": 0,
        })
    }

    pub fn name_of(&self, suffix: &str) -> String {
        format!("{}-firewall-{suffix}", self.place.namespace())
    }

    pub async fn firewalls(&self) -> anyhow::Result<Api<DynamicObject>> {
        let kind = GroupVersionKind::gvk(names::API_GROUP, "v2", "Firewall");
        let resource = ApiResource::from_gvk(&kind);
        let client = self.place.admin().await?;
        Ok(Api::namespaced_with(client, self.place.namespace(), &resource))
    }

    /// How often a program's webhook was asked, by operation and answer.
    pub async fn asked(&self, program: &Program, operation: &str) -> anyhow::Result<u64> {
        let text = program.http().await?.get("/metrics").await?.body;
        let of = format!("operation=\"{operation}\"");
        let lines = text
            .lines()
            .filter(|line| line.starts_with("firewall_approver_admissions_total") && line.contains(&of));
        lines
            .map(|line| {
                line.rsplit(' ')
                    .next()
                    .unwrap_or_default()
                    .parse::<u64>()
                    .context("no number")
            })
            .sum()
    }
}

/// Asks a replica as an API server does, at this path; the status and what follows.
pub async fn ask(address: SocketAddr, ca: &[u8], path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let mut roots = rustls::RootCertStore::empty();
    for der in CertificateDer::pem_slice_iter(ca) {
        roots.add(der?)?;
    }
    let config = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect(address.ip().into(), stream)
        .await?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // Whoever answers before it has read everything may cut it off.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer)?;
    let status = answer
        .get(9..12)
        .with_context(|| format!("no status: {answer}"))?
        .parse()?;
    Ok((status, answer))
}

pub fn userdata(firewall: &DynamicObject) -> &str {
    firewall.data["spec"]["userdata"].as_str().unwrap_or_default()
}

/// A second is what a log, a scrape or a watch of an API server may be late.
pub const A_SECOND: Duration = Duration::from_secs(1);
