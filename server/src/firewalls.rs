//! The worker for Firewalls: brings the record on (`core::life`), makes the objects stand that `core::plan` names, and
//! says in one annotation how the firewall stands. Nothing is written that stands already.

use std::sync::Arc;
use std::time::Duration;

use contract::access::{AccessError, AgentAccess, Mode};
use contract::kubeconfig::{BootstrapExtension, Kubeconfig};
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::{Certificate, Record};
use contract::report::Report;
use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::DeleteParams;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::{Api, Resource, ResourceExt};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use cluster::api::{apply, call_opt};
use cluster::failure::Failure;
use cluster::firewall::{Firewall, ShootAccess};

use crate::approver::{Approver, HandedOut};
use crate::core::decide::{Candidate, Requester, owner, two_keys};
use crate::core::{life, plan};
use crate::credential::{self, CredentialError, Standing};
use crate::shoots::{Closed, Shoot};
use crate::state::{State, StateError};
use crate::status::{self, State as Phase, Status};
use crate::{lifeline, requests};

#[derive(Debug, Error)]
pub enum FirewallError {
    #[error("Firewall {0}: {1}")]
    Call(String, Failure),
    #[error("Firewall {0}: {1}")]
    State(String, StateError),
    #[error("Firewall {0}: {1}")]
    Credential(String, CredentialError),
    #[error("Firewall {0}: its Secret: {1}")]
    Access(String, AccessError),
    #[error("Firewall {0}: its record was changed at the same time; looked at again")]
    Raced(String),
}

/// Without any event: everything is looked at this often.
const POLL: Duration = Duration::from_secs(300);
/// A shoot that cannot be reached is tried again this often; no event tells that it can.
const CLOSED_POLL: Duration = Duration::from_secs(20);

pub async fn reconcile(
    guard: Arc<DeserializeGuard<Firewall>>,
    approver: Arc<Approver>,
) -> Result<Action, FirewallError> {
    let firewall = match &guard.0 {
        Ok(firewall) => firewall,
        Err(error) => {
            let object = format!("{}/{}", guard.namespace().unwrap_or_default(), guard.name_any());
            tracing::warn!(firewall = %object, %error, "this Firewall cannot be read and is left alone");
            return Ok(Action::await_change());
        }
    };
    let mut worker = Worker::of(firewall, &approver);
    let outcome = worker.run().await;
    let status = match &outcome {
        Ok((status, _)) => status.clone(),
        Err(error) => Status {
            state: Phase::Failing,
            reason: Reason::SeedFailure,
            message: error.to_string(),
            until: None,
        },
    };
    if !approver.dry_run && !matches!(outcome, Err(FirewallError::Raced(_))) {
        status::tell(&approver, firewall, &status)
            .await
            .map_err(|failure| FirewallError::Call(worker.object.clone(), failure))?;
    }
    outcome.map(|(_, recheck)| Action::requeue(recheck))
}

struct Worker<'a> {
    approver: &'a Approver,
    firewall: &'a Firewall,
    namespace: String,
    uid: String,
    /// `namespace/name`, for errors.
    object: String,
}

impl<'a> Worker<'a> {
    fn of(firewall: &'a Firewall, approver: &'a Approver) -> Self {
        let namespace = firewall.namespace().unwrap_or_default();
        let object = format!("{namespace}/{}", firewall.name_any());
        Self {
            approver,
            firewall,
            namespace,
            uid: firewall.uid().unwrap_or_default(),
            object,
        }
    }

    async fn run(&mut self) -> Result<(Status, Duration), FirewallError> {
        let now = Timestamp::now();
        let name = match FirewallName::parse(&self.firewall.name_any()) {
            Ok(name) => name,
            Err(error) => return Ok(self.done(Phase::Refused, Reason::NameTooLong, error.to_string())),
        };
        if let Some(other) = self.taken_by(&name)? {
            let message =
                format!("a Firewall in namespace {other} has this name and was first: names are unique in a seed");
            return Ok(self.done(Phase::Refused, Reason::NameTaken, message));
        }
        if self.approver.dry_run {
            return Ok(self.done(Phase::Waiting, Reason::WaitingForFirewall, "dry run".into()));
        }
        let (shoot, closed) = self.shoot();
        let state = self.state().await?;
        let known = state.record(&name).map_err(|e| self.state_error(e))?;
        let (state, record) = self.advance(&name, state, known, shoot.as_deref(), false, now).await?;
        if self.firewall.metadata.deletion_timestamp.is_some() {
            self.revoke(&name, &record).await?;
            return Ok(self.done(
                Phase::Waiting,
                Reason::FirewallDeleted,
                "the Firewall is being deleted".into(),
            ));
        }

        let secrets = self.shoot_secrets();
        let mut handed_out = self.handed_out(&name).await?;
        if let (Some(shoot), Some(access)) = (&shoot, self.shoot_access()) {
            match self
                .lifeline(&name, shoot, &access.api_server_url, handed_out.lifeline.as_ref(), now)
                .await
            {
                Ok(kubeconfig) => handed_out.lifeline = Some(kubeconfig),
                // The tenant's side; everything in the seed goes on without it.
                Err(failure) => {
                    return self
                        .go_on(
                            &name,
                            &state,
                            record,
                            handed_out,
                            secrets,
                            Some((Reason::ShootUnreachable, failure.to_string())),
                            now,
                        )
                        .await;
                }
            }
        }
        self.go_on(&name, &state, record, handed_out, secrets, closed, now)
            .await
    }

    /// The part that needs the seed alone.
    #[allow(clippy::too_many_arguments)]
    async fn go_on(
        &self,
        name: &FirewallName,
        state: &State,
        record: Record,
        mut handed_out: HandedOut,
        secrets: Result<Option<plan::ShootSecrets>, Closed>,
        closed: Option<Closed>,
        now: Timestamp,
    ) -> Result<(Status, Duration), FirewallError> {
        let (secrets, refused) = match secrets {
            Ok(secrets) => (secrets, None),
            Err(refused) => (None, Some(refused)),
        };
        let target = plan::Firewall {
            name,
            namespace: &self.namespace,
            uid: &self.uid,
            shoot: secrets.as_ref(),
        };
        let handover_keys = vec![state.handover_key().map_err(|e| self.state_error(e))?.public()];
        let access = AgentAccess {
            seed: self.approver.seed.id.clone(),
            server: self.approver.seed.endpoint.server.clone(),
            ca: self.approver.seed.endpoint.ca.pem().to_owned(),
            mode: Mode::Certificate,
            handover_keys: handover_keys.clone(),
            lifeline: handed_out.lifeline.clone(),
        };
        let plan = plan::plan(&target, &record, &access).map_err(|e| FirewallError::Access(self.object.clone(), e))?;
        self.apply_plan(name, &plan).await?;

        let extension = BootstrapExtension {
            firewall: name.clone(),
            handover_keys,
        };
        let record = self
            .credential(&target, state, record, extension, &mut handed_out, now)
            .await?;
        self.approver.remember_handed_out(&self.namespace, name, handed_out);

        let recheck = life::recheck_at(&record).map_or(POLL, |at| {
            Duration::from_secs(u64::try_from(at.duration_since(now).as_secs()).unwrap_or(0).max(1)).min(POLL)
        });
        let recheck = if closed.is_some() {
            recheck.min(CLOSED_POLL)
        } else {
            recheck
        };
        Ok((
            status::of(name, &record, self.shoot_access().is_some(), refused.or(closed)),
            recheck,
        ))
    }

    /// The record as it should be, written if it changed.
    async fn advance(
        &self,
        name: &FirewallName,
        state: State,
        known: Option<Record>,
        shoot: Option<&Shoot>,
        id_taken: bool,
        now: Timestamp,
    ) -> Result<(State, Record), FirewallError> {
        let report = self.report(name, known.as_ref(), shoot);
        let certificate = self.newest_certificate(name, known.as_ref());
        let annotations = self.firewall.annotations();
        let seen = life::Seen {
            firewall: name,
            uid: &self.uid,
            seed: &self.approver.seed.id,
            kind: self.approver.kind(),
            accept_key: annotations.get(names::ACCEPT_KEY).map(String::as_str),
            rebootstrap: annotations.get(names::REBOOTSTRAP).map(String::as_str),
            report: report.as_ref(),
            certificate: certificate.as_ref(),
            id_taken,
        };
        let next = life::advance(known.as_ref(), &seen, now);
        if known.as_ref() == Some(&next) {
            return Ok((state, next));
        }
        self.revoke_replaced(name, known.as_ref(), &next).await?;
        let saved = state
            .save(&self.approver.seed, name, &next)
            .await
            .map_err(|e| self.state_error(e))?;
        let state = saved.ok_or_else(|| FirewallError::Raced(self.object.clone()))?;
        self.explain(name, known.as_ref(), &next);
        Ok((state, next))
    }

    fn explain(&self, name: &FirewallName, before: Option<&Record>, after: &Record) {
        let firewall = &self.object;
        if !before.is_some_and(Record::proven) && after.proven() {
            tracing::info!(%firewall, "the firewall reported from its certificate: its key is proved, its bootstrap credential is revoked");
        }
        if !before.is_some_and(Record::contested) && after.contested() {
            let why = two_keys(name, &after.keys);
            self.approver
                .events
                .warning(self.firewall.object_ref(&()), Reason::TwoKeys, "Pin", &why);
        }
        if before.and_then(|b| b.keys.accepted.as_ref()) != after.keys.accepted.as_ref() {
            let key = after
                .keys
                .pin
                .as_ref()
                .map(|pin| pin.thumbprint.to_string())
                .unwrap_or_default();
            tracing::info!(%firewall, %key, "an operator accepted this key");
        }
        if before.and_then(|b| b.rebootstrap.as_ref()) != after.rebootstrap.as_ref() {
            tracing::info!(%firewall, "an operator re-armed the bootstrap credential for one new key");
        }
        if before.is_none() {
            let kind = after.credential.as_ref().map(|credential| credential.kind);
            tracing::info!(%firewall, ?kind, "a bootstrap credential is allotted");
        }
    }

    async fn credential(
        &self,
        target: &plan::Firewall<'_>,
        state: &State,
        record: Record,
        extension: BootstrapExtension,
        handed_out: &mut HandedOut,
        now: Timestamp,
    ) -> Result<Record, FirewallError> {
        let fail = |e| FirewallError::Credential(self.object.clone(), e);
        let Some(credential) = &record.credential else {
            return Ok(record);
        };
        if credential.revoked.is_some() {
            self.revoke(target.name, &record).await?;
            handed_out.bootstrap_kubeconfig = None;
            return Ok(record);
        }
        let key = format!("credential {}", self.object);
        let content = format!("{credential:?}{:?}", self.approver.seed.endpoint);
        if self.approver.applied.recently(&key, content.as_bytes()) {
            return Ok(record);
        }
        let known = handed_out.bootstrap_kubeconfig.as_ref();
        let known = known.and_then(|text| Kubeconfig::read("the bootstrap kubeconfig", text.expose_secret()).ok());
        let approver = self.approver;
        let standing = credential::stand(
            &approver.seed,
            &approver.key,
            target,
            credential,
            extension,
            known.as_ref(),
        );
        match standing.await.map_err(fail)? {
            Standing::Kubeconfig(kubeconfig) => {
                let secret = plan::bootstrap_kubeconfig_secret(target, &kubeconfig);
                self.approver
                    .seed
                    .apply_secret(&self.namespace, &secret)
                    .await
                    .map_err(|e| self.call_error(e))?;
                handed_out.bootstrap_kubeconfig = Some(kubeconfig);
                self.approver.applied.remember(&key, content.as_bytes());
                Ok(record)
            }
            Standing::IdTaken => {
                let again = State::load(&self.approver.seed, &self.namespace)
                    .await
                    .map_err(|e| self.state_error(e))?;
                let current = again.ok_or_else(|| FirewallError::Raced(self.object.clone()))?;
                let _ = state;
                self.advance(target.name, current, Some(record), None, true, now)
                    .await?;
                // The next look makes the new id stand.
                Err(FirewallError::Raced(self.object.clone()))
            }
        }
    }

    async fn revoke(&self, name: &FirewallName, record: &Record) -> Result<(), FirewallError> {
        let Some(credential) = &record.credential else {
            return Ok(());
        };
        let key = format!("revoked {}", self.object);
        let content = format!("{credential:?}");
        if self.approver.applied.recently(&key, content.as_bytes()) {
            return Ok(());
        }
        let Approver {
            seed,
            key: seed_key,
            applied,
            ..
        } = self.approver;
        credential::revoke(seed, seed_key, &self.namespace, name, credential)
            .await
            .map_err(|e| FirewallError::Credential(self.object.clone(), e))?;
        seed.delete_secret(&self.namespace, &name.bootstrap_kubeconfig_secret())
            .await
            .map_err(|e| self.call_error(e))?;
        applied.forget(&format!("credential {}", self.object));
        applied.remember(&key, content.as_bytes());
        Ok(())
    }

    /// A credential that one of another kind replaces must not stay open beside it. First this, then the record: a
    /// restart in between does both again.
    async fn revoke_replaced(
        &self,
        name: &FirewallName,
        known: Option<&Record>,
        next: &Record,
    ) -> Result<(), FirewallError> {
        let (Some(old), Some(new)) = (known.and_then(|k| k.credential.as_ref()), &next.credential) else {
            return Ok(());
        };
        if old.kind == new.kind || old.revoked.is_some() {
            return Ok(());
        }
        let Approver { seed, key, .. } = self.approver;
        let revoked = credential::revoke(seed, key, &self.namespace, name, old).await;
        revoked.map_err(|e| FirewallError::Credential(self.object.clone(), e))
    }

    async fn apply_plan(&self, name: &FirewallName, plan: &plan::Plan) -> Result<(), FirewallError> {
        let Approver { seed, applied, .. } = self.approver;
        let call_error = |e| self.call_error(e);
        let content = |object: &dyn erased::Json| object.json();
        let roles: Api<Role> = Api::namespaced(seed.client.clone(), &self.namespace);
        let bindings: Api<RoleBinding> = Api::namespaced(seed.client.clone(), &self.namespace);

        let key = format!("Role {}", self.object);
        let json = content(&plan.role);
        if !applied.recently(&key, &json) {
            apply(&roles, names::APPROVER, name.as_str(), &plan.role)
                .await
                .map_err(call_error)?;
            applied.remember(&key, &json);
        }
        let key = format!("Secret {}", self.object);
        let json = content(&plan.agent_secret);
        if !applied.recently(&key, &json) {
            seed.apply_secret(&self.namespace, &plan.agent_secret)
                .await
                .map_err(call_error)?;
            applied.remember(&key, &json);
        }
        let key = format!("RoleBinding {}", self.object);
        match &plan.role_binding {
            Some(binding) => {
                let json = content(binding);
                if !applied.recently(&key, &json) {
                    apply(&bindings, names::APPROVER, name.as_str(), binding)
                        .await
                        .map_err(call_error)?;
                    applied.remember(&key, &json);
                }
            }
            None if applied.recently(&key, b"none") => {}
            None => {
                let what = format!("delete RoleBinding {}", self.object);
                call_opt(what, bindings.delete(name.as_str(), &DeleteParams::default()))
                    .await
                    .map_err(call_error)?;
                applied.remember(&key, b"none");
            }
        }
        Ok(())
    }

    /// What was handed out before, read from the seed once: a restart mints nothing again.
    async fn handed_out(&self, name: &FirewallName) -> Result<HandedOut, FirewallError> {
        if let Some(known) = self.approver.handed_out(&self.namespace, name) {
            return Ok(known);
        }
        let seed = &self.approver.seed;
        let text = |secret: Option<k8s_openapi::api::core::v1::Secret>, key: &str| {
            let bytes = secret?.data?.remove(key)?;
            String::from_utf8(bytes.0).ok().map(SecretString::from)
        };
        let agent = seed
            .read_own(&self.namespace, &name.agent_secret())
            .await
            .map_err(|e| self.call_error(e))?;
        let bootstrap = seed
            .read_own(&self.namespace, &name.bootstrap_kubeconfig_secret())
            .await;
        Ok(HandedOut {
            lifeline: text(agent, "lifeline"),
            bootstrap_kubeconfig: text(bootstrap.map_err(|e| self.call_error(e))?, "kubeconfig"),
        })
    }

    async fn lifeline(
        &self,
        name: &FirewallName,
        shoot: &Shoot,
        server: &str,
        known: Option<&SecretString>,
        now: Timestamp,
    ) -> Result<SecretString, Failure> {
        if let Some(known) = known.and_then(|known| lifeline::restore(known.expose_secret(), shoot, server, now)) {
            return Ok(known);
        }
        lifeline::make(shoot, &self.namespace, name, server).await
    }

    fn shoot(&self) -> (Option<Arc<Shoot>>, Option<Closed>) {
        let Some(access) = self.shoot_access() else {
            return (None, None);
        };
        let secret = self.approver.shoot_secret(&self.namespace);
        match self
            .approver
            .shoots
            .get(&self.namespace, secret.as_deref(), &access.api_server_url)
        {
            Ok(shoot) => (Some(shoot), None),
            Err(closed) => (None, Some(closed)),
        }
    }

    fn shoot_access(&self) -> Option<&ShootAccess> {
        self.firewall.status.as_ref()?.shoot_access.as_ref()
    }

    fn shoot_secrets(&self) -> Result<Option<plan::ShootSecrets>, Closed> {
        let Some(access) = self.shoot_access() else {
            return Ok(None);
        };
        let ShootAccess {
            namespace,
            generic_kubeconfig_secret_name,
            token_secret_name,
            ..
        } = access;
        plan::shoot_secrets(
            &self.namespace,
            namespace,
            generic_kubeconfig_secret_name,
            token_secret_name,
        )
        .map(Some)
    }

    /// The state from the cache; from the API server where the cache has none, for only that makes a new one.
    async fn state(&self) -> Result<State, FirewallError> {
        if let Some(state) = self.approver.cached_state(&self.namespace) {
            return Ok(state);
        }
        State::load_or_make(&self.approver.seed, &self.namespace)
            .await
            .map_err(|e| self.state_error(e))
    }

    /// Another Firewall that has this name by right.
    fn taken_by(&self, name: &FirewallName) -> Result<Option<String>, FirewallError> {
        let all = self.approver.firewalls_named(name.as_str());
        let mut facts = Vec::with_capacity(all.len());
        for firewall in &all {
            let namespace = firewall.namespace().unwrap_or_default();
            let record = self
                .approver
                .cached_record(&namespace, name)
                .map_err(|e| self.state_error(e))?;
            facts.push((namespace, record, firewall));
        }
        let candidates: Vec<Candidate<'_>> = facts
            .iter()
            .map(|(namespace, record, firewall)| Candidate {
                namespace,
                uid: firewall.meta().uid.as_deref().unwrap_or_default(),
                created: firewall.creation_timestamp().map_or(Timestamp::MAX, |time| time.0),
                deleting: firewall.meta().deletion_timestamp.is_some(),
                record: record.as_ref(),
            })
            .collect();
        Ok(owner(&candidates)
            .filter(|owner| owner.namespace != self.namespace)
            .map(|owner| owner.namespace.to_owned()))
    }

    /// The firewall's report, opened with its pinned key and nothing else.
    fn report(&self, name: &FirewallName, record: Option<&Record>, shoot: Option<&Shoot>) -> Option<Report> {
        let key = record?.keys.pin.as_ref()?.key.as_ref()?;
        let message = shoot?.report(name.as_str())?;
        match Report::open(&message, key) {
            Ok(report) => Some(report),
            Err(error) => {
                tracing::warn!(firewall = %self.object, %error, "the report in the FirewallMonitor is not believed");
                None
            }
        }
    }

    /// The newest certificate of the pinned key among the requests that still exist.
    fn newest_certificate(&self, name: &FirewallName, record: Option<&Record>) -> Option<Certificate> {
        let pin = record?.keys.pin.as_ref()?;
        let all = self.approver.requests.state();
        let ours = all.iter().filter(|csr| {
            let groups = csr.spec.groups.as_deref().unwrap_or_default();
            requests::condition(csr, "Approved").is_some()
                && Requester::of(csr.spec.username.as_deref().unwrap_or_default(), groups) != Requester::Foreign
        });
        ours.filter_map(|csr| {
            let pem = csr.status.as_ref()?.certificate.as_ref()?;
            let issued = contract::cert::read_certificate(&String::from_utf8_lossy(&pem.0)).ok()?;
            (issued.firewall == *name && issued.key.thumbprint() == pin.thumbprint).then(|| Certificate {
                serial: issued.serial,
                not_before: issued.not_before,
                not_after: issued.not_after,
                issuer: issued.issuer,
                request: csr.name_any(),
            })
        })
        .max_by_key(|certificate| certificate.not_before)
    }

    fn done(&self, state: Phase, reason: Reason, message: String) -> (Status, Duration) {
        (
            Status {
                state,
                reason,
                message,
                until: None,
            },
            POLL,
        )
    }

    fn call_error(&self, failure: Failure) -> FirewallError {
        FirewallError::Call(self.object.clone(), failure)
    }

    fn state_error(&self, error: StateError) -> FirewallError {
        FirewallError::State(self.object.clone(), error)
    }
}

mod erased {
    //! Objects of different types as the bytes by which a change is noticed.
    pub(super) trait Json {
        fn json(&self) -> Vec<u8>;
    }
    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> Vec<u8> {
            serde_json::to_vec(self).unwrap_or_default()
        }
    }
}
