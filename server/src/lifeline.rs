//! The lifeline: a firewall's own way into its shoot that hangs on no seed. A ServiceAccount in the shoot that may do
//! three things: read and patch its own FirewallMonitor, read the shoot's CA, renew its own token.

use contract::kubeconfig::{Credential, Kubeconfig};
use contract::names::{self, FirewallName};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use secrecy::{ExposeSecret, SecretString};

use cluster::api::{apply, call, call_opt};
use cluster::client;
use cluster::failure::{Class, Failure};

use crate::core::plan;
use crate::shoots::Shoot;

/// Asked for; an API server may give less.
const LIFE: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The lifeline as it stands in the firewall's Secret, if its token has more than half its life left and leads to the
/// same server.
pub fn restore(kubeconfig: &str, shoot: &Shoot, server: &str, now: Timestamp) -> Option<SecretString> {
    let known = Kubeconfig::read("the lifeline", kubeconfig).ok()?;
    let Credential::Token(token) = &known.credential else {
        return None;
    };
    let claims = contract::token::unverified_claims(token.expose_secret())?;
    let second = |claim: &str| claims.get(claim).and_then(serde_json::Value::as_i64);
    let (issued, expires) = (second("iat")?, second("exp")?);
    let fresh = now.as_second() < issued + (expires - issued) / 2;
    (fresh && known.server == server && known.ca == shoot.ca).then(|| SecretString::from(kubeconfig.to_owned()))
}

/// Whether this lifeline lets its firewall in. Only a refusal says that it does not: a shoot that is away says nothing.
pub async fn is_refused(kubeconfig: &str) -> Result<bool, Failure> {
    let Ok(kubeconfig) = Kubeconfig::read("the lifeline", kubeconfig) else {
        return Ok(true);
    };
    let what = "try a lifeline (SelfSubjectReview)";
    let client = client::connect("the lifeline", &kubeconfig).map_err(|e| Failure {
        what: what.into(),
        class: Class::Misconfigured,
        detail: e.to_string(),
    })?;
    let reviews: Api<SelfSubjectReview> = Api::all(client);
    match call(
        what,
        reviews.create(&PostParams::default(), &SelfSubjectReview::default()),
    )
    .await
    {
        Ok(_) => Ok(false),
        Err(failure) if failure.is(Class::Unauthenticated) => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Takes the lifeline of a firewall that was deleted for good out of the shoot.
pub async fn remove(shoot: &Shoot, firewall: &FirewallName) -> Result<(), Failure> {
    let name = firewall.lifeline();
    let what = |kind: &str| format!("delete {kind} {}/{name} in the shoot", names::MONITOR_NAMESPACE);
    let params = DeleteParams::default();
    let bindings: Api<RoleBinding> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    call_opt(what("RoleBinding"), bindings.delete(&name, &params)).await?;
    let roles: Api<Role> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    call_opt(what("Role"), roles.delete(&name, &params)).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    call_opt(what("ServiceAccount"), accounts.delete(&name, &params)).await?;
    Ok(())
}

/// Makes the lifeline's account and its rights stand: somebody in the shoot may have taken away one of them.
pub async fn stand(shoot: &Shoot, namespace: &str, firewall: &FirewallName) -> Result<(), Failure> {
    let name = firewall.lifeline();
    let meta = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(names::MONITOR_NAMESPACE.into()),
        labels: Some(plan::labels(namespace, firewall)),
        ..ObjectMeta::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    let account = ServiceAccount {
        metadata: meta.clone(),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    apply(&accounts, names::APPROVER, &name, &account).await?;
    let role = Role {
        metadata: meta.clone(),
        rules: Some(rules(firewall)),
    };
    let roles: Api<Role> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    apply(&roles, names::APPROVER, &name, &role).await?;
    let binding = RoleBinding {
        metadata: meta,
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "Role".into(),
            name: name.clone(),
        },
        subjects: Some(vec![Subject {
            api_group: None,
            kind: "ServiceAccount".into(),
            name: name.clone(),
            namespace: Some(names::MONITOR_NAMESPACE.into()),
        }]),
    };
    let bindings: Api<RoleBinding> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    apply(&bindings, names::APPROVER, &name, &binding).await.map(drop)
}

/// Asks for a token of the account.
pub async fn mint(
    shoot: &Shoot,
    namespace: &str,
    firewall: &FirewallName,
    server: &str,
) -> Result<SecretString, Failure> {
    let name = firewall.lifeline();
    let accounts: Api<ServiceAccount> = Api::namespaced(shoot.client.clone(), names::MONITOR_NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(LIFE.as_secs()),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let what = format!(
        "create a token of ServiceAccount {}/{name} in the shoot",
        names::MONITOR_NAMESPACE
    );
    let answer: TokenRequest = call(
        what,
        accounts.create_subresource("token", &name, &PostParams::default(), &request),
    )
    .await?;
    let kubeconfig = Kubeconfig {
        server: server.to_owned(),
        tls_server_name: None,
        ca: shoot.ca.clone(),
        credential: Credential::Token(answer.status.map(|status| status.token).unwrap_or_default().into()),
        namespace: namespace.to_owned(),
        bootstrap: None,
    };
    Ok(SecretString::from(kubeconfig.write().as_str()))
}

fn rules(firewall: &FirewallName) -> Vec<PolicyRule> {
    let rule = |group: &str, resource: &str, name: String, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(vec![name]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    vec![
        rule(
            names::API_GROUP,
            "firewallmonitors",
            firewall.to_string(),
            &["get", "list", "watch", "patch"],
        ),
        rule("", "configmaps", "kube-root-ca.crt".into(), &["get"]),
        rule("", "serviceaccounts/token", firewall.lifeline(), &["create"]),
    ]
}
