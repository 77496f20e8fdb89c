//! Tries what the policies of `manifests/seed` forbid, as the approver itself and as dry runs. RBAC alone lets it write
//! any Secret, Role and RoleBinding, anything of a Firewall, and approve any request of its signer. The policies that
//! hold it go by the name of its ServiceAccount: under another name they are void, and nobody would notice.

use std::time::Duration;

use contract::csr;
use contract::key::PrivateKey;
use contract::names;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::Instant;

use cluster::api::{call, call_opt};
use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;

use crate::watches::scopes;

/// A policy that was just installed is in force a moment later.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(500);
/// While there is nothing yet to try one of them on.
const INCOMPLETE: Duration = Duration::from_secs(60);
const NAME: &str = "firewall-approver-selftest";

#[derive(Debug, Error)]
pub enum SelfTestError {
    #[error(
        "the policies do not hold the approver, so it does not serve: {passed}. Apply manifests/seed as it is, with its policies; they go by ServiceAccount {}/{}, and this is {user} (docs/operations.md)",
        names::APPROVER_NAMESPACE,
        names::APPROVER
    )]
    NotHeld { passed: String, user: String },
    #[error("whether policy {policy} holds the approver could not be tried: {failure}")]
    Untried { policy: String, failure: Failure },
}

pub struct SelfTest {
    client: Client,
    /// Those that the approver works on; none: all.
    namespaces: Vec<String>,
    /// A request of our own to try an approval on. It is never decided, and the API server deletes it after a day.
    request: Option<String>,
}

/// What the API server said to something forbidden.
struct Trial {
    policy: &'static str,
    what: String,
    answer: Result<(), Failure>,
}

impl SelfTest {
    pub fn new(client: Client, namespaces: &[String]) -> Self {
        Self {
            client,
            namespaces: namespaces.to_vec(),
            request: None,
        }
    }

    /// Fails unless every policy is shown to hold. Says whether each could be tried.
    pub async fn held(&mut self) -> Result<bool, SelfTestError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.round().await {
                Ok(complete) => return Ok(complete),
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    /// Tries again and again; ends when something passes that is forbidden.
    pub async fn keep(mut self, every: Duration) -> &'static str {
        let mut complete = false;
        let mut failing = false;
        loop {
            tokio::time::sleep(if complete { every } else { every.min(INCOMPLETE) }).await;
            match self.held().await {
                Ok(tried_all) => (complete, failing) = (tried_all, false),
                Err(error @ SelfTestError::NotHeld { .. }) => {
                    tracing::error!(%error, "the self-test of the policies");
                    return "self-test of the policies";
                }
                // A seed that does not answer takes no forbidden write either.
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, "tried again");
                    }
                    failing = true;
                }
            }
        }
    }

    async fn round(&mut self) -> Result<bool, SelfTestError> {
        let mut trials = self.writes().await;
        let (approval, annotation) = (self.approval().await, self.firewall().await);
        let complete = annotation.is_some();
        trials.push(approval);
        trials.extend(annotation);
        let (mut passed, mut untried) = (Vec::new(), None);
        for Trial { policy, what, answer } in trials {
            let policy = format!("{}-{policy}", names::APPROVER);
            match answer {
                Ok(()) => passed.push(format!("{policy} should have refused to {what}")),
                Err(failure) if is_of(&failure, &policy) => {}
                Err(failure) => untried = Some(SelfTestError::Untried { policy, failure }),
            }
        }
        if passed.is_empty() {
            return untried.map_or(Ok(complete), Err);
        }
        Err(SelfTestError::NotHeld {
            passed: passed.join("; "),
            user: self.user().await,
        })
    }

    /// What is of no firewall: with our label, so that the label alone is not what is refused.
    async fn writes(&self) -> Vec<Trial> {
        let served = self.namespaces.first().map_or("default", String::as_str);
        let meta = json!({ "name": NAME, "labels": { names::MANAGED_BY_LABEL: names::APPROVER } });
        let group = "rbac.authorization.k8s.io";
        let secret = json!({ "metadata": meta, "type": "Opaque" });
        let everything = json!([{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }]);
        let role = json!({ "metadata": meta, "rules": everything });
        let binding = json!({
            "metadata": meta,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": NAME },
            "subjects": [{ "apiGroup": group, "kind": "Group", "name": "system:authenticated" }],
        });
        let (tokens, secrets, roles, bindings) = tokio::join!(
            self.create::<Secret>("secrets", names::TOKEN_NAMESPACE, &secret),
            self.create::<Secret>("secrets", served, &secret),
            self.create::<Role>("roles", served, &role),
            self.create::<RoleBinding>("rolebindings", served, &binding),
        );
        vec![tokens, secrets, roles, bindings]
    }

    async fn create<K>(&self, policy: &'static str, namespace: &str, object: &Value) -> Trial
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let what = format!("create {} {namespace}/{NAME}, which is of no firewall", K::kind(&()));
        let answer = match serde_json::from_value::<K>(object.clone()) {
            Ok(object) => {
                let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
                call(format!("try to {what}"), api.create(&dry_run(), &object)).await
            }
            Err(error) => Err(malformed(&what, &error)),
        };
        let answer = answer.map(drop);
        Trial { policy, what, answer }
    }

    /// Our own request is for the canary, whom nothing gives any rights. As approval it gets a reason that is not ours:
    /// of what else the policy asks, nothing is wrong with it.
    async fn approval(&mut self) -> Trial {
        let what = "approve a request for a reason of somebody else's".to_owned();
        let answer = self.approve(&what).await;
        Trial {
            policy: "requests",
            what,
            answer,
        }
    }

    async fn approve(&mut self, what: &str) -> Result<(), Failure> {
        let requests: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let known = match &self.request {
            Some(name) => call_opt(format!("get CertificateSigningRequest {name}"), requests.get(name)).await?,
            None => None,
        };
        let mut request = match known {
            Some(request) => request,
            None => make(&requests).await?,
        };
        let name = request.name_any();
        self.request = Some(name.clone());
        let condition =
            json!({ "conditions": [{ "type": "Approved", "status": "True", "reason": "SelfTest", "message": "-" }] });
        request.status = serde_json::from_value(condition).map_err(|error| malformed(what, &error))?;
        let params = dry_run();
        let approval = requests.replace_subresource("approval", &name, &params, &request);
        call(format!("try to {what} ({name})"), approval).await.map(drop)
    }

    /// None while there is no Firewall.
    async fn firewall(&self) -> Option<Trial> {
        let trial = |what: String, answer| {
            Some(Trial {
                policy: "firewalls",
                what,
                answer,
            })
        };
        for firewalls in scopes::<Firewall>(&self.client, &self.namespaces) {
            let one = ListParams::default().limit(1);
            let found = match call("list Firewalls", firewalls.list_metadata(&one)).await {
                Ok(found) => found.items.into_iter().next(),
                Err(failure) => return trial("label a Firewall".into(), Err(failure)),
            };
            let Some((namespace, name)) = found.and_then(|found| Some((found.namespace()?, found.name_any()))) else {
                continue;
            };
            let what = format!("label Firewall {namespace}/{name}");
            let label = json!({ "metadata": { "labels": { NAME: "true" } } });
            let params = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            let firewalls: Api<Firewall> = Api::namespaced(self.client.clone(), &namespace);
            let patch = Patch::Merge(&label);
            let patch = firewalls.patch_metadata(&name, &params, &patch);
            return match call(format!("try to {what}"), patch).await {
                // It went meanwhile.
                Err(failure) if failure.is(Class::NotFound) => None,
                answer => trial(what, answer.map(drop)),
            };
        }
        None
    }

    async fn user(&self) -> String {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let (params, review) = (PostParams::default(), SelfSubjectReview::default());
        let asked = call(
            "ask who the approver is (SelfSubjectReview)",
            reviews.create(&params, &review),
        );
        let user = asked.await.ok();
        let user = user.and_then(|review| review.status?.user_info?.username);
        user.unwrap_or_else(|| "somebody unknown".to_owned())
    }
}

async fn make(requests: &Api<CertificateSigningRequest>) -> Result<CertificateSigningRequest, Failure> {
    let request = request(names::SIGNER)?;
    let what = "create the CertificateSigningRequest of the self-test";
    call(what, requests.create(&PostParams::default(), &request)).await
}

/// A request to try something on, for the canary's user and a key that is forgotten at once.
pub fn request(signer: &str) -> Result<CertificateSigningRequest, Failure> {
    let what = "write a request to try something on";
    let key = PrivateKey::generate().map_err(|error| malformed(what, &error))?;
    let request = csr::write_canary(&key).map_err(|error| malformed(what, &error))?;
    let object = json!({
        "metadata": { "generateName": "firewall-selftest-" },
        "spec": {
            "request": k8s_openapi::ByteString(request.into_bytes()),
            "signerName": signer,
            "usages": ["digital signature", "client auth"],
        },
    });
    serde_json::from_value(object).map_err(|error| malformed(what, &error))
}

/// Whether it was this policy that refused, and nothing else.
pub fn is_of(failure: &Failure, policy: &str) -> bool {
    failure.is(Class::Invalid)
        && failure
            .detail
            .contains(&format!("ValidatingAdmissionPolicy '{policy}'"))
}

pub fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

fn malformed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure {
        what: what.to_owned(),
        class: Class::Misconfigured,
        detail: error.to_string(),
    }
}
