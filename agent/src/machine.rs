//! The running agent: it holds what the files hold, asks the pure core what to do next, does it, and tells the core how
//! it ended. Owns the loop and the reasons; each kind of action has a module of its own.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cluster::process::DRAIN;
use contract::access::{AgentAccess, Mode};
use contract::handover::{Fence, SealKey};
use contract::key::{PrivateKey, PublicKey};
use contract::names::FirewallName;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, trace, warn};

use crate::core::{Action, Event, Job, Own, Patience, Seen, State, Why, next, renewal_at};
use crate::handover::PendingHandover;
use crate::lifeline::{Lifeline, LifelineState};
use crate::link::{BootstrapLink, Link};
use crate::monitor::{Monitor, Watch};
use crate::notify::{self, Pulse};
use crate::pair::OwnPair;
use crate::paths::Paths;
use crate::report::Sent;
use crate::request::Candidate;
use crate::seed::FirewallSeen;
use crate::shoot::Shoot;
use crate::status::Status;
use crate::store::{Access, Handled, Store, StoreError, StoredRequest};

mod open;

/// How often the agent looks at what has no watch: the files of its operator.
const TICK: Duration = Duration::from_secs(1);
/// So long everything else has to itself before a handover cuts it off again.
const CUT_AGAIN: Duration = Duration::from_secs(10);

/// How one agent runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub paths: Paths,
    /// The life that is asked for each certificate; the signer may give less.
    pub certificate_duration: SignedDuration,
    /// Program and arguments that tell the consumer of a changed kubeconfig; empty: nobody is told.
    pub hook: Vec<String>,
    /// How often the shoot is asked for news, in case a watch did not tell them.
    pub poll_interval: SignedDuration,
}

/// Why an agent does not even start: nothing that waiting mends.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Bootstrap(String),
    #[error("{key} and {pair} hold different keys: restore the one that belongs to this machine")]
    KeysDiffer { key: String, pair: String },
}

/// Runs one agent until it is told to stop. Only faults of its configuration end it before.
pub async fn run(settings: Settings, stop: CancellationToken) -> Result<(), StartError> {
    let mut machine = Machine::open(settings).inspect_err(|error| notify::status(&error.to_string()))?;
    let mut pulse = Pulse::new();
    notify::ready();
    let mut cut: Option<Instant> = None;
    while !stop.is_cancelled() {
        pulse.beat();
        machine.watch_monitor();
        // A newer handover does not wait for the answer of a seed that may be dead. Not in a row: whoever can replay
        // one must not hold up everything else.
        let quiet = cut.is_some_and(|cut| cut.elapsed() < CUT_AGAIN);
        let news = machine.news(!quiet);
        // Whatever is under way may be cut off: a kill can come at any time too, and the next start goes on.
        tokio::select! {
            () = news => cut = Some(Instant::now()),
            () = machine.step(&stop) => {}
            () = late(&stop) => {
                warn!(firewall = %machine.object(), "what is under way did not end in time and is cut off");
                break;
            }
        }
    }
    // Said twice where `late` was first.
    notify::stopping();
    info!(firewall = %machine.object(), "stopped");
    Ok(())
}

/// When what is under way has had its time to end.
async fn late(stop: &CancellationToken) {
    stop.cancelled().await;
    notify::stopping();
    tokio::time::sleep(DRAIN).await;
}

pub(crate) struct Machine {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) firewall: FirewallName,
    /// Of its Firewall in the seed, as its own file or the bootstrap kubeconfig had it at the start.
    namespace: String,
    pub(crate) state: State,
    pub(crate) key: Option<PrivateKey>,
    /// Its public half.
    pub(crate) public: Option<PublicKey>,
    pub(crate) pair: Option<OwnPair>,
    pub(crate) access: Option<Access>,
    pub(crate) handled: Handled,
    pub(crate) request: Option<StoredRequest>,
    pub(crate) candidate: Option<Candidate>,
    pub(crate) own: Option<Link>,
    pub(crate) bootstrap: Option<BootstrapLink>,
    /// The handover that is not used yet.
    pub(crate) handover: Option<PendingHandover>,
    pub(crate) handover_link: Option<Link>,
    pub(crate) fence: Fence,
    /// What handovers are sealed to. Made anew after each that was opened, and at each start.
    pub(crate) seal: Option<SealKey>,
    pub(crate) watch: Option<Watch>,
    /// Our FirewallMonitor as last seen.
    pub(crate) monitor: Option<Monitor>,
    /// The message in it that was judged last.
    pub(crate) judged: Option<String>,
    /// The handover that was answered with a report last.
    pub(crate) answered: Option<String>,
    /// By the kind of the refusal.
    pub(crate) refused_handovers: BTreeMap<String, u64>,
    /// How the seed answers to our own certificate.
    pub(crate) probe: Option<&'static str>,
    /// The last call with our own certificate did not reach the seed, or reached another server.
    pub(crate) cut_off: bool,
    pub(crate) seen: Option<FirewallSeen>,
    /// The value of the annotation that asks for a renewal and was not taken up yet.
    pub(crate) asked: Option<String>,
    /// What the seed wants us to work with, since it was asked last.
    pub(crate) wanted_mode: Option<Mode>,
    /// The life in seconds that is wanted, by the seed or else by our own setting, since the seed was asked last.
    pub(crate) wanted_life: Option<i64>,
    /// Serial of the certificate that the seed wants renewed.
    pub(crate) superseded: Option<String>,
    pub(crate) offer: Option<AgentAccess>,
    pub(crate) lifeline: Option<Lifeline>,
    pub(crate) lifeline_state: LifelineState,
    pub(crate) shoot: Option<Shoot>,
    /// The shoot kubeconfig of before this start: all there is, if the seed is dead and there is no lifeline.
    pub(crate) old_shoot: Option<Client>,
    pub(crate) sent: Option<Sent>,
    pub(crate) clock_skew: Option<i64>,
    /// What stands in the way of each job, as it was last logged.
    pub(crate) problems: BTreeMap<&'static str, String>,
    pub(crate) why: Option<Why>,
    pub(crate) status: Option<Status>,
}

impl Machine {
    /// One action, or a wait, which ends when it is told to stop.
    async fn step(&mut self, stop: &CancellationToken) {
        let now = Timestamp::now();
        let seen = self.look(now);
        self.state.token_wanted = self.wanted_mode.unwrap_or_else(|| self.mode()) == Mode::Token;
        self.look_after_report(now);
        self.report_changes();
        let action = next(&self.state, &seen, now);
        match action {
            Action::Wait { .. } => trace!(firewall = %self.object(), ?action, "next"),
            _ => debug!(firewall = %self.object(), ?action, "next"),
        }
        match action {
            Action::MakeKey => self.make_key(),
            Action::Install => self.install(),
            Action::AcceptRenewal => self.accept_renewal(),
            Action::TakeUp => self.take_up(),
            Action::DropHandover => self.drop_handover(),
            Action::RenewToken => self.renew_token().await,
            Action::WriteRequest { replacement, via } => self.write_request(replacement, via),
            Action::SendRequest(via) => self.send_request(via).await,
            Action::PollRequest(via) => self.poll_request(via).await,
            Action::DropRequest => self.drop_request(),
            Action::TryCandidate => self.try_candidate().await,
            Action::Switch => self.switch(),
            Action::TryOffer => self.try_offer().await,
            Action::MeasureClock(via) => self.measure_clock(via).await,
            Action::LookForHandover => self.look_for_handover().await,
            Action::RenewLifeline => self.renew_lifeline().await,
            Action::ReadSeed => self.read_seed().await,
            Action::RefreshShoot => self.refresh_shoot().await,
            Action::Report => self.report().await,
            Action::TellConsumer => self.tell_consumer().await,
            Action::Wait { until, why } => {
                self.waits(why);
                self.advise(why);
                self.write_status(why);
                let wait = u64::try_from(now.duration_until(until).as_millis())
                    .unwrap_or_default()
                    .max(1);
                let news = self.changes();
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(wait).min(TICK)) => {}
                    () = news => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }

    pub(crate) fn look(&mut self, now: Timestamp) -> Seen {
        // Once: its successor has another serial.
        let own = self.pair.as_ref().map(|pair| &pair.issued.serial);
        let superseded = own.is_some() && self.superseded.as_ref() == own;
        let mode = self.access.as_ref().map(Access::mode);
        let another = self.wanted_mode.is_some() && mode.is_some() && self.wanted_mode != mode;
        let another_life = self.pair.is_some() && self.wanted_life.is_some_and(|life| life != self.asked_life());
        let renewal =
            self.asked.is_some() || superseded || another || another_life || self.store.paths.renew().exists();
        let accepted = self.state.accepted(now);
        let nothing = Seen {
            bootstrap: false,
            bootstrap_new: false,
            renewal,
        };
        // Once we are in nobody needs it, and it may be gone.
        if accepted && !self.store.paths.bootstrap().exists() {
            self.problems.remove("credential");
            return nothing;
        }
        match self.bootstrap_link() {
            Ok(_) => {
                self.problems.remove("credential");
                let hash = self.bootstrap.as_ref().map(|bootstrap| &bootstrap.hash);
                Seen {
                    bootstrap: true,
                    bootstrap_new: self.pair.is_some() && hash != self.handled.bootstrap.as_ref(),
                    renewal,
                }
            }
            Err(problem) => {
                let gone = match (&self.pair, accepted) {
                    (Some(_), true) => "",
                    (Some(_), false) if self.state.live(now) => "the seed refuses its own certificate, and ",
                    (Some(_), false) => "its own certificate is over, and ",
                    (None, _) => "",
                };
                self.problem("credential", &format!("{gone}{problem}"));
                nothing
            }
        }
    }

    /// Our Firewall as log lines name it, here and in the approver's.
    pub(crate) fn object(&self) -> String {
        let namespace = self.access.as_ref().map_or(&self.namespace, |access| &access.namespace);
        format!("{namespace}/{}", self.firewall)
    }

    fn waits(&mut self, why: Why) {
        if self.why == Some(why) {
            return;
        }
        let request = self
            .request
            .as_ref()
            .map(|request| request.name.clone())
            .unwrap_or_default();
        match why {
            Why::Undecided => {
                warn!(firewall = %self.object(), request, "waits: nobody has decided about the request; is the firewall-approver running?")
            }
            Why::Unsigned => {
                warn!(firewall = %self.object(), request, "waits: the request is approved and nobody has signed it; does this seed sign client certificates?")
            }
            Why::Steady if self.why.is_some() => info!(firewall = %self.object(), "all is well"),
            _ => {}
        }
        self.why = Some(why);
    }

    pub(crate) fn after(&mut self, event: Event) {
        self.state.after(event, Timestamp::now());
    }

    /// A step towards a certificate was done.
    pub(crate) fn advanced(&mut self, event: Event) {
        self.problems.remove(Job::Access.as_str());
        self.after(event);
    }

    pub(crate) fn done(&mut self, job: Job, again: SignedDuration) {
        let again = Timestamp::now().checked_add(again).unwrap_or(Timestamp::MAX);
        self.done_until(job, again);
    }

    pub(crate) fn done_until(&mut self, job: Job, again: Timestamp) {
        if self.problems.remove(job.as_str()).is_some() {
            info!(firewall = %self.object(), job = job.as_str(), "works again");
        }
        self.after(Event::Done(job, again));
    }

    pub(crate) fn failed(&mut self, job: Job, patience: Patience, problem: &impl ToString) {
        self.problem(job.as_str(), &problem.to_string());
        self.after(Event::Failed(job, patience));
    }

    /// Notes what stands in the way. Logged when it changes, not at each try.
    pub(crate) fn problem(&mut self, job: &'static str, problem: &str) {
        if self.problems.get(job).is_none_or(|known| known != problem) {
            warn!(firewall = %self.object(), job, "{problem}");
            self.problems.insert(job, problem.to_owned());
        }
    }

    /// The life in seconds that was asked for what we work with. Where an older version asked, it was our own setting.
    fn asked_life(&self) -> i64 {
        let own = self.settings.certificate_duration.as_secs();
        self.handled.life.unwrap_or(own)
    }

    /// And what is asked for next.
    pub(crate) fn life(&self) -> i64 {
        self.wanted_life.unwrap_or_else(|| self.asked_life())
    }

    /// What we work with.
    pub(crate) fn mode(&self) -> Mode {
        self.pair.as_ref().map_or(Mode::Certificate, OwnPair::mode)
    }

    pub(crate) fn own_times(&self) -> Option<Own> {
        let issued = &self.pair.as_ref()?.issued;
        let renew_at = renewal_at(&self.firewall, issued.not_before, issued.not_after);
        Some(Own {
            renew_at,
            not_after: issued.not_after,
            token: self.mode() == Mode::Token,
        })
    }
}
