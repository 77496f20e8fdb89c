//! B2, C1: what a real client-go program on the machine sees of a planned roll, which is nothing.

use std::time::Duration;

use tests::consumer::Kind;
use tests::soak::{Plan, run};
use tests::world::{own_seed, shoot_cluster};

/// `make soak` is the same for 12 minutes.
#[tokio::test(flavor = "multi_thread")]
async fn b2_c1_both_cas_are_rolled_and_no_request_of_a_consumer_fails() {
    let seed = own_seed("seed-soak").await.unwrap();
    let shoot = shoot_cluster().await.unwrap();
    let plan = Plan::new(Duration::from_secs(120), Kind::Watching);
    let sums = run(&seed, shoot, "shoot--soak--minutes", plan).await.unwrap();
    println!("{sums:?}");
    assert_eq!(sums.failed, 0, "{sums:?}");
    // Another certificate, one CA more, one CA less.
    assert!(sums.clients >= 3, "{sums:?}");
    // Beside other tests on a busy machine, it still asked all the time.
    assert!(sums.requests >= 600 && sums.other * 10 <= sums.requests, "{sums:?}");
}
