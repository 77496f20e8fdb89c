//! Through the proxy that the environment of the agent names, as Go's programs go through it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use tests::consumer::{Consumer, Kind};
use tests::harness::{Net, PASSWORD, PATIENCE, TinyProxy, USER, eventually};
use tests::programs::{Machine, Program};
use tests::world::World;

use super::{complains, far, here, named, reached_at};
use crate::moves::settled;

/// The machine knows neither a route to an API server nor what its name means; the proxy does.
struct Beyond {
    net: Net,
    world: World,
    _ways: Vec<tests::harness::Proxy>,
    _dir: tempfile::TempDir,
    _approver: Program,
}

impl Beyond {
    async fn new(namespace: &str) -> Self {
        let net = Net::new().unwrap();
        let mut world = World::new(namespace).await.unwrap();
        let (seed, shoot) = (world.seed, world.shoot.cluster);
        net.add_far(&["10.99.0.11", "10.99.0.12"]).unwrap();
        net.far_names(&[(seed.server_name(), "10.99.0.11"), (shoot.server_name(), "10.99.0.12")])
            .unwrap();
        let ways = vec![
            far(&net, "10.99.0.11", seed).await,
            far(&net, "10.99.0.12", shoot).await,
        ];
        reached_at(&mut world, &named(seed), &named(shoot)).await;
        world.settle().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let approver = world.approver_at(&here(dir.path(), &[seed, shoot])).unwrap();
        Self {
            net,
            world,
            _ways: ways,
            _dir: dir,
            _approver: approver,
        }
    }
}

/// In whatever form.
fn knows_no_password(machine: &Machine) {
    use base64::Engine;
    let coded = base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let hidden = [PASSWORD.to_owned(), PASSWORD.replace('.', "%2E"), coded];
    let output = machine.command("status", &["--output", "json"]).unwrap();
    let said = format!("{}{}", machine.log(), String::from_utf8_lossy(&output.stdout));
    assert!(hidden.iter().all(|word| !said.contains(word)), "{said}");
    for dir in [machine.config(), machine.state()] {
        for file in fs::read_dir(dir).unwrap() {
            let text = fs::read(file.unwrap().path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(hidden.iter().all(|word| !text.contains(word)), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a2_a6_a7_everything_of_the_agent_goes_through_the_proxy_that_its_environment_names() {
    let beyond = Beyond::new("shoot--ways--proxy").await;
    let Beyond { net, world, .. } = &beyond;
    let proxy = TinyProxy::start(net).await.unwrap();
    let url = proxy.url();
    let machine = world.machine("00001").await.unwrap();

    // With exceptions that are somebody else's, or for another port.
    let exceptions = format!("other.test,.{0},{0}:1", world.seed.server_name());
    let environment = [("HTTPS_PROXY", url.as_str()), ("NO_PROXY", exceptions.as_str())];
    let agent = machine.start_at(&net.to_near(), &environment, &[]).unwrap();
    settled(world, &machine).await;
    for cluster in [world.seed, world.shoot.cluster] {
        let asked = format!("CONNECT {}:{}", cluster.server_name(), cluster.address().port());
        assert!(proxy.log().contains(&asked), "{}", proxy.log());
    }
    assert!(machine.log().contains(&proxy.address()), "{}", machine.log());
    knows_no_password(&machine);
    // What is written for the consumer names no proxy: it has an environment of its own.
    for path in [machine.seed_kubeconfig(), machine.shoot_kubeconfig()] {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains("proxy-url") && !text.contains("3128"), "{text}");
    }
    let consumer = Consumer::start_as(&machine, Kind::Stock, Some(&net.to_near()), &environment)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sums = consumer.stop().await.unwrap();
    assert!(sums.requests >= 10 && sums.failed + sums.other == 0, "{sums:?}");
    agent.kill();

    // An exception for the seed is obeyed: there is no other way to it.
    let except = world.seed.server_name();
    let environment = [("https_proxy", url.as_str()), ("no_proxy", except.as_str())];
    let agent = machine.start_at(&net.to_near(), &environment, &[]).unwrap();
    let said = complains(&machine, &["cannot be reached"]).await;
    assert!(!said.contains("through the proxy"), "{said}");
    agent.kill();

    // A clock before the server's certificate began: its time is asked for by a connection of its own, and by no other way.
    let mut environment = crate::lifetimes::clock(&machine, -3 * 365 * 24).to_vec();
    environment.push(("HTTPS_PROXY", url.clone()));
    let environment: Vec<_> = environment
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let agent = machine.start_at(&net.to_near(), &environment, &[]).unwrap();
    eventually("the clock is named", PATIENCE, || async {
        let status = machine.status()?;
        ensure!(status.contains("behind the seed's"), "{status}");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    agent.kill();

    // Without a password, and with another.
    let bare = proxy.address();
    let stranger = bare.replace("//", &format!("//{USER}:other@"));
    for (value, says) in [
        (bare.as_str(), "authorization required"),
        (stranger.as_str(), "unsuccessful"),
    ] {
        let agent = machine
            .start_at(&net.to_near(), &[("HTTPS_PROXY", value)], &[])
            .unwrap();
        let said = complains(&machine, &["through the proxy", &bare, "HTTPS_PROXY", says, "password"]).await;
        assert!(!said.contains("other@"), "{said}");
        agent.kill();
    }

    let nobody = "http://10.200.0.1:3129";
    let agent = machine
        .start_at(&net.to_near(), &[("https_proxy", nobody)], &[])
        .unwrap();
    complains(&machine, &["through the proxy", nobody, "https_proxy", "refused"]).await;
    agent.kill();
    knows_no_password(&machine);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_none_is_refused_at_the_start_by_its_variable_and_no_password_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::with_kubeconfig("shoot--x", "shoot--x-firewall-1", "{}").unwrap();
    let run = |environment: &[(&str, &str)], args: &[&str]| {
        let mut command = std::process::Command::new(machine.program().unwrap());
        command.args(args).env_clear().envs(environment.iter().copied());
        command.current_dir(dir.path()).output().unwrap()
    };
    for value in [
        "socks5://u:hushhush@p:1080",
        "https://u:hushhush@p:3128",
        "http://u:hush:hush@/",
        "http://u:hushhush@p:0",
    ] {
        let output = run(&[("https_proxy", value)], &["run"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("https_proxy") && said.contains("http://<host>:<port>"),
            "{said}"
        );
        assert!(!said.contains("hush"), "{said}");
    }
    let environment = [
        ("HTTPS_PROXY", "http://u:hushhush@p:3128"),
        ("no_proxy", "10.0.0.0/8,.a.test"),
    ];
    let output = run(&environment, &["run", "--print-config"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let shown: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        shown["https-proxy"],
        serde_json::json!({"value": "http://p:3128", "from": "HTTPS_PROXY"})
    );
    assert_eq!(
        shown["no-proxy"],
        serde_json::json!({"value": "10.0.0.0/8,.a.test", "from": "no_proxy"})
    );
    assert!(!said.contains("hush"), "{said}");
}
