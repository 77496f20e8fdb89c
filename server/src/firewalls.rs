//! The worker for Firewalls: looks at what there is (`sight`), brings the record on (`core::life`), has the objects stand
//! that belong to it (`provision`), and says in one annotation how the firewall stands (`status`).

use std::sync::Arc;
use std::time::Duration;

use contract::access::{AccessError, AgentAccess};
use contract::kubeconfig::BootstrapExtension;
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::report::Report;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use cluster::failure::{Class, Failure};
use cluster::firewall::Firewall;

use crate::approver::{Approver, HandedOut};
use crate::core::handover as core_handover;
use crate::core::standing::{self, Stands, State as Phase, Status, Word};
use crate::core::verdict::Verdict;
use crate::core::{life, plan};
use crate::credential::CredentialError;
use crate::gone;
use crate::handover::{self, HandoverError, Sending};
use crate::lifeline;
use crate::provision::Provision;
use crate::pulse::key;
use crate::shoots::{Closed, Monitor};
use crate::sight::{ShootSide, Sight};
use crate::state::StateError;
use crate::status;

mod advance;

use self::advance::Advanced;

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
    #[error("Firewall {0}: the id of its bootstrap token belongs to somebody else's; it gets another")]
    IdTaken(String),
    #[error("Firewall {0}: its record was changed at the same time; looked at again")]
    Raced(String),
}

/// Without any event: everything is looked at this often.
const POLL: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_secs(2);
/// Somebody else was faster: what he wrote is there by then.
const RACED: Duration = Duration::from_millis(50);
/// A shoot that was just opened is read by then.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A shoot that cannot be reached is tried again this often; no event tells that it can.
const CLOSED_POLL: Duration = Duration::from_secs(20);

pub async fn reconcile(
    guard: Arc<DeserializeGuard<Firewall>>,
    approver: Arc<Approver>,
) -> Result<Action, FirewallError> {
    approver.ready().await;
    approver.taken("firewalls", &key(&*guard));
    let firewall = match &guard.0 {
        Ok(firewall) => firewall,
        Err(error) => {
            let object = format!("{}/{}", guard.namespace().unwrap_or_default(), guard.name_any());
            tracing::warn!(firewall = %object, %error, "this Firewall cannot be read and is left alone");
            return Ok(Action::await_change());
        }
    };
    let worker = Worker::of(firewall, &approver);
    tracing::debug!(firewall = %worker.object, "looked at");
    let outcome = worker.run().await;
    if outcome.is_ok() {
        approver.retries.worked(&failing(&guard));
    }
    let status = match &outcome {
        Ok((status, _)) => status.clone(),
        Err(error) => Status {
            state: Phase::Failing,
            reason: Reason::SeedFailure,
            message: error.to_string(),
            until: None,
            heard: Word::AsBefore,
        },
    };
    let mut again = None;
    if !approver.dry_run && !matches!(outcome, Err(FirewallError::Raced(_) | FirewallError::IdTaken(_))) {
        again = status::tell(&approver, firewall, &status)
            .await
            .map_err(|failure| FirewallError::Call(worker.object.clone(), failure))?;
    }
    outcome.map(|(_, recheck)| Action::requeue(again.map_or(recheck, |again| again.min(recheck))))
}

/// How a Firewall is called that work fails on; a request has no namespace.
fn failing(firewall: &DeserializeGuard<Firewall>) -> String {
    format!("firewall {}", key(firewall))
}

/// After a failure; each Firewall waits by itself.
#[allow(clippy::needless_pass_by_value, reason = "as the controller calls it")]
pub fn retry(firewall: Arc<DeserializeGuard<Firewall>>, error: &FirewallError, approver: Arc<Approver>) -> Action {
    let raced = matches!(error, FirewallError::Raced(_) | FirewallError::IdTaken(_));
    let first = if raced { RACED } else { RETRY };
    let wait = approver.retries.failed(&failing(&firewall), first);
    if !raced {
        tracing::warn!(firewall = key(&*firewall), %error, seconds = wait.as_secs(), "tried again");
    }
    Action::requeue(wait)
}

struct Worker<'a> {
    approver: &'a Approver,
    firewall: &'a Firewall,
    sight: Sight<'a>,
    namespace: String,
    uid: String,
    /// `namespace/name`, for errors.
    object: String,
}

impl<'a> Worker<'a> {
    fn of(firewall: &'a Firewall, approver: &'a Approver) -> Self {
        let namespace = firewall.namespace().unwrap_or_default();
        let object = format!("{namespace}/{}", firewall.name_any());
        let sight = Sight {
            approver,
            firewall,
            object: object.clone(),
            namespace: namespace.clone(),
        };
        Self {
            approver,
            firewall,
            sight,
            namespace,
            uid: firewall.uid().unwrap_or_default(),
            object,
        }
    }

    async fn run(&self) -> Result<(Status, Duration), FirewallError> {
        let now = Timestamp::now();
        let name = match FirewallName::parse(&self.firewall.name_any()) {
            Ok(name) => name,
            Err(error) => return Ok(done(Phase::Refused, Reason::NameTooLong, error.to_string())),
        };
        if let Some(other) = self.sight.taken_by(&name).map_err(|e| self.state_error(e))? {
            let message =
                format!("a Firewall in namespace {other} has this name and was first: names are unique in a seed");
            if !self.approver.dry_run {
                // It may have had the name before: the user of that name is another machine now.
                self.provision(&name).role_binding(None).await?;
            }
            return Ok(done(Phase::Refused, Reason::NameTaken, message));
        }
        if self.approver.dry_run {
            return Ok(done(Phase::Waiting, Reason::WaitingForFirewall, "dry run".into()));
        }
        if self.firewall.metadata.deletion_timestamp.is_some() {
            return self.leave(&name, now).await;
        }
        let mut side = self.sight.shoot();
        let shoot = side.shoot.as_deref();
        if let Some(shoot) = shoot.filter(|shoot| shoot.is_blind(name.as_str()))
            && let Some(_turn) = shoot.turn().await
            && let Err(failure) = shoot.look(name.as_str()).await
        {
            tracing::debug!(firewall = %self.object, %failure, "the list of monitors has to tell");
        }
        let monitor = shoot.and_then(|shoot| shoot.monitor(name.as_str()));
        let advanced = self.advance(&name, shoot, monitor.as_ref(), false, now).await?;
        let provision = self.provision(&name);
        let mut handed_out = provision.handed_out().await?;
        match self.lifeline(&name, &side, handed_out.lifeline.as_ref(), now).await {
            Ok(lifeline) => handed_out.lifeline = lifeline,
            // The tenant's side; everything in the seed goes on without it.
            Err(failure) => {
                // A tenant's own words are not shown: they may say anything, and something else each time.
                let what = format!("{} in the shoot: {}", failure.what, failure.class.words());
                side.closed = Some((Reason::ShootUnreachable, what));
            }
        }
        // Before anything of the seed may fail: a lifeline is not minted again for that.
        self.approver
            .remember_handed_out(&self.namespace, &name, handed_out.clone());
        let stood = self.stand(&provision, &name, &advanced, &side, &mut handed_out).await;
        if matches!(stood, Err(FirewallError::IdTaken(_))) {
            self.advance(&name, side.shoot.as_deref(), monitor.as_ref(), true, now)
                .await?;
        }
        stood?;
        let mut again = recheck(&advanced, side.closed.as_ref(), self.approver.poll, now);
        if side.shoot.as_deref().is_some_and(|shoot| shoot.is_blind(name.as_str())) {
            again = again.min(LOOK_AGAIN);
        }
        match self
            .hand_over(&name, &side, monitor.as_ref(), &advanced, &mut handed_out)
            .await
        {
            Ok(Some(wait)) => again = again.min(wait),
            Ok(None) => {}
            Err(problem) => {
                side.closed = Some((Reason::ShootUnreachable, problem));
                again = again.min(CLOSED_POLL);
            }
        }
        self.approver.remember_handed_out(&self.namespace, &name, handed_out);
        let closed = side.closed.clone();
        self.approver
            .fleet
            .learn(&self.namespace, &name, &advanced.record, advanced.verdict, closed);
        let stands = Stands {
            name: &name,
            object: &self.object,
            uid: &self.uid,
            record: &advanced.record,
            verdict: advanced.verdict,
            mode: self.approver.mode,
            ahead: advanced.ahead,
            report: advanced.report.as_ref(),
            unverified: monitor
                .as_ref()
                .and_then(|monitor| Report::unverified(monitor.report.as_ref()?)),
            monitor: monitor.is_some(),
            handover_key: advanced
                .state
                .handover_key()
                .map_err(|e| self.state_error(e))?
                .public()
                .thumbprint(),
            has_shoot_access: self.sight.shoot_access().is_some(),
            refused: side.refused,
            closed: side.closed,
        };
        Ok((standing::of(&stands, now), again))
    }

    /// A Firewall that is being deleted: for good, or because its control plane moves.
    async fn leave(&self, name: &FirewallName, now: Timestamp) -> Result<(Status, Duration), FirewallError> {
        let message = "the Firewall is being deleted".to_owned();
        let gone = done(Phase::Waiting, Reason::FirewallDeleted, message);
        let Some(state) = self.approver.cached_state(&self.namespace) else {
            return Ok(gone);
        };
        let Some(record) = state.record(name).map_err(|e| self.state_error(e))? else {
            return Ok(gone);
        };
        let deleted = self
            .firewall
            .finalizers()
            .iter()
            .any(|f| f == names::UPSTREAM_FINALIZER);
        let next = life::leave(&record, deleted, now);
        if next != record {
            let saved = self.approver.save(&state, name, &next).await;
            if saved.map_err(|e| self.state_error(e))?.is_none() {
                return Err(FirewallError::Raced(self.object.clone()));
            }
        }
        self.provision(name).revoke(&next).await?;
        Ok(gone)
    }

    /// Tells the firewall of its way in, where it still sees it. A tenant's failure is named and holds nothing up.
    #[allow(
        clippy::too_many_arguments,
        reason = "the facts of one firewall, gathered a line above"
    )]
    async fn hand_over(
        &self,
        name: &FirewallName,
        side: &ShootSide,
        monitor: Option<&Monitor>,
        now: &Advanced,
        handed_out: &mut HandedOut,
    ) -> Result<Option<Duration>, String> {
        let Advanced {
            state, record, report, ..
        } = now;
        let (Some(shoot), Some(monitor)) = (&side.shoot, monitor) else {
            return Ok(None);
        };
        if !core_handover::speaks(record, now.ahead) {
            return Ok(None);
        }
        let Some(_turn) = shoot.turn().await else {
            return Ok(Some(Duration::from_secs(2)));
        };
        let sending = Sending {
            firewall: name,
            namespace: &self.namespace,
            record,
            key: &state.handover_key().map_err(|e| e.to_string())?,
            report: report.as_ref(),
            kubeconfig: handed_out.bootstrap_kubeconfig.as_ref(),
        };
        match handover::publish(&sending, shoot, monitor, &mut handed_out.told).await {
            Ok(wait) => Ok(wait),
            // A tenant's own words are not shown.
            Err(HandoverError::Call(failure)) => {
                Err(format!("{} in the shoot: {}", failure.what, failure.class.words()))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    fn provision<'b>(&'b self, name: &'b FirewallName) -> Provision<'b> {
        Provision {
            approver: self.approver,
            namespace: &self.namespace,
            name,
            object: &self.object,
        }
    }

    /// Has everything stand that belongs to this record. Needs the seed alone.
    async fn stand(
        &self,
        provision: &Provision<'_>,
        name: &FirewallName,
        now: &Advanced,
        side: &ShootSide,
        handed_out: &mut HandedOut,
    ) -> Result<(), FirewallError> {
        let Advanced { state, record, .. } = now;
        let target = plan::Firewall {
            name,
            namespace: &self.namespace,
            uid: &self.uid,
            shoot: side.secrets.as_ref(),
        };
        let handover_keys = vec![state.handover_key().map_err(|e| self.state_error(e))?.public()];
        let endpoint = self.approver.seed.endpoint();
        let superseded = now.verdict == Verdict::Renew(Reason::IssuerSuperseded);
        let renewed = record.certificate.as_ref().filter(|_| superseded);
        let access = AgentAccess {
            seed: self.approver.seed.id.clone(),
            server: endpoint.server,
            ca: endpoint.ca.pem().to_owned(),
            mode: self.approver.mode,
            handover_keys: handover_keys.clone(),
            lifeline: handed_out.lifeline.clone(),
            renew: renewed.map(|certificate| certificate.serial.clone()),
            life: self.approver.life,
        };
        let plan = plan::plan(&target, record, &access).map_err(|e| FirewallError::Access(self.object.clone(), e))?;
        let extension = BootstrapExtension {
            firewall: name.clone(),
            handover_keys,
        };
        let provided = async {
            provision.apply(&plan).await?;
            provision.credential(&target, record, extension, handed_out).await
        };
        let provided = provided.await;
        if !self.approver.is_there(&self.namespace, name, &self.uid) {
            // It went meanwhile, and perhaps all that tells of it: what was made after it was cleared away goes, too.
            provision.forget();
            gone::clear_seed(self.approver, &self.namespace, name, record, &self.object).await?;
        }
        provided
    }

    /// The lifeline as it should stand; what is known of it where the shoot says nothing new.
    async fn lifeline(
        &self,
        name: &FirewallName,
        side: &ShootSide,
        known: Option<&SecretString>,
        now: Timestamp,
    ) -> Result<Option<SecretString>, Failure> {
        let (Some(shoot), Some(access)) = (&side.shoot, self.sight.shoot_access()) else {
            return Ok(known.cloned());
        };
        let server = &access.api_server_url;
        let known = known.and_then(|known| lifeline::restore(known.expose_secret(), shoot, server, now));
        let lately = shoot.tried_lately(name.as_str(), self.approver.poll);
        if let Some(known) = known.as_ref().filter(|_| lately) {
            return Ok(Some(known.clone()));
        }
        let Some(_turn) = shoot.turn().await else {
            let what = format!("look after the lifeline of firewall {name}");
            return Err(Failure {
                what,
                class: Class::Busy,
                detail: "the shoot is slow".into(),
            });
        };
        lifeline::stand(shoot, &self.namespace, name).await?;
        // A shoot that rolled the key of its tokens refuses what looks good.
        if let Some(known) = known
            && !lifeline::is_refused(known.expose_secret()).await?
        {
            shoot.works(name.as_str());
            return Ok(Some(known));
        }
        lifeline::mint(shoot, &self.namespace, name, server).await.map(Some)
    }

    fn state_error(&self, error: StateError) -> FirewallError {
        FirewallError::State(self.object.clone(), error)
    }
}

fn done(state: Phase, reason: Reason, message: String) -> (Status, Duration) {
    (
        Status {
            state,
            reason,
            message,
            until: None,
            heard: Word::AsBefore,
        },
        POLL,
    )
}

fn recheck(advanced: &Advanced, closed: Option<&Closed>, poll: Duration, now: Timestamp) -> Duration {
    let verdict = match advanced.verdict {
        Verdict::Valid(at) => at,
        // It ends all the same if nobody renews it.
        Verdict::Renew(_) => advanced
            .record
            .certificate
            .as_ref()
            .map(|certificate| certificate.not_after),
        Verdict::Rebootstrap(_) => None,
    };
    let next = life::recheck_at(&advanced.record).into_iter().chain(verdict).min();
    let by_record = next.map_or(poll, |at| {
        Duration::from_secs(u64::try_from(at.duration_since(now).as_secs()).unwrap_or(0).max(1)).min(poll)
    });
    if closed.is_some() {
        by_record.min(CLOSED_POLL)
    } else {
        by_record
    }
}
