//! What becomes of the seed that was left.

use std::time::Duration;

use tests::moves::{Leaves, Stage};
use tests::world::{other_seed, own_seed, shoot_cluster};

use super::{PROMISED, both, came_in, count, said, settled};

#[tokio::test(flavor = "multi_thread")]
async fn a10_where_only_the_firewalls_went_from_the_old_seed_nothing_but_the_shoots_state_is_left() {
    let stage = Stage::new("shoot--move--bare").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let began = a.move_to(b, Leaves::Namespace).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    a.is_left_clean(Leaves::Namespace).await.unwrap();
    assert_eq!(count(&stage, &machine.firewall).await, 1);
    b.keeps(&machine, Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a9_there_and_back_again_over_what_was_left_behind() {
    let stage = Stage::new("shoot--move--back").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let key = machine.key().unwrap();
    for (from, to) in [(a, b), (b, a), (a, b)] {
        let began = from.move_to(to, Leaves::Namespace).await.unwrap();
        to.has(&machine, began, PROMISED).await.unwrap();
        settled(to, &machine).await;
    }
    b.keeps(&machine, Duration::from_secs(5)).await.unwrap();
    assert_eq!(machine.key().unwrap(), key);
    a.is_left_clean(Leaves::Namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_an_old_seed_that_does_not_answer_is_left_and_ignored_when_it_returns() {
    let old = own_seed("seed-stopped").await.unwrap();
    let (new, shoot) = (other_seed().await.unwrap(), shoot_cluster().await.unwrap());
    let stage = Stage::between(&old, new, shoot, "shoot--move--stopped").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let saved = a.shoot.backup().await.unwrap();
    old.stop().await;

    let began = b.shoot.restore(&saved).await.unwrap();
    let took = b.has(&machine, began, PROMISED).await.unwrap();
    println!("with the old seed stopped: {took:?}");
    settled(b, &machine).await;

    // Its Firewall, its approver, its records: everything is still as it was.
    old.start_again().await.unwrap();
    said(a, &machine.firewall, "OtherSeedAhead", "").await;
    b.keeps(&machine, Duration::from_secs(5)).await.unwrap();
    // An approver that was started anew knows no better, either.
    let again = a.approver().unwrap();
    b.keeps(&machine, Duration::from_secs(5)).await.unwrap();
    drop(again);
    a.leave(Leaves::Nothing).await.unwrap();
    a.is_left_clean(Leaves::Nothing).await.unwrap();
    b.keeps(&machine, Duration::from_secs(3)).await.unwrap();
    said(b, &machine.firewall, "Bootstrapped", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_of_two_seeds_that_both_have_the_firewall_the_older_stands_aside_and_says_so() {
    let stage = Stage::new("shoot--move--both").await.unwrap();
    let (Stage { a, b }, _approvers) = (&stage, both(&stage));
    let (machine, _agent) = came_in(a, "00001").await;
    let saved = a.shoot.backup().await.unwrap();
    let began = b.shoot.restore(&saved).await.unwrap();
    b.has(&machine, began, PROMISED).await.unwrap();
    said(a, &machine.firewall, "OtherSeedAhead", "").await;
    b.keeps(&machine, Duration::from_secs(10)).await.unwrap();
    settled(b, &machine).await;
    assert_eq!(count(&stage, &machine.firewall).await, 2);
    // Whoever is told of a fault there gets no firewall back.
    a.annotate(&machine.firewall, "firewall.metal-stack.io/renew-seed-access=x")
        .await
        .unwrap();
    b.keeps(&machine, Duration::from_secs(5)).await.unwrap();
}
