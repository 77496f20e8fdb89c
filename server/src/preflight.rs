//! The approver's own rights, asked for at start: what is missing is named by verb, resource and namespace, with what it
//! is for, before anything is done by halves. The table here is the reason for each rule of
//! `manifests/seed/approver-rbac.yaml`; a right that is not in it is none that the approver needs.

use contract::names;
use futures::future::try_join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use thiserror::Error;

use cluster::api::call;
use cluster::failure::Failure;

use crate::args::Run;
use crate::run::lease_of;
use crate::webhook;

#[derive(Debug, Error)]
pub enum PreflightError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("the approver's identity lacks permissions in this seed: {0}; apply manifests/seed")]
    Missing(String),
}

/// Where a right has to hold.
#[derive(Clone, Copy)]
enum Scope {
    /// The resource is in no namespace.
    Cluster,
    In(&'static str),
    /// In the approver's own namespace.
    Own,
    /// In every namespace that the approver works on.
    Served,
}

#[derive(Clone, Copy)]
struct Need<'a> {
    /// What the approver cannot do without it.
    what_for: &'static str,
    scope: Scope,
    group: &'static str,
    /// With its subresource, if there is one.
    resource: &'static str,
    /// Empty: whatever its name.
    name: &'a str,
    verbs: &'static [&'static str],
}

const fn need<'a>(
    what_for: &'static str,
    scope: Scope,
    (group, resource): (&'static str, &'static str),
    name: &'a str,
    verbs: &'static [&'static str],
) -> Need<'a> {
    Need {
        what_for,
        scope,
        group,
        resource,
        name,
        verbs,
    }
}

const REQUESTS: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");
const APPROVAL: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests/approval");
const SIGNERS: (&str, &str) = ("certificates.k8s.io", "signers");
const REVIEWS: (&str, &str) = ("authorization.k8s.io", "subjectaccessreviews");
const FIREWALLS: (&str, &str) = (names::API_GROUP, "firewalls");
const SECRETS: (&str, &str) = ("", "secrets");
const CONFIG_MAPS: (&str, &str) = ("", "configmaps");
const NAMESPACES: (&str, &str) = ("", "namespaces");
const ACCOUNTS: (&str, &str) = ("", "serviceaccounts");
const TOKENS: (&str, &str) = ("", "serviceaccounts/token");
const ROLES: (&str, &str) = ("rbac.authorization.k8s.io", "roles");
const BINDINGS: (&str, &str) = ("rbac.authorization.k8s.io", "rolebindings");
const EVENTS: (&str, &str) = ("events.k8s.io", "events");
const WEBHOOKS: (&str, &str) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");
const LEASES: (&str, &str) = ("coordination.k8s.io", "leases");

use Scope::{Cluster, In, Own, Served};

const NEEDS: &[Need<'static>] = &[
    need("lead alone", Own, LEASES, "", &["create", "get", "update"]),
    need("see requests", Cluster, REQUESTS, "", &["list", "watch"]),
    need("ask for canaries", Cluster, REQUESTS, "", &["create", "get"]),
    need("decide on requests", Cluster, APPROVAL, "", &["update"]),
    need("approve for the signer", Cluster, SIGNERS, names::SIGNER, &["approve"]),
    need("ask whether a requester may", Cluster, REVIEWS, "", &["create"]),
    need(
        "know which seed this is",
        Cluster,
        NAMESPACES,
        names::TOKEN_NAMESPACE,
        &["get"],
    ),
    need(
        "know which CAs certificates come from",
        In(names::CLIENT_CA_NAMESPACE),
        CONFIG_MAPS,
        names::CLIENT_CA_CONFIG_MAP,
        &["get"],
    ),
    need(
        "restore the key of tokens",
        Own,
        SECRETS,
        names::SEED_KEY_SECRET,
        &["get"],
    ),
    need("make the key of tokens", Own, SECRETS, "", &["create"]),
    need(
        "make, extend and revoke bootstrap tokens",
        In(names::TOKEN_NAMESPACE),
        SECRETS,
        "",
        &["create", "patch"],
    ),
    need(
        "make and revoke tokens of firewalls' ServiceAccounts",
        In(names::SERVICE_ACCOUNT_NAMESPACE),
        SECRETS,
        "",
        &["create", "patch", "delete"],
    ),
    need(
        "make firewalls' ServiceAccounts",
        In(names::SERVICE_ACCOUNT_NAMESPACE),
        ACCOUNTS,
        "",
        &["create", "patch"],
    ),
    need(
        "take away ServiceAccounts of firewalls that are gone",
        In(names::SERVICE_ACCOUNT_NAMESPACE),
        ACCOUNTS,
        "",
        &["list", "delete"],
    ),
    need(
        "make tokens of firewalls' ServiceAccounts",
        In(names::SERVICE_ACCOUNT_NAMESPACE),
        TOKENS,
        "",
        &["create"],
    ),
    need(
        "make and take away the ServiceAccounts that firewalls have where they work with tokens",
        In(names::ACCESS_NAMESPACE),
        ACCOUNTS,
        "",
        &["get", "list", "create", "patch", "delete"],
    ),
    need(
        "make a firewall's first token",
        In(names::ACCESS_NAMESPACE),
        TOKENS,
        "",
        &["create"],
    ),
    need(
        "let firewalls renew their tokens",
        In(names::ACCESS_NAMESPACE),
        ROLES,
        "",
        &["create", "patch", "delete", "escalate", "bind"],
    ),
    need(
        "let firewalls renew their tokens",
        In(names::ACCESS_NAMESPACE),
        BINDINGS,
        "",
        &["create", "patch", "delete"],
    ),
    need("see Firewalls", Served, FIREWALLS, "", &["list", "watch"]),
    need("say how a firewall stands", Served, FIREWALLS, "", &["patch"]),
    need(
        "know a shoot's state",
        Served,
        SECRETS,
        names::STATE_SECRET,
        &["get", "list", "watch"],
    ),
    need(
        "get into shoots",
        Served,
        SECRETS,
        names::SHOOT_ACCESS_SECRET,
        &["list", "watch"],
    ),
    need(
        "write a shoot's state and firewalls' Secrets",
        Served,
        SECRETS,
        "",
        &["create", "patch"],
    ),
    need("take firewalls' Secrets away", Served, SECRETS, "", &["delete"]),
    need(
        "give firewalls their Roles",
        Served,
        ROLES,
        "",
        &["create", "patch", "escalate"],
    ),
    need("take firewalls' Roles away", Served, ROLES, "", &["delete"]),
    need("bind firewalls' Roles", Served, ROLES, "", &["bind"]),
    need("bind firewalls' Roles", Served, BINDINGS, "", &["create", "patch"]),
    need("unbind firewalls' Roles", Served, BINDINGS, "", &["delete"]),
    need("tell people of Firewalls", Served, EVENTS, "", &["create", "patch"]),
    need(
        "tell people of requests",
        In("default"),
        EVENTS,
        "",
        &["create", "patch"],
    ),
];

/// What is only read where no flag says it.
const SERVER: Need<'static> = need(
    "know where firewalls reach this seed (or give --seed-server)",
    In("garden"),
    CONFIG_MAPS,
    "seed-api-server",
    &["get"],
);
const CA: Need<'static> = need(
    "know the seed's CA (or give --seed-ca)",
    Own,
    CONFIG_MAPS,
    "kube-root-ca.crt",
    &["get"],
);

struct Right<'a> {
    need: Need<'a>,
    verb: &'static str,
    /// None where the resource is in no namespace; empty for all.
    namespace: Option<&'a str>,
}

/// Fails with every right that is missing for work as this command line has it.
pub async fn check(client: &Client, run: &Run) -> Result<(), PreflightError> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let webhook = webhook::names_of(&lease_of(&run.namespaces));
    let answers = try_join_all(rights(run, &webhook).iter().map(|right| {
        let reviews = &reviews;
        async move {
            let what = format!("ask whether the approver may {}", right.words());
            let answer = call(what, reviews.create(&PostParams::default(), &right.review())).await?;
            Ok::<_, Failure>((!answer.status.is_some_and(|status| status.allowed)).then(|| right.missing()))
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

/// `webhook`: how its configuration and its Secret are called.
fn rights<'a>(run: &'a Run, webhook: &'a (String, String)) -> Vec<Right<'a>> {
    let by_flag = [
        (run.seed_server.is_none()).then_some(SERVER),
        (run.seed_ca.is_none()).then_some(CA),
    ];
    let (configuration, secret) = webhook;
    let webhook = [
        need(
            "have API servers trust the webhook (manifests/webhook)",
            Cluster,
            WEBHOOKS,
            configuration,
            &["get", "patch"],
        ),
        need(
            "serve the webhook with the certificate of all replicas (manifests/webhook)",
            Own,
            SECRETS,
            secret,
            &["get", "patch"],
        ),
    ];
    let webhook = webhook
        .into_iter()
        .filter(|_| run.webhook_listen.is_some() && !run.dry_run);
    let served: Vec<&str> = if run.namespaces.is_empty() {
        vec![""]
    } else {
        run.namespaces.iter().map(String::as_str).collect()
    };
    let mut rights = Vec::new();
    for need in NEEDS
        .iter()
        .copied()
        .chain(by_flag.into_iter().flatten())
        .chain(webhook)
    {
        let namespaces = match need.scope {
            Cluster => vec![None],
            In(namespace) => vec![Some(namespace)],
            Own => vec![Some(run.own_namespace.as_str())],
            Served => served.iter().copied().map(Some).collect(),
        };
        for namespace in namespaces {
            rights.extend(need.verbs.iter().map(|verb| Right { need, verb, namespace }));
        }
    }
    rights
}

impl Right<'_> {
    fn review(&self) -> SelfSubjectAccessReview {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (resource, subresource) = self.need.resource.split_once('/').unwrap_or((self.need.resource, ""));
        SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(self.verb.into()),
                    group: Some(self.need.group.into()),
                    resource: Some(resource.into()),
                    subresource: some(subresource),
                    name: some(self.need.name),
                    namespace: self.namespace.and_then(some),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        }
    }

    fn words(&self) -> String {
        let mut words = format!("{} {}", self.verb, self.need.resource);
        if !self.need.group.is_empty() {
            words += &format!(".{}", self.need.group);
        }
        if !self.need.name.is_empty() {
            words += &format!(" {:?}", self.need.name);
        }
        match self.namespace {
            None => {}
            Some("") => words += " in all namespaces",
            Some(namespace) => words += &format!(" in namespace {namespace}"),
        }
        words
    }

    fn missing(&self) -> String {
        format!("{} (to {})", self.words(), self.need.what_for)
    }
}
