//! Least privilege: the manifests give the approver no right that it does not use, and each that is taken away is missed
//! by name. What is used is read off the API servers' audit logs of a full life, what is missed out of the program's own
//! words.

mod shoot;
mod units;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tests::harness::{Cluster, ClusterOptions, eventually};
use tests::moves::tail;
use tests::programs::{ApproverHome, export};
use tests::upstream::install_crds;
use tests::world::{Place, install_seed, install_shoot, manifests};

use crate::moves::{came_in, said};
use crate::support::{certificate_of, renewed};
use units::{Unit, units};

pub(crate) const APPROVER: &str = "system:serviceaccount:firewall-approver:firewall-approver";
const SOON: Duration = Duration::from_secs(30);

async fn cluster(name: &str, audit: bool) -> Cluster {
    let options = ClusterOptions {
        audit,
        ..ClusterOptions::new(name)
    };
    Cluster::start(options).await.unwrap()
}

fn of_seed() -> Vec<Unit> {
    units(&format!("{}/approver-rbac.yaml", manifests("seed")))
}

/// As upstream's deployment leaves it.
async fn tell_server(seed: &Cluster) {
    let garden = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "garden"}});
    let server = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seed-api-server", "namespace": "garden"},
        "data": {"url": seed.server_url()},
    });
    seed.kubectl_apply_text(&format!("{garden}\n---\n{server}"))
        .await
        .unwrap();
}

/// RBAC's changes take a moment to be known.
async fn await_right(admin: &Client, user: &str, unit: &Unit, wanted: bool) {
    let reviews: Api<SubjectAccessReview> = Api::all(admin.clone());
    let (resource, subresource) = unit.resource.split_once('/').unwrap_or((&unit.resource, ""));
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                verb: some(&unit.verb),
                group: some(&unit.group),
                resource: some(resource),
                subresource: some(subresource),
                namespace: some(&unit.namespace),
                name: some(&unit.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    eventually(&format!("{unit} is allowed: {wanted}"), SOON, || async {
        let answer = reviews.create(&PostParams::default(), &review).await?;
        ensure!(answer.status.is_some_and(|status| status.allowed) == wanted, "not yet");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p25_each_right_that_is_taken_away_is_named_with_what_fails_without_it() {
    let seed = cluster("seed-least", false).await;
    install_crds(&seed, &seed).await.unwrap();
    install_seed(&seed).await.unwrap();
    tell_server(&seed).await;
    let home = ApproverHome::new(&seed).await.unwrap();
    let kubeconfig = home.kubeconfig();
    let args = ["run", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let admin = seed.client().await.unwrap();
    let all = of_seed();
    let mut reasons = BTreeSet::new();
    for unit in &all {
        seed.kubectl_apply_text(&unit.object_without_it(&all)).await.unwrap();
        await_right(&admin, APPROVER, unit, false).await;
        let before = home.log().len();
        let mut approver = home.start_with(&args).unwrap();
        let code = approver.ended(Duration::from_secs(10)).await;
        let said = home.log()[before..].to_owned();
        assert!(matches!(code, Ok(Some(1))), "nothing misses {unit}: {said}");
        let missing = said
            .split_once("lacks permissions in this seed: ")
            .and_then(|(_, rest)| rest.split_once("; apply manifests/seed"))
            .unwrap_or_else(|| panic!("{unit}: {said}"))
            .0;
        for named in missing.split("; ") {
            let right = format!("{} {}", unit.verb, unit.resource);
            assert!(named.starts_with(&right), "{unit} was taken away, and it says {named}");
            let (_, function) = named.split_once("(to ").unwrap_or_else(|| panic!("{unit}: {named}"));
            reasons.insert(function.to_owned());
        }
        seed.kubectl_apply_text(&unit.object(&all)).await.unwrap();
    }
    println!("{} rights, each missed, for {} functions", all.len(), reasons.len());
    for unit in &all {
        await_right(&admin, APPROVER, unit, true).await;
    }
    // Nothing else was in the way.
    let _approver = home.start_with(&args).unwrap();
    eventually("it serves", SOON, || async {
        ensure!(home.log().contains("serving this seed"), "{}", tail(&home.log()));
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p25_each_right_of_the_approver_is_used_in_a_full_life() {
    let (seed, shoot) = (cluster("seed-used", true).await, cluster("shoot-used", true).await);
    install_crds(&seed, &shoot).await.unwrap();
    install_seed(&seed).await.unwrap();
    install_shoot(&shoot).await.unwrap();
    tell_server(&seed).await;
    let place = Place::empty(&seed, &shoot, "shoot--least--used").await.unwrap();
    place.settle().await.unwrap();
    let kubeconfig = place.home.kubeconfig();
    for kind in ["token", "service-account"] {
        let approver = place
            .home
            .start_with(&[
                "run",
                "--kubeconfig",
                kubeconfig.to_str().unwrap(),
                "--bootstrap-credential",
                kind,
            ])
            .unwrap();
        let (machine, agent) = came_in(&place, if kind == "token" { "00001" } else { "00002" }).await;
        let old = certificate_of(&machine).unwrap();
        place
            .annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=now")
            .await
            .unwrap();
        renewed(&machine, &old, SOON).await.unwrap();
        // Somebody mistypes, twice: the event of the second is the first one, counted.
        for value in ["one", "two"] {
            let annotation = format!("firewall.metal-stack.io/accept-key={value}");
            place.annotate(&machine.firewall, &annotation).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // One that does not take it up before it can be read.
        agent.kill();
        export(&seed, place.namespace(), &machine.firewall).await.unwrap();
        let _agent = machine.start().unwrap();
        said(&place, &machine.firewall, "Bootstrapped", "").await;
        place.shoot.delete_firewall(&machine.firewall).await.unwrap();
        place.is_left_clean(tests::moves::Leaves::Namespace).await.unwrap();
        lifeline_gone(&shoot).await;
        approver.stop().await.unwrap();
    }
    // And where firewalls work with tokens.
    let approver = place
        .home
        .start_with(&[
            "run",
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--seed-access",
            "token",
        ])
        .unwrap();
    let (machine, _agent) = came_in(&place, "00003").await;
    place.shoot.delete_firewall(&machine.firewall).await.unwrap();
    place.is_left_clean(tests::moves::Leaves::Namespace).await.unwrap();
    approver.stop().await.unwrap();
    let used = |cluster: &Cluster, user: &str, units: &[Unit]| {
        let events = cluster.audit().unwrap();
        let unused: Vec<String> = units
            .iter()
            .filter(|unit| !events.iter().any(|event| unit.is_used_by(user, event)))
            .map(ToString::to_string)
            .collect();
        assert_eq!(unused, Vec::<String>::new(), "nobody uses these, of {}", units.len());
    };
    used(&seed, APPROVER, &of_seed());
    used(&shoot, shoot::APPROVER, &shoot::requested());
}

/// ServiceAccount, Role and RoleBinding go one after the other.
async fn lifeline_gone(shoot: &Cluster) {
    eventually("the lifeline is gone", SOON, || async {
        let found = [
            "get",
            "serviceaccounts,roles,rolebindings",
            "-n",
            "firewall",
            "-o",
            "name",
        ];
        let found = shoot.kubectl_ok(&found).await?;
        ensure!(!found.contains("firewall-agent-"), "{found}");
        Ok(())
    })
    .await
    .unwrap();
}
