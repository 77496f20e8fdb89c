//! The agent's signed report, carried by an annotation of the FirewallMonitor. It is the only thing in the shoot that
//! the approver believes, and only if the pinned key signed it: whoever may write annotations there can merely remove
//! it.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::handover::Order;
use crate::jws::{self, JwsError};
use crate::key::{PrivateKey, PublicKey, Thumbprint};
use crate::names::FirewallName;

const TYPE: &str = "firewall-seed-access-report+jwt";
/// A report that is older says nothing about now.
pub const FRESH: SignedDuration = SignedDuration::from_mins(15);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub firewall: FirewallName,
    /// UID of the kube-system namespace of the seed that the agent works with.
    pub seed: String,
    pub namespace: String,
    /// The certificate in use; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// The newest handover that the agent has taken up.
    #[serde(flatten)]
    pub taken_up: Order,
    /// The key of this agent's that a handover is to be sealed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seal: Option<PublicKey>,
    /// The machine's key itself: where only its thumbprint is on record, the report can still be verified.
    pub key: PublicKey,
    /// Whose handovers it believes.
    #[serde(default)]
    pub handover_keys: Vec<Thumbprint>,
    /// Fingerprints of the seed's server and CA that it works with.
    #[serde(default)]
    pub server: String,
    #[serde(default)]
    pub ca: String,
    /// The seed does not accept its certificate any more.
    #[serde(default)]
    pub refused: bool,
    /// It does not reach the seed, or whoever answers there is not the one that it trusts.
    #[serde(default)]
    pub cut_off: bool,
    /// How far the machine's clock is ahead of the seed's (negative: behind), in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_skew_seconds: Option<i64>,
    /// Class of the last failure that still stands, in the words of `firewall-agent status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    pub agent_version: String,
    pub time: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// As `cert::Issued` has it: the octets of the serial number in lower-case hexadecimal.
    pub serial: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub issuer: String,
}

impl Certificate {
    pub fn is_token(&self) -> bool {
        crate::grant::is_token(&self.issuer)
    }
}

impl Report {
    pub fn sign(&self, key: &PrivateKey) -> Result<String, JwsError> {
        jws::sign(TYPE, key, self)
    }

    pub fn open(message: &str, key: &PublicKey) -> Result<Self, JwsError> {
        jws::open(TYPE, key, message)
    }

    /// Opens a report where only the key's thumbprint is known: the report brings the key, and has to be signed by it.
    pub fn open_by(message: &str, thumbprint: &Thumbprint) -> Result<Self, JwsError> {
        let key = Self::unverified(message).ok_or(JwsError::Form)?.key;
        if key.thumbprint() != *thumbprint {
            return Err(JwsError::OtherKey {
                expected: thumbprint.clone(),
                found: key.thumbprint().to_string(),
            });
        }
        Self::open(message, &key)
    }

    /// What a report says that nobody vouches for. To be shown to people, and believed by nobody.
    pub fn unverified(message: &str) -> Option<Self> {
        jws::unverified(message)
    }

    /// When it was made by the seed's clock, as far as the machine knows how wrong its own is.
    pub fn made(&self) -> Timestamp {
        let skew = SignedDuration::from_secs(self.clock_skew_seconds.unwrap_or(0));
        self.time.checked_sub(skew).unwrap_or(self.time)
    }

    /// Whether the agent that made it lives: only such a one is sent a credential.
    pub fn is_fresh(&self, now: Timestamp) -> bool {
        self.made().duration_until(now).abs() < FRESH
    }

    /// Whether this is the word of that firewall in that seed that it works with the certificate of this serial:
    /// proof of use, after which the bootstrap credential is revoked.
    pub fn proves_use(&self, firewall: &FirewallName, seed: &str, serial: &str) -> bool {
        self.firewall == *firewall
            && self.seed == seed
            && self
                .certificate
                .as_ref()
                .is_some_and(|certificate| certificate.serial == serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            firewall: FirewallName::parse("fw-1").unwrap(),
            seed: "seed-uid".into(),
            namespace: "shoot--a".into(),
            certificate: Some(Certificate {
                serial: "1f".into(),
                not_before: Timestamp::UNIX_EPOCH,
                not_after: Timestamp::UNIX_EPOCH,
                issuer: "CN=ca".into(),
            }),
            taken_up: Order::default(),
            seal: None,
            key: PrivateKey::generate().unwrap().public(),
            handover_keys: Vec::new(),
            server: String::new(),
            ca: String::new(),
            refused: false,
            cut_off: false,
            clock_skew_seconds: None,
            last_error: None,
            agent_version: "0.1.0".into(),
            time: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_report_survives_the_way() {
        let (key, report) = (PrivateKey::generate().unwrap(), report());
        assert_eq!(
            Report::open(&report.sign(&key).unwrap(), &key.public()).unwrap(),
            report
        );
    }

    #[test]
    fn a_report_of_another_key_is_not_opened() {
        let (key, thief) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        assert!(Report::open(&report().sign(&thief).unwrap(), &key.public()).is_err());
    }

    #[test]
    fn use_is_proved_only_by_that_firewall_seed_and_serial() {
        let fw = FirewallName::parse("fw-1").unwrap();
        assert!(report().proves_use(&fw, "seed-uid", "1f"));
        assert!(!report().proves_use(&FirewallName::parse("fw-2").unwrap(), "seed-uid", "1f"));
        assert!(!report().proves_use(&fw, "another-seed", "1f"));
        assert!(!report().proves_use(&fw, "seed-uid", "20"));
        assert!(
            !Report {
                certificate: None,
                ..report()
            }
            .proves_use(&fw, "seed-uid", "1f")
        );
    }

    #[test]
    fn a_later_version_may_say_more() {
        let (key, report) = (PrivateKey::generate().unwrap(), report());
        let mut claims = serde_json::to_value(&report).unwrap();
        claims["new"] = serde_json::json!("field");
        let message = jws::sign(TYPE, &key, &claims).unwrap();
        assert_eq!(Report::open(&message, &key.public()).unwrap(), report);
    }

    #[test]
    fn a_report_brings_its_key_where_only_the_thumbprint_is_known() {
        let (key, thief) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
        let of = |key: &PublicKey| Report {
            key: key.clone(),
            ..report()
        };
        let message = of(&key.public()).sign(&key).unwrap();
        assert!(Report::open_by(&message, &key.public().thumbprint()).is_ok());
        assert!(Report::open_by(&message, &thief.public().thumbprint()).is_err());
        // The right key in it, and another's signature.
        let message = of(&key.public()).sign(&thief).unwrap();
        assert!(Report::open_by(&message, &key.public().thumbprint()).is_err());
    }

    #[test]
    fn a_report_is_fresh_by_the_seeds_clock_and_for_fifteen_minutes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let made = |second: i64, skew: Option<i64>| Report {
            time: Timestamp::from_second(second).unwrap(),
            clock_skew_seconds: skew,
            ..report()
        };
        assert!(made(1_000_000 - 899, None).is_fresh(now));
        assert!(!made(1_000_000 - 901, None).is_fresh(now));
        assert!(!made(1_000_000 + 901, None).is_fresh(now));
        // A machine whose clock is an hour ahead, and knows it.
        assert!(made(1_003_600, Some(3600)).is_fresh(now));
        assert!(!made(1_000_000, Some(3600)).is_fresh(now));
    }
}
