//! Taking up a handover: which message of our FirewallMonitor is believed, what is kept of it, and the fence against
//! older ones. Owns the order of the writes; when a message is judged is the core's decision, what a handover is the
//! contract's.

use contract::handover::{Fence, Handover, HandoverError, Order, SealKey, read};
use contract::key::PublicKey;
use contract::kubeconfig::{Credential, Kubeconfig};
use contract::names::FirewallName;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};
use zeroize::Zeroizing;

use crate::core::{Event, Job, Patience};
use crate::link::{Link, bootstrap_access, link};
use crate::machine::Machine;
use crate::store::Access;

/// A handover that was taken up and not used yet, as it is kept on disk: one file, so that one rename does it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PendingHandover {
    pub(crate) seed: String,
    pub(crate) fence: Fence,
    pub(crate) expires: Timestamp,
    pub(crate) reason: String,
    #[serde(with = "wiped")]
    pub(crate) kubeconfig: Zeroizing<String>,
}

/// A secret in a file of ours: text there, and wiped here.
mod wiped {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(text: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(deserializer).map(Zeroizing::new)
    }
}

/// What a message is judged by.
pub(crate) struct Guard {
    pub(crate) firewall: FirewallName,
    pub(crate) key: PublicKey,
    /// Whose handovers are believed.
    pub(crate) keys: Vec<PublicKey>,
    pub(crate) fence: Fence,
    /// The seed's time, as far as we know how wrong ours is.
    pub(crate) now: Timestamp,
}

/// Why a message changes nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it was taken up already")]
    Known,
    /// Somebody who is authentic has news for us, and needs a report of ours before he can tell.
    #[error("{error}")]
    AsksForReport { digest: String, error: HandoverError },
    #[error(transparent)]
    Refused(HandoverError),
    #[error("what was sealed in it is refused: {0}")]
    Content(String),
}

impl Refusal {
    /// Under which name it is counted; none where nothing is wrong.
    pub(crate) fn kind(&self) -> Option<&'static str> {
        let error = match self {
            Self::Known => return None,
            Self::Content(_) => return Some("wrong content"),
            Self::AsksForReport { error, .. } | Self::Refused(error) => error,
        };
        match error {
            HandoverError::Notice => None,
            HandoverError::TooLong(_) => Some("too long"),
            HandoverError::NotAuthentic(..) => Some("not authentic"),
            HandoverError::Form(_) | HandoverError::Make(_) => Some("cannot be read"),
            HandoverError::OtherFirewall(_) => Some("for another firewall"),
            HandoverError::OtherKey(_) => Some("for another key"),
            HandoverError::NotYet(_) => Some("from the future"),
            HandoverError::Expired(_) => Some("expired"),
            HandoverError::Older { .. } => Some("older than the one taken up"),
            HandoverError::NotForUs => Some("sealed to another key"),
        }
    }
}

impl Guard {
    /// An authentic handover for this machine that is newer than the last, whatever is sealed in it.
    pub(crate) fn admitted(&self, message: &str) -> Result<Handover, Refusal> {
        let handover = read(message, &self.keys).map_err(Refusal::Refused)?;
        if self.fence.digest.as_ref() == Some(&handover.digest) {
            return Err(Refusal::Known);
        }
        let meant = handover.check(&self.firewall, &self.key, self.now);
        meant
            .and_then(|()| self.fence.admits(&handover))
            .map_err(Refusal::Refused)?;
        Ok(handover)
    }

    pub(crate) fn take(&self, message: &str, seal: &SealKey) -> Result<PendingHandover, Refusal> {
        let handover = self.admitted(message)?;
        let kubeconfig = match handover.open(seal) {
            Ok(kubeconfig) => kubeconfig,
            Err(error @ (HandoverError::Notice | HandoverError::NotForUs)) => {
                let digest = handover.digest;
                return Err(Refusal::AsksForReport { digest, error });
            }
            Err(error) => return Err(Refusal::Refused(error)),
        };
        let claims = &handover.claims;
        let pending = PendingHandover {
            seed: claims.seed.clone(),
            fence: Fence::of(&handover),
            expires: claims.expires,
            reason: claims.reason.clone(),
            kubeconfig,
        };
        let (access, _) = pending.read(&self.firewall).map_err(Refusal::Content)?;
        if access.namespace != claims.namespace {
            return Err(Refusal::Content(format!(
                "it leads to namespace {:?}, and the handover says {:?}",
                access.namespace, claims.namespace
            )));
        }
        Ok(pending)
    }
}

impl PendingHandover {
    pub(crate) fn order(&self) -> Order {
        self.fence.order
    }

    /// The seed it leads to, and the credential for it.
    pub(crate) fn read(&self, firewall: &FirewallName) -> Result<(Access, Kubeconfig), String> {
        let what = "of a handover";
        let kubeconfig = Kubeconfig::read(what, &self.kubeconfig).map_err(|e| e.to_string())?;
        let mut access = bootstrap_access(what, &kubeconfig)?;
        if access.firewall != *firewall {
            return Err(format!(
                "it is for firewall {}, and this is {firewall}",
                access.firewall
            ));
        }
        if !matches!(
            kubeconfig.credential,
            Credential::Token(_) | Credential::Certificate { .. }
        ) {
            return Err("it has no credential".into());
        }
        access.seed = Some(self.seed.clone());
        Ok((access, kubeconfig))
    }
}

impl std::fmt::Debug for PendingHandover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingHandover({})", self.order())
    }
}

impl Machine {
    /// Judges the message that stands in our FirewallMonitor.
    pub(crate) fn take_up(&mut self) {
        let Some(message) = self.monitor.as_ref().and_then(|monitor| monitor.handover.clone()) else {
            return self.after(Event::HandoverRefused { quiet: false });
        };
        self.judged = Some(message.clone());
        let (Some(guard), Some(seal)) = (self.guard(), &self.seal) else {
            return self.after(Event::HandoverRefused { quiet: true });
        };
        match guard.take(&message, seal) {
            Ok(pending) => self.keep(pending),
            Err(refusal) => {
                self.refuse(&refusal);
                let quiet = matches!(refusal, Refusal::Refused(_) | Refusal::Content(_));
                self.after(Event::HandoverRefused { quiet });
            }
        }
    }

    pub(crate) fn guard(&self) -> Option<Guard> {
        Some(Guard {
            firewall: self.firewall.clone(),
            key: self.public.clone()?,
            keys: self.access.as_ref()?.handover_keys.clone(),
            fence: self.fence.clone(),
            now: self.seed_time(),
        })
    }

    /// First the handover, then the fence: after a kill in between, the handover itself is the fence.
    fn keep(&mut self, pending: PendingHandover) {
        if let Err(error) = self.store.write_handover(&pending) {
            // Nothing has changed; it stands in the monitor still.
            self.judged = None;
            self.failed(Job::Handover, Patience::Normal, &error);
            return self.after(Event::HandoverRefused { quiet: true });
        }
        self.fence = pending.fence.clone();
        if let Err(error) = self.store.write_fence(&self.fence) {
            self.problem("fence", &error.to_string());
        }
        info!(
            firewall = %self.object(), handover = %pending.order(), seed = %pending.seed, reason = %pending.reason,
            "handover taken up"
        );
        let expires = self.own_time(pending.expires);
        self.handover_link = None;
        self.candidate = None;
        self.handover = Some(pending);
        // What was sealed to the old key can be opened by nobody any more.
        self.renew_seal();
        self.problems.remove(REFUSED);
        self.advanced(Event::HandoverTaken { expires });
    }

    fn refuse(&mut self, refusal: &Refusal) {
        if let Refusal::AsksForReport { digest, .. } = refusal
            && self.answered.as_ref() != Some(digest)
        {
            self.answered = Some(digest.clone());
            info!(firewall = %self.object(), "the monitor holds news that is not sealed to us: reporting");
            self.report_soon();
        }
        let Some(kind) = refusal.kind() else {
            // What stands there now is not refused.
            self.problems.remove(REFUSED);
            return;
        };
        let count = self.refused_handovers.entry(kind.to_owned()).or_default();
        *count = count.saturating_add(1);
        self.problem(REFUSED, &format!("refused: {refusal}"));
    }

    pub(crate) fn drop_handover(&mut self) {
        warn!(firewall = %self.object(), "the handover expired before it could be used; the access of before goes on");
        let kept = self
            .access
            .as_ref()
            .map_or(Ok(()), |access| self.store.keep_access(access));
        if let Err(error) = kept.and_then(|()| self.forget_handover()) {
            // The file stays, and is found to be expired at the next start too.
            self.problem("fence", &error.to_string());
            self.handover = None;
            self.handover_link = None;
        }
        self.after(Event::HandoverDropped);
    }

    /// The fence is on disk before what stood for it goes.
    pub(crate) fn forget_handover(&mut self) -> Result<(), crate::store::StoreError> {
        if self.handover.is_some() {
            self.store.write_fence(&self.fence)?;
            self.store.remove_handover()?;
            self.problems.remove("fence");
        }
        self.handover = None;
        self.handover_link = None;
        Ok(())
    }

    pub(crate) fn handover_link(&mut self) -> Result<Link, String> {
        if let Some(link) = &self.handover_link {
            return Ok(link.clone());
        }
        let pending = self.handover.as_ref().ok_or("there is no handover")?;
        let (access, kubeconfig) = pending.read(&self.firewall)?;
        let made = link("the seed", &access, &kubeconfig)?;
        self.handover_link = Some(made.clone());
        Ok(made)
    }

    pub(crate) fn renew_seal(&mut self) {
        match SealKey::generate() {
            Ok(seal) => self.seal = Some(seal),
            Err(error) => {
                self.seal = None;
                self.problem("seal key", &error.to_string());
            }
        }
    }

    /// The seed's time, as far as we know how wrong this clock is.
    pub(crate) fn seed_time(&self) -> Timestamp {
        let now = Timestamp::now();
        now.checked_sub(self.skew()).unwrap_or(now)
    }

    /// A time of the seed's, by this clock.
    fn own_time(&self, time: Timestamp) -> Timestamp {
        time.checked_add(self.skew()).unwrap_or(time)
    }

    fn skew(&self) -> SignedDuration {
        SignedDuration::from_secs(self.clock_skew.unwrap_or(0))
    }
}

/// What stands in the status of the message that was refused last.
pub(crate) const REFUSED: &str = "handover";

#[cfg(test)]
#[path = "handover_tests.rs"]
pub(crate) mod tests;
