//! How an agent begins: what its files hold, made whole where a kill left it half done, and told to the core.

use std::collections::BTreeMap;

use cluster::client::connect;
use contract::digest::sha256_hex;
use contract::key::PrivateKey;
use contract::names::FirewallName;
use jiff::Timestamp;
use tracing::{info, warn};

use super::{Machine, Settings, StartError};
use crate::core::{Event, Pending, State};
use crate::files;
use crate::lifeline::{Lifeline, LifelineState};
use crate::link::read_bootstrap;
use crate::store::{Access, Store, StoredRequest};

impl Machine {
    pub(crate) fn open(settings: Settings) -> Result<Self, StartError> {
        let store = Store::open(settings.paths.clone())?;
        let access = store.access()?;
        let pair = match &access {
            Some(access) => store.of(access)?,
            None => store.pair()?,
        };
        let key = match (store.key()?, &pair) {
            (Some(key), Some((_, other))) if key.public() != other.public() => {
                return Err(StartError::KeysDiffer {
                    key: store.paths.key().display().to_string(),
                    pair: store.paths.current().display().to_string(),
                });
            }
            (Some(key), _) => Some(key),
            // A key that exists somewhere is restored, never made anew.
            (None, Some((_, key))) => {
                store.write_key(key)?;
                store.key()?
            }
            (None, None) => None,
        };
        let pending = store.handover().unwrap_or_else(|error| {
            let access = access.as_ref();
            let firewall = access.map(|access| format!("{}/{}", access.namespace, access.firewall));
            warn!(firewall, "{error}: waiting for the next handover");
            None
        });
        let switched_to = access.as_ref().map(Access::mode);
        let (access, pending) = store.recover(pair.as_ref().map(|(pair, _)| pair), access, pending)?;
        let pair = match &access {
            // A switch to the other kind has not happened.
            Some(access) if Some(access.mode()) != switched_to => store.of(access)?,
            _ => pair,
        };
        let fence = store.fence(pending.as_ref())?;
        // A pair without the seed it is for is worth nothing; the seed alone tells where to begin again.
        let pair = access.as_ref().and(pair);
        if let Some((pair, key)) = &pair
            && !store.is_current(pair)
        {
            store.switch_pair(pair, key)?;
        }
        let (firewall, namespace) = match (&pair, &access) {
            (Some(_), Some(access)) => (access.firewall.clone(), access.namespace.clone()),
            _ => {
                let bootstrap = read_bootstrap(&store.paths).map_err(StartError::Bootstrap)?;
                (bootstrap.firewall, bootstrap.access.namespace)
            }
        };
        let mut handled = store.handled()?;
        // Of a machine that came in before this was remembered, the file that is there is the one it came in by.
        if pair.is_some() && handled.bootstrap.is_none() {
            let text = files::read_private(&store.paths.bootstrap()).ok().flatten();
            handled.bootstrap = Some(text.map_or_else(String::new, |text| sha256_hex(text.as_bytes())));
            store.write_handled(&handled)?;
        }
        let request = store.request()?;
        let lifeline = store
            .kubeconfig(&store.paths.lifeline())
            .ok()
            .flatten()
            .and_then(Lifeline::new);
        let old_shoot = store
            .kubeconfig(&store.paths.shoot())
            .ok()
            .flatten()
            .and_then(|kubeconfig| connect("the shoot", &kubeconfig).ok());
        let mut machine = Self {
            state: State {
                seed: seed_of(&firewall),
                key: key.is_some(),
                ..State::default()
            },
            settings,
            firewall,
            namespace,
            public: key.as_ref().map(PrivateKey::public),
            key,
            pair: pair.map(|(pair, _)| pair),
            access,
            handled,
            candidate: None,
            own: None,
            bootstrap: None,
            handover: pending,
            handover_link: None,
            fence,
            seal: None,
            watch: None,
            monitor: None,
            judged: None,
            answered: None,
            refused_handovers: BTreeMap::new(),
            probe: None,
            cut_off: false,
            seen: None,
            asked: None,
            wanted_mode: None,
            wanted_life: None,
            superseded: None,
            offer: None,
            lifeline,
            lifeline_state: LifelineState::default(),
            shoot: None,
            old_shoot,
            sent: None,
            clock_skew: None,
            problems: BTreeMap::new(),
            why: None,
            status: None,
            request: None,
            store,
        };
        machine.restore(request);
        Ok(machine)
    }

    /// Tells the core what the files held.
    fn restore(&mut self, request: Option<StoredRequest>) {
        let now = Timestamp::now();
        if let Some(request) = request {
            self.state.after(
                Event::RequestWritten {
                    replacement: request.replacement,
                    via: None,
                },
                now,
            );
            info!(firewall = %self.object(), request = %request.name, "goes on with the request of before");
            self.request = Some(request);
        }
        self.state.renewal = self.handled.pending;
        self.state.hook_run = self.handled.hook_run;
        self.state.own = self.own_times();
        if let (Some(access), Some(_)) = (&self.access, &self.pair) {
            self.state.installed = self.store.installed(access);
        }
        if let Some(pending) = &self.handover {
            self.state.handover = Some(Pending {
                expires: pending.expires,
                since: now,
            });
            info!(firewall = %self.object(), handover = %pending.order(), "goes on with the handover of before");
        }
        self.renew_seal();
        self.refresh_told();
        self.refresh_reportable();
        match &self.pair {
            Some(pair) => info!(
                firewall = %self.object(), serial = %pair.issued.serial, until = %pair.issued.not_after,
                "started with its own {}", pair.mode().as_str()
            ),
            None => info!(firewall = %self.object(), "started, bootstrapping"),
        }
    }
}

/// Different for each firewall and each start.
fn seed_of(firewall: &FirewallName) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(firewall.as_str())
}
