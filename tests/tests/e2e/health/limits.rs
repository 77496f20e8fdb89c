//! Whoever reaches the port holds up himself only.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Resource, getrlimit, setrlimit};
use tests::harness::eventually;
use tests::http::Http;
use tests::programs::Program;
use tests::world::World;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// What the kubelet gives a probe by default.
const PROBE: Duration = Duration::from_secs(1);

async fn approver(namespace: &str) -> (World, Program, Http) {
    let world = World::new(namespace).await.unwrap();
    let approver = world.approver().unwrap();
    let http = approver.http().await.unwrap();
    (world, approver, http)
}

/// As many files as the kernel lets us have: a thousand connections are as many.
fn many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Answers every probe for so long; returns the slowest.
async fn probed(http: &Http, how_long: Duration) -> Duration {
    let (end, mut slowest) = (Instant::now() + how_long, Duration::ZERO);
    while Instant::now() < end {
        let began = Instant::now();
        let answer = timeout(PROBE, http.get("/healthz")).await.unwrap();
        assert_eq!(answer.unwrap().body, "ok");
        slowest = slowest.max(began.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn e_a_thousand_idle_connections_do_not_stop_healthz() {
    many_files();
    let (_world, approver, http) = approver("shoot--health--idle").await;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(TcpStream::connect(http.0).await.unwrap());
    }
    let slowest = probed(&http, Duration::from_secs(2)).await;
    println!("1,000 idle connections: /healthz took {slowest:?} at most");
    // What it holds is bounded, not only what it answers.
    let held = std::fs::read_dir(format!("/proc/{}/fd", approver.id()))
        .unwrap()
        .count();
    println!("it holds {held} files");
    assert!(held < 400, "{held}");
    eventually("every idle connection is closed", Duration::from_secs(20), || async {
        for stream in &idle {
            ensure!(
                matches!(stream.try_read(&mut [0]), Ok(0) | Err(_)) && !would_block(stream),
                "one is open"
            );
        }
        Ok(())
    })
    .await
    .unwrap();
}

fn would_block(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread")]
async fn e_slow_senders_do_not_stop_healthz_and_are_cut_off() {
    many_files();
    let (_world, _approver, http) = approver("shoot--health--slow").await;
    let begun = "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ";
    let mut slow = JoinSet::new();
    for _ in 0..500 {
        let mut stream = TcpStream::connect(http.0).await.unwrap();
        slow.spawn(async move {
            let began = Instant::now();
            stream.write_all(begun.as_bytes()).await?;
            // A byte now and then, so that it is never idle.
            loop {
                sleep(Duration::from_millis(500)).await;
                stream.write_all(b"a").await?;
                if let Ok(read) = timeout(Duration::from_millis(1), stream.read(&mut [0; 256])).await {
                    read?;
                    return std::io::Result::Ok(began.elapsed());
                }
            }
        });
    }
    let slowest = probed(&http, Duration::from_secs(4)).await;
    println!("500 slow senders: /healthz took {slowest:?} at most");
    let mut longest = Duration::ZERO;
    while let Some(ended) = timeout(Duration::from_secs(15), slow.join_next()).await.unwrap() {
        if let Ok(life) = ended.unwrap() {
            longest = longest.max(life);
        }
    }
    println!("a slow sender lasted {longest:?} at most");
    assert!(longest < Duration::from_secs(8), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e_what_is_too_much_is_refused_by_its_status() {
    let (_world, _approver, http) = approver("shoot--health--much").await;
    let get = |headers: &str| format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let many: String = (0..100).map(|n| format!("X-{n}: y\r\n")).collect();
    for (what, request, status) in [
        ("a request", get(""), 200),
        (
            "a long header",
            get(&format!("X-Long: {}\r\n", "y".repeat(32 * 1024))),
            431,
        ),
        ("many headers", get(&many), 431),
        (
            "a long path",
            format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "y".repeat(32 * 1024)),
            431,
        ),
        ("a body", get("Content-Length: 100000\r\n"), 413),
        ("nonsense", "nonsense\r\n\r\n".to_owned(), 400),
        (
            "a write",
            "POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".to_owned(),
            405,
        ),
        (
            "nothing of ours",
            "GET /debug HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(),
            404,
        ),
    ] {
        let answer = http
            .send(&request)
            .await
            .unwrap_or_else(|error| panic!("{what}: {error:#}"));
        assert_eq!(answer.status, status, "{what}: {answer:?}");
    }
}
