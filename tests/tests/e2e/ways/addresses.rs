//! API servers at IPv6 addresses: on loopback, and over a cable.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::time::Duration;

use contract::kubeconfig::Kubeconfig;
use tests::consumer::{Consumer, Kind};
use tests::harness::{Cluster, ClusterOptions, FAR6, Net, Way};
use tests::programs::Machine;
use tests::upstream::install_crds;
use tests::world::{Place, install_seed, install_shoot};

use super::{far, reached_at};
use crate::moves::settled;

async fn cluster(name: &str) -> Cluster {
    let options = ClusterOptions {
        ip: loopback(),
        addresses: vec![FAR6.parse().unwrap()],
        ..ClusterOptions::new(name)
    };
    Cluster::start(options).await.unwrap()
}

/// A container may have no IPv6 of its own; the namespaces that the test makes have.
fn loopback() -> Option<IpAddr> {
    let ip = IpAddr::from(Ipv6Addr::LOCALHOST);
    TcpListener::bind((ip, 0)).is_ok().then_some(ip)
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_a4_a6_api_servers_at_ipv6_addresses_on_loopback_and_over_a_cable() {
    let (seed, shoot) = (cluster("seed-six").await, cluster("shoot-six").await);
    install_crds(&seed, &shoot).await.unwrap();
    install_seed(&seed).await.unwrap();
    install_shoot(&shoot).await.unwrap();

    let place = Place::empty(&seed, &shoot, "shoot--six--loopback").await.unwrap();
    place.settle().await.unwrap();
    let _approver = place.approver().unwrap();
    let machine = place.machine("00001").await.unwrap();
    let _agent = machine.start().unwrap();
    settled(&place, &machine).await;
    if loopback().is_none() {
        println!("this machine has no IPv6 loopback: only the way over the cable is shown");
    }
    assert_eq!(seed.address().is_ipv6(), loopback().is_some());
    works(&machine, [seed.server_url(), shoot.server_url()], None).await;

    // Agent, approver and consumer have nothing but the cable.
    let net = Net::new().unwrap();
    let _ways = [far(&net, FAR6, &seed).await, far(&net, FAR6, &shoot).await];
    let urls = [&seed, &shoot].map(|cluster| format!("https://[{FAR6}]:{}", cluster.address().port()));
    let mut routed = Place::empty(&seed, &shoot, "shoot--six--routed").await.unwrap();
    reached_at(&mut routed, &urls[0], &urls[1]).await;
    let kubeconfig = fs::read_to_string(routed.home.kubeconfig()).unwrap();
    fs::write(
        routed.home.kubeconfig(),
        kubeconfig.replace(&seed.server_url(), &urls[0]),
    )
    .unwrap();
    routed.settle().await.unwrap();
    let _approver = routed.approver_at(&net.to_near()).unwrap();
    let machine = routed.machine("00001").await.unwrap();
    let _agent = machine.start_at(&net.to_near(), &[], &[]).unwrap();
    settled(&routed, &machine).await;
    works(&machine, urls, Some(&net.to_near())).await;
}

/// The kubeconfigs lead there, and the consumer works by them.
async fn works(machine: &Machine, urls: [String; 2], way: Option<&Way>) {
    let paths = [machine.seed_kubeconfig(), machine.shoot_kubeconfig()];
    for (path, url) in paths.iter().zip(urls) {
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(Kubeconfig::read_local("it", &text).unwrap().server, url);
    }
    let consumer = Consumer::start_as(machine, Kind::Stock, way, &[]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sums = consumer.stop().await.unwrap();
    assert!(sums.requests >= 10 && sums.failed + sums.other == 0, "{sums:?}");
}
