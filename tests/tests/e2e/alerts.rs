//! The alerts that are shipped, in a real Prometheus that scrapes a running approver as the ServiceMonitor says: a fault is made,
//! the alert fires and names what it is of, the fault is mended, the alert ends. Times are those of the rules by `SCALE`. What
//! takes longer than a test (a firewall that does not come back, or slowly) is with promtool alone, in `monitoring`.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions, PATIENCE, Proxy, client_from, eventually};
use tests::http::Http;
use tests::monitoring::{asked, endpoint, groups, quick};
use tests::moves::tail;
use tests::programs::{ApproverHome, Program, bootstrap_kubeconfig};
use tests::prometheus::Prometheus;
use tests::upstream::install_crds;
use tests::world::{Place, install_seed, own_seed, shoot_cluster};

use crate::moves::{came_in, settled};
use crate::requests::ask;
use crate::support::{certificate_of, renewed};

/// A request waits for two minutes before it is too long, at whatever speed.
const SOON: Duration = Duration::from_secs(240);
/// Of a certificate, in a seed where they are short. Its last tenth is 40 seconds, of which the alert waits 15.
const LIFE: Duration = Duration::from_secs(400);

/// As the Prometheus operator has it scraped by our ServiceMonitor: what it says of the pod comes as labels, too.
async fn prometheus(targets: &[Http]) -> Prometheus {
    let endpoint = endpoint().unwrap();
    let groups: Vec<Value> = targets
        .iter()
        .enumerate()
        .map(|(number, Http(address))| {
            let labels = json!({
                "namespace": "firewall-approver", "pod": format!("firewall-approver-{number}"), "container": "firewall-approver",
                "service": "firewall-approver-metrics", "endpoint": endpoint["port"],
            });
            json!({ "targets": [address.to_string()], "labels": labels })
        })
        .collect();
    let scrape = json!({
        "job_name": "firewall-approver-metrics", "metrics_path": endpoint["path"],
        "honor_labels": endpoint["honorLabels"], "static_configs": groups,
    });
    Prometheus::start(&scrape, Some(&quick().unwrap())).await.unwrap()
}

fn is(alert: &Value, name: &str, labels: &[(&str, &str)]) -> bool {
    let of = &alert["labels"];
    of["alertname"] == name && labels.iter().all(|(label, value)| of[label] == *value)
}

async fn fires(prometheus: &Prometheus, name: &str, labels: &[(&str, &str)]) -> Value {
    let what = format!("{name} fires");
    eventually(&what, SOON, || async {
        let firing = prometheus.firing().await?;
        let found = firing.iter().find(|alert| is(alert, name, labels)).cloned();
        found.with_context(|| format!("there are {firing:?}"))
    })
    .await
    .unwrap()
}

async fn ends(prometheus: &Prometheus, name: &str) {
    let what = format!("{name} ends");
    eventually(&what, SOON, || async {
        let firing = prometheus.firing().await?;
        let still = firing.iter().find(|alert| is(alert, name, &[]));
        ensure!(still.is_none(), "{still:?}");
        Ok(())
    })
    .await
    .unwrap();
}

/// The names of those that fired so far.
async fn fired(prometheus: &Prometheus) -> Vec<String> {
    let query =
        "/api/v1/query?query=count%20by%20(alertname)%20(max_over_time(ALERTS%7Balertstate%3D%22firing%22%7D%5B1h%5D))";
    let answer = prometheus.json(query).await.unwrap();
    let series = answer["data"]["result"].as_array().unwrap().iter();
    let names = series.map(|one| one["metric"]["alertname"].as_str().unwrap_or_default().to_owned());
    names.collect()
}

/// Nothing fires, and what the rules ask for is there.
async fn quiet(prometheus: &Prometheus) {
    eventually("nothing fires", PATIENCE, || async {
        let firing = prometheus.firing().await?;
        ensure!(firing.is_empty(), "{firing:?}");
        Ok(())
    })
    .await
    .unwrap();
}

fn serve(home: &ApproverHome, places: &[&Place<'_>]) -> Program {
    let namespaces: Vec<&str> = places
        .iter()
        .flat_map(|place| ["--namespace", place.namespace()])
        .collect();
    home.start(&namespaces).unwrap()
}

async fn place<'a>(seed: &'a Cluster, namespace: &str) -> Place<'a> {
    Place::empty(seed, shoot_cluster().await.unwrap(), namespace)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_of_real_faults_name_what_they_are_of_and_end() {
    let seed = own_seed("seed-alerts").await.unwrap();
    let mut a = place(&seed, "shoot--alert--a").await;
    let b = place(&seed, "shoot--alert--b").await;
    let proxy = Proxy::to(shoot_cluster().await.unwrap()).await.unwrap();
    a.shoot.address = proxy.url();
    a.settle().await.unwrap();
    b.settle().await.unwrap();
    let approver = serve(&a.home, &[&a, &b]);
    let http = approver.http().await.unwrap();
    eventually("it leads", PATIENCE, || async {
        ensure!(a.home.log().contains("\"leads\""), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    // The other replica has no series of firewalls and shoots, and its own say nothing.
    let waiting = serve(&b.home, &[&a, &b]);
    let prometheus = prometheus(&[http, waiting.http().await.unwrap()]).await;
    let (_one, _its_agent) = came_in(&a, "00001").await;
    let (other, _other_agent) = came_in(&b, "00002").await;
    // What an alert must see grow is there before it does.
    let shown = http.get("/metrics").await.unwrap().body;
    for (_, matchers) in asked(&groups().unwrap().to_string().replace("\\\"", "\"")) {
        let reasons = matchers
            .iter()
            .find(|(label, _)| label == "reason")
            .map(|(_, values)| values);
        for reason in reasons
            .into_iter()
            .flatten()
            .filter(|_| matchers.iter().any(|(label, _)| label == "decision"))
        {
            let of = format!("reason=\"{reason}\"}} 0");
            assert!(
                shown
                    .lines()
                    .any(|line| line.contains("_decisions_total") && line.ends_with(&of)),
                "{reason}: {shown}"
            );
        }
    }
    quiet(&prometheus).await;

    // One shoot is away, and the other is not.
    proxy.cut();
    let alert = fires(&prometheus, "FirewallShootUnreachable", &[("namespace", a.namespace())]).await;
    assert!(
        alert["annotations"]["summary"]
            .as_str()
            .unwrap()
            .contains(a.namespace()),
        "{alert}"
    );
    let all = prometheus.firing().await.unwrap();
    assert!(
        !all.iter()
            .any(|alert| is(alert, "FirewallShootUnreachable", &[("namespace", b.namespace())])),
        "{all:?}"
    );
    proxy.mend();
    ends(&prometheus, "FirewallShootUnreachable").await;

    // A credential asks for another firewall's certificate.
    let machine = b.machine("00003").await.unwrap();
    let kubeconfig = bootstrap_kubeconfig(&seed, b.namespace(), &machine.firewall)
        .await
        .unwrap();
    ask(&client_from(&kubeconfig).await.unwrap(), &other.firewall)
        .await
        .unwrap();
    let alert = fires(&prometheus, "FirewallCredentialAbused", &[("reason", "NotYours")]).await;
    assert_eq!(alert["labels"]["severity"], "critical", "{alert}");
    ends(&prometheus, "FirewallCredentialAbused").await;

    // Nobody signs.
    seed.stop_controller_manager().await;
    let _agent = machine.start().unwrap();
    fires(&prometheus, "FirewallCertificateNotIssued", &[]).await;
    seed.start_controller_manager().await.unwrap();
    ends(&prometheus, "FirewallCertificateNotIssued").await;
    settled(&b, &machine).await;

    // Nobody leads, for as long as the other one waits for the lease to end; as they are shipped the rules wait for that.
    approver.kill();
    fires(&prometheus, "FirewallApproverNoLeader", &[]).await;
    ends(&prometheus, "FirewallApproverNoLeader").await;
    let leads = "sum(firewall_approver_leader)";
    prometheus.comes_to(leads, |leaders| leaders == 1.0).await;
    quiet(&prometheus).await;

    // At this speed a new leader's canary, which takes seconds, may be late.
    let mut fired = fired(&prometheus).await;
    fired.retain(|name| name != "FirewallCanaryRefused");
    fired.sort();
    let faults = [
        "FirewallApproverNoLeader",
        "FirewallCertificateNotIssued",
        "FirewallCredentialAbused",
        "FirewallShootUnreachable",
    ];
    assert_eq!(fired, faults, "{}", tail(&a.home.log()));
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_an_end_that_is_coming_while_nothing_renews_names_the_firewall_and_no_other() {
    let options = ClusterOptions {
        signing_duration: Some(LIFE),
        ..ClusterOptions::new("seed-expiring")
    };
    // With what all tests share comes what the shoot needs.
    tests::world::seed().await.unwrap();
    let seed = Cluster::start(options).await.unwrap();
    install_crds(&seed, shoot_cluster().await.unwrap()).await.unwrap();
    install_seed(&seed).await.unwrap();
    let place = place(&seed, "shoot--alert--end").await;
    place.settle().await.unwrap();
    let approver = place.approver().unwrap();
    let prometheus = prometheus(&[approver.http().await.unwrap()]).await;
    let (machine, agent) = came_in(&place, "00001").await;
    let (other, _other_agent) = came_in(&place, "00002").await;
    quiet(&prometheus).await;
    agent.kill();
    let (issued, others) = (certificate_of(&machine).unwrap(), certificate_of(&other).unwrap());

    let of = [
        ("namespace", place.namespace()),
        ("firewall", machine.firewall.as_str()),
    ];
    let alert = eventually("FirewallCertificateExpiring fires", LIFE, || async {
        let firing = prometheus.firing().await?;
        let found = firing
            .iter()
            .find(|alert| is(alert, "FirewallCertificateExpiring", &of))
            .cloned();
        found.with_context(|| format!("there are {firing:?}"))
    })
    .await
    .with_context(|| tail(&place.home.log()))
    .unwrap();
    let left = issued.not_after.duration_since(jiff::Timestamp::now());
    println!(
        "it fires {left:#} before the end: {}",
        alert["annotations"]["description"]
    );
    assert!(left.is_positive(), "it was over {left:#} ago");
    // The other one's was renewed meanwhile.
    assert_ne!(certificate_of(&other).unwrap().serial, others.serial);
    let all = prometheus.firing().await.unwrap();
    let of_other = [("firewall", other.firewall.as_str())];
    assert!(
        !all.iter()
            .any(|alert| is(alert, "FirewallCertificateExpiring", &of_other)),
        "{all:?}"
    );

    let _agent = machine.start().unwrap();
    renewed(&machine, &issued, PATIENCE).await.unwrap();
    ends(&prometheus, "FirewallCertificateExpiring").await;
    assert!(
        !fired(&prometheus)
            .await
            .contains(&"FirewallHandoverNotTakenUp".to_owned())
    );
}

/// The signer's CA and the API server's do not belong together; then they do, and the old one is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_canary_that_is_refused_is_told_and_an_old_ca_that_is_over_is_not() {
    let seed = own_seed("seed-alert-ca").await.unwrap();
    let place = place(&seed, "shoot--alert--ca").await;
    place.settle().await.unwrap();
    let approver = place.approver().unwrap();
    let prometheus = prometheus(&[approver.http().await.unwrap()]).await;
    let (machine, _agent) = came_in(&place, "00001").await;
    let before = certificate_of(&machine).unwrap();
    let accepted = "min(firewall_approver_canary_accepted)";
    prometheus.comes_to(accepted, |accepted| accepted == 1.0).await;
    quiet(&prometheus).await;

    let roll = seed.roll_client_ca().unwrap();
    roll.switch_signer().await.unwrap();
    // With a firewall that asks for one the next canary comes at once.
    let annotation = "firewall.metal-stack.io/renew-seed-access=now";
    place.annotate(&machine.firewall, annotation).await.unwrap();
    let alert = fires(&prometheus, "FirewallCanaryRefused", &[]).await;
    // Of a CA that was never published.
    assert_eq!(alert["labels"]["issuer"], "unlisted", "{alert}");
    roll.add().await.unwrap();
    ends(&prometheus, "FirewallCanaryRefused").await;
    renewed(&machine, &before, SOON).await.unwrap();
    place.await_reason(&machine.firewall, "Bootstrapped").await.unwrap();

    prometheus
        .comes_to("count(firewall_approver_canary_accepted)", |many| many == 2.0)
        .await;
    roll.drop_old().await.unwrap();
    prometheus
        .comes_to("count(firewall_approver_canary_accepted)", |many| many == 1.0)
        .await;
    prometheus.comes_to(accepted, |accepted| accepted == 1.0).await;
    quiet(&prometheus).await;
}
