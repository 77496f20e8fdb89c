//! The agent against a real control plane, with the approver's part done by hand: what the agent needs of its
//! surroundings, and nothing more, stands in `by_hand`.

mod by_hand;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use by_hand::Site;
use contract::key::PrivateKey;
use contract::names::RENEW;
use contract::report::Report;
use tests::harness::{client_from, eventually};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a2_to_a7_a_bootstrap_kubeconfig_becomes_a_seed_client_a_shoot_client_and_a_report() -> anyhow::Result<()> {
    let site = Site::new("whole-way").await?;
    let _approver = site.approve_everything().await?;
    let start = Instant::now();
    let agent = site.start_agent(&["touch", &site.file("told")])?;

    // A4: the file is one that any client reads, and it opens our Firewall and nothing else.
    let seed = eventually("the seed kubeconfig", SOON, async || {
        site.read_config(".seed.kubeconfig")
    })
    .await?;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(site.read_config(".seed-kubeconfig")?, seed);
    let client = client_from(&seed).await?;
    assert!(site.firewall_as(&client).await.is_ok());
    assert!(site.secrets_as(&client).await.is_err(), "it lists Secrets");

    // A5, A6.
    let shoot = eventually("the shoot kubeconfig", SOON, async || {
        site.read_config(".shoot.kubeconfig")
    })
    .await?;
    let shoot = client_from(&shoot).await?;
    let report = eventually("the report", SOON, async || site.report_as(&shoot).await).await?;
    let key = PrivateKey::from_pem(&site.read_state("key.pem")?)?;
    let report = Report::open(&report, &key.public())?;
    let serial = site.current_serial()?;
    assert!(report.proves_use(&site.firewall, site.seed_id(), &serial), "{report:?}");
    assert_eq!(report.clock_skew_seconds.map(|skew| skew.abs() <= 2), Some(true));
    eventually("the hook", SOON, async || ensure_exists(&site.file("told"))).await?;

    // A7: a renewal by its own certificate, once for one value, with the same key and nobody restarted.
    std::fs::remove_file(site.file("told"))?;
    site.annotate(RENEW, "one").await?;
    let renewed = eventually("the renewal", SOON, async || {
        let now = site.current_serial()?;
        ensure!(now != serial, "still the old certificate");
        Ok(now)
    })
    .await?;
    eventually("the report of the renewal", SOON, async || {
        let report = Report::open(&site.report_as(&shoot).await?, &key.public())?;
        ensure!(
            report.proves_use(&site.firewall, site.seed_id(), &renewed),
            "still of the old certificate"
        );
        Ok(())
    })
    .await?;
    assert!(
        !std::path::Path::new(&site.file("told")).exists(),
        "a renewal changes nothing that a consumer must be told"
    );
    assert_eq!(
        site.read_config(".seed.kubeconfig")?,
        seed,
        "a renewal changes the pair only"
    );
    agent.stop().await?;

    // The value was taken up: a restart does not take it up again.
    let agent = site.start_agent(&[])?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(site.current_serial()?, renewed);
    assert_eq!(site.requests().await?.len(), 2);
    // On the machine itself one asks by the command.
    site.command(&["renew"]).await?;
    eventually("the renewal", SOON, async || {
        ensure!(site.current_serial()? != renewed, "still the old certificate");
        Ok(())
    })
    .await?;
    eventually("the status", SOON, async || {
        let status = site.command(&["status"]).await?;
        ensure!(
            status.contains(site.firewall.as_str()) && status.contains(&site.current_serial()?),
            "{status}"
        );
        Ok(())
    })
    .await?;
    agent.stop().await
}

#[tokio::test]
async fn d1_killed_after_each_of_its_writes_it_goes_on_with_the_same_key_and_the_same_request() -> anyhow::Result<()> {
    let site = Site::new("killed").await?;
    let _approver = site.approve_everything().await?;
    let (mut key, mut request) = (None, None);
    let mut kills = 0;
    loop {
        let seen = site.fingerprint();
        let mut agent = site.start_process().await?;
        let died = agent.kill_at_change(&site, &seen).await?;
        kills += usize::from(died);
        // What was made once is made for good.
        for (name, known) in [("key.pem", &mut key), ("request.json", &mut request)] {
            if let Ok(now) = site.read_state(name) {
                assert_eq!(
                    known.get_or_insert_with(|| now.clone()),
                    &now,
                    "{name} after {kills} kills"
                );
            }
        }
        if site.read_config(".shoot.kubeconfig").is_ok() && site.read_state("request.json").is_err() {
            break;
        }
        ensure!(kills < 60, "it never comes to an end");
    }
    assert!(kills >= 6, "only {kills} kills");
    let agent = site.start_agent(&[])?;
    let shoot = client_from(&site.read_config(".shoot.kubeconfig")?).await?;
    eventually("the report", SOON, async || site.report_as(&shoot).await).await?;
    assert_eq!(Some(site.read_state("key.pem")?), key);
    assert_eq!(site.requests().await?.len(), 1);
    agent.stop().await?;

    // What a careless hand or a bad disk took away comes back from the last good pair.
    let serial = site.current_serial()?;
    std::fs::remove_file(site.file("state/key.pem"))?;
    std::fs::remove_file(site.file("state/current.pem"))?;
    let agent = site.start_agent(&[])?;
    eventually("the pair", SOON, async || site.current_serial()).await?;
    assert_eq!(
        (site.current_serial()?, Some(site.read_state("key.pem")?)),
        (serial, key)
    );
    agent.stop().await
}

#[tokio::test]
async fn a_request_that_is_denied_or_planted_beforehand_does_not_stop_it() -> anyhow::Result<()> {
    let site = Site::new("spoilt").await?;
    // It makes its request while the seed lets it send nothing.
    site.revoke_bootstrap_rights(true).await?;
    let agent = site.start_agent(&[])?;
    let stored = eventually("the request", SOON, async || site.stored_request()).await?;
    agent.stop().await?;
    site.plant(&stored.0).await?;
    site.revoke_bootstrap_rights(false).await?;
    let _approver = site.approve_everything().await?;
    let start = Instant::now();
    let agent = site.start_agent(&[])?;
    eventually("the seed kubeconfig", SOON, async || {
        site.read_config(".seed.kubeconfig")
    })
    .await?;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let requests = site.requests().await?;
    assert!(!requests.contains(&stored.0), "the planted one was used");
    agent.stop().await
}

#[tokio::test]
async fn a5_a_shoot_access_that_leads_elsewhere_is_refused_by_name_and_nothing_is_run_or_sent() -> anyhow::Result<()> {
    let site = Site::new("hostile").await?;
    let _approver = site.approve_everything().await?;
    let trap = site.trap().await?;
    let ran = site.file("ran");
    let other = trap.url();
    let cases = [
        (
            "exec",
            format!(
                r#"{{"exec":{{"apiVersion":"client.authentication.k8s.io/v1","command":"touch","args":["{ran}"]}}}}"#
            ),
            None,
        ),
        ("tokenFile", r#"{"tokenFile":"/etc/shadow"}"#.to_owned(), None),
        ("another's server", "{}".to_owned(), Some(other.as_str())),
    ];
    let mut agent = None;
    for (named, user, server) in cases {
        site.write_generic_kubeconfig(&user, server).await?;
        if agent.is_none() {
            agent = Some(site.start_agent(&[])?);
        }
        // The names in the Firewall are read again as soon as they change.
        site.touch_shoot_access().await?;
        eventually(named, SOON, async || {
            let status = site.read_state("status.json")?;
            let problem = serde_json::from_str::<serde_json::Value>(&status)?["problems"]["shoot access"].clone();
            ensure!(problem.as_str().context("no problem")?.contains(named), "{problem}");
            Ok(())
        })
        .await?;
    }
    assert!(site.read_config(".shoot.kubeconfig").is_err(), "it was written");
    assert!(ensure_exists(&ran).is_err(), "it was run");
    assert_eq!(trap.connections(), 0, "something was sent");
    agent.context("no agent was started")?.stop().await
}

#[tokio::test]
async fn b1_a_new_ca_that_the_seed_tells_of_is_tried_before_it_is_switched_to() -> anyhow::Result<()> {
    let site = Site::new("offer").await?;
    let _approver = site.approve_everything().await?;
    let agent = site.start_agent(&["touch", &site.file("told")])?;
    eventually("the hook", SOON, async || ensure_exists(&site.file("told"))).await?;
    let before = site.read_config(".seed.kubeconfig")?;
    std::fs::remove_file(site.file("told"))?;

    // Nobody answers there as a seed would.
    let trap = site.trap().await?;
    site.write_agent_secret(Some(&trap.url()), None).await?;
    eventually("the refusal", SOON, async || {
        let status = site.read_state("status.json")?;
        ensure!(status.contains(&format!("{}: ", trap.url())), "{status}");
        Ok(())
    })
    .await?;
    assert!(trap.connections() > 0, "it was not tried");
    assert_eq!(site.read_config(".seed.kubeconfig")?, before);

    // A second CA beside the first, as in the middle of a roll, and a lifeline.
    let bundle = format!("{}{}", site.other_ca()?, site.server_ca());
    site.write_agent_secret(None, Some(&bundle)).await?;
    let after = eventually("the switch", SOON, async || {
        let now = site.read_config(".seed.kubeconfig")?;
        ensure!(now != before, "still the old one");
        Ok(now)
    })
    .await?;
    assert!(site.firewall_as(&client_from(&after).await?).await.is_ok());
    assert!(site.read_state("lifeline.kubeconfig").is_ok());
    agent.stop().await?;
    // The consumer is told of it, at most once a minute and over a restart too.
    let agent = site.start_agent(&["touch", &site.file("told")])?;
    eventually("the hook", SOON, async || ensure_exists(&site.file("told"))).await?;
    agent.stop().await
}

#[tokio::test]
async fn bad_input_at_the_start_is_one_sentence_that_names_the_file() -> anyhow::Result<()> {
    let site = Site::new("bad-input").await?;
    let good = site.read_config(".bootstrap.kubeconfig")?;
    let cases: [(&str, _, _); 4] = [
        ("", ".bootstrap.kubeconfig", "mapping"),
        ("{", ".bootstrap.kubeconfig", "YAML"),
        (
            &without(&good, "certificate-authority-data"),
            ".bootstrap.kubeconfig",
            "certificate-authority-data",
        ),
        (
            &good[..good.find("extensions").context("no extensions")?],
            ".bootstrap.kubeconfig",
            "extension",
        ),
    ];
    for (text, file, named) in cases {
        site.write_bootstrap(text, 0o600)?;
        let error = site.refused_start().await;
        assert!(
            error.contains(file) && error.contains(named) && !error.contains('\n'),
            "{named}: {error}"
        );
    }
    site.write_bootstrap(&good, 0o644)?;
    let error = site.refused_start().await;
    assert!(
        error.contains("chmod 0600") && error.contains(".bootstrap.kubeconfig"),
        "{error}"
    );
    std::fs::remove_file(site.file("config/.bootstrap.kubeconfig"))?;
    let error = site.refused_start().await;
    assert!(error.contains(".bootstrap.kubeconfig does not exist"), "{error}");
    assert!(site.read_state("key.pem").is_err(), "a refused start made a key");
    Ok(())
}

/// A file without the lines that hold a field.
fn without(text: &str, field: &str) -> String {
    text.lines()
        .filter(|line| !line.contains(field))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn ensure_exists(path: &str) -> anyhow::Result<()> {
    ensure!(std::path::Path::new(path).exists(), "{path} does not exist");
    Ok(())
}
