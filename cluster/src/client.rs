//! The one constructor of clients. A client is made for one server, one set of CAs and one credential, and is thrown
//! away when any of them changes: a connection pool or a TLS session that outlives a certificate would go on as the
//! old identity.

use std::path::Path;
use std::time::Duration;

use contract::kubeconfig::{Credential, Kubeconfig};
use http::Uri;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig as StandardKubeconfig};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("{what}: {problem}")]
    Access { what: String, problem: String },
    #[error("kubeconfig {path}: {problem}")]
    OperatorKubeconfig { path: String, problem: String },
    #[error(
        "no --kubeconfig was given and this is not a pod with a ServiceAccount ({0}): give --kubeconfig, or run in the cluster"
    )]
    InCluster(String),
}

/// Makes aws-lc-rs the process's crypto library. The first thing that every `main` does.
pub fn install_crypto() {
    // An error means that it was installed before, which is what we want.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// A client for what a kubeconfig of ours says. `what` names it in errors.
pub fn connect(what: &str, kubeconfig: &Kubeconfig) -> Result<Client, ClientError> {
    let problem = |problem: String| ClientError::Access {
        what: what.to_owned(),
        problem,
    };
    let server: Uri = kubeconfig
        .server
        .parse()
        .map_err(|e| problem(format!("server {}: {e}", kubeconfig.server)))?;
    let mut config = Config::new(server);
    config.default_namespace = kubeconfig.namespace.clone();
    config.tls_server_name = kubeconfig.tls_server_name.clone();
    config.root_cert = Some(certificates(kubeconfig.ca.pem()).map_err(&problem)?);
    config.auth_info = match &kubeconfig.credential {
        Credential::None => AuthInfo::default(),
        Credential::Token(token) => AuthInfo {
            token: Some(token.clone()),
            ..AuthInfo::default()
        },
        Credential::Certificate {
            certificate_pem,
            key_pem,
        } => AuthInfo {
            client_certificate_data: Some(base64(certificate_pem.as_bytes())),
            client_key_data: Some(SecretString::from(base64(key_pem.expose_secret().as_bytes()))),
            ..AuthInfo::default()
        },
        Credential::CertificateFiles { certificate, key } => AuthInfo {
            client_certificate: Some(certificate.to_string_lossy().into_owned()),
            client_key: Some(key.to_string_lossy().into_owned()),
            ..AuthInfo::default()
        },
    };
    build(config).map_err(|e| problem(Failure::of(what, &e).detail))
}

/// A client from the operator's own kubeconfig, with everything that kubectl would take, or the pod's ServiceAccount.
/// The second value is the server's address as that access names it.
pub async fn operator(path: Option<&Path>) -> Result<(Client, String), ClientError> {
    let config = match path {
        None => Config::incluster().map_err(|e| ClientError::InCluster(e.to_string()))?,
        Some(path) => {
            let problem = |problem: String| ClientError::OperatorKubeconfig {
                path: path.display().to_string(),
                problem,
            };
            let file = StandardKubeconfig::read_from(path).map_err(|e| problem(e.to_string()))?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|e| problem(e.to_string()))?;
            if config.root_cert.as_ref().is_none_or(Vec::is_empty) && config.cluster_url.scheme_str() == Some("https") {
                // Without it the client would fall back to the operating system's CAs: whoever holds a public
                // certificate for that name could stand in for the seed.
                return Err(problem(
                    "it has no certificate-authority (-data) for its cluster: add it".into(),
                ));
            }
            if config.accept_invalid_certs {
                return Err(problem(
                    "it has insecure-skip-tls-verify: remove it and add the CA".into(),
                ));
            }
            config
        }
    };
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let what = path.map_or("the pod's ServiceAccount".to_owned(), |p| {
        format!("kubeconfig {}", p.display())
    });
    let client = build(config).map_err(|e| ClientError::Access {
        what: what.clone(),
        problem: Failure::of(&what, &e).detail,
    })?;
    Ok((client, server))
}

fn build(mut config: Config) -> kube::Result<Client> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // A call that a busy server refuses comes back at once; who asked knows better when to ask again.
    config.default_retry = false;
    Client::try_from(config)
}

fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|der| der.map(|der| der.to_vec()))
        .collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err("it has no CA certificate".into()),
        Err(e) => Err(format!("its CA cannot be read: {e}")),
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
