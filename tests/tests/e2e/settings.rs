//! What both programs are told by flags and environment: shown with where it came from, refused before anybody is asked,
//! and acted on for firewalls that are in (D4).

use std::fs;

use anyhow::{Context, ensure};
use contract::kubeconfig::Kubeconfig;
use serde_json::Value;
use tests::harness::{Proxy, eventually};
use tests::programs::{ApproverHome, Machine, Program};
use tests::world::{Place, World, seed};

use crate::moves::{EVENTUALLY, came_in, said, settled};
use crate::support::{certificate_of, requests_for};

/// A program that ends by itself at once: its code, and what it said.
async fn ends(mut program: Program) -> (Option<i32>, String) {
    let code = program.ended(EVENTUALLY).await.unwrap();
    (code, program.log())
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_shown_with_whose_word_counts_and_nobody_is_asked() {
    let home = ApproverHome::new(seed().await.unwrap()).await.unwrap();
    let args = [
        "run",
        "--print-config",
        "--kubeconfig",
        "/nowhere",
        "--seed-access=token",
    ];
    let environment = [
        ("FIREWALL_APPROVER_SEED_ACCESS", "certificate"),
        ("FIREWALL_APPROVER_NAMESPACE", "a,b"),
        ("FIREWALL_APPROVER_DRY_RUN", "true"),
    ];
    let (code, said) = ends(home.start_alone(&environment, &args).unwrap()).await;
    assert_eq!(code, Some(0), "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    let is = |name: &str, value: Value, from: &str| {
        assert_eq!(said[name], serde_json::json!({"value": value, "from": from}), "{name}");
    };
    is("kubeconfig", "/nowhere".into(), "--kubeconfig");
    is("seed-access", "token".into(), "--seed-access");
    is("namespace", vec!["a", "b"].into(), "FIREWALL_APPROVER_NAMESPACE");
    is("dry-run", "true".into(), "FIREWALL_APPROVER_DRY_RUN");
    is("poll-interval", "5m".into(), "default");
    is("seed-server", Value::Null, "default");

    let machine = Machine::with_kubeconfig("shoot--none", "none", "no kubeconfig").unwrap();
    let agent = machine.start_with(&["--print-config", "--log-level", "debug"]).unwrap();
    let (code, said) = ends(agent).await;
    assert_eq!(code, Some(0), "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["log-level"]["from"], "--log-level");
    assert_eq!(said["state-dir"]["value"], machine.state().to_str().unwrap());
    assert!(machine.state().read_dir().unwrap().next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_by_flag_variable_and_value_and_a_misspelt_variable_is_named() {
    let seed = seed().await.unwrap();
    let home = ApproverHome::new(seed).await.unwrap();
    let wrong = |variable: &'static str, value: &'static str, words: &'static [&'static str]| (variable, value, words);
    for (variable, value, words) in [
        wrong(
            "FIREWALL_APPROVER_POLL_INTERVAL",
            "2h",
            &["--poll-interval", "\"2h\"", "1h at most"],
        ),
        wrong(
            "FIREWALL_APPROVER_SEED_ACCESS",
            "maybe",
            &["--seed-access", "\"maybe\"", "certificate, token"],
        ),
        wrong("FIREWALL_APPROVER_DRY_RUN", "perhaps", &["--dry-run", "\"perhaps\""]),
        wrong("FIREWALL_APPROVER_NAMESPACE", "a,b,a", &["--namespace", "\"a\" twice"]),
        wrong("FIREWALL_APPROVER_LISTEN", "8080", &["--listen", "\"8080\""]),
        wrong(
            "FIREWALL_APPROVER_SEED_SERVER",
            "https://me:secretword@seed",
            &["--seed-server", "not shown"],
        ),
    ] {
        for print in [&["run"][..], &["run", "--print-config"]] {
            let (code, said) = ends(home.start_alone(&[(variable, value)], print).unwrap()).await;
            assert_eq!(code, Some(2), "{said}");
            assert!(said.contains(variable), "{said}");
            assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
            assert!(!said.contains("secretword"), "{said}");
            fs::remove_file(home.log_path()).unwrap();
        }
    }
    let machine = Machine::with_kubeconfig("shoot--none", "none", "no kubeconfig").unwrap();
    let environment = [
        ("FIREWALL_AGENT_CERTIFICATE_DURATION", "2d"),
        ("FIREWALL_AGENT_HOKO", "true"),
    ];
    let (code, said) = ends(machine.start_in(&environment).unwrap()).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("FIREWALL_AGENT_HOKO is no setting"), "{said}");
    assert!(!said.contains("DURATION is no setting"), "{said}");
    let (code, said) = ends(
        machine
            .start_in(&[("FIREWALL_AGENT_CERTIFICATE_DURATION", "1m")])
            .unwrap(),
    )
    .await;
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("--certificate-duration (FIREWALL_AGENT_CERTIFICATE_DURATION) is \"1m\""),
        "{said}"
    );
}

fn server_of(machine: &Machine) -> anyhow::Result<String> {
    let text = fs::read_to_string(machine.seed_kubeconfig())?;
    Ok(Kubeconfig::read_local("the machine's kubeconfig", &text)?.server)
}

/// Both firewalls, by what holds for each.
async fn each(place: &Place<'_>, machines: [&Machine; 2], what: &str, holds: impl Fn(&Machine) -> anyhow::Result<()>) {
    for machine in machines {
        eventually(what, EVENTUALLY, || async { holds(machine) })
            .await
            .with_context(|| format!("{}\n--- approver\n{}", machine.log(), place.home.log()))
            .unwrap();
        settled(place, machine).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_an_approver_started_anew_with_another_server_life_or_kind_brings_every_firewall_to_it() {
    let mut world = World::new("shoot--d4--settings").await.unwrap();
    let direct = world.seed.server_url();
    let proxy = Proxy::to(world.seed).await.unwrap();
    let approver = world.approver().unwrap();
    let (first, mut first_agent) = came_in(&world, "00001").await;
    let (second, mut second_agent) = came_in(&world, "00002").await;
    let both = [&first, &second];
    let keys = [first.key().unwrap(), second.key().unwrap()];
    let agents = [first_agent.id(), second_agent.id()];

    // The server.
    approver.stop().await.unwrap();
    world.home.move_server(&proxy.url());
    let approver = world.approver().unwrap();
    each(&world, both, "the other server", |machine| {
        ensure!(server_of(machine)? == proxy.url(), "it is {}", server_of(machine)?);
        Ok(())
    })
    .await;

    // The life.
    let life = |machine: &Machine| -> anyhow::Result<i64> {
        let issued = certificate_of(machine)?;
        Ok(issued.not_before.duration_until(issued.not_after).as_secs())
    };
    for machine in both {
        assert!(life(machine).unwrap() > 20 * 86_400);
    }
    approver.stop().await.unwrap();
    let short = ["--certificate-duration", "40m"];
    let approver = world.approver_with(&short).unwrap();
    each(&world, both, "the short life", |machine| {
        ensure!(life(machine)? < 3600, "it is {} s", life(machine)?);
        Ok(())
    })
    .await;
    // It is asked for once: started anew with the same setting, nothing is made.
    let requests = async |machine: &Machine| requests_for(&world, &machine.firewall).await.unwrap().len();
    let made = [requests(&first).await, requests(&second).await];
    approver.stop().await.unwrap();
    let approver = world.approver_with(&short).unwrap();
    for machine in both {
        let served = machine.status().unwrap();
        eventually("the seed was read again", EVENTUALLY, || async {
            ensure!(world.home.log().matches("serving this seed").count() >= 4, "not yet");
            Ok(())
        })
        .await
        .with_context(|| served)
        .unwrap();
        said(&world, &machine.firewall, "Bootstrapped", "works with certificate").await;
    }
    assert_eq!(made, [requests(&first).await, requests(&second).await]);

    // The kind.
    approver.stop().await.unwrap();
    let approver = world.approver_with(&["--seed-access", "token"]).unwrap();
    for machine in both {
        said(&world, &machine.firewall, "Bootstrapped", "works with token").await;
    }

    // All of it at once, and back.
    approver.stop().await.unwrap();
    world.home.move_server(&direct);
    let _approver = world.approver().unwrap();
    each(&world, both, "what it was before", |machine| {
        ensure!(server_of(machine)? == direct, "it is {}", server_of(machine)?);
        ensure!(life(machine)? > 20 * 86_400, "it is {} s", life(machine)?);
        Ok(())
    })
    .await;
    // Nobody was at a machine.
    assert_eq!(keys, [first.key().unwrap(), second.key().unwrap()]);
    assert!(first_agent.runs() && second_agent.runs());
    assert_eq!(agents, [first_agent.id(), second_agent.id()]);
}
