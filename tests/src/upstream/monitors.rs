//! The two programs that write a FirewallMonitor today, firewall-controller on the machine and
//! firewall-controller-manager in the seed. Both read it into a type that knows their fields only and put all of it back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::Cluster;

/// More often than they really do.
const EVERY: Duration = Duration::from_secs(1);
/// After somebody else was faster.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upstream {
    FirewallController,
    ControllerManager,
}

/// A writer at work, until it is stopped or dropped.
pub struct Writer {
    task: JoinHandle<anyhow::Result<String>>,
    stop: Option<oneshot::Sender<()>>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    writes: AtomicU64,
    conflicts: AtomicU64,
}

/// What a writer did.
#[derive(Clone, Debug)]
pub struct Written {
    pub writes: u64,
    pub conflicts: u64,
    /// The value of its own field that it wrote last.
    pub last: String,
}

/// Today's fields. What else stands in a FirewallMonitor is lost on the way through this type.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Monitor {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    controller_status: Option<ControllerStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<Condition>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ControllerStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_run_against_seed: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

const CONDITION: &str = "Distance";

/// The FirewallMonitors of a shoot.
pub async fn monitors(shoot: &Cluster) -> anyhow::Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::gvk("firewall.metal-stack.io", "v2", "FirewallMonitor");
    Ok(Api::namespaced_with(
        shoot.client().await?,
        "firewall",
        &ApiResource::from_gvk(&kind),
    ))
}

impl Writer {
    pub async fn start(shoot: &Cluster, firewall: &str, who: Upstream) -> anyhow::Result<Self> {
        let api = monitors(shoot).await?;
        let counts = Arc::new(Counts::default());
        let (stop, stopped) = oneshot::channel();
        let work = write_until(stopped, api, firewall.to_owned(), who, Arc::clone(&counts));
        Ok(Self {
            task: tokio::spawn(work),
            stop: Some(stop),
            counts,
        })
    }

    /// Lets a write that is under way come to its end.
    pub async fn stop(mut self) -> anyhow::Result<Written> {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let last = (&mut self.task).await.context("a writer panicked")??;
        Ok(Written {
            writes: self.counts.writes.load(Ordering::Relaxed),
            conflicts: self.counts.conflicts.load(Ordering::Relaxed),
            last,
        })
    }

    /// Whether this still stands in the FirewallMonitor.
    pub fn stands(who: Upstream, written: &Written, monitor: &DynamicObject) -> anyhow::Result<()> {
        let found = match who {
            Upstream::FirewallController => &monitor.data["controllerStatus"]["lastRun"],
            Upstream::ControllerManager => &monitor.data["conditions"][0]["message"],
        };
        ensure!(
            *found == written.last,
            "{who:?} wrote {} last, and {found} stands there",
            written.last
        );
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn write_until(
    mut stopped: oneshot::Receiver<()>,
    api: Api<DynamicObject>,
    firewall: String,
    who: Upstream,
    counts: Arc<Counts>,
) -> anyhow::Result<String> {
    loop {
        let Some(wrote) = write_once(&api, &firewall, who).await? else {
            counts.conflicts.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        counts.writes.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            _ = &mut stopped => return Ok(wrote),
        }
    }
}

/// The value that it wrote; none if somebody else was faster.
async fn write_once(api: &Api<DynamicObject>, firewall: &str, who: Upstream) -> anyhow::Result<Option<String>> {
    let read = api.get(firewall).await?;
    let mut monitor: Monitor = serde_json::from_value(serde_json::to_value(&read)?)?;
    // The time in between is real: they talk to others before they write.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let manager = match who {
        Upstream::FirewallController => {
            monitor.controller_status = Some(ControllerStatus {
                last_run: Some(now.clone()),
                last_run_against_seed: Some(now.clone()),
            });
            "firewall-controller"
        }
        Upstream::ControllerManager => {
            monitor.conditions = vec![Condition {
                type_: CONDITION.to_owned(),
                status: "True".to_owned(),
                message: Some(now.clone()),
            }];
            "firewall-controller-manager"
        }
    };
    let whole: DynamicObject = serde_json::from_value(serde_json::to_value(&monitor)?)?;
    let params = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    match api.replace(firewall, &params, &whole).await {
        Ok(_) => Ok(Some(now)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error.into()),
    }
}
