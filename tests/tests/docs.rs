//! What the documents repeat of the project, held against it.

#![allow(
    clippy::unwrap_used,
    reason = "an integration test; Clippy knows only functions that are tests themselves"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn each_direct_dependency_is_explained_and_no_other() {
    const OURS: [&str; 4] = ["contract", "cluster", "server", "agent"];
    let manifest = read("Cargo.toml");
    let (_, section) = manifest.split_once("[workspace.dependencies]\n").unwrap();
    let used: BTreeSet<&str> = section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|name| !name.starts_with('#') && !OURS.contains(name))
        .collect();
    let document = read("docs/dependencies.md");
    let explained: BTreeSet<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" |").map(|(name, _)| name))
        .filter(|name| *name != "crate")
        .collect();
    assert!(used.len() > 20, "{used:?}");
    assert_eq!(explained, used);
}

/// Every function below these folders.
fn functions(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text
                .lines()
                .filter_map(|line| line.split_once("fn ")?.1.split_once('('));
            found.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
}

#[test]
fn the_tests_that_the_threat_model_and_the_decisions_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut there = BTreeSet::new();
    for folder in ["tests/tests", "tests/src", "server", "agent", "contract", "cluster"] {
        functions(&root.join(folder), &mut there);
    }
    for document in ["docs/security.md", "docs/decisions.md", "docs/operations.md"] {
        let text = read(document);
        let named: Vec<&str> = text
            .split('`')
            .filter(|word| {
                word.matches('_').count() >= 3 && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            })
            .filter(|word| word.bytes().any(|b| b.is_ascii_lowercase()))
            .collect();
        assert!(
            document == "docs/operations.md" || named.len() > 10,
            "{document}: {named:?}"
        );
        for name in named {
            assert!(
                there.contains(name),
                "{document} names {name}, and there is no such test"
            );
        }
    }
}

/// As GitHub makes them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|heading| heading.chars().filter(kept).collect::<String>().replace(' ', "-"))
        .collect()
}

fn pages(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn what_the_documents_lead_to_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut documents = vec![
        root.join("README.md"),
        root.join("SECURITY.md"),
        root.join("CHANGELOG.md"),
    ];
    pages(&root.join("docs"), &mut documents);
    let mut count = 0;
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once(')')?.0))
        {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let what = format!("{} leads to {link}", document.display());
            assert!(target.exists(), "{what}");
            if !anchor.is_empty() {
                assert!(
                    anchors(&fs::read_to_string(&target).unwrap()).contains(anchor),
                    "{what}"
                );
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}
