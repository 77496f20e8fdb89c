//! The approver's canaries: certificates of its own from the signer that firewalls' come from, for a user without any
//! rights, tried again and again at the address where firewalls reach this seed. Owns how they are made and tried, and
//! what is said of it; what follows from the answers is decided in `core::canary`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contract::issuer::Authorities;
use contract::key::{KeyError, PrivateKey};
use contract::kubeconfig::Credential;
use contract::reasons::Reason;
use contract::{cert, csr, names};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Resource, ResourceExt};
use secrecy::SecretString;
use thiserror::Error;

use cluster::api::call;
use cluster::client;
use cluster::failure::{Class, Failure};

use crate::approver::Approver;
use crate::core::canary::{self as core, Answer, Issuers, UNLISTED};
use crate::core::health::{self, Check, Health};
use crate::evidence::condition;
use crate::requests::{self, RequestError};
use crate::seed::Endpoint;

/// A day: in a roll the old CA's last canary has to outlive the time in which both are trusted. It opens nothing, and its
/// key is in memory only.
const LIFE_SECONDS: i32 = 86_400;
const APPROVED: &str = "A canary of the firewall-approver: a user without any rights, to see whether the seed accepts what this signer issues.";
/// How often each is tried, and how often while it is not sure what became of one.
const TRY: Duration = Duration::from_millis(1000);
const TRY_IN_DOUBT: Duration = Duration::from_millis(350);
/// So long a signer may take.
const SIGNING: Duration = Duration::from_secs(15);
const SIGNING_POLL: Duration = Duration::from_millis(200);
/// After a failure, doubled with each that follows.
const RETRY: Duration = Duration::from_secs(3);
const RETRY_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Error)]
pub enum CanaryError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error(transparent)]
    Approval(#[from] RequestError),
    #[error("its certificate request cannot be written: {0}")]
    Request(#[from] csr::CsrError),
    #[error("CertificateSigningRequest {0} was changed by somebody else before it was approved")]
    Changed(String),
    #[error(
        "CertificateSigningRequest {0} was approved and no certificate came: does kube-controller-manager run with csrsigning and a key for this signer?"
    )]
    NotSigned(String),
    #[error("CertificateSigningRequest {0}: {1}")]
    Certificate(String, cert::CertificateError),
}

impl CanaryError {
    fn health(&self) -> Health {
        match self {
            Self::Call(failure) | Self::Approval(RequestError::Call(_, failure)) => {
                health::failing(failure.class, &format!("{}: {}", failure.what, failure.class.words()))
            }
            other => Health::Away(other.to_string()),
        }
    }
}

/// What is known of the issuers of this seed.
pub struct Canaries {
    key: SecretString,
    request_key: PrivateKey,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    authorities: Authorities,
    /// What became of the canaries so far.
    core: core::Canaries,
    /// By issuer.
    canaries: BTreeMap<String, Canary>,
    /// As it was told to everybody last.
    issuers: Issuers,
}

#[derive(Clone)]
struct Canary {
    certificate: String,
    request: ObjectReference,
}

impl Known {
    /// A CA may be published after it has begun to sign.
    fn identify(&mut self) {
        let Some(canary) = self.canaries.get(UNLISTED) else {
            return;
        };
        if let Some(issuer) = self.authorities.issuer_of(&canary.certificate)
            && !self.canaries.contains_key(&issuer)
            && let Some(canary) = self.canaries.remove(UNLISTED)
        {
            self.core.identified(UNLISTED, &issuer);
            self.canaries.insert(issuer, canary);
        }
    }
}

impl Canaries {
    pub fn new() -> Result<Self, KeyError> {
        let key = PrivateKey::generate()?;
        Ok(Self {
            key: key.to_pem().to_string().into(),
            request_key: key,
            known: Mutex::default(),
        })
    }

    /// The issuer of a certificate, if its CA was ever published in this seed.
    pub fn issuer_of(&self, pem: &str) -> Option<String> {
        self.known().authorities.issuer_of(pem)
    }

    /// A certificate of this issuer was issued to a firewall. If that is another than a canary came from, one is due.
    pub fn noticed(&self, issuer: Option<&str>) {
        let mut known = self.known();
        if known
            .core
            .newest()
            .is_some_and(|newest| newest != issuer.unwrap_or(UNLISTED))
        {
            known.core.stir(Timestamp::now());
        }
    }

    pub fn checks(&self, now: Timestamp) -> Vec<Check> {
        let known = self.known();
        known
            .core
            .tried(now)
            .filter_map(|tried| health::canary(&tried, now))
            .collect()
    }

    /// Whether each issuer's canary was let in when it asked last. As with the checks, an older one that is dead is over: at the
    /// end of each roll that is how it should be.
    pub fn accepted(&self, now: Timestamp) -> BTreeMap<String, bool> {
        let known = self.known();
        let tried = known.core.tried(now);
        tried
            .filter(|tried| tried.newest || !tried.dead)
            .map(|tried| {
                let accepted = tried.accepted.is_some() && tried.refused.is_none() && !tried.dead;
                (health::short(tried.issuer).to_owned(), accepted)
            })
            .collect()
    }

    pub fn issuers(&self) -> Issuers {
        self.known().core.issuers()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads which CAs the seed ever took client certificates of. That it answers shows that it accepts the approver itself.
pub async fn read_bundle(approver: &Approver) {
    let maps: Api<ConfigMap> = Api::namespaced(approver.seed.client.clone(), names::CLIENT_CA_NAMESPACE);
    let what = format!(
        "get ConfigMap {}/{}",
        names::CLIENT_CA_NAMESPACE,
        names::CLIENT_CA_CONFIG_MAP
    );
    let read = call(what, maps.get(names::CLIENT_CA_CONFIG_MAP)).await;
    let now = Timestamp::now();
    match read {
        Ok(map) => {
            let bundle = map.data.and_then(|mut data| data.remove(names::CLIENT_CA_KEY));
            let mut known = approver.canaries.known();
            known.core.others(now);
            let first = known.authorities.is_empty();
            if known.authorities.learn(&bundle.unwrap_or_default()) && !first {
                tracing::info!("the seed takes client certificates of another CA");
                known.core.stir(now);
                known.identify();
            }
            drop(known);
            approver.is_news("client CAs", "");
        }
        Err(failure) => {
            if approver.is_news("client CAs", failure.class.words()) {
                tracing::warn!(%failure, "which CAs the seed takes client certificates of is not known anew");
            }
        }
    }
}

/// Makes a canary whenever one is due.
pub async fn keep(approver: Arc<Approver>) {
    let mut failures = 0u32;
    loop {
        let due = approver.canaries.known().core.due();
        let now = Timestamp::now();
        if now < due {
            // No longer at a time: what happens meanwhile may bring it forward.
            let wait = u64::try_from(now.duration_until(due).as_millis()).unwrap_or(0);
            tokio::time::sleep(Duration::from_millis(wait.clamp(10, 250))).await;
            continue;
        }
        approver.canaries.known().core.make(now);
        match make(&approver).await {
            Ok(()) => {
                failures = 0;
                approver.words.say("signer", Health::Good);
                approver.is_news("canary", "");
            }
            Err(error) => {
                approver.canaries.known().core.failed();
                approver.words.say("signer", error.health());
                // The name of the request is another each time.
                if failures == 0 {
                    tracing::warn!(%error, "no canary could be made; until there is one, nobody sees whether the seed still accepts its CA's certificates");
                }
                tokio::time::sleep((RETRY * 2u32.saturating_pow(failures.min(8))).min(RETRY_MAX)).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

async fn make(approver: &Approver) -> Result<(), CanaryError> {
    let canaries = &approver.canaries;
    let request = csr::write_canary(&canaries.request_key)?;
    let requests: Api<CertificateSigningRequest> = Api::all(approver.seed.client.clone());
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("firewall-canary-".into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: names::SIGNER.into(),
            usages: Some(vec!["digital signature".into(), "client auth".into()]),
            expiration_seconds: Some(LIFE_SECONDS),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let what = "create the CertificateSigningRequest of a canary";
    let made = call(what, requests.create(&PostParams::default(), &object)).await?;
    let name = made.name_any();
    if !requests::write(&made, &[("Approved", names::APPROVED_REASON, APPROVED)], approver).await? {
        return Err(CanaryError::Changed(name));
    }
    let certificate = await_certificate(&requests, &name).await?;
    let validity = cert::validity(&certificate).map_err(|e| CanaryError::Certificate(name, e))?;
    if canaries.issuer_of(&certificate).is_none() {
        // Its CA may have been published a moment ago.
        read_bundle(approver).await;
    }
    let mut known = canaries.known();
    let issuer = known.authorities.issuer_of(&certificate);
    let issuer = issuer.unwrap_or_else(|| UNLISTED.to_owned());
    let (not_before, not_after) = validity;
    known.core.issued(&issuer, not_before, not_after, Timestamp::now());
    let canary = Canary {
        certificate,
        request: made.object_ref(&()),
    };
    known.canaries.insert(issuer, canary);
    Ok(())
}

async fn await_certificate(requests: &Api<CertificateSigningRequest>, name: &str) -> Result<String, CanaryError> {
    let end = tokio::time::Instant::now() + SIGNING;
    while tokio::time::Instant::now() < end {
        tokio::time::sleep(SIGNING_POLL).await;
        let csr = call(format!("get CertificateSigningRequest {name}"), requests.get(name)).await?;
        if condition(&csr, "Failed").is_some() {
            break;
        }
        if let Some(pem) = csr.status.and_then(|status| status.certificate) {
            return Ok(String::from_utf8_lossy(&pem.0).into_owned());
        }
    }
    Err(CanaryError::NotSigned(name.to_owned()))
}

/// Tries every canary about once a second, and tells everybody what changed.
pub async fn ask(approver: Arc<Approver>) {
    let random = RandomState::new();
    let mut round = 0u64;
    loop {
        let endpoint = approver.seed.endpoint();
        let canaries = approver.canaries.worth_a_try();
        let tried = canaries.into_iter().map(|(issuer, canary)| {
            let (endpoint, key) = (&endpoint, &approver.canaries.key);
            async move { (issuer, try_it(endpoint, &canary, key).await, Timestamp::now()) }
        });
        // Beside them the approver's own way in: whoever refuses everybody says nothing of certificates.
        let (answers, ()) = tokio::join!(futures::future::join_all(tried), read_bundle(&approver));
        let in_doubt = {
            let mut known = approver.canaries.known();
            for (issuer, answer, at) in answers {
                known.core.answered(&issuer, answer, at);
            }
            known.core.in_doubt()
        };
        if approver.canaries.tell(&approver) {
            approver.wake_all();
        }
        round = round.wrapping_add(1);
        let pace = if in_doubt { TRY_IN_DOUBT } else { TRY };
        // Replicas of the approver do not ask in step.
        let jitter = u32::try_from(random.hash_one(round) % 200).unwrap_or(0);
        tokio::time::sleep(pace * (900 + jitter) / 1000).await;
    }
}

impl Canaries {
    fn worth_a_try(&self) -> Vec<(String, Canary)> {
        let now = Timestamp::now();
        let mut known = self.known();
        let Known { core, canaries, .. } = &mut *known;
        let believed = core.believed(now);
        canaries.retain(|issuer, _| believed.contains(issuer.as_str()));
        canaries
            .iter()
            .map(|(issuer, canary)| (issuer.clone(), canary.clone()))
            .collect()
    }

    /// Says what is new of the issuers, and whether anything is.
    fn tell(&self, approver: &Approver) -> bool {
        let (before, after, newest) = {
            let mut known = self.known();
            let after = known.core.issuers();
            let newest = known.core.newest().and_then(|issuer| known.canaries.get(issuer));
            let request = newest.map(|canary| canary.request.clone());
            (std::mem::replace(&mut known.issuers, after.clone()), after, request)
        };
        if before == after {
            return false;
        }
        for issuer in after.refused.difference(&before.refused) {
            let reason = Reason::IssuerRefused;
            tracing::warn!(%issuer, %reason, "the seed refuses certificates of this issuer and accepts those that it issues now: whose certificate is of it has to come in anew");
        }
        for issuer in before.refused.difference(&after.refused) {
            tracing::info!(%issuer, "certificates of this issuer are not refused any more");
        }
        if let Some(newest) = after.newest.as_ref().filter(|_| before.newest != after.newest) {
            tracing::info!(issuer = %newest.issuer, "certificates come from this issuer, and the seed accepts them");
        }
        if after.signer_not_trusted && !before.signer_not_trusted {
            let reason = Reason::SignerNotTrusted;
            let why = "the seed's API server refuses the certificates that its signer issues now: give kube-apiserver the signer's CA in --client-ca-file; until then no firewall is handed over for a refused certificate";
            tracing::warn!(%reason, "{why}");
            if let Some(request) = newest {
                approver.events.warning(request, reason, "Authenticate", why);
            }
        }
        if before.signer_not_trusted && !after.signer_not_trusted {
            tracing::info!("the seed's API server accepts what its signer issues, or is not known to refuse it");
        }
        true
    }
}

/// A client of its own for each try: a connection or a TLS session that is kept goes on as who it was.
async fn try_it(endpoint: &Endpoint, canary: &Canary, key: &SecretString) -> Answer {
    let credential = Credential::Certificate {
        certificate_pem: canary.certificate.clone(),
        key_pem: key.clone(),
    };
    let kubeconfig = endpoint.kubeconfig("default", credential, None);
    let Ok(client) = client::connect("a canary", &kubeconfig) else {
        return Answer::Nothing;
    };
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    let review = SelfSubjectReview::default();
    answer(call("ask who a canary is", reviews.create(&PostParams::default(), &review)).await)
}

fn answer(asked: Result<SelfSubjectReview, Failure>) -> Answer {
    let is_canary = |user: &str| user == names::CANARY_USER;
    match asked {
        Ok(review) => {
            let user = review.status.and_then(|status| status.user_info?.username);
            match user {
                Some(user) if is_canary(&user) => Answer::Accepted,
                _ => Answer::Nothing,
            }
        }
        Err(failure) => match failure.class {
            Class::Unauthenticated => Answer::Refused,
            // A seed that lets nobody ask who he is names whom it forbids it.
            Class::Forbidden if failure.detail.contains(names::CANARY_USER) => Answer::Accepted,
            // Something in front did not pass the certificate on.
            Class::Forbidden if failure.detail.contains("system:anonymous") => Answer::Refused,
            _ => Answer::Nothing,
        },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::{SelfSubjectReviewStatus, UserInfo};

    use super::*;

    fn user(name: &str) -> SelfSubjectReview {
        SelfSubjectReview {
            status: Some(SelfSubjectReviewStatus {
                user_info: Some(UserInfo {
                    username: Some(name.into()),
                    ..UserInfo::default()
                }),
            }),
            ..SelfSubjectReview::default()
        }
    }

    fn failure(class: Class, detail: &str) -> Failure {
        Failure {
            what: "ask".into(),
            class,
            detail: detail.into(),
        }
    }

    #[test]
    fn b2_only_a_server_that_judged_the_certificate_says_anything_of_it() {
        use Answer::{Accepted, Nothing, Refused};
        let forbidden = |user: &str| failure(Class::Forbidden, &format!("User {user:?} cannot create resource"));
        for (asked, expected) in [
            (Ok(user(names::CANARY_USER)), Accepted),
            (Ok(user("somebody")), Nothing),
            (Ok(SelfSubjectReview::default()), Nothing),
            (Err(failure(Class::Unauthenticated, "Unauthorized")), Refused),
            (Err(forbidden(names::CANARY_USER)), Accepted),
            (Err(forbidden("system:anonymous")), Refused),
            (Err(forbidden("somebody")), Nothing),
            (Err(failure(Class::Unreachable, "-")), Nothing),
            (Err(failure(Class::Busy, "-")), Nothing),
            (Err(failure(Class::Untrusted, "-")), Nothing),
            (Err(failure(Class::UntrustedTime, "-")), Nothing),
        ] {
            let what = format!("{asked:?}");
            assert_eq!(answer(asked), expected, "{what}");
        }
    }
}
