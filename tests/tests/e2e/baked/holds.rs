//! Who is away, who writes over it, and who asks without being an API server.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::ListParams;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tests::harness::{PATIENCE, client_from, eventually};
use tests::programs::{ApproverHome, Machine};
use tests::webhook::{A_SECOND, Hooked, TEMPLATE, TO_ALL, ask, userdata};
use tests::world::{Place, World, own_seed, shoot_cluster};
use tokio::time::Instant;

use super::kubeconfig_of;

/// firewall-controller-manager's sync: the spec as its template has it.
pub(super) async fn written_over(hooked: &Hooked<'_>, name: &str) {
    let firewalls = hooked.firewalls().await.unwrap();
    loop {
        let mut firewall = firewalls.get(name).await.unwrap();
        firewall.data["spec"]["userdata"] = json!(TEMPLATE);
        match firewalls.replace(name, &PostParams::default(), &firewall).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_for_a_minute_a_controller_writes_its_template_over_it_and_nothing_changes() {
    let world = World::new("shoot--baked--over").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    let name = made.name_any();
    let firewalls = hooked.firewalls().await.unwrap();
    let asked = hooked.asked(&approver, "update").await.unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut writes = 0;
    while Instant::now() < end {
        written_over(&hooked, &name).await;
        writes += 1;
        let now = firewalls.get(&name).await.unwrap();
        assert!(
            userdata(&now) == userdata(&made),
            "after {writes} writes another userdata"
        );
        assert_eq!(
            now.metadata.generation, made.metadata.generation,
            "after {writes} writes"
        );
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(
        hooked.asked(&approver, "update").await.unwrap() >= asked + writes,
        "{writes} writes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_metadata_and_status_and_of_one_that_goes_nobody_asks() {
    let world = World::new("shoot--baked--meta").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    let name = super::followed(&world, &made).await;
    // The approver writes its own annotation meanwhile.
    world.await_reason(&name, "WaitingForFirewall").await.ok();
    world.annotate(&name, "somebody=s").await.unwrap();
    tokio::time::sleep(A_SECOND).await;
    assert_eq!(hooked.asked(&approver, "update").await.unwrap(), 0);
    // While it goes its controller may write what it likes.
    let firewalls = hooked.firewalls().await.unwrap();
    firewalls
        .delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let patch = json!({ "spec": { "userdata": TEMPLATE } });
    let gone = firewalls
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert_eq!(userdata(&gone), TEMPLATE);
    assert_eq!(hooked.asked(&approver, "update").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_approver_no_firewall_is_made_and_every_one_that_there_is_can_be_changed() {
    let world = World::new("shoot--baked--absent").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    approver.kill();
    let refused = hooked.make("00002", TEMPLATE).await.unwrap_err().to_string();
    assert!(refused.contains("create.firewall-approver.metal-stack.io"), "{refused}");
    written_over(&hooked, &made.name_any()).await;
    let firewalls = hooked.firewalls().await.unwrap();
    let now = firewalls.get(&made.name_any()).await.unwrap();
    assert_eq!(userdata(&now), TEMPLATE);
    // When it is back the next change puts it right.
    let _approver = hooked.approver(&[]).await.unwrap();
    let patch = json!({ "spec": { "size": "another" } });
    let now = firewalls
        .patch(&made.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    assert!(userdata(&now) == userdata(&made), "another userdata");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_makes_nothing_anywhere() {
    for (kind, namespace) in [
        ("token", "shoot--baked--dry"),
        ("service-account", "shoot--baked--dryaccount"),
    ] {
        let world = World::new(namespace).await.unwrap();
        let hooked = Hooked::install(&world).await.unwrap();
        let _approver = hooked.approver(&["--bootstrap-credential", kind]).await.unwrap();
        let tried = hooked.try_it("00001").await.unwrap();
        let machine = Machine::first_boot(namespace, &tried.name_any(), userdata(&tried)).unwrap();
        // What comes to nothing is no credential either: it ends up in people's terminals.
        assert!(kubeconfig_of(&machine).contains("\"dry-run\""), "{kind}");
        let names = |secrets: Vec<Secret>| secrets.iter().map(|secret| secret.name_any()).collect::<Vec<_>>();
        let ours = ListParams::default().labels("app.kubernetes.io/managed-by=firewall-approver");
        let secrets = world.secrets().await.unwrap().list(&ours).await.unwrap();
        assert!(secrets.items.is_empty(), "{kind}: {:?}", names(secrets.items));
        let client = world.admin().await.unwrap();
        let of = format!("firewall.metal-stack.io/namespace={namespace}");
        for namespace in ["kube-system", "firewall-bootstrap"] {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
            let found = secrets.list(&ListParams::default().labels(&of)).await.unwrap().items;
            assert!(found.is_empty(), "{kind}: {:?}", names(found));
        }
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "firewall-bootstrap");
        let found = accounts.list(&ListParams::default().labels(&of)).await.unwrap().items;
        assert!(found.is_empty(), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_ignition_stays_as_it_is_with_a_warning_that_names_the_firewall_and_what_cannot_be_served_is_refused()
 {
    let world = World::new("shoot--baked--other").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let _approver = hooked.approver(&[]).await.unwrap();
    let script = "#cloud-config\nruncmd: []\n";
    let path = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(path.path(), hooked.firewall("00001", script).to_string()).unwrap();
    let file = path.path().display().to_string();
    let output = world.seed.kubectl(&["create", "-f", &file]).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("Warning: Firewall shoot--baked--other/shoot--baked--other-firewall-00001"),
        "{said}"
    );
    let made = hooked
        .firewalls()
        .await
        .unwrap()
        .get(&hooked.name_of("00001"))
        .await
        .unwrap();
    assert_eq!(userdata(&made), script);
    for (suffix, userdata, words) in [
        ("00002", r#"{"ignition":{"version":"1.0.0"}}"#, "Ignition version"),
        (
            "a-name-that-is-so-much-longer-than-a-certificate-has",
            TEMPLATE,
            "shorter name",
        ),
    ] {
        let refused = hooked.make(suffix, userdata).await.unwrap_err().to_string();
        assert!(
            refused.contains(words) && refused.contains(&hooked.name_of(suffix)),
            "{refused}"
        );
    }
    // With none at all it gets one.
    let empty = hooked.make("00003", "").await.unwrap();
    assert!(userdata(&empty).contains(".bootstrap.kubeconfig"));
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_two_replicas_give_the_same_bytes_and_the_one_that_waits_answers_while_nobody_leads() {
    let world = World::new("shoot--baked--two").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let first = hooked.approver(&[]).await.unwrap();
    let home = ApproverHome::new(world.seed).await.unwrap();
    let second = home
        .start(&["--namespace", world.namespace(), "--webhook-listen", TO_ALL])
        .unwrap();
    let waits = second.webhook().await.unwrap();
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    hooked.front.lead_to(&[waits]);
    hooked.answers(&second).await.unwrap();
    assert!(!home.log().contains("\"leads\""), "{}", home.log());
    written_over(&hooked, &made.name_any()).await;
    let now = hooked.firewalls().await.unwrap().get(&made.name_any()).await.unwrap();
    assert!(
        userdata(&now) == userdata(&made),
        "the other replica gives another userdata"
    );
    assert!(hooked.asked(&second, "update").await.unwrap() >= 1);
    first.kill();
    let made = hooked.make("00002", TEMPLATE).await.unwrap();
    let name = super::followed(&world, &made).await;
    let machine = tests::programs::Machine::first_boot(world.namespace(), &name, userdata(&made)).unwrap();
    // It leads when the lease of the first is over, and has the token stand that it gave while it waited.
    let what = "the token of the userdata in the seed";
    eventually(what, PATIENCE, || async {
        let handed_out = tests::programs::bootstrap_kubeconfig(world.seed, world.namespace(), &name).await?;
        anyhow::ensure!(
            handed_out == super::kubeconfig_of(&machine),
            "the userdata holds another one"
        );
        Ok(())
    })
    .await
    .unwrap();
    let _agent = machine.start().unwrap();
    tests::world::bootstrapped(&machine).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a3_whoever_reaches_the_port_and_is_no_api_server_gets_no_credential() {
    let world = World::new("shoot--baked--stranger").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let made = hooked.make("00001", TEMPLATE).await.unwrap();
    // As an API server asks about a Firewall that there is, to the byte.
    let mut object = serde_json::to_value(&made).unwrap();
    object["spec"]["userdata"] = json!(TEMPLATE);
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "x", "operation": "UPDATE", "name": made.name_any(), "namespace": world.namespace(),
            "kind": { "group": "firewall.metal-stack.io", "version": "v2", "kind": "Firewall" },
            "resource": { "group": "firewall.metal-stack.io", "version": "v2", "resource": "firewalls" },
            "userInfo": {}, "object": object, "oldObject": object,
        },
    })
    .to_string();
    let configuration = hooked.configuration().await.unwrap();
    let client = configuration.webhooks.unwrap().remove(0).client_config;
    let url = client.url.unwrap();
    let path = &url[url.find("/mutate-firewalls/").unwrap()..];
    let (address, ca) = (approver.webhook().await.unwrap(), client.ca_bundle.unwrap().0);
    let guess = format!("/mutate-firewalls/{}", "0".repeat(64));
    for guess in [
        "/",
        "/mutate-firewalls",
        "/mutate-firewalls/",
        &guess,
        &path[..path.len() - 1],
        "/metrics",
        "/readyz",
    ] {
        let (status, answer) = ask(address, &ca, guess, &review).await.unwrap();
        assert!(
            status == 404 && !answer.contains("userdata") && !answer.contains("patch"),
            "{guess}: {answer}"
        );
    }
    let (status, answer) = ask(address, &ca, path, &review).await.unwrap();
    assert!(status == 200 && answer.contains("\"patch\""), "{answer}");
    // Who has the path gets by it what stands, and neither what he says of it nor what does not.
    let patch_of = |answer: &str| {
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let review: Value = serde_json::from_str(body).unwrap();
        review["response"]["patch"].clone()
    };
    let epoch = made.annotations()["firewall.metal-stack.io/bootstrap-epoch"].clone();
    let other = (epoch.parse::<u32>().unwrap() + 1).to_string();
    let (_, forged) = ask(address, &ca, path, &review.replace(&epoch, &other)).await.unwrap();
    assert!(patch_of(&forged) == patch_of(&answer), "another token is given");
    for nobodys in [
        review.replace(&made.name_any(), &hooked.name_of("00009")),
        review.replace("\"UPDATE\"", "\"CREATE\""),
    ] {
        let (status, answer) = ask(address, &ca, path, &nobodys).await.unwrap();
        assert!(status == 200 && patch_of(&answer).is_null(), "{answer}");
    }
    // Of what is none of ours nothing is said, and what cannot be read is no reason to end.
    for (body, wanted) in [
        (review.replace("\"firewalls\"", "\"pods\""), 200),
        ("{}".to_owned(), 400),
        ("x".to_owned(), 400),
    ] {
        let (status, answer) = ask(address, &ca, path, &body).await.unwrap();
        assert!(status == wanted && !answer.contains("\"patch\""), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_opens_many_connections_and_asks_nothing_holds_up_nobody() {
    let world = World::new("shoot--baked--many").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let approver = hooked.approver(&[]).await.unwrap();
    let address = approver.webhook().await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    for _ in 0..5 {
        hooked.try_it("probe").await.unwrap();
    }
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn p24_where_the_webhooks_policy_is_missing_the_approver_serves_no_webhook() {
    let seed = own_seed("seed-webhook-policy").await.unwrap();
    let place = Place::empty(&seed, shoot_cluster().await.unwrap(), "shoot--baked--policy")
        .await
        .unwrap();
    place.settle().await.unwrap();
    let hooked = Hooked::install(&place).await.unwrap();
    let kubeconfig = std::fs::read_to_string(place.home.kubeconfig()).unwrap();
    let own: Api<MutatingWebhookConfiguration> = Api::all(client_from(&kubeconfig).await.unwrap());
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let label = Patch::Merge(&labelled);
    // Either way it takes a moment.
    eventually("the policy is in force", PATIENCE, || async {
        let answer = own.patch(&hooked.name, &dry, &label).await;
        let held = answer.is_err_and(|error| error.to_string().contains("firewall-approver-webhooks"));
        anyhow::ensure!(held, "nobody is held");
        Ok(())
    })
    .await
    .unwrap();
    let bound = "validatingadmissionpolicybinding/firewall-approver-webhooks";
    place.seed.kubectl_ok(&["delete", bound]).await.unwrap();
    eventually("nobody is held", PATIENCE, || async {
        Ok(own.patch(&hooked.name, &dry, &label).await.map(drop)?)
    })
    .await
    .unwrap();
    let mut approver = place.approver_with(&["--webhook-listen", TO_ALL]).unwrap();
    assert_eq!(approver.ended(Duration::from_secs(60)).await.unwrap(), Some(1));
    let log = place.home.log();
    assert!(log.contains("firewall-approver-webhooks should have refused"), "{log}");
    // Without the webhook it is none of its business.
    let without = place.approver().unwrap();
    let http = without.http().await.unwrap();
    eventually("it leads", PATIENCE, || async {
        let answer = http.get("/readyz/leader").await?;
        anyhow::ensure!(answer.status == 200, "{}", answer.body);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(http.get("/readyz/webhook").await.unwrap().status, 404);
    drop(without);
    // Where its rights are missing, they are named.
    let right = "clusterrole/firewall.metal-stack.io:".to_owned() + &format!("{}-webhook", hooked.name);
    place.seed.kubectl_ok(&["delete", &right]).await.unwrap();
    let mut approver = place.approver_with(&["--webhook-listen", TO_ALL]).unwrap();
    assert_eq!(approver.ended(Duration::from_secs(60)).await.unwrap(), Some(1));
    let log = place.home.log();
    assert!(
        log.contains("mutatingwebhookconfigurations.admissionregistration.k8s.io") && log.contains("manifests/webhook"),
        "{log}"
    );
}
