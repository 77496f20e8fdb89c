//! `make soak`: the CAs of a seed are rolled in turn, over and over, while a consumer on a firewall's machine makes a
//! request every 100 ms. Owns the order and the pace of the rolls; who plays is the world's business.
#![allow(clippy::print_stdout, reason = "one watches a soak")]

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use contract::cert::read_certificate;
use contract::kubeconfig::{CaBundle, Credential, Kubeconfig};
use tokio::time::{Instant, sleep, sleep_until};

use crate::consumer::{self, Consumer, Kind, Sums};
use crate::harness::{Cluster, eventually};
use crate::moves::tail;
use crate::programs::{Machine, Program};
use crate::world::{Place, bootstrapped};

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// No roll is begun after that.
    pub duration: Duration,
    pub kind: Kind,
    /// How long old and new are trusted after the machine has the new.
    pub overlap: Duration,
}

impl Plan {
    #[must_use]
    pub fn new(duration: Duration, kind: Kind) -> Self {
        let overlap = match kind {
            // It looks at the files each second.
            Kind::Watching => Duration::from_secs(2),
            // It reads certificate and key again each 5 minutes.
            Kind::Stock => Duration::from_secs(6 * 60),
        };
        Self {
            duration,
            kind,
            overlap,
        }
    }
}

const EVERY: Duration = Duration::from_secs(60);
/// The approver looks at its endpoint every 10 s, and so does the agent at what is written for it.
const FOLLOWS: Duration = Duration::from_secs(60);

/// Runs all of it with a firewall of its own. The seed and the shoot have what the manifests bring.
pub async fn run(seed: &Cluster, shoot: &Cluster, namespace: &str, plan: Plan) -> anyhow::Result<Sums> {
    let place = Place::empty(seed, shoot, namespace).await?;
    place.settle().await?;
    let approver = place.approver()?;
    let machine = place.machine("00001").await?;
    let agent = machine.start()?;
    bootstrapped(&machine).await?;
    place.await_reason(&machine.firewall, "Bootstrapped").await?;
    let consumer = Consumer::start(&machine, plan.kind).await?;
    let mut soak = Soak {
        place,
        approver,
        machine,
        plan,
        began: Instant::now(),
    };
    let rolled = soak.roll(agent, consumer).await;
    rolled.with_context(|| {
        let consumer = fs::read_to_string(soak.machine.path().join(consumer::LOG)).unwrap_or_default();
        let [agent, approver, consumer] = [soak.machine.log(), soak.place.home.log(), consumer].map(|log| tail(&log));
        format!("--- agent\n{agent}\n--- approver\n{approver}\n--- consumer\n{consumer}")
    })
}

struct Soak<'a> {
    place: Place<'a>,
    approver: Program,
    machine: Machine,
    plan: Plan,
    began: Instant,
}

impl Soak<'_> {
    async fn roll(&mut self, mut agent: Program, mut consumer: Consumer) -> anyhow::Result<Sums> {
        for number in 0_u32.. {
            let began = Instant::now();
            if self.began.elapsed() >= self.plan.duration {
                break;
            }
            if number % 2 == 0 {
                self.client_ca().await.context("a roll of the client CA")?;
            } else {
                self.server_ca().await.context("a roll of the server CA")?;
            }
            consumer.alive()?;
            ensure!(agent.runs(), "the agent ended");
            ensure!(self.approver.runs(), "the approver ended");
            sleep_until((began + EVERY).min(self.began + self.plan.duration)).await;
        }
        // What the last roll dropped would be missed by now.
        sleep(Duration::from_secs(5)).await;
        self.has_ca().await.context("the old CA stays on the machine")?;
        let sums = consumer.stop().await?;
        agent.stop().await?;
        Ok(sums)
    }

    async fn client_ca(&self) -> anyhow::Result<()> {
        let Self { place, machine, .. } = self;
        let roll = place.seed.roll_client_ca()?;
        roll.add().await?;
        pause().await;
        let old = serial(machine)?;
        roll.switch_signer().await?;
        // Nobody asks for it: the approver sees that certificates come from another CA.
        eventually("a certificate of the new CA on the machine", FOLLOWS, || async {
            ensure!(serial(machine)? != old, "it is still {old}");
            Ok(())
        })
        .await?;
        self.say("the client CA: the machine has a certificate of the new one");
        sleep(self.plan.overlap).await;
        pause().await;
        roll.drop_old().await?;
        self.say("the client CA: the old one is refused");
        Ok(())
    }

    async fn server_ca(&self) -> anyhow::Result<()> {
        let seed = self.place.seed;
        self.has_ca().await?;
        let roll = seed.roll_server_ca()?;
        roll.add().await?;
        pause().await;
        // As an operator would; the approver follows by itself.
        self.place.home.renew(seed).await?;
        self.has_ca().await?;
        self.say("the server's CA: the machine trusts both");
        sleep(self.plan.overlap).await;
        pause().await;
        roll.switch_signer().await?;
        pause().await;
        roll.drop_old().await?;
        self.say("the server's CA: the old one is not published any more");
        Ok(())
    }

    /// The machine trusts what the seed publishes, no less and no more.
    async fn has_ca(&self) -> anyhow::Result<()> {
        let wanted = CaBundle::from_pem(&self.place.seed.server_ca_pem())?;
        eventually("the CAs of now on the machine", FOLLOWS, || async {
            ensure!(kubeconfig(&self.machine)?.ca.pem() == wanted.pem(), "they are others");
            Ok(())
        })
        .await
    }

    fn say(&self, what: &str) {
        println!("at {:>5.1} s: {what}", self.began.elapsed().as_secs_f64());
    }
}

async fn pause() {
    let random = RandomState::new().build_hasher().finish();
    sleep(Duration::from_millis(random % 3000)).await;
}

fn kubeconfig(machine: &Machine) -> anyhow::Result<Kubeconfig> {
    let text = fs::read_to_string(machine.seed_kubeconfig())?;
    Ok(Kubeconfig::read_local("the machine's kubeconfig", &text)?)
}

fn serial(machine: &Machine) -> anyhow::Result<String> {
    let Credential::CertificateFiles { certificate, .. } = kubeconfig(machine)?.credential else {
        anyhow::bail!("the machine's kubeconfig has no certificate file");
    };
    Ok(read_certificate(&fs::read_to_string(certificate)?)?.serial)
}
