//! What the approver remembers of one firewall, in the shoot's state Secret: which key is pinned, which credential was
//! allotted, which certificate was issued last. Never a token, never a private key. Owns the form and the small pure
//! steps from one record to the next; when to take a step is decided elsewhere.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::handover::Order;
use crate::key::{PublicKey, Thumbprint};

/// How many keys that came with one credential are remembered: enough to see that there were two.
const CANDIDATES_MAX: usize = 8;

#[derive(Debug, Error)]
pub enum RecordError {
    #[error("it is not a record of ours: {0}")]
    Form(String),
    #[error("it has version {0}, this program reads version {VERSION}: run the version that wrote it or a newer one")]
    Version(u32),
}

pub const VERSION: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub version: u32,
    /// UID of the Firewall that this record was last kept for.
    pub uid: String,
    /// UID of the kube-system namespace of the seed it was kept in.
    pub seed: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Credential>,
    #[serde(default)]
    pub keys: Keys,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// The value of the rebootstrap annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebootstrap: Option<String>,
    /// The value of the export annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Authority of this Firewall, and the number of the last handover that was made for it.
    #[serde(flatten)]
    pub order: Order,
    /// A handover is on its way: the firewall has to come in anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<Pending>,
    /// Where firewalls reach this seed, as it was when this was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// The Firewall is gone, or going.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
}

/// Why a firewall has to come in anew, and how far that has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pending {
    /// As `reasons` has it.
    pub reason: String,
    pub since: Timestamp,
    /// The key of the issuer that is refused, where that is the reason: a certificate of it does not help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// What was sent last; none while there was nothing to send it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
}

/// A handover that was made under the record's number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    pub issued: Timestamp,
    pub expires: Timestamp,
    /// The agent's key that it is sealed to; a notice has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sealed_to: Option<Thumbprint>,
}

/// Fingerprints of a server's address and of the CAs that its certificate may come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    pub server: String,
    pub ca: String,
    pub since: Timestamp,
}

/// How a Firewall went. A control plane that moves takes its Firewalls away as well, so this alone is no reason to
/// forget one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gone {
    pub since: Timestamp,
    /// It was deleted for good: whoever deleted it waited for the machine to go.
    #[serde(default)]
    pub deleted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    pub kind: CredentialKind,
    pub epoch: u32,
    pub allocated: Timestamp,
    /// Until when it is good as it stands; extended in place while the firewall has not come in.
    pub expires: Timestamp,
    /// Nothing extends it past this.
    pub limit: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialKind {
    Token,
    ServiceAccount,
}

/// Which key this firewall has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// The keys that came with the credential before any of them was proved. More than one: nobody can tell which is
    /// the machine's, and none is pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<PublicKey>,
    /// Until when one new key is let in although one is pinned (a machine that was installed anew).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_until: Option<Timestamp>,
    /// The value of the accept-key annotation that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pin {
    pub thumbprint: Thumbprint,
    /// Not known if an operator named the thumbprint before the key was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    pub since: Timestamp,
    /// An operator accepted it: no other key that comes with the credential puts it in doubt.
    #[serde(default)]
    pub accepted: bool,
    /// When the firewall's own signed report proved that it uses a certificate of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<Timestamp>,
}

/// The certificate as last issued, read from the CSR's status while it exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub issuer: String,
    /// SHA-256 of the key that signed it, where that is known: two CAs may have one name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_key: Option<String>,
    pub request: String,
}

/// What a key that comes with a request means for the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyVerdict {
    /// It is the pinned key, nothing to write.
    Pinned,
    /// It is to be pinned: this is what the keys become.
    Pin(Keys),
    /// It contradicts another key that was not proved either: this is what the keys become (nothing pinned).
    Contested(Keys),
    /// Another key is pinned, and proved or accepted by an operator.
    Other(Thumbprint),
}

impl Record {
    pub fn read(json: &[u8]) -> Result<Self, RecordError> {
        // The version first: a newer record may not parse as one of ours.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let form = |e: serde_json::Error| RecordError::Form(e.to_string());
        let Versioned { version } = serde_json::from_slice(json).map_err(form)?;
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        serde_json::from_slice(json).map_err(form)
    }

    pub fn write(&self) -> Result<Vec<u8>, RecordError> {
        serde_json::to_vec(self).map_err(|e| RecordError::Form(e.to_string()))
    }

    /// Whether the firewall has come in with the pinned key.
    pub fn proven(&self) -> bool {
        self.keys.pin.as_ref().is_some_and(|pin| pin.proven.is_some())
    }

    /// Whether it is known whose key this firewall's is: proved, or vouched for by an operator.
    pub fn settled(&self) -> bool {
        let pin = self.keys.pin.as_ref();
        pin.is_some_and(|pin| pin.proven.is_some() || pin.accepted)
    }

    /// Two keys came with one credential: nobody but the operator can tell which is the machine's.
    pub fn contested(&self) -> bool {
        self.keys.contested()
    }
}

impl Keys {
    pub fn contested(&self) -> bool {
        self.pin.is_none() && self.candidates.len() > 1
    }

    /// Judges a key that a request of this firewall's bootstrap credential carries.
    pub fn present(&self, key: &PublicKey, now: Timestamp) -> KeyVerdict {
        let thumbprint = key.thumbprint();
        let pin = Pin {
            thumbprint: thumbprint.clone(),
            key: Some(key.clone()),
            since: now,
            accepted: false,
            proven: None,
        };
        if let Some(pinned) = &self.pin {
            if pinned.thumbprint == thumbprint {
                return match pinned.key {
                    Some(_) => KeyVerdict::Pinned,
                    // An operator named it before it came. If a window stands open, it was for this one.
                    None => KeyVerdict::Pin(Self {
                        pin: Some(Pin {
                            key: Some(key.clone()),
                            ..pinned.clone()
                        }),
                        open_until: None,
                        ..self.clone()
                    }),
                };
            }
            if self.open_until.is_some_and(|until| now < until) {
                let candidates = vec![key.clone()];
                return KeyVerdict::Pin(Self {
                    pin: Some(pin),
                    candidates,
                    open_until: None,
                    ..self.clone()
                });
            }
            if pinned.proven.is_some() || pinned.accepted {
                return KeyVerdict::Other(pinned.thumbprint.clone());
            }
        }
        let mut candidates = self.candidates.clone();
        // The pinned key contends too, even where the candidates were forgotten since it came.
        let unproved = self.pin.as_ref().and_then(|pinned| pinned.key.as_ref());
        for key in unproved.into_iter().chain([key]) {
            if !candidates.contains(key) && candidates.len() < CANDIDATES_MAX {
                candidates.push(key.clone());
            }
        }
        if candidates.len() > 1 {
            return KeyVerdict::Contested(Self {
                pin: None,
                candidates,
                ..self.clone()
            });
        }
        // The first key of a machine that never came in is the one new key of an open window.
        KeyVerdict::Pin(Self {
            pin: Some(pin),
            candidates,
            open_until: None,
            ..self.clone()
        })
    }

    /// An operator vouches for a key: it is pinned, whatever was before.
    pub fn accept(&self, thumbprint: &Thumbprint, annotation: &str, now: Timestamp) -> Self {
        let pin = match &self.pin {
            // What is known of the pinned key stays known: its reports are read with it.
            Some(pin) if pin.thumbprint == *thumbprint => Pin {
                accepted: true,
                ..pin.clone()
            },
            _ => {
                let key = self
                    .candidates
                    .iter()
                    .find(|key| key.thumbprint() == *thumbprint)
                    .cloned();
                Pin {
                    thumbprint: thumbprint.clone(),
                    key,
                    since: now,
                    accepted: true,
                    proven: None,
                }
            }
        };
        Self {
            pin: Some(pin),
            candidates: Vec::new(),
            open_until: None,
            accepted: Some(annotation.to_owned()),
        }
    }

    /// The pin as a handover of our own says it was. The key itself comes with the firewall's next report.
    pub fn restore(&self, thumbprint: &Thumbprint, now: Timestamp) -> Self {
        let known = self.candidates.iter().find(|key| key.thumbprint() == *thumbprint);
        Self {
            pin: Some(Pin {
                thumbprint: thumbprint.clone(),
                key: known.cloned(),
                since: now,
                accepted: true,
                proven: None,
            }),
            candidates: Vec::new(),
            ..self.clone()
        }
    }

    /// Fills in the pinned key where only its thumbprint was known.
    pub fn know(&self, key: &PublicKey) -> Self {
        let pin = self.pin.clone().map(|pin| Pin {
            key: if pin.thumbprint == key.thumbprint() {
                Some(key.clone())
            } else {
                pin.key
            },
            ..pin
        });
        Self { pin, ..self.clone() }
    }

    /// The firewall's report proved that it works with the pinned key.
    pub fn prove(&self, now: Timestamp) -> Self {
        let pin = self.pin.as_ref().map(|pin| Pin {
            proven: pin.proven.or(Some(now)),
            ..pin.clone()
        });
        Self {
            pin,
            candidates: Vec::new(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;

    fn key() -> PublicKey {
        PrivateKey::generate().unwrap().public()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pinned(keys: &Keys, key: &PublicKey) -> Keys {
        match keys.present(key, at(1)) {
            KeyVerdict::Pin(keys) => keys,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_key_is_pinned_and_comes_again() {
        let first = key();
        let keys = pinned(&Keys::default(), &first);
        assert_eq!(keys.pin.as_ref().unwrap().thumbprint, first.thumbprint());
        assert_eq!(keys.present(&first, at(2)), KeyVerdict::Pinned);
    }

    #[test]
    fn a_second_key_before_proof_of_use_pins_neither() {
        let (first, second) = (key(), key());
        let KeyVerdict::Contested(keys) = pinned(&Keys::default(), &first).present(&second, at(2)) else {
            panic!("not contested")
        };
        assert!(keys.contested() && keys.pin.is_none());
        // Neither the first nor the second gets in any more, nor a third.
        for key in [&first, &second, &key()] {
            assert!(matches!(keys.present(key, at(3)), KeyVerdict::Contested(_)));
        }
    }

    #[test]
    fn after_proof_of_use_another_key_is_refused() {
        let (first, second) = (key(), key());
        let keys = pinned(&Keys::default(), &first).prove(at(2));
        assert_eq!(keys.present(&second, at(3)), KeyVerdict::Other(first.thumbprint()));
        assert_eq!(keys.present(&first, at(3)), KeyVerdict::Pinned);
    }

    #[test]
    fn an_operator_decides_between_two_keys() {
        let (first, second) = (key(), key());
        let KeyVerdict::Contested(keys) = pinned(&Keys::default(), &first).present(&second, at(2)) else {
            panic!("not contested")
        };
        let keys = keys.accept(&second.thumbprint(), "value", at(3));
        assert_eq!(keys.present(&second, at(4)), KeyVerdict::Pinned);
        assert_eq!(keys.present(&first, at(4)), KeyVerdict::Other(second.thumbprint()));
    }

    #[test]
    fn a_key_that_an_operator_named_before_it_came_is_filled_in() {
        let later = key();
        let keys = Keys::default().accept(&later.thumbprint(), "value", at(1));
        assert!(keys.pin.as_ref().unwrap().key.is_none());
        assert_eq!(pinned(&keys, &later).pin.unwrap().key, Some(later));
        assert!(matches!(keys.present(&key(), at(2)), KeyVerdict::Other(_)));
    }

    #[test]
    fn rebootstrap_lets_one_new_key_in_and_then_no_other() {
        let (old, new, third) = (key(), key(), key());
        let mut keys = pinned(&Keys::default(), &old).prove(at(2));
        keys.open_until = Some(at(100));
        assert!(
            matches!(keys.present(&new, at(100)), KeyVerdict::Other(_)),
            "the hour is over"
        );
        let KeyVerdict::Pin(keys) = keys.present(&new, at(50)) else {
            panic!("not let in")
        };
        assert_eq!(keys.present(&new, at(51)), KeyVerdict::Pinned);
        assert!(matches!(keys.present(&third, at(51)), KeyVerdict::Contested(_)));
        assert!(matches!(
            keys.prove(at(52)).present(&third, at(53)),
            KeyVerdict::Other(_)
        ));
    }

    #[test]
    fn rebootstrap_of_a_firewall_that_never_came_in_lets_one_key_in_too() {
        let (first, second) = (key(), key());
        let keys = Keys {
            open_until: Some(at(100)),
            ..Keys::default()
        };
        let keys = pinned(&keys, &first);
        assert_eq!(keys.open_until, None);
        assert!(matches!(keys.present(&second, at(2)), KeyVerdict::Contested(_)));
    }

    #[test]
    fn an_unproved_pin_contends_although_the_candidates_were_forgotten() {
        let (first, second) = (key(), key());
        let keys = Keys {
            candidates: Vec::new(),
            ..pinned(&Keys::default(), &first)
        };
        let KeyVerdict::Contested(keys) = keys.present(&second, at(2)) else {
            panic!("not contested")
        };
        assert_eq!(keys.candidates, [first, second]);
    }

    #[test]
    fn accepting_the_pinned_key_forgets_nothing_of_it() {
        let first = key();
        let keys = pinned(&Keys::default(), &first)
            .prove(at(2))
            .accept(&first.thumbprint(), "value", at(3));
        let pin = keys.pin.unwrap();
        assert_eq!((pin.key, pin.proven, pin.accepted), (Some(first), Some(at(2)), true));
    }

    #[test]
    fn a_flood_of_keys_does_not_grow_the_record() {
        let mut keys = Keys::default();
        for _ in 0..50 {
            keys = match keys.present(&key(), at(1)) {
                KeyVerdict::Pin(keys) | KeyVerdict::Contested(keys) => keys,
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(keys.candidates.len(), CANDIDATES_MAX);
    }

    #[test]
    fn a_record_is_read_as_written_and_another_version_is_refused() {
        let record = Record {
            version: VERSION,
            uid: "u".into(),
            seed: "s".into(),
            keys: pinned(&Keys::default(), &key()),
            ..Record::default()
        };
        assert_eq!(Record::read(&record.write().unwrap()).unwrap(), record);
        assert!(matches!(
            Record::read(br#"{"version":2}"#),
            Err(RecordError::Version(2))
        ));
        for bad in [&b""[..], b"{}", b"[]", br#"{"version":1}"#, br#"{"version":"1"}"#] {
            assert!(matches!(Record::read(bad), Err(RecordError::Form(_))));
        }
    }
}
