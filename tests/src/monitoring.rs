//! What `manifests/monitoring` holds, for the tests that try it: the rules as Prometheus reads them, how it scrapes, and which
//! metrics an expression names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::world::manifests;

/// Minutes become seconds, of `for` and of ranges: what an operator gets in half an hour is seen here in half a minute. The
/// expressions stay.
pub const SCALE: u64 = 60;

fn read(file: &str) -> anyhow::Result<String> {
    let path = PathBuf::from(manifests("monitoring")).join(file);
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// What is in a PrometheusRule is what Prometheus itself reads from a file.
pub fn groups() -> anyhow::Result<Value> {
    let mut rule: Value = serde_saphyr::from_str(&read("prometheus-rule.yaml")?)?;
    let groups = rule["spec"]["groups"].take();
    ensure!(groups.is_array(), "no groups");
    Ok(json!({ "groups": groups }))
}

/// The alerts in these groups.
pub fn alerts(groups: &Value) -> Vec<&Value> {
    let groups = groups["groups"].as_array().into_iter().flatten();
    groups
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .collect()
}

/// Each alert's rule may be changed.
pub fn alerts_mut(groups: &mut Value) -> impl Iterator<Item = &mut Value> {
    let groups = groups["groups"].as_array_mut().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array_mut().into_iter().flatten())
}

pub fn text<'a>(rule: &'a Value, field: &str) -> &'a str {
    rule[field].as_str().unwrap_or_default()
}

/// The rules, quicker by `SCALE`.
pub fn quick() -> anyhow::Result<Value> {
    let mut groups = groups()?;
    for rule in alerts_mut(&mut groups) {
        if let Some(wait) = rule["for"].as_str() {
            rule["for"] = quicker(wait)?.into();
        }
        let expr = text(rule, "expr").to_owned();
        let mut parts = expr.split('[');
        let mut quick = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (range, rest) = part.split_once(']').context("a range without an end")?;
            quick += &format!("[{}]{rest}", quicker(range)?);
        }
        rule["expr"] = quick.into();
    }
    Ok(groups)
}

fn quicker(duration: &str) -> anyhow::Result<String> {
    let (number, unit) = duration.split_at(duration.len().saturating_sub(1));
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        _ => anyhow::bail!("{duration} is neither minutes nor hours"),
    };
    Ok(format!("{}s", number.parse::<u64>()? * seconds / SCALE))
}

/// How the ServiceMonitor has the approver scraped.
pub fn endpoint() -> anyhow::Result<Value> {
    let text = read("service-monitor.yaml")?;
    let (_, monitor) = text.split_once("\n---\n").context("two objects")?;
    let monitor: Value = serde_saphyr::from_str(monitor)?;
    ensure!(monitor["kind"] == "ServiceMonitor", "{monitor}");
    Ok(monitor["spec"]["endpoints"][0].clone())
}

pub fn dashboard() -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&read("dashboard.json")?)?)
}

/// The expressions of a dashboard, with the panel that each is of.
pub fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    panels
        .flat_map(|panel| {
            let targets = panel["targets"].as_array().into_iter().flatten();
            targets.map(|target| (text(panel, "title").to_owned(), text(target, "expr").to_owned()))
        })
        .collect()
}

/// The approver's series that an expression asks for, each with what it asks of its labels.
pub fn asked(expr: &str) -> Vec<(String, Vec<Matcher>)> {
    let mut asked = Vec::new();
    let mut rest = expr;
    while let Some(at) = rest.find(PREFIX) {
        rest = &rest[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
        let selector = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let matchers = selector.map(|(inside, _)| matchers(inside)).unwrap_or_default();
        asked.push((name.to_owned(), matchers));
        rest = after;
    }
    asked
}

const PREFIX: &str = "firewall_approver_";

/// A label, and the values that it may have or not.
pub type Matcher = (String, Vec<String>);

/// No value of ours has a comma.
fn matchers(inside: &str) -> Vec<Matcher> {
    let pairs = inside.split(',').filter_map(|pair| pair.split_once('"'));
    pairs
        .map(|(label, value)| {
            let label = label.trim().trim_end_matches(['=', '~', '!']).to_owned();
            let values = value.trim_end().trim_end_matches('"').split('|');
            (label, values.map(str::to_owned).collect())
        })
        .collect()
}

/// The labels that an expression keeps or joins by.
pub fn grouped(expr: &str) -> BTreeSet<String> {
    let mut words = expr.split('(');
    let mut grouped = BTreeSet::new();
    let mut before = words.next().unwrap_or_default();
    for part in words {
        let word = before.trim_end().rsplit(|c: char| !c.is_ascii_alphabetic()).next();
        if let (Some("by" | "on"), Some((labels, _))) = (word, part.split_once(')')) {
            grouped.extend(labels.split(',').map(|label| label.trim().to_owned()));
        }
        before = part;
    }
    grouped
}

/// The series that are written of on the page of metrics, as Prometheus calls them, with their labels.
pub fn series(page: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut series = BTreeMap::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap_or_default().trim_end_matches('`');
        if !name.starts_with(PREFIX) {
            continue;
        }
        let suffixes: &[&str] = match cells.next() {
            Some("counter") => &["_total"],
            Some("histogram") => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        let labels: BTreeSet<String> = cells
            .nth(1)
            .unwrap_or_default()
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned())
            .filter(|label| !label.is_empty())
            .collect();
        for suffix in suffixes {
            let mut labels = labels.clone();
            if *suffix == "_bucket" {
                labels.insert("le".to_owned());
            }
            series.insert(format!("{name}{suffix}"), labels);
        }
    }
    series
}

/// Where the CRDs of the Prometheus operator lie.
pub fn crds() -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring-crds.sh");
    let output = std::process::Command::new(script)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "tests/monitoring-crds.sh: {}", output.status);
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
