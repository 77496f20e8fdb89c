//! `make flood`: one identity makes certificate requests as fast as it can, and meanwhile another firewall comes in. Compared
//! with the same flood for a signer that is none of ours, so that what the API server itself costs is on both sides.
//! Owns the comparison and its figures; what is kept of a flood is the approver's business.
#![allow(clippy::print_stdout, reason = "one watches a benchmark")]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use contract::csr;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::harness::{Cluster, client_from, eventually};
use crate::programs::{Machine, Program};
use crate::world::Place;

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many requests one identity makes in all, for either signer.
    pub requests: usize,
    /// Over how many measurements of either kind they are spread.
    pub rounds: usize,
}

#[derive(Debug, Default)]
pub struct Figures {
    /// From the agent's start to a seed client that has read its own Firewall.
    pub ours: Vec<Duration>,
    pub foreign: Vec<Duration>,
    pub quiet: Vec<Duration>,
    pub made: [usize; 2],
    pub seconds: [f64; 2],
    /// Of the flood's own requests, how many were decided.
    pub decided: usize,
    /// The approver's resident memory, MiB, before and after.
    pub memory: [f64; 2],
}

impl Figures {
    /// Median over median.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        median(&self.ours).as_secs_f64() / median(&self.foreign).as_secs_f64()
    }
}

#[must_use]
pub fn median(of: &[Duration]) -> Duration {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

const FOREIGN_SIGNER: &str = "example.com/none-of-ours";
const IN_FLIGHT: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);

pub async fn run(seed: &Cluster, shoot: &Cluster, namespace: &str, plan: Plan) -> anyhow::Result<Figures> {
    let place = Place::empty(seed, shoot, namespace).await?;
    place.settle().await?;
    let mut approver = place.approver()?;
    // The thief holds what a machine of this shoot was installed with.
    let stolen = place.machine("thief").await?;
    let thief = fs::read_to_string(stolen.bootstrap_kubeconfig())?;
    let thief = client_from(&thief).await?;
    let foreign = foreigner(seed).await?;
    let request = csr::write(&FirewallName::parse(&stolen.firewall)?, &PrivateKey::generate()?)?;

    let mut machines = Vec::new();
    for number in 0..plan.rounds * 3 {
        machines.push(place.machine(&format!("{number:05}")).await?);
    }
    let mut machines = machines.into_iter();
    let mut next = || machines.next().context("a machine for each measurement");
    let mut figures = Figures::default();
    for _ in 0..plan.rounds {
        figures.quiet.push(comes_in(&place, &next()?).await?);
    }
    figures.memory[0] = memory(&approver)?;
    let part = plan.requests / plan.rounds;
    for round in 0..plan.rounds {
        // Neither kind is always the first.
        for ours in [round % 2 == 0, round % 2 != 0] {
            let (client, signer) = if ours {
                (&thief, names::SIGNER)
            } else {
                (&foreign, FOREIGN_SIGNER)
            };
            let flood = Flood::start(client, signer, &request, part);
            // It has to have begun.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let took = comes_in(&place, &next()?).await?;
            let (made, seconds) = flood.end().await?;
            let kind = usize::from(!ours);
            figures.made[kind] += made;
            figures.seconds[kind] += seconds;
            if ours { &mut figures.ours } else { &mut figures.foreign }.push(took);
        }
        println!(
            "round {}: ours {:.2?}, foreign {:.2?}",
            round + 1,
            figures.ours[round],
            figures.foreign[round]
        );
    }
    ensure!(approver.runs(), "the approver ended:\n{}", place.home.log());
    figures.memory[1] = memory(&approver)?;
    figures.decided = decided(seed, &request).await?;
    Ok(figures)
}

async fn comes_in(place: &Place<'_>, machine: &Machine) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let agent = machine.start()?;
    let took = place.has(machine, began, LIMIT).await?;
    drop(agent);
    Ok(took)
}

/// Somebody who may ask any signer, in the same level and queues of the API server as firewalls.
async fn foreigner(seed: &Cluster) -> anyhow::Result<Client> {
    let flow = serde_json::json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "flooders"},
        "spec": {
            "matchingPrecedence": 999,
            "priorityLevelConfiguration": {"name": "firewall-bootstrap"},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "flooder"}}],
                "resourceRules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "namespaces": ["*"], "clusterScope": true}],
            }],
        },
    });
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), flow.to_string())?;
    let path = file.path().display().to_string();
    seed.kubectl_ok(&["apply", "-f", &path]).await?;
    let role = "flooders";
    let may = [
        "create",
        "clusterrole",
        role,
        "--verb=create",
        "--resource=certificatesigningrequests",
    ];
    seed.kubectl_ok(&may).await?;
    let bound = format!("--clusterrole={role}");
    seed.kubectl_ok(&["create", "clusterrolebinding", role, &bound, "--user=flooder"])
        .await?;
    let client = client_from(&seed.kubeconfig_for("flooder", &[])?).await?;
    eventually("the foreigner may ask", LIMIT, || async {
        make(&client, FOREIGN_SIGNER, "-").await.map(|_| ()).or_else(|e| {
            // What it asks for is nonsense; that it may ask is what matters.
            if matches!(&e, kube::Error::Api(status) if status.code != 403) {
                Ok(())
            } else {
                Err(e.into())
            }
        })
    })
    .await?;
    Ok(client)
}

struct Flood {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    tasks: JoinSet<Result<(), kube::Error>>,
    least: usize,
    began: Instant,
}

impl Flood {
    fn start(client: &Client, signer: &'static str, request: &str, least: usize) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..IN_FLIGHT {
            let (client, request) = (client.clone(), request.to_owned());
            let (stop, made) = (Arc::clone(&stop), Arc::clone(&made));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match make(&client, signer, &request).await {
                        Ok(()) => made.fetch_add(1, Ordering::Relaxed),
                        // Told to go slower: it does not.
                        Err(kube::Error::Api(status)) if status.code == 429 => continue,
                        Err(error) => return Err(error),
                    };
                }
                Ok(())
            });
        }
        Self {
            stop,
            made,
            tasks,
            least,
            began: Instant::now(),
        }
    }

    /// When it has made as many as it should.
    async fn end(mut self) -> anyhow::Result<(usize, f64)> {
        while self.made.load(Ordering::Relaxed) < self.least {
            if let Some(ended) = self.tasks.try_join_next() {
                ended??;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok((self.made.load(Ordering::Relaxed), seconds))
    }
}

/// One request more, of a name that the API server finds.
pub async fn make(client: &Client, signer: &str, request: &str) -> Result<(), kube::Error> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let object = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("flood-".into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            signer_name: signer.into(),
            usages: Some(vec!["digital signature".into(), "client auth".into()]),
            // As the agent asks: for our signer, the first are approved.
            expiration_seconds: Some(30 * 24 * 3600),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    requests.create(&PostParams::default(), &object).await.map(|_| ())
}

/// How many requests of these very bytes are decided.
pub async fn decided(seed: &Cluster, request: &str) -> anyhow::Result<usize> {
    let requests: Api<CertificateSigningRequest> = Api::all(seed.client().await?);
    let all = requests.list(&ListParams::default()).await?;
    let of_the_flood = all.items.iter().filter(|r| r.spec.request.0 == request.as_bytes());
    Ok(of_the_flood
        .filter(|r| r.status.as_ref().is_some_and(|status| status.conditions.is_some()))
        .count())
}

/// MiB.
fn memory(program: &Program) -> anyhow::Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", program.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix("kB"))
        .context("no VmRSS")?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}
