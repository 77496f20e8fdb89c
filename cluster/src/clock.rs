//! How far our clock is off by a server's Date header, and the time of a server whose certificate is outside its validity by our clock. Chain and name are verified as always,
//! only at a time at which the certificate was valid; no credential is sent, and nothing is believed but the Date.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use contract::kubeconfig::CaBundle;
use http::Uri;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;

use crate::api::call;
use crate::connection;
use crate::failure::{Class, Failure};

const TIMEOUT: Duration = Duration::from_secs(5);
/// All headers of an answer have less.
const HEADERS_MAX: usize = 16 * 1024;
/// A chain has few certificates, and each of them may be over.
const TRIES: usize = 4;

#[derive(Debug, Error)]
pub enum ClockError {
    #[error("{0}: not an address of a server")]
    Address(String),
    #[error("{server}: {problem}")]
    Connection { server: String, problem: String },
    #[error("{0}: the answer has no Date")]
    NoDate(String),
}

/// How far our clock is ahead of the server's, in seconds. A server whose certificate fails by time only is asked once more, for its time and without any credential.
pub async fn measure(
    client: &Client,
    whose: &str,
    server: &str,
    tls_server_name: Option<&str>,
    ca: &CaBundle,
) -> Result<i64, Failure> {
    let what = || format!("ask {whose} for its time (GET /version)");
    let failed = |class, detail: String| Failure {
        what: what(),
        class,
        detail,
    };
    let request = http::Request::get("/version")
        .body(Body::empty())
        .map_err(|e| failed(Class::Misconfigured, e.to_string()))?;
    let before = Timestamp::now();
    let date = match call(what(), client.send(request)).await {
        Ok(answer) => {
            let date = answer.headers().get(http::header::DATE);
            date.and_then(|date| date.to_str().ok()).map(str::to_owned)
        }
        Err(failure) if failure.is(Class::UntrustedTime) => {
            let date = server_date(server, tls_server_name, ca).await;
            Some(date.map_err(|e| failed(Class::UntrustedTime, e.to_string()))?)
        }
        Err(failure) => return Err(failure),
    };
    let half = before.duration_until(Timestamp::now()) / 2;
    date.and_then(|date| skew(before, half, &date))
        .ok_or_else(|| failed(Class::Misconfigured, "the answer has no Date that can be read".into()))
}

/// The Date header of a server's answer to anybody.
pub async fn server_date(server: &str, tls_server_name: Option<&str>, ca: &CaBundle) -> Result<String, ClockError> {
    let (server, name, ca) = (server.to_owned(), tls_server_name.map(str::to_owned), ca.clone());
    let failed = server.clone();
    let uri: Uri = server.parse().map_err(|_| ClockError::Address(server.clone()))?;
    let unreached = |e: std::io::Error| ClockError::Connection {
        server: server.clone(),
        problem: e.to_string(),
    };
    // By the way that every client takes.
    let socket = connection::socket(&uri).await.map_err(unreached)?;
    // Two round trips on a connection of its own: no reason for an asynchronous stack beside the one of the client.
    tokio::task::spawn_blocking(move || ask(&server, &uri, name, &ca, socket))
        .await
        .unwrap_or_else(|e| {
            Err(ClockError::Connection {
                server: failed,
                problem: e.to_string(),
            })
        })
}

fn ask(
    server: &str,
    uri: &Uri,
    tls_server_name: Option<String>,
    ca: &CaBundle,
    mut socket: TcpStream,
) -> Result<String, ClockError> {
    let problem = |e: &dyn std::fmt::Display| ClockError::Connection {
        server: server.to_owned(),
        problem: e.to_string(),
    };
    let host = uri.host().ok_or_else(|| ClockError::Address(server.to_owned()))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(tls_server_name.unwrap_or_else(|| host.to_owned()))
        .map_err(|_| ClockError::Address(server.to_owned()))?;
    let deadlines = socket
        .set_read_timeout(Some(TIMEOUT))
        .and_then(|()| socket.set_write_timeout(Some(TIMEOUT)));
    deadlines.map_err(|e| problem(&e))?;
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AtItsOwnTime::new(ca).map_err(|e| problem(&e))?))
        .with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|e| problem(&e))?;
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    let request = format!("GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(|e| problem(&e))?;
    let mut answer = Vec::new();
    let mut chunk = [0; 1024];
    while answer.len() < HEADERS_MAX {
        let read = stream.read(&mut chunk).map_err(|e| problem(&e))?;
        answer.extend(chunk.iter().take(read));
        if let Some(date) = date(&answer) {
            return Ok(date);
        }
        if read == 0 {
            break;
        }
    }
    Err(ClockError::NoDate(server.to_owned()))
}

/// How far our clock is ahead of that Date (negative: behind), in whole seconds. The header has no fractions, so half a second is its middle.
fn skew(before: Timestamp, half: SignedDuration, date: &str) -> Option<i64> {
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_millisecond() + 500;
    let ours = before.checked_add(half).ok()?.as_millisecond();
    Some((ours - theirs) / 1000)
}

/// Out of headers that are there in full.
fn date(answer: &[u8]) -> Option<String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let headers = String::from_utf8_lossy(answer.get(..end)?).into_owned();
    headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    })
}

/// Verifies as always, at a time at which the certificate was valid.
#[derive(Debug)]
struct AtItsOwnTime(Arc<WebPkiServerVerifier>);

impl AtItsOwnTime {
    fn new(ca: &CaBundle) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for der in CertificateDer::pem_slice_iter(ca.pem().as_bytes()) {
            roots.add(der.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        }
        WebPkiServerVerifier::builder(Arc::new(roots))
            .build()
            .map(Self)
            .map_err(|e| e.to_string())
    }
}

impl ServerCertVerifier for AtItsOwnTime {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut time = now;
        let mut last = rustls::Error::InvalidCertificate(CertificateError::Expired);
        for _ in 0..TRIES {
            let verified = self
                .0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp, time);
            // The error names the edge of the validity: there it was valid.
            time = match verified {
                Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
                    last = rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after });
                    not_after
                }
                Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => {
                    last = rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before });
                    not_before
                }
                other => return other,
            };
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skew_is_read_from_a_date_header() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let at = |second: i64| Timestamp::from_second(784_111_777 + second).unwrap();
        let skewed = |second| skew(at(second), SignedDuration::from_millis(100), date);
        assert_eq!(skewed(0), Some(0));
        assert_eq!(skewed(90), Some(89));
        assert_eq!(skewed(-90), Some(-90));
        assert_eq!(skew(at(0), SignedDuration::ZERO, "yesterday"), None);
    }
}
