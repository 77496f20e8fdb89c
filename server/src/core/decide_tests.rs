//! Tests of the policy: here the good requests that everything starts from, the tests themselves in the files beside.
//! A world holds the bytes and names as the API server hands them over, so that reading them is tested with it.

use std::sync::LazyLock;

use contract::csr;
use contract::key::PrivateKey;
use contract::record::{Credential, CredentialKind, VERSION};

use super::*;

#[path = "decide_tests/keys.rs"]
mod keys;
#[path = "decide_tests/order.rs"]
mod order;
#[path = "decide_tests/properties.rs"]
mod properties;
#[path = "decide_tests/table.rs"]
mod table;

static MACHINE: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::generate().unwrap());
static THIEF: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::generate().unwrap());
static THIRD: LazyLock<PrivateKey> = LazyLock::new(|| PrivateKey::generate().unwrap());

const NAMESPACE: &str = "shoot--a";
const NAME: &str = "fw-1";
const REQUEST: &str = "firewall-m";
const BY_ALL: [By; 3] = [By::Token, By::ServiceAccount, By::Certificate];
const BY_CREDENTIAL: [By; 2] = [By::Token, By::ServiceAccount];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Token,
    ServiceAccount,
    Certificate,
}

/// A request and all that is known around it.
#[derive(Clone, Debug)]
struct World {
    pem: Vec<u8>,
    signer: String,
    username: String,
    groups: Vec<String>,
    usages: Vec<String>,
    expiration: Option<i32>,
    created: Timestamp,
    firewalls: Vec<Standing>,
    token_owner: Option<(String, FirewallName)>,
    siblings: Vec<Other>,
    /// The kind of every credential on record.
    kind: CredentialKind,
    review: Option<Review>,
    now: Timestamp,
}

#[derive(Clone, Debug)]
struct Standing {
    namespace: String,
    uid: String,
    created: Timestamp,
    deleting: bool,
    record: Option<Record>,
}

#[derive(Clone, Debug)]
struct Other {
    name: String,
    created: Timestamp,
    approved: Option<Timestamp>,
    key: Option<PublicKey>,
}

/// A decision without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ignore(Option<Reason>),
    Retry(Reason),
    Deny(Reason),
    Review(&'static str),
    Approve,
}

impl World {
    /// Approvable as it stands: by a bootstrap credential that comes for the first time, or by the certificate of the
    /// pinned key.
    fn good(by: By) -> Self {
        let name = name(NAME);
        let (username, groups) = match by {
            By::Token => (
                "system:bootstrap:abc123".to_owned(),
                vec!["system:bootstrappers", names::BOOTSTRAP_GROUP],
            ),
            By::ServiceAccount => (
                format!("system:serviceaccount:firewall-bootstrap:{NAME}"),
                vec!["system:serviceaccounts", "system:serviceaccounts:firewall-bootstrap"],
            ),
            By::Certificate => (name.user(), vec!["fw.metal-stack.io:firewalls"]),
        };
        let keys = if by == By::Certificate {
            pinned(&MACHINE).prove(at(50))
        } else {
            Keys::default()
        };
        Self {
            pem: pem(NAME, &MACHINE),
            signer: "kubernetes.io/kube-apiserver-client".into(),
            username,
            groups: groups
                .into_iter()
                .chain(["system:authenticated"])
                .map(str::to_owned)
                .collect(),
            usages: vec!["digital signature".into(), "client auth".into()],
            expiration: Some(365 * 24 * 3600),
            created: at(100),
            firewalls: vec![Standing {
                namespace: NAMESPACE.into(),
                uid: "uid-a".into(),
                created: at(1),
                deleting: false,
                record: Some(record(keys)),
            }],
            token_owner: (by == By::Token).then(|| (NAMESPACE.into(), name)),
            siblings: Vec::new(),
            kind: if by == By::ServiceAccount {
                CredentialKind::ServiceAccount
            } else {
                CredentialKind::Token
            },
            review: Some(Review::Allowed),
            now: at(110),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn with_keys(self, keys: Keys) -> Self {
        self.with(|w| w.firewalls[0].record = Some(record(keys)))
    }

    fn with_key(self, key: &PrivateKey) -> Self {
        self.with(|w| w.pem = pem(NAME, key))
    }

    fn with_sibling(self, created: i64, decided: bool, key: &PrivateKey) -> Self {
        let name = format!("firewall-s{}", self.siblings.len());
        self.with(|w| {
            w.siblings.push(Other {
                name,
                created: at(created),
                approved: decided.then(long_ago),
                key: Some(key.public()),
            })
        })
    }

    fn of_kind(&self, record: Record) -> Record {
        let credential = record.credential.map(|credential| Credential {
            kind: self.kind,
            ..credential
        });
        Record { credential, ..record }
    }

    fn decide(&self) -> Decision {
        let request = Request {
            name: REQUEST.into(),
            signer: self.signer.clone(),
            read: csr::read(&self.pem),
            claims_our_names: csr::claims_our_names(&self.pem),
            usages: self.usages.clone(),
            expiration_seconds: self.expiration,
            requester: Requester::of(&self.username, &self.groups),
            created: self.created,
        };
        let records: Vec<_> = self
            .firewalls
            .iter()
            .map(|f| f.record.clone().map(|r| self.of_kind(r)))
            .collect();
        let firewalls: Vec<_> = self
            .firewalls
            .iter()
            .zip(&records)
            .map(|(f, record)| Candidate {
                namespace: &f.namespace,
                uid: &f.uid,
                created: f.created,
                deleting: f.deleting,
                record: record.as_ref(),
            })
            .collect();
        let siblings: Vec<_> = self
            .siblings
            .iter()
            .map(|s| Sibling {
                name: s.name.clone(),
                created: s.created,
                approved: s.approved,
                key: s.key.clone(),
            })
            .collect();
        let facts = Facts {
            firewalls: &firewalls,
            token_owner: self
                .token_owner
                .as_ref()
                .map(|(namespace, firewall)| (namespace.as_str(), firewall)),
            siblings: &siblings,
            review: self.review.clone(),
        };
        decide(&request, &facts, self.now)
    }

    fn outcome(&self) -> Outcome {
        match self.decide() {
            Decision::Ignore { reason, .. } => Outcome::Ignore(reason),
            Decision::Retry { reason, .. } => Outcome::Retry(reason),
            Decision::Deny { reason, .. } => Outcome::Deny(reason),
            Decision::Review(subresource) => Outcome::Review(subresource),
            Decision::Approve { .. } => Outcome::Approve,
        }
    }

    /// What is to be put on record, whether with an approval or without.
    fn change(&self) -> Option<Change> {
        match self.decide() {
            Decision::Approve { record, .. } | Decision::Retry { record, .. } => record,
            _ => None,
        }
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Of what was approved lately there may be too much.
fn long_ago() -> Timestamp {
    at(-3600)
}

fn name(text: &str) -> FirewallName {
    FirewallName::parse(text).unwrap()
}

fn pem(firewall: &str, key: &PrivateKey) -> Vec<u8> {
    csr::write(&name(firewall), key).unwrap().into_bytes()
}

fn record(keys: Keys) -> Record {
    Record {
        version: VERSION,
        uid: "uid-a".into(),
        seed: "seed".into(),
        keys,
        credential: Some(Credential {
            kind: CredentialKind::Token,
            epoch: 0,
            allocated: at(1),
            expires: at(3601),
            limit: at(86401),
            revoked: None,
        }),
        ..Record::default()
    }
}

/// Pinned at its first request, use of it not proved yet.
fn pinned(key: &PrivateKey) -> Keys {
    let (key, since) = (key.public(), at(40));
    let pin = Pin {
        thumbprint: key.thumbprint(),
        key: Some(key.clone()),
        since,
        accepted: false,
        proven: None,
    };
    Keys {
        pin: Some(pin),
        candidates: vec![key],
        ..Keys::default()
    }
}

fn contested(keys: &[&PrivateKey]) -> Keys {
    Keys {
        candidates: keys.iter().map(|key| key.public()).collect(),
        ..Keys::default()
    }
}
