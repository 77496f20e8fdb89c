use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::*;

#[test]
fn every_reason_is_one_word_with_a_meaning() {
    for reason in Reason::ALL {
        assert!(
            reason.as_str().chars().all(char::is_alphanumeric),
            "Kubernetes wants CamelCase: {reason}"
        );
        for sentence in [reason.meaning(), reason.does(), reason.todo()] {
            assert!(sentence.ends_with(['.', '?']), "{reason}: {sentence}");
            // It stands in a table.
            assert!(!sentence.contains(['|', '\n']), "{reason}: {sentence}");
        }
    }
}

/// The sources of what ships below this folder, without the tests among them.
fn sources(dir: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if path.is_dir() && !name.ends_with("tests") {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.push((path, shipped.to_owned()));
        }
    }
}

#[test]
fn each_reason_is_given_by_code_that_ships() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/src"), &mut found);
    assert!(found.len() > 30, "{}", found.len());
    let given = |reason: Reason| {
        let word = format!("Reason::{reason}");
        let whole = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric());
        let stands = |text: &str| text.match_indices(&word).any(|(at, _)| whole(&text[at + word.len()..]));
        found.iter().any(|(_, text)| stands(text))
    };
    let idle: Vec<_> = Reason::ALL.iter().filter(|reason| !given(**reason)).collect();
    assert!(idle.is_empty(), "nobody gives {idle:?}");
}

/// `docs/reference/reasons.md`, from the list.
fn page() -> String {
    let mut page = String::from(
        "# Reasons\n\n\
        The words that stand in a Firewall's state, in conditions of requests, in events and in the log: one list, which only\n\
        grows. This page is written by a test (`UPDATE_DOCS=1 cargo test -p contract reasons`) from that list\n\
        (`contract/src/reasons.rs`). Where they are read: [operations](../operations.md#how-it-stands). `<UID>` is that of the\n\
        Firewall: `kubectl get firewall -n <namespace> <name> -o jsonpath={.metadata.uid}`.\n",
    );
    for (on, title, where_) in [
        (On::Firewall, "On a Firewall", "In its state, and as events on it."),
        (
            On::Request,
            "On a request",
            "In a condition or as events on it; what was refused last stands in the Firewall's state, too (`lastRefused`).",
        ),
        (
            On::Namespace,
            "Of the approver itself",
            "As events in its namespace: `kubectl get events -n firewall-approver`.",
        ),
    ] {
        let _ = write!(
            page,
            "\n## {title}\n\n{where_}\n\n| reason | what it means | what the approver does | what you do |\n|---|---|---|---|\n"
        );
        for reason in Reason::ALL.iter().filter(|reason| reason.on().contains(&on)) {
            let (meaning, does, todo) = (reason.meaning(), reason.does(), reason.todo());
            let _ = writeln!(page, "| {reason} | {meaning} | {does} | {todo} |");
        }
    }
    page
}

#[test]
fn the_page_of_reasons_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/reasons.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written,
        page(),
        "docs/reference/reasons.md is not fresh: UPDATE_DOCS=1 cargo test -p contract reasons"
    );
}
