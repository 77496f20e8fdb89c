//! The whole approval policy. One function, read from top to bottom: the first thing that is wrong decides.
//!
//! - `Ignore`: not ours to judge. Nothing is written to the request.
//! - `Deny`: provably wrong, in a request of one of our own identities. Denied is final, so nothing that may merely be
//!   late or unknown leads here.
//! - `Retry`: right so far, but a fact is missing or speaks against it for now.
//! - `Review`: all that can be known is right; the API server has the last word.
//! - `Approve`: what has to be on record before the approval is written comes with it.

use contract::csr::{Csr, CsrError, GIVEN_UP};
use contract::key::{PublicKey, Thumbprint};
use contract::names::{self, FirewallName};
use contract::reasons::Reason;
use contract::record::{Credential, CredentialKind, KeyVerdict, Keys, Pin, Record};
use jiff::{SignedDuration, Timestamp};

/// A CertificateSigningRequest, as far as it matters.
pub struct Request {
    pub name: String,
    pub signer: String,
    pub read: Result<Csr, CsrError>,
    /// Whether its subject claims a name of ours anywhere, however malformed it is.
    pub claims_our_names: bool,
    pub usages: Vec<String>,
    pub expiration_seconds: Option<i32>,
    pub requester: Requester,
    pub created: Timestamp,
}

/// Who made a request, by the user name and groups that the API server stamped on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// A bootstrap token of ours, by its id.
    Token(String),
    /// The ServiceAccount that is a firewall's bootstrap credential.
    ServiceAccount(String),
    /// A firewall by its certificate, or by its token.
    Firewall(String),
    Foreign,
}

/// A Firewall with the name that the request asks for.
pub struct Candidate<'a> {
    pub namespace: &'a str,
    pub uid: &'a str,
    pub created: Timestamp,
    pub deleting: bool,
    pub record: Option<&'a Record>,
}

/// Another request of the same identity that is neither denied nor failed.
pub struct Sibling {
    pub name: String,
    pub created: Timestamp,
    /// When, if it was.
    pub approved: Option<Timestamp>,
    pub key: Option<PublicKey>,
}

/// What has to be known to decide.
pub struct Facts<'a> {
    /// All Firewalls of this seed with the requested name, in whatever namespace.
    pub firewalls: &'a [Candidate<'a>],
    /// Namespace and firewall that the requester's bootstrap token was allotted to.
    pub token_owner: Option<(&'a str, &'a FirewallName)>,
    pub siblings: &'a [Sibling],
    /// The API server's answer to the SubjectAccessReview, once it was asked.
    pub review: Option<Review>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    Allowed,
    Refused(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Ignore {
        reason: Option<Reason>,
        why: String,
    },
    Retry {
        reason: Reason,
        why: String,
        record: Option<Change>,
        /// How many requests of the same identity have to be decided first.
        behind: usize,
    },
    Deny {
        reason: Reason,
        why: String,
    },
    /// Ask whether the requester may create this subresource of certificatesigningrequests.
    Review(&'static str),
    Approve {
        namespace: String,
        firewall: FirewallName,
        record: Option<Change>,
    },
}

/// Keys that have to be on record first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub namespace: String,
    pub firewall: FirewallName,
    /// What was decided upon: if something else is on record by now, it has to be decided anew.
    pub before: Keys,
    pub keys: Keys,
}

impl Change {
    /// The record with these keys; none if other keys are on record than were decided upon, for then the decision may
    /// be another.
    pub fn onto(self, record: Record) -> Option<Record> {
        (record.keys == self.before).then_some(Record {
            keys: self.keys,
            ..record
        })
    }
}

/// How many keys a message names: it has to stay readable.
const KEYS_SHOWN: usize = 4;
const A_MINUTE: SignedDuration = SignedDuration::from_secs(60);
const APPROVED_A_MINUTE: usize = 8;
const EXPIRATION_MIN: i32 = 600;
const EXPIRATION_MAX: i32 = 366 * 24 * 3600;

pub fn decide(request: &Request, facts: &Facts<'_>, now: Timestamp) -> Decision {
    // Whose request is it? Everything below may deny, so nothing foreign comes further.
    if request.requester == Requester::Foreign {
        let reason = request.claims_our_names.then_some(Reason::ForeignRequester);
        return Decision::Ignore {
            reason,
            why: "the requester is none of our identities".into(),
        };
    }
    // Denying takes the right to approve for that signer, which nobody should give us.
    if request.signer != names::SIGNER {
        let why = format!("it is for the signer {}, ours is {}", request.signer, names::SIGNER);
        return Decision::Ignore {
            reason: Some(Reason::OtherSigner),
            why,
        };
    }
    let csr = match &request.read {
        Ok(csr) => csr,
        Err(error) => return deny(Reason::MalformedRequest, error.to_string()),
    };
    if !usages_are_a_clients(&request.usages) {
        let why = format!(
            "usages are {:?}, not digital signature (, key encipherment) and client auth",
            request.usages
        );
        return deny(Reason::WrongUsages, why);
    }
    match request.expiration_seconds {
        Some(seconds) if (EXPIRATION_MIN..=EXPIRATION_MAX).contains(&seconds) => {}
        asked => {
            let asked = asked.map_or("nothing".to_owned(), |seconds| format!("{seconds} s"));
            let why = format!("expirationSeconds has to be {EXPIRATION_MIN} to {EXPIRATION_MAX} s, asked is {asked}");
            return deny(Reason::WrongExpiration, why);
        }
    }

    // Is the requester bound to that very firewall?
    let bound = match &request.requester {
        Requester::Token(id) => match facts.token_owner {
            Some((_, firewall)) => firewall.as_str(),
            None => {
                return retry(
                    Reason::FactsMissing,
                    format!("the bootstrap token {id} is not known to belong to a firewall"),
                );
            }
        },
        Requester::ServiceAccount(name) | Requester::Firewall(name) => name.as_str(),
        Requester::Foreign => "",
    };
    if bound != csr.firewall.as_str() {
        return deny(
            Reason::NotYours,
            format!("the requester belongs to firewall {bound}, asked is {}", csr.firewall),
        );
    }

    // Does the firewall exist, once?
    let Some(owner) = owner(facts.firewalls) else {
        return retry(
            Reason::FirewallUnknown,
            format!("there is no Firewall {} in this seed", csr.firewall),
        );
    };
    if let Some((namespace, _)) = facts.token_owner
        && namespace != owner.namespace
    {
        let why = format!(
            "the name {} belongs to the Firewall in namespace {}",
            csr.firewall, owner.namespace
        );
        return retry(Reason::NameTaken, why);
    }
    if owner.deleting {
        let why = format!("Firewall {}/{} is being deleted", owner.namespace, csr.firewall);
        return retry(Reason::FirewallDeleted, why);
    }
    let Some(record) = owner.record else {
        return retry(
            Reason::FactsMissing,
            format!("Firewall {}/{} has no record yet", owner.namespace, csr.firewall),
        );
    };

    // Does its credential stand? An API server takes a revoked one for a few seconds more.
    let kind = match &request.requester {
        Requester::Token(_) => Some(CredentialKind::Token),
        Requester::ServiceAccount(_) => Some(CredentialKind::ServiceAccount),
        Requester::Firewall(_) | Requester::Foreign => None,
    };
    let stands = |c: &Credential| Some(c.kind) == kind && c.revoked.is_none();
    if kind.is_some() && !record.credential.as_ref().is_some_and(stands) {
        if let KeyVerdict::Other(pinned) = record.keys.present(&csr.key, now) {
            return deny(Reason::OtherKey, other_key(&csr.key.thumbprint(), &pinned));
        }
        let why = format!("no such bootstrap credential stands for firewall {}", csr.firewall);
        return retry(Reason::CredentialSpent, why);
    }

    // Is it the firewall's key?
    let thumbprint = csr.key.thumbprint();
    let change = |keys| Change {
        namespace: owner.namespace.to_owned(),
        firewall: csr.firewall.clone(),
        before: record.keys.clone(),
        keys,
    };
    let keys = match &request.requester {
        // A certificate moves no pin: it is renewed with its own key, whatever else is open at the moment.
        Requester::Firewall(_) => match &record.keys.pin {
            // An operator named it before it was seen; without it, none of the firewall's reports can be opened.
            Some(pin) if pin.thumbprint == thumbprint => pin.key.is_none().then(|| Keys {
                pin: Some(Pin {
                    key: Some(csr.key.clone()),
                    ..pin.clone()
                }),
                ..record.keys.clone()
            }),
            Some(pin) => return deny(Reason::OtherKey, other_key(&thumbprint, &pin.thumbprint)),
            None => {
                return retry(
                    Reason::TwoKeys,
                    format!("no key is pinned for firewall {}", csr.firewall),
                );
            }
        },
        _ => match judge_key(record, &csr.key, facts, now) {
            KeyVerdict::Pinned => None,
            // What was made before an operator let one new key in was not made by the machine that he let in.
            KeyVerdict::Pin(_) | KeyVerdict::Contested(_)
                if !is_named(record, &thumbprint) && is_outdated(record, request.created) =>
            {
                let why = "it was made before the bootstrap credential was re-armed; what comes after that counts";
                return deny(Reason::Outdated, why.into());
            }
            KeyVerdict::Pin(keys) => Some(keys),
            KeyVerdict::Other(pinned) => return deny(Reason::OtherKey, other_key(&thumbprint, &pinned)),
            KeyVerdict::Contested(keys) => {
                let why = two_keys(&csr.firewall, &keys);
                let record = (keys != record.keys).then(|| change(keys));
                return Decision::Retry {
                    reason: Reason::TwoKeys,
                    why,
                    record,
                    behind: 0,
                };
            }
        },
    };

    // One at a time: the first that an identity made.
    let own = turn(request.created, &request.name, now);
    let open = facts.siblings.iter().filter(|s| s.approved.is_none());
    let earlier = open.filter(|s| turn(s.created, &s.name, now) < own);
    if let Some(first) = earlier.clone().min_by_key(|s| turn(s.created, &s.name, now)) {
        return Decision::Retry {
            reason: Reason::EarlierRequestOpen,
            why: format!("{} is not decided yet", first.name),
            record: None,
            behind: earlier.count(),
        };
    }
    // A firewall asks a few times in its life; whoever asks all the time has the signer work for it alone.
    let lately = |at: &Timestamp| now.duration_since(*at) < A_MINUTE;
    let approved = facts.siblings.iter().filter_map(|s| s.approved).filter(lately).count();
    if approved >= APPROVED_A_MINUTE {
        let why = format!("{approved} requests of this identity were approved within a minute");
        return retry(Reason::TooManyRequests, why);
    }

    match &facts.review {
        None => Decision::Review(match request.requester {
            Requester::Firewall(_) => names::RENEWAL_SUBRESOURCE,
            _ => names::BOOTSTRAP_SUBRESOURCE,
        }),
        Some(Review::Refused(why)) => retry(Reason::NotAllowed, format!("the SubjectAccessReview said no: {why}")),
        Some(Review::Allowed) => Decision::Approve {
            namespace: owner.namespace.to_owned(),
            firewall: csr.firewall.clone(),
            record: keys.map(change),
        },
    }
}

/// When a request's turn is among its identity's. What its agent has given up comes after all others, or a firewall would wait
/// behind its own after every long absence of whoever decides.
fn turn(created: Timestamp, name: &str, now: Timestamp) -> (bool, Timestamp, &str) {
    (now.duration_since(created) > GIVEN_UP, created, name)
}

/// Which of several Firewalls of one name has it: the one that came in under it, else the older.
pub fn owner<'a, 'b>(candidates: &'b [Candidate<'a>]) -> Option<&'b Candidate<'a>> {
    candidates.iter().min_by_key(|c| (c.record.is_none(), c.created, c.uid))
}

impl Requester {
    /// A user name alone proves nothing: somebody else may have set up users of that name, without our groups.
    pub fn of(username: &str, groups: &[String]) -> Self {
        let is_in = |group: &str| groups.iter().any(|g| g == group);
        if let Some(id) = username.strip_prefix(names::BOOTSTRAP_USER_PREFIX)
            && is_in(names::BOOTSTRAP_GROUP)
        {
            return Self::Token(id.to_owned());
        }
        if let Some(name) = username.strip_prefix(names::SERVICE_ACCOUNT_USER_PREFIX)
            && is_in(names::SERVICE_ACCOUNT_GROUP)
        {
            return Self::ServiceAccount(name.to_owned());
        }
        // Who is in by a token is bound to one firewall as who is in by a certificate, and may no more.
        if let Some(name) = username.strip_prefix(names::ACCESS_USER_PREFIX)
            && is_in(names::ACCESS_GROUP)
        {
            return Self::Firewall(name.to_owned());
        }
        if let Some(name) = username.strip_prefix(names::USER_PREFIX)
            && is_in(names::ORGANIZATION)
        {
            return Self::Firewall(name.to_owned());
        }
        Self::Foreign
    }
}

fn usages_are_a_clients(usages: &[String]) -> bool {
    let mut sorted: Vec<&str> = usages.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    // Clients with EC keys leave key encipherment out, others put it in: the signer takes both.
    sorted == ["client auth", "digital signature"] || sorted == ["client auth", "digital signature", "key encipherment"]
}

/// What the record says of the request's key, with the keys of the identity's other requests taken into account: of two
/// that lie there together neither may win by being looked at first.
fn judge_key(record: &Record, key: &PublicKey, facts: &Facts<'_>, now: Timestamp) -> KeyVerdict {
    let verdict = record.keys.present(key, now);
    if let KeyVerdict::Pin(keys) = &verdict {
        for other in facts
            .siblings
            .iter()
            .filter(|s| s.approved.is_none() && !is_outdated(record, s.created))
            .filter_map(|s| s.key.as_ref())
        {
            if let KeyVerdict::Contested(keys) = keys.present(other, now) {
                return KeyVerdict::Contested(keys);
            }
        }
    }
    verdict
}

fn is_named(record: &Record, thumbprint: &Thumbprint) -> bool {
    record
        .keys
        .pin
        .as_ref()
        .is_some_and(|pin| pin.thumbprint == *thumbprint)
}

/// Whether a request is older than the operator's word that re-armed the credential. A creation time has whole seconds.
fn is_outdated(record: &Record, created: Timestamp) -> bool {
    let armed = record.credential.as_ref().filter(|_| record.rebootstrap.is_some());
    armed.is_some_and(|credential| created.as_second() < credential.allocated.as_second())
}

/// The words for an operator who has to choose between keys.
pub fn two_keys(firewall: &FirewallName, keys: &Keys) -> String {
    let seen: Vec<_> = keys.candidates.iter().map(|key| key.thumbprint().to_string()).collect();
    let shown = seen.get(..seen.len().min(KEYS_SHOWN)).unwrap_or_default();
    format!(
        "{} keys came with the bootstrap credential of firewall {firewall}, and one may be a thief's. Compare with \
         `firewall-agent status` on the machine. If its key is not the first of these, accept none: give the machine a \
         Firewall of another name. If it is, annotate the Firewall with {}=<thumbprint>@<UID of the Firewall>. \
         The keys, in the order in which they came: {}{}",
        seen.len(),
        names::ACCEPT_KEY,
        shown.join(", "),
        if seen.len() > shown.len() { ", and more" } else { "" }
    )
}

fn other_key(found: &Thumbprint, pinned: &Thumbprint) -> String {
    format!("the request carries the key {found}, pinned is {pinned}")
}

fn deny(reason: Reason, why: String) -> Decision {
    Decision::Deny { reason, why }
}

fn retry(reason: Reason, why: String) -> Decision {
    Decision::Retry {
        reason,
        why,
        record: None,
        behind: 0,
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
