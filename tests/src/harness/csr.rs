//! A certificate by way of the API, approved by the admin: how a test gets one where the approver is not
//! what is tested, and how a roll sees which CA signs.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
    CertificateSigningRequestStatus,
};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::cluster::Cluster;
use super::eventually;

impl Cluster {
    /// Creates, approves and waits for the certificate (PEM). `request` is PEM as well.
    pub async fn sign(&self, name: &str, request: &str) -> anyhow::Result<String> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client().await?);
        let object = CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                request: ByteString(request.as_bytes().to_vec()),
                signer_name: "kubernetes.io/kube-apiserver-client".to_owned(),
                usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        };
        let mut object = requests.create(&PostParams::default(), &object).await?;
        object.status = Some(approved());
        requests
            .replace_subresource("approval", name, &PostParams::default(), &object)
            .await?;
        eventually(&format!("the certificate of {name}"), SIGNED, || async {
            let status = requests.get(name).await?.status.unwrap_or_default();
            let certificate = status.certificate.context("it is approved, but not signed")?;
            Ok(String::from_utf8(certificate.0)?)
        })
        .await
    }
}

const SIGNED: Duration = Duration::from_secs(20);

fn approved() -> CertificateSigningRequestStatus {
    let condition = CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some("Harness".to_owned()),
        ..CertificateSigningRequestCondition::default()
    };
    CertificateSigningRequestStatus {
        conditions: Some(vec![condition]),
        ..CertificateSigningRequestStatus::default()
    }
}
