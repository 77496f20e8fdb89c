//! How far our clock is off by a server's Date header, and the time of a server whose certificate is outside its validity by our clock. Chain and name are verified as always,
//! only at a time at which the certificate was valid; no credential is sent, and nothing is believed but the Date.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// For all of it: whoever sends a byte now and then must not hold up the loop that waits for him.
const TIMEOUT: Duration = Duration::from_secs(10);
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
    server_date_within(TIMEOUT, server, tls_server_name, ca).await
}

async fn server_date_within(
    limit: Duration,
    server: &str,
    tls_server_name: Option<&str>,
    ca: &CaBundle,
) -> Result<String, ClockError> {
    let deadline = Instant::now() + limit;
    let (server, name, ca) = (server.to_owned(), tls_server_name.map(str::to_owned), ca.clone());
    let failed = server.clone();
    let uri: Uri = server.parse().map_err(|_| ClockError::Address(server.clone()))?;
    let unreached = |e: std::io::Error| ClockError::Connection {
        server: server.clone(),
        problem: e.to_string(),
    };
    // By the way that every client takes, which has a deadline of its own.
    let socket = connection::socket(&uri).await.map_err(unreached)?;
    let socket = Until { socket, deadline };
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
    mut socket: Until,
) -> Result<String, ClockError> {
    let problem = |e: &dyn std::fmt::Display| ClockError::Connection {
        server: server.to_owned(),
        problem: e.to_string(),
    };
    let host = uri.host().ok_or_else(|| ClockError::Address(server.to_owned()))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(tls_server_name.unwrap_or_else(|| host.to_owned()))
        .map_err(|_| ClockError::Address(server.to_owned()))?;
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

/// A socket whose reads and writes are all over by one time. Each has what is left, so that the thread ends too.
struct Until {
    socket: TcpStream,
    deadline: Instant,
}

impl Until {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(late()) } else { Ok(left) }
    }
}

impl Read for Until {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(into).map_err(or_late)
    }
}

impl Write for Until {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes).map_err(or_late)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer was not there in time")
}

/// A socket's own deadline is told as one that would block.
fn or_late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => late(),
        _ => error,
    }
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
    use std::net::TcpListener;

    use super::*;

    /// Begins a TLS record and goes on with a byte at a time, for as long as anybody listens.
    fn dripping() -> (u16, std::thread::JoinHandle<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut sent = 0;
            let record = [0x16, 3, 3, 0x40, 0, 2, 0, 0x3f, 0xf0];
            for byte in record.into_iter().chain(std::iter::repeat_n(0, 300)) {
                if socket.write_all(&[byte]).is_err() {
                    break;
                }
                sent += 1;
                std::thread::sleep(Duration::from_millis(50));
            }
            sent
        });
        (port, served)
    }

    #[tokio::test]
    async fn a8_a_server_that_drips_its_handshake_is_left_at_the_deadline() {
        crate::client::install_crypto();
        let key = rcgen::KeyPair::generate().unwrap();
        let ca = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let ca = CaBundle::from_pem(&ca).unwrap();
        let (port, served) = dripping();
        let server = format!("https://127.0.0.1:{port}");
        let error = server_date_within(Duration::from_secs(1), &server, None, &ca).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("not there in time"), "{error}");
        // Its connection is closed too: it would have dripped for 15 s.
        let sent = served.join().unwrap();
        assert!((2..300).contains(&sent), "{sent} bytes");
    }

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
