//! Our FirewallMonitor, as the shoot shows it: a watch that wakes the machine, and the poll for when the watch is cut.
//! Owns what is read of it; what a message there means is `handover`'s business.

use std::time::Duration;

use cluster::api::call;
use cluster::failure::Class;
use cluster::firewall::FirewallMonitor;
use contract::names::{FirewallName, MONITOR_NAMESPACE, SEED_ACCESS, SEED_ACCESS_REPORT};
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::core::{Event, Job, Patience};
use crate::handover::REFUSED;
use crate::lifeline::LIFELINE;
use crate::machine::Machine;

const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// The server ends a watch after this time at the latest, so that one whose peer lives and says nothing is begun anew. One whose
/// peer is gone is over much sooner, by the connection.
const WATCH_MAX: Duration = Duration::from_secs(290);
/// Whoever takes our report away makes us write it no more often than this.
const REPORT_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// The two annotations that are ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Monitor {
    pub(crate) handover: Option<String>,
    pub(crate) report: Option<String>,
}

impl Monitor {
    pub(crate) fn of(metadata: ObjectMeta) -> Self {
        let mut annotations = metadata.annotations.unwrap_or_default();
        Self {
            handover: annotations.remove(SEED_ACCESS),
            report: annotations.remove(SEED_ACCESS_REPORT),
        }
    }
}

/// A watch in the background. It ends with this.
pub(crate) struct Watch {
    receiver: watch::Receiver<Option<Monitor>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    pub(crate) fn start(clients: Vec<Client>, firewall: &FirewallName, again: Duration) -> Self {
        let (sender, receiver) = watch::channel(None);
        let task = tokio::spawn(follow(clients, firewall.clone(), again, sender));
        Self { receiver, task }
    }
}

/// Watches through the first client that can, and lists anew each `again`.
async fn follow(clients: Vec<Client>, firewall: FirewallName, again: Duration, sender: watch::Sender<Option<Monitor>>) {
    let mut retry = RETRY_FIRST;
    loop {
        let mut seen = false;
        for client in &clients {
            seen = follow_once(client, &firewall, again, &sender).await;
            if seen {
                break;
            }
        }
        if seen {
            retry = RETRY_FIRST;
        } else {
            retry = RETRY_LONGEST.min(retry * 2);
        }
        // Also after a watch that worked: one that ends at once must not be begun in circles.
        sleep(retry).await;
    }
}

/// Says whether anything was seen by it.
async fn follow_once(
    client: &Client,
    firewall: &FirewallName,
    again: Duration,
    sender: &watch::Sender<Option<Monitor>>,
) -> bool {
    let monitors: Api<PartialObjectMeta<FirewallMonitor>> = Api::namespaced(client.clone(), MONITOR_NAMESPACE);
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={firewall}"))
        .timeout(u32::try_from(again.min(WATCH_MAX).as_secs()).unwrap_or(1).max(1));
    let mut events = std::pin::pin!(watcher(monitors, config));
    let end = Instant::now() + again;
    let mut seen = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = sleep_until(end) => return seen,
        };
        match event {
            Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                seen = true;
                let monitor = Monitor::of(object.metadata);
                sender.send_if_modified(|known| {
                    let news = known.as_ref() != Some(&monitor);
                    if news {
                        *known = Some(monitor);
                    }
                    news
                });
            }
            Some(Ok(watcher::Event::InitDone | watcher::Event::Delete(_))) => seen = true,
            Some(Ok(watcher::Event::Init)) => {}
            Some(Err(_)) | None => return seen,
        }
    }
}

impl Machine {
    /// The ways into the shoot: the lifeline first, it lives without the seed.
    pub(crate) fn ways(&self) -> Vec<(&'static str, Client)> {
        let lifeline = self.lifeline.as_ref().map(|lifeline| (LIFELINE, &lifeline.client));
        let shoot = self.shoot.as_ref().map(|shoot| &shoot.client);
        let shoot = shoot
            .or(self.old_shoot.as_ref())
            .map(|client| ("shoot kubeconfig", client));
        lifeline
            .into_iter()
            .chain(shoot)
            .map(|(way, client)| (way, client.clone()))
            .collect()
    }

    /// A client for the shoot came, went or changed.
    pub(crate) fn ways_changed(&mut self) {
        self.watch = None;
        self.refresh_reportable();
        // What failed by the old ones need not fail by these.
        self.report_soon();
        self.after(Event::Done(Job::Handover, Timestamp::UNIX_EPOCH));
    }

    /// Sees to it that there is a watch, and takes what it saw.
    pub(crate) fn watch_monitor(&mut self) {
        if self.watch.is_none() {
            let clients: Vec<Client> = self.ways().into_iter().map(|(_, client)| client).collect();
            if !clients.is_empty() {
                self.watch = Some(Watch::start(
                    clients,
                    &self.firewall,
                    self.settings.poll_interval.unsigned_abs(),
                ));
            }
        }
        let Some(watch) = &mut self.watch else { return };
        let news = watch.receiver.has_changed().unwrap_or(false);
        if news {
            let monitor = watch.receiver.borrow_and_update().clone();
            if let Some(monitor) = monitor {
                self.monitor_seen(monitor);
                if self.state.pace(Job::Report).failures > 0 {
                    // The shoot is there again.
                    self.report_soon();
                }
            }
        }
    }

    /// Ends when the watch sees anything new; never without one. Borrows nothing, so that it runs beside a step.
    pub(crate) fn changes(&self) -> impl Future<Output = ()> + use<> {
        let receiver = self.watch.as_ref().map(|watch| watch.receiver.clone());
        async move {
            if let Some(mut receiver) = receiver
                && receiver.changed().await.is_ok()
            {
                return;
            }
            std::future::pending().await
        }
    }

    /// Ends when the watch sees a handover that is to be taken up.
    pub(crate) fn news(&self, wanted: bool) -> impl Future<Output = ()> + use<> {
        let receiver = self
            .watch
            .as_ref()
            .map(|watch| watch.receiver.clone())
            .filter(|_| wanted);
        let (guard, answered) = (self.guard(), self.answered.clone());
        async move {
            let (Some(mut receiver), Some(guard)) = (receiver, guard) else {
                return std::future::pending().await;
            };
            while receiver.changed().await.is_ok() {
                let message = receiver
                    .borrow_and_update()
                    .as_ref()
                    .and_then(|seen| seen.handover.clone());
                let admitted = message.is_some_and(|message| {
                    guard
                        .admitted(&message)
                        .is_ok_and(|handover| answered.as_ref() != Some(&handover.digest))
                });
                if admitted {
                    return;
                }
            }
            std::future::pending().await
        }
    }

    /// The poll.
    pub(crate) async fn look_for_handover(&mut self) {
        let mut problems = Vec::new();
        for (way, client) in self.ways() {
            let monitors: Api<FirewallMonitor> = Api::namespaced(client, MONITOR_NAMESPACE);
            let what = format!("get FirewallMonitor {MONITOR_NAMESPACE}/{}", self.firewall);
            match call(what, monitors.get_metadata(self.firewall.as_str())).await {
                Ok(object) => {
                    self.way_worked(way);
                    self.monitor_seen(Monitor::of(object.metadata));
                    return self.done(Job::Handover, self.settings.poll_interval);
                }
                Err(failure) => {
                    self.way_failed(way, &failure);
                    let missing = failure.is(Class::NotFound);
                    problems.push(format!("by the {way}: {failure}"));
                    if missing {
                        break;
                    }
                }
            }
        }
        self.failed(Job::Handover, Patience::Normal, &problems.join("; "));
    }

    pub(crate) fn monitor_seen(&mut self, monitor: Monitor) {
        if monitor.handover.is_none() {
            self.problems.remove(REFUSED);
        }
        self.monitor = Some(monitor);
        self.consider();
    }

    /// A message that was not judged yet is judged soon.
    pub(crate) fn consider(&mut self) {
        let message = self.monitor.as_ref().and_then(|monitor| monitor.handover.as_ref());
        if message.is_some() && message != self.judged.as_ref() && self.state.found.is_none() {
            self.after(Event::HandoverFound);
        }
    }

    /// Reports again where somebody took our report away, or an older state of the shoot came back.
    pub(crate) fn look_after_report(&mut self, now: Timestamp) {
        let (Some(sent), Some(monitor)) = (&self.sent, &self.monitor) else {
            return;
        };
        let gone = monitor.report.as_ref() != Some(&sent.message);
        if gone && sent.at.duration_until(now) >= REPORT_AGAIN && self.state.pace(Job::Report).failures == 0 {
            self.report_soon();
        }
    }
}
