//! How many requests of one identity are looked at. Whoever may make requests may make ten thousand, and each that is
//! kept costs memory and time which other firewalls' requests wait for. What is over the limit is neither kept nor
//! decided: the cluster's own cleaner takes it away, after an hour what is decided, after a day what is not. Only a key
//! that was not seen yet is let in beside them: that there are two must not be hidden by a crowd.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use contract::csr;
use contract::key::Thumbprint;

use crate::core::decide::Requester;
use crate::evidence::condition;

/// An agent that is not answered gives up a request after 15 minutes: of those, 96 are there before the first is removed.
pub const PER_IDENTITY: usize = 128;
/// So many beside them, each with a key of its own.
pub const KEYS: usize = 8;
/// With those whose key was denied since.
const IN_ALL: usize = 2 * PER_IDENTITY;
/// What a map costs for each entry.
const OVERHEAD: usize = 64;
/// Of labels, annotations and the like.
const METADATA_MAX: usize = 32 * 1024;

/// User name, and whether it is one of our identities: a name alone may be anybody's.
type Identity = (String, bool);

/// Which requests are kept, by who made them.
#[derive(Default)]
pub struct Crowd {
    kept: HashMap<Identity, HashMap<String, Option<Thumbprint>>>,
    /// While everything is listed anew: what is still there.
    listed: Option<HashSet<(Identity, String)>>,
    /// Of whom it was said that he makes too many.
    told: HashSet<Identity>,
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
                    listed.insert((identity(request), request.name_any()));
                }
                admitted
            }
            Event::InitDone => {
                if let Some(listed) = self.listed.take() {
                    self.keep(&listed);
                }
                true
            }
            Event::Apply(request) => self.takes(request),
            Event::Delete(request) => {
                if let Some(kept) = self.kept.get_mut(&identity(request)) {
                    kept.remove(&request.name_any());
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
        // A firewall's are small, and the policy on requesters holds them to it.
        if is_heavy(request) {
            return false;
        }
        let identity = identity(request);
        let kept = self.kept.entry(identity.clone()).or_default();
        let name = request.name_any();
        if let Some(place) = kept.get_mut(&name) {
            if is_refused(request) {
                // Its key is one of nobody's: the place is another's.
                *place = None;
            }
            return true;
        }
        if kept.len() < PER_IDENTITY {
            kept.insert(name, None);
            return true;
        }
        if self.told.insert(identity.clone()) {
            let firewall = csr::read(&request.spec.request.0).map(|read| read.firewall.to_string());
            tracing::warn!(
                requester = %identity.0,
                firewall = firewall.unwrap_or_default(),
                "it has more than {PER_IDENTITY} requests for this signer: the others are not looked at before some of these are gone, and the cluster's cleaner removes them"
            );
        }
        let keys = kept.values().flatten().count();
        if !identity.1 || keys >= KEYS || kept.len() >= IN_ALL || is_refused(request) {
            return false;
        }
        // Read only now: whoever is in a crowd pays for it.
        let Ok(key) = csr::read(&request.spec.request.0).map(|read| read.key.thumbprint()) else {
            return false;
        };
        if kept.values().flatten().any(|known| *known == key) {
            return false;
        }
        kept.insert(name, Some(key));
        true
    }

    fn keep(&mut self, listed: &HashSet<(Identity, String)>) {
        self.kept.retain(|identity, names| {
            names.retain(|name, _| listed.contains(&(identity.clone(), name.clone())));
            !names.is_empty()
        });
        let kept = &self.kept;
        self.told
            .retain(|identity| kept.get(identity).is_some_and(|names| names.len() >= PER_IDENTITY));
    }
}

fn is_refused(request: &CertificateSigningRequest) -> bool {
    condition(request, "Denied").is_some() || condition(request, "Failed").is_some()
}

fn is_heavy(request: &CertificateSigningRequest) -> bool {
    let words = request.labels().iter().chain(request.annotations());
    let words: usize = words.map(|(key, value)| key.len() + value.len() + OVERHEAD).sum();
    let finalizers: usize = request.finalizers().iter().map(String::len).sum();
    let owners = request.owner_references().iter();
    let owners: usize = owners
        .map(|of| of.name.len() + of.kind.len() + of.api_version.len())
        .sum();
    words + finalizers + owners > METADATA_MAX
}

fn identity(request: &CertificateSigningRequest) -> Identity {
    let user = request.spec.username.as_deref().unwrap_or_default();
    let groups = request.spec.groups.as_deref().unwrap_or_default();
    (user.to_owned(), Requester::of(user, groups) != Requester::Foreign)
}

#[cfg(test)]
mod tests {
    use contract::key::PrivateKey;
    use contract::names::{self, FirewallName};
    use k8s_openapi::api::certificates::v1::{CertificateSigningRequestCondition, CertificateSigningRequestSpec};
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
        assert_eq!(crowd.kept.values().map(HashMap::len).sum::<usize>(), PER_IDENTITY);
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

    /// As an API server stamps it on what comes with a bootstrap token of ours.
    fn with_key(number: usize, key: &PrivateKey) -> CertificateSigningRequest {
        let mut made = request(&format!("{}abcdef", names::BOOTSTRAP_USER_PREFIX), number);
        let name = FirewallName::parse("fw").unwrap();
        made.spec.request.0 = csr::write(&name, key).unwrap().into_bytes();
        made.spec.groups = Some(vec![names::BOOTSTRAP_GROUP.into()]);
        made
    }

    #[test]
    fn a_crowd_hides_no_second_key() {
        let (thief, machine) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let mut crowd = Crowd::default();
        let admitted = (0..3 * PER_IDENTITY).filter(|number| crowd.admits(&Event::Apply(with_key(*number, &thief))));
        // One is let in because it is the first whose key was looked at.
        assert_eq!(admitted.count(), PER_IDENTITY + 1);
        assert!(crowd.admits(&Event::Apply(with_key(9_000, &machine))));
        assert!(!crowd.admits(&Event::Apply(with_key(9_001, &machine))));
        // Nor is that a way around the limit.
        let keys = (0..3 * KEYS).filter(|number| {
            let key = PrivateKey::generate().unwrap();
            crowd.admits(&Event::Apply(with_key(10_000 + number, &key)))
        });
        assert_eq!(keys.count(), KEYS - 2);
    }

    #[test]
    fn a_crowd_of_denied_keys_leaves_room_for_another() {
        let mut crowd = Crowd::default();
        let thief = PrivateKey::generate().unwrap();
        for number in 0..PER_IDENTITY {
            crowd.admits(&Event::Apply(with_key(number, &thief)));
        }
        for number in 0..KEYS {
            let mut theirs = with_key(1_000 + number, &PrivateKey::generate().unwrap());
            assert!(crowd.admits(&Event::Apply(theirs.clone())), "{number}");
            let denied = CertificateSigningRequestCondition {
                type_: "Denied".into(),
                ..CertificateSigningRequestCondition::default()
            };
            theirs.status.get_or_insert_default().conditions = Some(vec![denied]);
            assert!(crowd.admits(&Event::Apply(theirs.clone())), "it is known");
            // One that was denied before it was seen is nobody's business.
            theirs.metadata.name = Some("unseen".into());
            assert!(!crowd.admits(&Event::Apply(theirs)));
        }
        assert!(crowd.admits(&Event::Apply(with_key(9_000, &PrivateKey::generate().unwrap()))));
    }

    #[test]
    fn p30_what_is_larger_than_a_firewalls_is_passed_over() {
        let mut crowd = Crowd::default();
        let mut heavy = request("anybody", 0);
        let labels = (0..2_000).map(|n| (format!("example.com/{n}"), String::new()));
        heavy.metadata.labels = Some(labels.collect());
        assert!(!crowd.admits(&Event::Apply(heavy)));
        assert!(crowd.admits(&Event::Apply(request("anybody", 0))));
    }

    #[test]
    fn a_name_alone_takes_nobody_s_place() {
        let key = PrivateKey::generate().unwrap();
        let mut crowd = Crowd::default();
        for number in 0..2 * PER_IDENTITY {
            let mut without_our_group = with_key(number, &key);
            without_our_group.spec.groups = None;
            crowd.admits(&Event::Apply(without_our_group));
        }
        assert!(crowd.admits(&Event::Apply(with_key(9_000, &key))));
        // Canaries are not kept at all.
        let mut canary = request("firewall-approver", 0);
        canary.spec.request.0 = csr::write_canary(&key).unwrap().into_bytes();
        assert!(!crowd.admits(&Event::Apply(canary)));
    }
}
