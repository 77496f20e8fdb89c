//! A machine's folders as released versions left them, at rest and in the midst of a move: each folder in `tests/compat`
//! holds those of one.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::Value;

use super::*;
use crate::status::Status;

fn machines() -> Vec<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/compat");
    let versions = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> = versions
        .filter(|path| path.is_dir())
        .flat_map(|version| fs::read_dir(version.join("machine")).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    assert!(!found.is_empty(), "{root} holds no machine");
    found
}

/// As it is on a disk: nobody else may read it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), target).unwrap();
        } else if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
            fs::set_permissions(target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn holds(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|found| holds(found, value))),
        _ => whole == part,
    }
}

/// What is in the file stays in it when it is written again.
fn kept<T: Serialize>(path: &Path, read: Option<&T>) {
    let Some(text) = files::read_private(path).unwrap() else {
        return;
    };
    let before: Value = serde_json::from_str(&text).unwrap();
    let again = serde_json::to_value(read.unwrap()).unwrap();
    assert!(holds(&again, &before), "{}: {before} became {again}", path.display());
}

#[test]
fn c4_d1_an_agent_goes_on_from_what_each_version_left_on_the_machine() {
    for machine in machines() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            config: dir.path().join("config"),
            state: dir.path().join("state"),
        };
        copy(&machine.join("config"), &paths.config);
        copy(&machine.join("state"), &paths.state);
        let store = Store::open(paths.clone()).unwrap();

        let key = store.key().unwrap().unwrap();
        let (pair, of_pair) = store.pair().unwrap().unwrap();
        assert_eq!(key.public(), of_pair.public(), "{machine:?}");
        assert!(store.is_current(&pair), "{machine:?}");
        let (access, handover) = (store.access().unwrap().unwrap(), store.handover().unwrap());
        kept(&paths.access(), Some(&access));
        kept(&paths.handover(), handover.as_ref());
        kept(&paths.handled(), Some(&store.handled().unwrap()));
        kept(&paths.fence(), Some(&store.fence(None).unwrap()));
        kept(&paths.switching(), store.switching().unwrap().as_ref());
        // One that cannot be read is none, and another would be made.
        let request = store.request().unwrap();
        assert_eq!(request.is_some(), paths.request().is_file(), "{machine:?}");
        kept(&paths.request(), request.as_ref());
        let status: Status = store.json(&paths.status()).unwrap().unwrap();
        kept(&paths.status(), Some(&status));
        assert!(store.kubeconfig(&paths.lifeline()).unwrap().is_some(), "{machine:?}");
        assert!(store.kubeconfig(&paths.bootstrap()).unwrap().is_some(), "{machine:?}");

        if machine.ends_with("moving") {
            let pending = handover.as_ref().unwrap();
            pending.read(&access.firewall).unwrap();
            assert_eq!(store.fence(Some(pending)).unwrap(), pending.fence);
        }
        let (access, _) = store.recover(Some(&pair), Some(access), handover).unwrap();
        store.install(&access.unwrap()).unwrap();
        assert_eq!(store.key().unwrap().unwrap().public(), key.public());
    }
}
