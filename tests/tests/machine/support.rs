//! A firewall in a machine of its own: the package, the program that uses its access, and what both leave on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use contract::cert::read_certificate;
use contract::kubeconfig::Kubeconfig;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use tests::consumer::{self, Sums};
use tests::guest::Guest;
use tests::harness::{PATIENCE, eventually};
use tests::programs::bootstrap_kubeconfig;
use tests::secrets;
use tests::world::Place;
use tokio::time::Instant;

/// As firewalls have it: firewall-controller.service of `tests/machine/root` names it, and nothing else does.
pub(crate) const VRF: &str = "vrf3981";
const SEED_KUBECONFIG: &str = "/etc/firewall-controller/.seed.kubeconfig";

pub(crate) struct Firewall {
    pub(crate) guest: Guest,
    pub(crate) name: String,
    began: Instant,
}

/// What must not become another one, whatever happens to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) key: String,
    pub(crate) requests: usize,
}

impl Firewall {
    /// Switched on, with nothing of ours on its disk.
    pub(crate) async fn boot() -> anyhow::Result<Self> {
        let began = Instant::now();
        let deb =
            std::env::var_os("FIREWALL_AGENT_DEB").context("FIREWALL_AGENT_DEB is not set: use `make test-machine`")?;
        let consumer = consumer::binary().await?;
        let files = [("agent.deb", Path::new(&deb)), ("firewall-controller", &consumer)];
        let mut guest = Guest::new(&files).await?;
        let took = guest.power_on(None).await?;
        let firewall = Self {
            guest,
            name: String::new(),
            began,
        };
        firewall.tell(&format!(
            "a machine has booted ({}), in {took:.1?}",
            firewall.guest.accelerator()
        ));
        Ok(firewall)
    }

    /// Who reads the log wants to know how far it is.
    pub(crate) fn tell(&self, what: &str) {
        println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
    }

    /// What userdata and an image bring: the bootstrap kubeconfig, firewall-controller, the package.
    pub(crate) async fn install(&mut self, place: &Place<'_>) -> anyhow::Result<()> {
        self.name = place.shoot.create_firewall("00001").await?;
        let kubeconfig = bootstrap_kubeconfig(place.seed, place.namespace(), &self.name).await?;
        let path = "/etc/firewall-controller/.bootstrap.kubeconfig";
        self.guest.put(path, kubeconfig.as_bytes()).await?;
        let args = format!("ARGS=-firewall {}\n", self.name);
        self.guest.put("/etc/firewall-controller.args", args.as_bytes()).await?;
        self.guest
            .run(
                "tar -C /root -xf /dev/vdb && install -m 755 /root/firewall-controller /usr/local/bin/ \
                 && dpkg -i /root/agent.deb && sync",
            )
            .await?;
        self.tell("the package is installed");
        Ok(())
    }

    pub(crate) async fn status(&self) -> anyhow::Result<Value> {
        let text = self.guest.run("firewall-agent status --output json").await?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(crate) async fn serial(&self) -> anyhow::Result<String> {
        let status = self.status().await?;
        Ok(status["certificate"]["serial"]
            .as_str()
            .context("no certificate")?
            .to_owned())
    }

    /// Waits until the agent wants nothing more, and what it wrote opens this seed to a program that starts now.
    pub(crate) async fn is_in(&self, place: &Place<'_>) -> anyhow::Result<()> {
        let what = format!("{} is in {}", self.name, place.seed.name());
        eventually(&what, 2 * PATIENCE, || async {
            let text = self.guest.run(&format!("cat {SEED_KUBECONFIG}")).await?;
            ensure!(text.contains(place.home.server()), "its kubeconfig is for another seed");
            let status = self.status().await?;
            ensure!(
                status["waits"] == "nothing: all is well",
                "it waits for {}",
                status["waits"]
            );
            ensure!(status["shoot"]["lifeline"] == true, "no lifeline");
            let sums = self.request().await?;
            ensure!(sums.requests > 3 && sums.failed + sums.other == 0, "{sums:?}");
            Ok(())
        })
        .await
        .with_context(|| format!("--- approver\n{}", tests::moves::tail(&place.home.log())))
        .context(self.journal_tail().await)
    }

    /// Three seconds of a real client-go program, within the VRF.
    async fn request(&self) -> anyhow::Result<Sums> {
        let command = format!(
            "timeout -s TERM 3 ip vrf exec {VRF} /usr/local/bin/firewall-controller -interval 200ms \
             -kubeconfig {SEED_KUBECONFIG} -firewall {}; :",
            self.name
        );
        last_sums(&self.guest.run(&command).await?)
    }

    /// Stops the service that has made requests all the time, and starts it again: what became of them.
    pub(crate) async fn requests_of_controller(&self) -> anyhow::Result<Sums> {
        let log = "systemctl stop firewall-controller && journalctl -u firewall-controller -o cat --no-pager";
        let sums = last_sums(&self.guest.run(log).await?);
        self.guest.run("systemctl start firewall-controller").await?;
        sums
    }

    /// Another one after each start.
    pub(crate) async fn controller(&self) -> anyhow::Result<String> {
        self.guest
            .run("systemctl show -P InvocationID firewall-controller")
            .await
    }

    /// Its key, and how many requests were ever made for it here.
    pub(crate) async fn identity(&self, place: &Place<'_>) -> anyhow::Result<Identity> {
        Ok(Identity {
            key: self.key().await?,
            requests: requests_for(place, &self.name).await?.len(),
        })
    }

    /// Public, and of the file itself, not of what the agent says.
    pub(crate) async fn key(&self) -> anyhow::Result<String> {
        self.guest.run("sha256sum </var/lib/firewall-agent/key.pem").await
    }

    /// Every file that the last power cut left, read as its readers do. Which of them tell of work under way.
    pub(crate) async fn files_are_whole(&self) -> anyhow::Result<Vec<String>> {
        let found = self.guest.fetch("/run/found").await?;
        let mut names = Vec::new();
        for path in files_below(found.path())? {
            let name = path.strip_prefix(found.path())?.display().to_string();
            let text = fs::read_to_string(&path)?;
            whole(&name, &text).with_context(|| format!("{name} was left as {text:?}"))?;
            names.push(name);
        }
        ensure!(names.iter().any(|name| name == "state/key.pem"), "no key: {names:?}");
        Ok(names)
    }

    /// Nothing that is secret on its disk is in what it wrote to journal and console.
    pub(crate) async fn has_told_no_secret(&self) -> anyhow::Result<()> {
        let mut known = Vec::new();
        for folder in ["/var/lib/firewall-agent", "/etc/firewall-controller"] {
            known.extend(secrets::below(self.guest.fetch(folder).await?.path()));
        }
        ensure!(known.len() > 3, "the secrets that are looked for were not found");
        let journal = self.guest.run("journalctl --no-pager -o verbose --all").await?;
        ensure!(journal.contains("firewall-agent"), "this is no journal");
        let own = self.guest.run("journalctl --no-pager -o cat -u firewall-agent").await?;
        for (what, text) in [("the journal", &journal), ("the console", &self.guest.console())] {
            if let Some(found) = secrets::shown(text, &known) {
                bail!("a secret is in {what}: {found}");
            }
        }
        if let Some(found) = secrets::suspicious(&own) {
            bail!("a secret is in the agent's journal: {found}");
        }
        self.tell(&format!(
            "{} lines of journal, {} of them the agent's, hold none of its {} secrets",
            journal
                .lines()
                .filter(|line| line.trim_start().starts_with("MESSAGE="))
                .count(),
            own.lines().count(),
            known.len()
        ));
        Ok(())
    }

    pub(crate) async fn journal_tail(&self) -> String {
        let journal =
            "journalctl --no-pager -n 40 -u firewall-agent; journalctl --no-pager -n 3 -u firewall-controller";
        self.guest
            .run(journal)
            .await
            .unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Of all that were made for this firewall in this seed.
pub(crate) async fn requests_for(place: &Place<'_>, firewall: &str) -> anyhow::Result<Vec<CertificateSigningRequest>> {
    let all: Api<CertificateSigningRequest> = Api::all(place.admin().await?);
    let mut found = all.list(&ListParams::default()).await?.items;
    found.retain(|csr| contract::csr::read(&csr.spec.request.0).is_ok_and(|read| read.firewall.as_str() == firewall));
    found.sort_by_key(ResourceExt::name_any);
    Ok(found)
}

/// Waits for what the agent says in `status` of what stands in its way.
pub(crate) async fn problem(firewall: &Firewall, named: &str, limit: Duration) -> anyhow::Result<String> {
    eventually(&format!("problem {named}"), limit, || async {
        let status = firewall.status().await?;
        let problem = status["problems"][named].as_str();
        Ok(problem
            .with_context(|| format!("it says {}", status["problems"]))?
            .to_owned())
    })
    .await
    .context(firewall.journal_tail().await)
}

fn last_sums(said: &str) -> anyhow::Result<Sums> {
    let line = said.lines().rfind(|line| line.starts_with(r#"{"requests""#));
    let line = line.with_context(|| format!("no sums of requests: {said}"))?;
    Ok(serde_json::from_str(line)?)
}

fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            found.extend(files_below(&entry.path())?);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// What may be half done is named so, and swept away by the next start.
fn whole(path: &str, text: &str) -> anyhow::Result<()> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.starts_with(".firewall-agent-") || ["lock", "renew", "writable"].contains(&name) {
        return Ok(());
    }
    if name.ends_with("kubeconfig") {
        Kubeconfig::read_local(name, text)?;
    } else if name.ends_with(".json") {
        serde_json::from_str::<Value>(text)?;
    } else if name == "key.pem" {
        contract::key::PrivateKey::from_pem(text)?;
    } else if name.ends_with(".pem") {
        read_certificate(text)?;
    } else {
        bail!("nobody knows this file");
    }
    Ok(())
}
