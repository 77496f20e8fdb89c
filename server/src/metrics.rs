//! What the approver counts and measures, in OpenMetrics. What happens is counted as it happens; how things stand is
//! gathered when somebody asks (`health`), so that nothing is told of a firewall that is gone. Each label has few values,
//! or those of the firewalls and shoots that there are. The list for people is `docs/reference/metrics.md`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use cluster::count::Kind;
use contract::reasons::Reason;
use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::fleet::Id;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PREFIX: &str = "firewall_approver";
/// A flood of requests must not grow what is remembered of them.
const AWAITED_MAX: usize = 10_000;
const REQUEST_SECONDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0];
const RECOVERY_SECONDS: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3600.0, 86_400.0];

type Labels = Vec<(&'static str, String)>;
type Number = Gauge<f64, AtomicU64>;
type Gauges = Family<Labels, Number>;

/// Decisions that somebody has to hear of: a firewall's credential makes a request as no firewall does. They count from zero
/// on, since of a series that begins with one nobody can tell that it grew.
const MISUSED: [(Decided, Reason); 8] = [
    (Decided::Denied, Reason::NotYours),
    (Decided::Denied, Reason::OtherKey),
    (Decided::Denied, Reason::MalformedRequest),
    (Decided::Denied, Reason::WrongUsages),
    (Decided::Denied, Reason::WrongExpiration),
    (Decided::Waits, Reason::CredentialSpent),
    (Decided::Waits, Reason::TooManyRequests),
    (Decided::Waits, Reason::TwoKeys),
];

/// What is counted as it happens.
#[derive(Clone)]
pub struct Metrics {
    decisions: Family<Labels, Counter>,
    handovers: Family<Labels, Counter>,
    admissions: Family<Labels, Counter>,
    approval: Histogram,
    issue: Histogram,
    recovery: Histogram,
    /// Requests that were seen approved and without their certificate, and when they were approved.
    awaited: Arc<Mutex<HashMap<String, Timestamp>>>,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub enum Decided {
    Approved,
    Denied,
    Ignored,
    Waits,
}

/// How things stand.
#[derive(Default)]
pub struct Standings {
    /// Whether this replica leads.
    pub leads: bool,
    pub certificates_end: BTreeMap<Id, Timestamp>,
    pub credential_ages: BTreeMap<Id, f64>,
    /// Verdict and reason.
    pub verdicts: BTreeMap<Id, (&'static str, &'static str)>,
    /// Since when a firewall has to come in anew, in seconds, and why.
    pub handover_ages: BTreeMap<Id, (&'static str, f64)>,
    pub oldest_not_issued: f64,
    /// Whether each issuer's canary is let in.
    pub canaries: BTreeMap<String, bool>,
    /// Whether the approver can work in the shoot of a namespace.
    pub shoots: BTreeMap<String, bool>,
    pub watches: BTreeMap<&'static str, f64>,
    pub shoot_watches: BTreeMap<String, f64>,
    pub queues: BTreeMap<&'static str, usize>,
    pub requests: BTreeMap<Kind, u64>,
}

impl Metrics {
    pub fn new() -> Self {
        let decisions = Family::<Labels, Counter>::default();
        for (decided, reason) in MISUSED {
            drop(decisions.get_or_create(&decision(decided, Some(reason))));
        }
        let admissions = Family::<Labels, Counter>::default();
        drop(admissions.get_or_create(&admission("create", "refused")));
        Self {
            decisions,
            handovers: Family::default(),
            admissions,
            approval: Histogram::new(REQUEST_SECONDS),
            issue: Histogram::new(REQUEST_SECONDS),
            recovery: Histogram::new(RECOVERY_SECONDS),
            awaited: Arc::default(),
        }
    }

    pub fn decided(&self, decided: Decided, reason: Option<Reason>) {
        self.decisions.get_or_create(&decision(decided, reason)).inc();
    }

    pub fn approved(&self, created: Option<Timestamp>, now: Timestamp) {
        if let Some(created) = created {
            self.approval.observe(seconds(created, now));
        }
    }

    /// An approved request was seen without its certificate.
    pub fn awaits(&self, request: &str, approved: Timestamp) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if awaited.len() >= AWAITED_MAX {
            awaited.clear();
        }
        awaited.entry(request.to_owned()).or_insert(approved);
    }

    /// Its certificate is there. One that was never seen without it was issued before this process began.
    pub fn issued(&self, request: &str, now: Timestamp) {
        let approved = self
            .awaited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(request);
        if let Some(approved) = approved {
            self.issue.observe(seconds(approved, now));
        }
    }

    /// A firewall has to come in anew. The word is of a record.
    pub fn hands_over(&self, reason: &str) {
        let reason = Reason::parse(reason).unwrap_or(Reason::Requested);
        let labels = vec![("reason", reason.as_str().to_owned())];
        self.handovers.get_or_create(&labels).inc();
    }

    /// The webhook answered for a Firewall.
    pub fn admitted(&self, create: bool, answer: &str) {
        let operation = if create { "create" } else { "update" };
        self.admissions.get_or_create(&admission(operation, answer)).inc();
    }

    pub fn recovered(&self, since: Timestamp, now: Timestamp) {
        self.recovery.observe(seconds(since, now));
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self, standings: &Standings) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        self.register(&mut registry);
        standings.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "decisions",
            "Decisions on certificate requests, by what was decided and why; one that waits is counted once for each reason",
            self.decisions.clone(),
        );
        registry.register(
            "handovers",
            "Verdicts that a firewall has to come in anew, by reason",
            self.handovers.clone(),
        );
        registry.register(
            "admissions",
            "Firewalls that the webhook was asked about, by operation and answer",
            self.admissions.clone(),
        );
        registry.register_with_unit(
            "approval_duration",
            "From the making of a certificate request to its approval",
            Unit::Seconds,
            self.approval.clone(),
        );
        registry.register_with_unit(
            "issue_duration",
            "From the approval of a certificate request to its certificate",
            Unit::Seconds,
            self.issue.clone(),
        );
        registry.register_with_unit(
            "recovery_duration",
            "From the verdict that a firewall has to come in anew to its report that it works again",
            Unit::Seconds,
            self.recovery.clone(),
        );
    }
}

impl Standings {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "leader",
            "Whether this replica leads: 1 if it does, 0 if it waits",
            gauges([(Vec::new(), f64::from(u8::from(self.leads)))]),
        );
        let of = |(namespace, firewall): &Id| vec![("namespace", namespace.clone()), ("firewall", firewall.clone())];
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of this millennium fit")]
        let unix = |time: &Timestamp| time.as_millisecond() as f64 / 1000.0;
        registry.register_with_unit(
            "certificate_expiry_timestamp",
            "End of the certificate that was issued to a firewall last",
            Unit::Seconds,
            gauges(self.certificates_end.iter().map(|(id, end)| (of(id), unix(end)))),
        );
        registry.register_with_unit(
            "bootstrap_credential_age",
            "Age of a firewall's bootstrap credential; none once it is revoked",
            Unit::Seconds,
            gauges(self.credential_ages.iter().map(|(id, age)| (of(id), *age))),
        );
        let because = |id: &Id, reason: &str| {
            let mut labels = of(id);
            labels.push(("reason", reason.to_owned()));
            labels
        };
        let verdicts = self.verdicts.iter().map(|(id, (verdict, reason))| {
            let mut labels = because(id, reason);
            labels.push(("verdict", (*verdict).to_owned()));
            (labels, 1.0)
        });
        registry.register(
            "firewalls",
            "Firewalls, each as 1 with the verdict on its access",
            gauges(verdicts),
        );
        registry.register_with_unit(
            "handover_age",
            "How long a firewall has had to come in anew, by reason; none once it has",
            Unit::Seconds,
            gauges(
                self.handover_ages
                    .iter()
                    .map(|(id, (reason, age))| (because(id, reason), *age)),
            ),
        );
        registry.register(
            "shoot_ready",
            "Whether the approver can work in a shoot: 1 if its check in /readyz passes, 0 if not",
            gauges(
                self.shoots
                    .iter()
                    .map(|(of, ready)| (vec![("namespace", of.clone())], f64::from(u8::from(*ready)))),
            ),
        );
        registry.register_with_unit(
            "approved_not_issued_age",
            "How long the oldest approved certificate request has been waiting for its certificate; 0 if none is",
            Unit::Seconds,
            one(self.oldest_not_issued),
        );
        let canaries = self.canaries.iter();
        registry.register(
            "canary_accepted",
            "Whether the seed lets in the canary of an issuer of certificates",
            gauges(
                canaries.map(|(issuer, accepted)| (vec![("issuer", issuer.clone())], f64::from(u8::from(*accepted)))),
            ),
        );
        registry.register_with_unit(
            "watch_age",
            "Time since a watch of the seed brought an event or a list",
            Unit::Seconds,
            gauges(
                self.watches
                    .iter()
                    .map(|(watch, age)| (vec![("watch", (*watch).to_owned())], *age)),
            ),
        );
        registry.register_with_unit(
            "shoot_watch_age",
            "Time since the watch of a shoot's FirewallMonitors brought an event or a list",
            Unit::Seconds,
            gauges(
                self.shoot_watches
                    .iter()
                    .map(|(of, age)| (vec![("namespace", of.clone())], *age)),
            ),
        );
        registry.register(
            "queue_depth",
            "Objects that changed and that no worker has looked at since",
            gauges(
                self.queues
                    .iter()
                    .map(|(queue, many)| (vec![("queue", (*queue).to_owned())], number(*many))),
            ),
        );
        let requests = Family::<Labels, Counter>::default();
        for ((verb, code), many) in &self.requests {
            let labels = vec![("verb", (*verb).to_owned()), ("code", (*code).to_owned())];
            requests.get_or_create(&labels).inc_by(*many);
        }
        registry.register(
            "api_requests",
            "Requests to API servers, by HTTP verb (or watch) and code (none: no answer)",
            requests,
        );
    }
}

fn admission(operation: &str, answer: &str) -> Labels {
    vec![("operation", operation.to_owned()), ("answer", answer.to_owned())]
}

fn decision(decided: Decided, reason: Option<Reason>) -> Labels {
    let decision = match decided {
        Decided::Approved => "approved",
        Decided::Denied => "denied",
        Decided::Ignored => "ignored",
        Decided::Waits => "waiting",
    };
    let reason = reason.map_or("none", Reason::as_str);
    vec![("decision", decision.to_owned()), ("reason", reason.to_owned())]
}

fn gauges(values: impl IntoIterator<Item = (Labels, f64)>) -> Gauges {
    let family = Gauges::default();
    for (labels, value) in values {
        family.get_or_create(&labels).set(value);
    }
    family
}

fn one(value: f64) -> Number {
    let gauge = Number::default();
    gauge.set(value);
    gauge
}

fn number(many: usize) -> f64 {
    f64::from(u32::try_from(many).unwrap_or(u32::MAX))
}

/// Clocks differ: nothing takes less than no time.
pub fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    from.duration_until(to).as_secs_f64().max(0.0)
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
