//! The webhook's certificate and CA are rolled while admissions run, and none fails.

use std::collections::BTreeSet;
use std::time::Duration;

use tests::programs::ApproverHome;
use tests::webhook::{Hooked, TO_ALL};
use tests::world::World;
use tokio::time::Instant;

const LIFE: &str = "60s";
/// Each is followed by another when 40 s of it are over.
const DURING: Duration = Duration::from_secs(110);

#[tokio::test(flavor = "multi_thread")]
async fn b1_b2_through_two_rolls_of_its_ca_no_admission_fails_with_two_replicas() {
    let world = World::new("shoot--baked--roll").await.unwrap();
    let hooked = Hooked::install(&world).await.unwrap();
    let args = ["--webhook-certificate-duration", LIFE];
    let first = hooked.approver(&args).await.unwrap();
    let home = ApproverHome::new(world.seed).await.unwrap();
    let mut all = vec!["--namespace", world.namespace(), "--webhook-listen", TO_ALL];
    all.extend(args);
    let second = home.start(&all).unwrap();
    hooked.front.lead_to(&[second.webhook().await.unwrap()]);
    hooked.answers(&second).await.unwrap();
    hooked
        .front
        .lead_to(&[first.webhook().await.unwrap(), second.webhook().await.unwrap()]);

    let (mut bundles, mut admissions) = (BTreeSet::new(), 0);
    let mut most = 0;
    let end = Instant::now() + DURING;
    while Instant::now() < end {
        if let Err(error) = hooked.try_it("probe").await {
            panic!("after {admissions}: {error:#}\n{}\n{}", first.log(), home.log());
        }
        admissions += 1;
        let configuration = hooked.configuration().await.unwrap();
        for entry in configuration.webhooks.unwrap() {
            let bundle = String::from_utf8(entry.client_config.ca_bundle.unwrap().0).unwrap();
            most = most.max(bundle.matches("BEGIN CERTIFICATE").count());
            bundles.insert(bundle);
        }
    }
    println!("{admissions} admissions, {} bundles", bundles.len());
    // One, one and the next, the next, and so on: of two rolls five.
    assert!(bundles.len() >= 5, "{} bundles", bundles.len());
    assert_eq!(most, 2, "old and new are trusted together, and no third");
    for program in [&first, &second] {
        assert!(hooked.asked(program, "create").await.unwrap() > 10);
    }
}
