//! What is left of a Firewall that is gone. Its objects in the seed are taken away; the shoot's state remembers it, as a
//! control plane that moves takes its Firewalls away before its state is saved. It is forgotten when it was deleted for
//! good, or a day after both it and its FirewallMonitor are gone, and never while a certificate of its name is good.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use contract::names::{self, FirewallName};
use contract::record::{Gone, Record};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};

use cluster::api::{call, call_opt};
use cluster::failure::Failure;
use cluster::firewall::Firewall;

use crate::approver::Approver;
use crate::core::life;
use crate::firewalls::FirewallError;
use crate::lifeline;
use crate::provision::Provision;
use crate::state::{State, StateError};

/// How often ServiceAccounts are looked through whose Firewall is gone.
const ACCOUNTS_EVERY: Duration = Duration::from_secs(15);
/// So many seconds a Firewall may take from the webhook into the API server and into our cache.
const ADMITTED_WITHIN: u64 = 120;
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);

/// Remembers what it has cleared away, by the time at which the Firewall was first missed, so that it is done once.
#[derive(Default)]
pub struct Sweeper {
    cleared: HashMap<(String, FirewallName), Timestamp>,
    accounts_at: Option<Instant>,
}

impl Sweeper {
    pub async fn sweep(&mut self, approver: &Approver) {
        approver.ready().await;
        let bereft = approver.bereft();
        self.cleared.retain(|gone, _| bereft.contains(gone));
        for (namespace, name) in bereft {
            if approver
                .all_firewalls()
                .any(|f| f.namespace().as_ref() == Some(&namespace) && f.name_any() == name.as_str())
            {
                // It came while the others were cleared away.
                continue;
            }
            if let Err(error) = self.clear(approver, &namespace, &name).await {
                tracing::warn!(firewall = %format!("{namespace}/{name}"), %error, "what is left of a Firewall that is gone could not be cleared away; tried again");
            }
        }
        let due = self.accounts_at.is_none_or(|at| at.elapsed() >= ACCOUNTS_EVERY);
        if due && let Err(error) = accounts(approver).await {
            tracing::warn!(%error, "ServiceAccounts of firewalls that are gone could not be cleared away; tried again");
        } else if due {
            self.accounts_at = Some(Instant::now());
        }
    }

    async fn clear(&mut self, approver: &Approver, namespace: &str, name: &FirewallName) -> Result<(), FirewallError> {
        let object = format!("{namespace}/{name}");
        let wrong = |error: StateError| FirewallError::State(object.clone(), error);
        let Some(state) = approver.cached_state(namespace) else {
            return Ok(());
        };
        let Some(record) = state.record(name).map_err(wrong)? else {
            return Ok(());
        };
        let record = if record.gone.is_some() {
            record
        } else {
            let left = life::leave(&record, false, Timestamp::now());
            if let Err(error) = approver.save(&state, name, &left).await {
                tracing::warn!(firewall = %object, %error, "that the Firewall is gone could not be put on record");
            }
            // On with it at once: the namespace may go next, and with it what is known of the credential.
            left
        };
        let Some(gone) = record.gone.clone() else { return Ok(()) };
        let key = (namespace.to_owned(), name.clone());
        if self.cleared.get(&key) != Some(&gone.since) {
            clear_seed(approver, namespace, name, &record, &object).await?;
            tracing::info!(firewall = %object, deleted = gone.deleted, "the Firewall is gone: its objects are taken away, the shoot's state remembers it");
            self.cleared.insert(key, gone.since);
            if gone.deleted {
                self.cut(approver, namespace, name, &state, &record, &object).await;
            }
        }
        if is_over(approver, namespace, name, &gone, &record) {
            state.remove(&approver.seed, name).await.map_err(wrong)?;
            tracing::info!(firewall = %object, "nothing of the Firewall can come back: it is forgotten");
        }
        Ok(())
    }

    /// Takes the lifeline of a Firewall that was deleted for good out of the shoot, unless another seed has the firewall by
    /// now. A shoot that is away, or refuses, keeps an account that opens one FirewallMonitor.
    async fn cut(
        &self,
        approver: &Approver,
        namespace: &str,
        name: &FirewallName,
        state: &State,
        record: &Record,
        object: &str,
    ) {
        let Some(shoot) = approver.shoots.known(namespace) else {
            return;
        };
        let told = shoot.monitor(name.as_str()).and_then(|monitor| {
            let key = state.handover_key().ok()?.public();
            let read = contract::handover::read(&monitor.handover?, &[key]).ok()?;
            (read.claims.firewall == *name).then_some(read.claims.order)
        });
        let taken_up = shoot.newest_known(name.as_str()).map(|report| report.taken_up);
        let highest = told.into_iter().chain(taken_up).max();
        if highest.is_some_and(|order| order.authority > record.order.authority) {
            tracing::info!(firewall = %object, "another seed has this firewall: its lifeline stays");
            return;
        }
        if let Err(failure) = lifeline::remove(&shoot, name).await {
            tracing::warn!(firewall = %object, %failure, "the lifeline of a Firewall that was deleted stays in the shoot");
        }
    }
}

/// Whether nothing of this firewall can come back. While a certificate of its name is good the name is not free.
fn is_over(approver: &Approver, namespace: &str, name: &FirewallName, gone: &Gone, record: &Record) -> bool {
    let now = Timestamp::now();
    if record.name_taken_until().is_some_and(|until| until > now) {
        return false;
    }
    let no_monitor = || {
        let shoot = approver.shoots.known(namespace);
        shoot.is_some_and(|shoot| shoot.is_complete() && shoot.monitor(name.as_str()).is_none())
    };
    gone.deleted || (gone.since + REMEMBERED <= now && no_monitor())
}

/// Takes away what stands in the seed for a Firewall.
pub async fn clear_seed(
    approver: &Approver,
    namespace: &str,
    name: &FirewallName,
    record: &Record,
    object: &str,
) -> Result<(), FirewallError> {
    let provision = Provision {
        approver,
        namespace,
        name,
        object,
    };
    provision.revoke(record).await?;
    provision.role_binding(None).await?;
    let wrong = |failure: Failure| FirewallError::Call(object.to_owned(), failure);
    let roles: Api<Role> = Api::namespaced(approver.seed.client.clone(), namespace);
    let role = name.role();
    let what = format!("delete Role {namespace}/{role}");
    call_opt(what, roles.delete(&role, &DeleteParams::default()))
        .await
        .map_err(wrong)?;
    for secret in [name.agent_secret(), name.bootstrap_kubeconfig_secret()] {
        approver.seed.delete_secret(namespace, &secret).await.map_err(wrong)?;
    }
    provision.forget();
    Ok(())
}

/// Accounts of access whose Firewall is gone, or works with a certificate. With one go all its tokens.
async fn access_accounts(approver: &Approver) -> Result<(), Failure> {
    let namespace = names::ACCESS_NAMESPACE;
    let client = &approver.seed.client;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::APPROVER));
    let all = call(format!("list ServiceAccounts in {namespace}"), accounts.list(&ours)).await?;
    for account in all {
        let label = |key| account.labels().get(key).cloned().unwrap_or_default();
        let (of, name) = (label(names::NAMESPACE_LABEL), account.name_any());
        let Ok(firewall) = FirewallName::parse(&name) else {
            continue;
        };
        // A record that cannot be read says nothing, and one that was lost and begun anew is not the firewall's word.
        let left = match approver.cached_record(&of, &firewall) {
            Ok(record) => record.is_some_and(|record| record.proven() && !record.tokens),
            Err(_) => false,
        };
        // While it is being deleted its machine works on.
        let uid = label(names::UID_LABEL);
        let is_there = |f: &DeserializeGuard<Firewall>| {
            f.name_any() == name && f.namespace().as_ref() == Some(&of) && f.uid().as_ref() == Some(&uid)
        };
        if !approver.serves(&of) || (!left && approver.all_firewalls().any(|f| is_there(&f))) {
            continue;
        }
        // The account last: by it is found what is left to do.
        let role = firewall.role();
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        let what = format!("delete RoleBinding {namespace}/{role}");
        call_opt(what, bindings.delete(&role, &DeleteParams::default())).await?;
        let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
        let what = format!("delete Role {namespace}/{role}");
        call_opt(what, roles.delete(&role, &DeleteParams::default())).await?;
        let what = format!("delete ServiceAccount {namespace}/{name}");
        call_opt(what, accounts.delete(&name, &DeleteParams::default())).await?;
        approver.applied.forget(&format!("tokens {of}/{name}"));
        tracing::info!(firewall = %format!("{of}/{name}"), "its ServiceAccount is taken away: no token of it works any more");
    }
    Ok(())
}

/// Bootstrap ServiceAccounts whose Firewall is gone, also where the namespace with its record went first.
async fn accounts(approver: &Approver) -> Result<(), Failure> {
    access_accounts(approver).await?;
    let namespace = names::SERVICE_ACCOUNT_NAMESPACE;
    let accounts: Api<ServiceAccount> = Api::namespaced(approver.seed.client.clone(), namespace);
    let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::APPROVER));
    let all = call(format!("list ServiceAccounts in {namespace}"), accounts.list(&ours)).await?;
    for account in all {
        let name = account.name_any();
        let of = account
            .labels()
            .get(names::NAMESPACE_LABEL)
            .cloned()
            .unwrap_or_default();
        if is_on_its_way(account.annotations().get(names::ADMITTED), Timestamp::now()) {
            continue;
        }
        // One that cannot be read is there all the same.
        if !approver.serves(&of) || approver.all_firewalls().any(|firewall| firewall.name_any() == name) {
            continue;
        }
        approver.seed.delete_secret(namespace, &name).await?;
        let what = format!("delete ServiceAccount {namespace}/{name}");
        call_opt(what, accounts.delete(&name, &DeleteParams::default())).await?;
    }
    Ok(())
}

/// Whether the webhook made the account for a Firewall that may not be seen here yet. Whatever else is written there, by
/// whomever, keeps no account.
fn is_on_its_way(admitted: Option<&String>, now: Timestamp) -> bool {
    let second: Option<i64> = admitted.and_then(|time| time.parse().ok());
    second.is_some_and(|second| now.as_second().abs_diff(second) < ADMITTED_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_an_account_outlives_the_way_of_its_firewall_into_the_cache_and_no_more() {
        let now = Timestamp::from_second(1_790_000_000).unwrap();
        let of = |text: &str| is_on_its_way(Some(&text.to_owned()), now);
        assert!(of("1790000000") && of("1789999881") && of("1790000119"));
        for late in [
            "1789999880",
            "1790000120",
            "9223372036854775807",
            "-9223372036854775808",
            "x",
            "",
        ] {
            assert!(!of(late), "{late}");
        }
        assert!(!is_on_its_way(None, now));
    }
}
