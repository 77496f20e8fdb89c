//! The one constructor of clients. A client is made for one server, one set of CAs and one credential, and is thrown
//! away when any of them changes: a connection pool or a TLS session that outlives a certificate would go on as the
//! old identity.

use std::sync::Arc;

use contract::kubeconfig::{Credential, Kubeconfig};
use http::Uri;
use kube::client::{Body, ClientBuilder};
use kube::config::AuthInfo;
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use tokio::sync::watch;
use tower::layer::layer_fn;
use tower::{BoxError, service_fn};

use crate::connection;
use crate::count::Counted;
use crate::failure::Failure;
use crate::proxy::{self, Proxy};

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("{what}: {problem}")]
    Access { what: String, problem: String },
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
        Credential::TokenFile(path) => AuthInfo {
            token_file: Some(path.to_string_lossy().into_owned()),
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
    build(config, proxy::used()).map_err(|e| problem(Failure::of(what, &e).detail))
}

/// What every write asks right before it is sent.
#[derive(Clone)]
pub struct Gate {
    open: Arc<dyn Fn() -> bool + Send + Sync>,
    writes: Writes,
}

#[derive(Debug, Error)]
#[error("this replica does not lead: nothing is written")]
pub struct NotLeading;

impl Gate {
    pub fn new(writes: &Writes, open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self {
            open: Arc::new(open),
            writes: writes.clone(),
        }
    }

    /// A write that may be sent now, until it is dropped.
    fn enter(&self) -> Option<Write> {
        // In this order: whoever closes sees it, or it sees that it is closed.
        let write = self.writes.begin();
        (!write.0.borrow().closed && (self.open)()).then_some(write)
    }
}

/// The writes that are on their way, of however many clients.
#[derive(Clone, Default)]
pub struct Writes(Arc<watch::Sender<Going>>);

#[derive(Default)]
struct Going {
    count: usize,
    closed: bool,
}

impl Writes {
    fn begin(&self) -> Write {
        self.0.send_modify(|going| going.count += 1);
        Write(Arc::clone(&self.0))
    }

    /// No other is sent from here on; ends when those that are on their way have their answers.
    pub async fn close(&self) {
        self.0.send_modify(|going| going.closed = true);
        // Its sender is in our hands.
        let _ = self.0.subscribe().wait_for(|going| going.count == 0).await;
    }
}

struct Write(Arc<watch::Sender<Going>>);

impl Drop for Write {
    fn drop(&mut self) {
        self.0.send_modify(|going| going.count -= 1);
    }
}

/// A client that sends nothing but questions while the gate is closed.
pub fn held(client: Client, gate: Gate) -> Client {
    let service = service_fn(move |request: http::Request<Body>| {
        let asks = matches!(*request.method(), http::Method::GET | http::Method::HEAD);
        let write = if asks { None } else { gate.enter() };
        let client = client.clone();
        async move {
            if !asks && write.is_none() {
                return Err(BoxError::from(NotLeading));
            }
            let answer = client.send(request).await.map_err(BoxError::from);
            drop(write);
            answer
        }
    });
    Client::new(service, "default")
}

pub(crate) fn build(mut config: Config, proxy: Option<&Proxy>) -> kube::Result<Client> {
    // A call that a busy server refuses comes back at once; who asked knows better when to ask again.
    config.default_retry = false;
    if config.proxy_url.is_none() {
        return connection::client(&config, proxy);
    }
    // An operator's own kubeconfig, as kubectl takes it.
    config.connect_timeout = Some(connection::CONNECT);
    let server = config.cluster_url.to_string();
    let counted = layer_fn(|inner| Counted {
        inner,
        server: server.clone(),
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&counted).build())
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn while_another_leads_nothing_is_sent_but_questions() {
        let sent = Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = Arc::clone(&sent);
        let server = service_fn(move |request: http::Request<Body>| {
            log.lock().unwrap().push(request.method().clone());
            async { Ok::<_, BoxError>(http::Response::new(Body::empty())) }
        });
        let leads = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&leads);
        let client = held(
            Client::new(server, "default"),
            Gate::new(&Writes::default(), move || asked.load(Ordering::Relaxed)),
        );
        let send = async |method: http::Method| {
            let request = http::Request::builder().method(method).uri("/");
            client.send(request.body(Body::empty()).unwrap()).await
        };
        let writes = [
            http::Method::POST,
            http::Method::PUT,
            http::Method::PATCH,
            http::Method::DELETE,
        ];
        for method in &writes {
            let error = send(method.clone()).await.unwrap_err();
            assert!(
                Failure::of("write", &error).to_string().contains("does not lead"),
                "{error}"
            );
        }
        assert!(sent.lock().unwrap().is_empty());
        send(http::Method::GET).await.unwrap();
        leads.store(true, Ordering::Relaxed);
        for method in &writes {
            send(method.clone()).await.unwrap();
        }
        assert_eq!(sent.lock().unwrap().len(), 1 + writes.len());
    }

    #[tokio::test]
    async fn what_is_on_its_way_is_waited_for_and_nothing_follows_it() {
        let answer = Arc::new(tokio::sync::Notify::new());
        let waiting = Arc::clone(&answer);
        let server = service_fn(move |_: http::Request<Body>| {
            let waiting = Arc::clone(&waiting);
            async move {
                waiting.notified().await;
                Ok::<_, BoxError>(http::Response::new(Body::empty()))
            }
        });
        let writes = Writes::default();
        let client = held(Client::new(server, "default"), Gate::new(&writes, || true));
        let put = || {
            let request = http::Request::builder().method(http::Method::PUT).uri("/");
            let client = client.clone();
            async move { client.send(request.body(Body::empty()).unwrap()).await }
        };
        // Whoever gave up waits for nobody, and nobody for him.
        let short = Duration::from_millis(5);
        tokio::time::timeout(short, put()).await.unwrap_err();
        let first = tokio::spawn(put());
        while writes.0.borrow().count == 0 {
            tokio::task::yield_now().await;
        }
        let mut closed = std::pin::pin!(writes.close());
        tokio::time::timeout(short, &mut closed).await.unwrap_err();
        let late = put().await.unwrap_err();
        assert!(
            Failure::of("write", &late).to_string().contains("does not lead"),
            "{late}"
        );
        answer.notify_one();
        first.await.unwrap().unwrap();
        tokio::time::timeout(Duration::from_secs(5), closed).await.unwrap();
    }
}
