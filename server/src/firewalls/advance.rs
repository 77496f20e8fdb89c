//! Brings a firewall's record on: gathers what `core::life` decides by, and writes what it decides before anything of it
//! takes effect.

use contract::handover::Order;
use contract::names::{self, FirewallName};
use contract::record::Record;
use contract::report::Report;
use jiff::Timestamp;
use kube::ResourceExt;

use super::{FirewallError, Worker};
use crate::core::admit;
use crate::core::seen::Seen;
use crate::core::verdict::Verdict;
use crate::core::{handover as core_handover, life};
use crate::news::News;
use crate::shoots::{Monitor, Shoot};
use crate::state::State;

/// A firewall's record as it is now, and what it was judged by.
pub(super) struct Advanced {
    pub(super) state: State,
    pub(super) record: Record,
    pub(super) report: Option<Report>,
    pub(super) ahead: Option<Order>,
    pub(super) verdict: Verdict,
}

impl Worker<'_> {
    /// The record as it should be, written if it changed.
    pub(super) async fn advance(
        &self,
        name: &FirewallName,
        shoot: Option<&Shoot>,
        monitor: Option<&Monitor>,
        id_taken: bool,
        now: Timestamp,
    ) -> Result<Advanced, FirewallError> {
        let state = self.state().await?;
        let known = state.record(name).map_err(|e| self.state_error(e))?;
        let handover_key = state.handover_key().map_err(|e| self.state_error(e))?.public();
        let authentic = monitor.and_then(|monitor| self.sight.authentic(monitor, name, &handover_key));
        let mut keys = known.as_ref().map(|known| known.keys.clone()).unwrap_or_default();
        if keys.pin.is_none()
            && !keys.contested()
            && let Some(claims) = &authentic
        {
            keys = keys.restore(&claims.key, now);
        }
        let report = monitor
            .zip(shoot)
            .and_then(|(monitor, shoot)| self.sight.report(monitor, shoot, name, &keys));
        let (certificate, certified_until) = self.sight.certificates(name, &keys);
        let annotations = self.firewall.annotations();
        let (server, ca) = self.approver.seed.endpoint().fingerprints();
        let issuers = self.approver.canaries.issuers();
        let seen = Seen {
            firewall: name,
            uid: &self.uid,
            seed: &self.approver.seed.id,
            server: &server,
            ca: &ca,
            created: self.firewall.creation_timestamp().map_or(now, |created| created.0),
            kind: self.approver.kind(),
            mode: self.approver.mode,
            accept_key: annotations.get(names::ACCEPT_KEY).map(String::as_str),
            rebootstrap: annotations.get(names::REBOOTSTRAP).map(String::as_str),
            export: annotations.get(names::EXPORT).map(String::as_str),
            blind: shoot.is_some_and(|shoot| shoot.is_blind(name.as_str())),
            monitor: monitor.is_some(),
            authentic: authentic.as_ref(),
            issuers: &issuers,
            report: report.as_ref(),
            certificate: certificate.as_ref(),
            certified_until,
            id_taken,
            baked: annotations
                .get(names::BOOTSTRAP_EPOCH)
                .zip(self.firewall.creation_timestamp())
                .and_then(|(epoch, created)| admit::kept(epoch, created.0)),
        };
        let next = life::advance(known.as_ref(), &seen, now);
        let news = News {
            approver: self.approver,
            firewall: self.firewall,
            object: &self.object,
        };
        news.say_what_is_ignored(&seen);
        let (ahead, verdict) = (core_handover::ahead(&next, &seen), life::judge(&next, &seen, now));
        let advanced = |state, record| Advanced {
            state,
            record,
            report: report.clone(),
            ahead,
            verdict,
        };
        if known.as_ref() == Some(&next) {
            return Ok(advanced(state, next));
        }
        let provision = self.provision(name);
        if !id_taken {
            provision.revoke_replaced(known.as_ref(), &next).await?;
        }
        let saved = self.approver.save(&state, name, &next).await;
        let state = saved
            .map_err(|e| self.state_error(e))?
            .ok_or_else(|| FirewallError::Raced(self.object.clone()))?;
        news.explain(name, known.as_ref(), &next);
        Ok(advanced(state, next))
    }

    /// The state from the cache; from the API server where the cache has none, for only that makes a new one.
    async fn state(&self) -> Result<State, FirewallError> {
        if let Some(state) = self
            .approver
            .cached_state(&self.namespace)
            .filter(State::has_handover_key)
        {
            return Ok(state);
        }
        State::load_or_make(&self.approver.seed, &self.namespace)
            .await
            .map_err(|e| self.state_error(e))
    }
}
