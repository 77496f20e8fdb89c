//! The demo's last act: both CAs of the seed are rolled while somebody on each machine goes to the seed all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cluster::failure::{Class, classify};
use cluster::firewall::Firewall;
use kube::Api;
use tokio::task::JoinHandle;

use super::checks::Certificate;
use super::{A, Stage, Standing};
use crate::harness::{client_from, eventually};
use crate::programs::Machine;

const FOLLOWS: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_millis(200);

/// Goes to the seed with what lies on the machine at that time, and counts what is a certificate's fault.
struct Caller {
    stop: Arc<AtomicBool>,
    task: JoinHandle<anyhow::Result<(u32, Vec<String>)>>,
}

impl Caller {
    fn start(machine: &Machine) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (file, namespace, name) = (
            machine.seed_kubeconfig(),
            machine.namespace.clone(),
            machine.firewall.clone(),
        );
        let task = tokio::spawn(async move {
            let (mut requests, mut failed) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let client = client_from(&std::fs::read_to_string(&file)?).await?;
                let firewalls: Api<Firewall> = Api::namespaced(client, &namespace);
                requests += 1;
                if let Err(error) = firewalls.get(&name).await
                    && !matches!(classify(&error), Class::Unreachable | Class::Busy)
                {
                    failed.push(error.to_string());
                }
                tokio::time::sleep(EVERY).await;
            }
            Ok((requests, failed))
        });
        Self { stop, task }
    }

    async fn unharmed(self) -> anyhow::Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let (requests, failed) = self.task.await??;
        ensure!(
            failed.is_empty(),
            "of {requests} requests failed: {}",
            failed.join("; ")
        );
        Ok(requests)
    }
}

impl Stage<'_> {
    pub(super) async fn client_ca_rolls(&self) -> anyhow::Result<((), String)> {
        let callers = self.callers();
        let mut before = Vec::new();
        for Standing { machine, .. } in &self.firewalls {
            before.push(Certificate::of(&machine.state())?.serial);
        }
        let roll = self.seats[A].seed.roll_client_ca()?;
        roll.add().await?;
        roll.switch_signer().await?;
        let switched = Instant::now();
        for (Standing { machine, .. }, before) in self.firewalls.iter().zip(&before) {
            eventually("a certificate of the new CA", FOLLOWS, || async {
                ensure!(Certificate::of(&machine.state())?.serial != *before, "still {before}");
                Ok(())
            })
            .await
            .with_context(|| self.logs())?;
        }
        let renewed = switched.elapsed().as_secs_f64();
        roll.drop_old().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let requests = unharmed(callers).await?;
        Ok((
            (),
            format!("both have renewed {renewed:.1} s after the new CA began to sign; {requests} requests, 0 failed"),
        ))
    }

    pub(super) async fn server_ca_rolls(&self) -> anyhow::Result<((), String)> {
        let callers = self.callers();
        let seed = self.seats[A].seed;
        let roll = seed.roll_server_ca()?;
        roll.add().await?;
        for Standing { machine, .. } in &self.firewalls {
            eventually("both CAs on the machine", FOLLOWS, || async {
                let text = std::fs::read_to_string(machine.seed_kubeconfig())?;
                let kubeconfig = contract::kubeconfig::Kubeconfig::read_local("it", &text)?;
                ensure!(kubeconfig.ca.pem().trim() == seed.server_ca_pem().trim(), "not yet");
                Ok(())
            })
            .await
            .with_context(|| self.logs())?;
        }
        roll.switch_signer().await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let requests = unharmed(callers).await?;
        Ok((
            (),
            format!("each machine trusts the new one first, then the old one; {requests} requests, 0 failed"),
        ))
    }

    fn callers(&self) -> Vec<Caller> {
        let machines = self.firewalls.iter().map(|standing| &standing.machine);
        machines.map(Caller::start).collect()
    }
}

async fn unharmed(callers: Vec<Caller>) -> anyhow::Result<u32> {
    let mut requests = 0;
    for caller in callers {
        requests += caller.unharmed().await?;
    }
    Ok(requests)
}
