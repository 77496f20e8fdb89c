//! Makes stand in the seed what belongs to a firewall, and takes away what does not. Nothing is written that stands
//! already; what should stand is decided elsewhere.

use contract::kubeconfig::{BootstrapExtension, Kubeconfig};
use contract::names::{self, FirewallName};
use contract::record::Record;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::DeleteParams;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;

use cluster::api::{apply, call_opt};
use cluster::failure::Failure;

use crate::approver::{Approver, HandedOut};
use crate::core::plan;
use crate::credential::{self, CredentialError, Standing};
use crate::firewalls::FirewallError;

pub struct Provision<'a> {
    pub approver: &'a Approver,
    pub namespace: &'a str,
    pub name: &'a FirewallName,
    /// `namespace/name`, for errors.
    pub object: &'a str,
}

impl Provision<'_> {
    pub async fn apply(&self, plan: &plan::Plan) -> Result<(), FirewallError> {
        let Approver { seed, applied, .. } = self.approver;
        let roles: Api<Role> = Api::namespaced(seed.client.clone(), self.namespace);
        let name = self.name.role();

        // What is taken away waits for nothing else.
        if plan.role_binding.is_none() {
            self.role_binding(None).await?;
        }
        let (key, content) = self.content("Role", &plan.role);
        if !applied.recently(&key, &content) {
            apply(&roles, names::APPROVER, &name, &plan.role)
                .await
                .map_err(|e| self.call_error(e))?;
            applied.remember(&key, &content);
        }
        if let Some(tokens) = &plan.tokens {
            self.tokens(tokens).await?;
        }
        self.role_binding(plan.role_binding.as_ref()).await?;
        // The last of all: what it tells of stands.
        let (key, content) = self.content("Secret", &plan.agent_secret);
        if !applied.recently(&key, &content) {
            seed.apply_secret(self.namespace, &plan.agent_secret)
                .await
                .map_err(|e| self.call_error(e))?;
            applied.remember(&key, &content);
        }
        Ok(())
    }

    /// The account first: a right to the tokens of nobody is worth nothing. What is not wanted any more the sweeper takes
    /// away.
    async fn tokens(&self, tokens: &plan::Tokens) -> Result<(), FirewallError> {
        let Approver { seed, applied, .. } = self.approver;
        let (key, content) = self.content("tokens", &(&tokens.account, &tokens.role, &tokens.role_binding));
        if applied.recently(&key, &content) {
            return Ok(());
        }
        let name = self.name.role();
        credential::access_account(seed, &tokens.account)
            .await
            .map_err(|e| self.credential_error(e))?;
        let roles: Api<Role> = Api::namespaced(seed.client.clone(), names::ACCESS_NAMESPACE);
        let bindings: Api<RoleBinding> = Api::namespaced(seed.client.clone(), names::ACCESS_NAMESPACE);
        apply(&roles, names::APPROVER, &name, &tokens.role)
            .await
            .map_err(|e| self.call_error(e))?;
        let written = match &tokens.role_binding {
            Some(binding) => apply(&bindings, names::APPROVER, &name, binding).await.map(|_| ()),
            None => {
                let what = format!("delete RoleBinding {}/{name}", names::ACCESS_NAMESPACE);
                call_opt(what, bindings.delete(&name, &DeleteParams::default()))
                    .await
                    .map(|_| ())
            }
        };
        written.map_err(|e| self.call_error(e))?;
        applied.remember(&key, &content);
        Ok(())
    }

    /// Gives the firewall's user its Role, or takes it away.
    pub async fn role_binding(&self, wanted: Option<&RoleBinding>) -> Result<(), FirewallError> {
        let Approver { seed, applied, .. } = self.approver;
        let bindings: Api<RoleBinding> = Api::namespaced(seed.client.clone(), self.namespace);
        let name = self.name.role();
        let (key, content) = self.content("RoleBinding", &wanted);
        if applied.recently(&key, &content) {
            return Ok(());
        }
        let written = match wanted {
            Some(binding) => apply(&bindings, names::APPROVER, &name, binding).await.map(|_| ()),
            None => {
                let what = format!("delete RoleBinding {}/{name}", self.namespace);
                call_opt(what, bindings.delete(&name, &DeleteParams::default()))
                    .await
                    .map(|_| ())
            }
        };
        written.map_err(|e| self.call_error(e))?;
        applied.remember(&key, &content);
        Ok(())
    }

    /// Makes the credential on record stand, or fall.
    pub async fn credential(
        &self,
        target: &plan::Firewall<'_>,
        record: &Record,
        extension: BootstrapExtension,
        handed_out: &mut HandedOut,
    ) -> Result<(), FirewallError> {
        let Approver {
            seed,
            key: seed_key,
            applied,
            ..
        } = self.approver;
        let Some(credential) = &record.credential else {
            return Ok(());
        };
        if credential.revoked.is_some() {
            handed_out.bootstrap_kubeconfig = None;
            return self.revoke(record).await;
        }
        let key = self.key("credential");
        let content = format!("{credential:?}{:?}{extension:?}", seed.endpoint());
        if applied.recently(&key, content.as_bytes()) {
            return Ok(());
        }
        let known = handed_out.bootstrap_kubeconfig.as_ref();
        let known = known.and_then(|text| Kubeconfig::read("the bootstrap kubeconfig", text.expose_secret()).ok());
        let standing = credential::stand(seed, seed_key, target, credential, extension, known.as_ref()).await;
        match standing.map_err(|e| self.credential_error(e))? {
            Standing::IdTaken => Err(FirewallError::IdTaken(self.object.to_owned())),
            Standing::Kubeconfig(kubeconfig) => {
                let secret = plan::bootstrap_kubeconfig_secret(target, &kubeconfig);
                seed.apply_secret(self.namespace, &secret)
                    .await
                    .map_err(|e| self.call_error(e))?;
                handed_out.bootstrap_kubeconfig = Some(kubeconfig);
                applied.remember(&key, content.as_bytes());
                applied.forget(&self.key("revoked"));
                Ok(())
            }
        }
    }

    /// Takes back the credential on record, and what was handed out of it.
    pub async fn revoke(&self, record: &Record) -> Result<(), FirewallError> {
        let Approver {
            seed,
            key: seed_key,
            applied,
            ..
        } = self.approver;
        let Some(credential) = &record.credential else {
            return Ok(());
        };
        let key = self.key("revoked");
        let content = format!("{credential:?}");
        if applied.recently(&key, content.as_bytes()) {
            return Ok(());
        }
        let revoked = credential::revoke(seed, seed_key, self.namespace, self.name, credential).await;
        revoked.map_err(|e| self.credential_error(e))?;
        let handed_out = self.name.bootstrap_kubeconfig_secret();
        seed.delete_secret(self.namespace, &handed_out)
            .await
            .map_err(|e| self.call_error(e))?;
        applied.forget(&self.key("credential"));
        applied.remember(&key, content.as_bytes());
        Ok(())
    }

    /// A credential that another one replaces must not stay open beside it. First this, then the record: a
    /// restart in between does both again.
    pub async fn revoke_replaced(&self, known: Option<&Record>, next: &Record) -> Result<(), FirewallError> {
        let (Some(old), Some(new)) = (known.and_then(|known| known.credential.as_ref()), &next.credential) else {
            return Ok(());
        };
        if (old.kind == new.kind && old.epoch == new.epoch) || old.revoked.is_some() {
            return Ok(());
        }
        let Approver { seed, key, .. } = self.approver;
        let revoked = credential::revoke(seed, key, self.namespace, self.name, old).await;
        revoked.map_err(|e| self.credential_error(e))
    }

    /// What was handed out before, read from the seed once: a restart mints nothing again.
    pub async fn handed_out(&self) -> Result<HandedOut, FirewallError> {
        if let Some(known) = self.approver.handed_out(self.namespace, self.name) {
            return Ok(known);
        }
        let seed = &self.approver.seed;
        let text = |secret: Option<Secret>, key: &str| {
            let bytes = secret?.data?.remove(key)?;
            String::from_utf8(bytes.0).ok().map(SecretString::from)
        };
        let agent = seed.read_own(self.namespace, &self.name.agent_secret()).await;
        let bootstrap = seed
            .read_own(self.namespace, &self.name.bootstrap_kubeconfig_secret())
            .await;
        Ok(HandedOut {
            lifeline: text(agent.map_err(|e| self.call_error(e))?, "lifeline"),
            bootstrap_kubeconfig: text(bootstrap.map_err(|e| self.call_error(e))?, "kubeconfig"),
            told: None,
        })
    }

    /// Nothing stands any more: what comes under this name is made from the beginning.
    pub fn forget(&self) {
        for kind in ["Role", "RoleBinding", "Secret", "credential", "revoked", "tokens"] {
            self.approver.applied.forget(&self.key(kind));
        }
        self.approver.forget_handed_out(self.namespace, self.name);
    }

    /// Under which key an object is remembered as applied, and its content.
    fn content(&self, kind: &str, object: &impl Serialize) -> (String, Vec<u8>) {
        (self.key(kind), serde_json::to_vec(object).unwrap_or_default())
    }

    fn key(&self, kind: &str) -> String {
        format!("{kind} {}", self.object)
    }

    fn call_error(&self, failure: Failure) -> FirewallError {
        FirewallError::Call(self.object.to_owned(), failure)
    }

    fn credential_error(&self, error: CredentialError) -> FirewallError {
        FirewallError::Credential(self.object.to_owned(), error)
    }
}
