//! The demo's proofs. Each asks a real API server, with the very files that lie on the machine and the real kubectl.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{A, SHOOTS, Stage, Standing};
use crate::harness::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);
const REPORT: &str = "firewall.metal-stack.io/seed-access-report";
const STATE: &str = "firewall.metal-stack.io/seed-access-state";
const RENEW: &str = "firewall.metal-stack.io/renew-seed-access";

const APPROVERS_OWN: [&str; 2] = ["/firewall-canary-", "/firewall-selftest-"];

/// What must not change when the approver starts anew: resource version of each object that could be minted, by name.
pub(super) type Minted = BTreeMap<String, String>;

impl Stage<'_> {
    pub(super) async fn reads_its_own(&self) -> anyhow::Result<((), String)> {
        let mut said = String::new();
        for Standing { machine, .. } in &self.firewalls {
            let arguments = [
                "get",
                "firewall",
                "-n",
                &machine.namespace,
                &machine.firewall,
                "-o",
                "name",
            ];
            let name = self.as_machine(&machine.seed_kubeconfig(), &arguments).await??;
            said += &format!("{} with {}\n", name.trim(), file_name(&machine.seed_kubeconfig()));
        }
        Ok(((), said))
    }

    pub(super) async fn reads_nothing_else(&self) -> anyhow::Result<((), String)> {
        let [one, other] = [&self.firewalls[0].machine, &self.firewalls[1].machine];
        let mut said = String::new();
        for (machine, other) in [(one, other), (other, one)] {
            let foreign_secret = other.firewall.clone() + ".fw.metal-stack.io";
            for arguments in [
                ["get", "firewall", "-n", &other.namespace, &other.firewall],
                ["get", "secret", "-n", &other.namespace, &foreign_secret],
                ["get", "secret", "-n", &machine.namespace, "firewall-bootstrap"],
                ["get", "secret", "-n", "kube-system", ""],
            ] {
                let arguments: Vec<&str> = arguments.into_iter().filter(|argument| !argument.is_empty()).collect();
                let refusal = self.as_machine(&machine.seed_kubeconfig(), &arguments).await?;
                let refusal = refusal
                    .err()
                    .with_context(|| format!("{} was allowed", arguments.join(" ")))?
                    .to_string();
                ensure!(refusal.contains("(Forbidden)"), "{}: {refusal}", arguments.join(" "));
                said = first_line(&refusal);
            }
        }
        Ok(((), format!("8 attempts were refused; the last: {said}")))
    }

    pub(super) async fn works_in_the_shoot(&self) -> anyhow::Result<((), String)> {
        for Standing { machine, .. } in &self.firewalls {
            let arguments = [
                "get",
                "firewallmonitor",
                "-n",
                "firewall",
                &machine.firewall,
                "-o",
                "name",
            ];
            with_kubeconfig(self.shoot, &machine.shoot_kubeconfig(), &arguments).await??;
        }
        Ok((
            (),
            format!("each reads its FirewallMonitor, of {} and of {}", SHOOTS[0], SHOOTS[1]),
        ))
    }

    pub(super) async fn reported(&self) -> anyhow::Result<((), String)> {
        let mut said = String::new();
        for Standing { machine, .. } in &self.firewalls {
            let what = format!("report and state of {}", machine.firewall);
            let state = eventually(&what, SOON, || async {
                let monitor = object(self.shoot, &["firewallmonitor", "-n", "firewall", &machine.firewall]).await?;
                let report = annotation(&monitor, REPORT)?;
                ensure!(report.split('.').count() == 3, "it is no signed message: {report}");
                let firewall = object(
                    self.seat().seed,
                    &["firewall", "-n", &machine.namespace, &machine.firewall],
                )
                .await?;
                let state: Value = serde_json::from_str(annotation(&firewall, STATE)?)?;
                ensure!(state["state"] == "Ready", "its state is {state}");
                Ok(state)
            });
            let state = state.await.with_context(|| machine.log())?;
            said += &format!(
                "{}: {}, {}\n",
                machine.firewall,
                words(&state["reason"]),
                words(&state["message"])
            );
        }
        Ok(((), said))
    }

    pub(super) async fn credential_is_revoked(&self) -> anyhow::Result<((), String)> {
        for Standing { machine, .. } in &self.firewalls {
            let bootstrap = machine.config().join(".bootstrap.kubeconfig");
            // The API server remembers a token for some ten seconds.
            eventually("the bootstrap credential is refused", SOON, || async {
                let answer = self.as_machine(&bootstrap, &["auth", "whoami"]).await?;
                let refusal = answer.err().context("it is still accepted")?.to_string();
                ensure!(
                    refusal.contains("Unauthorized") || refusal.contains("must be logged in"),
                    "{refusal}"
                );
                Ok(())
            })
            .await?;
        }
        Ok(((), "401 for what the userdata carried".to_owned()))
    }

    pub(super) async fn renews(&self) -> anyhow::Result<((), String)> {
        let machine = &self.firewalls[0].machine;
        let before = Certificate::of(&machine.state())?;
        let annotation = format!("{RENEW}=demo");
        let arguments = [
            "annotate",
            "firewall",
            "-n",
            &machine.namespace,
            &machine.firewall,
            &annotation,
        ];
        self.seat().seed.kubectl_ok(&arguments).await?;
        let after = eventually("a new certificate", SOON, || async {
            let now = Certificate::of(&machine.state())?;
            ensure!(now.serial != before.serial, "still {}", before.serial);
            Ok(now)
        });
        let after = after.await.with_context(|| machine.log())?;
        ensure!(after.key == before.key, "the key is another one");
        let arguments = [
            "get",
            "firewall",
            "-n",
            &machine.namespace,
            &machine.firewall,
            "-o",
            "name",
        ];
        self.as_machine(&machine.seed_kubeconfig(), &arguments).await??;
        Ok(((), format!("{} → {}", before.serial, after.serial)))
    }

    pub(super) async fn restart_approver(&mut self) -> anyhow::Result<(Minted, String)> {
        // The renewal's own report settles first: it changes the record, and rightly so.
        let machine = &self.firewalls[0].machine;
        let serial = Certificate::of(&machine.state())?.serial;
        eventually("the record of the new certificate", SOON, || async {
            let firewall = object(
                self.seat().seed,
                &["firewall", "-n", &machine.namespace, &machine.firewall],
            )
            .await?;
            let state = annotation(&firewall, STATE)?;
            ensure!(state.contains(&serial), "{state} does not name {serial}");
            Ok(())
        })
        .await?;
        let minted = self.minted().await?;
        let starts = self.starts();
        let seat = &mut self.seats[A];
        let old = seat.approver.take().context("the approver does not run")?;
        let id = old.id();
        old.kill();
        let new = seat.home.start(&[])?;
        let said = format!(
            "process {id} is gone, {} is there; {} objects are compared",
            new.id(),
            minted.len()
        );
        seat.approver = Some(new);
        eventually("the approver serves again", SOON, || async {
            ensure!(self.starts() > starts, "{}", self.seat().home.log());
            Ok(())
        })
        .await?;
        Ok((minted, said))
    }

    pub(super) async fn is_unchanged(&mut self, before: &Minted) -> anyhow::Result<((), String)> {
        // A new approver looks at every firewall at its start; anything it would mint, it mints then.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let runs = self.seats[A]
            .approver
            .as_mut()
            .is_some_and(crate::programs::Program::runs);
        ensure!(runs, "the approver ended:\n{}", self.seat().home.log());
        let after = self.minted().await?;
        let changed: Vec<&String> = after
            .iter()
            .filter(|(name, version)| before.get(*name) != Some(version))
            .map(|(name, _)| name)
            .collect();
        ensure!(changed.is_empty(), "new or changed: {changed:?}");
        Ok((
            (),
            format!("{} Secrets, ServiceAccounts, Roles and requests", after.len()),
        ))
    }

    async fn minted(&self) -> anyhow::Result<Minted> {
        let mut minted = Minted::new();
        let seed = self.seat().seed;
        for Standing { machine, .. } in &self.firewalls {
            versions(
                seed,
                &["secrets,roles,rolebindings", "-n", &machine.namespace],
                &mut minted,
            )
            .await?;
        }
        versions(
            self.shoot,
            &["serviceaccounts,roles,rolebindings", "-n", "firewall"],
            &mut minted,
        )
        .await?;
        versions(seed, &["csr"], &mut minted).await?;
        // For a user without any rights: canaries, every two minutes and at its start, and the self-test's at its start.
        minted.retain(|name, _| !APPROVERS_OWN.iter().any(|own| name.contains(own)));
        versions(
            seed,
            &["secrets,serviceaccounts", "-n", "firewall-bootstrap"],
            &mut minted,
        )
        .await?;
        versions(
            seed,
            &["secrets", "-n", "kube-system", "-l", "firewall.metal-stack.io/firewall"],
            &mut minted,
        )
        .await?;
        Ok(minted)
    }

    /// How often an approver began to serve.
    fn starts(&self) -> usize {
        self.seat().home.log().matches("serving this seed").count()
    }

    /// What stands at the end, as kubectl and ls show it.
    pub(super) async fn shown(&self) -> String {
        let machine = &self.firewalls[0].machine;
        let mut text = String::new();
        for arguments in [
            vec!["get", "firewall", "-A"],
            vec!["get", "csr"],
            vec!["get", "secret,role,rolebinding", "-n", &machine.namespace],
        ] {
            text += &format!("\n$ kubectl {}\n", arguments.join(" "));
            text += &self
                .seat()
                .seed
                .kubectl_ok(&arguments)
                .await
                .unwrap_or_else(|error| format!("{error:#}\n"));
        }
        for dir in [machine.config(), machine.state()] {
            let listing = std::process::Command::new("ls")
                .args(["-lA", "--time-style=+%T"])
                .arg(&dir)
                .output();
            let listing = listing.map_or_else(
                |error| error.to_string(),
                |output| String::from_utf8_lossy(&output.stdout).into_owned(),
            );
            text += &format!(
                "\n$ ls -lA {}\n{listing}",
                dir.strip_prefix(machine.path()).unwrap_or(&dir).display()
            );
        }
        text
    }

    pub(super) fn how_to_look_around(&self) -> String {
        let kubectl =
            |cluster: &Cluster| format!("export KUBECONFIG={}", cluster.dir().join("admin.kubeconfig").display());
        let mut text = format!(
            "\nEverything keeps running until Ctrl-C. In another shell:\n  alias kubectl='{}'   # where there is none\n",
            self.shoot.kubectl_command_line()
        );
        for seat in &self.seats {
            text += &format!("  {}   # {}\n", kubectl(seat.seed), seat.seed.name());
            let log = seat.home.log_path();
            text += &format!("  tail -f {}   # its approver's log\n", log.display());
        }
        text += &format!("  {}   # the shoots\n", kubectl(self.shoot));
        for Standing { machine, .. } in &self.firewalls {
            text += &format!("  {}   # the machine {}\n", machine.path().display(), machine.firewall);
        }
        text
    }

    /// kubectl against the seed with a file of a machine's.
    async fn as_machine(&self, kubeconfig: &Path, arguments: &[&str]) -> anyhow::Result<anyhow::Result<String>> {
        with_kubeconfig(self.seat().seed, kubeconfig, arguments).await
    }
}

/// What kubectl printed, or what it was refused with; the outer error is that it did not run.
async fn with_kubeconfig(
    cluster: &Cluster,
    kubeconfig: &Path,
    arguments: &[&str],
) -> anyhow::Result<anyhow::Result<String>> {
    let kubeconfig = kubeconfig.to_str().context("a path that is not UTF-8")?;
    // Of two the last one counts; the first is the admin's.
    let mut all = vec!["--kubeconfig", kubeconfig];
    all.extend(arguments);
    let output = cluster.kubectl(&all).await?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8(output.stdout)?));
    }
    Ok(Err(anyhow::anyhow!(
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

async fn object(cluster: &Cluster, arguments: &[&str]) -> anyhow::Result<Value> {
    let mut all = vec!["get", "-o", "json"];
    all.extend(arguments);
    Ok(serde_json::from_str(&cluster.kubectl_ok(&all).await?)?)
}

async fn versions(cluster: &Cluster, arguments: &[&str], minted: &mut Minted) -> anyhow::Result<()> {
    let list = object(cluster, arguments).await?;
    for item in list["items"].as_array().context("no list")? {
        let meta = &item["metadata"];
        let name = format!(
            "{} {} {}/{}",
            cluster.name(),
            words(&item["kind"]),
            words(&meta["namespace"]),
            words(&meta["name"])
        );
        minted.insert(name, format!("{} {}", meta["uid"], meta["resourceVersion"]));
    }
    Ok(())
}

fn annotation<'a>(object: &'a Value, name: &str) -> anyhow::Result<&'a str> {
    object["metadata"]["annotations"][name]
        .as_str()
        .with_context(|| format!("there is no annotation {name} yet"))
}

/// A machine's certificate, as it lies there.
pub(super) struct Certificate {
    pub(super) serial: String,
    key: Vec<u8>,
}

impl Certificate {
    pub(super) fn of(state: &Path) -> anyhow::Result<Self> {
        let pem = std::fs::read(state.join("current.pem"))?;
        let (_, block) = x509_parser::pem::parse_x509_pem(&pem)?;
        let certificate = block.parse_x509()?;
        Ok(Self {
            serial: certificate
                .raw_serial()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            key: certificate.public_key().raw.to_vec(),
        })
    }
}

fn words(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
