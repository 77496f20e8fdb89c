//! The webhook: a Firewall that is made carries its way into the seed in its userdata, and its machine begins by itself.
//!
//! - `holds`: who is away, who writes over it, who asks without being an API server
//! - `ids`: the token in the userdata is the one that stands in the seed
//! - `printed`: what people get who write userdata themselves
//! - `rolls`: its certificate is rolled under admissions

mod holds;
mod ids;
mod printed;
mod rolls;

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use anyhow::ensure;
use aws_lc_rs::digest;
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use tests::harness::eventually;
use tests::moves::{Leaves, Stage};
use tests::programs::{Machine, Release, bootstrap_kubeconfig};
use tests::webhook::{Hooked, TEMPLATE, userdata};
use tests::world::{Place, World, bootstrapped};

use crate::moves::{PROMISED, settled};

/// firewall-controller-manager follows with what it has to say of a Firewall.
async fn followed(place: &Place<'_>, firewall: &DynamicObject) -> String {
    let name = firewall.name_any();
    place.shoot.create_monitor(&name).await.unwrap();
    place
        .shoot
        .write_status(&name, &place.shoot.shoot_access())
        .await
        .unwrap();
    name
}

/// The kubeconfig that a first boot puts onto the machine.
fn kubeconfig_of(machine: &Machine) -> String {
    std::fs::read_to_string(machine.bootstrap_kubeconfig()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_firewall_that_is_made_carries_its_way_in_and_its_machine_begins_by_itself() {
    let world = World::new("shoot--baked--made").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let _approver = hooked
        .approver(&["--agent-setting", "NO_PROXY=10.0.0.0/8"])
        .await
        .unwrap();
    let firewall = hooked.make("00001", TEMPLATE).await.unwrap();
    let machine = Machine::first_boot(
        world.namespace(),
        &followed(&world, &firewall).await,
        userdata(&firewall),
    )
    .unwrap();
    let mode = std::fs::metadata(machine.bootstrap_kubeconfig())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let root = machine.path();
    for (file, words) in [
        ("etc/hostname", "a name"),
        ("etc/default/firewall-agent", "NO_PROXY=\"10.0.0.0/8\"\n"),
        ("etc/systemd/system/droptailer.service", "[Unit]\n"),
    ] {
        assert_eq!(std::fs::read_to_string(root.join(file)).unwrap(), words);
    }
    // The worker made the very same for whoever writes userdata himself.
    let handed_out = bootstrap_kubeconfig(world.seed, world.namespace(), &machine.firewall)
        .await
        .unwrap();
    assert!(handed_out == kubeconfig_of(&machine), "the userdata holds another one");
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&world, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_where_the_image_has_no_agent_it_is_loaded_and_verified_and_begins() {
    let world = World::new("shoot--baked--loaded").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let program = std::fs::read(Release::built().unwrap().agent()).unwrap();
    let digest = digest::digest(&digest::SHA512, &program);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let url = "https://images.example/firewall-agent";
    let _approver = hooked
        .approver(&["--agent-url", url, "--agent-sha512", &digest])
        .await
        .unwrap();
    let firewall = hooked
        .make("00001", r#"{"ignition":{"version":"3.4.0"}}"#)
        .await
        .unwrap();
    let name = followed(&world, &firewall).await;
    let boot = |program: Vec<u8>| {
        let fetch = move |from: &str| {
            ensure!(from == url, "{from}");
            Ok(program.clone())
        };
        Machine::first_boot_loading(world.namespace(), &name, userdata(&firewall), fetch)
    };
    let mut other = program.clone();
    other.push(0);
    assert!(boot(other).is_err(), "another program is taken");
    let machine = boot(program).unwrap();
    assert!(
        machine.program().unwrap().starts_with(machine.path()),
        "it is not the one that was loaded"
    );
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_where_tokens_open_too_much_the_userdata_holds_a_service_accounts() {
    let world = World::new("shoot--baked--account").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked
        .approver(&["--bootstrap-credential", "service-account"])
        .await
        .unwrap();
    let firewall = hooked.make("00001", TEMPLATE).await.unwrap();
    let name = followed(&world, &firewall).await;
    let machine = Machine::first_boot(world.namespace(), &name, userdata(&firewall)).unwrap();
    // Written over by the template, it gets back what nobody can derive.
    let before = userdata(&firewall).to_owned();
    holds::written_over(&hooked, &name).await;
    let now = hooked.firewalls().await.unwrap().get(&name).await.unwrap();
    assert!(userdata(&now) == before, "another userdata:\n{}", approver.log());
    bootstrap_kubeconfig(world.seed, world.namespace(), &name)
        .await
        .unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&world, &machine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_a_firewall_that_comes_with_a_move_gets_a_way_into_its_new_seed_and_moves() {
    let stage = Stage::new("shoot--baked--moved").await.unwrap();
    let (there, here) = (
        Hooked::install(&stage.a).await.unwrap(),
        Hooked::install(&stage.b).await.unwrap(),
    );
    let _a = there.approver(&[]).await.unwrap();
    let _b = here.approver(&[]).await.unwrap();
    let firewall = there.make("00001", TEMPLATE).await.unwrap();
    let name = followed(&stage.a, &firewall).await;
    let machine = Machine::first_boot(stage.a.namespace(), &name, userdata(&firewall)).unwrap();
    let _agent = machine.start().unwrap();
    settled(&stage.a, &machine).await;
    // And one whose machine has not come in yet.
    let late = there.make("00002", TEMPLATE).await.unwrap();
    let late = followed(&stage.a, &late).await;
    bootstrap_kubeconfig(stage.a.seed, stage.a.namespace(), &late)
        .await
        .unwrap();

    let began = stage.a.move_to(&stage.b, Leaves::Nothing).await.unwrap();
    stage.b.has(&machine, began, PROMISED).await.unwrap();
    let moved = here.firewalls().await.unwrap().get(&late).await.unwrap();
    let machine = Machine::first_boot(stage.b.namespace(), &late, userdata(&moved)).unwrap();
    assert!(kubeconfig_of(&machine).contains(stage.b.home.server()));
    let same = eventually("its token in the new seed", Duration::from_secs(30), || async {
        let handed_out = bootstrap_kubeconfig(stage.b.seed, stage.b.namespace(), &late).await?;
        ensure!(handed_out == kubeconfig_of(&machine), "the userdata holds another one");
        Ok(())
    });
    same.await.unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    settled(&stage.b, &machine).await;
}
