//! `--bootstrap-credential=auto`: finds out whether a bootstrap token opens nothing on this seed but what we want.
//!
//! Extra groups only add: on a seed where `system:bootstrappers` may join nodes, every bootstrap token is a ticket to a
//! node's identity. So a short-lived token of our own is made and asked what it may do; the answer has to be exactly
//! what every user may do, and our own ClusterRole.

use std::collections::BTreeMap;
use std::time::Duration;

use contract::kubeconfig::Credential;
use contract::names;
use contract::record::CredentialKind;
use contract::token::SeedKey;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authorization::v1::{
    NonResourceRule, ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::{Api, PostParams};
use thiserror::Error;

use cluster::api::call;
use cluster::client;
use cluster::failure::{Class, Failure};

use crate::args::BootstrapCredential;
use crate::core::health::Health;
use crate::core::plan;
use crate::health::Words;
use crate::seed::Seed;
use crate::selftest::{self, dry_run, is_of};

const ATTEMPTS: u32 = 3;
const AGAIN: Duration = Duration::from_secs(2);
const PROBE_LIFE: SignedDuration = SignedDuration::from_mins(10);
/// The only authorizer whose rules a review may leave out: it speaks of nodes alone, and no token is one.
const NODE_AUTHORIZER: &str = "node authorizer does not support user rule resolution";

/// A policy that was just installed is in force a moment later.
const PATIENCE: u32 = 20;
const NODES_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";

/// Why a bootstrap token is not taken although an operator insists on one.
#[derive(Debug, Error)]
pub enum ProbeError {
    #[error(
        "--bootstrap-credential=token, but this seed takes no bootstrap tokens: start its kube-apiserver with --enable-bootstrap-token-auth, or use --bootstrap-credential=service-account: {0}"
    )]
    NotTaken(Failure),
    #[error(
        "--bootstrap-credential=token, but {0}: apply manifests/seed with its policies, or use --bootstrap-credential=service-account"
    )]
    NotHeld(String),
}

/// Which credential a start chooses.
pub async fn begin(
    chosen: BootstrapCredential,
    seed: &Seed,
    key: &SeedKey,
    words: &Words,
) -> Result<CredentialKind, ProbeError> {
    words.say("bootstrap-credential", Health::Good);
    match chosen {
        BootstrapCredential::ServiceAccount => Ok(CredentialKind::ServiceAccount),
        BootstrapCredential::Token => {
            tokens_work(seed, key).await?;
            Ok(CredentialKind::Token)
        }
        BootstrapCredential::Auto => {
            let (kind, why) = choose_patiently(seed, key).await.unwrap_or_else(|failure| {
                words.failed("bootstrap-credential", &failure);
                (
                    CredentialKind::ServiceAccount,
                    format!("the probe with a bootstrap token failed: {failure}"),
                )
            });
            tracing::info!(?kind, "bootstrap credential: {why}");
            Ok(kind)
        }
    }
}

/// A kind that is chosen for an answer that did not come revokes what machines hold.
async fn choose_patiently(seed: &Seed, key: &SeedKey) -> Result<(CredentialKind, String), Failure> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match choose(seed, key).await {
            Err(_) if attempts < ATTEMPTS => tokio::time::sleep(AGAIN).await,
            chosen => return chosen,
        }
    }
}

/// Which credential is safe on this seed, and why; an error if it could not be found out.
pub async fn choose(seed: &Seed, key: &SeedKey) -> Result<(CredentialKind, String), Failure> {
    let (status, client) = match rules(seed, key).await {
        Ok(asked) => asked,
        // The seed answered, and does not take the token: that is a fact about it and no hiccup.
        Err(failure) if failure.is(Class::Unauthenticated) => {
            return Ok((
                CredentialKind::ServiceAccount,
                "bootstrap tokens are not taken here".into(),
            ));
        }
        Err(failure) => return Err(failure),
    };
    let surplus = match surplus(&status) {
        Some(surplus) => Some(surplus),
        None => not_held(&client).await?,
    };
    Ok(match surplus {
        None => (
            CredentialKind::Token,
            "a bootstrap token opens nothing but certificate requests here".into(),
        ),
        Some(surplus) => (
            CredentialKind::ServiceAccount,
            format!("a bootstrap token opens more here: {surplus}"),
        ),
    })
}

/// Whether this seed takes bootstrap tokens at all, for an operator who insists on them.
pub async fn tokens_work(seed: &Seed, key: &SeedKey) -> Result<(), ProbeError> {
    let (_, client) = rules(seed, key).await.map_err(ProbeError::NotTaken)?;
    match not_held(&client).await.map_err(ProbeError::NotTaken)? {
        None => Ok(()),
        Some(why) => Err(ProbeError::NotHeld(why)),
    }
}

/// Whether nothing keeps the token from asking another signer: tried as a dry run, with the one that makes nodes.
async fn not_held(token: &Client) -> Result<Option<String>, Failure> {
    let policy = format!("{}-requesters", names::APPROVER);
    let what = format!("try to ask the signer {NODES_SIGNER} with a bootstrap token");
    let request = selftest::request(NODES_SIGNER)?;
    let requests: Api<CertificateSigningRequest> = Api::all(token.clone());
    for _ in 0..PATIENCE {
        match call(what.as_str(), requests.create(&dry_run(), &request)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            Err(failure) if is_of(&failure, &policy) => return Ok(None),
            Err(failure) => return Err(failure),
        }
    }
    Ok(Some(format!(
        "policy {policy} does not keep a bootstrap token from asking the signer {NODES_SIGNER}"
    )))
}

/// The token's rules, and a client with it.
async fn rules(seed: &Seed, key: &SeedKey) -> Result<(SubjectRulesReviewStatus, Client), Failure> {
    let token = key.probe_token();
    let labels = BTreeMap::from([(names::MANAGED_BY_LABEL.to_owned(), names::APPROVER.to_owned())]);
    let secret = plan::token_secret(&token, labels, "the approver's probe", Timestamp::now() + PROBE_LIFE);
    seed.apply_secret(names::TOKEN_NAMESPACE, &secret).await?;

    let what = "ask what a bootstrap token may do (SelfSubjectRulesReview)";
    let kubeconfig = seed
        .endpoint()
        .kubeconfig("default", Credential::Token(token.bearer()), None);
    let problem = |e: client::ClientError| Failure {
        what: what.into(),
        class: Class::Misconfigured,
        detail: e.to_string(),
    };
    let client = client::connect("probe", &kubeconfig).map_err(problem)?;
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some("default".into()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        match call(what, reviews.create(&PostParams::default(), &review)).await {
            Ok(review) => return Ok((review.status.unwrap_or_default(), client)),
            // The API server's own watch has to bring it the token first.
            Err(failure) if failure.is(Class::Unauthenticated) && attempts < 10 => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The first thing that a token may do and should not.
fn surplus(status: &SubjectRulesReviewStatus) -> Option<String> {
    if status.incomplete && status.evaluation_error.as_deref() != Some(NODE_AUTHORIZER) {
        let error = status.evaluation_error.as_deref().unwrap_or("no reason given");
        return Some(format!("the answer is incomplete ({error})"));
    }
    let resource = status
        .resource_rules
        .iter()
        .find(|rule| !resource_rule_is_expected(rule));
    let path = status
        .non_resource_rules
        .iter()
        .find(|rule| !path_rule_is_expected(rule));
    resource
        .map(|rule| format!("{rule:?}"))
        .or_else(|| path.map(|rule| format!("{rule:?}")))
}

fn resource_rule_is_expected(rule: &ResourceRule) -> bool {
    let none = Vec::new();
    let groups = rule.api_groups.as_ref().unwrap_or(&none);
    let resources = rule.resources.as_ref().unwrap_or(&none);
    let within = |allowed: &[&str], found: &[String]| found.iter().all(|f| allowed.contains(&f.as_str()));
    let own_review = [
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
    ];
    (within(&["authorization.k8s.io", "authentication.k8s.io"], groups)
        && within(&own_review, resources)
        && within(&["create"], &rule.verbs))
        || (within(&["certificates.k8s.io"], groups)
            && within(&["certificatesigningrequests"], resources)
            && within(&["create", "get"], &rule.verbs))
        || (within(&["certificates.k8s.io"], groups)
            && within(&["certificatesigningrequests/firewallcontroller"], resources)
            && within(&["create"], &rule.verbs))
}

/// What system:discovery and system:public-info-viewer give to everybody: reading what the server is.
fn path_rule_is_expected(rule: &NonResourceRule) -> bool {
    const PATHS: &[&str] = &["/api", "/apis", "/healthz", "/livez", "/readyz", "/openapi", "/version"];
    let none = Vec::new();
    let paths = rule.non_resource_urls.as_ref().unwrap_or(&none);
    rule.verbs.iter().all(|verb| verb == "get")
        && paths.iter().all(|path| {
            let base = path.trim_end_matches("/*").trim_end_matches('/');
            PATHS.contains(&base)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(group: &str, resource: &str, verbs: &[&str]) -> ResourceRule {
        ResourceRule {
            api_groups: Some(vec![group.into()]),
            resources: Some(vec![resource.into()]),
            resource_names: None,
            verbs: verbs.iter().map(ToString::to_string).collect(),
        }
    }

    fn status(resource_rules: Vec<ResourceRule>) -> SubjectRulesReviewStatus {
        SubjectRulesReviewStatus {
            resource_rules,
            ..SubjectRulesReviewStatus::default()
        }
    }

    fn ours() -> Vec<ResourceRule> {
        vec![
            rule("authorization.k8s.io", "selfsubjectaccessreviews", &["create"]),
            rule("certificates.k8s.io", "certificatesigningrequests", &["create", "get"]),
            rule(
                "certificates.k8s.io",
                "certificatesigningrequests/firewallcontroller",
                &["create"],
            ),
        ]
    }

    #[test]
    fn exactly_our_rules_are_no_surplus() {
        assert_eq!(surplus(&status(ours())), None);
    }

    #[test]
    fn one_rule_more_is_a_surplus_whatever_it_opens() {
        for more in [
            rule(
                "certificates.k8s.io",
                "certificatesigningrequests/nodeclient",
                &["create"],
            ),
            rule(
                "certificates.k8s.io",
                "certificatesigningrequests",
                &["create", "get", "list"],
            ),
            rule("certificates.k8s.io", "*", &["create"]),
            rule("*", "certificatesigningrequests", &["get"]),
            rule("", "secrets", &["get"]),
            rule("", "configmaps", &["get"]),
        ] {
            let mut rules = ours();
            rules.push(more.clone());
            assert!(surplus(&status(rules)).is_some(), "{more:?}");
        }
    }

    #[test]
    fn an_answer_that_leaves_something_out_is_not_trusted() {
        let incomplete = |error: &str| SubjectRulesReviewStatus {
            incomplete: true,
            evaluation_error: Some(error.into()),
            ..status(ours())
        };
        assert!(surplus(&incomplete("webhook authorizer does not support user rule resolution")).is_some());
        assert_eq!(surplus(&incomplete(NODE_AUTHORIZER)), None);
    }

    #[test]
    fn a_path_that_not_everybody_may_read_is_a_surplus() {
        let with = |url: &str, verb: &str| SubjectRulesReviewStatus {
            non_resource_rules: vec![NonResourceRule {
                non_resource_urls: Some(vec![url.into()]),
                verbs: vec![verb.into()],
            }],
            ..status(ours())
        };
        assert_eq!(surplus(&with("/apis/*", "get")), None);
        assert!(surplus(&with("/metrics", "get")).is_some());
        assert!(surplus(&with("*", "get")).is_some());
        assert!(surplus(&with("/healthz", "post")).is_some());
    }
}
