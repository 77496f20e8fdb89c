//! Gathers what `core::health` judges and `metrics` tells: from the watches, the canaries, the shoots, and what the
//! workers found. Asks nobody: an answer costs no request, and one that hangs hangs nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;

use cluster::failure::Failure;
use cluster::lease::Leadership;
use contract::grant;
use contract::reasons::Reason;

use crate::approver::Approver;
use crate::core::health::{self as core, Check, Health};
use crate::core::verdict::Verdict;
use crate::evidence::{condition, is_firewalls};
use crate::fleet::Id;
use crate::metrics::{Metrics, Standings, seconds};
use crate::webhook::Hook;

/// The HTTP server's side of the approver: there before it, and whatever becomes of it.
pub struct Served {
    pub metrics: Metrics,
    approver: OnceLock<Arc<Approver>>,
    /// Where userdata is asked for here.
    hook: OnceLock<Arc<Hook>>,
    lead: Mutex<Lead>,
    /// The checks that failed when somebody asked last.
    failed: Mutex<BTreeSet<String>>,
}

impl Served {
    pub fn new() -> Self {
        Self {
            metrics: Metrics::new(),
            approver: OnceLock::new(),
            hook: OnceLock::new(),
            lead: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    pub fn serves(&self, approver: Arc<Approver>) {
        // There is one in a process.
        let _ = self.approver.set(approver);
    }

    pub fn hooks(&self, hook: Arc<Hook>) {
        let _ = self.hook.set(hook);
    }

    pub fn hook(&self) -> Option<Arc<Hook>> {
        self.hook.get().cloned()
    }

    /// Waits until every API server that asks has its answer.
    pub async fn drain(&self) {
        if let Some(hook) = self.hook.get() {
            hook.drain().await;
        }
    }

    /// It waits for its turn: nothing of it is missing, if it knows whose turn it is.
    pub fn waits(&self, failure: Option<&Failure>) {
        let why = failure.map_or(Health::Good, |failure| {
            core::failing(failure.class, &format!("{}: {}", failure.what, failure.class.words()))
        });
        *self.lead.lock().unwrap_or_else(PoisonError::into_inner) = Lead::Waits(why);
    }

    /// None: nobody else may write, and nobody is asked.
    pub fn leads(&self, leadership: Option<Leadership>) {
        *self.lead.lock().unwrap_or_else(PoisonError::into_inner) = Lead::Leads(leadership);
    }

    fn lead(&self) -> Lead {
        self.lead.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this process lives: nothing that it depends on is in it, since a new process would not mend that.
    pub fn alive() -> Vec<Check> {
        vec![Check::new("ping", Health::Good)]
    }

    /// Whether it can do its work.
    pub fn ready(&self) -> Vec<Check> {
        let mut checks = self.leading();
        checks.extend(self.hook.get().map(|hook| hook.check()));
        checks
    }

    fn leading(&self) -> Vec<Check> {
        let leader = match self.lead() {
            // A replica that waits is as good as one that leads: it can take over.
            Lead::Waits(why) => return vec![Check::new("start", Health::Good), Check::new("leader", why)],
            Lead::Leads(Some(leadership)) if !leadership.holds() => {
                Health::Away("the lease could not be renewed".into())
            }
            Lead::Starts | Lead::Leads(_) => Health::Good,
        };
        let Some(approver) = self.approver.get() else {
            let why = "the seed has not answered all that is asked at start";
            return vec![Check::new("start", Health::Away(why.into()))];
        };
        let mut checks = vec![Check::new("start", Health::Good), Check::new("leader", leader)];
        checks.extend(watches(approver));
        checks.extend(approver.words.checks());
        checks.extend(approver.canaries.checks(Timestamp::now()));
        let shoots = shoots(approver).into_iter();
        checks.extend(shoots.map(|(namespace, health)| Check::new(format!("shoot/{namespace}"), health)));
        checks
    }

    /// Names what fails when that changes, and says nothing of what does not.
    pub fn tell(&self, checks: &[Check]) {
        let now: BTreeSet<String> = core::failed(checks).into_iter().map(str::to_owned).collect();
        let mut before = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if !now.is_subset(&before) {
            let names: Vec<_> = now.iter().map(String::as_str).collect();
            tracing::warn!(checks = %names.join(","), "not all checks of readiness pass: /readyz?verbose says why");
        }
        *before = now;
    }

    pub fn standings(&self) -> Standings {
        let mut standings = Standings {
            leads: match self.lead() {
                Lead::Leads(leadership) => leadership.is_none_or(|held| held.holds()),
                Lead::Starts | Lead::Waits(_) => false,
            },
            requests: cluster::count::sent(),
            ..Standings::default()
        };
        if let Some(approver) = self.approver.get() {
            gather(approver, &mut standings);
        }
        standings
    }
}

/// Which part this replica has.
#[derive(Clone, Default)]
enum Lead {
    #[default]
    Starts,
    /// And how it fares with that.
    Waits(Health),
    Leads(Option<Leadership>),
}

/// How dependencies fare that are asked now and then, in the words of whoever asked last.
#[derive(Default)]
pub struct Words(Mutex<BTreeMap<&'static str, Health>>);

impl Words {
    pub fn say(&self, name: &'static str, health: Health) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(name, health);
    }

    pub fn failed(&self, name: &'static str, failure: &Failure) {
        self.say(
            name,
            core::failing(failure.class, &format!("{}: {}", failure.what, failure.class.words())),
        );
    }

    fn checks(&self) -> Vec<Check> {
        let words = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        words
            .iter()
            .map(|(name, health)| Check::new(*name, health.clone()))
            .collect()
    }
}

/// One check for each kind of object, in however many namespaces it is watched.
fn watches(approver: &Approver) -> Vec<Check> {
    let mut kinds: Vec<Check> = Vec::new();
    for pulse in &approver.pulses {
        let check = Check::new(format!("watch/{}", pulse.name), pulse.watch().health());
        match kinds.iter_mut().find(|kind| kind.name == check.name) {
            Some(kind) => kind.health = std::mem::replace(&mut kind.health, Health::Good).or_worse(check.health),
            None => kinds.push(check),
        }
    }
    kinds
}

/// How each namespace's shoot fares, of those with Firewalls whose shoot can be known.
fn shoots(approver: &Approver) -> BTreeMap<String, Health> {
    let there = there(approver);
    let mut shoots: BTreeMap<String, Health> = BTreeMap::new();
    for (namespace, watch) in approver.shoots.watches() {
        if there.iter().any(|(of, _)| *of == namespace) {
            shoots.insert(namespace, watch.health());
        }
    }
    for ((namespace, _), known) in approver.fleet.known(|id| there.contains(id)) {
        let Some((reason, why)) = known.closed else { continue };
        let closed = match reason {
            Reason::ShootUnreachable => Health::Away(why),
            _ => Health::Broken(why),
        };
        let health = shoots.entry(namespace).or_insert(Health::Good);
        *health = std::mem::replace(health, Health::Good).or_worse(closed);
    }
    shoots
}

fn there(approver: &Approver) -> BTreeSet<Id> {
    let firewalls = approver.all_firewalls();
    firewalls
        .map(|f| (f.namespace().unwrap_or_default(), f.name_any()))
        .collect()
}

fn gather(approver: &Approver, standings: &mut Standings) {
    let (now, there) = (Timestamp::now(), there(approver));
    for (id, known) in approver.fleet.known(|id| there.contains(id)) {
        if let Some(end) = known.certificate_ends {
            standings.certificates_end.insert(id.clone(), end);
        }
        if let Some(made) = known.credential_made {
            standings.credential_ages.insert(id.clone(), seconds(made, now));
        }
        if let Some((reason, since)) = known.handover {
            let age = (reason.as_str(), seconds(since, now));
            standings.handover_ages.insert(id.clone(), age);
        }
        let verdict = match known.verdict {
            Verdict::Valid(_) => ("Valid", "none"),
            Verdict::Renew(reason) => ("Renew", reason.as_str()),
            Verdict::Rebootstrap(reason) => ("Rebootstrap", reason.as_str()),
        };
        standings.verdicts.insert(id, verdict);
    }
    let shoots = shoots(approver).into_iter();
    standings.shoots = shoots.map(|(of, health)| (of, health == Health::Good)).collect();
    let requests = approver.requests.state();
    let served = |request: &CertificateSigningRequest| {
        let read = contract::csr::read(&request.spec.request.0);
        read.is_ok_and(|read| there.iter().any(|(_, name)| name == read.firewall.as_str()))
    };
    let waiting = requests
        .iter()
        .filter_map(|request| not_issued_since(request).filter(|_| served(request)));
    standings.oldest_not_issued = waiting.map(|since| seconds(since, now)).fold(0.0, f64::max);
    standings.canaries = approver.canaries.accepted(now);
    for pulse in &approver.pulses {
        let age = standings.watches.entry(pulse.name).or_default();
        *age = age.max(pulse.watch().quiet.as_secs_f64());
        let is_there = |object: &str| match object.split_once('/') {
            Some(("", request)) => requests.iter().any(|known| known.name_any() == request),
            Some((namespace, name)) => there.contains(&(namespace.to_owned(), name.to_owned())),
            None => false,
        };
        if pulse.queues {
            *standings.queues.entry(pulse.name).or_default() += pulse.depth(is_there);
        }
    }
    for (namespace, watch) in approver.shoots.watches() {
        if there.iter().any(|(of, _)| *of == namespace) {
            standings.shoot_watches.insert(namespace, watch.quiet.as_secs_f64());
        }
    }
}

/// When it was approved, if it is a firewall's and its certificate, or its token, is still to come.
fn not_issued_since(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let approved = condition(request, "Approved")?;
    let issued = request
        .status
        .as_ref()
        .is_some_and(|status| status.certificate.is_some());
    let granted = condition(request, grant::CONDITION).is_some();
    if issued || granted || condition(request, "Failed").is_some() || !is_firewalls(request) {
        return None;
    }
    Some(approved.last_update_time.as_ref()?.0)
}

#[cfg(test)]
mod tests {
    use cluster::failure::Class;

    use super::*;

    #[test]
    fn e2_a_replica_that_waits_is_ready_if_it_knows_for_whom() {
        let served = Served::new();
        served.waits(None);
        assert!(served.ready().iter().all(|check| check.health == Health::Good));
        let failure = Failure {
            what: "get Lease firewall-approver/firewall-approver".into(),
            class: Class::Unreachable,
            detail: String::new(),
        };
        served.waits(Some(&failure));
        let ready = served.ready();
        let leader = ready.iter().find(|check| check.name == "leader").unwrap();
        assert!(
            matches!(&leader.health, Health::Away(why) if why.contains("get Lease")),
            "{leader:?}"
        );
    }
}
