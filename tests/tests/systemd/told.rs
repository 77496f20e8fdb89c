//! What the agent tells systemd, on a socket such as systemd's.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tests::harness::PATIENCE;

use crate::machine;

/// Where systemd would listen.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    heard: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self {
            socket,
            path,
            heard: Vec::new(),
            _dir: dir,
        }
    }

    fn environment(&self) -> [(&'static str, &str); 1] {
        [("NOTIFY_SOCKET", self.path.to_str().unwrap())]
    }

    /// What comes until this has passed.
    fn listen(&mut self, time: Duration) -> usize {
        let (end, before) = (Instant::now() + time, self.heard.len());
        let mut buffer = [0; 4096];
        while Instant::now() < end {
            if let Ok(length) = self.socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                self.heard.extend(text.lines().map(str::to_owned));
            }
        }
        self.heard.len() - before
    }

    fn hears(&mut self, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.heard.iter().find(|line| line.starts_with(what)) {
                return line.clone();
            }
            assert!(Instant::now() < end, "no {what} in {:?}", self.heard);
            self.listen(Duration::from_millis(100));
        }
    }

    fn count(&self, what: &str) -> usize {
        self.heard.iter().filter(|line| line.starts_with(what)).count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_seed_is_ready_says_how_it_stands_and_that_it_stops() {
    let (machine, mut manager) = (machine(), Manager::new());
    let agent = machine.start_in(&manager.environment()).unwrap();
    assert_eq!(manager.hears("READY"), "READY=1");
    let status = manager.hears("STATUS=waits for the next try for a certificate");
    assert!(status.contains("; no access to the seed yet; "), "{status}");
    // Where no watchdog is wanted there is none.
    assert_eq!(manager.count("WATCHDOG"), 0);
    assert_eq!(manager.count("STOPPING"), 0);
    assert_eq!(agent.stop().await.unwrap(), Some(0));
    manager.hears("STOPPING=1");
    // How it stands is said when it changes, and in one line.
    let standing: Vec<_> = manager
        .heard
        .iter()
        .filter(|line| line.starts_with("STATUS="))
        .collect();
    assert!(standing.windows(2).all(|pair| pair[0] != pair[1]), "{standing:?}");
    assert_eq!(manager.count("READY"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_begin_is_not_ready_and_says_why() {
    let (machine, mut manager) = (machine(), Manager::new());
    std::fs::remove_file(machine.bootstrap_kubeconfig()).unwrap();
    let mut agent = machine.start_in(&manager.environment()).unwrap();
    assert_eq!(agent.ended(PATIENCE).await.unwrap(), Some(1));
    let status = manager.hears("STATUS=");
    assert!(status.contains(".bootstrap.kubeconfig does not exist"), "{status}");
    assert_eq!(manager.count("READY"), 0, "{:?}", manager.heard);
}

struct Traced(Child);

impl Drop for Traced {
    fn drop(&mut self) {
        // The tracer's end detaches it; both are of one group.
        let group = Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A loop that hangs must not be kept alive by the threads that do not.
#[test]
fn the_sign_of_life_comes_from_the_loop_and_ends_when_it_hangs() {
    use std::os::unix::process::CommandExt;

    const LIMIT: Duration = Duration::from_secs(4);
    let (machine, mut manager) = (machine(), Manager::new());
    let log = machine.path().join("log");
    let out = std::fs::File::create(&log).unwrap();
    // Each turn looks at files, in the thread of the loop: at some time such a look does not come back.
    let hang = "inject=statx:delay_enter=3600s:when=40+";
    let child = Command::new("strace")
        .args([
            "-f",
            "-qqq",
            "-o",
            "/dev/null",
            "-e",
            "trace=statx",
            "-e",
            "signal=none",
            "-e",
            hang,
        ])
        .arg(machine.program().unwrap())
        .args(["run", "--hook", "", "--config-dir"])
        .arg(machine.config())
        .arg("--state-dir")
        .arg(machine.state())
        .env("NOTIFY_SOCKET", &manager.path)
        .env("WATCHDOG_USEC", LIMIT.as_micros().to_string())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out)
        .spawn()
        .unwrap();
    let traced = Traced(child);
    manager.hears("WATCHDOG=1");
    let mut beats = manager.count("WATCHDOG");
    let end = Instant::now() + PATIENCE;
    loop {
        manager.listen(LIMIT + LIMIT / 2);
        let now = manager.count("WATCHDOG");
        if now == beats {
            break;
        }
        beats = now;
        assert!(Instant::now() < end, "it does not hang");
    }
    println!("{beats} signs of life");
    assert!(beats > 1, "it hung at once");
    // And yet it lives: its other threads do what they are told.
    let children = format!("/proc/{0}/task/{0}/children", traced.0.id());
    let agent: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(agent).unwrap(), Signal::USR1).unwrap();
    let end = Instant::now() + PATIENCE;
    while !std::fs::read_to_string(&log)
        .unwrap()
        .contains("SIGUSR1: the log level")
    {
        assert!(Instant::now() < end, "it is dead");
        std::thread::sleep(Duration::from_millis(50));
    }
    manager.listen(Duration::from_secs(1));
    assert_eq!(manager.count("WATCHDOG"), beats);
}
