//! What several of these tests ask of a cluster or a machine.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use contract::cert::{Issued, read_certificate};
use contract::kubeconfig::{Credential, Kubeconfig};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use secrecy::ExposeSecret;
use tests::harness::{client_from, eventually};
use tests::programs::Machine;
use tests::world::Place;

/// A client from a kubeconfig on a machine, as its consumer would make it.
pub(crate) async fn client_of(kubeconfig: &Path) -> anyhow::Result<Client> {
    client_from(&fs::read_to_string(kubeconfig)?).await
}

/// The certificate that the machine's kubeconfig for the seed points to.
pub(crate) fn certificate_of(machine: &Machine) -> anyhow::Result<Issued> {
    let text = fs::read_to_string(machine.seed_kubeconfig())?;
    let kubeconfig = Kubeconfig::read_local("the machine's kubeconfig", &text)?;
    let Credential::CertificateFiles { certificate, .. } = kubeconfig.credential else {
        anyhow::bail!("the machine's kubeconfig has no certificate file");
    };
    Ok(read_certificate(&fs::read_to_string(certificate)?)?)
}

pub(crate) fn token_of(kubeconfig: &str) -> anyhow::Result<String> {
    match Kubeconfig::read_operators("a kubeconfig", kubeconfig)?.credential {
        Credential::Token(token) => Ok(token.expose_secret().to_owned()),
        other => anyhow::bail!("no token but {other:?}"),
    }
}

/// Every request for this firewall, the oldest first.
pub(crate) async fn requests_for(world: &Place<'_>, firewall: &str) -> anyhow::Result<Vec<CertificateSigningRequest>> {
    let all: Api<CertificateSigningRequest> = Api::all(world.admin().await?);
    let mut found: Vec<_> = all.list(&ListParams::default()).await?.items;
    found.retain(|csr| contract::csr::read(&csr.spec.request.0).is_ok_and(|read| read.firewall.as_str() == firewall));
    found.sort_by_key(|csr| (csr.creation_timestamp().map(|time| time.0), csr.name_any()));
    Ok(found)
}

pub(crate) fn condition(csr: &CertificateSigningRequest, type_: &str) -> Option<(String, String)> {
    let conditions = csr.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((
        found.reason.clone().unwrap_or_default(),
        found.message.clone().unwrap_or_default(),
    ))
}

/// Waits for another certificate than this one to be in use.
pub(crate) async fn renewed(machine: &Machine, old: &Issued, limit: Duration) -> anyhow::Result<Issued> {
    eventually("a new certificate in use", limit, || async {
        let now = certificate_of(machine)?;
        ensure!(now.serial != old.serial, "it is still {}", old.serial);
        Ok(now)
    })
    .await
    .with_context(|| machine.log())
}

/// Whether the seed refuses this credential, within the time that its caches take.
pub(crate) async fn is_refused(kubeconfig: &str, limit: Duration) -> anyhow::Result<()> {
    let client = client_from(kubeconfig).await?;
    let reviews: Api<k8s_openapi::api::authentication::v1::SelfSubjectReview> = Api::all(client);
    eventually("a credential that is refused", limit, || async {
        match reviews
            .create(&kube::api::PostParams::default(), &Default::default())
            .await
        {
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(()),
            Ok(review) => anyhow::bail!("it is {:?}", review.status),
            Err(error) => anyhow::bail!("{error}"),
        }
    })
    .await
}

/// Who a kubeconfig makes its holder.
pub(crate) async fn user_of(client: &Client) -> anyhow::Result<String> {
    let reviews: Api<k8s_openapi::api::authentication::v1::SelfSubjectReview> = Api::all(client.clone());
    let review = reviews
        .create(&kube::api::PostParams::default(), &Default::default())
        .await?;
    review
        .status
        .and_then(|status| status.user_info?.username)
        .context("no user")
}
