//! The machine's clock jumps by two years, while it runs and when its battery is empty.

use std::time::Duration;

use tests::harness::{PATIENCE, eventually};
use tests::world::World;

use crate::support::{Firewall, problem, requests_for};

const TWO_YEARS: i64 = 2 * 365 * 24 * 3600;
/// What it may ask in a minute of a wrong clock, of the seed, and how many certificates.
const ASKED_AT_MOST: usize = 60;
const REQUESTS_AT_MOST: usize = 2;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots a machine: make test-machine"]
async fn a8_d1_a_clock_that_jumps_two_years_either_way_is_named_and_floods_nobody_and_once_right_all_goes_on() {
    let mut firewall = Firewall::boot().await.unwrap();
    let world = World::new("shoot--machine--clock").await.unwrap();
    let _approver = world.approver().unwrap();
    firewall.install(&world).await.unwrap();
    firewall.is_in(&world).await.unwrap();
    world.await_reason(&firewall.name, "Bootstrapped").await.unwrap();
    firewall.tell("the firewall is in");
    let key = firewall.key().await.unwrap();

    for (jump, words) in [(TWO_YEARS, "ahead of"), (-TWO_YEARS, "behind")] {
        firewall
            .guest
            .run(&format!("date -s @$(($(date +%s) + {jump}))"))
            .await
            .unwrap();
        is_named_and_quiet(&firewall, &world, words).await;
        set_right(&firewall).await;
        all_goes_on(&firewall, &world, &key).await;
    }

    // The board's clock is what a boot begins with.
    firewall.guest.cut_power();
    let took = firewall.guest.power_on(Some(LONG_AGO)).await.unwrap();
    firewall.tell(&format!("it has booted with a clock of {LONG_AGO}, in {took:.1?}"));
    is_named_and_quiet(&firewall, &world, "behind").await;
    set_right(&firewall).await;
    all_goes_on(&firewall, &world, &key).await;
    firewall.has_told_no_secret().await.unwrap();
}

/// systemd puts it forward to the day on which it was built itself, which is wrong by months yet.
const LONG_AGO: &str = "2024-11-01T12:00:00";

async fn is_named_and_quiet(firewall: &Firewall, world: &World, words: &str) {
    let named = problem(firewall, "clock skew", PATIENCE).await.unwrap();
    assert!(named.contains(words), "{named}");
    // The other program on the machine asks all the time.
    firewall.guest.run("systemctl stop firewall-controller").await.unwrap();
    let asked = asked(firewall, world);
    let requests = requests_for(world, &firewall.name).await.unwrap().len();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = self::asked(firewall, world) - asked;
    let requests = requests_for(world, &firewall.name).await.unwrap().len() - requests;
    firewall.guest.run("systemctl start firewall-controller").await.unwrap();
    assert!(asked <= ASKED_AT_MOST, "{asked} questions in a minute");
    assert!(
        requests <= REQUESTS_AT_MOST,
        "{requests} requests for certificates in a minute"
    );
    firewall.tell(&format!(
        "\"{named}\"; in a minute of it {asked} questions to the seed, {requests} of them for certificates"
    ));
}

/// Of everything that its agent asked the seed so far, with a credential that is good and without.
fn asked(firewall: &Firewall, world: &World) -> usize {
    let audit = world.seed.audit().unwrap();
    let nobodys = ["", "system:anonymous"];
    let users = audit.iter().map(|event| event.user.username.as_str());
    users
        .filter(|user| user.contains(&firewall.name) || nobodys.contains(user))
        .count()
}

async fn set_right(firewall: &Firewall) {
    let now = jiff::Timestamp::now().as_second();
    firewall.guest.run(&format!("date -s @{now}")).await.unwrap();
}

async fn all_goes_on(firewall: &Firewall, world: &World, key: &str) {
    eventually("no word of the clock", 4 * PATIENCE, || async {
        let status = firewall.status().await?;
        anyhow::ensure!(status["problems"] == serde_json::json!({}), "{}", status["problems"]);
        Ok(())
    })
    .await
    .unwrap();
    firewall.is_in(world).await.unwrap();
    assert_eq!(firewall.key().await.unwrap(), key);
    firewall.tell("the clock is right, and all goes on with the same key");
}
