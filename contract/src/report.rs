//! The agent's signed report, carried by an annotation of the FirewallMonitor. It is the only thing in the shoot that
//! the approver believes, and only if the pinned key signed it: whoever may write annotations there can merely remove
//! it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::jws::{self, JwsError};
use crate::key::{PrivateKey, PublicKey};
use crate::names::FirewallName;

const TYPE: &str = "firewall-seed-access-report+jwt";

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
    /// Highest authority and generation of a handover that the agent has taken up.
    #[serde(default)]
    pub authority: i64,
    #[serde(default)]
    pub generation: u64,
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

impl Report {
    pub fn sign(&self, key: &PrivateKey) -> Result<String, JwsError> {
        jws::sign(TYPE, key, self)
    }

    pub fn open(message: &str, key: &PublicKey) -> Result<Self, JwsError> {
        jws::open(TYPE, key, message)
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
            authority: 0,
            generation: 0,
            clock_skew_seconds: None,
            last_error: None,
            agent_version: "0.1.0".into(),
            time: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_report_survives_the_way() {
        let key = PrivateKey::generate().unwrap();
        assert_eq!(
            Report::open(&report().sign(&key).unwrap(), &key.public()).unwrap(),
            report()
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
        let key = PrivateKey::generate().unwrap();
        let mut claims = serde_json::to_value(report()).unwrap();
        claims["new"] = serde_json::json!("field");
        let message = jws::sign(TYPE, &key, &claims).unwrap();
        assert_eq!(Report::open(&message, &key.public()).unwrap(), report());
    }
}
