//! The Secret `<firewall>.fw.metal-stack.io`: what a firewall may know of its seed and shoot, the one Secret of ours that its Role
//! lets it read. Written by the approver, read by the agent over its authenticated channel.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;

use crate::key::PublicKey;

const SERVER: &str = "server";
const CA: &str = "ca.crt";
const MODE: &str = "mode";
const SEED: &str = "seed";
const HANDOVER_KEYS: &str = "handover-keys";
const LIFELINE: &str = "lifeline";
const RENEW: &str = "renew";
const LIFE: &str = "certificate-seconds";

/// How a firewall keeps its seed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Certificate,
    /// Tokens of a ServiceAccount of its own.
    Token,
}

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Token => "token",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Certificate, Self::Token]
            .into_iter()
            .find(|mode| mode.as_str() == text)
    }
}

#[derive(Clone, Debug)]
pub struct AgentAccess {
    /// Where firewalls reach this seed's API server, and the CAs that its certificate may come from.
    pub server: String,
    pub ca: String,
    pub mode: Mode,
    /// UID of the seed's kube-system namespace: which seed this is, whatever its address. A firewall may not read it itself.
    pub seed: String,
    /// Keys whose signature on a handover is to be believed.
    pub handover_keys: Vec<PublicKey>,
    /// A kubeconfig for the shoot that lives without any seed; none while the shoot could not be reached.
    pub lifeline: Option<SecretString>,
    /// Serial of the certificate that the firewall is to renew now, though it is good: its CA is on its way out.
    pub renew: Option<String>,
    /// The life in seconds that the firewall is to ask for; none: its own setting counts.
    pub life: Option<i64>,
}

#[derive(Debug, Error)]
pub enum AccessError {
    #[error("key {0:?} is missing")]
    Missing(&'static str),
    #[error("key {0:?} is not text")]
    NotText(&'static str),
    #[error("key \"mode\" is {0:?}, which this version does not know: upgrade the agent")]
    Mode(String),
    #[error("key \"certificate-seconds\" is no number")]
    Life,
    #[error("key \"handover-keys\" cannot be read: {0}")]
    HandoverKeys(String),
}

impl AgentAccess {
    pub fn read(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, AccessError> {
        let text = |key: &'static str| {
            let bytes = data.get(key).ok_or(AccessError::Missing(key))?;
            String::from_utf8(bytes.clone()).map_err(|_| AccessError::NotText(key))
        };
        let mode = text(MODE)?;
        let mode = Mode::parse(&mode).ok_or_else(|| AccessError::Mode(mode.chars().take(32).collect()))?;
        let handover_keys =
            serde_json::from_str(&text(HANDOVER_KEYS)?).map_err(|e| AccessError::HandoverKeys(e.to_string()))?;
        let text_opt = |key| data.contains_key(key).then(|| text(key)).transpose();
        Ok(Self {
            server: text(SERVER)?,
            ca: text(CA)?,
            mode,
            seed: text(SEED)?,
            handover_keys,
            lifeline: text_opt(LIFELINE)?.map(Into::into),
            renew: text_opt(RENEW)?,
            life: text_opt(LIFE)?
                .map(|life| life.parse().map_err(|_| AccessError::Life))
                .transpose()?,
        })
    }

    pub fn write(&self) -> Result<BTreeMap<String, SecretString>, AccessError> {
        let keys = serde_json::to_string(&self.handover_keys).map_err(|e| AccessError::HandoverKeys(e.to_string()))?;
        let mut data = BTreeMap::from([
            (SERVER.to_owned(), self.server.clone().into()),
            (CA.to_owned(), self.ca.clone().into()),
            (MODE.to_owned(), self.mode.as_str().to_owned().into()),
            (SEED.to_owned(), self.seed.clone().into()),
            (HANDOVER_KEYS.to_owned(), keys.into()),
        ]);
        if let Some(lifeline) = &self.lifeline {
            data.insert(LIFELINE.to_owned(), lifeline.expose_secret().to_owned().into());
        }
        if let Some(serial) = &self.renew {
            data.insert(RENEW.to_owned(), serial.clone().into());
        }
        if let Some(life) = self.life {
            data.insert(LIFE.to_owned(), life.to_string().into());
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::PrivateKey;

    fn written() -> BTreeMap<String, Vec<u8>> {
        let access = AgentAccess {
            server: "https://seed".into(),
            ca: "pem".into(),
            mode: Mode::Certificate,
            seed: "seed-uid".into(),
            handover_keys: vec![PrivateKey::generate().unwrap().public()],
            lifeline: Some("kubeconfig".to_owned().into()),
            renew: Some("1f".into()),
            life: Some(3600),
        };
        access
            .write()
            .unwrap()
            .into_iter()
            .map(|(k, v)| (k, v.expose_secret().as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn what_the_approver_writes_the_agent_reads() {
        let access = AgentAccess::read(&written()).unwrap();
        assert_eq!(
            (access.server.as_str(), access.ca.as_str(), access.seed.as_str()),
            ("https://seed", "pem", "seed-uid")
        );
        assert_eq!(access.handover_keys.len(), 1);
        assert_eq!(access.lifeline.unwrap().expose_secret(), "kubeconfig");
        assert_eq!((access.renew.as_deref(), access.life), (Some("1f"), Some(3600)));
    }

    #[test]
    fn each_missing_key_is_named_and_only_lifeline_renewal_and_life_may_be_missing() {
        for key in [SERVER, CA, MODE, SEED, HANDOVER_KEYS] {
            let mut data = written();
            data.remove(key);
            assert!(matches!(AgentAccess::read(&data), Err(AccessError::Missing(k)) if k == key));
        }
        let mut data = written();
        data.remove(LIFELINE);
        data.remove(RENEW);
        data.remove(LIFE);
        let access = AgentAccess::read(&data).unwrap();
        assert!(access.lifeline.is_none() && access.renew.is_none() && access.life.is_none());
        data.insert(LIFE.into(), b"a month".to_vec());
        assert!(matches!(AgentAccess::read(&data), Err(AccessError::Life)));
    }

    #[test]
    fn a_mode_of_a_later_version_is_named() {
        let mut data = written();
        data.insert(MODE.into(), b"quantum".to_vec());
        assert!(AgentAccess::read(&data).unwrap_err().to_string().contains("quantum"));
    }
}
