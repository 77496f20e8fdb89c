//! What the agent keeps between starts, file by file. Each write is one rename, and their order is such that a start
//! after a kill at any point finds a whole state and goes on.

use std::fs;
use std::path::{Path, PathBuf};

use contract::access::Mode;
use contract::csr::{self, CsrError};
use contract::grant::read_token;
use contract::handover::{Fence, Order};
use contract::key::{KeyError, PrivateKey, PublicKey};
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig, KubeconfigError};
use contract::names::FirewallName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::files::{self, FileError};
use crate::handover::PendingHandover;
use crate::pair::{OwnPair, pair_file, parse_pair};
use crate::paths::{Paths, SEED_KUBECONFIG};

/// The pair in use and the one before it.
const PAIRS_KEPT: usize = 2;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path} cannot be used: {problem}; {advice}")]
    Content {
        path: PathBuf,
        problem: String,
        advice: &'static str,
    },
}

/// The seed as it is worked with. Written before the first certificate is switched on, and when the seed tells of
/// something new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Access {
    pub firewall: FirewallName,
    pub namespace: String,
    pub server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// PEM.
    pub ca: String,
    /// The seed's id, once it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Whose handovers are authentic.
    #[serde(default)]
    pub handover_keys: Vec<PublicKey>,
    /// What this firewall works with, as `Mode` has it: `current.pem`, or `current.token`.
    pub mode: String,
}

impl Access {
    pub(crate) fn mode(&self) -> Mode {
        Mode::parse(&self.mode).unwrap_or(Mode::Certificate)
    }

    /// A kubeconfig for this access with a credential.
    pub(crate) fn with(&self, credential: Credential) -> Result<Kubeconfig, String> {
        let ca = CaBundle::from_pem(&self.ca).map_err(|e| format!("the seed's CA {e}"))?;
        Ok(Kubeconfig {
            server: self.server.clone(),
            tls_server_name: self.tls_server_name.clone(),
            ca,
            credential,
            namespace: self.namespace.clone(),
            bootstrap: None,
        })
    }
}

/// A certificate request in flight, kept so that a restart sends the very same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredRequest {
    pub name: String,
    pub pem: String,
    #[serde(default)]
    pub replacement: bool,
    /// The life in seconds that it asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<i64>,
}

/// What was taken up, so that it is taken up once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Handled {
    /// The last value of the annotation that asks for a renewal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renew: Option<String>,
    /// That renewal, or one that was asked for here, is not done yet.
    #[serde(default)]
    pub pending: bool,
    /// Hash of the consumer's kubeconfig that the consumer was last told of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// Hash of the bootstrap kubeconfig that was used or found last: another one was put there by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap: Option<String>,
    /// Hash of the lifeline that the seed offered last and that was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifeline: Option<String>,
    /// The life in seconds that was asked for what we work with: the signer may have given less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<i64>,
}

/// A switch to another seed under way. Until the pair is in force, the seed of before is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Switching {
    /// Of the certificate that is switched to.
    pub serial: String,
    /// The handover that led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Access>,
}

#[derive(Debug)]
pub(crate) struct Store {
    pub paths: Paths,
    _lock: files::Lock,
}

impl Store {
    /// Takes possession of the state folder. A folder that cannot be written is found out here, not in the night of the
    /// first renewal.
    pub(crate) fn open(paths: Paths) -> Result<Self, StoreError> {
        files::private_dir(&paths.state)?;
        let lock = files::lock(&paths.lock())?;
        files::private_dir(&paths.pairs())?;
        for dir in [&paths.state, &paths.pairs(), &paths.config] {
            files::sweep(dir);
        }
        let probe = paths.state.join("writable");
        files::write(&probe, "", |_| Ok::<_, String>(()))?;
        files::remove(&probe)?;
        Ok(Self { paths, _lock: lock })
    }

    pub(crate) fn key(&self) -> Result<Option<PrivateKey>, StoreError> {
        let path = self.paths.key();
        let Some(text) = files::read_private(&path)? else {
            return Ok(None);
        };
        let key = PrivateKey::from_pem(&text);
        key.map(Some)
            .map_err(|e| content(&path, &e, "restore it: the seed knows this machine by its key"))
    }

    pub(crate) fn write_key(&self, key: &PrivateKey) -> Result<(), StoreError> {
        let public = key.public();
        let read_back = |text: &str| match PrivateKey::from_pem(text) {
            Ok(found) if found.public() == public => Ok(()),
            Ok(_) => Err(KeyError::Encoding),
            Err(error) => Err(error),
        };
        Ok(files::write(&self.paths.key(), &key.to_pem(), read_back)?)
    }

    /// The pair in use; if that cannot be read, the newest that can. With it comes its key.
    pub(crate) fn pair(&self) -> Result<Option<(OwnPair, PrivateKey)>, StoreError> {
        if let Ok(Some(text)) = files::read_private(&self.paths.current())
            && let Some(pair) = parse_pair(&text)
        {
            return Ok(Some(pair));
        }
        let mut found = Vec::new();
        for path in self.pair_files() {
            if let Some(text) = files::read_private(&path)? {
                found.extend(parse_pair(&text));
            }
        }
        found.sort_by_key(|(pair, _)| pair.issued.not_before);
        Ok(found.pop())
    }

    /// The token in use. One that cannot be read counts as none: there is no other that would do.
    pub(crate) fn token(&self, firewall: &FirewallName) -> Result<Option<(OwnPair, PrivateKey)>, StoreError> {
        let (Some(text), Some(key)) = (files::read_private(&self.paths.current_token())?, self.key()?) else {
            return Ok(None);
        };
        let token = OwnPair::of_token(text.trim_end().to_owned().into(), firewall, &key);
        Ok(token.ok().map(|token| (token, key)))
    }

    /// What this access is worked with.
    pub(crate) fn of(&self, access: &Access) -> Result<Option<(OwnPair, PrivateKey)>, StoreError> {
        match access.mode() {
            Mode::Certificate => self.pair(),
            Mode::Token => self.token(&access.firewall),
        }
    }

    fn link_of(&self, mode: Mode) -> PathBuf {
        match mode {
            Mode::Certificate => self.paths.current(),
            Mode::Token => self.paths.current_token(),
        }
    }

    /// Whether the link leads to this pair's file.
    pub(crate) fn is_current(&self, pair: &OwnPair) -> bool {
        fs::read_link(self.link_of(pair.mode())).is_ok_and(|target| target == pair_file(pair))
    }

    /// Puts a pair in force: first the file, then the link to it.
    pub(crate) fn switch_pair(&self, pair: &OwnPair, key: &PrivateKey) -> Result<(), StoreError> {
        let file = pair_file(pair);
        let wanted = &pair.issued;
        let read_back = |text: &str| match pair.mode() {
            Mode::Certificate => parse_pair(text).map(|(found, _)| found.issued),
            Mode::Token => read_token(&text.trim_end().to_owned().into(), &wanted.firewall, &key.public()).ok(),
        };
        files::write(&self.paths.state.join(&file), &pair.text(), |text| {
            if read_back(text).as_ref() == Some(wanted) {
                Ok(())
            } else {
                Err("what the seed knows this machine by does not read back")
            }
        })?;
        files::link(&self.link_of(pair.mode()), &file)?;
        self.drop_old_pairs(&self.paths.state.join(&file));
        Ok(())
    }

    pub(crate) fn request(&self) -> Result<Option<StoredRequest>, StoreError> {
        let stored: Option<StoredRequest> = self.json(&self.paths.request())?;
        let Some(stored) = stored else { return Ok(None) };
        // A file that somebody changed is not sent.
        let name = csr::read(stored.pem.as_bytes()).and_then(|_| csr::object_name(&stored.pem));
        Ok(name.is_ok_and(|name| name == stored.name).then_some(stored))
    }

    pub(crate) fn write_request(&self, request: &StoredRequest) -> Result<(), StoreError> {
        self.write_json(&self.paths.request(), request)
    }

    pub(crate) fn remove_request(&self) -> Result<(), StoreError> {
        Ok(files::remove(&self.paths.request())?)
    }

    pub(crate) fn access(&self) -> Result<Option<Access>, StoreError> {
        self.json(&self.paths.access())
    }

    /// What could not be handed to the consumer is not kept, either: it would count at the next start.
    pub(crate) fn write_access(&self, access: &Access) -> Result<(), StoreError> {
        self.check_access(access)?;
        self.write_json(&self.paths.access(), access)
    }

    /// Whether the consumer's kubeconfig for this access can be read.
    pub(crate) fn check_access(&self, access: &Access) -> Result<(), StoreError> {
        let text = self.seed_kubeconfig(access)?;
        let read = Kubeconfig::read_local("for the consumer", &text);
        read.map(drop).map_err(|e| {
            let (path, problem) = (self.paths.access(), e.fault.to_string());
            FileError::Unreadable { path, problem }.into()
        })
    }

    /// The handover that is not used yet. One that cannot be read counts as none: the next one comes.
    pub(crate) fn handover(&self) -> Result<Option<PendingHandover>, StoreError> {
        self.json(&self.paths.handover())
    }

    pub(crate) fn write_handover(&self, handover: &PendingHandover) -> Result<(), StoreError> {
        self.write_json(&self.paths.handover(), handover)
    }

    pub(crate) fn remove_handover(&self) -> Result<(), StoreError> {
        Ok(files::remove(&self.paths.handover())?)
    }

    /// Never behind a handover that stands beside it: a kill between the two writes lets nothing older in.
    pub(crate) fn fence(&self, pending: Option<&PendingHandover>) -> Result<Fence, StoreError> {
        let fence: Fence = self.json(&self.paths.fence())?.unwrap_or_default();
        match pending {
            Some(pending) if pending.order() > fence.order => Ok(pending.fence.clone()),
            _ => Ok(fence),
        }
    }

    pub(crate) fn write_fence(&self, fence: &Fence) -> Result<(), StoreError> {
        self.write_json(&self.paths.fence(), fence)
    }

    pub(crate) fn switching(&self) -> Result<Option<Switching>, StoreError> {
        self.json(&self.paths.switching())
    }

    pub(crate) fn write_switching(&self, switching: &Switching) -> Result<(), StoreError> {
        self.write_json(&self.paths.switching(), switching)
    }

    pub(crate) fn remove_switching(&self) -> Result<(), StoreError> {
        Ok(files::remove(&self.paths.switching())?)
    }

    /// The seed and the handover that count after a kill: until its pair is in force, a switch has not happened, and
    /// after that a handover that led to it is used. What was written for a switch that has not happened stays, so that
    /// the next try has less to write: it comes to its end however often it is killed.
    pub(crate) fn recover(
        &self,
        pair: Option<&OwnPair>,
        access: Option<Access>,
        pending: Option<PendingHandover>,
    ) -> Result<(Option<Access>, Option<PendingHandover>), StoreError> {
        let Some(switching) = self.switching()? else {
            return Ok((access, pending));
        };
        if pair.is_none_or(|pair| pair.issued.serial != switching.serial) {
            return Ok((switching.previous.or(access), pending));
        }
        let used = pending
            .as_ref()
            .is_some_and(|pending| Some(pending.order()) == switching.order);
        if used {
            self.write_fence(&self.fence(pending.as_ref())?)?;
            self.remove_handover()?;
        }
        self.remove_switching()?;
        Ok((access, pending.filter(|_| !used)))
    }

    /// Writes the seed that is worked with, and with it gives up a switch that has not happened.
    pub(crate) fn keep_access(&self, access: &Access) -> Result<(), StoreError> {
        self.write_access(access)?;
        self.remove_switching()
    }

    /// Writes where a switch leads, once it is written where it came from.
    pub(crate) fn begin_switch(&self, switching: &Switching, access: &Access) -> Result<(), StoreError> {
        if switching.previous.is_some() && self.switching()?.as_ref() != Some(switching) {
            self.write_switching(switching)?;
        }
        if self.access()?.as_ref() != Some(access) {
            self.write_access(access)?;
        }
        Ok(())
    }

    pub(crate) fn handled(&self) -> Result<Handled, StoreError> {
        Ok(self.json(&self.paths.handled())?.unwrap_or_default())
    }

    pub(crate) fn write_handled(&self, handled: &Handled) -> Result<(), StoreError> {
        self.write_json(&self.paths.handled(), handled)
    }

    /// The consumer's kubeconfig for the seed: it names the file of the pair or token, so a renewal does not touch it.
    pub(crate) fn seed_kubeconfig(&self, access: &Access) -> Result<Zeroizing<String>, StoreError> {
        let link = self.link_of(access.mode());
        let current = std::path::absolute(&link).unwrap_or(link);
        let files = match access.mode() {
            Mode::Certificate => Credential::CertificateFiles {
                certificate: current.clone(),
                key: current,
            },
            Mode::Token => Credential::TokenFile(current),
        };
        let kubeconfig = access.with(files).map_err(|e| {
            content(
                &self.paths.access(),
                &e,
                "remove it and start again from a bootstrap kubeconfig",
            )
        })?;
        Ok(kubeconfig.write())
    }

    /// Writes the consumer's kubeconfig and the link to it, if they are not so already.
    pub(crate) fn install(&self, access: &Access) -> Result<(), StoreError> {
        let text = self.seed_kubeconfig(access)?;
        let path = self.paths.seed();
        if !self.installed(access) {
            self.write_kubeconfig(&path, &text)?;
        }
        files::link(&self.paths.seed_link(), Path::new(SEED_KUBECONFIG))?;
        Ok(())
    }

    pub(crate) fn installed(&self, access: &Access) -> bool {
        let Ok(wanted) = self.seed_kubeconfig(access) else {
            return false;
        };
        let same = matches!(files::read_private(&self.paths.seed()), Ok(Some(found)) if *found == *wanted);
        same && fs::read_link(self.paths.seed_link()).is_ok_and(|target| target == Path::new(SEED_KUBECONFIG))
    }

    /// Says whether the file changed.
    pub(crate) fn write_kubeconfig(&self, path: &Path, text: &str) -> Result<bool, StoreError> {
        if matches!(files::read_private(path), Ok(Some(found)) if *found == *text) {
            return Ok(false);
        }
        let what = path.display().to_string();
        files::write(path, text, |text| Kubeconfig::read_local(&what, text).map(drop))?;
        Ok(true)
    }

    pub(crate) fn kubeconfig(&self, path: &Path) -> Result<Option<Kubeconfig>, StoreError> {
        let Some(text) = files::read_private(path)? else {
            return Ok(None);
        };
        Kubeconfig::read(&path.display().to_string(), &text)
            .map(Some)
            .map_err(|e: KubeconfigError| content(path, &e.fault, "write it anew"))
    }

    fn json<T: DeserializeOwned>(&self, path: &Path) -> Result<Option<T>, StoreError> {
        let Some(text) = files::read_private(path)? else {
            return Ok(None);
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|e| content(path, &e, "remove it, or restore it from a backup"))
    }

    fn write_json<T: Serialize + DeserializeOwned>(&self, path: &Path, value: &T) -> Result<(), StoreError> {
        let text =
            serde_json::to_string_pretty(value).map_err(|e| content(path, &e, "this is a fault of the agent"))?;
        Ok(files::write(path, &(text + "\n"), |text| {
            serde_json::from_str::<T>(text).map(drop)
        })?)
    }

    fn pair_files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.paths.pairs()) else {
            return Vec::new();
        };
        entries.flatten().map(|entry| entry.path()).collect()
    }

    fn drop_old_pairs(&self, current: &Path) {
        let newest_first = |path: &PathBuf| {
            let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
            std::cmp::Reverse((path == current, written))
        };
        let mut pairs = self.pair_files();
        pairs.sort_by_key(newest_first);
        for old in pairs.into_iter().skip(PAIRS_KEPT) {
            // One that stays does no harm, and is tried again at the next switch.
            let _ = files::remove(&old);
        }
    }
}

/// A fresh request for this key, with the name of its object.
pub(crate) fn new_request(
    firewall: &FirewallName,
    key: &PrivateKey,
    replacement: bool,
    life: i64,
) -> Result<StoredRequest, CsrError> {
    let pem = csr::write(firewall, key)?;
    Ok(StoredRequest {
        name: csr::object_name(&pem)?,
        pem,
        replacement,
        life: Some(life),
    })
}

fn content(path: &Path, problem: &impl ToString, advice: &'static str) -> StoreError {
    StoreError::Content {
        path: path.to_owned(),
        problem: problem.to_string(),
        advice,
    }
}

#[cfg(test)]
mod compat;

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path) -> Store {
        let paths = Paths {
            config: dir.join("config"),
            state: dir.join("state"),
        };
        fs::create_dir(&paths.config).unwrap();
        Store::open(paths).unwrap()
    }

    fn access(server: &str) -> Access {
        let key = rcgen::KeyPair::generate().unwrap();
        Access {
            firewall: FirewallName::parse("fw-1").unwrap(),
            namespace: "shoot--p--s".to_owned(),
            server: server.to_owned(),
            tls_server_name: None,
            ca: rcgen::CertificateParams::default().self_signed(&key).unwrap().pem(),
            seed: None,
            handover_keys: Vec::new(),
            mode: "certificate".to_owned(),
        }
    }

    #[test]
    fn a_seed_that_the_consumer_could_not_be_led_to_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let good = access("https://seed.example.org");
        store.write_access(&good).unwrap();
        store.install(&good).unwrap();
        let installed = fs::read_to_string(store.paths.seed()).unwrap();
        for server in [
            "http://seed.example.org",
            "https://user@seed.example.org",
            "https://seed.example.org/path",
            "",
        ] {
            let error = store.write_access(&access(server)).unwrap_err().to_string();
            assert!(error.contains("server"), "{error}");
        }
        let no_ca = Access {
            ca: String::new(),
            ..good.clone()
        };
        store.write_access(&no_ca).unwrap_err();
        assert_eq!(store.access().unwrap(), Some(good.clone()));
        assert!(store.installed(&good));
        assert_eq!(fs::read_to_string(store.paths.seed()).unwrap(), installed);
    }
}
