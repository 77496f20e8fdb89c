//! The demo's moves: Gardener's part is played, and everything else happens by itself.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;

use super::{A, B, Stage, Standing};
use crate::harness::eventually;
use crate::moves::{Leaves, tail};
use crate::upstream::Saved;

/// From a Firewall's appearance in a seed to a working seed client on its machine.
const MOVE_LIMIT: Duration = Duration::from_secs(10);

/// How things were before the first move.
pub(super) struct Before {
    pub(super) known: Vec<Known>,
    pub(super) saved: Vec<Saved>,
}

/// What no move may change, for one firewall.
#[derive(PartialEq, Eq)]
pub(super) struct Known {
    key: Vec<u8>,
    monitor: String,
}

impl Stage<'_> {
    pub(super) async fn lose_seed_a(&self) -> anyhow::Result<(Before, String)> {
        let mut saved = Vec::new();
        for Standing { places, .. } in &self.firewalls {
            saved.push(places[A].shoot.backup().await?);
        }
        let known = self.known().await?;
        self.seats[A].seed.stop().await;
        let said = "Secrets with persist=true and the Firewalls' manifests; status is not kept".to_owned();
        Ok((Before { known, saved }, said))
    }

    pub(super) async fn appear_in_b(&mut self, saved: &[Saved]) -> anyhow::Result<((), String)> {
        self.at = B;
        self.appear(saved).await
    }

    pub(super) async fn back_to_a(&mut self) -> anyhow::Result<((), String)> {
        let mut saved = Vec::new();
        for Standing { places, .. } in &self.firewalls {
            saved.push(places[B].leave(Leaves::Nothing).await?);
        }
        self.at = A;
        self.appear(&saved).await
    }

    /// The control planes come to stand where the stage is now.
    async fn appear(&self, saved: &[Saved]) -> anyhow::Result<((), String)> {
        let moves = self
            .firewalls
            .iter()
            .zip(saved)
            .map(|(Standing { places, machine }, saved)| async {
                let place = &places[self.at];
                let began = place.shoot.restore(saved).await?;
                let took = place.has(machine, began, MOVE_LIMIT).await?;
                let line = format!("{}: {:.2} s", machine.firewall, took.as_secs_f64());
                ensure!(took < MOVE_LIMIT, "{line}; {MOVE_LIMIT:?} is the limit");
                anyhow::Ok(line)
            });
        let said = try_join_all(moves).await.with_context(|| self.logs())?;
        let said = said.join("\n");
        Ok((
            (),
            format!("Firewall in the new seed → seed client that has read it:\n{said}"),
        ))
    }

    pub(super) async fn is_the_same(&mut self, before: &[Known]) -> anyhow::Result<((), String)> {
        ensure!(
            self.known().await? == before,
            "a key or a FirewallMonitor is another one"
        );
        let run = self.agents.iter_mut().all(crate::programs::Program::runs);
        ensure!(run, "an agent ended");
        Ok((
            (),
            "private key, UID of the FirewallMonitor, process of the agent".to_owned(),
        ))
    }

    async fn known(&self) -> anyhow::Result<Vec<Known>> {
        let mut known = Vec::new();
        for Standing { places, machine } in &self.firewalls {
            known.push(Known {
                key: machine.key()?,
                monitor: places[A].monitor_uid(&machine.firewall).await?,
            });
        }
        Ok(known)
    }

    pub(super) async fn seed_a_returns(&self) -> anyhow::Result<((), String)> {
        self.seats[A].seed.start_again().await?;
        let mut said = String::new();
        for Standing { places, machine } in &self.firewalls {
            let [a, b] = places;
            let state = eventually("seed A stands aside", Duration::from_secs(30), || async {
                let state = a.state(&machine.firewall).await?;
                ensure!(state["reason"] == "OtherSeedAhead", "its state is {state}");
                Ok(state)
            })
            .await
            .with_context(|| self.logs())?;
            b.keeps(machine, Duration::from_secs(2)).await?;
            let message = state["message"].as_str().unwrap_or_default();
            said += &format!("in seed A: OtherSeedAhead, {message}\n");
        }
        Ok(((), said))
    }

    pub(super) async fn clear_a(&self) -> anyhow::Result<((), String)> {
        for Standing { places, .. } in &self.firewalls {
            places[A].leave(Leaves::Nothing).await?;
        }
        for Standing { places, machine } in &self.firewalls {
            let [a, b] = places;
            a.is_left_clean(Leaves::Nothing).await.with_context(|| self.logs())?;
            b.keeps(machine, Duration::from_secs(1)).await?;
        }
        Ok(((), "Secrets, tokens, Roles, finalizers; seed B goes on".to_owned()))
    }

    pub(super) async fn b_is_clean(&self) -> anyhow::Result<((), String)> {
        for Standing { places, machine } in &self.firewalls {
            let [a, b] = places;
            b.is_left_clean(Leaves::Nothing).await.with_context(|| self.logs())?;
            let (in_a, in_b) = (a.count(&machine.firewall).await?, b.count(&machine.firewall).await?);
            ensure!((in_a, in_b) == (1, 0), "{in_a} in seed A, {in_b} in seed B");
        }
        Ok(((), "Secrets, tokens, ServiceAccounts, Roles, finalizers".to_owned()))
    }

    pub(super) fn logs(&self) -> String {
        let logs = self.seats.each_ref().map(|seat| tail(&seat.home.log()));
        format!(
            "--- approver of seed A\n{}\n--- approver of seed B\n{}",
            logs[A], logs[B]
        )
    }
}
