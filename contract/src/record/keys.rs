//! Which key a firewall has, and what another one means. Owns the steps from one state of the keys to the next; when to
//! take them is decided elsewhere.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::key::{PublicKey, Thumbprint};

/// How many keys that came with one credential are remembered: enough to see that there were two.
pub(super) const CANDIDATES_MAX: usize = 8;

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
