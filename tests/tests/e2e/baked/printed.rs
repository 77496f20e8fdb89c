//! Without the webhook: what is printed for people who write userdata themselves.

use std::io::Write as _;
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;
use tests::harness::eventually;
use tests::programs::{Machine, bootstrap_kubeconfig, printed};
use tests::webhook::TEMPLATE;
use tests::world::{World, bootstrapped};

use crate::moves::settled;

const KUBECONFIG: &str = "/etc/firewall-controller/.bootstrap.kubeconfig";
const SETTING: &str = "NO_PROXY=10.0.0.0/8";

fn of_path<'a>(files: &'a Value, path: &str) -> &'a Value {
    let files = files.as_array().unwrap();
    files.iter().find(|file| file["path"] == path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_what_is_printed_is_what_a_machine_begins_with_in_each_language() {
    let world = World::new("shoot--baked--printed").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.machine("00001").await.unwrap().firewall.clone();
    let object = format!("{}/{firewall}", world.namespace());
    let print = |more: &'static [&'static str]| {
        let args = [&["userdata", object.as_str(), "--agent-setting", SETTING], more].concat();
        async move { printed(world.seed, &args).await }
    };
    let handed_out = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();

    let butane: Value = serde_saphyr::from_str(&print(&["--format", "butane"]).await.unwrap()).unwrap();
    let file = of_path(&butane["storage"]["files"], KUBECONFIG);
    assert!(file["contents"]["inline"] == handed_out.as_str() && file["mode"] == 0o600);
    assert_eq!(butane["systemd"]["units"][0]["name"], "firewall-agent.service");

    let cloud = print(&["--format", "cloud-init"]).await.unwrap();
    assert!(cloud.starts_with("#cloud-config\n"));
    let cloud: Value = serde_saphyr::from_str(&cloud).unwrap();
    let file = of_path(&cloud["write_files"], KUBECONFIG);
    assert!(file["content"] == handed_out.as_str() && file["permissions"] == "0600");

    let mut template = tempfile::NamedTempFile::new().unwrap();
    template.write_all(TEMPLATE.as_bytes()).unwrap();
    let args = [
        "userdata",
        &object,
        "--agent-setting",
        SETTING,
        "--template",
        template.path().to_str().unwrap(),
    ];
    let config = printed(world.seed, &args).await.unwrap();
    let machine = Machine::first_boot(world.namespace(), &firewall, &config).unwrap();
    let root = machine.path();
    for (file, words) in [
        ("etc/hostname", "a name"),
        ("etc/default/firewall-agent", "NO_PROXY=\"10.0.0.0/8\"\n"),
    ] {
        assert_eq!(std::fs::read_to_string(root.join(file)).unwrap(), words);
    }
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&world, &machine).await;

    // Of a firewall that is in there is nothing to begin with, and it says what to do.
    eventually("the Secret to be gone", Duration::from_secs(60), || async {
        let said = print(&[]).await.unwrap_err().to_string();
        ensure!(said.contains("firewall-approver export"), "{said}");
        Ok(())
    })
    .await
    .unwrap();
}
