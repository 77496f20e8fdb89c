//! The approver's own rights, asked for at start: what is missing is named by verb, resource and namespace before
//! anything is done by halves.

use contract::names;
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use thiserror::Error;

use cluster::api::call;
use cluster::failure::Failure;

#[derive(Debug, Error)]
pub enum PreflightError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("the approver's identity lacks permissions in this seed: {0}; apply manifests/seed")]
    Missing(String),
}

struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    name: &'static str,
    /// Empty: in every namespace that the approver works on.
    namespace: String,
    cluster_scoped: bool,
}

/// Fails with every right that is missing for work on these namespaces (none: all).
pub async fn check(client: &Client, own_namespace: &str, namespaces: &[String]) -> Result<(), PreflightError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let rights = rights(own_namespace, namespaces);
    let answers = try_join_all(rights.iter().map(|right| {
        let reviews = &reviews;
        async move {
            let what = format!("ask whether the approver may {}", right.words());
            let answer = call(what, reviews.create(&PostParams::default(), &right.review())).await?;
            Ok::<_, Failure>((!answer.status.is_some_and(|status| status.allowed)).then(|| right.words()))
        }
    }))
    .await?;
    let missing: Vec<String> = answers.into_iter().flatten().collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(PreflightError::Missing(missing.join("; ")))
    }
}

fn rights(own_namespace: &str, namespaces: &[String]) -> Vec<Right> {
    let right = |verb, group, resource, subresource, name, namespace: &str| Right {
        verb,
        group,
        resource,
        subresource,
        name,
        namespace: namespace.to_owned(),
        cluster_scoped: false,
    };
    let cluster = |verb, resource, subresource, name| Right {
        cluster_scoped: true,
        ..right(verb, "certificates.k8s.io", resource, subresource, name, "")
    };
    let mut rights = vec![
        cluster("create", "certificatesigningrequests", "", ""),
        cluster("get", "certificatesigningrequests", "", ""),
        cluster("list", "certificatesigningrequests", "", ""),
        cluster("watch", "certificatesigningrequests", "", ""),
        cluster("update", "certificatesigningrequests", "approval", ""),
        cluster("approve", "signers", "", names::SIGNER),
        Right {
            cluster_scoped: true,
            ..right("create", "authorization.k8s.io", "subjectaccessreviews", "", "", "")
        },
        right(
            "get",
            "",
            "configmaps",
            "",
            names::CLIENT_CA_CONFIG_MAP,
            names::CLIENT_CA_NAMESPACE,
        ),
        right("get", "", "secrets", "", names::SEED_KEY_SECRET, own_namespace),
        right("create", "", "secrets", "", "", own_namespace),
        right("patch", "", "secrets", "", "", names::TOKEN_NAMESPACE),
        right("create", "", "secrets", "", "", names::TOKEN_NAMESPACE),
        right(
            "create",
            "",
            "serviceaccounts",
            "token",
            "",
            names::SERVICE_ACCOUNT_NAMESPACE,
        ),
        right("delete", "", "secrets", "", "", names::SERVICE_ACCOUNT_NAMESPACE),
    ];
    for verb in ["list", "create", "patch", "delete"] {
        rights.push(right(
            verb,
            "",
            "serviceaccounts",
            "",
            "",
            names::SERVICE_ACCOUNT_NAMESPACE,
        ));
    }
    let everywhere = [String::new()];
    for namespace in if namespaces.is_empty() {
        &everywhere[..]
    } else {
        namespaces
    } {
        for verb in ["list", "watch"] {
            rights.push(right(verb, names::API_GROUP, "firewalls", "", "", namespace));
            rights.push(right(verb, "", "secrets", "", names::STATE_SECRET, namespace));
            rights.push(right(verb, "", "secrets", "", names::SHOOT_ACCESS_SECRET, namespace));
        }
        rights.push(right("get", "", "secrets", "", names::STATE_SECRET, namespace));
        rights.push(right("patch", names::API_GROUP, "firewalls", "", "", namespace));
        for verb in ["create", "patch", "delete"] {
            rights.push(right(verb, "", "secrets", "", "", namespace));
            rights.push(right(
                verb,
                "rbac.authorization.k8s.io",
                "rolebindings",
                "",
                "",
                namespace,
            ));
        }
        for verb in ["create", "patch", "delete", "escalate", "bind"] {
            rights.push(right(verb, "rbac.authorization.k8s.io", "roles", "", "", namespace));
        }
        for verb in ["create", "patch"] {
            rights.push(right(verb, "events.k8s.io", "events", "", "", namespace));
        }
    }
    rights
}

impl Right {
    fn review(&self) -> SelfSubjectAccessReview {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(self.verb.into()),
                    group: Some(self.group.into()),
                    resource: Some(self.resource.into()),
                    subresource: some(self.subresource),
                    name: some(self.name),
                    namespace: some(&self.namespace),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        }
    }

    fn words(&self) -> String {
        let mut words = format!("{} {}", self.verb, self.resource);
        if !self.subresource.is_empty() {
            words += &format!("/{}", self.subresource);
        }
        if !self.group.is_empty() {
            words += &format!(".{}", self.group);
        }
        if !self.name.is_empty() {
            words += &format!(" {:?}", self.name);
        }
        if !self.cluster_scoped {
            words += &if self.namespace.is_empty() {
                " in all namespaces".to_owned()
            } else {
                format!(" in namespace {}", self.namespace)
            };
        }
        words
    }
}
