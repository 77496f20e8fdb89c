//! Composition: connects, asks for its own rights, fills the caches, and runs the two workers until it is told to stop.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use anyhow::Context;
use contract::access::Mode;
use contract::digest::sha256_hex;
use contract::names;
use contract::record::CredentialKind;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::DeserializeGuard;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{Controller, controller, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::{Notify, broadcast, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use cluster::failure::Failure;
use cluster::firewall::Firewall;
use cluster::lease::{Elector, Lost};
use cluster::operator::Operator;
use cluster::process;

use crate::approver::{Applied, Approver};
use crate::args::{BootstrapCredential, Run};
use crate::canary::{self, Canaries};
use crate::core::health::Health;
use crate::crowd::Crowd;
use crate::events::Events;
use crate::evidence::Keys;
use crate::fleet::Fleet;
use crate::gone::Sweeper;
use crate::health::{Served, Words};
use crate::probe::ProbeError;
use crate::pulse::Pulse;
use crate::retries::Retries;
use crate::seed::Seed;
use crate::selftest::SelfTest;
use crate::shoots::Shoots;
use crate::tasks::{self, Tasks, release};
use crate::watches::{cache, controlled, drain, listen, received, scopes};
use crate::webhook::{self, Hook};
use crate::{clock, credential, evidence, firewalls, http, preflight, probe, requests};

/// Somebody else's may have more than a megabyte each, and a page is in memory as a whole.
const REQUESTS_A_PAGE: u32 = 20;
/// How often the seed is asked again what a bootstrap token may do there.
const PROBE_AGAIN: Duration = Duration::from_secs(3600);
/// How often what is remembered of Firewalls that are gone is let go.
const SWEEP: Duration = Duration::from_secs(300);
/// How often it is looked whether a Firewall is gone, beside the events that tell so.
const GONE_AGAIN: Duration = Duration::from_secs(15);
/// How often it is looked at where firewalls reach this seed, and at the approver's own kubeconfig.
const SURROUNDINGS_AGAIN: Duration = Duration::from_secs(10);
const FIREWALLS: &str = "worker for Firewalls";
const REQUESTS: &str = "worker for requests";

/// Until `stop`, which may come at any time, while it still waits to lead too.
pub async fn run(run: Run, stop: CancellationToken) -> anyhow::Result<()> {
    let served = Arc::new(Served::new());
    let mut watches = Tasks::new(stop.clone());
    let http = http::start(run.listen, Arc::clone(&served), stop.clone()).await?;
    watches.spawn("HTTP server", http);
    let operator = Operator::connect(run.kubeconfig.as_deref()).await?;
    let identity = run.identity.clone().unwrap_or_else(process::unique_name);
    let lease = lease_of(&run.namespaces);
    let elector = Elector::new(operator.client(), &run.own_namespace, &lease, &identity);
    // Whoever leads no more ends: what it knows may be old when it leads again. The lease is kept from the moment on at which
    // it is had, however long the rest of the start takes.
    let (leading, leads) = oneshot::channel();
    let lost = async {
        if leads.await.is_err() {
            std::future::pending::<()>().await;
        }
        elector.keep().await
    };
    let mut lost = std::pin::pin!(lost);
    let started = tokio::select! {
        started = start(&run, operator, &elector, &identity, &served, watches, leading) => Some(started?),
        lost = &mut lost => return Err(lost.into()),
        () = stop.cancelled() => None,
    };
    if let Some(workers) = started {
        workers.until_told_to_stop(&run, lost).await?;
    } else {
        served.drain().await;
    }
    if !run.dry_run {
        release(&elector).await;
    }
    Ok(())
}

/// All that is asked and chosen before the work begins; in between it waits to lead.
async fn start(
    run: &Run,
    operator: Operator,
    elector: &Elector,
    identity: &str,
    served: &Served,
    mut watches: Tasks,
    leading: oneshot::Sender<()>,
) -> anyhow::Result<Workers> {
    let client = operator.client();
    preflight::check(&client, run).await?;
    let mut selftest = SelfTest::new(client.clone(), run);
    selftest.held().await?;
    // A dry run writes nothing that two could write differently, and may stand beside whoever leads.
    let leads = (!run.dry_run).then(|| elector.leadership());
    let work = leads
        .as_ref()
        .map_or_else(|| client.clone(), |leads| leads.client(client.clone()));
    let seed = Seed::connect(operator, work, leads, run).await?;
    if let Some(address) = run.webhook_listen.filter(|_| !run.dry_run) {
        let beside = seed.beside(client.clone());
        let hook = Arc::new(Hook::new(
            beside,
            &lease_of(&run.namespaces),
            run,
            served.metrics.clone(),
        ));
        watches.spawn("webhook", webhook::start(address, Arc::clone(&hook)).await?);
        let leads = seed.leads.clone();
        let leads = move || leads.as_ref().is_some_and(cluster::lease::Leadership::holds);
        watches.spawn("look at the webhook", Arc::clone(&hook).follow(run.clone(), leads));
        served.hooks(hook);
    }
    if !run.dry_run {
        let waiting = |why: Result<&str, &Failure>| match why {
            Ok(holder) => {
                served.waits(None);
                tracing::info!(%identity, "waiting to lead: {holder:?} leads");
            }
            Err(failure) => {
                served.waits(Some(failure));
                tracing::info!(%identity, "waiting to lead: {failure}");
            }
        };
        elector.acquire(waiting).await;
        // Whoever keeps it is there as long as this is.
        let _ = leading.send(());
        tracing::info!(%identity, "leads");
    }
    served.leads(seed.leads.clone());
    let key = credential::seed_key(&seed).await?;
    let words = Words::default();
    let kind = probe::begin(run.bootstrap_credential, &seed, &key, &words).await?;
    tracing::info!(
        seed = %seed.id, server = %seed.endpoint().server, dry_run = run.dry_run,
        "serving this seed; firewalls work with {}s (--seed-access)", Mode::from(run.seed_access).as_str()
    );
    watches.spawn("self-test of the policies", selftest.keep(run.poll_interval));
    Workers::start(seed, key, kind, words, served, run, watches).await
}

/// Approvers for different namespaces do not stand in for one another.
pub fn lease_of(namespaces: &[String]) -> String {
    if namespaces.is_empty() {
        return names::APPROVER.to_owned();
    }
    let mut sorted = namespaces.to_vec();
    sorted.sort_unstable();
    let digest = sha256_hex(sorted.join(",").as_bytes());
    format!("{}-{}", names::APPROVER, digest.get(..10).unwrap_or_default())
}

struct Workers {
    approver: Arc<Approver>,
    /// Workers end when told to; watches are dropped with the process.
    workers: Tasks,
    watches: Tasks,
    hook: Option<Arc<Hook>>,
}

impl Workers {
    async fn start(
        seed: Seed,
        key: contract::token::SeedKey,
        kind: CredentialKind,
        words: Words,
        served: &Served,
        run: &Run,
        mut watches: Tasks,
    ) -> anyhow::Result<Self> {
        let stop = watches.stop.clone();
        let mut workers = Tasks::new(stop.clone());
        let client = seed.client.clone();
        let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let (changed, mut changed_shoots) = mpsc::unbounded_channel::<String>();
        let bereft = Arc::new(Notify::new());
        let mut pulses = Vec::new();
        let mut pulse = |pulse: Pulse| {
            pulses.push(pulse.clone());
            pulse
        };
        let states = scopes::<Secret>(&client, &run.namespaces)
            .map(|api| {
                cache(
                    &mut watches,
                    "watch of state Secrets",
                    api,
                    named(names::STATE_SECRET),
                    run.poll_interval,
                    pulse(Pulse::new("states", run.poll_interval)),
                    changed.clone(),
                )
            })
            .collect();
        let shoot_secrets = scopes::<Secret>(&client, &run.namespaces)
            .map(|api| {
                let (what, config) = ("watch of shoot access Secrets", named(names::SHOOT_ACCESS_SECRET));
                let pulse = pulse(Pulse::new("shoot-access", run.poll_interval));
                cache(
                    &mut watches,
                    what,
                    api,
                    config,
                    run.poll_interval,
                    pulse,
                    changed.clone(),
                )
            })
            .collect();
        let (controllers, mut complete): (Vec<_>, Vec<_>) =
            scopes::<DeserializeGuard<Firewall>>(&client, &run.namespaces)
                .map(|api| {
                    let bereft = Arc::clone(&bereft);
                    let shrink = |firewall: &mut DeserializeGuard<Firewall>| firewall.managed_fields_mut().clear();
                    controlled(
                        api,
                        watcher::Config::default(),
                        run.poll_interval,
                        pulse(Pulse::queued("firewalls", run.poll_interval)),
                        |_| true,
                        shrink,
                        move |_| {
                            bereft.notify_one();
                        },
                    )
                })
                .unzip();
        let ours = watcher::Config::default()
            .page_size(REQUESTS_A_PAGE)
            .fields(&format!("spec.signerName={}", names::SIGNER));
        let mut crowd = Crowd::default();
        let (request_controller, requests_complete) = controlled(
            Api::all(client.clone()),
            ours,
            run.poll_interval,
            pulse(Pulse::queued("requests", run.poll_interval)),
            move |event| crowd.admits(event),
            evidence::shrink,
            |_| {},
        );

        complete.push(requests_complete);

        let (wake_firewall, mut woken_firewalls) = mpsc::unbounded_channel::<(String, String)>();
        let (wake_request, woken_requests) = mpsc::unbounded_channel::<String>();
        let approver = Arc::new(Approver {
            key,
            kind: RwLock::new(kind),
            mode: run.seed_access.into(),
            life: run.certificate_duration.map(|life| life.as_secs()),
            dry_run: run.dry_run,
            poll: run.poll_interval,
            namespaces: run.namespaces.clone(),
            firewalls: controllers.iter().map(Controller::store).collect(),
            complete,
            states,
            shoot_secrets,
            requests: request_controller.store(),
            keys: Keys::default(),
            shoots: Shoots::new(wake_firewall.clone(), run.poll_interval, seed.leads.clone()),
            canaries: Canaries::new()?,
            events: Events::new(client, run.identity.as_deref()),
            wake_firewall,
            wake_request,
            applied: Applied::default(),
            written: Mutex::default(),
            handed_out: Mutex::new(HashMap::new()),
            pulses,
            fleet: Fleet::default(),
            words,
            metrics: served.metrics.clone(),
            retries: Retries::default(),
            refused: Mutex::default(),
            said: Mutex::new(HashMap::new()),
            seed,
        });
        served.serves(Arc::clone(&approver));
        canary::read_bundle(&approver).await;
        // The caches first: nothing is decided on a fact that has merely not arrived yet.
        for store in approver.states.iter().chain(&approver.shoot_secrets) {
            store
                .wait_until_ready()
                .await
                .context("the watch of Secrets ended before it began")?;
        }

        // Each namespace has its own controller; whoever is woken is told to all of them and known to one.
        let (woken, _) = broadcast::channel::<(String, String)>(4096);
        for controller in controllers {
            let trigger = listen(woken.subscribe());
            let worker = controller
                .reconcile_on(trigger)
                .with_config(controller::Config::default().concurrency(16))
                .graceful_shutdown_on(stop.clone().cancelled_owned())
                .run(
                    |firewall, approver| process::named(FIREWALLS, firewalls::reconcile(firewall, approver)),
                    firewalls::retry,
                    Arc::clone(&approver),
                );
            workers.spawn(FIREWALLS, drain(FIREWALLS, worker));
        }
        let waking = Arc::clone(&approver);
        let trigger = received(woken_requests).map(move |name| {
            waking.waits("requests", &format!("/{name}"));
            ObjectRef::new(&name)
        });
        let worker = request_controller
            .reconcile_on(trigger)
            .with_config(controller::Config::default().concurrency(16))
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(
                |request, approver| process::named(REQUESTS, requests::reconcile(request, approver)),
                requests::retry,
                Arc::clone(&approver),
            );
        workers.spawn(REQUESTS, drain(REQUESTS, worker));
        let waking = Arc::clone(&approver);
        watches.spawn("waking of Firewalls", async move {
            while let Some(firewall) = woken_firewalls.recv().await {
                waking.waits("firewalls", &format!("{}/{}", firewall.0, firewall.1));
                let _ = woken.send(firewall);
            }
        });
        let waker = Arc::clone(&approver);
        watches.spawn("waking of shoots", async move {
            // A shoot's state or its access came, changed or went. Whoever changed it cannot wake them himself: the
            // cache would not have it yet.
            while let Some(namespace) = changed_shoots.recv().await {
                waker.wake_shoot(&namespace);
            }
        });
        if !run.dry_run {
            // Where nobody works with certificates, what becomes of their CAs is nobody's business, and perhaps none is signed.
            if approver.mode == Mode::Certificate {
                approver
                    .words
                    .say("signer", Health::Away("no canary was made yet".into()));
                watches.spawn("making of canaries", canary::keep(Arc::clone(&approver)));
                watches.spawn("asking of canaries", canary::ask(Arc::clone(&approver)));
            }
            let sweeping = Arc::clone(&approver);
            watches.spawn("sweeper", async move {
                let mut sweeper = Sweeper::default();
                loop {
                    let _ = tokio::time::timeout(GONE_AGAIN, bereft.notified()).await;
                    sweeper.sweep(&sweeping).await;
                }
            });
        }
        let hook = served.hook();
        if let Some(hook) = &hook {
            let keeping = webhook::keep(Arc::clone(&approver), Arc::clone(hook));
            watches.spawn("keeping of the webhook's certificate", keeping);
        }
        watches.spawn("check of the clock", clock::watch(Arc::clone(&approver)));
        watches.spawn(
            "watch of the surroundings",
            surroundings(Arc::clone(&approver), run.clone()),
        );
        Ok(Self {
            approver,
            workers,
            watches,
            hook,
        })
    }

    /// A worker that dies ends it with its name.
    async fn until_told_to_stop(
        mut self,
        run: &Run,
        mut lost: Pin<&mut impl Future<Output = Lost>>,
    ) -> anyhow::Result<()> {
        let mut sweep = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP, SWEEP);
        // Beside all else: it may take its time, and the lease has to be kept meanwhile.
        let probes = probe_again(Arc::clone(&self.approver), run.bootstrap_credential);
        let mut probes = std::pin::pin!(probes);
        let stop = self.workers.stop.clone();
        loop {
            tokio::select! {
                // Workers end by themselves then, and that is no fault.
                biased;
                () = stop.cancelled() => break,
                lost = &mut lost => return Err(lost.into()),
                error = self.workers.ended() => return Err(error),
                error = self.watches.ended() => return Err(error),
                _ = sweep.tick() => self.approver.forget_the_gone(),
                error = &mut probes => return Err(error),
            }
        }
        let leads = self.approver.seed.leads.clone();
        let hook = self.hook.clone();
        let drained = async {
            if let Some(hook) = hook {
                hook.drain().await;
            }
            tasks::drain(self.workers, self.watches, leads.as_ref()).await;
        };
        // What is under way may be written as long as it is led.
        tokio::select! {
            lost = lost => Err(lost.into()),
            () = drained => Ok(()),
        }
    }
}

/// Ends where a token opens more than it should and nothing holds it.
async fn probe_again(approver: Arc<Approver>, chosen: BootstrapCredential) -> anyhow::Error {
    loop {
        tokio::time::sleep(PROBE_AGAIN).await;
        match chosen {
            BootstrapCredential::Auto => probe_for_auto(&approver).await,
            BootstrapCredential::ServiceAccount => {}
            // Where the policy does not hold any more, nobody else keeps a token from asking for more.
            BootstrapCredential::Token => match probe::tokens_work(&approver.seed, &approver.key).await {
                Err(error @ ProbeError::NotHeld(_)) => return error.into(),
                Err(error) => tracing::warn!(%error, "tried again in an hour"),
                Ok(()) => {}
            },
        }
    }
}

async fn probe_for_auto(approver: &Approver) {
    let (kind, why) = match probe::choose(&approver.seed, &approver.key).await {
        Ok(chosen) => {
            approver.words.say("bootstrap-credential", Health::Good);
            chosen
        }
        Err(failure) => {
            approver.words.failed("bootstrap-credential", &failure);
            // To change the kind revokes what machines hold: not for an answer that did not come.
            tracing::warn!(%failure, "what a bootstrap token may do here could not be asked; nothing is changed");
            return;
        }
    };
    if kind != approver.kind() {
        tracing::warn!(?kind, "bootstrap credential: {why}");
        *approver.kind.write().unwrap_or_else(std::sync::PoisonError::into_inner) = kind;
    }
}

/// Follows where firewalls reach this seed, and how the approver does.
async fn surroundings(approver: Arc<Approver>, run: Run) {
    loop {
        tokio::time::sleep(SURROUNDINGS_AGAIN).await;
        match approver.seed.follow(&run).await {
            Ok(followed) => {
                if followed {
                    tracing::info!("the kubeconfig was written anew and works: gone on with it");
                }
                approver.is_news("kubeconfig", "");
            }
            Err(error) if approver.is_news("kubeconfig", &error.to_string()) => {
                tracing::warn!(%error, "the kubeconfig was written anew and is not used; what was there before stays in use");
            }
            Err(_) => {}
        }
        match approver.seed.look_again(&run).await {
            Ok(false) => {
                approver.is_news("endpoint", "");
            }
            Ok(true) => {
                let server = approver.seed.endpoint().server;
                tracing::info!(%server, "this seed is reached at another address or by another CA now");
                approver.wake_all();
            }
            Err(error) if approver.is_news("endpoint", &error.to_string()) => {
                tracing::warn!(%error, "where firewalls reach this seed could not be found out anew; what was known stays");
            }
            Err(_) => {}
        }
    }
}
