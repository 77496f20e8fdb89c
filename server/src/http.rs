//! The one HTTP listener: `/healthz`, `/readyz` and `/metrics`, for whoever reaches the pod. It tells no secret and
//! changes nothing; what it owns is that nobody can hold it up.
//!
//! A connection carries one request and lives for seconds, and of too many the oldest goes: whoever opens many without
//! asking anything, or asks byte by byte, holds up himself only.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

use crate::core::health::{self, Check, Health, Question};
use crate::health::Served;
use crate::metrics;

/// So many connections at a time; each may hold as much of a request.
const CONNECTIONS_MAX: usize = 256;
const HEADERS_MAX: usize = 64;
const BUFFER_MAX: usize = 16 * 1024;
/// Nobody has to send any.
const BODY_MAX: usize = 1024;
const HEADERS_WITHIN: Duration = Duration::from_secs(5);
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
const CONNECTION_LIFE: Duration = Duration::from_secs(15);
/// When there are no file descriptors, for example.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug, Error)]
pub enum HttpError {
    #[error("--listen {0}: {1}: give an address of this machine and a port that nobody else listens at")]
    Listen(SocketAddr, std::io::Error),
}

/// Listens from here on; the task is what serves. Once it is told to stop, it says so to whoever asks whether it is ready.
pub async fn start(
    address: SocketAddr,
    served: Arc<Served>,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()>, HttpError> {
    let failed = |e| HttpError::Listen(address, e);
    let listener = bind(address).await.map_err(failed)?;
    let listen = listener.local_addr().map_err(failed)?;
    tracing::info!(%listen, "health and metrics are served");
    let router = router(Asked::of(served, stop));
    Ok(accept(listener, "health and metrics", move |stream| {
        serve(stream, router.clone(), CONNECTION_LIFE)
    }))
}

/// What answers come from.
#[derive(Clone)]
struct Asked {
    served: Arc<Served>,
    stop: CancellationToken,
    scrapes: Arc<Semaphore>,
}

impl Asked {
    fn of(served: Arc<Served>, stop: CancellationToken) -> Self {
        let scrapes = Arc::new(Semaphore::new(1));
        Self { served, stop, scrapes }
    }
}

/// All addresses are those of IPv4 where a machine has no IPv6.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        bound => bound,
    }
}

fn router(asked: Asked) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/healthz/{*only}", get(healthz))
        .route("/readyz", get(readyz))
        .route("/readyz/{*only}", get(readyz))
        .route("/metrics", get(scrape))
        .layer(RequestBodyLimitLayer::new(BODY_MAX))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::SERVICE_UNAVAILABLE,
            ANSWERED_WITHIN,
        ))
        .with_state(asked)
}

/// Serves each connection, up to as many as there may be.
pub async fn accept<F>(listener: TcpListener, what: &'static str, serve: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    let mut failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "no connection to {what} is accepted; tried again");
                }
                failing = true;
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        failing = false;
        if connections.len() >= CONNECTIONS_MAX {
            connections.retain(|connection| !connection.is_finished());
        }
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(tokio::spawn(serve(stream)).abort_handle());
    }
}

pub async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, life: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Whoever broke it off knows, and nobody else is concerned.
    let _ = tokio::time::timeout(life, connection).await;
}

type Pairs = Query<Vec<(String, String)>>;

async fn healthz(only: Option<Path<String>>, Query(query): Pairs) -> Response {
    answer("healthz", &Served::alive(), only, query)
}

async fn readyz(State(asked): State<Asked>, only: Option<Path<String>>, Query(query): Pairs) -> Response {
    let mut checks = asked.served.ready();
    asked.served.tell(&checks);
    if asked.stop.is_cancelled() {
        checks.insert(
            0,
            Check::new("stop", Health::Away("it was told to stop and is ending".into())),
        );
    }
    answer("readyz", &checks, only, query)
}

fn answer(endpoint: &str, checks: &[Check], only: Option<Path<String>>, query: Vec<(String, String)>) -> Response {
    let mut question = Question {
        only: only.map(|Path(only)| only),
        ..Question::default()
    };
    for (key, value) in query {
        match key.as_str() {
            "verbose" => question.verbose = true,
            "exclude" => question.exclude.push(value),
            _ => {}
        }
    }
    let health::Answer { status, body } = health::answer(endpoint, checks, &question);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response(status, "text/plain; charset=utf-8", body)
}

/// One at a time, and where nobody else waits for it: of a large fleet it takes a while, and whoever asks may be many.
async fn scrape(State(Asked { served, scrapes, .. }): State<Asked>) -> Response {
    let Ok(turn) = scrapes.acquire_owned().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let text = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        served.metrics.text(&served.standings())
    });
    match text.await {
        Ok(Ok(text)) => response(StatusCode::OK, metrics::CONTENT_TYPE, text),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, Body::from(body)).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn whoever_does_not_read_the_answer_holds_a_connection_for_its_life_only() {
        // The answer does not fit into what is on the way.
        let (mut client, server) = tokio::io::duplex(64);
        let life = Duration::from_millis(200);
        let asked = Asked::of(Arc::new(Served::new()), CancellationToken::new());
        let served = tokio::spawn(serve(server, router(asked), life));
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        client.write_all(request).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), served)
            .await
            .expect("it is still open")
            .unwrap();
    }
}
