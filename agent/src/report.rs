//! The signed report into our FirewallMonitor: at each change at once, and every five minutes. A report is a patch that
//! can change a monitor and never create one.

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::FirewallMonitor;
use contract::digest::sha256_hex;
use contract::handover::Order;
use contract::key::{PublicKey, Thumbprint};
use contract::kubeconfig::CaBundle;
use contract::names::{AGENT, MONITOR_NAMESPACE, SEED_ACCESS_REPORT};
use contract::report::{Certificate, Report};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::info;

use crate::core::{Event, Job, Patience};
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::store::Access;

/// A single call that failed is no reason for a report.
const FAILURES_OF_CUT_OFF: u32 = 2;
const EVERY: SignedDuration = SignedDuration::from_mins(5);

/// The last report that arrived.
pub(crate) struct Sent {
    pub(crate) at: Timestamp,
    /// As it should stand in the monitor.
    pub(crate) message: String,
    content: Content,
}

/// What is worth a report of its own when it changes.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    seed: String,
    namespace: String,
    certificate: Option<String>,
    taken_up: Order,
    seal: Option<PublicKey>,
    handover_keys: Vec<Thumbprint>,
    server: String,
    ca: String,
    refused: bool,
    cut_off: bool,
    /// In minutes: that it is known at all, and when it is another.
    clock_skew: Option<i64>,
}

impl Machine {
    pub(crate) async fn report(&mut self) {
        let (Some(key), Some(access)) = (&self.key, &self.access) else {
            return;
        };
        let Some(content) = self.content(access) else {
            self.state.reportable = false;
            return;
        };
        let issued = self.pair.as_ref().map(|pair| &pair.issued);
        let reported = content.clone();
        let report = Report {
            firewall: self.firewall.clone(),
            seed: reported.seed,
            namespace: reported.namespace,
            certificate: issued.map(|issued| Certificate {
                serial: issued.serial.clone(),
                not_before: issued.not_before,
                not_after: issued.not_after,
                issuer: issued.issuer.clone(),
            }),
            taken_up: reported.taken_up,
            seal: reported.seal,
            key: key.public(),
            handover_keys: reported.handover_keys,
            server: reported.server,
            ca: reported.ca,
            refused: reported.refused,
            cut_off: reported.cut_off,
            clock_skew_seconds: self.clock_skew,
            last_error: self.last_error(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            time: Timestamp::now(),
        };
        let message = match report.sign(key) {
            Ok(message) => message,
            Err(error) => return self.failed(Job::Report, Patience::Normal, &error),
        };
        match self.send_report(&message).await {
            Ok((way, monitor)) => {
                if self.sent.as_ref().is_none_or(|sent| sent.content != content) {
                    let serial = content.certificate.as_deref().unwrap_or_default();
                    info!(
                        firewall = %self.object(), serial, taken_up = %content.taken_up, refused = content.refused, way,
                        "report sent"
                    );
                }
                self.sent = Some(Sent {
                    at: report.time,
                    message,
                    content,
                });
                self.done(Job::Report, EVERY);
                // The answer tells as much as a look at it.
                self.monitor_seen(monitor);
            }
            Err(problem) => self.failed(Job::Report, Patience::Normal, &problem),
        }
    }

    /// None as long as the seed's id is not known.
    fn content(&self, access: &Access) -> Option<Content> {
        let ca = CaBundle::from_pem(&access.ca).map_or_else(|_| access.ca.clone(), |ca| ca.pem().to_owned());
        Some(Content {
            seed: access.seed.clone()?,
            namespace: access.namespace.clone(),
            certificate: self.pair.as_ref().map(|pair| pair.issued.serial.clone()),
            taken_up: self.fence.order,
            seal: self.seal.as_ref().map(|seal| seal.public().clone()),
            handover_keys: access.handover_keys.iter().map(PublicKey::thumbprint).collect(),
            server: sha256_hex(access.server.as_bytes()),
            ca: sha256_hex(ca.as_bytes()),
            refused: self.state.refused,
            cut_off: self.cut_off && self.state.pace(Job::Seed).failures >= FAILURES_OF_CUT_OFF,
            clock_skew: self.clock_skew.map(|seconds| seconds / 60),
        })
    }

    /// What changed since the last report does not wait for the next one.
    pub(crate) fn report_changes(&mut self) {
        let Some(sent) = &self.sent else { return };
        let content = self.access.as_ref().and_then(|access| self.content(access));
        if content.is_some_and(|content| content != sent.content) && self.state.pace(Job::Report).failures == 0 {
            self.report_soon();
        }
    }

    /// By the first way into the shoot that works. The monitor comes back as it stands then.
    async fn send_report(&mut self, message: &str) -> Result<(&'static str, Monitor), String> {
        let mut problems = Vec::new();
        for (way, client) in self.ways() {
            match patch(&client, self.firewall.as_str(), message).await {
                Ok(monitor) => {
                    self.way_worked(way);
                    return Ok((way, monitor));
                }
                Err(failure) if failure.is(Class::NotFound) => {
                    return Err(format!("{failure}; firewall-controller-manager makes it"));
                }
                Err(failure) => {
                    self.way_failed(way, &failure);
                    problems.push(format!("by the {way}: {failure}"));
                }
            }
        }
        if problems.is_empty() {
            Err("there is no way into the shoot yet".into())
        } else {
            Err(problems.join("; "))
        }
    }

    fn last_error(&self) -> Option<String> {
        let job = Job::ALL
            .into_iter()
            .find(|job| self.problems.contains_key(job.as_str()))?;
        self.problems.get(job.as_str()).map(|problem| {
            let problem: String = problem.chars().take(300).collect();
            format!("{}: {problem}", job.as_str())
        })
    }

    /// A change that somebody waits for does not wait for the next five minutes.
    pub(crate) fn report_soon(&mut self) {
        self.after(Event::Done(Job::Report, Timestamp::UNIX_EPOCH));
    }
}

/// A merge patch answers 404 where there is nothing, so it never creates.
async fn patch(client: &Client, firewall: &str, message: &str) -> Result<Monitor, Failure> {
    let monitors: Api<FirewallMonitor> = Api::namespaced(client.clone(), MONITOR_NAMESPACE);
    let patch = json!({ "metadata": { "annotations": { SEED_ACCESS_REPORT: message } } });
    let params = PatchParams {
        field_manager: Some(AGENT.into()),
        ..PatchParams::default()
    };
    let what = format!("patch FirewallMonitor {MONITOR_NAMESPACE}/{firewall}");
    call(what, monitors.patch_metadata(firewall, &params, &Patch::Merge(patch)))
        .await
        .map(|object| Monitor::of(object.metadata))
}
