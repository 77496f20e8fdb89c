//! The credential at admission: what stands in a Firewall's userdata before there is a Firewall. Any replica makes the same
//! one, and the worker of whoever leads has it stand in the seed when the Firewall appears.

use contract::key::PrivateKey;
use contract::kubeconfig::{BootstrapExtension, Credential as KubeconfigCredential};
use contract::names::{self, FirewallName};
use contract::record::CredentialKind;
use contract::token::SeedKey;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use secrecy::SecretString;

use cluster::api::call;
use cluster::failure::Class;
use cluster::firewall::Firewall;

use super::Hook;
use crate::core::admit::{self, Problem, Standing};
use crate::core::plan;
use crate::core::userdata::{self, UserdataError};
use crate::credential;
use crate::state::State;
use crate::watches::scopes;

/// So many ids in a row are not taken by chance.
const IDS_MAX: u32 = 64;
/// What stands in place of a credential that is made for nobody.
const DRY_RUN: &str = "dry-run";

/// Of a Firewall on its way.
pub struct Wanted<'a> {
    pub create: bool,
    pub dry_run: bool,
    pub namespace: &'a str,
    pub name: &'a FirewallName,
    /// Its epoch, where it has one.
    pub epoch: Option<u32>,
    pub userdata: &'a str,
    /// The userdata that it has had until now.
    pub before: Option<&'a str>,
}

/// What its credential is bound to: epoch and the shoot's state.
struct Ground {
    epoch: u32,
    extension: BootstrapExtension,
}

impl Hook {
    /// The Firewalls of this name that stand in the seed.
    pub(super) async fn standing(&self, name: &FirewallName) -> Result<Vec<Standing>, Problem> {
        let mut standing = Vec::new();
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        for api in scopes::<Firewall>(&self.seed.client, &self.namespaces) {
            let found = call(format!("list Firewalls named {name}"), api.list_metadata(&named)).await;
            standing.extend(found.map_err(|e| other(&e))?.items.into_iter().map(|found| Standing {
                namespace: found.namespace().unwrap_or_default(),
                created: found.creation_timestamp().map(|created| created.0),
                epoch: found.annotations().get(names::BOOTSTRAP_EPOCH).cloned(),
            }));
        }
        Ok(standing)
    }

    /// Epoch and userdata as they should be.
    pub(super) async fn bake(&self, wanted: &Wanted<'_>) -> Result<(u32, String), Problem> {
        let look = self.looked();
        let Some(stored) = look.stored else {
            return Err(Problem::Other(
                "this replica has not started yet, try again in a moment".into(),
            ));
        };
        let (epoch, kubeconfig) = match (stored.kind, wanted.create) {
            (CredentialKind::Token, _) => self.of_token(wanted).await?,
            (CredentialKind::ServiceAccount, true) => self.of_account(wanted).await?,
            // Made once: nobody can derive it.
            (CredentialKind::ServiceAccount, false) => (wanted.epoch.unwrap_or(0), self.of_before(wanted).await?),
        };
        let baked = self.agent.baked(&kubeconfig, self.download.as_ref());
        match userdata::render(wanted.userdata, &baked) {
            Ok(userdata) => Ok((epoch, userdata)),
            Err(error @ (UserdataError::NotJson(_) | UserdataError::NotIgnition)) => {
                Err(Problem::NotIgnition(error.to_string()))
            }
            Err(error) => Err(Problem::Other(error.to_string())),
        }
    }

    async fn of_token(&self, wanted: &Wanted<'_>) -> Result<(u32, SecretString), Problem> {
        let key = self.key().await?;
        let mut ground = self.ground(wanted).await?;
        if wanted.create && wanted.epoch != Some(ground.epoch) {
            ground.epoch = self.free(&key, wanted, ground.epoch).await?;
        }
        if wanted.create && !admit::is_believed(ground.epoch, Timestamp::now()) {
            return Err(Problem::Other(format!(
                "the credential on record for this name is of a time to come (epoch {}): a clock was ahead, take another name",
                ground.epoch
            )));
        }
        if wanted.create && wanted.dry_run {
            let none = SecretString::from(DRY_RUN);
            return Ok((ground.epoch, self.kubeconfig(wanted, none, ground.extension)));
        }
        let token = key.token(wanted.namespace, wanted.name, ground.epoch);
        Ok((ground.epoch, self.kubeconfig(wanted, token.bearer(), ground.extension)))
    }

    /// With a token of its own, bound to the Secret that the worker's is bound to: both end together.
    async fn of_account(&self, wanted: &Wanted<'_>) -> Result<(u32, SecretString), Problem> {
        let ground = self.ground(wanted).await?;
        if wanted.dry_run {
            let none = SecretString::from(DRY_RUN);
            return Ok((ground.epoch, self.kubeconfig(wanted, none, ground.extension)));
        }
        let (namespace, name) = (names::SERVICE_ACCOUNT_NAMESPACE, wanted.name);
        let found = self
            .seed
            .read_own(namespace, name.as_str())
            .await
            .map_err(|e| other(&e))?;
        let labels = plan::labels(wanted.namespace, name);
        if found.is_some_and(|found| found.labels() != &labels) {
            return Err(Problem::Other(format!(
                "Secret {namespace}/{name} is of a Firewall of this name in another namespace: names are unique in a seed"
            )));
        }
        let target = plan::Firewall {
            name,
            namespace: wanted.namespace,
            uid: "",
            shoot: None,
        };
        let token = credential::admitted(&self.seed, &target, Timestamp::now()).await;
        let token = token.map_err(|e| other(&e))?;
        Ok((ground.epoch, self.kubeconfig(wanted, token, ground.extension)))
    }

    /// As it stood in the userdata, or as it was handed out since.
    async fn of_before(&self, wanted: &Wanted<'_>) -> Result<SecretString, Problem> {
        if let Some(kubeconfig) = wanted.before.and_then(userdata::bootstrap_kubeconfig) {
            return Ok(kubeconfig);
        }
        let secret = wanted.name.bootstrap_kubeconfig_secret();
        let found = self.seed.read_own(wanted.namespace, &secret).await;
        let found = found.map_err(|e| other(&e))?;
        let bytes = found.and_then(|secret| secret.data?.remove("kubeconfig"));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0).ok());
        text.map(SecretString::from)
            .ok_or_else(|| Problem::Other(format!("it had none before, and there is no Secret {secret} any more")))
    }

    async fn ground(&self, wanted: &Wanted<'_>) -> Result<Ground, Problem> {
        let state = if wanted.create && !wanted.dry_run {
            let made = State::load_or_make(&self.seed, wanted.namespace).await;
            Some(made.map_err(|e| other(&e))?)
        } else {
            let found = State::load(&self.seed, wanted.namespace).await;
            found.map_err(|e| other(&e))?
        };
        let record = state.as_ref().map(|state| state.record(wanted.name));
        let record = record.transpose().map_err(|e| other(&e))?.flatten();
        let handover_key = match &state {
            Some(state) => state.handover_key().map_err(|e| other(&e))?,
            // It would be another one each time.
            None if !wanted.create => {
                return Err(Problem::Other(
                    "its shoot has no state yet, try again in a moment".into(),
                ));
            }
            // Nothing of a dry run comes to anything, its key neither.
            None => PrivateKey::generate().map_err(|e| other(&e))?,
        };
        Ok(Ground {
            epoch: match wanted.epoch {
                Some(epoch) if !wanted.create => epoch,
                given => admit::epoch(given, record.as_ref(), Timestamp::now()),
            },
            extension: BootstrapExtension {
                firewall: wanted.name.clone(),
                handover_keys: vec![handover_key.public()],
            },
        })
    }

    /// The first epoch from this one on whose token's id is nobody else's: what the worker will find, too.
    async fn free(&self, key: &SeedKey, wanted: &Wanted<'_>, first: u32) -> Result<u32, Problem> {
        let labels = plan::labels(wanted.namespace, wanted.name);
        for epoch in (first..).take(IDS_MAX as usize) {
            let token = key.token(wanted.namespace, wanted.name, epoch);
            match self.seed.read_own(names::TOKEN_NAMESPACE, &token.secret_name()).await {
                Ok(None) => return Ok(epoch),
                Ok(Some(found)) if found.labels() == &labels => return Ok(epoch),
                // Somebody else's: seen, or kept from us by the policy.
                Ok(Some(_)) => {}
                Err(failure) if failure.is(Class::Invalid) => {}
                Err(failure) => return Err(other(&failure)),
            }
        }
        Err(Problem::Other(format!(
            "the ids of {IDS_MAX} bootstrap tokens in a row belong to somebody else's"
        )))
    }

    fn kubeconfig(&self, wanted: &Wanted<'_>, bearer: SecretString, extension: BootstrapExtension) -> SecretString {
        let credential = KubeconfigCredential::Token(bearer);
        let kubeconfig = self
            .seed
            .endpoint()
            .kubeconfig(wanted.namespace, credential, Some(extension));
        SecretString::from(kubeconfig.write().as_str())
    }

    /// Made by whoever leads, and read each time: whoever deletes it has another one made.
    async fn key(&self) -> Result<SeedKey, Problem> {
        let found = credential::find_seed_key(&self.seed).await.map_err(|e| other(&e))?;
        found.ok_or_else(|| Problem::Other("the key of this seed is not made yet, try again in a moment".into()))
    }
}

fn other(error: &dyn std::fmt::Display) -> Problem {
    Problem::Other(error.to_string())
}
