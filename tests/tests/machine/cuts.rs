//! The power is cut while the firewall comes in anew, at moments that lie all over it.

use std::time::Duration;

use anyhow::ensure;
use tests::harness::eventually;
use tests::moves::{Leaves, Stage};
use tests::world::Place;
use tokio::time::Instant;

use crate::support::{Firewall, requests_for};

/// So often at least, and so often until as many of them have hit the midst of it.
const CUTS: u32 = 6;
const IN_THE_MIDST: usize = 3;
const CUTS_AT_MOST: u32 = 24;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots a machine: make test-machine"]
async fn d1_the_power_is_cut_in_the_midst_of_moves_and_the_firewall_comes_in_by_itself_with_its_key_and_whole_files() {
    let mut firewall = Firewall::boot().await.unwrap();
    let stage = Stage::new("shoot--machine--cut").await.unwrap();
    let Stage { a, b } = &stage;
    let _approvers = (a.approver().unwrap(), b.approver().unwrap());
    firewall.install(a).await.unwrap();
    firewall.is_in(a).await.unwrap();
    a.await_reason(&firewall.name, "Bootstrapped").await.unwrap();
    let key = firewall.key().await.unwrap();
    firewall.tell("the firewall is in");

    // One that nobody disturbs, to know how long it takes, and that firewall-controller is told of it.
    let controller = firewall.controller().await.unwrap();
    let began = a.move_to(b, Leaves::Nothing).await.unwrap();
    let mut took = switched(&firewall, b, began).await;
    firewall.is_in(b).await.unwrap();
    // Once a minute at most.
    eventually(
        "firewall-controller is started anew",
        2 * tests::harness::PATIENCE,
        || async {
            ensure!(firewall.controller().await? != controller, "nobody told it");
            Ok(())
        },
    )
    .await
    .unwrap();
    firewall.tell(&format!(
        "it has moved in {took:.2?}; firewall-controller was restarted"
    ));

    let (mut from, mut to) = (b, a);
    let (mut cuts, mut midst) = (0, Vec::new());
    while cuts < CUTS || midst.len() < IN_THE_MIDST {
        assert!(cuts < CUTS_AT_MOST, "of {cuts} cuts only these hit anything: {midst:?}");
        // All over what it takes: the golden ratio spreads whatever number of them evenly.
        let at = took.mul_f64(0.3 + 0.8 * (f64::from(cuts) * 0.618_034).fract());
        let (moved, cut) = tokio::join!(from.move_to(to, Leaves::Nothing), cut(&mut firewall, to, at));
        moved.unwrap();
        cut.unwrap();
        let booted = firewall.guest.power_on(None).await.unwrap();
        let found = firewall.files_are_whole().await.unwrap();
        let left = firewall
            .guest
            .run("cat /run/found/config/.seed.kubeconfig")
            .await
            .unwrap();
        firewall.is_in(to).await.unwrap();
        assert_eq!(firewall.key().await.unwrap(), key);
        to.await_reason(&firewall.name, "Bootstrapped").await.unwrap();
        one_key_and_nothing_undecided(&firewall, to).await;
        no_leftovers(&firewall).await;
        cuts += 1;
        let under_way = |name: &&String| {
            let name = name.rsplit('/').next().unwrap_or_default();
            ["request.json", "handover.json", "switching.json"].contains(&name) || name.starts_with(".firewall-agent-")
        };
        let under_way: Vec<&String> = found.iter().filter(under_way).collect();
        firewall.tell(&format!(
            "cut {cuts}, {at:.2?} after the Firewall was there: booted in {booted:.1?}; {} files whole, under way were \
             {under_way:?}; in again",
            found.len()
        ));
        // A machine that is less busy than it was is faster, and the other way round.
        if under_way.is_empty() {
            took = took.mul_f64(if left.contains(to.home.server()) { 0.75 } else { 1.2 });
        } else {
            midst.push(under_way.into_iter().cloned().collect::<Vec<_>>());
        }
        (from, to) = (to, from);
    }
    firewall.tell(&format!("{cuts} cuts, {} of them in the midst", midst.len()));
    firewall.has_told_no_secret().await.unwrap();
}

/// From when the machine can be told to come.
async fn cut(firewall: &mut Firewall, to: &Place<'_>, after: Duration) -> anyhow::Result<()> {
    let firewalls = to.firewalls().await?;
    eventually("the Firewall in the new seed", 2 * tests::harness::PATIENCE, || async {
        Ok(firewalls.get(&firewall.name).await.map(drop)?)
    })
    .await?;
    tokio::time::sleep(after).await;
    firewall.guest.cut_power();
    Ok(())
}

/// How long it took until what lies on the disk leads to this seed.
async fn switched(firewall: &Firewall, place: &Place<'_>, began: Instant) -> Duration {
    eventually("a kubeconfig for the new seed", tests::harness::PATIENCE, || async {
        let text = firewall
            .guest
            .run("cat /etc/firewall-controller/.seed.kubeconfig")
            .await?;
        ensure!(text.contains(place.home.server()), "it is the old one");
        Ok(())
    })
    .await
    .unwrap();
    began.elapsed()
}

async fn one_key_and_nothing_undecided(firewall: &Firewall, place: &Place<'_>) {
    let mut keys = Vec::new();
    for request in requests_for(place, &firewall.name).await.unwrap() {
        let read = contract::csr::read(&request.spec.request.0).unwrap();
        keys.push(read.key.thumbprint().to_string());
        let conditions = request.status.and_then(|status| status.conditions).unwrap_or_default();
        assert!(!conditions.is_empty(), "a request is left undecided");
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 1, "more keys than one asked: {keys:?}");
}

/// What a cut left half written is swept away.
async fn no_leftovers(firewall: &Firewall) {
    let find = "find /var/lib/firewall-agent /etc/firewall-controller -name '.firewall-agent-*' -mmin +1";
    let left = firewall.guest.run(find).await.unwrap();
    assert_eq!(left, "", "left behind");
}
