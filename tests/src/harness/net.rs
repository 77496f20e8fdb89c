//! Network namespaces of a test's own: a near one, where what is tested runs, a far one, where it wants to go, and a cable
//! between them. No name, address or route of the machine itself is touched. Each namespace hangs on a process that ends
//! with its standard input, and so with this process however that dies: the kernel then takes away all that was in it.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Both ends are of this network, and so are addresses that a test adds in it.
pub const NEAR: &str = "10.200.0.2";
pub const FAR: &str = "10.200.0.1";
/// Of the far end.
pub const FAR6: &str = "fd00:200::1";

/// Ends with everything in it when dropped.
pub struct Net {
    near: Holder,
    far: Holder,
}

/// How a program is started somewhere else than beside the test: what stands before its command line.
#[derive(Clone, Debug)]
pub struct Way(Vec<String>);

impl Net {
    pub fn new() -> anyhow::Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces, which only root may: run it as root (`sudo -E make test`), as CI does"
        );
        let net = Self {
            near: Holder::start()?,
            far: Holder::start()?,
        };
        net.far(&format!(
            "ip link add out type veth peer name out netns {}
             ip addr add {FAR}/24 dev out
             ip -6 addr add {FAR6}/64 dev out nodad
             ip link set out up",
            net.near.child.id()
        ))?;
        net.near(&format!(
            "ip addr add {NEAR}/24 dev out
             ip -6 addr add fd00:200::2/64 dev out nodad
             ip link set out up"
        ))?;
        Ok(net)
    }

    /// Runs these lines of sh in the near namespace.
    pub fn near(&self, script: &str) -> anyhow::Result<()> {
        self.near.run(script)
    }

    pub fn far(&self, script: &str) -> anyhow::Result<()> {
        self.far.run(script)
    }

    /// More addresses of the far end, which the near one reaches only as its routes say.
    pub fn add_far(&self, addresses: &[&str]) -> anyhow::Result<()> {
        let lines: Vec<String> = addresses
            .iter()
            .map(|ip| format!("ip addr add {ip}/32 dev lo"))
            .collect();
        self.far(&lines.join("\n"))
    }

    /// Packets to this address of the far end get no answer of any kind from here on, on connections that stand neither.
    pub fn swallow(&self, address: &str) -> anyhow::Result<()> {
        self.far(&format!("ip rule add from {address} prio 5 blackhole"))
    }

    /// What the names mean in the near namespace, instead of what they meant before.
    pub fn near_names(&self, names: &[(String, &str)]) -> anyhow::Result<()> {
        self.near.names(names)
    }

    pub fn far_names(&self, names: &[(String, &str)]) -> anyhow::Result<()> {
        self.far.names(names)
    }

    /// A program started there is killed when whoever started it is gone.
    pub fn to_near(&self) -> Way {
        self.near.way()
    }

    pub fn to_far(&self) -> Way {
        self.far.way()
    }

    /// A listener of this process in the far namespace: what comes in there can be passed on here.
    pub async fn listen(&self, address: SocketAddr) -> anyhow::Result<TcpListener> {
        let listener = self.in_far(move || std::net::TcpListener::bind(address))?;
        listener.set_nonblocking(true)?;
        Ok(TcpListener::from_std(listener)?)
    }

    /// Fails while nobody listens there.
    pub fn answers(&self, address: SocketAddr) -> anyhow::Result<()> {
        self.in_far(move || TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop))
    }

    /// On a thread that is in there alone, and ends.
    fn in_far<T: Send + 'static>(&self, what: impl FnOnce() -> io::Result<T> + Send + 'static) -> anyhow::Result<T> {
        let namespace = File::open(format!("/proc/{}/ns/net", self.far.child.id()))?;
        let done = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            what()
        });
        Ok(done
            .join()
            .map_err(|_| anyhow!("the thread in the far namespace died"))??)
    }
}

impl Way {
    /// On this machine, with a file of its own for what names mean.
    pub fn with_names(dir: &Path, names: &[(String, IpAddr)]) -> anyhow::Result<Self> {
        let names: Vec<(String, String)> = names.iter().map(|(name, ip)| (name.clone(), ip.to_string())).collect();
        let names: Vec<(String, &str)> = names.iter().map(|(name, ip)| (name.clone(), ip.as_str())).collect();
        let file = dir.join("hosts");
        write_names(&file, &names)?;
        let mount = r#"mount --bind "$0" /etc/hosts && exec "$@""#;
        let file = file.display().to_string();
        Ok(Self(
            ["unshare", "--mount", "sh", "-c", mount, &file]
                .map(str::to_owned)
                .to_vec(),
        ))
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut words = self.0.iter();
        let mut command = Command::new(words.next().map_or("env", String::as_str));
        command.args(words).arg(program);
        command
    }
}

/// A network and a mount namespace.
struct Holder {
    child: Child,
    _stdin: ChildStdin,
    dir: TempDir,
}

/// `$0` is the file of names.
const HOLD: &str = r#"
mount --bind "$0" /etc/hosts
ip link set lo up
echo ready
exec cat >/dev/null
"#;

impl Holder {
    fn start() -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("net-").tempdir()?;
        write_names(&dir.path().join("hosts"), &[])?;
        let mut child = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-ec", HOLD])
            .arg(dir.path().join("hosts"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare cannot be started")?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut said = String::new();
        BufReader::new(stdout.context("no output")?).read_line(&mut said)?;
        if said.trim() != "ready" {
            bail!("no network namespace can be made here: {:?}", child.wait());
        }
        Ok(Self {
            child,
            _stdin: stdin.context("no input")?,
            dir,
        })
    }

    fn way(&self) -> Way {
        let of = |kind: &str| format!("--{kind}=/proc/{}/ns/{kind}", self.child.id());
        let mount = format!("--mount=/proc/{}/ns/mnt", self.child.id());
        let words = ["nsenter", &of("net"), &mount, "setpriv", "--pdeathsig", "KILL"];
        Way(words.map(str::to_owned).to_vec())
    }

    fn run(&self, script: &str) -> anyhow::Result<()> {
        let output = self.way().command("sh".as_ref()).args(["-ec", script]).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script}\n{said}");
        Ok(())
    }

    fn names(&self, names: &[(String, &str)]) -> anyhow::Result<()> {
        write_names(&self.dir.path().join("hosts"), names)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In place: it is mounted as it stands.
fn write_names(file: &PathBuf, names: &[(String, &str)]) -> anyhow::Result<()> {
    let lines: String = names.iter().map(|(name, ip)| format!("{ip} {name}\n")).collect();
    fs::write(file, format!("127.0.0.1 localhost\n::1 localhost\n{lines}"))
        .with_context(|| format!("{} cannot be written", file.display()))
}
