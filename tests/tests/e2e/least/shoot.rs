//! The same of the approver's rights in a shoot. Two of them it never uses itself: it gives them to firewalls'
//! lifelines, and nobody can give away more than he has.

use anyhow::ensure;
use tests::harness::eventually;
use tests::moves::tail;
use tests::upstream::install_crds;
use tests::world::{Place, install_shoot, manifests, seed};

use super::units::{Unit, units};
use super::{SOON, await_right, cluster};
use crate::moves::said;

pub(crate) const APPROVER: &str = "system:serviceaccount:kube-system:firewall-approver";

fn of_shoot() -> Vec<Unit> {
    units(&format!("{}/approver-rbac.yaml", manifests("shoot")))
}

/// Those that requests are made with.
pub(crate) fn requested() -> Vec<Unit> {
    of_shoot().into_iter().filter(|unit| !is_given_away(unit)).collect()
}

fn is_given_away(unit: &Unit) -> bool {
    matches!(
        (unit.verb.as_str(), unit.resource.as_str()),
        ("get", "firewallmonitors" | "configmaps")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn p25_each_right_in_the_shoot_that_is_taken_away_is_named_by_what_fails() {
    let seed = seed().await.unwrap();
    let shoot = cluster("shoot-least", false).await;
    install_crds(seed, &shoot).await.unwrap();
    install_shoot(&shoot).await.unwrap();
    let admin = shoot.client().await.unwrap();
    let place = Place::empty(seed, &shoot, "shoot--least--shoot").await.unwrap();
    place.settle().await.unwrap();
    let all = of_shoot();
    let (at_the_end, at_the_beginning): (Vec<_>, Vec<_>) = all.iter().partition(|unit| unit.verb == "delete");
    for (index, unit) in at_the_beginning.iter().enumerate() {
        shoot.kubectl_apply_text(&unit.object_without_it(&all)).await.unwrap();
        await_right(&admin, APPROVER, unit, false).await;
        let approver = place.approver().unwrap();
        let firewall = place.shoot.create_firewall(&format!("{index:05}")).await.unwrap();
        let state = said(&place, &firewall, "ShootUnreachable", "the permission is missing").await;
        let function = format!("{} firewall-agent-", function_of(unit));
        assert!(
            state["message"].as_str().unwrap().contains(&function),
            "{unit}: {state}"
        );
        approver.stop().await.unwrap();
        shoot.kubectl_apply_text(&unit.object(&all)).await.unwrap();
        await_right(&admin, APPROVER, unit, true).await;
    }
    for (index, unit) in at_the_end.iter().enumerate() {
        let approver = place.approver().unwrap();
        let firewall = place
            .shoot
            .create_firewall(&format!("{:05}", 90 + index))
            .await
            .unwrap();
        said(&place, &firewall, "WaitingForFirewall", "").await;
        shoot.kubectl_apply_text(&unit.object_without_it(&all)).await.unwrap();
        await_right(&admin, APPROVER, unit, false).await;
        place.shoot.delete_firewall(&firewall).await.unwrap();
        let function = function_of(unit);
        eventually(&format!("{unit} is missed"), SOON, || async {
            let log = place.home.log();
            let line = log.lines().find(|line| {
                line.contains(&format!(
                    "{function} firewall/firewall-agent-{firewall} in the shoot: the permission is missing"
                ))
            });
            ensure!(line.is_some(), "{}", tail(&log));
            Ok(())
        })
        .await
        .unwrap();
        approver.stop().await.unwrap();
        shoot.kubectl_apply_text(&unit.object(&all)).await.unwrap();
        await_right(&admin, APPROVER, unit, true).await;
    }
}

/// What the program was about to do: what it needs for itself, or what it cannot give away.
fn function_of(unit: &Unit) -> &'static str {
    match (unit.verb.as_str(), unit.resource.as_str()) {
        ("delete", "serviceaccounts") => "delete ServiceAccount",
        ("delete", "roles") => "delete Role",
        ("delete", _) => "delete RoleBinding",
        (_, "serviceaccounts") => "apply ServiceAccount",
        (_, "rolebindings") => "apply RoleBinding",
        _ => "apply Role",
    }
}
