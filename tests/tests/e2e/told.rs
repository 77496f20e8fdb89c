//! What one reads of a firewall with kubectl alone: events, and what stands beside the state.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use contract::csr;
use contract::handover::Order;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use contract::report::Report;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tests::flood::make;
use tests::harness::{client_from, eventually};
use tests::upstream::monitors;
use tests::world::{World, shoot_cluster};

use crate::moves::{EVENTUALLY, came_in};
use crate::support::client_of;

/// What this world's approver said: others look at the same requests.
async fn said(world: &World, namespace: &str) -> anyhow::Result<Vec<Event>> {
    let events: Api<Event> = Api::namespaced(world.admin().await?, namespace);
    let name = world.home.name();
    let mut all = events.list(&ListParams::default()).await?.items;
    all.retain(|event| event.reporting_instance.as_deref() == Some(&name));
    Ok(all)
}

fn on<'a>(events: &'a [Event], object: &str, reason: &str) -> Vec<&'a Event> {
    let regards = |event: &&Event| event.regarding.as_ref().and_then(|on| on.name.as_deref()) == Some(object);
    events
        .iter()
        .filter(regards)
        .filter(|event| event.reason.as_deref() == Some(reason))
        .collect()
}

/// A request with a key of its own for this firewall's name, as whoever has this client. Gives its name.
async fn ask(client: &Client, firewall: &str) -> anyhow::Result<String> {
    let request = csr::write(&FirewallName::parse(firewall)?, &PrivateKey::generate()?)?;
    let name = csr::object_name(&request)?;
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "request": k8s_openapi::ByteString(request.into_bytes()), "signerName": names::SIGNER,
            "usages": ["digital signature", "client auth"], "expirationSeconds": 3600,
        },
    });
    let requests: Api<k8s_openapi::api::certificates::v1::CertificateSigningRequest> = Api::all(client.clone());
    let object = serde_json::from_value(object)?;
    requests.create(&Default::default(), &object).await?;
    Ok(name)
}

async fn refused(world: &World, firewall: &str, reason: &str) -> Value {
    eventually(
        &format!("{reason} beside the state"),
        Duration::from_secs(90),
        || async {
            let state = world.state(firewall).await?;
            ensure!(state["lastRefused"]["reason"] == reason, "{state}");
            Ok(state["lastRefused"].clone())
        },
    )
    .await
    .with_context(|| world.home.log())
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_what_is_said_again_is_one_event_with_a_count_and_kubectl_shows_it() {
    let world = World::new("shoot--told--again").await.unwrap();
    let _approver = world.approver_with(&["--poll-interval", "5s"]).unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    world.await_reason(&firewall, "WaitingForFirewall").await.unwrap();
    // Looked at, and said, with each poll.
    let request = ask(&world.admin().await.unwrap(), &firewall).await.unwrap();
    let count = eventually("an event that was counted", EVENTUALLY, || async {
        let events = said(&world, "default").await?;
        let of_request = on(&events, &request, "ForeignRequester");
        let [event] = of_request.as_slice() else {
            anyhow::bail!("{} events", of_request.len())
        };
        let count = event.series.as_ref().context("not counted")?.count;
        ensure!(count >= 3, "{count}");
        Ok((count, (*event).clone()))
    });
    let (count, event) = count.await.with_context(|| world.home.log()).unwrap();
    assert!(count < 60, "{count}");
    assert_eq!(event.reporting_controller.as_deref(), Some("firewall-approver"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    let regarding = event.regarding.unwrap();
    assert_eq!(regarding.kind.as_deref(), Some("CertificateSigningRequest"));
    assert!(regarding.uid.is_some());

    let kubectl = |args: Vec<String>| async move {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        world.seed.kubectl_ok(&args).await.unwrap()
    };
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let world_namespace = "shoot--told--again";
    for (line, reason) in [
        (format!("describe csr {request}"), "ForeignRequester"),
        (
            format!("events -n default --for certificatesigningrequest/{request}"),
            "ForeignRequester",
        ),
        (
            format!("describe firewall -n {world_namespace} {firewall}"),
            "WaitingForFirewall",
        ),
        (
            format!("events -n {world_namespace} --for firewall/{firewall}"),
            "WaitingForFirewall",
        ),
    ] {
        let shown = kubectl(words(&line)).await;
        assert!(shown.contains(reason), "{line}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p30_two_hundred_requests_make_few_events_and_another_firewalls_are_there() {
    let world = World::new("shoot--told--flood").await.unwrap();
    let _approver = world.approver().unwrap();
    let stolen = world.machine("thief").await.unwrap();
    let thief = fs::read_to_string(stolen.bootstrap_kubeconfig()).unwrap();
    let thief = client_from(&thief).await.unwrap();
    let name = FirewallName::parse(&stolen.firewall).unwrap();
    let request = csr::write(&name, &PrivateKey::generate().unwrap()).unwrap();
    let began = Instant::now();
    let made = stream::iter(0..200).map(|_| make(&thief, names::SIGNER, &request));
    let made: Result<Vec<()>, kube::Error> = made.buffer_unordered(16).try_collect().await;
    made.unwrap();
    refused(&world, &stolen.firewall, "TooManyRequests").await;
    let (other, _agent) = came_in(&world, "00001").await;
    // What is left out is told once it was.
    eventually("that events were left out is logged", EVENTUALLY, || async {
        ensure!(world.home.log().contains("events were left out"), "not yet");
        Ok(())
    })
    .await
    .unwrap();
    let events = said(&world, "default").await.unwrap();
    let is_the_floods = |event: &&Event| {
        let name = event.regarding.as_ref().and_then(|on| on.name.as_deref());
        name.is_some_and(|name| name.starts_with("flood-"))
    };
    let floods = events.iter().filter(is_the_floods).count();
    let most = 20 + usize::try_from(began.elapsed().as_secs() / 30).unwrap() + 1;
    assert!((8..=most).contains(&floods), "{floods} events");
    let approved = events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("AutoApproved"));
    assert!(
        approved.clone().any(|event| !is_the_floods(&event)),
        "{}",
        approved.count()
    );
    assert_eq!(world.state(&other.firewall).await.unwrap()["lastRefused"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_the_state_tells_of_requests_that_came_to_nothing_and_what_the_agent_says_itself() {
    let world = World::new("shoot--told--state").await.unwrap();
    let approver = world.approver().unwrap();
    let (machine, agent) = came_in(&world, "00001").await;
    let (other, _other_agent) = came_in(&world, "00002").await;
    let state = world.state(&machine.firewall).await.unwrap();
    let reported: Timestamp = state["agent"]["reported"].as_str().unwrap().parse().unwrap();
    assert!(reported.duration_until(Timestamp::now()).as_secs() < 300, "{state}");
    assert_eq!(state["agent"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(state["lastRefused"], Value::Null);

    // With its certificate, and a key that is not its own.
    let client = client_of(&machine.seed_kubeconfig()).await.unwrap();
    let request = ask(&client, &machine.firewall).await.unwrap();
    let said = refused(&world, &machine.firewall, "OtherKey").await;
    assert_eq!(said["request"], request.as_str());
    assert!(said["message"].as_str().unwrap().contains("pinned is"), "{said}");
    assert!(said["time"].as_str().unwrap().parse::<Timestamp>().is_ok(), "{said}");
    // For another's name: said of who asked, not of whose name it is.
    let request = ask(&client_of(&other.seed_kubeconfig()).await.unwrap(), &machine.firewall)
        .await
        .unwrap();
    let of_other = refused(&world, &other.firewall, "NotYours").await;
    assert_eq!(of_other["request"], request.as_str());
    let state = world.state(&machine.firewall).await.unwrap();
    assert_eq!(
        (&state["reason"], &state["lastRefused"]),
        (&json!("Bootstrapped"), &said)
    );

    // What somebody else signed is not its word.
    drop(agent);
    let stranger = PrivateKey::generate().unwrap();
    let forged = Report {
        firewall: FirewallName::parse(&machine.firewall).unwrap(),
        seed: "any".into(),
        namespace: world.namespace().to_owned(),
        certificate: None,
        taken_up: Order::default(),
        seal: None,
        key: stranger.public(),
        handover_keys: Vec::new(),
        server: String::new(),
        ca: String::new(),
        refused: false,
        cut_off: false,
        clock_skew_seconds: Some(7777),
        last_error: Some("forged words".into()),
        agent_version: "9.9.9".into(),
        time: Timestamp::now(),
    };
    let patch = json!({"metadata": {"annotations": {names::SEED_ACCESS_REPORT: forged.sign(&stranger).unwrap()}}});
    let all = monitors(shoot_cluster().await.unwrap()).await.unwrap();
    all.patch(&machine.firewall, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    eventually("the forged report is doubted", EVENTUALLY, || async {
        ensure!(
            world
                .home
                .log()
                .contains("report in the FirewallMonitor is not believed"),
            "not yet"
        );
        Ok(())
    })
    .await
    .unwrap();

    // Written anew after a restart, for something else: what was told before still stands.
    approver.kill();
    let _approver = world.approver().unwrap();
    let _agent = machine.start().unwrap();
    let before = world.state(&machine.firewall).await.unwrap();
    world
        .annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=1")
        .await
        .unwrap();
    let state = eventually("the next certificate in the state", Duration::from_secs(90), || async {
        let state = world.state(&machine.firewall).await?;
        ensure!(
            state["until"] != before["until"] && state["reason"] == "Bootstrapped",
            "{state}"
        );
        Ok(state)
    });
    let state = state.await.with_context(|| world.home.log()).unwrap();
    assert_eq!(state["lastRefused"], said);
    // And whoever has kubectl, and nothing else, reads all of it.
    let path = r"jsonpath={.metadata.annotations.firewall\.metal-stack\.io/seed-access-state}";
    let args = [
        "get",
        "firewall",
        "-n",
        world.namespace(),
        &machine.firewall,
        "-o",
        path,
    ];
    let shown = world.seed.kubectl_ok(&args).await.unwrap();
    assert!(!shown.contains("forged") && !shown.contains("7777"), "{shown}");
    assert!(
        shown.contains("\"lastRefused\":{") && shown.contains("\"reported\":"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn b5_a_wrong_clock_of_the_machine_or_of_the_approver_is_told() {
    // tests/tools.sh installs it.
    let library = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
        .into_iter()
        .map(|dir| format!("{dir}/faketime/libfaketime.so.1"))
        .find(|path| fs::metadata(path).is_ok())
        .unwrap();
    let ahead = [
        ("LD_PRELOAD", library.as_str()),
        ("FAKETIME", "+1h"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let world = World::new("shoot--told--clock").await.unwrap();
    let approver = world.approver().unwrap();
    let (machine, agent) = came_in(&world, "00001").await;
    drop(agent);
    let _agent = machine.start_in(&ahead).unwrap();
    eventually(
        "the machine's clock beside the state",
        Duration::from_secs(90),
        || async {
            let state = world.state(&machine.firewall).await?;
            let skew = state["agent"]["clockSkewSeconds"].as_i64().unwrap_or_default();
            ensure!((3590..3610).contains(&skew), "{state}");
            Ok(())
        },
    )
    .await
    .with_context(|| machine.log())
    .unwrap();
    assert!(said(&world, "firewall-approver").await.unwrap().is_empty());
    approver.kill();

    let args = ["--namespace", world.namespace()];
    let _approver = world.home.start_in(&ahead, &args).unwrap();
    let what = "an event in the approver's namespace";
    let event = eventually(what, EVENTUALLY, || async {
        let events = said(&world, "firewall-approver").await?;
        let events = on(&events, "firewall-approver", "ClockWrong");
        events.first().map(|event| (*event).clone()).context("none yet")
    });
    let note = event.await.with_context(|| world.home.log()).unwrap().note.unwrap();
    assert!(note.contains("about 60 minutes ahead of the seed's"), "{note}");
    assert!(world.home.log().contains("ClockWrong"));
}
