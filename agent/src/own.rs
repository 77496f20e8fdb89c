//! How a seed answers to our credentials, and what follows from a refusal. Owns the words for it; when a refusal is
//! believed is the core's decision.

use cluster::failure::{Class, Failure};
use jiff::Timestamp;
use tracing::{info, warn};

use crate::core::{Event, Job, Patience, Via, Why};
use crate::machine::Machine;
use crate::store::Handled;

/// A bootstrap kubeconfig that a person put there is given up after as many refusals, or failures of any kind, while
/// our own certificate still works.
const REFUSALS_OF_NEW: u32 = 3;
const FAILURES_OF_NEW: u32 = 8;
/// A machine may boot before its network.
const FAILURES_BEFORE_ADVICE: u32 = 2;
const ADVICE: &str = "what to do";

impl Machine {
    pub(crate) fn own_answered(&mut self) {
        self.probe = Some("works");
        self.cut_off = false;
        let refused = self.state.refused;
        self.after(Event::OwnAccepted);
        if refused {
            info!(firewall = %self.object(), "the seed accepts our certificate again");
        }
    }

    /// A call with our own certificate failed.
    pub(crate) fn own_failed(&mut self, job: Job, patience: Patience, failure: &Failure) {
        self.probe = Some(words(failure.class));
        self.cut_off = matches!(failure.class, Class::Unreachable | Class::Untrusted);
        self.failed(job, patience_with(failure, patience), failure);
        match failure.class {
            Class::Unauthenticated => {
                // The next try is a fresh connection: the server may have judged the old one long ago.
                self.own = None;
                let refused = self.state.refused;
                self.after(Event::OwnRefused);
                if self.state.refused && !refused {
                    warn!(firewall = %self.object(), "the seed refuses our certificate: bootstrapping with what is at hand");
                }
            }
            Class::UntrustedTime => self.after(Event::Done(Job::Clock, Timestamp::UNIX_EPOCH)),
            // Whoever is told that it does not exist was let in.
            Class::NotFound => self.after(Event::OwnAccepted),
            _ => {}
        }
    }

    /// A call for a certificate failed.
    pub(crate) fn access_failed(&mut self, via: Via, failure: &Failure) {
        if via == Via::Own {
            return self.own_failed(Job::Access, Patience::Normal, failure);
        }
        // While our own certificate works, what a person put there may lead nowhere and yet have its time.
        let new = via == Via::Bootstrap && self.state.accepted(Timestamp::now());
        let patience = if new {
            Patience::Normal
        } else {
            patience_with(failure, Patience::Normal)
        };
        self.failed(Job::Access, patience, failure);
        if failure.is(Class::UntrustedTime) {
            self.after(Event::Done(Job::Clock, Timestamp::UNIX_EPOCH));
        }
        let failures = self.state.pace(Job::Access).failures;
        let limit = if failure.is(Class::Unauthenticated) {
            REFUSALS_OF_NEW
        } else {
            FAILURES_OF_NEW
        };
        if via == Via::Bootstrap && failures >= limit && self.state.accepted(Timestamp::now()) {
            self.give_up_bootstrap();
        }
    }

    /// It must not stand in the way of what works.
    fn give_up_bootstrap(&mut self) {
        let Some(hash) = self.bootstrap.as_ref().map(|bootstrap| bootstrap.hash.clone()) else {
            return;
        };
        let handled = Handled {
            bootstrap: Some(hash),
            ..self.handled.clone()
        };
        match self.store.write_handled(&handled) {
            Ok(()) => {
                warn!(firewall = %self.object(), "the new bootstrap kubeconfig leads nowhere and is given up; our own certificate goes on");
                self.handled = handled;
            }
            Err(error) => self.problem("credential", &error.to_string()),
        }
    }

    /// What a person can do where nothing at hand can work.
    pub(crate) fn advise(&mut self, why: Why) {
        let now = Timestamp::now();
        let failing = self.state.pace(Job::Access).failures >= FAILURES_BEFORE_ADVICE;
        let stuck = !self.state.accepted(now) && self.handover.is_none() && (why == Why::NoCredential || failing);
        if !stuck {
            self.problems.remove(ADVICE);
            return;
        }
        let bootstrap = self.bootstrap.as_ref().map(|bootstrap| &bootstrap.link.access);
        let namespace = self
            .access
            .as_ref()
            .or(bootstrap)
            .map(|access| access.namespace.as_str());
        let advice = format!(
            "if the control plane has moved to another seed, run `firewall-approver export {}/{}` there and put its output to {}",
            namespace.unwrap_or("<namespace>"),
            self.firewall,
            self.store.paths.bootstrap().display()
        );
        self.problem(ADVICE, &advice);
    }
}

fn patience_with(failure: &Failure, otherwise: Patience) -> Patience {
    if failure.is(Class::Unreachable) && otherwise == Patience::Normal {
        Patience::Away
    } else {
        otherwise
    }
}

/// As it stands in the status.
fn words(class: Class) -> &'static str {
    match class {
        Class::Unauthenticated => "refuses our certificate",
        Class::Untrusted => "not the server we trust",
        Class::UntrustedTime => "its certificate is outside its validity, or this clock is wrong",
        Class::Forbidden => "forbidden",
        Class::NotFound => "not found",
        Class::Unreachable => "unreachable",
        Class::Busy => "busy or failing",
        Class::Conflict | Class::AlreadyExists | Class::Invalid | Class::Misconfigured => "answers strangely",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_does_not_answer_is_asked_again_soon() {
        let failure = |class| Failure {
            what: "get it".into(),
            class,
            detail: String::new(),
        };
        let patience = |class, otherwise| patience_with(&failure(class), otherwise);
        assert_eq!(patience(Class::Unreachable, Patience::Normal), Patience::Away);
        assert_eq!(patience(Class::Unreachable, Patience::Lag), Patience::Lag);
        assert_eq!(patience(Class::Unauthenticated, Patience::Normal), Patience::Normal);
        assert_eq!(patience(Class::Busy, Patience::Normal), Patience::Normal);
    }
}
