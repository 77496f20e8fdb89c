//! What Prometheus reads of the approver: Debian's, as it comes, with a life of a firewall behind the numbers.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::harness::eventually;
use tests::http::Http;
use tests::programs::export;
use tests::world::World;
use tokio::net::TcpListener;

use crate::moves::came_in;
use crate::support::{certificate_of, requests_for};

const SOON: Duration = Duration::from_secs(60);

/// Debian's Prometheus with a folder of its own, which scrapes one target each second.
struct Prometheus {
    dir: tempfile::TempDir,
    child: Child,
    http: Http,
}

impl Prometheus {
    async fn scraping(target: SocketAddr) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        // Only free now, as every port that is asked for beforehand.
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n\
            scrape_configs: [{{job_name: approver, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        std::fs::write(dir.path().join("prometheus.yml"), config)?;
        // It ends with this process, however that ends: then there is nothing more to read.
        let script = "prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=\"$0\" \
            --web.max-connections=16 >log 2>&1 & read -r _; kill -KILL $!";
        let child = Command::new("sh")
            .args(["-c", script, &address.to_string()])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .context("start prometheus: is it installed (make tools)?")?;
        let prometheus = Self {
            dir,
            child,
            http: Http(address),
        };
        eventually("Prometheus serves", SOON, || async {
            ensure!(prometheus.ask("/-/ready").await?.contains("Ready"), "not yet");
            Ok(())
        })
        .await
        .with_context(|| std::fs::read_to_string(prometheus.dir.path().join("log")).unwrap_or_default())?;
        Ok(prometheus)
    }

    async fn ask(&self, path: &str) -> anyhow::Result<String> {
        let Http(address) = self.http;
        // Whoever speaks 1.1 is answered in chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        let answer = self.http.send(&request).await?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(answer.body)
    }

    async fn json(&self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.ask(path).await?)?)
    }

    /// The value of the one series that this names.
    async fn value(&self, query: &str) -> anyhow::Result<f64> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.json(&format!("/api/v1/query?query={escaped}")).await?;
        let series = answer["data"]["result"].as_array().context("no result")?;
        ensure!(series.len() == 1, "{query}: {} series: {answer}", series.len());
        Ok(series[0]["value"][1].as_str().context("no value")?.parse()?)
    }

    async fn comes_to(&self, query: &str, wanted: impl Fn(f64) -> bool) -> f64 {
        eventually(query, SOON, || async {
            let value = self.value(query).await?;
            ensure!(wanted(value), "it is {value}");
            Ok(value)
        })
        .await
        .unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The shell that started it waits for this.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_the_life_of_a_firewall_and_forgets_it_with_it() {
    let world = World::new("shoot--metrics--life").await.unwrap();
    let approver = world.approver().unwrap();
    let http = approver.http().await.unwrap();
    let prometheus = Prometheus::scraping(http.0).await.unwrap();
    prometheus.comes_to("up", |up| up == 1.0).await;
    let (machine, _agent) = came_in(&world, "00001").await;
    let firewall = &machine.firewall;
    let of = format!("{{namespace=\"{}\",firewall=\"{firewall}\"}}", world.namespace());

    // What the numbers say is what is so.
    #[allow(clippy::cast_precision_loss, reason = "seconds of this millennium fit")]
    let ends = certificate_of(&machine).unwrap().not_after.as_second() as f64;
    let expiry = format!("firewall_approver_certificate_expiry_timestamp_seconds{of}");
    prometheus.comes_to(&expiry, |end| (end - ends).abs() < 1.0).await;
    let approved = "firewall_approver_decisions_total{decision=\"approved\",reason=\"AutoApproved\"}";
    prometheus.comes_to(approved, |count| count == 1.0).await;
    for duration in ["approval", "issue"] {
        let count = format!("firewall_approver_{duration}_duration_seconds_count");
        prometheus.comes_to(&count, |count| count == 1.0).await;
        let seconds = prometheus
            .value(&format!("firewall_approver_{duration}_duration_seconds_sum"))
            .await
            .unwrap();
        println!("{duration}: {seconds} s");
        assert!(seconds < 30.0, "{seconds}");
    }
    prometheus
        .comes_to(
            "firewall_approver_firewalls{verdict=\"Valid\",reason=\"none\"}",
            |count| count == 1.0,
        )
        .await;
    prometheus
        .comes_to("firewall_approver_approved_not_issued_age_seconds", |age| age == 0.0)
        .await;
    prometheus
        .comes_to("min(firewall_approver_canary_accepted)", |accepted| accepted == 1.0)
        .await;
    prometheus
        .comes_to("count(firewall_approver_watch_age_seconds < 301)", |watches| {
            watches == 4.0
        })
        .await;
    prometheus
        .comes_to("count(firewall_approver_shoot_watch_age_seconds < 301)", |shoots| {
            shoots == 1.0
        })
        .await;
    prometheus
        .comes_to("max(firewall_approver_queue_depth)", |depth| depth == 0.0)
        .await;
    prometheus
        .comes_to(
            "firewall_approver_api_requests_total{verb=\"put\",code=\"200\"}",
            |puts| puts >= 1.0,
        )
        .await;
    prometheus
        .comes_to(
            "firewall_approver_api_requests_total{verb=\"watch\",code=\"200\"}",
            |watches| watches >= 4.0,
        )
        .await;
    // Its credential is revoked: it has no age any more.
    let age = format!("absent(firewall_approver_bootstrap_credential_age_seconds{of})");
    prometheus.comes_to(&age, |absent| absent == 1.0).await;

    // It has to come in anew, and does.
    export(world.seed, world.namespace(), firewall).await.unwrap();
    prometheus
        .comes_to("firewall_approver_handovers_total{reason=\"Requested\"}", |count| {
            count == 1.0
        })
        .await;
    prometheus
        .comes_to("firewall_approver_recovery_duration_seconds_count", |count| {
            count == 1.0
        })
        .await;
    assert!(requests_for(&world, firewall).await.unwrap().len() > 1);

    // A scraper that reads OpenMetrics knows the units; the older format has none.
    let metadata = prometheus.json("/api/v1/targets/metadata").await.unwrap();
    let metadata = metadata["data"].as_array().unwrap().clone();
    let of_name = |name: &str| {
        metadata
            .iter()
            .find(|metric| metric["metric"] == name)
            .cloned()
            .unwrap_or_default()
    };
    let expiry_metadata = of_name("firewall_approver_certificate_expiry_timestamp_seconds");
    assert_eq!(
        (expiry_metadata["unit"].as_str(), expiry_metadata["type"].as_str()),
        (Some("seconds"), Some("gauge"))
    );
    assert_eq!(of_name("firewall_approver_decisions")["type"], "counter");
    // What is written of the metrics is what there is.
    let page = include_str!("../../../docs/reference/metrics.md");
    for metric in &metadata {
        let name = metric["metric"].as_str().unwrap();
        assert!(
            page.contains(&format!("| `{name}` | {} |", metric["type"].as_str().unwrap())),
            "{metric}"
        );
    }
    let answer = http.get("/metrics").await.unwrap();
    assert!(
        answer
            .headers
            .contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{answer:?}"
    );
    assert!(
        answer.body.ends_with("# EOF\n") && answer.body.contains(firewall.as_str()),
        "{}",
        answer.body
    );

    // Nothing is told of a firewall that is gone.
    world.shoot.delete_firewall(firewall).await.unwrap();
    eventually("its series are gone", SOON, || async {
        let answer = http.get("/metrics").await?;
        let left = answer.body.lines().find(|line| line.contains(world.namespace()));
        ensure!(left.is_none(), "{left:?}");
        Ok(())
    })
    .await
    .unwrap();
    prometheus
        .comes_to(&format!("absent({expiry})"), |absent| absent == 1.0)
        .await;
    prometheus.comes_to("up", |up| up == 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_seen_an_approved_request_and_a_credential() {
    let seed = tests::world::own_seed("seed-metrics").await.unwrap();
    let place = tests::world::Place::empty(
        &seed,
        tests::world::shoot_cluster().await.unwrap(),
        "shoot--metrics--waits",
    )
    .await
    .unwrap();
    place.settle().await.unwrap();
    let approver = place.approver().unwrap();
    let http = approver.http().await.unwrap();
    let value = |name: String| async move {
        let text = http.get("/metrics").await?.body;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&name))
            .context("no such series")?;
        Ok::<f64, anyhow::Error>(line.trim().parse()?)
    };
    let machine = place.machine("00001").await.unwrap();
    let age = format!(
        "firewall_approver_bootstrap_credential_age_seconds{{namespace=\"{}\",firewall=\"{}\"}}",
        place.namespace(),
        machine.firewall
    );
    let waits = "firewall_approver_approved_not_issued_age_seconds".to_owned();
    eventually("the credential's age", SOON, || async {
        ensure!((0.0..60.0).contains(&value(age.clone()).await?), "-");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(value(waits.clone()).await.unwrap(), 0.0);
    seed.stop_controller_manager().await;
    let _agent = machine.start().unwrap();
    eventually("an approved request that waits", SOON, || async {
        let seconds = value(waits.clone()).await?;
        ensure!(seconds > 2.0, "{seconds}");
        Ok(())
    })
    .await
    .unwrap();
    seed.start_controller_manager().await.unwrap();
    eventually("nothing waits", SOON, || async {
        ensure!(value(waits.clone()).await? == 0.0, "it does");
        ensure!(
            value("firewall_approver_issue_duration_seconds_count".to_owned()).await? == 1.0,
            "none is timed"
        );
        Ok(())
    })
    .await
    .unwrap();
    let seconds = value("firewall_approver_issue_duration_seconds_sum".to_owned())
        .await
        .unwrap();
    println!("approval to certificate: {seconds} s");
    // What the API server has of the approval is in whole seconds.
    assert!(seconds > 1.0, "{seconds}");
}
