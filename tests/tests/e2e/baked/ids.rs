//! The token in the userdata is the one that then stands in the seed, whatever was there before.

use contract::names::FirewallName;
use contract::token::SeedKey;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tests::harness::{PATIENCE, eventually};
use tests::programs::{Machine, bootstrap_kubeconfig};
use tests::webhook::{Hooked, TEMPLATE, userdata};
use tests::world::{Place, World, bootstrapped};

use super::{followed, kubeconfig_of};

/// What the machine carries opens the seed, and is what the worker handed out.
async fn stands(place: &Place<'_>, name: &str, userdata: &str) -> Machine {
    let machine = Machine::first_boot(place.namespace(), name, userdata).unwrap();
    eventually("the token of the userdata in the seed", PATIENCE, || async {
        let handed_out = bootstrap_kubeconfig(place.seed, place.namespace(), name).await?;
        anyhow::ensure!(handed_out == kubeconfig_of(&machine), "the userdata holds another one");
        Ok(())
    })
    .await
    .unwrap();
    machine
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_an_id_that_is_somebody_elses_is_passed_over_at_once() {
    let world = World::new("shoot--baked--taken").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let client = world.admin().await.unwrap();
    let own: Api<Secret> = Api::namespaced(client.clone(), "firewall-approver");
    let key = own.get("firewall-approver-key").await.unwrap().data.unwrap()["key"]
        .0
        .clone();
    let key = SeedKey::from_bytes(&key).unwrap();
    let name = FirewallName::parse(&hooked.name_of("00001")).unwrap();
    // All that it would get within the next seconds.
    let tokens: Api<Secret> = Api::namespaced(client, "kube-system");
    let now = u32::try_from(jiff::Timestamp::now().as_second()).unwrap();
    let until = now + 30;
    for epoch in now..until {
        let id = key.token(world.namespace(), &name, epoch).id;
        let secret = json!({
            "metadata": { "name": format!("bootstrap-token-{id}") }, "type": "bootstrap.kubernetes.io/token",
            "stringData": { "token-id": id, "token-secret": "0123456789abcdef" },
        });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        tokens.create(&PostParams::default(), &secret).await.unwrap();
    }
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    let epoch: u32 = made.annotations()["firewall.metal-stack.io/bootstrap-epoch"]
        .parse()
        .unwrap();
    assert!(epoch >= until, "{epoch} is taken");
    let machine = stands(&world, &followed(&world, &made).await, userdata(&made)).await;
    assert_eq!(
        world.record(&machine.firewall).await.unwrap()["credential"]["epoch"],
        epoch,
        "{}",
        approver.log()
    );
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_name_that_had_a_record_before_gets_another_token_and_that_one_stands() {
    let world = World::new("shoot--baked--again").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let _approver = hooked.approver(&[]).await.unwrap();
    let firewalls = hooked.firewalls().await.unwrap();
    let mut before = String::new();
    for again in 0..3 {
        let made = hooked.make("00001", TEMPLATE).await.unwrap();
        let name = followed(&world, &made).await;
        let machine = stands(&world, &name, userdata(&made)).await;
        let now = kubeconfig_of(&machine);
        assert!(now != before, "the same token again");
        before = now;
        // Taken away as a move does it, whose record stays, and without one.
        if again == 0 {
            world.shoot.drop_firewalls().await.unwrap();
        } else {
            let bare = kube::api::Patch::Merge(json!({ "metadata": { "finalizers": null } }));
            firewalls
                .patch(&name, &kube::api::PatchParams::default(), &bare)
                .await
                .unwrap();
            firewalls.delete(&name, &DeleteParams::default()).await.unwrap();
        }
        eventually("it is gone", PATIENCE, || async {
            anyhow::ensure!(firewalls.get_opt(&name).await?.is_none(), "not yet");
            Ok(())
        })
        .await
        .unwrap();
    }
}
