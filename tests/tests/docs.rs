//! What the documents repeat of the project, held against it.

use std::collections::BTreeSet;
use std::fs;

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
