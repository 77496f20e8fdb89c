//! Rolls of the two CAs in the steps in which a real control plane does them. Each step returns when
//! it has taken effect, so that a test may look between any two.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::DeleteParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, KeyPair};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::client::{User, client_from, kubeconfig};
use super::cluster::Cluster;
use super::eventually;
use super::pki::Authority;

/// `add`, `switch_signer`, `drop_old`, in this order; or `replace`.
pub struct ClientCaRoll<'a> {
    cluster: &'a Cluster,
    old: Arc<Authority>,
    new: Arc<Authority>,
}

/// `add`, `switch_signer`, `drop_old`, in this order.
pub struct ServerCaRoll<'a> {
    cluster: &'a Cluster,
    new: Arc<Authority>,
}

impl Cluster {
    /// Nothing happens before `add`.
    pub fn roll_client_ca(&self) -> anyhow::Result<ClientCaRoll<'_>> {
        let old = self.client_ca();
        Ok(ClientCaRoll {
            cluster: self,
            old,
            new: Arc::new(Authority::new("client-ca")?),
        })
    }

    /// Nothing happens before `add`.
    pub fn roll_server_ca(&self) -> anyhow::Result<ServerCaRoll<'_>> {
        Ok(ServerCaRoll {
            cluster: self,
            new: Arc::new(Authority::new("server-ca")?),
        })
    }
}

impl ClientCaRoll<'_> {
    /// The server trusts the new CA and the old one.
    pub async fn add(&self) -> anyhow::Result<()> {
        self.cluster.trust().client_bundle.insert(0, self.new.certificate());
        self.cluster.write_trust()?;
        let client = self.client_of(&self.new).await?;
        eventually("the new client CA is trusted", EFFECT, || version(&client)).await
    }

    /// New certificates come from the new CA.
    pub async fn switch_signer(&self) -> anyhow::Result<()> {
        self.cluster.trust().client = self.new.clone();
        self.cluster.write_trust()?;
        if !self.cluster.options.signer {
            return Ok(());
        }
        eventually("the new client CA signs", EFFECT, || self.signs()).await
    }

    /// The server refuses what the old CA signed.
    pub async fn drop_old(&self) -> anyhow::Result<()> {
        self.cluster.trust().client_bundle = vec![self.new.certificate()];
        self.cluster.write_trust()?;
        let client = self.client_of(&self.old).await?;
        eventually("the old client CA is refused", EFFECT, || async {
            match version(&client).await {
                Ok(()) => bail!("it is still trusted"),
                Err(error) => {
                    let refused = error.downcast_ref::<kube::Error>();
                    ensure!(
                        matches!(refused, Some(kube::Error::Api(status)) if status.code == 401),
                        error
                    );
                    Ok(())
                }
            }
        })
        .await
    }

    /// All at once, with no time in which both are trusted.
    pub async fn replace(&self) -> anyhow::Result<()> {
        self.cluster.trust().client = self.new.clone();
        self.drop_old().await
    }

    async fn client_of(&self, authority: &Authority) -> anyhow::Result<Client> {
        let pair = authority.sign_client("harness", &[])?;
        client_from(&self.cluster.kubeconfig_with_certificate(&pair)).await
    }

    async fn signs(&self) -> anyhow::Result<()> {
        static PROBES: AtomicU32 = AtomicU32::new(0);
        let name = format!("harness-{}", PROBES.fetch_add(1, Ordering::Relaxed));
        let request = CertificateParams::default()
            .serialize_request(&KeyPair::generate()?)?
            .pem()?;
        let certificate = self.cluster.sign(&name, &request).await?;
        let requests: Api<CertificateSigningRequest> = Api::all(self.cluster.client().await?);
        requests.delete(&name, &DeleteParams::default()).await?;
        ensure!(signed_by(&certificate, &self.new)?, "the old one still signs");
        Ok(())
    }
}

impl ServerCaRoll<'_> {
    /// The new CA is published before the old one; the server still shows the old one's certificate.
    pub async fn add(&self) -> anyhow::Result<()> {
        self.cluster.trust().server_bundle.insert(0, self.new.certificate());
        self.publish().await
    }

    /// The server shows a certificate of the new CA.
    pub async fn switch_signer(&self) -> anyhow::Result<()> {
        self.cluster.trust().server = self.new.clone();
        self.cluster.write_serving_certificate()?;
        let (url, ca) = (self.cluster.server_url(), self.new.certificate());
        let text = kubeconfig("harness", &url, &ca, &User::Token("none"));
        eventually("the server's certificate is of the new CA", EFFECT, || async {
            // A new client each time: a connection that is open shows the old certificate for ever.
            match version(&client_from(&text).await?).await {
                Err(error) if !is_answer(&error) => Err(error),
                _ => Ok(()),
            }
        })
        .await
    }

    /// The old CA is not published any more.
    pub async fn drop_old(&self) -> anyhow::Result<()> {
        self.cluster.trust().server_bundle = vec![self.new.certificate()];
        self.publish().await
    }

    /// The controller-manager reads `--root-ca-file` at its start only.
    async fn publish(&self) -> anyhow::Result<()> {
        self.cluster.write_trust()?;
        self.cluster.stop_controller_manager().await;
        self.cluster.start_controller_manager().await
    }
}

/// A file that changed is seen at once, or at the latest by the poll once a minute.
const EFFECT: Duration = Duration::from_secs(90);

/// Open to everybody, but 401 for a credential that is not accepted.
async fn version(client: &Client) -> anyhow::Result<()> {
    client
        .request_text(http::Request::get("/version").body(Vec::new())?)
        .await?;
    Ok(())
}

/// Whether the server itself said no, which it can only after a handshake.
fn is_answer(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(_)))
}

fn signed_by(certificate: &str, authority: &Authority) -> anyhow::Result<bool> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).context("not a certificate")?;
    let certificate = pem.parse_x509().context("not a certificate")?;
    let (_, issuer) = X509Certificate::from_der(authority.der()).context("the CA cannot be read")?;
    Ok(certificate.verify_signature(Some(issuer.public_key())).is_ok())
}
