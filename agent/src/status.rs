//! What `firewall-agent status` prints. The running agent keeps it in a file of its own, written on change only; the
//! command needs neither the agent nor the seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use contract::grant::is_token;
use contract::key::Thumbprint;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::core::{Job, Standing, Why};
use crate::files::{self, FileError};
use crate::machine::Machine;
use crate::notify;
use crate::paths::Paths;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub firewall: String,
    pub version: String,
    pub namespace: Option<String>,
    pub server: Option<String>,
    /// UID of the seed's kube-system namespace.
    pub seed: Option<String>,
    pub key: Option<Thumbprint>,
    pub certificate: Option<CertificateStatus>,
    pub request: Option<RequestStatus>,
    pub shoot: ShootStatus,
    /// How the seed answers to our certificate.
    #[serde(default)]
    pub seed_answers: Option<String>,
    /// The seed does not accept our certificate any more.
    #[serde(default)]
    pub refused: bool,
    /// Number of the newest handover that was taken up.
    #[serde(default)]
    pub taken_up: Option<String>,
    /// The handover that is being used.
    #[serde(default)]
    pub handover: Option<HandoverStatus>,
    /// How many messages were refused since the start, by the kind of the refusal.
    #[serde(default)]
    pub refused_handovers: BTreeMap<String, u64>,
    /// When the last report arrived.
    pub reported: Option<Timestamp>,
    pub clock_skew_seconds: Option<i64>,
    /// In one sentence.
    pub waits: String,
    /// What stands in the way, by what it hinders.
    pub problems: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    pub serial: String,
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub renew_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    pub name: String,
    pub standing: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShootStatus {
    pub reached: bool,
    pub lifeline: bool,
    pub token_expires: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverStatus {
    pub order: String,
    pub seed: String,
    pub reason: String,
    pub expires: Timestamp,
}

#[derive(Debug, Error)]
pub enum StatusError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0} does not exist: firewall-agent has not got as far as writing it; see `journalctl -u firewall-agent`")]
    Absent(String),
    #[error("{path} cannot be read: {problem}")]
    Content { path: String, problem: String },
}

impl Status {
    pub fn read(paths: &Paths) -> Result<Self, StatusError> {
        let path = paths.status();
        let shown = path.display().to_string();
        let text = files::read_private(&path)?.ok_or_else(|| StatusError::Absent(shown.clone()))?;
        serde_json::from_str(&text).map_err(|e| StatusError::Content {
            path: shown,
            problem: e.to_string(),
        })
    }

    /// For people, in one line: what it does, until when its access is good, and what stands in the way.
    pub fn line(&self) -> String {
        let mut line = if self.waits == waits(Why::Steady) {
            "all is well".to_owned()
        } else {
            format!("waits for {}", self.waits)
        };
        // Writing into a string cannot fail.
        let _ = match &self.certificate {
            Some(used) if is_token(&used.issuer) => write!(line, "; token until {}", used.not_after),
            Some(used) => write!(line, "; certificate until {}", used.not_after),
            None => write!(line, "; no access to the seed yet"),
        };
        for (job, problem) in &self.problems {
            let _ = write!(line, "; {job}: {problem}");
        }
        line
    }

    /// For people, a line a fact.
    pub fn text(&self) -> String {
        let none = || "-".to_owned();
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{name:<13}{value}");
        };
        line("firewall", self.firewall.clone());
        line("seed", self.server.clone().unwrap_or_else(none));
        if let Some(answers) = &self.seed_answers {
            line("seed is", answers.clone());
        }
        line("seed id", self.seed.clone().unwrap_or_else(none));
        line("namespace", self.namespace.clone().unwrap_or_else(none));
        line("key", self.key.as_ref().map_or_else(none, ToString::to_string));
        let token = self.certificate.as_ref().is_some_and(|used| is_token(&used.issuer));
        line(
            if token { "token" } else { "certificate" },
            self.certificate.as_ref().map_or_else(none, |certificate| {
                format!(
                    "{} from {} until {}, renewed from {} on",
                    certificate.serial, certificate.not_before, certificate.not_after, certificate.renew_at
                )
            }),
        );
        if self.refused {
            line(
                "refused",
                "the seed does not accept this certificate any more".to_owned(),
            );
        }
        if let Some(taken_up) = &self.taken_up {
            line("taken up", format!("handover {taken_up}"));
        }
        if let Some(handover) = &self.handover {
            line(
                "handover",
                format!(
                    "{} to seed {} ({}) is being used, until {}",
                    handover.order, handover.seed, handover.reason, handover.expires
                ),
            );
        }
        for (kind, count) in &self.refused_handovers {
            line("handovers", format!("{count} refused: {kind}"));
        }
        if let Some(request) = &self.request {
            line("request", format!("{} ({})", request.name, request.standing));
        }
        let shoot = match (self.shoot.reached, self.shoot.token_expires) {
            (true, Some(expires)) => format!("reached, token until {expires}"),
            (true, None) => "reached".to_owned(),
            (false, _) => "not reached".to_owned(),
        };
        line(
            "shoot",
            format!(
                "{shoot}, {}",
                if self.shoot.lifeline {
                    "with a lifeline"
                } else {
                    "without a lifeline"
                }
            ),
        );
        line(
            "reported",
            self.reported.as_ref().map_or_else(none, ToString::to_string),
        );
        line(
            "clock",
            self.clock_skew_seconds
                .map_or_else(none, |skew| format!("{skew:+} s against the seed's")),
        );
        line("waits for", self.waits.clone());
        for (job, problem) in &self.problems {
            line("problem", format!("{job}: {problem}"));
        }
        text
    }
}

impl Machine {
    pub(crate) fn write_status(&mut self, why: Why) {
        let status = self.status_now(why);
        if self.status.as_ref() == Some(&status) {
            return;
        }
        notify::status(&status.line());
        let written = serde_json::to_string_pretty(&status)
            .map_err(|e| e.to_string())
            .and_then(|text| {
                let read_back = |text: &str| serde_json::from_str::<Status>(text).map(drop);
                files::write(&self.store.paths.status(), &(text + "\n"), read_back).map_err(|e| e.to_string())
            });
        match written {
            Ok(()) => {
                self.problems.remove("status");
            }
            Err(problem) => self.problem("status", &problem),
        }
        // Also if it could not be written: the next change tries again, not each second.
        self.status = Some(status);
    }

    fn status_now(&self, why: Why) -> Status {
        let certificate = self
            .pair
            .as_ref()
            .zip(self.own_times())
            .map(|(pair, own)| CertificateStatus {
                serial: pair.issued.serial.clone(),
                issuer: pair.issued.issuer.clone(),
                not_before: pair.issued.not_before,
                not_after: pair.issued.not_after,
                renew_at: own.renew_at,
            });
        let standing = self
            .state
            .request
            .map_or("written", |request| standing(request.standing));
        Status {
            firewall: self.firewall.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            namespace: self.access.as_ref().map(|access| access.namespace.clone()),
            server: self.access.as_ref().map(|access| access.server.clone()),
            seed: self.access.as_ref().and_then(|access| access.seed.clone()),
            key: self.key.as_ref().map(|key| key.public().thumbprint()),
            certificate,
            request: self.request.as_ref().map(|request| RequestStatus {
                name: request.name.clone(),
                standing: standing.to_owned(),
            }),
            shoot: ShootStatus {
                reached: self.shoot.is_some(),
                lifeline: self.lifeline.is_some(),
                token_expires: self.shoot.as_ref().and_then(|shoot| shoot.expires),
            },
            seed_answers: self.probe.map(str::to_owned),
            refused: self.state.refused,
            taken_up: (self.fence.digest.is_some()).then(|| self.fence.order.to_string()),
            handover: self.handover.as_ref().map(|handover| HandoverStatus {
                order: handover.order().to_string(),
                seed: handover.seed.clone(),
                reason: handover.reason.clone(),
                expires: handover.expires,
            }),
            refused_handovers: self.refused_handovers.clone(),
            reported: self.sent.as_ref().map(|sent| sent.at),
            clock_skew_seconds: self.clock_skew,
            waits: waits(why).to_owned(),
            problems: self
                .problems
                .iter()
                .map(|(job, problem)| ((*job).to_owned(), problem.clone()))
                .collect(),
        }
    }
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Written => "not sent yet",
        Standing::Pending => "undecided",
        Standing::Approved => "approved, not signed yet",
        Standing::Issued => "issued, being tried",
        Standing::Tried => "issued, works",
        Standing::Void => "refused",
    }
}

fn waits(why: Why) -> &'static str {
    match why {
        Why::Steady => "nothing: all is well",
        Why::Answer => "the answer to its request",
        Why::Undecided => "somebody to decide about its request: is the firewall-approver running?",
        Why::Unsigned => "somebody to sign its approved request: does this seed sign client certificates?",
        Why::NoCredential => {
            "a credential: it has neither a certificate that the seed accepts nor a bootstrap kubeconfig that can be used"
        }
        Why::Failed(Job::Access) => "the next try for a certificate",
        Why::Failed(Job::Clock) => "the next try to ask the seed for its time",
        Why::Failed(Job::Consumer) => "the next try to tell the consumer",
        Why::Failed(Job::Handover) => "the next look for a handover",
        Why::Failed(Job::Lifeline) => "the next try to renew its lifeline",
        Why::Failed(Job::Offer) => "the next try of the server and CA that the seed told of",
        Why::Failed(Job::Report) => "the next try to report",
        Why::Failed(Job::Seed) => "the next try to read the seed",
        Why::Failed(Job::Shoot) => "the next try for shoot access",
    }
}
