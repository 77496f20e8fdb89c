//! What Prometheus reads of the approver: Debian's, as it comes, with a life of a firewall behind the numbers.

use std::time::Duration;

use anyhow::{Context, ensure};
use tests::harness::{Cluster, ClusterOptions, eventually};
use tests::programs::export;
use tests::prometheus::Prometheus;
use tests::upstream::install_crds;
use tests::world::{Place, World, install_seed, shoot_cluster};

use crate::moves::came_in;
use crate::support::{certificate_of, requests_for};

const SOON: Duration = Duration::from_secs(60);

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
            &format!(
                "firewall_approver_firewalls{{verdict=\"Valid\",reason=\"none\",{}",
                &of[1..]
            ),
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
    let ready = format!("firewall_approver_shoot_ready{{namespace=\"{}\"}}", world.namespace());
    prometheus.comes_to(&ready, |ready| ready == 1.0).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn b6_a_request_that_is_answered_with_a_token_waits_for_no_certificate() {
    let options = ClusterOptions {
        signer: false,
        ..ClusterOptions::new("seed-metrics-tokens")
    };
    // With what all tests share comes what the shoot needs.
    tests::world::seed().await.unwrap();
    let seed = Cluster::start(options).await.unwrap();
    install_crds(&seed, shoot_cluster().await.unwrap()).await.unwrap();
    install_seed(&seed).await.unwrap();
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--metrics--token")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let approver = place.approver_with(&["--seed-access", "token"]).unwrap();
    let prometheus = Prometheus::scraping(approver.http().await.unwrap().0).await.unwrap();
    let (_machine, _agent) = came_in(&place, "00001").await;
    let issued = "firewall_approver_issue_duration_seconds_count";
    prometheus.comes_to(issued, |count| count == 1.0).await;
    // The request stands for an hour, approved and without a certificate; ten seconds of that will do.
    let waits = "firewall_approver_approved_not_issued_age_seconds[1h]";
    let seconds = prometheus.value("vector(time())").await.unwrap();
    prometheus.comes_to("vector(time())", |now| now > seconds + 10.0).await;
    assert_eq!(prometheus.value(&format!("max_over_time({waits})")).await.unwrap(), 0.0);
}
