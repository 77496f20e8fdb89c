//! How far this machine's clock is off, by the Date header of the seed, or of the shoot where the seed is dead. A wrong clock makes good certificates look
//! expired, so it has to be known before anything is blamed on a certificate.

use cluster::clock::measure;
use contract::kubeconfig::CaBundle;
use jiff::SignedDuration;
use tracing::info;

use crate::core::{Job, Patience, Via};
use crate::machine::Machine;

const EVERY: SignedDuration = SignedDuration::from_mins(5);
/// Less is not worth a word.
const NAMED_FROM: i64 = 30;

impl Machine {
    /// By the seed, with the credential at hand; where it does not answer, by the shoot.
    pub(crate) async fn measure_clock(&mut self, via: Option<Via>) {
        let mut problems = Vec::new();
        if let Some(via) = via {
            match self.by_seed(via).await {
                Ok(skew) => return self.clock_measured(skew, "the seed's"),
                Err(problem) => problems.push(problem),
            }
        }
        if let Some(lifeline) = &self.lifeline {
            let (server, name, ca) = lifeline.access();
            match measure(&lifeline.client, "the shoot", server, name, ca).await {
                Ok(skew) => return self.clock_measured(skew, "the shoot's"),
                Err(failure) => problems.push(failure.to_string()),
            }
        }
        self.failed(Job::Clock, Patience::Normal, &problems.join("; "));
    }

    async fn by_seed(&mut self, via: Via) -> Result<i64, String> {
        let link = self.link(via)?;
        let access = &link.access;
        let ca = CaBundle::from_pem(&access.ca).map_err(|e| format!("the seed's CA {e}"))?;
        let name = access.tls_server_name.as_deref();
        measure(&link.client, "the seed", &access.server, name, &ca)
            .await
            .map_err(|failure| failure.to_string())
    }

    fn clock_measured(&mut self, skew: i64, whose: &str) {
        if named(skew) && self.clock_skew != Some(skew) {
            let direction = if skew > 0 { "ahead of" } else { "behind" };
            let seconds = skew.unsigned_abs();
            self.problem(
                "clock skew",
                &format!("this clock is {seconds} s {direction} {whose}: set it"),
            );
        } else if !named(skew) && self.problems.remove("clock skew").is_some() {
            info!(firewall = %self.object(), "the clock is right again");
        }
        // What was too old or too new for the wrong time may be right for this one.
        if (skew - self.clock_skew.unwrap_or(0)).abs() > NAMED_FROM {
            self.judged = None;
        }
        self.clock_skew = Some(skew);
        self.consider();
        self.done(Job::Clock, EVERY);
    }
}

fn named(skew: i64) -> bool {
    skew.abs() > NAMED_FROM
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::Arc;

    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection, Stream};

    use cluster::clock::server_date;

    use super::*;

    /// A server whose certificate ended in 1999. Gives its port, its CA and what it was asked.
    fn server_of_the_past(date: &'static str) -> (u16, CaBundle, std::thread::JoinHandle<String>) {
        cluster::client::install_crypto();
        let authority = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_pem = ca.self_signed(&authority).unwrap().pem();
        let issuer = rcgen::Issuer::new(ca, authority);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(1998, 1, 1);
        params.not_after = rcgen::date_time_ymd(1999, 1, 1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
            let mut stream = Stream::new(&mut connection, &mut socket);
            let mut asked = [0; 4096];
            let Ok(length) = stream.read(&mut asked) else {
                return String::new();
            };
            let answer = format!("HTTP/1.1 401 Unauthorized\r\nDate: {date}\r\nContent-Length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (port, CaBundle::from_pem(&ca_pem).unwrap(), served)
    }

    const THEN: &str = "Fri, 06 Nov 1998 08:49:37 GMT";

    #[tokio::test]
    async fn a8_a_server_whose_certificate_fails_by_time_only_is_asked_for_its_time_without_a_credential() {
        let (port, ca, served) = server_of_the_past(THEN);
        let date = server_date(&format!("https://127.0.0.1:{port}"), None, &ca).await;
        assert_eq!(date.unwrap(), THEN);
        let asked = served.join().unwrap().to_lowercase();
        assert!(
            asked.starts_with("get /version") && !asked.contains("authorization"),
            "{asked}"
        );
    }

    #[tokio::test]
    async fn a8_the_time_of_a_server_that_is_not_ours_is_not_believed() {
        let (port, _, served) = server_of_the_past(THEN);
        let other = server_of_the_past(THEN).1;
        let server = format!("https://127.0.0.1:{port}");
        let error = server_date(&server, None, &other).await.unwrap_err().to_string();
        assert!(error.contains("invalid peer certificate"), "{error}");
        assert_eq!(served.join().unwrap(), "");
        let (port, ca, _served) = server_of_the_past(THEN);
        let server = format!("https://127.0.0.1:{port}");
        let error = server_date(&server, Some("seed.example.org"), &ca)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("NotValidForName") || error.contains("not valid for name"),
            "{error}"
        );
    }
}
