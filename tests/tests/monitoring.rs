//! What `manifests/monitoring` ships: each alert against promtool in its case and in the healthy ones beside it, its page, the
//! dashboard, and all of it against a real API server with the Prometheus operator's own CRDs. That the alerts fire of a real
//! fault is in `e2e`.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use contract::reasons::Reason;
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions};
use tests::monitoring::{
    alerts, alerts_mut, asked, crds, dashboard, expressions, grouped, groups, quick, series, text,
};
use tests::world::manifests;

const PAGE: &str = include_str!("../../docs/reference/metrics.md");
/// Of the target, and of histograms.
const OF_PROMETHEUS: [&str; 3] = ["job", "pod", "le"];
const VERDICTS: [&str; 3] = ["Valid", "Renew", "Rebootstrap"];
const DECISIONS: [&str; 4] = ["approved", "denied", "ignored", "waiting"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The names of the files there with this extension, without it.
fn names(dir: &str, extension: &str) -> BTreeSet<String> {
    let files = fs::read_dir(root().join(dir)).unwrap().map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

fn alert_names() -> BTreeSet<String> {
    let groups = groups().unwrap();
    let all = alerts(&groups);
    let names: BTreeSet<_> = all.iter().map(|rule| text(rule, "alert").to_owned()).collect();
    assert_eq!(names.len(), all.len(), "an alert without a name, or two of one");
    names
}

fn promtool(dir: &Path, args: &[&str]) -> Output {
    let run = Command::new("promtool").args(args).current_dir(dir).output();
    // It comes with Debian's prometheus: make tools.
    run.unwrap()
}

/// Runs the unit tests of an alert against these rules.
fn tried(alert: &str, rules: &Value) -> Output {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), rules.to_string()).unwrap();
    let file = format!("{alert}.yaml");
    fs::copy(root().join("tests/alerts").join(&file), dir.path().join(&file)).unwrap();
    promtool(dir.path(), &["test", "rules", &file])
}

#[test]
fn c3_each_alert_fires_in_its_case_and_not_in_the_healthy_ones_beside_it() {
    let rules = groups().unwrap();
    assert_eq!(names("tests/alerts", "yaml"), alert_names(), "one file for each alert");
    for alert in alert_names() {
        let output = tried(&alert, &rules);
        assert!(output.status.success(), "{alert}: {output:#?}");
    }
}

/// Whatever becomes of a rule, its unit tests see it.
#[test]
fn the_unit_tests_of_an_alert_fail_where_its_rule_does_not_hold() {
    let rules = groups().unwrap();
    for alert in alert_names() {
        let of = |change: &dyn Fn(&mut Value)| {
            let mut rules = rules.clone();
            let rule = alerts_mut(&mut rules).find(|rule| text(rule, "alert") == alert);
            change(rule.unwrap());
            tried(&alert, &rules)
        };
        let expr = |expr: String| of(&|rule| rule["expr"] = expr.clone().into());
        let kept = alerts(&rules)
            .into_iter()
            .find(|rule| text(rule, "alert") == alert)
            .map(|rule| text(rule, "expr").to_owned())
            .unwrap();
        assert!(expr(kept.clone()).status.success(), "{alert} as it is");
        assert!(
            !expr("vector(0) > 1".into()).status.success(),
            "{alert} that never fires"
        );
        assert!(!expr("vector(1)".into()).status.success(), "{alert} that always fires");
        assert!(
            !of(&|rule| rule["for"] = "10h".into()).status.success(),
            "{alert} that takes its time"
        );
        assert!(
            !of(&|rule| rule["annotations"]["description"] = "-".into())
                .status
                .success(),
            "{alert} that says nothing"
        );
        let hasty = of(&|rule| {
            rule.as_object_mut().unwrap().remove("for");
        });
        let waits = alerts(&rules)
            .iter()
            .any(|rule| text(rule, "alert") == alert && !text(rule, "for").is_empty());
        assert_eq!(hasty.status.success(), !waits, "{alert} that does not wait");
        // A leader that is followed leaves a gap of a minute, which a range is to hide.
        for range in ["[5m]", "[2m]"] {
            if kept.contains(range) {
                let short = expr(kept.replace(range, "[30s]"));
                assert!(!short.status.success(), "{alert} that does not look back");
            }
        }
    }
}

#[test]
fn each_alert_has_a_page_and_a_severity_and_names_what_it_is_of() {
    assert_eq!(names("docs/runbooks", "md"), alert_names(), "one page for each alert");
    let groups = groups().unwrap();
    for rule in alerts(&groups) {
        let (alert, annotations) = (text(rule, "alert"), &rule["annotations"]);
        let url = text(annotations, "runbook_url");
        assert!(url.ends_with(&format!("/docs/runbooks/{alert}.md")), "{alert}: {url}");
        assert!(
            ["critical", "warning"].contains(&text(&rule["labels"], "severity")),
            "{alert}"
        );
        let words = format!("{} {}", text(annotations, "summary"), text(annotations, "description"));
        for label in grouped(text(rule, "expr")).iter().filter(|label| *label != "job") {
            assert!(
                words.contains(&format!("{{{{ $labels.{label} }}}}")),
                "{alert} does not name the {label}: {words}"
            );
        }
        let page = fs::read_to_string(root().join("docs/runbooks").join(format!("{alert}.md"))).unwrap();
        assert!(page.starts_with(&format!("# {alert}\n")), "{alert}");
        for part in ["## What it is not", "## Look at", "## Do", "## Call"] {
            assert!(page.contains(&format!("\n{part}\n")), "{alert}: {part}");
        }
        for link in page.split("](../").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let document = fs::read_to_string(root().join("docs").join(file)).unwrap();
            assert!(
                section.is_empty() || sections(&document).contains(section),
                "{alert}: {link}"
            );
        }
    }
}

/// What a link to a heading says.
fn sections(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| line.trim_start_matches(['#', ' ']).to_lowercase().replace(' ', "-"))
        .collect()
}

/// What is wrong with an expression, measured by the page of metrics.
fn faults(expr: &str) -> Vec<String> {
    let series = series(PAGE);
    let mut faults = Vec::new();
    let mut labels: BTreeSet<&str> = OF_PROMETHEUS.into();
    for (name, matchers) in asked(expr) {
        let Some(own) = series.get(&name) else {
            faults.push(format!("there is no series {name}"));
            continue;
        };
        for (label, values) in matchers {
            if !own.contains(&label) {
                faults.push(format!("{name} has no label {label}"));
            }
            let known = |value: &str| match label.as_str() {
                "reason" => value == "none" || Reason::parse(value).is_some(),
                "verdict" => VERDICTS.contains(&value),
                "decision" => DECISIONS.contains(&value),
                _ => true,
            };
            let unknown = values.iter().filter(|value| !known(value));
            faults.extend(unknown.map(|value| format!("{name}: no {label} is {value}")));
        }
        labels.extend(own.iter().map(String::as_str));
    }
    let kept = grouped(expr)
        .into_iter()
        .filter(|label| !labels.contains(label.as_str()));
    faults.extend(kept.map(|label| format!("none of its series has label {label}")));
    faults
}

#[test]
fn every_expression_asks_for_what_is_registered() {
    let groups = groups().unwrap();
    let mut all: Vec<(String, String)> = alerts(&groups)
        .iter()
        .map(|rule| (text(rule, "alert").to_owned(), text(rule, "expr").to_owned()))
        .collect();
    all.extend(expressions(&dashboard().unwrap()));
    assert!(all.len() > 20, "{all:?}");
    for (of, expr) in &all {
        assert!(!asked(expr).is_empty(), "{of} asks for nothing of ours: {expr}");
        assert_eq!(faults(expr), Vec::<String>::new(), "{of}: {expr}");
    }
    // What is measured is to be seen.
    let shown: BTreeSet<String> = all
        .iter()
        .flat_map(|(_, expr)| asked(expr))
        .map(|(name, _)| name)
        .collect();
    for name in series(PAGE)
        .keys()
        .filter(|name| !name.ends_with("_sum") && !name.ends_with("_count"))
    {
        assert!(shown.contains(name), "nobody looks at {name}");
    }
}

#[test]
fn an_expression_that_asks_for_something_else_is_found() {
    for expr in [
        "firewall_approver_decisions",
        "firewall_approver_leader_total",
        "firewall_approver_recovery_duration_seconds",
        "sum(firewall_approver_nothing)",
        "firewall_approver_firewalls{state=\"Valid\"}",
        "firewall_approver_firewalls{verdict=\"Good\"}",
        "firewall_approver_firewalls{verdict=\"Renew\", reason=~\"Expiring|Ending\"}",
        "max by (exported_namespace) (firewall_approver_firewalls)",
        "firewall_approver_leader and on (uid) firewall_approver_leader",
    ] {
        assert_eq!(faults(expr).len(), 1, "{expr}: {:?}", faults(expr));
    }
}

/// As rules they are read by Prometheus' own parser.
#[test]
fn prometheus_can_read_the_dashboard_and_the_rules_at_both_speeds() {
    let dir = tempfile::tempdir().unwrap();
    let panels: Vec<Value> = expressions(&dashboard().unwrap())
        .iter()
        .enumerate()
        .map(|(number, (_, expr))| {
            let expr = expr.replace("$__rate_interval", "5m").replace("$__range", "6h");
            json!({ "record": format!("panel_{number}"), "expr": expr })
        })
        .collect();
    let panels = json!({ "groups": [{ "name": "dashboard", "rules": panels }] });
    for (name, rules) in [
        ("panels", panels),
        ("rules", groups().unwrap()),
        ("quick", quick().unwrap()),
    ] {
        fs::write(dir.path().join(name), rules.to_string()).unwrap();
        let output = promtool(dir.path(), &["check", "rules", name]);
        assert!(output.status.success(), "{name}: {output:#?}");
    }
}

#[test]
fn quick_rules_are_those_that_are_shipped_but_for_time() {
    let (shipped, quick) = (groups().unwrap(), quick().unwrap());
    let quick = alerts(&quick);
    let of = |alert: &str| *quick.iter().find(|rule| text(rule, "alert") == alert).unwrap();
    assert_eq!(of("FirewallShootUnreachable")["for"], "30s");
    let expr = text(of("FirewallRecoverySlow"), "expr");
    assert!(expr.contains("[60s]") && !expr.contains("[1h]"), "{expr}");
    for rule in alerts(&shipped) {
        let timeless = |rule: &Value| {
            let outside = text(rule, "expr")
                .split('[')
                .map(|part| part.rsplit(']').next().unwrap_or_default());
            outside.collect::<String>()
        };
        assert_eq!(timeless(rule), timeless(of(text(rule, "alert"))));
    }
}

#[tokio::test]
async fn a_server_takes_the_monitoring_with_the_operators_own_resources() {
    let cluster = Cluster::start(ClusterOptions {
        signer: false,
        ..ClusterOptions::new("monitoring")
    })
    .await
    .unwrap();
    let crds = crds().unwrap();
    for name in ["servicemonitors", "prometheusrules"] {
        let file = crds.join(format!("monitoring.coreos.com_{name}.yaml"));
        cluster.kubectl_apply(&file).await.unwrap();
        let crd = format!("crd/{name}.monitoring.coreos.com");
        cluster
            .kubectl_ok(&["wait", "--for=condition=Established", "--timeout=30s", &crd])
            .await
            .unwrap();
    }
    cluster
        .kubectl_ok(&["create", "namespace", "firewall-approver"])
        .await
        .unwrap();
    let dir = manifests("monitoring");
    let dry_run = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-k",
        &dir,
    ];
    let said = cluster.kubectl_ok(&dry_run).await.unwrap();
    for object in [
        "configmap/firewall-approver-dashboard",
        "service/firewall-approver-metrics",
        "prometheusrule.monitoring.coreos.com/firewall-approver",
        "servicemonitor.monitoring.coreos.com/firewall-approver",
    ] {
        assert!(said.contains(object), "{said}");
    }
    assert_eq!(said.lines().count(), 4, "{said}");
    // A field that the operator does not know is found.
    let built = cluster.kubectl_ok(&["kustomize", &dir]).await.unwrap();
    let wrong = cluster
        .kubectl_apply_text(&built.replace("honorLabels", "honourLabels"))
        .await;
    let error = format!("{:#}", wrong.unwrap_err());
    assert!(error.contains("honourLabels"), "{error}");
}
