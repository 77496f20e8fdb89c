//! Tries what the policies of `manifests/seed` forbid, as the approver itself and as dry runs. RBAC alone lets it write
//! any Secret, Role and RoleBinding, anything of a Firewall, and approve any request of its signer. The policies that
//! hold it go by the name of its ServiceAccount: under another name they are void, and nobody would notice.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use contract::csr;
use contract::key::PrivateKey;
use contract::names;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Namespace, Secret};
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

use crate::args::Run;
use crate::run::lease_of;
use crate::watches::scopes;
use crate::webhook;

/// A policy that was just installed is in force a moment later.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(500);
/// While there is nothing yet to try one of them on.
const INCOMPLETE: Duration = Duration::from_secs(60);
/// So long something else than the policies may be in the way of a trial.
const BLIND: Duration = Duration::from_secs(300);
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

impl SelfTestError {
    fn is_silence(&self) -> bool {
        let Self::Untried { failure, .. } = self else {
            return false;
        };
        matches!(failure.class, Class::Unreachable | Class::Busy | Class::Unauthenticated)
    }
}

pub struct SelfTest {
    client: Client,
    /// Those that the approver works on; none: all.
    namespaces: Vec<String>,
    /// Its webhook configuration, where it serves one.
    webhook: Option<String>,
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
    pub fn new(client: Client, run: &Run) -> Self {
        let webhook = run.webhook_listen.filter(|_| !run.dry_run);
        Self {
            client,
            namespaces: run.namespaces.clone(),
            webhook: webhook.map(|_| webhook::names_of(&lease_of(&run.namespaces)).0),
            request: None,
        }
    }

    /// Fails unless every policy is shown to hold. Says whether each could be tried.
    pub async fn held(&mut self) -> Result<bool, SelfTestError> {
        let end = Instant::now() + PATIENCE;
        // Since when forbidden writes have passed without a break: once may be a policy that is being replaced.
        let mut passing: Option<Instant> = None;
        loop {
            let began = Instant::now();
            match self.round().await {
                Ok(complete) => return Ok(complete),
                Err(error @ SelfTestError::NotHeld { .. }) => {
                    if passing.is_some_and(|since| since.elapsed() >= PATIENCE) {
                        return Err(error);
                    }
                    passing.get_or_insert(began);
                }
                Err(error) if Instant::now() >= end => return Err(error),
                Err(_) => passing = None,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Tries again and again; ends when something passes that is forbidden.
    pub async fn keep(mut self, every: Duration) {
        let mut complete = false;
        let mut blind: Option<Instant> = None;
        loop {
            tokio::time::sleep(if complete { every } else { every.min(INCOMPLETE) }).await;
            match self.held().await {
                Ok(tried_all) => (complete, blind) = (tried_all, None),
                Err(error @ SelfTestError::NotHeld { .. }) => {
                    tracing::error!(%error, "the self-test of the policies");
                    return;
                }
                // A seed that does not answer takes no forbidden write either.
                Err(error) if error.is_silence() => tracing::debug!(%error, "tried again"),
                Err(error) => {
                    let since = *blind.get_or_insert_with(|| {
                        tracing::warn!(%error, "tried again");
                        Instant::now()
                    });
                    if since.elapsed() >= BLIND {
                        tracing::error!(%error, "the self-test of the policies could not tell for too long");
                        return;
                    }
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
        trials.extend(self.configuration().await);
        let (mut passed, mut untried) = (Vec::new(), None);
        for Trial { policy, what, answer } in trials {
            let policy = format!("{}-{policy}", names::APPROVER);
            match answer {
                Ok(()) => passed.push(format!("{policy} should have refused to {what}")),
                // It has passed every policy.
                Err(failure) if failure.is(Class::AlreadyExists) => {
                    passed.push(format!("{policy} should have refused to {what}"));
                }
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
        let served = self.served().await;
        let served = served.as_str();
        // Of a name that nobody can have taken beforehand.
        let name = format!("{NAME}-{}", salt());
        let meta = json!({ "name": name, "labels": { names::MANAGED_BY_LABEL: names::APPROVER } });
        let group = "rbac.authorization.k8s.io";
        let secret = json!({ "metadata": meta, "type": "Opaque" });
        // Nothing that a policy of somebody else's would mind: it is a firewall's Role but for its name.
        let harmless = json!([{ "apiGroups": [names::API_GROUP], "resources": ["firewalls"], "verbs": ["get"] }]);
        let role = json!({ "metadata": meta, "rules": harmless });
        let binding = json!({
            "metadata": meta,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
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

    /// A namespace that the approver works on. In one that is going nothing can be made.
    async fn served(&self) -> String {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        for name in &self.namespaces {
            let found = call(format!("get Namespace {name}"), namespaces.get(name)).await;
            if found.is_ok_and(|namespace| namespace.metadata.deletion_timestamp.is_none()) {
                return name.clone();
            }
        }
        "default".to_owned()
    }

    async fn create<K>(&self, policy: &'static str, namespace: &str, object: &Value) -> Trial
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = format!("create {} {namespace}/{name}, which is of no firewall", K::kind(&()));
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
            let label = json!({ "metadata": { "labels": { NAME: salt() } } });
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

    /// None where it is not there, or none of the approver's business.
    async fn configuration(&self) -> Option<Trial> {
        let name = self.webhook.as_deref()?;
        let what = format!("label MutatingWebhookConfiguration {name}");
        let label = json!({ "metadata": { "labels": { NAME: salt() } } });
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let patch = Patch::Merge(&label);
        let answer = call(
            format!("try to {what}"),
            configurations.patch_metadata(name, &params, &patch),
        )
        .await;
        if answer.as_ref().is_err_and(|failure| failure.is(Class::NotFound)) {
            return None;
        }
        Some(Trial {
            policy: "webhooks",
            what,
            answer: answer.map(drop),
        })
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

/// Another one each time: what stands there already is no change, and no policy minds that.
fn salt() -> String {
    format!("{:016x}", RandomState::new().hash_one(NAME))
}

fn malformed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure {
        what: what.to_owned(),
        class: Class::Misconfigured,
        detail: error.to_string(),
    }
}
