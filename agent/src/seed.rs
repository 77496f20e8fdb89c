//! What the agent reads of its seed, by name only: its Firewall, and the one Secret that is meant for it. Owns what
//! follows from a change there; a new server or CA is tried before anything is switched to it.

use cluster::api::call;
use cluster::failure::{Class, Failure};
use cluster::firewall::{Firewall, ShootAccess};
use contract::access::AgentAccess;
use contract::kubeconfig::CaBundle;
use contract::names::RENEW;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tracing::info;

use crate::core::{Event, Job, Patience, Via};
use crate::link::Link;
use crate::machine::Machine;
use crate::store::Access;

/// How often both are read.
const POLL: SignedDuration = SignedDuration::from_secs(10);

/// So often our Secret is looked for quickly after the first bootstrap: some twenty seconds.
const QUICK_TRIES: u32 = 16;

/// Our Firewall as last read.
pub(crate) struct FirewallSeen {
    pub(crate) shoot_access: Option<ShootAccess>,
}

impl Machine {
    pub(crate) async fn read_seed(&mut self) {
        let link = match self.link(Via::Own) {
            Ok(link) => link,
            Err(problem) => return self.failed(Job::Seed, Patience::Normal, &problem),
        };
        match self.read_firewall(&link).await {
            Ok(firewall) => {
                self.own_answered();
                self.firewall_read(firewall);
            }
            Err(failure) => return self.own_failed(Job::Seed, Patience::Normal, &failure),
        }
        let name = format!("Secret {}/{}", link.access.namespace, self.firewall.agent_secret());
        match self.read_agent_secret(&link, &name).await {
            Ok(access) => match self.told_by_seed(&access) {
                Ok(()) => {
                    self.lifeline_offered(&access).await;
                    self.done(Job::Seed, POLL);
                }
                Err(problem) => self.failed(Job::Seed, Patience::Normal, &format!("{name}: {problem}")),
            },
            Err(ReadError::Failed(failure)) if failure.is(Class::NotFound) || failure.is(Class::Forbidden) => {
                // At first it may just not be there yet; nothing else waits for it.
                let new = self.access.as_ref().is_some_and(|access| access.seed.is_none());
                let patience = if new && self.state.pace(Job::Seed).failures < QUICK_TRIES {
                    Patience::Lag
                } else {
                    Patience::Normal
                };
                self.failed(
                    Job::Seed,
                    patience,
                    &format!("{failure}; the firewall-approver writes it"),
                );
            }
            Err(ReadError::Failed(failure)) => self.own_failed(Job::Seed, Patience::Normal, &failure),
            Err(error) => self.failed(Job::Seed, Patience::Normal, &error),
        }
    }

    async fn read_firewall(&self, link: &Link) -> Result<Firewall, Failure> {
        let firewalls: Api<Firewall> = Api::namespaced(link.client.clone(), &link.access.namespace);
        let what = format!("get Firewall {}/{}", link.access.namespace, self.firewall);
        call(what, firewalls.get(self.firewall.as_str())).await
    }

    async fn read_agent_secret(&self, link: &Link, name: &str) -> Result<AgentAccess, ReadError> {
        let secrets: Api<Secret> = Api::namespaced(link.client.clone(), &link.access.namespace);
        let secret = call(format!("get {name}"), secrets.get(&self.firewall.agent_secret())).await?;
        let data = secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, value.0))
            .collect();
        AgentAccess::read(&data).map_err(|e| ReadError::Content(format!("{name}: {e}")))
    }

    fn firewall_read(&mut self, firewall: Firewall) {
        let asked = firewall
            .metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(RENEW));
        self.asked = asked.filter(|value| self.handled.renew.as_ref() != Some(value));
        let shoot_access = firewall.status.and_then(|status| status.shoot_access);
        if self.seen.as_ref().is_none_or(|seen| seen.shoot_access != shoot_access) {
            self.after(Event::Done(Job::Shoot, Timestamp::UNIX_EPOCH));
        }
        self.seen = Some(FirewallSeen { shoot_access });
        self.state.firewall_read = true;
    }

    /// What the seed says over the channel that our certificate opened.
    fn told_by_seed(&mut self, told: &AgentAccess) -> Result<(), String> {
        let Some(mut access) = self.access.clone() else {
            return Ok(());
        };
        let ca = CaBundle::from_pem(&told.ca).map_err(|e| format!("key \"ca.crt\" {e}"))?;
        self.wanted_mode = Some(told.mode);
        self.wanted_life = Some(told.life.unwrap_or(self.settings.certificate_duration.as_secs()));
        let offered = told.server != access.server || ca.pem() != access.ca;
        self.superseded.clone_from(&told.renew);
        access.seed = Some(told.seed.clone());
        access.handover_keys.clone_from(&told.handover_keys);
        if self.access.as_ref() != Some(&access) {
            self.store.keep_access(&access).map_err(|e| e.to_string())?;
            info!(firewall = %self.object(), seed = %told.seed, "the seed's id and handover keys are known");
            self.access = Some(access);
            // A handover that was not believed may be, by another key.
            self.judged = None;
            self.consider();
            self.report_soon();
        }
        self.offer = offered.then(|| told.clone());
        if offered != self.state.offer {
            self.after(if offered { Event::OfferFound } else { Event::OfferTaken });
        }
        self.refresh_reportable();
        Ok(())
    }

    /// Another server or CA that the seed told of: it has to let us in before anything is switched to it.
    pub(crate) async fn try_offer(&mut self) {
        let (Some(offer), Some(access), Some(pair)) = (&self.offer, &self.access, &self.pair) else {
            return self.after(Event::OfferTaken);
        };
        let ca = match CaBundle::from_pem(&offer.ca) {
            Ok(ca) => ca.pem().to_owned(),
            Err(e) => return self.failed(Job::Offer, Patience::Normal, &format!("the offered CA {e}")),
        };
        // The name that the old server was checked for says nothing about another.
        let tls_server_name = access.tls_server_name.clone().filter(|_| offer.server == access.server);
        let candidate = Access {
            server: offer.server.clone(),
            tls_server_name,
            ca,
            ..access.clone()
        };
        // What could not be installed is not even tried, whoever answers there.
        if let Err(error) = self.store.check_access(&candidate) {
            return self.failed(Job::Offer, Patience::Normal, &format!("{}: {error}", candidate.server));
        }
        let link = match self.try_pair(pair, &candidate).await {
            Ok(link) => link,
            Err(trial) => return self.failed(Job::Offer, Patience::Normal, &format!("{}: {trial}", candidate.server)),
        };
        // In this order, for it has let us in: after a kill in between, the next start installs it.
        let written = self
            .store
            .keep_access(&candidate)
            .and_then(|()| self.store.install(&candidate));
        if let Err(error) = written {
            return self.failed(Job::Offer, Patience::Normal, &error);
        }
        info!(firewall = %self.object(), server = %candidate.server, "switched to the server and CA that the seed told of");
        self.access = Some(candidate);
        self.own = Some(link);
        self.offer = None;
        self.state.installed = true;
        self.refresh_told();
        self.after(Event::OfferTaken);
    }

    /// A report needs the seed's id and a way into the shoot.
    pub(crate) fn refresh_reportable(&mut self) {
        let seed = self.access.as_ref().is_some_and(|access| access.seed.is_some());
        self.state.lifeline = self.lifeline.is_some();
        self.state.shoot_way = self.lifeline.is_some() || self.shoot.is_some() || self.old_shoot.is_some();
        self.state.reportable = seed && self.state.shoot_way;
    }
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("{0}")]
    Content(String),
}

#[cfg(test)]
mod tests {
    use contract::access::Mode;

    use super::*;
    use crate::handover::tests::Fixture;

    #[tokio::test]
    async fn c1_what_the_seed_wants_renewed_is_renewed_once() {
        let fixture = Fixture::new();
        let mut machine = fixture.machine();
        let access = machine.access.clone().unwrap();
        let told = |renew: Option<&str>, life: Option<i64>| AgentAccess {
            server: access.server.clone(),
            ca: access.ca.clone(),
            mode: Mode::Certificate,
            seed: "seed-a-uid".into(),
            handover_keys: access.handover_keys.clone(),
            lifeline: None,
            renew: renew.map(str::to_owned),
            life,
        };
        let wanted = |machine: &mut Machine| machine.look(Timestamp::now()).renewal;
        let own = machine.pair.as_ref().unwrap().issued.serial.clone();
        for (renew, wants) in [(None, false), (Some("ff"), false), (Some(own.as_str()), true)] {
            machine.told_by_seed(&told(renew, None)).unwrap();
            assert_eq!(wanted(&mut machine), wants, "{renew:?}");
        }
        machine.accept_renewal();
        assert!(machine.state.renewal && machine.handled.pending);
        assert_eq!(
            machine.handled.renew, None,
            "what an operator may ask for is another word"
        );
        // Still told, as the seed has not seen the new one yet.
        machine.pair.as_mut().unwrap().issued.serial = "another".into();
        machine.told_by_seed(&told(Some(&own), None)).unwrap();
        assert!(!wanted(&mut machine));
        // D4: another life is asked for until something is in use for which it was, and back.
        let (own, another) = (machine.life(), 1200);
        for (life, next) in [(Some(another), another), (None, own)] {
            machine.told_by_seed(&told(None, life)).unwrap();
            assert!(wanted(&mut machine) && machine.life() == next);
            machine.handled.life = Some(next);
            assert!(!wanted(&mut machine));
        }
    }
}
