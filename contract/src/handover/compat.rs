//! The handovers of released versions, read with the code of now. The agent's key to open them lives in its memory only, so
//! it is here that a kept one can be put together.

use std::fs;
use std::path::Path;

use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::*;
use crate::kubeconfig::Kubeconfig;

fn text(version: &Path, file: &str) -> String {
    let path = version.join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(version: &Path, file: &str) -> Value {
    serde_json::from_str(&text(version, file)).unwrap()
}

fn decoded(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

#[test]
fn c4_handover_and_notice_of_each_version_are_believed_and_opened() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/compat"));
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut versions = 0;
    for version in folders.filter(|path| path.is_dir()) {
        versions += 1;
        let state = json(&version, "state/moving.json");
        let key = PrivateKey::from_pem(str::from_utf8(&decoded(&state["data"]["handover-key"])).unwrap()).unwrap();
        let machine = PrivateKey::from_pem(&text(&version, "machine/moved/state/key.pem")).unwrap();
        let kept = json(&version, "messages/seal-key.json");
        let seal = SealKey {
            private: decoded(&kept["private"]).into(),
            public: serde_json::from_value(kept["public"].clone()).unwrap(),
        };

        let handover = read(&text(&version, "messages/handover.jws"), &[key.public()]).unwrap();
        let claims = &handover.claims;
        handover
            .check(&claims.firewall, &machine.public(), claims.issued)
            .unwrap();
        Fence::default().admits(&handover).unwrap();
        let opened = Kubeconfig::read("sealed", &handover.open(&seal).unwrap()).unwrap();
        assert_eq!(opened.namespace, claims.namespace, "{version:?}");
        assert_eq!(opened.bootstrap.unwrap().firewall, claims.firewall, "{version:?}");

        let notice = read(&text(&version, "messages/notice.jws"), &[key.public()]).unwrap();
        assert!(notice.is_notice(), "{version:?}");
        assert_ne!(notice.claims.firewall, handover.claims.firewall, "{version:?}");
    }
    assert!(versions > 0, "{} holds no version", root.display());
}
