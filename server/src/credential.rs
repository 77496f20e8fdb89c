//! The bootstrap credential in the seed, of both kinds: makes it stand, hands it out, revokes it. When it is to stand
//! and for how long is on record (`core::life`); nothing here invents a token that a restart would invent anew.

use contract::grant::{self, GrantError};
use contract::key::PublicKey;
use contract::kubeconfig::{BootstrapExtension, Credential as KubeconfigCredential, Kubeconfig};
use contract::names::{self, FirewallName};
use contract::record::{Credential, CredentialKind};
use contract::token::{SeedKey, TokenError};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use thiserror::Error;

use cluster::api::{apply, call, call_opt};
use cluster::failure::{Class, Failure};

use crate::core::credential::{CREDENTIAL_LIMIT, fresh};
use crate::core::plan;
use crate::seed::Seed;

#[derive(Debug, Error)]
pub enum CredentialError {
    #[error(transparent)]
    Call(#[from] Failure),
    #[error("Secret {0}/firewall-approver-key: {1}")]
    SeedKey(String, TokenError),
    #[error(
        "Secret {0}/firewall-approver-key has no key `key`: restore it, or delete the Secret to have a new one made (every unused bootstrap token then changes)"
    )]
    NoSeedKey(String),
    #[error("the token of ServiceAccount {0} came back empty")]
    NoToken(FirewallName),
    #[error("the token of ServiceAccount firewall-access/{0}: {1}")]
    Grant(FirewallName, GrantError),
}

/// What became of making a credential stand.
pub enum Standing {
    /// This opens the seed for a first request.
    Kubeconfig(SecretString),
    /// The token's id is somebody else's: the next epoch has another.
    IdTaken,
}

const SEED_KEY: &str = "key";

/// The key that this seed's bootstrap tokens are derived from: restored, or made once.
pub async fn seed_key(seed: &Seed) -> Result<SeedKey, CredentialError> {
    let namespace = &seed.own_namespace;
    let what = |verb: &str| format!("{verb} Secret {namespace}/{}", names::SEED_KEY_SECRET);
    let secrets = seed.secrets(namespace);
    let secret = if let Some(secret) = seed_key_secret(seed).await? {
        secret
    } else {
        let key = SeedKey::generate().map_err(|e| CredentialError::SeedKey(namespace.clone(), e))?;
        let secret: Secret = Secret {
            metadata: ObjectMeta {
                name: Some(names::SEED_KEY_SECRET.into()),
                namespace: Some(namespace.clone()),
                labels: Some([(names::MANAGED_BY_LABEL.to_owned(), names::APPROVER.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".into()),
            data: Some([(SEED_KEY.to_owned(), k8s_openapi::ByteString(key.as_bytes().to_vec()))].into()),
            ..Secret::default()
        };
        // A POST, not an apply: of two replicas that start together one makes it and the other reads it.
        match call(what("create"), secrets.create(&PostParams::default(), &secret)).await {
            Ok(secret) => secret,
            Err(failure) if failure.is(Class::AlreadyExists) => {
                call(what("get"), secrets.get(names::SEED_KEY_SECRET)).await?
            }
            Err(failure) => return Err(failure.into()),
        }
    };
    read_seed_key(namespace, secret)
}

/// The same where it is there; of a replica that makes none.
pub async fn find_seed_key(seed: &Seed) -> Result<Option<SeedKey>, CredentialError> {
    let found = seed_key_secret(seed).await?;
    found
        .map(|secret| read_seed_key(&seed.own_namespace, secret))
        .transpose()
}

async fn seed_key_secret(seed: &Seed) -> Result<Option<Secret>, CredentialError> {
    let namespace = &seed.own_namespace;
    let what = format!("get Secret {namespace}/{}", names::SEED_KEY_SECRET);
    Ok(call_opt(what, seed.secrets(namespace).get(names::SEED_KEY_SECRET)).await?)
}

fn read_seed_key(namespace: &str, secret: Secret) -> Result<SeedKey, CredentialError> {
    let data = secret.data.unwrap_or_default();
    let bytes = data
        .get(SEED_KEY)
        .ok_or_else(|| CredentialError::NoSeedKey(namespace.to_owned()))?;
    SeedKey::from_bytes(&bytes.0).map_err(|e| CredentialError::SeedKey(namespace.to_owned(), e))
}

/// Makes the credential on record stand. `known` is the bootstrap kubeconfig that was handed out before.
pub async fn stand(
    seed: &Seed,
    key: &SeedKey,
    firewall: &plan::Firewall<'_>,
    credential: &Credential,
    extension: BootstrapExtension,
    known: Option<&Kubeconfig>,
) -> Result<Standing, CredentialError> {
    let bearer = match credential.kind {
        CredentialKind::Token => match token(seed, key, firewall, credential).await? {
            Some(bearer) => bearer,
            None => return Ok(Standing::IdTaken),
        },
        CredentialKind::ServiceAccount => service_account(seed, firewall, credential, known, None).await?,
    };
    let kubeconfig = seed
        .endpoint()
        .kubeconfig(firewall.namespace, KubeconfigCredential::Token(bearer), Some(extension))
        .write();
    Ok(Standing::Kubeconfig(SecretString::from(kubeconfig.as_str())))
}

/// Revokes the credential on record. Saying it twice does no harm.
pub async fn revoke(
    seed: &Seed,
    key: &SeedKey,
    namespace: &str,
    firewall: &FirewallName,
    credential: &Credential,
) -> Result<(), CredentialError> {
    match credential.kind {
        CredentialKind::Token => {
            let name = key.token(namespace, firewall, credential.epoch).secret_name();
            let past = k8s_openapi::ByteString(plan::rfc3339(Timestamp::UNIX_EPOCH).into_bytes());
            // A past expiration makes the token a 401 within seconds, and the token cleaner then removes it.
            let patch = json!({ "data": { "expiration": past } });
            seed.patch_secret(names::TOKEN_NAMESPACE, &name, &patch).await?;
        }
        CredentialKind::ServiceAccount => {
            // The token is bound to this Secret and dies with it.
            seed.delete_secret(names::SERVICE_ACCOUNT_NAMESPACE, firewall.as_str())
                .await?;
        }
    }
    Ok(())
}

async fn token(
    seed: &Seed,
    key: &SeedKey,
    firewall: &plan::Firewall<'_>,
    credential: &Credential,
) -> Result<Option<SecretString>, CredentialError> {
    let token = key.token(firewall.namespace, firewall.name, credential.epoch);
    let labels = plan::labels(firewall.namespace, firewall.name);
    match seed.read_own(names::TOKEN_NAMESPACE, &token.secret_name()).await {
        Ok(None) => {}
        Ok(Some(found)) if found.labels() == &labels => {}
        // Somebody else's: seen, or kept from us by the policy.
        Ok(Some(_)) => return Ok(None),
        Err(failure) if failure.is(Class::Invalid) => return Ok(None),
        Err(failure) => return Err(failure.into()),
    }
    let what_for = format!("firewall {}/{}", firewall.namespace, firewall.name);
    let secret = plan::token_secret(&token, labels, &what_for, credential.expires);
    seed.apply_secret(names::TOKEN_NAMESPACE, &secret).await?;
    Ok(Some(token.bearer()))
}

/// A ServiceAccount's token for a Firewall that is about to be made: bound to the Secret that the worker's will be bound to.
pub async fn admitted(
    seed: &Seed,
    firewall: &plan::Firewall<'_>,
    now: Timestamp,
) -> Result<SecretString, CredentialError> {
    let credential = fresh(CredentialKind::ServiceAccount, 0, now);
    service_account(seed, firewall, &credential, None, Some(now)).await
}

/// `admitted`: its Firewall is not there yet, and nobody is to take it for one that is gone.
async fn service_account(
    seed: &Seed,
    of: &plan::Firewall<'_>,
    credential: &Credential,
    known: Option<&Kubeconfig>,
    admitted: Option<Timestamp>,
) -> Result<SecretString, CredentialError> {
    let (namespace, firewall) = (names::SERVICE_ACCOUNT_NAMESPACE, of.name);
    let meta = ObjectMeta {
        name: Some(firewall.to_string()),
        namespace: Some(namespace.into()),
        labels: Some(plan::labels(of.namespace, firewall)),
        ..ObjectMeta::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(seed.client.clone(), namespace);
    let annotation = |time: Timestamp| [(names::ADMITTED.to_owned(), time.as_second().to_string())].into();
    let account = ServiceAccount {
        metadata: ObjectMeta {
            annotations: admitted.map(annotation),
            ..meta.clone()
        },
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    apply(&accounts, names::APPROVER, firewall.as_str(), &account).await?;
    if let Some(found) = seed.read_own(namespace, firewall.as_str()).await?
        && Some(found.labels()) != meta.labels.as_ref()
    {
        // It was made for a firewall of this name in another namespace: its tokens must not open this one's name.
        seed.delete_secret(namespace, firewall.as_str()).await?;
    }
    let secret = Secret {
        metadata: meta,
        type_: Some("Opaque".into()),
        ..Secret::default()
    };
    let bound = seed.apply_secret(namespace, &secret).await?;
    let uid = bound.uid().unwrap_or_default();

    if let Some(Kubeconfig {
        credential: KubeconfigCredential::Token(token),
        ..
    }) = known
        && bound_to(token, &uid)
    {
        return Ok(token.clone());
    }
    let life = credential
        .limit
        .duration_since(Timestamp::now())
        .clamp(jiff::SignedDuration::from_mins(10), CREDENTIAL_LIMIT);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(life.as_secs()),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Secret".into()),
                name: Some(firewall.to_string()),
                uid: Some(uid),
            }),
        },
        ..TokenRequest::default()
    };
    let what = format!("create a token of ServiceAccount {namespace}/{firewall}");
    let answer = call(
        what,
        accounts.create_subresource::<_, TokenRequest>("token", firewall.as_str(), &PostParams::default(), &request),
    )
    .await?;
    answer
        .status
        .map(|status| SecretString::from(status.token))
        .ok_or_else(|| CredentialError::NoToken(firewall.clone()))
}

/// How long a firewall's access token lives. It renews it long before.
const ACCESS_TOKEN_SECONDS: i64 = 24 * 3600;

/// Whether it was made for this very Firewall. What else somebody, or another version, has written on it is nobody's death.
fn is_same(found: &ServiceAccount, wanted: &ServiceAccount) -> bool {
    let mut labels = wanted.labels().iter();
    labels.all(|(key, value)| found.labels().get(key) == Some(value))
}

/// Has the ServiceAccount stand whose tokens are this firewall's access. One that was made for another Firewall of its name
/// goes, and with it every token of it.
pub async fn access_account(seed: &Seed, account: &ServiceAccount) -> Result<(), CredentialError> {
    let (namespace, name) = (names::ACCESS_NAMESPACE, account.name_any());
    let accounts: Api<ServiceAccount> = Api::namespaced(seed.client.clone(), namespace);
    let what = |verb: &str| format!("{verb} ServiceAccount {namespace}/{name}");
    if let Some(found) = call_opt(what("get"), accounts.get(&name)).await? {
        if is_same(&found, account) {
            return Ok(());
        }
        call_opt(what("delete"), accounts.delete(&name, &DeleteParams::default())).await?;
    }
    apply(&accounts, names::APPROVER, &name, account).await?;
    Ok(())
}

/// The answer to a firewall's request where it is to work with tokens, as it stands in a condition of the request.
pub async fn grant(
    seed: &Seed,
    of: &plan::Firewall<'_>,
    key: &PublicKey,
    request: &[u8],
) -> Result<String, CredentialError> {
    let (namespace, firewall) = (names::ACCESS_NAMESPACE, of.name);
    access_account(seed, &plan::access_account(of)).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(seed.client.clone(), namespace);
    let request_token = TokenRequest {
        spec: TokenRequestSpec {
            audiences: Vec::new(),
            expiration_seconds: Some(ACCESS_TOKEN_SECONDS),
            bound_object_ref: None,
        },
        ..TokenRequest::default()
    };
    let what = format!("create a token of ServiceAccount {namespace}/{firewall}");
    let params = PostParams::default();
    let made = accounts.create_subresource::<_, TokenRequest>("token", firewall.as_str(), &params, &request_token);
    let token = call(what, made)
        .await?
        .status
        .map(|status| SecretString::from(status.token));
    let token = token.ok_or_else(|| CredentialError::NoToken(firewall.clone()))?;
    grant::write(key, request, firewall, &token).map_err(|e| CredentialError::Grant(firewall.clone(), e))
}

/// Whether this token lives and is bound to the Secret of that UID. It was made by this seed for us; nobody else's word
/// depends on it, so its claims are read without verifying them.
fn bound_to(token: &SecretString, uid: &str) -> bool {
    let claims = contract::token::unverified_claims(token.expose_secret());
    let bound = claims
        .as_ref()
        .and_then(|c| c.pointer("/kubernetes.io/secret/uid"))
        .and_then(|v| v.as_str());
    let expires = claims
        .as_ref()
        .and_then(|c| c.get("exp"))
        .and_then(serde_json::Value::as_i64)
        .unwrap_or(0);
    bound == Some(uid) && expires > Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b6_a_label_of_somebody_else_replaces_no_account_and_another_firewalls_does() {
        let account = |labels: &[(&str, &str)]| {
            let mut account = ServiceAccount::default();
            let labels = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            account.metadata.labels = Some(labels.collect());
            account
        };
        let wanted = account(&[(names::UID_LABEL, "a")]);
        assert!(is_same(&wanted, &wanted));
        assert!(is_same(&account(&[(names::UID_LABEL, "a"), ("team", "x")]), &wanted));
        assert!(!is_same(&account(&[(names::UID_LABEL, "b")]), &wanted));
        assert!(!is_same(&account(&[]), &wanted));
    }
}
