//! What people and other programs get wrong: one clear sentence that names the file, object or permission and what to
//! do; exit code 1 at start, a named reason later; never a panic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::harness::{Cluster, ClusterOptions, PATIENCE, eventually};
use tests::programs::{ApproverHome, Machine, Program, bootstrap_kubeconfig};
use tests::upstream::{Shoot, install_crds};
use tests::world::{World, bootstrapped, install_seed, install_shoot, seed};

/// Starts a program that has to end by itself with code 1, in one sentence that holds these words.
async fn refuses(mut program: Program, words: &[&str]) {
    let code = program.ended(Duration::from_secs(20)).await.unwrap();
    let log = program.log();
    assert_eq!(code, Some(1), "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} is not in:\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_names_what_is_wrong_with_its_bootstrap_kubeconfig() {
    let world = World::new("shoot--in--agent").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let good = bootstrap_kubeconfig(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let secret = crate::support::token_of(&good).unwrap();
    let file = ".bootstrap.kubeconfig";
    let cases: &[(&str, String, &[&str])] = &[
        ("unreadable", "{{{".into(), &[file]),
        ("empty", String::new(), &[file]),
        (
            "no CA",
            without(&good, "certificate-authority-data"),
            &[file, "certificate-authority-data"],
        ),
        ("no credential", without(&good, "token:"), &[file, "token"]),
        ("no server", without(&good, "server:"), &[file, "server"]),
        ("no extension", without_extensions(&good), &[file, "extension"]),
        (
            "exec",
            good.replace("token:", "exec: {command: touch}\n    token:"),
            &[file, "exec"],
        ),
        ("http", good.replace("https://", "http://"), &[file, "server"]),
    ];
    for (what, text, words) in cases {
        let machine = Machine::with_kubeconfig(world.namespace(), &firewall, text).unwrap();
        refuses(machine.start().unwrap(), words).await;
        assert!(!machine.log().contains(&secret), "{what}: the token is in the log");
        assert!(!machine.seed_kubeconfig().exists(), "{what}");
    }
    // None at all.
    let machine = Machine::with_kubeconfig(world.namespace(), &firewall, &good).unwrap();
    fs::remove_file(machine.config().join(file)).unwrap();
    refuses(machine.start().unwrap(), &[file]).await;
    // Others on the machine could read it.
    let machine = Machine::with_kubeconfig(world.namespace(), &firewall, &good).unwrap();
    fs::set_permissions(machine.config().join(file), fs::Permissions::from_mode(0o644)).unwrap();
    refuses(machine.start().unwrap(), &[file, "chmod 0600"]).await;
    // A second agent beside the first.
    let machine = Machine::with_kubeconfig(world.namespace(), &firewall, &good).unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    refuses(machine.start().unwrap(), &["lock"]).await;
    // A key that cannot be read is never replaced by another.
    let broken = Machine::with_kubeconfig(world.namespace(), &firewall, &good).unwrap();
    fs::write(broken.state().join("key.pem"), "not a key").unwrap();
    fs::set_permissions(broken.state().join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    refuses(broken.start().unwrap(), &["key.pem"]).await;
    assert_eq!(fs::read_to_string(broken.state().join("key.pem")).unwrap(), "not a key");
}

fn without(kubeconfig: &str, word: &str) -> String {
    kubeconfig
        .lines()
        .filter(|line| !line.contains(word))
        .map(|line| format!("{line}\n"))
        .collect()
}

fn without_extensions(kubeconfig: &str) -> String {
    let mut value: Value = serde_saphyr::from_str(kubeconfig).unwrap();
    value.as_object_mut().unwrap().remove("extensions");
    value.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_approver_names_the_file_namespace_or_permission_that_is_missing() {
    let seed = seed().await.unwrap();
    let home = ApproverHome::new(seed).await.unwrap();
    let kubeconfig = home.kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    refuses(
        home.start_with(&["run", "--kubeconfig", "/nowhere/kubeconfig"])
            .unwrap(),
        &["/nowhere/kubeconfig"],
    )
    .await;
    refuses(home.start_with(&["run"]).unwrap(), &["--kubeconfig"]).await;
    refuses(
        home.start(&["--namespace", "no-such-namespace"]).unwrap(),
        &["no-such-namespace", "does not exist"],
    )
    .await;
    refuses(
        home.start_with(&["run", "--kubeconfig", kubeconfig]).unwrap(),
        &["--seed-server"],
    )
    .await;
    let server = seed.server_url();
    let ca = home.kubeconfig().with_file_name("ca.pem");
    let ca_name = ca.to_str().unwrap();
    let with_ca = [
        "run",
        "--kubeconfig",
        kubeconfig,
        "--seed-server",
        &server,
        "--seed-ca",
        ca_name,
    ];
    refuses(home.start_with(&with_ca).unwrap(), &[ca_name]).await;
    fs::write(&ca, "garbage").unwrap();
    refuses(home.start_with(&with_ca).unwrap(), &["CA"]).await;
    // A CA that did not issue that server's certificate: handed out, it would cut every firewall off.
    fs::write(&ca, seed.client_ca_pem()).unwrap();
    refuses(
        home.start_with(&with_ca).unwrap(),
        &["would not reach", "not the one that our CA vouches for"],
    )
    .await;
    let http = server.replace("https", "http");
    let mut program = home
        .start_with(&["run", "--kubeconfig", kubeconfig, "--seed-server", &http])
        .unwrap();
    assert_eq!(program.ended(PATIENCE).await.unwrap(), Some(2), "{}", program.log());
    assert!(program.log().contains("https://<host>"), "{}", program.log());
    // An identity without the rights of the manifests.
    let nobody = home.kubeconfig().with_file_name("nobody");
    fs::write(&nobody, seed.kubeconfig_for("somebody", &[]).unwrap()).unwrap();
    let nobody = [
        "run",
        "--kubeconfig",
        nobody.to_str().unwrap(),
        "--seed-server",
        &server,
    ];
    refuses(
        home.start_with(&nobody).unwrap(),
        &["lacks permissions", "approve signers", "manifests/seed"],
    )
    .await;
    // A kubeconfig whose CA is missing would make the client trust every public CA.
    let careless = home.kubeconfig().with_file_name("careless");
    let mut text: Value = serde_json::from_str(&seed.kubeconfig_for("somebody", &[]).unwrap()).unwrap();
    text["clusters"][0]["cluster"]
        .as_object_mut()
        .unwrap()
        .remove("certificate-authority-data");
    fs::write(&careless, text.to_string()).unwrap();
    let careless = [
        "run",
        "--kubeconfig",
        careless.to_str().unwrap(),
        "--seed-server",
        &server,
    ];
    refuses(home.start_with(&careless).unwrap(), &["certificate-authority"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_shoot_kubeconfig_that_runs_or_reads_or_leads_elsewhere_is_refused_by_name() {
    let world = World::new("shoot--in--shoot").await.unwrap();
    let _approver = world.approver().unwrap();
    let machine = world.machine("00001").await.unwrap();
    // Somebody who listens: nothing may ever arrive.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = format!("https://{}", listener.local_addr().unwrap());
    let arrived = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&arrived);
    let listening = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    let witness = machine.path().join("was-run");
    let good = world.shoot.generic_kubeconfig();
    let user = |user: Value| {
        let mut bad = good.clone();
        bad["users"][0]["user"] = user;
        bad
    };
    let cluster = |field: &str, value: Value| {
        let mut bad = good.clone();
        bad["clusters"][0]["cluster"][field] = value;
        bad
    };
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch",
                               "args": [witness.to_str().unwrap()], "interactiveMode": "Never"}});
    let token_file = json!({"tokenFile": machine.state().join("key.pem").to_str().unwrap()});
    let cases = [
        ("exec", user(exec)),
        ("tokenFile", user(token_file)),
        (elsewhere.as_str(), cluster("server", json!(elsewhere))),
        ("proxy-url", cluster("proxy-url", json!(elsewhere))),
        (
            "insecure-skip-tls-verify",
            cluster("insecure-skip-tls-verify", json!(true)),
        ),
    ];
    world.shoot.write_generic_kubeconfig(&cases[0].1).await.unwrap();
    let _agent = machine.start().unwrap();
    for (word, bad) in &cases {
        world.shoot.write_generic_kubeconfig(bad).await.unwrap();
        eventually(&format!("{word} refused by name"), PATIENCE, || async {
            let status = machine.command("status", &[])?;
            let text = String::from_utf8_lossy(&status.stdout).into_owned() + &machine.log();
            ensure!(
                text.contains(word) && text.contains("generic-token-kubeconfig"),
                "not yet"
            );
            Ok(())
        })
        .await
        .with_context(|| machine.log())
        .unwrap();
        assert!(
            !machine.shoot_kubeconfig().exists(),
            "{word}: a shoot kubeconfig was written"
        );
    }
    assert!(!witness.exists(), "the command was run");
    assert_eq!(arrived.load(Ordering::SeqCst), 0, "something was sent elsewhere");
    // And with the right one it goes on by itself.
    world.shoot.write_generic_kubeconfig(&good).await.unwrap();
    eventually("the shoot kubeconfig", Duration::from_secs(120), || async {
        ensure!(machine.shoot_kubeconfig().exists(), "not yet");
        Ok(())
    })
    .await
    .with_context(|| machine.log())
    .unwrap();
    listening.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_missing_shoot_access_secret_names_what_to_deploy() {
    let world = World::new("shoot--in--missing").await.unwrap();
    world
        .secrets()
        .await
        .unwrap()
        .delete("shoot-access-firewall-approver", &Default::default())
        .await
        .unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let state = world.await_reason(&firewall, "ShootAccessMissing").await.unwrap();
    let message = state["message"].as_str().unwrap();
    for word in [
        "shoot-access-firewall-approver",
        "is missing",
        "deploy",
        "manifests/shoot",
    ] {
        assert!(message.contains(word), "{word} is not in {message}");
    }
    // The seed's part stands all the same, and the rest follows when the Secret comes.
    let machine = Machine::install(world.seed, world.namespace(), &firewall)
        .await
        .unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    world.shoot.write_approver_access().await.unwrap();
    world.await_reason(&firewall, "Bootstrapped").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a_name_that_does_not_fit_into_a_certificate_is_refused_with_a_sentence() {
    let world = World::new("shoot--in--long").await.unwrap();
    let _approver = world.approver().unwrap();
    let name = format!("{}-firewall-{}", world.namespace(), "0".repeat(24));
    world.shoot.create_firewall_object(&name).await.unwrap();
    let state = world.await_reason(&name, "NameTooLong").await.unwrap();
    assert!(state["message"].as_str().unwrap().contains("46"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a5_a_firewall_that_names_other_secrets_gets_no_right_to_read_them() {
    let world = World::new("shoot--in--names").await.unwrap();
    let _approver = world.approver().unwrap();
    let firewall = world.shoot.create_firewall("00001").await.unwrap();
    let mut access = world.shoot.shoot_access();
    access["tokenSecretName"] = json!("ca");
    world.shoot.write_status(&firewall, &access).await.unwrap();
    let state = world.await_reason(&firewall, "ShootAccessRefused").await.unwrap();
    assert!(state["message"].as_str().unwrap().contains("\"ca\""), "{state}");
    let role = world
        .seed
        .kubectl_ok(&[
            "get",
            "role",
            "-n",
            world.namespace(),
            &format!("fw.metal-stack.io:{firewall}"),
            "-o",
            "json",
        ])
        .await
        .unwrap();
    assert!(!role.contains("\"ca\""), "{role}");
}

/// A foreign object that does not parse must not stop a watch.
#[tokio::test(flavor = "multi_thread")]
async fn a_firewall_that_cannot_be_read_stops_no_other() {
    let seed = Cluster::start(ClusterOptions::new("guard")).await.unwrap();
    install_crds(&seed, &seed).await.unwrap();
    install_seed(&seed).await.unwrap();
    install_shoot(&seed).await.unwrap();
    let shoot = Shoot::create(&seed, &seed, "shoot--in--guard").await.unwrap();
    shoot.write_approver_access().await.unwrap();
    // A later upstream whose status is of another type.
    let loosened = json!([
        {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema",
         "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    ]);
    let crd = "crd/firewalls.firewall.metal-stack.io";
    seed.kubectl_ok(&["patch", crd, "--type=json", "-p", &loosened.to_string()])
        .await
        .unwrap();
    let odd = shoot.create_firewall("0dd00").await.unwrap();
    eventually("an unreadable Firewall", PATIENCE, || async {
        let patch = json!({"status": {"shootAccess": ["not", "an", "object"]}}).to_string();
        let args = [
            "patch",
            "firewall",
            "-n",
            &shoot.namespace,
            &odd,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        seed.kubectl_ok(&args).await?;
        let stored = seed
            .kubectl_ok(&[
                "get",
                "firewall",
                "-n",
                &shoot.namespace,
                &odd,
                "-o",
                "jsonpath={.status.shootAccess}",
            ])
            .await?;
        ensure!(stored.contains("not"), "{stored}");
        Ok(())
    })
    .await
    .unwrap();
    let home = ApproverHome::new(&seed).await.unwrap();
    let approver = home.start(&[]).unwrap();
    let firewall = shoot.create_firewall("00001").await.unwrap();
    let machine = Machine::install(&seed, &shoot.namespace, &firewall).await.unwrap();
    let _agent = machine.start().unwrap();
    bootstrapped(&machine).await.unwrap();
    assert!(
        approver.log().contains(&odd) && approver.log().contains("cannot be read"),
        "{}",
        approver.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn p18_a_seed_that_signs_nothing_is_named_on_both_sides() {
    let seed = Cluster::start(ClusterOptions {
        signer: false,
        ..ClusterOptions::new("unsigned")
    })
    .await
    .unwrap();
    install_crds(&seed, &seed).await.unwrap();
    install_seed(&seed).await.unwrap();
    install_shoot(&seed).await.unwrap();
    let shoot = Shoot::create(&seed, &seed, "shoot--in--unsigned").await.unwrap();
    shoot.write_approver_access().await.unwrap();
    let home = ApproverHome::new(&seed).await.unwrap();
    let approver = home.start(&[]).unwrap();
    let firewall = shoot.create_firewall("00001").await.unwrap();
    let machine = Machine::install(&seed, &shoot.namespace, &firewall).await.unwrap();
    let _agent = machine.start().unwrap();
    eventually("the missing signer named", PATIENCE, || async {
        ensure!(
            approver.log().contains("ApprovedNotIssued") && approver.log().contains("csrsigning"),
            "the approver is silent"
        );
        let status = machine.command("status", &[])?;
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        ensure!(text.contains("sign"), "the agent says {text}");
        Ok(())
    })
    .await
    .with_context(|| approver.log() + &machine.log())
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn export_and_userdata_say_in_one_sentence_what_they_cannot() {
    let home = ApproverHome::new(seed().await.unwrap()).await.unwrap();
    let kubeconfig = home.kubeconfig().display().to_string();
    for (args, words) in [
        (
            ["--kubeconfig", "/no/such/file", "a/b"],
            &["/no/such/file", "No such file"][..],
        ),
        (["--kubeconfig", &kubeconfig, "b"], &["<namespace>/<firewall>"]),
        (
            ["--kubeconfig", &kubeconfig, "shoot--none/none"],
            &["get Firewall shoot--none/none"],
        ),
    ] {
        for command in ["export", "userdata"] {
            let args: Vec<&str> = [command].into_iter().chain(args).collect();
            refuses(home.start_with(&args).unwrap(), words).await;
        }
    }
}
