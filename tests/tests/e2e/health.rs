//! E: the approver says of itself what is true, dependency by dependency, and nobody who reaches its port keeps it from
//! that.

mod limits;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::harness::{Cluster, Proxy, eventually};
use tests::http::Http;
use tests::programs::{ApproverHome, Program};
use tests::world::{Place, install_seed, manifests, own_seed, shoot_cluster};
use tokio::net::TcpListener;

const SOON: Duration = Duration::from_secs(60);
/// What the approver needs of the seed, beside its canaries.
const OF_SEED: [&str; 8] = [
    "start",
    "leader",
    "watch/states",
    "watch/shoot-access",
    "watch/firewalls",
    "watch/requests",
    "bootstrap-credential",
    "signer",
];

/// Each check of the answer by its name, with why it fails. No two lines of one name, and no line of another form.
fn read(body: &str) -> BTreeMap<String, Option<String>> {
    let lines: Vec<&str> = body.lines().collect();
    let (last, lines) = lines.split_last().unwrap();
    assert!(["readyz check passed", "readyz check failed"].contains(last), "{body}");
    let mut checks = BTreeMap::new();
    for line in lines {
        let (name, why) = match (line.strip_prefix("[+]"), line.strip_prefix("[-]")) {
            (Some(good), None) => (good.strip_suffix(" ok").unwrap(), None),
            (None, Some(bad)) => {
                let (name, why) = bad.split_once(" failed").unwrap();
                (name, Some(why.to_owned()))
            }
            _ => panic!("{line}"),
        };
        assert!(checks.insert(name.to_owned(), why).is_none(), "{body}");
    }
    checks
}

/// Waits until these checks fail with these words, no other does, and the whole is answered with that status. A kind
/// stands for all of it.
async fn fails(http: &Http, status: u16, expected: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
    let what = format!("{status} for {expected:?}");
    let checks = eventually(&what, SOON, || async {
        let answer = http.get("/readyz?verbose").await?;
        let checks = read(&answer.body);
        let of = |name: &str| {
            expected
                .iter()
                .find(|(kind, _)| name == *kind || name.starts_with(&format!("{kind}/")))
        };
        for (name, why) in &checks {
            match (of(name), why) {
                (None, None) => {}
                (Some((_, words)), Some(why)) => ensure!(why.contains(words), "{name}: {why}"),
                _ => anyhow::bail!("{}", answer.body),
            }
        }
        let named = |kind: &str| {
            checks
                .keys()
                .any(|name| name == kind || name.starts_with(&format!("{kind}/")))
        };
        ensure!(expected.iter().all(|(kind, _)| named(kind)), "{}", answer.body);
        ensure!(answer.status == status, "{}: {}", answer.status, answer.body);
        Ok(checks)
    });
    let checks = checks.await.unwrap();
    // What is said of all is said of each alone, and whatever happens to others the process lives.
    for (name, why) in &checks {
        let alone = http.get(&format!("/readyz/{name}")).await.unwrap();
        assert_eq!(alone.status == 200, why.is_none(), "{name}: {alone:?}");
    }
    assert_eq!(http.get("/healthz").await.unwrap().body, "ok");
    checks
}

/// A shoot of the seed with one Firewall in it, whose approver reaches it through a proxy.
async fn shoot_of<'a>(seed: &'a Cluster, namespace: &str, way: &Proxy) -> Place<'a> {
    let place = Place::empty(seed, shoot_cluster().await.unwrap(), namespace)
        .await
        .unwrap();
    place.shoot.write_access().await.unwrap();
    place.shoot.write_approver_access_to(&way.url()).await.unwrap();
    place.shoot.create_firewall("00001").await.unwrap();
    place
}

fn start(home: &ApproverHome, places: &[&Place<'_>]) -> Program {
    let mut args = vec!["--poll-interval", "5s"];
    for place in places {
        args.extend(["--namespace", place.namespace()]);
    }
    home.start(&args).unwrap()
}

/// Everybody asks what he may do by this binding; the approver keeps it.
async fn basic_users(seed: &Cluster, there: bool) {
    let admin = seed.client().await.unwrap();
    let subject = if there {
        json!({"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"})
    } else {
        json!({"kind": "ServiceAccount", "name": "firewall-approver", "namespace": "firewall-approver"})
    };
    let bindings: kube::Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = kube::Api::all(admin);
    let patch = kube::api::Patch::Merge(json!({"subjects": [subject]}));
    bindings
        .patch("system:basic-user", &Default::default(), &patch)
        .await
        .unwrap();
}

/// Takes away that the approver may list and watch requests.
async fn blind_for_requests(seed: &Cluster) {
    let rbac = fs::read_to_string(format!("{}/approver-rbac.yaml", manifests("seed"))).unwrap();
    let rule = "resources: [certificatesigningrequests]\n    verbs: [create, get, list, watch]";
    assert!(rbac.contains(rule));
    let without = rbac.replace(
        rule,
        "resources: [certificatesigningrequests]\n    verbs: [create, get]",
    );
    seed.kubectl_apply_text(&without).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_e2_e3_e4_each_dependency_that_breaks_is_named_alone_and_beside_others() {
    let seed = own_seed("seed-health").await.unwrap();
    let (own_way, offered) = (Proxy::to(&seed).await.unwrap(), Proxy::to(&seed).await.unwrap());
    let shoot = shoot_cluster().await.unwrap();
    let (bad_way, good_way) = (Proxy::to(shoot).await.unwrap(), Proxy::to(shoot).await.unwrap());
    let bad = shoot_of(&seed, "shoot--health--bad", &bad_way).await;
    let good = shoot_of(&seed, "shoot--health--good", &good_way).await;
    let home = ApproverHome::with_server(&seed, &offered.url()).await.unwrap();
    let kubeconfig = fs::read_to_string(home.kubeconfig()).unwrap();
    fs::write(
        home.kubeconfig(),
        kubeconfig.replace(&seed.server_url(), &own_way.url()),
    )
    .unwrap();

    // Nobody signs, and nobody but the approver may ask what he may do: two at a time, of both sorts.
    seed.stop_controller_manager().await;
    basic_users(&seed, false).await;
    let approver = start(&home, &[&bad, &good]);
    let http = approver.http().await.unwrap();
    let forbidden = (
        "bootstrap-credential",
        "will not come back by itself: ask what a bootstrap token may do",
    );
    fails(&http, 500, &[forbidden, ("signer", "no certificate came")]).await;
    // The one is still named when the other is over: nobody asks again for an hour.
    basic_users(&seed, true).await;
    seed.start_controller_manager().await.unwrap();
    fails(&http, 500, &[forbidden]).await;
    drop(approver);

    let mut approver = start(&home, &[&bad, &good]);
    let http = approver.http().await.unwrap();
    let checks = fails(&http, 200, &[]).await;
    let mut names: Vec<&str> = OF_SEED.to_vec();
    names.extend(["shoot/shoot--health--bad", "shoot/shoot--health--good"]);
    let others: Vec<&String> = checks.keys().filter(|name| !names.contains(&name.as_str())).collect();
    assert!(
        matches!(others[..], [canary] if canary.starts_with("canary/")),
        "{checks:?}"
    );
    assert_eq!(checks.len(), names.len() + 1, "{checks:?}");
    assert_eq!(http.get("/readyz").await.unwrap().body, "ok");

    // One bad shoot is named, and neither the other nor the seed is blamed.
    bad_way.cut();
    let bad_shoot = ("shoot/shoot--health--bad", "cannot be reached");
    fails(&http, 503, &[bad_shoot]).await;
    assert_eq!(http.get("/readyz?exclude=shoot").await.unwrap().body, "ok");
    assert_eq!(
        http.get("/readyz?exclude=shoot%2Fshoot--health--bad")
            .await
            .unwrap()
            .body,
        "ok"
    );
    assert_eq!(
        http.get("/readyz?exclude=canary&exclude=shoot/shoot--health--good")
            .await
            .unwrap()
            .status,
        503
    );
    assert_eq!(http.get("/readyz/shoot").await.unwrap().status, 503);
    assert_eq!(http.get("/readyz/shoot/shoot--health").await.unwrap().status, 404);

    // Where firewalls reach the seed nobody answers: the canary says so, beside the shoot.
    offered.cut();
    let canary = ("canary", "no answer to it for");
    fails(&http, 503, &[bad_shoot, canary]).await;
    bad_way.mend();
    fails(&http, 503, &[canary]).await;
    offered.mend();
    fails(&http, 200, &[]).await;

    // A right that is gone does not come back by itself, whatever else may.
    blind_for_requests(&seed).await;
    let requests = (
        "watch/requests",
        "will not come back by itself: the permission is missing",
    );
    fails(&http, 500, &[requests]).await;
    bad_way.cut();
    fails(&http, 500, &[requests, bad_shoot]).await;
    bad_way.mend();
    install_seed(&seed).await.unwrap();
    fails(&http, 200, &[]).await;

    // A shoot without its Secret is closed until somebody deploys it.
    let secret = [
        "delete",
        "secret",
        "-n",
        good.namespace(),
        "shoot-access-firewall-approver",
    ];
    seed.kubectl_ok(&secret).await.unwrap();
    let closed = ("shoot/shoot--health--good", "will not come back by itself: Secret");
    fails(&http, 500, &[closed]).await;
    good.shoot.write_approver_access_to(&good_way.url()).await.unwrap();
    fails(&http, 200, &[]).await;

    // The approver's own way in: every watch, and no shoot.
    own_way.cut();
    let watches = fails(&http, 503, &[("watch", "cannot be reached")]).await;
    assert_eq!(watches.values().flatten().count(), 4, "{watches:?}");
    own_way.mend();
    fails(&http, 200, &[]).await;

    // A shoot that nobody has a Firewall in is nobody's.
    bad.shoot
        .delete_firewall(&format!("{}-firewall-00001", bad.namespace()))
        .await
        .unwrap();
    eventually("no check of a shoot that is gone", SOON, || async {
        let answer = http.get("/readyz/shoot/shoot--health--bad").await?;
        ensure!(answer.status == 404, "{answer:?}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(approver.runs(), "{}", home.log());
    // Each that began to fail is named once in the log, however often it was asked for.
    let told = home.log().matches("/readyz?verbose says why").count();
    assert!((6..=20).contains(&told), "{told} times: {}", home.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_success_leaves_no_line_in_the_log() {
    let world = tests::world::World::new("shoot--health--quiet").await.unwrap();
    world.shoot.create_firewall("00001").await.unwrap();
    let approver = world.approver().unwrap();
    let http = approver.http().await.unwrap();
    fails(&http, 200, &[]).await;
    eventually("a log that does not grow by being asked", SOON, || async {
        let before = world.home.log();
        for path in [
            "/healthz",
            "/readyz",
            "/readyz?verbose",
            "/readyz/start",
            "/metrics",
            "/nothing",
        ] {
            for _ in 0..10 {
                http.get(path).await?;
            }
        }
        let after = world.home.log();
        ensure!(
            before == after,
            "it grew:\n{}",
            after.get(before.len()..).unwrap_or(&after)
        );
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_before_the_seed_has_answered_it_lives_and_is_not_ready() {
    let seed = tests::world::seed().await.unwrap();
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let home = ApproverHome::new(seed).await.unwrap();
    let server = format!("https://{}", silent.local_addr().unwrap());
    let kubeconfig = fs::read_to_string(home.kubeconfig()).unwrap();
    fs::write(home.kubeconfig(), kubeconfig.replace(&seed.server_url(), &server)).unwrap();
    let mut approver = home.start(&[]).unwrap();
    let http = approver.http().await.unwrap();
    assert_eq!(http.get("/healthz").await.unwrap().body, "ok");
    assert_eq!(http.get("/healthz/ping").await.unwrap().body, "ok");
    let ready = http.get("/readyz").await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(
        ready.body.starts_with("[-]start failed: the seed has not answered"),
        "{ready:?}"
    );
    assert_eq!(http.get("/metrics").await.unwrap().status, 200);
    assert_ne!(approver.ended(SOON).await.unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_ends_it_with_a_sentence() {
    let seed = tests::world::seed().await.unwrap();
    let home = ApproverHome::new(seed).await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut approver = home.start(&["--listen", &address]).unwrap();
    assert_eq!(approver.ended(SOON).await.unwrap(), Some(1));
    let log = home.log();
    assert!(log.contains(&format!("--listen {address}: ")), "{log}");
    drop(approver);
    // All addresses of both families.
    let mut approver = home.start(&["--listen", "[::]:0", "--namespace", "default"]).unwrap();
    let Http(address) = approver.http().await.unwrap();
    let local = Http(([127, 0, 0, 1], address.port()).into());
    assert_eq!(local.get("/healthz").await.context("by IPv4").unwrap().body, "ok");
    assert!(approver.runs());
}
