//! What an object that stands in the seed under our request's name means. Pure.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

/// How much of another's words goes into ours.
const WORDS_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Pending,
    Approved,
    /// With the certificate and its chain, as PEM.
    Issued(String),
    /// With a token in the place of a certificate, sealed.
    Granted(String),
    /// It is not our request at all.
    Foreign(String),
    /// Denied, or failed.
    Refused(String),
}

/// It counts only if its bytes are ours and we are its requester: under our name anybody may have put anything.
pub(crate) fn judge(object: &CertificateSigningRequest, request: &[u8], user: &str) -> Judgement {
    if object.spec.request.0 != request {
        return Judgement::Foreign("holds another's bytes in the seed".into());
    }
    let requester = object.spec.username.as_deref().unwrap_or_default();
    if requester.is_empty() || requester != user {
        return Judgement::Foreign(format!("was sent by {:?}, not by us", cut(requester)));
    }
    let status = object.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let condition = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    for (kind, word) in [("Denied", "denied"), ("Failed", "not signed")] {
        if let Some(condition) = condition(kind) {
            let reason = cut(condition.reason.as_deref().unwrap_or("no reason"));
            let message = cut(condition.message.as_deref().unwrap_or("no message"));
            return Judgement::Refused(format!("{word}: {reason}: {message}"));
        }
    }
    if let Some(granted) = condition(contract::grant::CONDITION)
        && condition("Approved").is_some()
    {
        return Judgement::Granted(granted.message.clone().unwrap_or_default());
    }
    let certificate = status
        .and_then(|status| status.certificate.as_ref())
        .filter(|bytes| !bytes.0.is_empty());
    match certificate.map(|bytes| String::from_utf8(bytes.0.clone())) {
        Some(Ok(chain)) => Judgement::Issued(chain),
        Some(Err(_)) => Judgement::Refused("answered with something that is not a certificate".into()),
        None if condition("Approved").is_some() => Judgement::Approved,
        None => Judgement::Pending,
    }
}

fn cut(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(WORDS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use k8s_openapi::api::certificates::v1::{
        CertificateSigningRequestCondition, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
    };

    use super::*;

    fn object(conditions: &[&str], certificate: Option<&[u8]>) -> CertificateSigningRequest {
        let condition = |kind: &&str| CertificateSigningRequestCondition {
            type_: (*kind).to_owned(),
            status: "True".into(),
            reason: Some("OtherKey".into()),
            message: Some("line\nbreak".into()),
            ..CertificateSigningRequestCondition::default()
        };
        CertificateSigningRequest {
            spec: CertificateSigningRequestSpec {
                request: ByteString(b"ours".to_vec()),
                username: Some("us".into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: Some(CertificateSigningRequestStatus {
                conditions: Some(conditions.iter().map(condition).collect()),
                certificate: certificate.map(|bytes| ByteString(bytes.to_vec())),
            }),
            ..CertificateSigningRequest::default()
        }
    }

    #[test]
    fn only_our_own_bytes_sent_by_ourselves_count() {
        let good = object(&["Approved"], Some(b"pem"));
        assert_eq!(judge(&good, b"ours", "us"), Judgement::Issued("pem".into()));
        assert!(matches!(judge(&good, b"other", "us"), Judgement::Foreign(_)));
        assert!(matches!(judge(&good, b"ours", "them"), Judgement::Foreign(_)));
        // Not known who we are: nothing counts.
        assert!(matches!(judge(&good, b"ours", ""), Judgement::Foreign(_)));
    }

    #[test]
    fn each_state_of_a_request_is_told_apart() {
        let judged = |conditions: &[&str], certificate| judge(&object(conditions, certificate), b"ours", "us");
        assert_eq!(judged(&[], None), Judgement::Pending);
        assert_eq!(judged(&["Approved"], None), Judgement::Approved);
        assert_eq!(judged(&["Approved"], Some(b"")), Judgement::Approved);
        assert!(matches!(judged(&["Denied"], None), Judgement::Refused(why) if why == "denied: OtherKey: line break"));
        assert!(
            matches!(judged(&["Approved", "Failed"], None), Judgement::Refused(why) if why.starts_with("not signed"))
        );
        assert!(matches!(judged(&["Approved"], Some(&[0xff])), Judgement::Refused(_)));
        let fresh = CertificateSigningRequest {
            status: None,
            ..object(&[], None)
        };
        assert_eq!(judge(&fresh, b"ours", "us"), Judgement::Pending);
    }
}
