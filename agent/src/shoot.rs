//! The shoot kubeconfig: made from what our Firewall says of its shoot access, tried, written for the consumer, and
//! made anew before its token ends. Refuses whatever would lead elsewhere than to our own shoot.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use cluster::api::call;
use cluster::client::connect;
use cluster::failure::{Class, Failure};
use cluster::firewall::ShootAccess;
use contract::kubeconfig::{Credential, Kubeconfig, KubeconfigError};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use thiserror::Error;
use tracing::info;

use crate::core::{Job, Patience, Via, token_refresh_at};
use crate::link::{Link, who_am_i};
use crate::machine::Machine;
use crate::store::StoreError;

const TEMPLATE_KEY: &str = "kubeconfig";
const TOKEN_KEY: &str = "token";
/// How the API server of a shoot is called inside its own seed.
const IN_CLUSTER: &str = "kube-apiserver";

/// The shoot as it is reached now.
pub(crate) struct Shoot {
    pub(crate) client: Client,
    pub(crate) expires: Option<Timestamp>,
    text: SecretString,
}

#[derive(Debug, Error)]
pub(crate) enum ShootError {
    #[error("Firewall {0} has no status.shootAccess yet: firewall-controller-manager writes it")]
    Pending(String),
    #[error("Firewall {firewall}: status.shootAccess.{field} is empty")]
    Empty { firewall: String, field: &'static str },
    #[error("Firewall {firewall}: status.shootAccess.namespace is {found:?}, and ours is {ours:?}: refused")]
    OtherNamespace {
        firewall: String,
        found: String,
        ours: String,
    },
    #[error("Firewall {0}: status.shootAccess names the same Secret twice")]
    SameSecret(String),
    #[error("{secret} has no key {key:?}")]
    NoKey { secret: String, key: &'static str },
    #[error("{secret}: key {key:?} is not text of one line")]
    NotAToken { secret: String, key: &'static str },
    #[error("{secret} refused: {problem}")]
    Template {
        secret: String,
        problem: Box<KubeconfigError>,
    },
    #[error("{secret} refused: it leads to {found}, which is another's server; ours is {ours}")]
    OtherServer {
        secret: String,
        found: String,
        ours: String,
    },
    #[error("the shoot kubeconfig made of {secret} is refused: {problem}")]
    Made { secret: String, problem: String },
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Machine {
    pub(crate) async fn refresh_shoot(&mut self) {
        let link = match self.link(Via::Own) {
            Ok(link) => link,
            Err(problem) => return self.failed(Job::Shoot, Patience::Normal, &problem),
        };
        match self.make_shoot(&link).await {
            // The Secrets may change long before the token ends: when the shoot's keys are rolled.
            Ok(again) => {
                let poll = Timestamp::now().checked_add(self.settings.poll_interval);
                self.done_until(Job::Shoot, poll.map_or(again, |poll| again.min(poll)));
            }
            Err(error) => {
                let patience = match &error {
                    // Its Role is written by the same hand that writes the names, a moment later.
                    ShootError::Failed(failure)
                        if failure.is(Class::Forbidden)
                            && self.shoot.is_none()
                            && self.state.pace(Job::Shoot).failures < 6 =>
                    {
                        Patience::Lag
                    }
                    _ => Patience::Normal,
                };
                self.failed(Job::Shoot, patience, &error);
            }
        }
    }

    async fn make_shoot(&mut self, link: &Link) -> Result<Timestamp, ShootError> {
        let firewall = format!("{}/{}", link.access.namespace, self.firewall);
        let found = self.seen.as_ref().and_then(|seen| seen.shoot_access.as_ref());
        let access = check_access(&firewall, found, &link.access.namespace)?.clone();
        let (kubeconfig, life) = fetch(&link.client, &access).await?;
        let made = |problem: String| ShootError::Made {
            secret: name(&access, &access.token_secret_name),
            problem,
        };
        let text = kubeconfig.write();
        let expires = life.map(|(_, expires)| expires);
        if self
            .shoot
            .as_ref()
            .is_none_or(|shoot| shoot.text.expose_secret() != text.as_str())
        {
            let client = connect("the shoot", &kubeconfig).map_err(|e| made(e.to_string()))?;
            let user = who_am_i(&client, "the shoot").await?;
            let path = self.store.paths.shoot();
            if self.store.write_kubeconfig(&path, &text)? {
                let until = expires.map(|expires| expires.to_string()).unwrap_or_default();
                info!(firewall = %self.object(), server = %kubeconfig.server, user, until, "shoot access written");
            }
            self.shoot = Some(Shoot {
                client,
                expires,
                text: SecretString::from(text.to_string()),
            });
            self.ways_changed();
        }
        Ok(token_refresh_at(life, Timestamp::now()))
    }
}

pub(crate) type Life = Option<(Timestamp, Timestamp)>;

async fn fetch(seed: &Client, access: &ShootAccess) -> Result<(Kubeconfig, Life), ShootError> {
    let secret = name(access, &access.generic_kubeconfig_secret_name);
    let template = read(seed, access, &access.generic_kubeconfig_secret_name, TEMPLATE_KEY).await?;
    let template =
        Kubeconfig::read_template(&secret, template.expose_secret()).map_err(|problem| ShootError::Template {
            secret: secret.clone(),
            problem: Box::new(problem),
        })?;
    if !leads_to_us(&template.server, access) {
        let ours = access.api_server_url.clone();
        return Err(ShootError::OtherServer {
            secret,
            found: template.server,
            ours,
        });
    }
    let token = read(seed, access, &access.token_secret_name, TOKEN_KEY).await?;
    let token = token.expose_secret().trim_ascii().to_owned();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let secret = name(access, &access.token_secret_name);
        return Err(ShootError::NotAToken { secret, key: TOKEN_KEY });
    }
    let life = life(&token);
    let made = Kubeconfig {
        server: access.api_server_url.trim_end_matches('/').to_owned(),
        credential: Credential::Token(SecretString::from(token)),
        namespace: access.namespace.clone(),
        bootstrap: None,
        ..template
    };
    // Read as every later reader will, before anything is sent to where it leads.
    Kubeconfig::read("of the shoot", &made.write())
        .map(|made| (made, life))
        .map_err(|problem| ShootError::Made {
            secret,
            problem: problem.to_string(),
        })
}

async fn read(
    seed: &Client,
    access: &ShootAccess,
    secret: &str,
    key: &'static str,
) -> Result<SecretString, ShootError> {
    let secrets: Api<Secret> = Api::namespaced(seed.clone(), &access.namespace);
    let name = name(access, secret);
    let found = call(format!("get {name}"), secrets.get(secret)).await?;
    let value = found.data.and_then(|mut data| data.remove(key));
    let value = value.ok_or_else(|| ShootError::NoKey {
        secret: name.clone(),
        key,
    })?;
    String::from_utf8(value.0)
        .map(SecretString::from)
        .map_err(|_| ShootError::NotAToken { secret: name, key })
}

fn name(access: &ShootAccess, secret: &str) -> String {
    format!("Secret {}/{secret}", access.namespace)
}

fn check_access<'a>(
    firewall: &str,
    access: Option<&'a ShootAccess>,
    ours: &str,
) -> Result<&'a ShootAccess, ShootError> {
    let access = access.ok_or_else(|| ShootError::Pending(firewall.to_owned()))?;
    for (field, value) in [
        ("genericKubeconfigSecretName", &access.generic_kubeconfig_secret_name),
        ("tokenSecretName", &access.token_secret_name),
        ("namespace", &access.namespace),
        ("apiServerURL", &access.api_server_url),
    ] {
        if value.is_empty() {
            return Err(ShootError::Empty {
                firewall: firewall.to_owned(),
                field,
            });
        }
    }
    if access.namespace != ours {
        let found = access.namespace.clone();
        return Err(ShootError::OtherNamespace {
            firewall: firewall.to_owned(),
            found,
            ours: ours.to_owned(),
        });
    }
    if access.generic_kubeconfig_secret_name == access.token_secret_name {
        return Err(ShootError::SameSecret(firewall.to_owned()));
    }
    Ok(access)
}

/// The generic kubeconfig is made for pods of the control plane, so it names the API server as they see it: by its
/// Service in this very namespace. Everything else is somebody else's.
fn leads_to_us(server: &str, access: &ShootAccess) -> bool {
    let server = server.trim_end_matches('/');
    if server == access.api_server_url.trim_end_matches('/') {
        return true;
    }
    let namespace = &access.namespace;
    let names = [
        IN_CLUSTER.to_owned(),
        format!("{IN_CLUSTER}.{namespace}"),
        format!("{IN_CLUSTER}.{namespace}.svc"),
        format!("{IN_CLUSTER}.{namespace}.svc.cluster.local"),
    ];
    let host = server.strip_prefix("https://").unwrap_or_default();
    names
        .iter()
        .any(|name| name == host.strip_suffix(":443").unwrap_or(host))
}

/// When a token was issued and when it ends, if it says so. Nothing is decided by it but when to look again.
pub(crate) fn life(token: &str) -> Life {
    #[derive(Deserialize)]
    struct Claims {
        iat: i64,
        exp: i64,
    }
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    Some((
        Timestamp::from_second(claims.iat).ok()?,
        Timestamp::from_second(claims.exp).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> ShootAccess {
        ShootAccess {
            generic_kubeconfig_secret_name: "generic-token-kubeconfig-1".into(),
            token_secret_name: "shoot-access".into(),
            namespace: "shoot--a".into(),
            api_server_url: "https://api.a.example.org".into(),
        }
    }

    #[test]
    fn only_our_own_shoots_server_is_led_to() {
        for good in [
            "https://api.a.example.org",
            "https://api.a.example.org/",
            "https://kube-apiserver",
            "https://kube-apiserver:443",
            "https://kube-apiserver.shoot--a",
            "https://kube-apiserver.shoot--a.svc",
            "https://kube-apiserver.shoot--a.svc.cluster.local",
            "https://kube-apiserver.shoot--a.svc.cluster.local:443",
        ] {
            assert!(leads_to_us(good, &access()), "{good}");
        }
        for bad in [
            "https://api.b.example.org",
            "https://api.a.example.org:8443",
            "https://kube-apiserver.shoot--b.svc",
            "https://kube-apiserver.shoot--a.svc.evil.org",
            "https://kube-apiserver:6443",
            "https://kube-apiserver.shoot--a.svc:443:443",
            "http://kube-apiserver",
            "",
        ] {
            assert!(!leads_to_us(bad, &access()), "{bad}");
        }
    }

    #[test]
    fn each_fault_of_the_shoot_access_is_named() {
        let check = |access: Option<&ShootAccess>| check_access("shoot--a/fw", access, "shoot--a").map(drop);
        assert!(check(Some(&access())).is_ok());
        assert!(matches!(check(None), Err(ShootError::Pending(_))));
        type Spoil = fn(&mut ShootAccess);
        let table: [(&str, Spoil); 6] = [
            ("genericKubeconfigSecretName", |access| {
                access.generic_kubeconfig_secret_name.clear()
            }),
            ("tokenSecretName", |access| access.token_secret_name.clear()),
            ("namespace", |access| access.namespace.clear()),
            ("apiServerURL", |access| access.api_server_url.clear()),
            ("shoot--b", |access| access.namespace = "shoot--b".into()),
            ("same Secret", |access| {
                access
                    .token_secret_name
                    .clone_from(&access.generic_kubeconfig_secret_name)
            }),
        ];
        for (named, spoil) in table {
            let mut access = access();
            spoil(&mut access);
            let error = check(Some(&access)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_life_of_a_token_is_read_if_it_says_so() {
        let token = |claims: &str| format!("h.{}.s", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let second = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(
            life(&token(r#"{"iat":5,"exp":105,"sub":"x"}"#)),
            Some((second(5), second(105)))
        );
        for opaque in [
            "",
            "opaque",
            "a.b.c",
            &token(r#"{"exp":5}"#),
            &token("[]"),
            &token(r#"{"iat":1,"exp":9e99}"#),
        ] {
            assert_eq!(life(opaque), None, "{opaque}");
        }
    }
}
