//! The access that an operator gave a program: a kubeconfig with everything that kubectl would take, or the pod's
//! ServiceAccount. Owns that a program which runs for years goes on when that file is written anew; whether the new one is
//! the right one is for the caller to say.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use contract::digest::sha256_hex;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::service_fn;

use crate::client::{ClientError, build};
use crate::failure::Failure;

#[derive(Debug, Error)]
pub enum OperatorError {
    #[error("kubeconfig {path}: {problem}")]
    Kubeconfig { path: String, problem: String },
    #[error(
        "no --kubeconfig was given and this is not a pod with a ServiceAccount ({0}): give --kubeconfig, or run in the cluster"
    )]
    InCluster(String),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// One client for a program's whole life, over whatever access the operator gives at the time.
pub struct Operator {
    /// In a pod there is none: its token and CAs are files that the client reads again by itself, each minute.
    path: Option<PathBuf>,
    now: Arc<RwLock<Client>>,
    /// Of what is in use.
    digest: RwLock<String>,
    /// Of what was found unfit, and when.
    refused: RwLock<Option<(String, Instant)>>,
}

/// What was wrong with it may be mended in the cluster; to find that out costs it something.
const REFUSED_AGAIN: Duration = Duration::from_secs(300);

/// What the operator wrote since.
pub struct Candidate {
    pub client: Client,
    digest: String,
}

impl Operator {
    pub async fn connect(path: Option<&Path>) -> Result<Self, OperatorError> {
        let (client, digest) = match path {
            None => {
                let config = Config::incluster().map_err(|e| OperatorError::InCluster(e.to_string()))?;
                (made("the pod's ServiceAccount", config)?, String::new())
            }
            Some(path) => {
                let (file, digest) = read(path)?;
                (from_file(path, file).await?, digest)
            }
        };
        Ok(Self {
            path: path.map(Path::to_owned),
            now: Arc::new(RwLock::new(client)),
            digest: RwLock::new(digest),
            refused: RwLock::new(None),
        })
    }

    /// Each request goes by the access of then; a watch that runs ends with its connection and comes back by the new one.
    pub fn client(&self) -> Client {
        let now = Arc::clone(&self.now);
        let service = service_fn(move |request: http::Request<Body>| {
            let client = now.read().unwrap_or_else(PoisonError::into_inner).clone();
            async move { client.send(request).await }
        });
        Client::new(service, "default")
    }

    /// What is there now, if that is not what is in use.
    pub async fn changed(&self) -> Result<Option<Candidate>, OperatorError> {
        let Some(path) = &self.path else { return Ok(None) };
        let (file, digest) = read(path)?;
        if *self.digest.read().unwrap_or_else(PoisonError::into_inner) == digest {
            return Ok(None);
        }
        let refused = self.refused.read().unwrap_or_else(PoisonError::into_inner).clone();
        if refused.is_some_and(|(of, at)| of == digest && at.elapsed() < REFUSED_AGAIN) {
            return Ok(None);
        }
        let client = from_file(path, file).await?;
        Ok(Some(Candidate { client, digest }))
    }

    /// Not looked at again for a while, unless it is written anew.
    pub fn refuse(&self, candidate: Candidate) {
        let refused = Some((candidate.digest, Instant::now()));
        *self.refused.write().unwrap_or_else(PoisonError::into_inner) = refused;
    }

    pub fn switch(&self, candidate: Candidate) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = candidate.client;
        *self.digest.write().unwrap_or_else(PoisonError::into_inner) = candidate.digest;
    }
}

/// The file, and a digest of it and of the files that it names.
fn read(path: &Path) -> Result<(Kubeconfig, String), OperatorError> {
    let problem = |problem: String| OperatorError::Kubeconfig {
        path: path.display().to_string(),
        problem,
    };
    // The bytes first: if it is written in between, it is merely read once more.
    let mut bytes = std::fs::read(path).map_err(|e| problem(e.to_string()))?;
    let file = Kubeconfig::read_from(path).map_err(|e| problem(without_excerpt(&e)))?;
    let clusters = file.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref());
    let users = file.auth_infos.iter().filter_map(|user| user.auth_info.as_ref());
    let cas = clusters.filter_map(|cluster| Some(("certificate-authority", cluster.certificate_authority.as_ref()?)));
    let pairs = users.flat_map(|user| {
        let certificate = user
            .client_certificate
            .as_ref()
            .map(|name| ("client-certificate", name));
        let key = user.client_key.as_ref().map(|name| ("client-key", name));
        [certificate, key].into_iter().flatten()
    });
    for (field, name) in cas.chain(pairs) {
        // What stands there is not shown: where data was meant, it is the key itself.
        bytes.extend(std::fs::read(name).map_err(|e| problem(format!("the file that {field} names: {}", e.kind())))?);
    }
    Ok((file, sha256_hex(&bytes)))
}

/// The parser shows the lines around what it does not understand: of a kubeconfig that may be a token.
fn without_excerpt(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(parse) => match parse.location() {
            Some(at) => format!(
                "not a kubeconfig, or cut off: line {} cannot be read as YAML",
                at.line()
            ),
            None => "not a kubeconfig: it cannot be read as YAML".to_owned(),
        },
        KubeconfigError::LoadCertificateAuthority(_) => "its certificate-authority cannot be read".to_owned(),
        KubeconfigError::LoadClientCertificate(_) => "its client-certificate cannot be read".to_owned(),
        KubeconfigError::LoadClientKey(_) => "its client-key cannot be read".to_owned(),
        other => other.to_string(),
    }
}

async fn from_file(path: &Path, file: Kubeconfig) -> Result<Client, OperatorError> {
    let problem = |problem: String| OperatorError::Kubeconfig {
        path: path.display().to_string(),
        problem,
    };
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|e| problem(without_excerpt(&e)))?;
    if config.root_cert.as_ref().is_none_or(Vec::is_empty) && config.cluster_url.scheme_str() == Some("https") {
        // Without it the client would fall back to the operating system's CAs: whoever holds a public certificate for
        // that name could stand in for the seed.
        return Err(problem(
            "it has no certificate-authority (-data) for its cluster: add it".into(),
        ));
    }
    if config.accept_invalid_certs {
        return Err(problem(
            "it has insecure-skip-tls-verify: remove it and add the CA".into(),
        ));
    }
    made(&format!("kubeconfig {}", path.display()), config)
}

fn made(what: &str, config: Config) -> Result<Client, OperatorError> {
    build(config, None).map_err(|e| {
        OperatorError::Client(ClientError::Access {
            what: what.to_owned(),
            problem: Failure::of(what, &e).detail,
        })
    })
}
