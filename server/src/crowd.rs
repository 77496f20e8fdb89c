//! How many requests of one identity are looked at. Whoever may make requests may make ten thousand, and each that is
//! kept costs memory and time which other firewalls' requests wait for. What is over the limit is neither kept nor
//! decided: the cluster's own cleaner takes it away, after an hour what is decided, after a day what is not.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use contract::csr;

/// A firewall that renews a 10-minute certificate over and over stays below it.
pub const PER_IDENTITY: usize = 64;

/// Which requests are kept, by the user who made them.
#[derive(Default)]
pub struct Crowd {
    kept: HashMap<String, HashSet<String>>,
    /// While everything is listed anew: what is still there.
    listed: Option<HashSet<String>>,
    /// Of whom it was said that he makes too many.
    told: HashSet<String>,
}

impl Crowd {
    /// Whether an event of the watch is passed on.
    pub fn admits(&mut self, event: &Event<CertificateSigningRequest>) -> bool {
        match event {
            Event::Init => {
                self.listed = Some(HashSet::new());
                true
            }
            Event::InitApply(request) => {
                let admitted = self.takes(request);
                if let Some(listed) = self.listed.as_mut().filter(|_| admitted) {
                    listed.insert(request.name_any());
                }
                admitted
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    self.keep(|name| listed.contains(name));
                }
                true
            }
            Event::Apply(request) => self.takes(request),
            Event::Delete(request) => {
                let gone = request.name_any();
                if let Some(kept) = self.kept.get_mut(user(request)) {
                    kept.remove(&gone);
                }
                true
            }
        }
    }

    fn takes(&mut self, request: &CertificateSigningRequest) -> bool {
        // They are made and approved by whoever keeps them.
        if csr::is_canary(&request.spec.request.0) {
            return false;
        }
        let user = user(request);
        let kept = self.kept.entry(user.to_owned()).or_default();
        let name = request.name_any();
        if kept.contains(&name) {
            return true;
        }
        if kept.len() >= PER_IDENTITY {
            if self.told.insert(user.to_owned()) {
                tracing::warn!(
                    requester = %user,
                    "it has more than {PER_IDENTITY} requests for this signer: the others are not looked at before some of these are gone, and the cluster's cleaner removes them"
                );
            }
            return false;
        }
        kept.insert(name);
        true
    }

    fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.kept.retain(|_, names| {
            names.retain(|name| is_there(name));
            !names.is_empty()
        });
        let kept = &self.kept;
        self.told
            .retain(|user| kept.get(user).is_some_and(|names| names.len() >= PER_IDENTITY));
    }
}

fn user(request: &CertificateSigningRequest) -> &str {
    request.spec.username.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
    use kube::api::ObjectMeta;

    use super::*;

    fn request(user: &str, number: usize) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta {
                name: Some(format!("{user}-{number}")),
                ..ObjectMeta::default()
            },
            spec: CertificateSigningRequestSpec {
                username: Some(user.into()),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }

    fn full() -> Crowd {
        let mut crowd = Crowd::default();
        for number in 0..10_000 {
            let admitted = crowd.admits(&Event::Apply(request("thief", number)));
            assert_eq!(admitted, number < PER_IDENTITY, "{number}");
        }
        crowd
    }

    #[test]
    fn of_a_flood_so_many_are_kept_and_nobody_else_is_held_up() {
        let mut crowd = full();
        assert_eq!(crowd.kept.values().map(HashSet::len).sum::<usize>(), PER_IDENTITY);
        assert!(crowd.admits(&Event::Apply(request("firewall", 0))));
        // What is kept goes on: it may have been decided.
        assert!(crowd.admits(&Event::Apply(request("thief", 3))));
    }

    #[test]
    fn one_that_is_gone_makes_room_for_another_of_its_own_identity_only() {
        let mut crowd = full();
        assert!(crowd.admits(&Event::Delete(request("firewall", 0))));
        assert!(!crowd.admits(&Event::Apply(request("thief", 7000))));
        assert!(crowd.admits(&Event::Delete(request("thief", 5))));
        assert!(crowd.admits(&Event::Apply(request("thief", 7000))));
        assert!(!crowd.admits(&Event::Apply(request("thief", 7001))));
    }

    #[test]
    fn a_list_keeps_what_was_kept_and_forgets_what_is_gone() {
        let mut crowd = full();
        // In another order than they came in, and without the first ten.
        assert!(crowd.admits(&Event::Init));
        let admitted: Vec<usize> = (10..10_000)
            .rev()
            .filter(|number| crowd.admits(&Event::InitApply(request("thief", *number))))
            .collect();
        assert_eq!(admitted, (10..PER_IDENTITY).rev().collect::<Vec<_>>());
        assert!(crowd.admits(&Event::InitDone));
        // The next list finds room for as many as are gone.
        assert!(crowd.admits(&Event::Init));
        let admitted = (10..10_000).filter(|number| crowd.admits(&Event::InitApply(request("thief", *number))));
        assert_eq!(admitted.count(), PER_IDENTITY);
        // A list in which nobody is left.
        assert!(crowd.admits(&Event::Init) && crowd.admits(&Event::InitDone));
        assert!(crowd.kept.is_empty() && crowd.told.is_empty());
    }
}
