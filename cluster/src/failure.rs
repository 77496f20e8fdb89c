//! What went wrong with a call, told apart by what there is to do about it. The one place that looks into kube's
//! errors.

use std::error::Error as StdError;
use std::fmt;

use rustls::{AlertDescription, Error as TlsError};

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The server does not accept our credential: 401, or a TLS alert from a proxy that verifies client certificates.
    Unauthenticated,
    /// The server is not the one that our CA vouches for. Nothing secret was sent.
    Untrusted,
    /// As `Untrusted`, and time is the only fault of its certificate: maybe our own clock is wrong.
    UntrustedTime,
    /// We are known and may not do this: 403.
    Forbidden,
    NotFound,
    Conflict,
    AlreadyExists,
    /// The server understood and refuses the object: 400, 422.
    Invalid,
    /// 429 and 5xx.
    Busy,
    /// No answer: refused, reset, no such name, or not in time.
    Unreachable,
    /// Our own input makes no client, or the peer speaks no TLS or no Kubernetes.
    Misconfigured,
}

impl Class {
    /// In words that say what it means for whoever has to act.
    pub fn words(self) -> &'static str {
        match self {
            Self::Unauthenticated => "the server does not accept our credential",
            Self::Untrusted => "the server is not the one that our CA vouches for",
            Self::UntrustedTime => "the server's certificate is outside its validity (or this clock is wrong)",
            Self::Forbidden => "the permission is missing",
            Self::NotFound => "it does not exist",
            Self::Conflict => "it was changed at the same time",
            Self::AlreadyExists => "it exists already",
            Self::Invalid => "the server refuses it",
            Self::Busy => "the server is busy or failing",
            Self::Unreachable => "the server cannot be reached",
            Self::Misconfigured => "there is no working connection to a Kubernetes API server",
        }
    }
}

/// A failed call: what was attempted on which object, of which kind the failure is, and the details.
#[derive(Clone, Debug)]
pub struct Failure {
    pub what: String,
    pub class: Class,
    pub detail: String,
}

impl Failure {
    pub fn of(what: impl Into<String>, error: &kube::Error) -> Self {
        Self {
            what: what.into(),
            class: classify(error),
            detail: detail(error),
        }
    }

    pub fn late(what: impl Into<String>, seconds: u64) -> Self {
        Self {
            what: what.into(),
            class: Class::Unreachable,
            detail: format!("no answer within {seconds} s"),
        }
    }

    pub fn is(&self, class: Class) -> bool {
        self.class == class
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.what, self.class.words(), self.detail)
    }
}

impl StdError for Failure {}

/// The class of any error that kube returns.
pub fn classify(error: &kube::Error) -> Class {
    match error {
        kube::Error::Api(status) => of_status(status.code, &status.reason),
        kube::Error::RustlsTls(_) | kube::Error::InferConfig(_) | kube::Error::InferKubeconfig(_) => {
            Class::Misconfigured
        }
        kube::Error::SerdeError(_) | kube::Error::BuildRequest(_) => Class::Misconfigured,
        other => of_chain(other),
    }
}

fn of_status(code: u16, reason: &str) -> Class {
    match code {
        401 => Class::Unauthenticated,
        403 => Class::Forbidden,
        404 | 410 => Class::NotFound,
        409 if reason == "AlreadyExists" => Class::AlreadyExists,
        409 => Class::Conflict,
        400..=499 if code != 429 && code != 408 => Class::Invalid,
        _ => Class::Busy,
    }
}

fn of_chain(error: &(dyn StdError + 'static)) -> Class {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<TlsError>() {
            return of_tls(tls);
        }
        // io::Error hides what it wraps from `source()`.
        if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            let class = of_chain(inner);
            if class != Class::Unreachable {
                return class;
            }
        }
        next = error.source();
    }
    Class::Unreachable
}

fn of_tls(error: &TlsError) -> Class {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    match error {
        TlsError::AlertReceived(
            AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => Class::Unauthenticated,
        TlsError::InvalidCertificate(Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }) => {
            Class::UntrustedTime
        }
        TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented => Class::Untrusted,
        TlsError::InvalidMessage(_) => Class::Misconfigured,
        _ => Class::Unreachable,
    }
}

/// The whole chain of causes in one line: kube's own text ends at "client error (Connect)".
fn detail(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return if status.message.is_empty() {
            format!("HTTP {}", status.code)
        } else {
            status.message.clone()
        };
    }
    let mut parts: Vec<String> = Vec::new();
    let mut next: Option<&dyn StdError> = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !parts.last().is_some_and(|last| last.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use kube::core::Status;
    use rustls::CertificateError;

    use super::*;

    fn api(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status::failure("why", reason).with_code(code)))
    }

    /// As it comes out of a connection: the TLS error inside an io::Error, which hides it from `source()`.
    fn tls(error: TlsError) -> kube::Error {
        kube::Error::Service(Box::new(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    #[test]
    fn an_answer_is_told_apart_by_its_code() {
        for (code, reason, class) in [
            (401, "Unauthorized", Class::Unauthenticated),
            (403, "Forbidden", Class::Forbidden),
            (404, "NotFound", Class::NotFound),
            (410, "Expired", Class::NotFound),
            (409, "AlreadyExists", Class::AlreadyExists),
            (409, "Conflict", Class::Conflict),
            (400, "BadRequest", Class::Invalid),
            (422, "Invalid", Class::Invalid),
            (408, "Timeout", Class::Busy),
            (429, "TooManyRequests", Class::Busy),
            (500, "InternalError", Class::Busy),
            (503, "ServiceUnavailable", Class::Busy),
        ] {
            assert_eq!(classify(&api(code, reason)), class, "{code} {reason}");
        }
    }

    #[test]
    fn a_certificate_that_the_server_refuses_in_the_handshake_is_like_a_401() {
        for alert in [
            AlertDescription::UnknownCA,
            AlertDescription::CertificateExpired,
            AlertDescription::CertificateRequired,
            AlertDescription::BadCertificate,
        ] {
            assert_eq!(
                classify(&tls(TlsError::AlertReceived(alert))),
                Class::Unauthenticated,
                "{alert:?}"
            );
        }
    }

    #[test]
    fn a_server_that_is_not_ours_and_one_whose_time_is_over_are_told_apart() {
        let invalid = |error| classify(&tls(TlsError::InvalidCertificate(error)));
        assert_eq!(invalid(CertificateError::UnknownIssuer), Class::Untrusted);
        assert_eq!(invalid(CertificateError::NotValidForName), Class::Untrusted);
        assert_eq!(invalid(CertificateError::Expired), Class::UntrustedTime);
        assert_eq!(invalid(CertificateError::NotValidYet), Class::UntrustedTime);
    }

    #[test]
    fn no_answer_is_unreachable() {
        let refused = kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)));
        assert_eq!(classify(&refused), Class::Unreachable);
        assert_eq!(Failure::late("get it", 5).class, Class::Unreachable);
    }

    #[test]
    fn a_failure_says_what_was_attempted_what_it_means_and_why() {
        let text = Failure::of("get Secret a/b", &api(403, "Forbidden")).to_string();
        assert_eq!(text, "get Secret a/b: the permission is missing: why");
        let text = Failure::of(
            "get Secret a/b",
            &tls(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)),
        );
        assert!(text.to_string().contains("UnknownIssuer"), "{text}");
    }
}
