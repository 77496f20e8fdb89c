//! Connections to an API server: directly or through a proxy, how long one may be silent before it counts as dead, and
//! how old it may become. A server that moves takes its name along: whoever holds on to a connection stays behind.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use http::{Request, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::layer::layer_fn;
use tower::util::{BoxCloneSyncService, option_layer};
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::count::Counted;
use crate::proxy::{self, Proxy};

/// For the address, a proxy and TLS together.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);
/// What was sent has to be acknowledged within this time, and a watch that is silent is asked whether its peer lives: one
/// that packets do not come through any more is over after it.
const SILENT: Duration = Duration::from_secs(20);
const ASKED_AFTER: Duration = Duration::from_secs(10);
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// No answer begins later, of a watch neither.
const ANSWER: Duration = Duration::from_secs(30);
/// A new request makes a new connection after this time: by then a name that leads elsewhere is followed, though the old
/// address answers still.
const OLDEST: Duration = Duration::from_secs(30);

#[derive(Debug, Error)]
enum ConnectionError {
    #[error("no connection within {} s", CONNECT.as_secs())]
    Connect,
    #[error("no answer within {} s", ANSWER.as_secs())]
    Answer,
    #[error("through the proxy {proxy}, which has to allow CONNECT there, and this user and password")]
    Proxy { proxy: String, source: BoxError },
}

type Way = BoxCloneSyncService<Uri, TokioIo<TcpStream>, io::Error>;

/// A client of a server that no kubeconfig names a proxy for.
pub(crate) fn client(config: &Config, proxy: Option<&Proxy>) -> kube::Result<Client> {
    let https = config.rustls_https_connector_with_connector(way(&config.cluster_url, proxy))?;
    let connector = service_fn(move |server: Uri| {
        let connected = timeout(CONNECT, https.clone().oneshot(server));
        async move {
            match connected.await {
                Ok(connected) => connected,
                Err(_) => Err(BoxError::from(ConnectionError::Connect)),
            }
        }
        .boxed()
    });
    let pool = move || legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector.clone());
    let young = Arc::new(Mutex::new((pool(), Instant::now())));
    let send = service_fn(move |request: Request<Body>| {
        let mut young = young.lock().unwrap_or_else(PoisonError::into_inner);
        if young.1.elapsed() > OLDEST {
            // What is under way in the old one goes on there.
            *young = (pool(), Instant::now());
        }
        let answer = timeout(ANSWER, young.0.request(request));
        async move {
            match answer.await {
                Ok(answer) => answer.map_err(BoxError::from),
                Err(_) => Err(BoxError::from(ConnectionError::Answer)),
            }
        }
    });
    let send = config.extra_headers_layer()?.layer(send);
    let send = option_layer(config.auth_layer()?).layer(send);
    let send = config.base_uri_layer().layer(send);
    let server = config.cluster_url.to_string();
    let counted = layer_fn(|inner| Counted {
        inner,
        server: server.clone(),
    });
    Ok(ClientBuilder::new(send, config.default_namespace.clone())
        .with_layer(&counted)
        .build())
}

/// A connection by the same way, for who does without a client. It blocks.
pub(crate) async fn socket(server: &Uri) -> io::Result<std::net::TcpStream> {
    let connected = timeout(CONNECT, way(server, proxy::used()).oneshot(server.clone())).await;
    let connected = connected.map_err(|_| io::Error::other(ConnectionError::Connect))??;
    let socket = connected.into_inner().into_std()?;
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn way(server: &Uri, proxy: Option<&Proxy>) -> Way {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Spread over all addresses of a name.
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(ASKED_AFTER));
    tcp.set_keepalive_interval(Some(ASKED_EVERY));
    tcp.set_tcp_user_timeout(Some(SILENT));
    let Some((proxy, through)) = proxy.and_then(|proxy| Some((proxy, proxy.toward(server)?))) else {
        return BoxCloneSyncService::new(tcp.map_err(io::Error::other));
    };
    let mut tunnel = Tunnel::new(through.uri().clone(), tcp);
    if let Some(auth) = through.basic_auth() {
        tunnel = tunnel.with_auth(auth.clone());
    }
    let proxy = proxy.to_string();
    BoxCloneSyncService::new(tunnel.map_err(move |error| {
        io::Error::other(ConnectionError::Proxy {
            proxy,
            source: error.into(),
        })
    }))
}
