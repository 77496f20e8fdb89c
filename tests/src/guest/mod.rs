//! A whole machine in QEMU: a kernel, systemd as its first process, a disk, a clock, and a power switch. It knows nothing
//! of firewalls; what it boots is made by `tests/machine/build.sh`.

mod channel;
mod network;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use self::channel::Channel;
use crate::harness::{eventually, listen_on};

pub use self::channel::Answer;
pub use self::network::HOST;

pub struct Guest {
    qemu: Option<Child>,
    accelerator: &'static str,
    image: PathBuf,
    // Dropped in this order: what is swept away has gone before.
    dir: TempDir,
    _sweeper: Sweeper,
}

impl Guest {
    /// With a disk of its own, switched off. `files` are on its second one, `/dev/vdb`, which is nothing but a tar.
    pub async fn new(files: &[(&str, &Path)]) -> anyhow::Result<Self> {
        network::lay()?;
        listen_on(HOST);
        let image = PathBuf::from(
            done(&mut Command::new(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/machine/build.sh"
            )))?
            .trim(),
        );
        let dir = tempfile::Builder::new().prefix("machine-").tempdir()?;
        let sweeper = Sweeper::of(dir.path())?;
        let medium = dir.path().join("medium");
        fs::create_dir(&medium)?;
        for (name, path) in files {
            fs::copy(path, medium.join(name)).with_context(|| format!("{} cannot be copied", path.display()))?;
        }
        done(
            Command::new("tar")
                .arg("-C")
                .arg(&medium)
                .arg("-cf")
                .arg(dir.path().join("medium.tar"))
                .arg("."),
        )?;
        fs::remove_dir_all(medium)?;
        let disk = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"];
        done(
            Command::new("qemu-img")
                .args(disk)
                .arg(image.join("disk.raw"))
                .arg(dir.path().join("disk.qcow2")),
        )?;
        let accelerator = accelerator(&image).await?;
        Ok(Self {
            qemu: None,
            accelerator,
            image,
            dir,
            _sweeper: sweeper,
        })
    }

    /// `kvm`, or `tcg` where the CPU is emulated.
    pub fn accelerator(&self) -> &str {
        self.accelerator
    }

    /// Until commands can be run. `clock`: what the clock on its board says (`2024-01-31T12:00:00`); right if not given.
    pub async fn power_on(&mut self, clock: Option<&str>) -> anyhow::Result<Duration> {
        ensure!(self.qemu.is_none(), "the machine is on already");
        let began = Instant::now();
        let socket = self.socket();
        // Of the life before.
        let _ = fs::remove_file(&socket);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("qemu.log"))?;
        let mut qemu = qemu(self.accelerator, &self.image);
        qemu.args(["-append", &format!("{CONSOLE} {ROOT}")])
            .arg("-drive")
            // What the guest has flushed, or merely written, survives; what is only in its memory does not.
            .arg(format!(
                "file={},if=virtio,format=qcow2,cache=writeback",
                self.path("disk.qcow2")
            ))
            .arg("-drive")
            .arg(format!(
                "file={},if=virtio,format=raw,readonly=on",
                self.path("medium.tar")
            ))
            .arg("-netdev")
            .arg(format!("tap,id=uplink,ifname={},script=no,downscript=no", network::TAP))
            .args(["-device", "virtio-net-pci,netdev=uplink,romfile="])
            .args(["-device", "virtio-rng-pci", "-device", "virtio-serial-pci"])
            .arg("-chardev")
            .arg(format!("socket,id=agent,path={},server=on,wait=off", socket.display()))
            .args(["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"])
            .arg("-chardev")
            .arg(format!("file,id=console,path={},append=on", self.path("console.log")))
            .args(["-serial", "chardev:console"])
            .arg("-rtc")
            .arg(format!("base={}", clock.unwrap_or("utc")))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.qemu = Some(qemu.spawn().context("qemu-system-x86_64 cannot be started")?);
        self.is_up(BOOT).await?;
        Ok(began.elapsed())
    }

    /// What is in its memory is gone.
    pub fn cut_power(&mut self) {
        if let Some(mut qemu) = self.qemu.take() {
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }

    /// In good order. The clock goes on.
    pub async fn reboot(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let before = self.run(BOOT_ID).await?;
        self.run("systemctl reboot --no-block").await?;
        eventually("the machine has booted anew", BOOT, || async {
            ensure!(self.run(BOOT_ID).await? != before, "it has not gone down yet");
            Ok(())
        })
        .await
        .with_context(|| self.console_tail())?;
        self.is_up(BOOT).await?;
        Ok(began.elapsed())
    }

    async fn is_up(&mut self, limit: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + limit;
        loop {
            if let Some(Some(status)) = self.qemu.as_mut().map(Child::try_wait).transpose()? {
                self.qemu = None;
                let log = fs::read_to_string(self.dir.path().join("qemu.log")).unwrap_or_default();
                bail!("QEMU ended ({status}): {log}");
            }
            match self.run("test -d /run/systemd/system").await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(error.context(format!("it is not up after {limit:?}:\n{}", self.console_tail())));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// A command of its shell, as root. What it said, if it went well.
    pub async fn run(&self, command: &str) -> anyhow::Result<String> {
        let answer = self.answer(command, b"").await?;
        let out = String::from_utf8_lossy(&answer.out).into_owned();
        if answer.code != Some(0) {
            bail!("{command}: ended with {:?}: {}{out}", answer.code, answer.err);
        }
        Ok(out)
    }

    pub async fn answer(&self, command: &str, input: &[u8]) -> anyhow::Result<Answer> {
        let answer = async { Channel::open(&self.socket()).await?.run(command, input).await };
        tokio::time::timeout(COMMAND, answer)
            .await
            .with_context(|| format!("{command}: not within {COMMAND:?}"))?
            .with_context(|| command.to_owned())
    }

    /// A file that only root can read.
    pub async fn put(&self, path: &str, content: &[u8]) -> anyhow::Result<()> {
        let answer = self
            .answer(&format!("install -D -m 600 /dev/stdin {path} && sync"), content)
            .await?;
        ensure!(answer.code == Some(0), "{path} cannot be written: {}", answer.err);
        Ok(())
    }

    /// A copy of a folder, as it is now.
    pub async fn fetch(&self, folder: &str) -> anyhow::Result<TempDir> {
        let answer = self.answer(&format!("tar -C {folder} -cf - ."), b"").await?;
        // 1: something changed meanwhile, which it may.
        ensure!(
            matches!(answer.code, Some(0 | 1)),
            "{folder} cannot be read: {}",
            answer.err
        );
        let copy = TempDir::new_in(self.dir.path())?;
        let tar = copy.path().with_extension("tar");
        fs::write(&tar, answer.out)?;
        done(Command::new("tar").arg("-C").arg(copy.path()).arg("-xf").arg(tar))?;
        Ok(copy)
    }

    /// What it wrote to its console in all its lives.
    pub fn console(&self) -> String {
        let text = fs::read(self.dir.path().join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    fn console_tail(&self) -> String {
        crate::moves::tail(&self.console())
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.cut_power();
    }
}

/// Removes a folder however this process ends: its standard input is closed then.
struct Sweeper(Child);

impl Sweeper {
    fn of(dir: &Path) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"cat >/dev/null; rm -rf "$0""#]).arg(dir);
        // A Ctrl-C is not for it.
        let child = shell.process_group(0).stdin(Stdio::piped()).spawn();
        child.map(Self).context("sh cannot be started")
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Some machines have a /dev/kvm that starts no kernel of others: whether it does is seen by trying.
async fn accelerator(image: &Path) -> anyhow::Result<&'static str> {
    static FOUND: OnceCell<&str> = OnceCell::const_new();
    FOUND.get_or_try_init(|| probe(image)).await.copied()
}

async fn probe(image: &Path) -> anyhow::Result<&'static str> {
    if File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok("tcg");
    }
    let dir = TempDir::new()?;
    let console = dir.path().join("console");
    let mut probe = qemu("kvm", image);
    probe
        .args(["-append", CONSOLE, "-serial", &format!("file:{}", console.display())])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let mut probe = probe.spawn().context("qemu-system-x86_64 cannot be started")?;
    let end = Instant::now() + PROBE;
    let mut starts = false;
    while !starts && Instant::now() < end && probe.try_wait()?.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        starts = fs::read(&console).is_ok_and(|text| String::from_utf8_lossy(&text).contains("Linux version"));
    }
    let _ = probe.kill();
    let _ = probe.wait();
    Ok(if starts { "kvm" } else { "tcg" })
}

/// Whatever ends this process ends the machine, too.
fn qemu(accelerator: &str, image: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35"])
        // QEMU aborts where a nested KVM does not let it set this register.
        .args(["-cpu", "max,arch-capabilities=off", "-m", "512", "-smp", "1"])
        .args(["-accel", accelerator])
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.join("initrd.img"));
    command
}

fn done(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("{name} cannot be started"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

const CONSOLE: &str = "console=ttyS0 net.ifnames=0 panic=-1";
/// A file that is renamed without having been flushed is empty after a power cut, as on any other file system: ext4
/// flushes it by itself, which would hide that nobody did.
const ROOT: &str = "root=/dev/vda ro rootflags=noauto_da_alloc";
const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
/// With an emulated CPU, on a machine that does other things too.
const BOOT: Duration = Duration::from_mins(5);
const COMMAND: Duration = Duration::from_mins(5);
const PROBE: Duration = Duration::from_secs(10);
