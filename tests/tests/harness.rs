//! The harness itself: what the other tests rest on is shown here against the real control plane.
//! Nothing of the product takes part.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::Value;
use tests::harness::{Cluster, ClusterOptions, PATIENCE, Pair, Shared, client_from, eventually};
use x509_parser::pem::parse_x509_pem;

static CLUSTER: Shared = Shared::new();

/// Less than the API itself lets a request ask for.
const SIGNED_FOR: Duration = Duration::from_secs(90);

async fn cluster() -> anyhow::Result<&'static Cluster> {
    let options = || ClusterOptions {
        audit: true,
        signing_duration: Some(SIGNED_FOR),
        ..ClusterOptions::new("harness")
    };
    CLUSTER.get(options).await
}

#[tokio::test]
async fn a_request_that_is_approved_is_signed_and_the_certificate_is_accepted() {
    let cluster = cluster().await.unwrap();
    let (request, key) = request("somebody").unwrap();
    let certificate = cluster.sign("round-trip", &request).await.unwrap();
    let (_, pem) = parse_x509_pem(certificate.as_bytes()).unwrap();
    let left = pem.parse_x509().unwrap().validity().time_to_expiration().unwrap();
    assert!(left.whole_seconds().cast_unsigned() <= SIGNED_FOR.as_secs(), "{left}");
    let kubeconfig = cluster.kubeconfig_with_certificate(&Pair { certificate, key });
    let client = client_from(&kubeconfig).await.unwrap();
    assert_eq!(who_am_i(&client).await.unwrap(), "somebody");
}

#[tokio::test]
async fn a_kubeconfig_carries_its_user_and_groups_and_no_more_rights() {
    let cluster = cluster().await.unwrap();
    let powerless = cluster.kubeconfig_for("nobody", &["one", "two"]).unwrap();
    let client = client_from(&powerless).await.unwrap();
    let review = review(&client).await.unwrap();
    let user = review.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("nobody"));
    assert_eq!(user.groups.unwrap(), ["one", "two", "system:authenticated"]);
    let namespaces: Api<Namespace> = Api::all(client);
    assert_eq!(code(namespaces.list(&ListParams::default()).await), 403);
}

#[tokio::test]
async fn a_bootstrap_token_and_a_service_account_token_of_a_year_are_accepted() {
    let cluster = cluster().await.unwrap();
    let secret = r#"{"apiVersion":"v1","kind":"Secret","type":"bootstrap.kubernetes.io/token",
        "metadata":{"name":"bootstrap-token-abcdef","namespace":"kube-system"},
        "stringData":{"token-id":"abcdef","token-secret":"0123456789abcdef","usage-bootstrap-authentication":"true"}}"#;
    cluster.kubectl_apply_text(secret).await.unwrap();
    let year = cluster
        .kubectl_ok(&["create", "token", "default", "--duration=8760h"])
        .await
        .unwrap();
    let claims = URL_SAFE_NO_PAD.decode(year.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(
        claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(),
        8760 * 3600
    );
    for (token, user) in [
        ("abcdef.0123456789abcdef", "system:bootstrap:abcdef"),
        (year.trim(), "system:serviceaccount:default:default"),
    ] {
        let client = client_from(&cluster.kubeconfig_with_token(token)).await.unwrap();
        eventually("the token is accepted", PATIENCE, async || {
            ensure!(who_am_i(&client).await? == user, "as another user");
            Ok(())
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn kubectl_applies_text_files_and_kustomizations_and_fails_with_its_reason() {
    let cluster = cluster().await.unwrap();
    let map = |name: &str| {
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"default"}}}}"#)
    };
    cluster.kubectl_apply_text(&map("text")).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("map.json"), map("file")).unwrap();
    cluster.kubectl_apply(&dir.path().join("map.json")).await.unwrap();
    std::fs::write(
        dir.path().join("kustomization.yaml"),
        "resources: [map.json]\nnamePrefix: kustomized-\n",
    )
    .unwrap();
    cluster.kubectl_apply_kustomize(dir.path()).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await.unwrap(), "default");
    for name in ["text", "file", "kustomized-file"] {
        maps.get(name).await.unwrap();
    }
    let error = cluster.kubectl_ok(&["get", "configmap", "absent"]).await.unwrap_err();
    assert!(format!("{error:#}").contains("NotFound"), "{error:#}");
}

#[tokio::test]
async fn the_audit_log_counts_requests_by_user() {
    let cluster = cluster().await.unwrap();
    let client = client_from(&cluster.kubeconfig_for("counted", &[]).unwrap())
        .await
        .unwrap();
    for _ in 0..3 {
        who_am_i(&client).await.unwrap();
    }
    let events = cluster.audit().unwrap();
    let of_user = events.iter().filter(|event| event.user.username == "counted");
    let reviews = of_user.filter(|event| event.object_ref.resource == "selfsubjectreviews" && event.status.code == 201);
    assert_eq!(reviews.count(), 3);
}

#[tokio::test]
async fn a_client_ca_rolls_in_steps_and_only_the_last_ends_the_old_certificate() {
    let cluster = Cluster::start(ClusterOptions::new("client-roll")).await.unwrap();
    let old = client_from(&cluster.kubeconfig_for("old", &[]).unwrap()).await.unwrap();
    let roll = cluster.roll_client_ca().unwrap();

    roll.add().await.unwrap();
    assert_eq!(cluster.client_ca_pem().matches("BEGIN").count(), 2);
    assert_eq!(who_am_i(&old).await.unwrap(), "old");

    roll.switch_signer().await.unwrap();
    assert_eq!(who_am_i(&old).await.unwrap(), "old");
    let new = client_from(&cluster.kubeconfig_for("new", &[]).unwrap()).await.unwrap();

    roll.drop_old().await.unwrap();
    assert_eq!(code(review(&old).await), 401);
    assert_eq!(who_am_i(&new).await.unwrap(), "new");
    assert_eq!(cluster.client_ca_pem().matches("BEGIN").count(), 1);
    cluster.client().await.unwrap().apiserver_version().await.unwrap();
}

#[tokio::test]
async fn a_server_ca_rolls_in_steps_and_is_published() {
    let cluster = Cluster::start(ClusterOptions::new("server-roll")).await.unwrap();
    let before = cluster.admin_kubeconfig();
    let first = cluster.server_ca_pem();
    let roll = cluster.roll_server_ca().unwrap();

    roll.add().await.unwrap();
    let both = cluster.server_ca_pem();
    assert!(both.ends_with(&first) && both.len() > first.len());
    assert_eq!(published(&cluster).await.unwrap(), both);
    client_from(&before).await.unwrap().apiserver_version().await.unwrap();

    roll.switch_signer().await.unwrap();
    let untrusted = client_from(&before)
        .await
        .unwrap()
        .apiserver_version()
        .await
        .unwrap_err();
    assert!(!matches!(untrusted, kube::Error::Api(_)), "{untrusted}");
    cluster.client().await.unwrap().apiserver_version().await.unwrap();

    roll.drop_old().await.unwrap();
    assert_eq!(published(&cluster).await.unwrap(), cluster.server_ca_pem());
    assert!(!cluster.server_ca_pem().contains(&first));
}

#[tokio::test]
async fn an_api_server_stops_and_comes_back_and_dropping_a_cluster_leaves_nothing() {
    let cluster = Cluster::start(ClusterOptions {
        signer: false,
        ..ClusterOptions::new("restart")
    })
    .await
    .unwrap();
    let client = cluster.client().await.unwrap();
    cluster.stop_apiserver().await;
    assert!(client.apiserver_version().await.is_err());
    cluster.start_apiserver().await.unwrap();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.is_empty()), ("1", false));

    let ids = cluster.process_ids().await;
    let dir = cluster.dir().to_owned();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| runs(*id)) && dir.exists());
    drop(cluster);
    assert!(!ids.iter().any(|id| runs(*id)) && !dir.exists());
}

#[tokio::test]
async fn a_start_that_fails_names_the_program_and_shows_its_log() {
    let options = ClusterOptions {
        apiserver_args: vec!["--no-such-flag=1".to_owned()],
        ..ClusterOptions::new("broken")
    };
    let error = Cluster::start(options)
        .await
        .err()
        .map(|error| format!("{error:#}"))
        .unwrap();
    assert!(
        error.contains("cluster broken") && error.contains("kube-apiserver ended"),
        "{error}"
    );
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

/// Two clusters start side by side in tasks of their own, as a demo does it.
#[tokio::test]
async fn clusters_start_side_by_side_on_addresses_of_their_own() {
    let start = |name: &str| tokio::spawn(Cluster::start(ClusterOptions::new(name)));
    let (one, two) = tokio::join!(start("one"), start("two"));
    let (one, two) = (one.unwrap().unwrap(), two.unwrap().unwrap());
    assert_ne!(one.server_url(), two.server_url());
    let of_one = one.kubeconfig_for("stranger", &[]).unwrap();
    let stranger = client_from(&of_one.replace(&one.server_url(), &two.server_url()))
        .await
        .unwrap();
    let error = review(&stranger).await.unwrap_err();
    assert!(
        !matches!(error, kube::Error::Api(_)),
        "one's CA vouches for two: {error}"
    );
}

/// SIGKILL lets nothing of this program run any more: what is left to act is the kernel and the children.
#[tokio::test]
async fn a_test_that_is_killed_leaves_no_process_and_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    let note = dir.path().join("note.json");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_cluster_waits_to_be_killed"])
        .env(NOTE, &note)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let noted = eventually("the victim's cluster runs", PATIENCE, async || {
        let text = std::fs::read_to_string(&note)?;
        Ok(serde_json::from_str::<(Vec<u32>, PathBuf)>(&text)?)
    });
    let noted = noted.await;
    victim.kill().unwrap();
    victim.wait().unwrap();
    let (ids, dir) = noted.unwrap();
    assert_eq!(ids.len(), 3);
    eventually("everything of it is gone", PATIENCE, async || {
        ensure!(!ids.iter().any(|id| runs(*id)), "a process of {ids:?} runs");
        ensure!(!dir.exists(), "{} is still there", dir.display());
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test]
#[ignore = "only run by the test above, which kills it"]
async fn a_cluster_waits_to_be_killed() {
    let cluster = Cluster::start(ClusterOptions::new("victim")).await.unwrap();
    let note = PathBuf::from(std::env::var_os(NOTE).unwrap());
    let text = serde_json::to_string(&(cluster.process_ids().await, cluster.dir())).unwrap();
    std::fs::write(note.with_extension("new"), text).unwrap();
    std::fs::rename(note.with_extension("new"), note).unwrap();
    std::future::pending::<()>().await;
}

const NOTE: &str = "HARNESS_TEST_NOTE";

fn request(user: &str) -> anyhow::Result<(String, String)> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    params.distinguished_name = name;
    let key = KeyPair::generate()?;
    Ok((params.serialize_request(&key)?.pem()?, key.serialize_pem()))
}

async fn review(client: &Client) -> kube::Result<SelfSubjectReview> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
}

async fn who_am_i(client: &Client) -> anyhow::Result<String> {
    let user = review(client).await?.status.and_then(|status| status.user_info);
    user.and_then(|user| user.username).context("the review names no user")
}

async fn published(cluster: &Cluster) -> anyhow::Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, "default");
    let data = maps.get("kube-root-ca.crt").await?.data.unwrap_or_default();
    data.get("ca.crt").cloned().context("kube-root-ca.crt holds no ca.crt")
}

fn code<T>(result: kube::Result<T>) -> u16 {
    match result {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(_) => 0,
    }
}

fn runs(id: u32) -> bool {
    Path::new(&format!("/proc/{id}")).exists()
}
