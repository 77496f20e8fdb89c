use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;

/// One of everything.
fn sample() -> String {
    let metrics = Metrics::new();
    let at = Timestamp::from_second(2_000_000_000).unwrap();
    metrics.decided(Decided::Approved, Some(Reason::AutoApproved));
    metrics.hands_over("SeedMoved");
    metrics.approved(Some(at), at);
    let id = ("shoot--a--b".to_owned(), "firewall".to_owned());
    let standings = Standings {
        leads: true,
        certificates_end: [(id.clone(), at)].into(),
        credential_ages: [(id.clone(), 7.0)].into(),
        verdicts: [(id.clone(), ("Valid", "none"))].into(),
        handover_ages: [(id, ("SeedMoved", 2.5))].into(),
        oldest_not_issued: 0.0,
        canaries: [("0123456789abcdef".to_owned(), true)].into(),
        shoots: [("shoot--a--b".to_owned(), true)].into(),
        watches: [("firewalls", 1.5)].into(),
        shoot_watches: [("shoot--a--b".to_owned(), 1.5)].into(),
        queues: [("firewalls", 0)].into(),
        requests: [(("get", "200"), 3)].into(),
    };
    metrics.text(&standings).unwrap()
}

#[derive(Debug, Default)]
struct Family {
    kind: String,
    unit: String,
    help: String,
    labels: BTreeSet<String>,
}

fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (word, name, rest) = (words.next().unwrap(), words.next(), words.next());
            let Some(name) = name else { continue };
            let family = families.entry(name.to_owned()).or_default();
            let rest = rest.unwrap_or_default().to_owned();
            match word {
                "HELP" => family.help = rest,
                "TYPE" => family.kind = rest,
                "UNIT" => family.unit = rest,
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let suffixes = ["", "_total", "_bucket", "_sum", "_count"];
        let of = suffixes
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix).filter(|name| families.contains_key(*name)));
        let family = families
            .get_mut(of.unwrap_or_else(|| panic!("{line} is of no family")))
            .unwrap();
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        family
            .labels
            .extend(labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le"));
    }
    families
}

/// Where the values of each label come from: nothing that somebody outside may make many.
const LABELS: [(&str, &str); 12] = [
    ("namespace", "of the Firewalls that there are"),
    ("firewall", "of the Firewalls that there are"),
    (
        "issuer",
        "first 16 digits of the SHA-256 of a CA's key, four of them at most; or `unlisted`",
    ),
    ("decision", "`approved`, `denied`, `ignored`, `waiting`"),
    ("reason", "a [reason](../operations.md#reasons), or `none`"),
    ("operation", "`create`, `update`"),
    ("answer", "`patched`, `nothing`, `warned`, `refused`"),
    ("verdict", "`Valid`, `Renew`, `Rebootstrap`"),
    ("watch", "`firewalls`, `requests`, `states`, `shoot-access`"),
    ("queue", "`firewalls`, `requests`"),
    ("verb", "`get`, `watch`, `post`, `put`, `patch`, `delete`, `other`"),
    (
        "code",
        "an HTTP status that API servers give, `other`, or `none` where no answer came",
    ),
];

/// What breaks Prometheus' naming rules, in words.
fn lint(name: &str, family: &Family) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{name}: {what}"));
        }
    };
    let letters = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    must(name.starts_with("firewall_approver_"), "another program's prefix");
    must(
        letters(name) && !name.contains("__"),
        "small letters and single underscores",
    );
    let unit = family.unit.as_str();
    let measures = ["age", "duration", "timestamp", "time", "size"];
    must(
        unit.is_empty() || name.ends_with(&format!("_{unit}")),
        "its unit is its suffix",
    );
    must(unit.is_empty() || ["seconds", "bytes"].contains(&unit), "a base unit");
    let measured = name.split('_').any(|word| measures.contains(&word));
    must(!measured || !unit.is_empty(), "what it measures has a unit");
    must(
        !["_total", "_count", "_sum", "_bucket", "_info"]
            .iter()
            .any(|suffix| name.ends_with(suffix)),
        "a suffix of OpenMetrics' own",
    );
    must(
        !name.split('_').any(|word| word == family.kind),
        "its type is in its name",
    );
    must(
        ["counter", "gauge", "histogram"].contains(&family.kind.as_str()),
        "a type that is known",
    );
    must(
        family.kind != "histogram" || unit == "seconds",
        "a histogram measures seconds",
    );
    must(
        family.help.len() > 20 && family.help.ends_with('.') && !family.help.ends_with(".."),
        "a help that is one sentence",
    );
    for label in &family.labels {
        must(letters(label), "labels in small letters");
        must(
            LABELS.iter().any(|(known, _)| known == label),
            &format!("nothing says what bounds label {label}"),
        );
    }
    faults
}

#[test]
fn what_is_measured_keeps_prometheus_naming_rules() {
    let families = families(&sample());
    assert_eq!(families.len(), 18, "{families:?}");
    let faults: Vec<String> = families.iter().flat_map(|(name, family)| lint(name, family)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let used: BTreeSet<&str> = families
        .values()
        .flat_map(|family| &family.labels)
        .map(String::as_str)
        .collect();
    assert_eq!(
        used,
        LABELS.iter().map(|(label, _)| *label).collect(),
        "a label that nothing has"
    );
}

#[test]
fn the_lint_sees_each_fault() {
    let good = || Family {
        kind: "gauge".into(),
        unit: "seconds".into(),
        help: "Age of something that grows old.".into(),
        labels: ["firewall".to_owned()].into(),
    };
    let name = "firewall_approver_thing_age_seconds";
    assert_eq!(lint(name, &good()), Vec::<String>::new());
    let unit = |unit: &str| Family {
        unit: unit.into(),
        ..good()
    };
    let help = |help: &str| Family {
        help: help.into(),
        ..good()
    };
    let label = |label: &str| Family {
        labels: [label.to_owned()].into(),
        ..good()
    };
    for (name, family) in [
        ("thing_age_seconds", good()),
        ("firewall_approver_thing_age", unit("")),
        ("firewall_approver_thing_age_minutes", unit("minutes")),
        ("firewall_approver_thing_age", good()),
        ("firewall_approver_gauge_age_seconds", good()),
        ("firewall_approver_Age_seconds", good()),
        ("firewall_approver_things_total", unit("")),
        (
            "firewall_approver_thing",
            Family {
                kind: "histogram".into(),
                ..unit("")
            },
        ),
        (
            name,
            Family {
                kind: "unknown".into(),
                ..good()
            },
        ),
        (name, help("")),
        (name, help("Age of something that grows old")),
        (name, label("uid")),
    ] {
        assert_eq!(
            lint(name, &family).len(),
            1,
            "{name} {family:?} {:?}",
            lint(name, &family)
        );
    }
}

#[test]
fn a_certificate_is_timed_once_and_only_if_it_was_awaited() {
    let metrics = Metrics::new();
    let at = |second: i64| Timestamp::from_second(2_000_000_000 + second).unwrap();
    let counted = |metrics: &Metrics| {
        let text = metrics.text(&Standings::default()).unwrap();
        let line = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("firewall_approver_issue_duration_seconds_{name} ")));
            line.unwrap().to_owned()
        };
        (line("count"), line("sum"))
    };
    // Issued before this process began.
    metrics.issued("old", at(0));
    assert_eq!(counted(&metrics).0, "0");
    metrics.awaits("new", at(0));
    // Seen again while it waits: the first time counts.
    metrics.awaits("new", at(2));
    metrics.issued("new", at(3));
    metrics.issued("new", at(4));
    assert_eq!(counted(&metrics), ("1".to_owned(), "3.0".to_owned()));
    // A clock that goes back.
    metrics.awaits("odd", at(9));
    metrics.issued("odd", at(0));
    assert_eq!(counted(&metrics), ("2".to_owned(), "3.0".to_owned()));
    for number in 0..2 * AWAITED_MAX {
        metrics.awaits(&number.to_string(), at(0));
    }
    assert!(metrics.awaited.lock().unwrap().len() <= AWAITED_MAX);
}

#[test]
fn what_an_alert_must_see_grow_is_counted_from_zero_on() {
    let metrics = Metrics::new();
    let value = |metrics: &Metrics, series: &str| {
        let text = metrics.text(&Standings::default()).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series).map(str::to_owned));
        line.map(|line| line.trim().to_owned())
    };
    let stolen = "firewall_approver_decisions_total{decision=\"denied\",reason=\"NotYours\"}";
    assert_eq!(value(&metrics, stolen).as_deref(), Some("0"));
    metrics.decided(Decided::Denied, Some(Reason::NotYours));
    assert_eq!(value(&metrics, stolen).as_deref(), Some("1"));
    let slow = "firewall_approver_recovery_duration_seconds_bucket{le=\"60.0\"}";
    assert_eq!(value(&metrics, slow).as_deref(), Some("0"));
}

/// `docs/reference/metrics.md`, from the registry.
fn page() -> String {
    let mut page = String::from(
        "# Metrics of the approver\n\n\
        `/metrics`, in OpenMetrics: Prometheus appends `_total` to a counter, `_bucket`, `_sum` and `_count` to a histogram.\n\
        This page is written by a test (`UPDATE_DOCS=1 cargo test -p server metrics`) from what is registered.\n\n\
        | metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n",
    );
    for (
        name,
        Family {
            kind,
            unit,
            help,
            labels,
        },
    ) in families(&sample())
    {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        page += &format!("| `{name}` | {kind} | {unit} | {} | {help} |\n", labels.join(", "));
    }
    page += "\n## Labels\n\nA series goes with its Firewall, its shoot or its CA.\n\n| label | values |\n|---|---|\n";
    for (label, values) in LABELS {
        page += &format!("| `{label}` | {values} |\n");
    }
    page
}

#[test]
fn the_page_of_metrics_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written,
        page(),
        "docs/reference/metrics.md is not fresh: UPDATE_DOCS=1 cargo test -p server metrics"
    );
}
