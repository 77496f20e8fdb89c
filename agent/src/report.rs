//! The signed report into our FirewallMonitor: at each change at once, and every five minutes. A report is a patch that
//! can change a monitor and never create one.

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::FirewallMonitor;
use contract::names::{AGENT, MONITOR_NAMESPACE, SEED_ACCESS_REPORT};
use contract::report::{Certificate, Report};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::info;

use crate::core::{Event, Job, Patience};
use crate::machine::Machine;

const EVERY: SignedDuration = SignedDuration::from_mins(5);

/// The last report that arrived.
pub(crate) struct Sent {
    pub(crate) at: Timestamp,
    content: Content,
}

/// What is worth a report of its own when it changes.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    seed: String,
    namespace: String,
    certificate: Option<String>,
}

impl Machine {
    pub(crate) async fn report(&mut self) {
        let (Some(key), Some(access)) = (&self.key, &self.access) else {
            return;
        };
        let Some(seed) = access.seed.clone() else {
            self.state.reportable = false;
            return;
        };
        let issued = self.pair.as_ref().map(|pair| &pair.issued);
        let certificate = issued.map(|issued| Certificate {
            serial: issued.serial.clone(),
            not_before: issued.not_before,
            not_after: issued.not_after,
            issuer: issued.issuer.clone(),
        });
        let content = Content {
            seed: seed.clone(),
            namespace: access.namespace.clone(),
            certificate: certificate.as_ref().map(|certificate| certificate.serial.clone()),
        };
        let report = Report {
            firewall: self.firewall.clone(),
            seed,
            namespace: access.namespace.clone(),
            certificate,
            authority: 0,
            generation: 0,
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
            Ok(way) => {
                if self.sent.as_ref().is_none_or(|sent| sent.content != content) {
                    let serial = content.certificate.as_deref().unwrap_or_default();
                    info!(firewall = %self.firewall, serial, way, "report sent");
                }
                self.sent = Some(Sent {
                    at: report.time,
                    content,
                });
                self.done(Job::Report, EVERY);
            }
            Err(problem) => self.failed(Job::Report, Patience::Normal, &problem),
        }
    }

    /// The lifeline first: it lives without the seed, so it is the way that has to work.
    async fn send_report(&self, message: &str) -> Result<&'static str, String> {
        let lifeline = self.lifeline.as_ref().map(|lifeline| ("lifeline", &lifeline.client));
        let shoot = self.shoot.as_ref().map(|shoot| ("shoot kubeconfig", &shoot.client));
        let mut problems = Vec::new();
        for (way, client) in lifeline.into_iter().chain(shoot) {
            match patch(client, self.firewall.as_str(), message).await {
                Ok(()) => return Ok(way),
                Err(failure) if failure.is(Class::NotFound) => {
                    return Err(format!("{failure}; firewall-controller-manager makes it"));
                }
                Err(failure) => problems.push(format!("by the {way}: {failure}")),
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
async fn patch(client: &Client, firewall: &str, message: &str) -> Result<(), Failure> {
    let monitors: Api<FirewallMonitor> = Api::namespaced(client.clone(), MONITOR_NAMESPACE);
    let patch = json!({ "metadata": { "annotations": { SEED_ACCESS_REPORT: message } } });
    let params = PatchParams {
        field_manager: Some(AGENT.into()),
        ..PatchParams::default()
    };
    let what = format!("patch FirewallMonitor {MONITOR_NAMESPACE}/{firewall}");
    call(what, monitors.patch_metadata(firewall, &params, &Patch::Merge(patch)))
        .await
        .map(drop)
}
