//! The approver tries what its policies forbid, and does not serve where one of them does not hold it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use contract::csr;
use contract::key::PrivateKey;
use contract::names::{self, FirewallName};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde_json::Value;
use tempfile::TempDir;
use tests::flood::make;
use tests::harness::{Cluster, ClusterOptions, client_from, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, Program};
use tests::upstream::{Shoot, install_crds};
use tests::world::{install_seed, manifests};

const POLICIES: [&str; 5] = ["secrets", "roles", "rolebindings", "requests", "firewalls"];
/// It waits ten seconds for policies that were just installed.
const ENDS: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(90);

fn full_name(policy: &str) -> String {
    format!("firewall-approver-{policy}")
}

/// Where there is a Firewall to try something on.
async fn seed(name: &str) -> Cluster {
    let seed = Cluster::start(ClusterOptions::new(name)).await.unwrap();
    install_crds(&seed, &seed).await.unwrap();
    seed
}

async fn firewall(seed: &Cluster) {
    let shoot = Shoot::somewhere(seed, seed, "shoot--self--test");
    shoot.write_namespace().await.unwrap();
    shoot.create_firewall_object("fw-1").await.unwrap();
}

/// It ends, and says of these policies, and of no other, that they do not hold it.
async fn refuses(mut approver: Program, home: &ApproverHome, from: usize, policies: &[&str]) -> String {
    let code = approver.ended(ENDS).await;
    let said = home.log()[from..].to_owned();
    assert!(matches!(code, Ok(Some(1))), "{policies:?}: it serves: {said}");
    for policy in POLICIES {
        let named = said.contains(&format!("{} should have refused", full_name(policy)));
        assert_eq!(named, policies.contains(&policy), "{policy}: {said}");
    }
    said
}

/// An operator's overlay, built with the kustomize that kubectl brings.
async fn apply_overlay(seed: &Cluster, kustomization: &str) {
    let dir = TempDir::new().unwrap();
    copy(Path::new(&manifests("seed")), &dir.path().join("base"));
    let overlay = dir.path().join("overlay");
    fs::create_dir(&overlay).unwrap();
    fs::write(overlay.join("kustomization.yaml"), kustomization).unwrap();
    seed.kubectl_apply_kustomize(&overlay).await.unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p24_an_approver_whose_service_account_was_renamed_refuses_to_serve_and_names_every_policy() {
    let seed = seed("seed-renamed").await;
    // kustomize renames the account, and whatever refers to it but the policies' text.
    let rename = "apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../base]
patches:
  - target: {kind: ServiceAccount, name: firewall-approver}
    options: {allowNameChange: true}
    patch: |
      - {op: replace, path: /metadata/name, value: seed-approver}
";
    apply_overlay(&seed, rename).await;
    firewall(&seed).await;
    let token = ["create", "token", "-n", "firewall-approver", "seed-approver"];
    let token = seed.kubectl_ok(&token).await.unwrap();
    // Under its right name there is none any more.
    let bare = [
        "create",
        "serviceaccount",
        "-n",
        "firewall-approver",
        "firewall-approver",
    ];
    seed.kubectl_ok(&bare).await.unwrap();
    let home = ApproverHome::new(&seed).await.unwrap();
    fs::write(home.kubeconfig(), seed.kubeconfig_with_token(token.trim())).unwrap();
    for more in [&[][..], &["--dry-run"]] {
        let from = home.log().len();
        let said = refuses(home.start(more).unwrap(), &home, from, &POLICIES).await;
        for words in [
            "this is system:serviceaccount:firewall-approver:seed-approver",
            "ServiceAccount firewall-approver/firewall-approver",
            "Apply manifests/seed",
            "create Secret kube-system/",
            "create Secret default/",
            "label Firewall shoot--self--test/fw-1",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
    // It has written nothing: what it tried were dry runs.
    let admin = seed.client().await.unwrap();
    let secrets: Api<Secret> = Api::all(admin.clone());
    let mut names: Vec<String> = Vec::new();
    for secret in secrets.list(&ListParams::default()).await.unwrap() {
        names.push(secret.name_any());
    }
    assert_eq!(names, Vec::<String>::new());
    let requests: Api<CertificateSigningRequest> = Api::all(admin);
    for request in requests.list(&ListParams::default()).await.unwrap() {
        assert!(request.status.is_none_or(|status| status.conditions.is_none()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p24_a_policy_or_binding_that_is_missing_is_named_and_ends_it() {
    let seed = seed("seed-policies").await;
    install_seed(&seed).await.unwrap();
    firewall(&seed).await;
    let home = ApproverHome::new(&seed).await.unwrap();
    for (index, policy) in POLICIES.iter().enumerate() {
        // The one without the other holds nobody.
        let kind = ["validatingadmissionpolicy", "validatingadmissionpolicybinding"][index % 2];
        seed.kubectl_ok(&["delete", kind, &full_name(policy)]).await.unwrap();
        let from = home.log().len();
        // What was deleted may be in force for a moment more, so that it is missed a moment after the start.
        let approver = home.start(&["--poll-interval", "1s"]).unwrap();
        refuses(approver, &home, from, &[policy]).await;
        install_seed(&seed).await.unwrap();
    }

    // What was just applied is waited for: it serves.
    let from = home.log().len();
    let mut approver = home.start(&["--poll-interval", "1s"]).unwrap();
    eventually("it serves", SOON, || async {
        ensure!(
            home.log()[from..].contains("serving this seed"),
            "{}",
            tail(&home.log())
        );
        Ok(())
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(approver.runs(), "{}", tail(&home.log()));
    // Taken away for a moment, as by somebody who replaces it: no alarm.
    let binding = "validatingadmissionpolicybinding";
    let name = full_name("firewalls");
    seed.kubectl_ok(&["delete", binding, &name]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    install_seed(&seed).await.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(approver.runs(), "{}", tail(&home.log()));
    // Taken away for good.
    let from = home.log().len();
    seed.kubectl_ok(&["delete", binding, &full_name("secrets")])
        .await
        .unwrap();
    let said = refuses(approver, &home, from, &["secrets"]).await;
    assert!(said.contains("self-test of the policies ended by itself"), "{said}");

    // It makes one request to try an approval on, and no second one while that stands.
    let requests: Api<CertificateSigningRequest> = Api::all(seed.client().await.unwrap());
    let of_tests = requests.list(&ListParams::default()).await.unwrap();
    let made = of_tests
        .iter()
        .filter(|request| request.name_any().starts_with("firewall-selftest-"))
        .count();
    assert_eq!(made, POLICIES.len() + 1);
}

/// Where nothing keeps a firewall's token from asking another signer, `auto` gives it none.
#[tokio::test(flavor = "multi_thread")]
async fn p24_without_the_policy_on_requesters_no_token_is_handed_out() {
    let seed = seed("seed-requesters").await;
    install_seed(&seed).await.unwrap();
    let policy = full_name("requesters");
    let delete = ["delete", "validatingadmissionpolicybinding", &policy];
    seed.kubectl_ok(&delete).await.unwrap();
    // What was deleted may be in force for a moment more.
    let anybody = seed
        .kubeconfig_for("fw.metal-stack.io:fw", &[names::ORGANIZATION])
        .unwrap();
    let anybody = client_from(&anybody).await.unwrap();
    let request = csr::write(&FirewallName::parse("fw").unwrap(), &PrivateKey::generate().unwrap()).unwrap();
    eventually("nobody is held", SOON, || async {
        Ok(make(&anybody, "example.com/none-of-ours", &request).await?)
    })
    .await
    .unwrap();
    let home = ApproverHome::new(&seed).await.unwrap();
    let mut insists = home.start(&["--bootstrap-credential", "token"]).unwrap();
    assert_eq!(insists.ended(ENDS).await.unwrap(), Some(1));
    assert!(home.log().contains(&policy), "{}", home.log());
    let chosen = |wanted: &'static str, from: usize| {
        let home = &home;
        async move {
            eventually(wanted, SOON, || async {
                let log = home.log();
                let line = log[from..].lines().find(|line| line.contains("bootstrap credential: "));
                let line: Value = serde_json::from_str(line.unwrap_or("{}"))?;
                ensure!(line.to_string().contains(wanted), "{}", tail(&log));
                Ok(line.to_string())
            })
            .await
            .unwrap()
        }
    };
    let from = home.log().len();
    let approver = home.start(&[]).unwrap();
    let said = chosen("ServiceAccount", from).await;
    assert!(said.contains(&policy), "{said}");
    approver.stop().await.unwrap();
    install_seed(&seed).await.unwrap();
    let from = home.log().len();
    let _approver = home.start(&[]).unwrap();
    chosen("a bootstrap token opens nothing but certificate requests here", from).await;
}
