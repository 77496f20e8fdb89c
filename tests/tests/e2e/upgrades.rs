//! C4: agent and approver are replaced by another version, up and down, whatever is under way. Where `UPGRADE_FROM` names
//! a folder with the binaries of an older version, it is that one; else this build plays both.
//!
//! - `dump`: what later versions are tested against
//! - `newer`: what a newer version would have left behind, found by this one

mod dump;
mod newer;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use contract::kubeconfig::Kubeconfig;
use contract::names;
use contract::report::Report;
use jiff::Timestamp;
use kube::ResourceExt;
use tests::harness::{Cluster, ClusterOptions, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, Machine, Program, Release};
use tests::upstream::{install_crds, monitors};
use tests::watcher::Watcher;
use tests::world::{Place, install_seed, install_shoot, own_seed, shoot_cluster};

use crate::canaries::Consumer;
use crate::moves::{EVENTUALLY, came_in, settled};
use crate::support::{certificate_of, renewed};

/// A firewall and its approver, both of which come in two versions.
struct Site<'a> {
    place: Place<'a>,
    machine: Machine,
    agent: Option<Program>,
    approver: Option<Program>,
    before: Release,
    built: Release,
    replaced: u32,
}

impl<'a> Site<'a> {
    /// It came in with the version before.
    async fn new(seed: &'a Cluster, namespace: &str) -> Self {
        let place = Place::empty(seed, shoot_cluster().await.unwrap(), namespace)
            .await
            .unwrap();
        place.settle().await.unwrap();
        let (before, built) = (Release::before().unwrap(), Release::built().unwrap());
        place.home.put(&before).unwrap();
        let approver = place.approver().unwrap();
        let machine = place.machine("00001").await.unwrap();
        machine.put(&before).unwrap();
        let agent = machine.start().unwrap();
        settled(&place, &machine).await;
        Self {
            place,
            machine,
            agent: Some(agent),
            approver: Some(approver),
            before,
            built,
            replaced: 0,
        }
    }

    /// To this build, back to the version before, and to this build again.
    async fn up_and_down(&mut self) {
        for release in [self.built.clone(), self.before.clone(), self.built.clone()] {
            let what = format!("replaced {} times; now {release:?}", self.replaced);
            self.replace(&release).await.context(what).unwrap();
            self.replaced += 1;
        }
    }

    async fn replace(&mut self, release: &Release) -> anyhow::Result<()> {
        let began = Timestamp::now();
        self.machine.put(release)?;
        stop(self.agent.take()).await.context("the agent")?;
        let agent = self.machine.start()?;
        stop(self.approver.take()).await.context("the approver")?;
        // Whom it trusts is read at its start only.
        self.place.home = ApproverHome::new(self.place.seed).await?;
        self.place.home.put(release)?;
        let approver = self.place.approver()?;
        runs(&agent, self.machine.program()?, &release.agent()).await?;
        runs(&approver, self.place.home.program()?, &release.approver()).await?;
        (self.agent, self.approver) = (Some(agent), Some(approver));
        eventually("both programs at work", EVENTUALLY, || async {
            ensure!(
                self.place.home.log().contains("serving this seed"),
                "the approver is not"
            );
            let monitor = monitors(self.place.shoot.cluster)
                .await?
                .get(&self.machine.firewall)
                .await?;
            let report = monitor.annotations().get(names::SEED_ACCESS_REPORT);
            let report = report.and_then(|text| Report::unverified(text)).context("no report")?;
            ensure!(report.time > began, "the last report is of {}", report.time);
            Ok(())
        })
        .await
        .with_context(|| self.logs())
    }

    /// The machine trusts so many CAs of the seed's server: those that are published.
    async fn trusts(&self, count: usize) {
        eventually(&format!("{count} CAs on the machine"), EVENTUALLY, || async {
            let text = fs::read_to_string(self.machine.seed_kubeconfig())?;
            let found = Kubeconfig::read_local("it", &text)?.ca;
            ensure!(
                found.certificates().len() == count,
                "{} CAs",
                found.certificates().len()
            );
            ensure!(
                found.pem().trim() == self.place.seed.server_ca_pem().trim(),
                "they are others"
            );
            Ok(())
        })
        .await
        .with_context(|| self.logs())
        .unwrap();
    }

    fn logs(&self) -> String {
        let [agent, approver] = [self.machine.log(), self.place.home.log()].map(|log| tail(&log));
        format!("--- agent\n{agent}\n--- approver\n{approver}")
    }
}

/// SIGTERM is an orderly end.
async fn stop(program: Option<Program>) -> anyhow::Result<()> {
    let code = program.context("it does not run")?.stop().await?;
    ensure!(code == Some(0), "it ended with {code:?}");
    Ok(())
}

/// The file that lies there, not one that was replaced since, and of that version as far as its size tells.
async fn runs(program: &Program, file: PathBuf, version: &Path) -> anyhow::Result<()> {
    let exe = format!("/proc/{}/exe", program.id());
    eventually("the version that was put there", EVENTUALLY, || async {
        let found = fs::read_link(&exe)?;
        ensure!(found == file, "{} runs, not {}", found.display(), file.display());
        let (size, wanted) = (fs::metadata(&exe)?.len(), fs::metadata(version)?.len());
        ensure!(
            size == wanted,
            "it has {size} bytes, and {} {wanted}",
            version.display()
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_b2_both_programs_are_replaced_up_and_down_at_each_step_of_a_roll_and_nobody_notices() {
    let seed = own_seed("seed-upgraded").await.unwrap();
    let mut site = Site::new(&seed, "shoot--upgrade--roll").await;
    let key = site.machine.key().unwrap();
    let monitor = site.place.monitor_uid(&site.machine.firewall).await.unwrap();
    let first = certificate_of(&site.machine).unwrap();
    let watcher = Watcher::of(None, &site.machine.config());
    let consumer = Consumer::start(&site.machine);

    let roll = seed.roll_client_ca().unwrap();
    roll.add().await.unwrap();
    site.up_and_down().await;
    roll.switch_signer().await.unwrap();
    // Nobody asks for it, and it falls into the midst of this.
    site.up_and_down().await;
    let second = renewed(&site.machine, &first, EVENTUALLY)
        .await
        .with_context(|| site.logs())
        .unwrap();
    site.up_and_down().await;
    roll.drop_old().await.unwrap();
    site.up_and_down().await;

    let roll = seed.roll_server_ca().unwrap();
    roll.add().await.unwrap();
    site.up_and_down().await;
    site.trusts(2).await;
    roll.switch_signer().await.unwrap();
    site.up_and_down().await;
    roll.drop_old().await.unwrap();
    site.up_and_down().await;
    site.trusts(1).await;

    // A renewal that is asked for, in the midst of which both are replaced.
    let firewall = site.machine.firewall.clone();
    let annotation = "firewall.metal-stack.io/renew-seed-access=upgraded";
    site.place.annotate(&firewall, annotation).await.unwrap();
    site.up_and_down().await;
    renewed(&site.machine, &second, EVENTUALLY)
        .await
        .with_context(|| site.logs())
        .unwrap();

    consumer.unharmed().await;
    let looks = watcher.end().unwrap();
    println!("replaced {} times, {looks} looks at the files", site.replaced);
    assert!(looks > 5_000, "{looks} looks only");
    let state = site.place.await_reason(&firewall, "Bootstrapped").await.unwrap();
    assert_eq!(state["state"], "Ready", "{state}");
    assert_eq!(site.machine.key().unwrap(), key);
    assert_eq!(site.place.count(&firewall).await.unwrap(), 1);
    assert_eq!(site.place.monitor_uid(&firewall).await.unwrap(), monitor);
    site.place.holds_no_credential().await.unwrap();
    // Nobody had to come in anew.
    let record = site.place.record(&firewall).await.unwrap();
    assert!(record["handover"].is_null() && record["generation"] == 0, "{record}");
}

/// As an operator does it: the new manifests over those that stand there, and then the new program.
#[tokio::test(flavor = "multi_thread")]
async fn c4_the_manifests_of_each_version_are_brought_to_those_of_now() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat");
    let folders = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path());
    let versions: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    assert!(!versions.is_empty(), "{} holds no version", root.display());
    for (number, version) in versions.iter().enumerate() {
        let start = |name: &str| Cluster::start(ClusterOptions::new(name));
        let (seed, shoot) = tokio::try_join!(start("seed-manifests"), start("shoot-manifests")).unwrap();
        install_crds(&seed, &shoot).await.unwrap();
        seed.kubectl_apply(&version.join("manifests/seed.yaml")).await.unwrap();
        shoot
            .kubectl_apply(&version.join("manifests/shoot.yaml"))
            .await
            .unwrap();
        let namespace = format!("shoot--upgrade--{number}");
        let place = Place::empty(&seed, &shoot, &namespace).await.unwrap();
        place.settle().await.unwrap();
        let apply_old = async || {
            seed.kubectl_apply(&version.join("manifests/seed.yaml")).await.unwrap();
            let shoots = version.join("manifests/shoot.yaml");
            shoot.kubectl_apply(&shoots).await.unwrap();
        };
        // What is needed is there before the program that needs it, and goes after it. Without a build of the old version
        // only the manifests are of it.
        let old = Release::given().unwrap();
        let began = match &old {
            None => None,
            Some(old) => {
                place.home.put(old).unwrap();
                let approver = place.approver().unwrap();
                Some((approver, came_in(&place, "00001").await))
            }
        };
        // No conflict: whoever applied the one applies the other.
        install_seed(&seed).await.unwrap();
        install_shoot(&shoot).await.unwrap();
        let (machine, _agent) = if let Some((approver, (machine, agent))) = began {
            renews(&place, &machine, "manifests", true).await;
            approver.stop().await.unwrap();
            (machine, agent)
        } else {
            let approver = place.approver().unwrap();
            let came = came_in(&place, "00001").await;
            approver.stop().await.unwrap();
            came
        };
        place.home.put(&Release::built().unwrap()).unwrap();
        let approver = place.approver().unwrap();
        renews(&place, &machine, "program", true).await;
        came_in(&place, "00002").await;

        // And back again.
        approver.stop().await.unwrap();
        let Some(old) = &old else {
            apply_old().await;
            continue;
        };
        place.home.put(old).unwrap();
        let _approver = place.approver().unwrap();
        renews(&place, &machine, "program", false).await;
        apply_old().await;
        renews(&place, &machine, "manifests", false).await;
        came_in(&place, "00003").await;
    }
}

async fn renews(place: &Place<'_>, machine: &Machine, replaced: &str, up: bool) {
    let certificate = certificate_of(machine).unwrap();
    let annotation = format!("{}={replaced}-{up}", names::RENEW);
    place.annotate(&machine.firewall, &annotation).await.unwrap();
    renewed(machine, &certificate, EVENTUALLY)
        .await
        .with_context(|| tail(&place.home.log()))
        .unwrap();
}
