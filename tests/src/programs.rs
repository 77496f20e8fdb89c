//! The programs under test as real processes: the approver with exactly the identity that the manifests grant, and
//! agents in folders that stand for their machines.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit};
use tempfile::TempDir;

use crate::harness::{Cluster, eventually};
use crate::http::Http;
use crate::secrets;

const AGENT: &str = "firewall-agent";
const APPROVER: &str = "firewall-approver";

/// A running program. It is killed when this value is dropped.
pub struct Program {
    child: Child,
    log: PathBuf,
    /// Where its own lines begin in a log that others wrote before.
    log_from: u64,
}

/// Where a program is killed: at the nth time that it enters this system call.
#[derive(Clone, Copy, Debug)]
pub struct KilledAt<'a> {
    pub syscall: &'a str,
    pub nth: u32,
}

/// A version of both programs: the folder with their binaries.
#[derive(Clone, Debug)]
pub struct Release(PathBuf);

impl Release {
    /// What the tests were built with.
    pub fn built() -> anyhow::Result<Self> {
        let agent = binary(AGENT)?;
        Ok(Self(agent.parent().context("a binary in no folder")?.to_owned()))
    }

    /// The one that is upgraded from: the folder that `UPGRADE_FROM` names, or the same build once more.
    pub fn before() -> anyhow::Result<Self> {
        Self::given()?.map_or_else(Self::built, Ok)
    }

    /// The folder that `UPGRADE_FROM` names.
    pub fn given() -> anyhow::Result<Option<Self>> {
        let Some(dir) = std::env::var_os("UPGRADE_FROM") else {
            return Ok(None);
        };
        let dir = PathBuf::from(dir);
        for name in [AGENT, APPROVER] {
            let binary = dir.join(name);
            anyhow::ensure!(
                binary.is_file(),
                "UPGRADE_FROM: {} is not there; tests/compat/build.sh prints a folder that has it",
                binary.display()
            );
        }
        Ok(Some(Self(dir)))
    }

    pub fn agent(&self) -> PathBuf {
        self.0.join(AGENT)
    }

    pub fn approver(&self) -> PathBuf {
        self.0.join(APPROVER)
    }

    /// As a package does it: whole under a name of its own, then over the old one, which may be running. Another process
    /// writes it: while one of ours holds a binary open for writing, none of our children could be started from it.
    fn put(&self, name: &str, dir: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(dir)?;
        let new = dir.join(format!("{name}.new"));
        let installed = Command::new("install")
            .args(["-m", "0755"])
            .arg(self.0.join(name))
            .arg(&new)
            .status()
            .context("install cannot be started")?;
        anyhow::ensure!(installed.success(), "{name} was not installed: {installed}");
        Ok(fs::rename(new, dir.join(name))?)
    }
}

impl Program {
    fn start(program: &Path, args: &[String], log: &Path, killed: Option<KilledAt<'_>>) -> anyhow::Result<Self> {
        Self::start_in(program, args, log, killed, &[])
    }

    fn start_in(
        program: &Path,
        args: &[String],
        log: &Path,
        killed: Option<KilledAt<'_>>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let command = match killed {
            None => clean(Command::new(program)),
            Some(KilledAt { syscall, nth }) => {
                let mut strace = clean(Command::new("strace"));
                let inject = format!("inject={syscall}:signal=SIGKILL:when={nth}");
                let quiet = ["-f", "-qqq", "-o", "/dev/null", "-e", "signal=none", "-e", &inject];
                // It counts for each thread, so there has to be one that does the work.
                strace.args(quiet).arg(program).env("TOKIO_WORKER_THREADS", "1");
                strace
            }
        };
        Self::spawn(command, args, log, environment)
    }

    fn spawn(mut command: Command, args: &[String], log: &Path, environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let out = fs::OpenOptions::new().create(true).append(true).open(log)?;
        let log_from = out.metadata()?.len();
        let child = command
            .args(args)
            .envs(environment.iter().copied())
            // With whoever traces it, it is one group.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            child,
            log: log.to_owned(),
            log_from,
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where an approver serves health and metrics.
    pub async fn http(&self) -> anyhow::Result<Http> {
        let what = format!("the address in {}", self.log.display());
        let address = eventually(&what, Duration::from_secs(30), || async {
            let log = fs::read(&self.log)?;
            let own = log.get(usize::try_from(self.log_from)?..).context("the log was cut")?;
            let own = String::from_utf8_lossy(own);
            let line = own.lines().find(|line| line.contains("health and metrics are served"));
            let line: serde_json::Value = serde_json::from_str(line.context("not yet")?)?;
            Ok(line["listen"].as_str().context("no address")?.parse()?)
        });
        Ok(Http(address.await?))
    }

    /// SIGKILL: what a power cut leaves.
    pub fn kill(mut self) {
        self.end();
    }

    /// Dies as by a fault of its own, where nothing limits what the kernel may write of it.
    pub fn abort(mut self) -> anyhow::Result<ExitStatus> {
        let id = rustix::process::Pid::from_child(&self.child);
        let unlimited = Rlimit {
            current: None,
            maximum: None,
        };
        rustix::process::prlimit(Some(id), Resource::Core, unlimited)?;
        rustix::process::kill_process(id, rustix::process::Signal::ABORT)?;
        Ok(self.child.wait()?)
    }

    fn end(&mut self) {
        let group = rustix::process::Pid::from_child(&self.child);
        // Once it was waited for, its number may be another's.
        if self.runs() {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }

    /// SIGTERM, and the exit code.
    pub async fn stop(mut self) -> anyhow::Result<Option<i32>> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)?;
        self.ended(Duration::from_secs(15)).await
    }

    /// The exit code of a program that ends by itself.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<Option<i32>> {
        let end = tokio::time::Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            if tokio::time::Instant::now() > end {
                bail!("the program did not end within {limit:?}:\n{}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.end();
        let log = self.log();
        no_secrets(&self.log, secrets::suspicious(&log));
    }
}

/// A test that fails already fails for its own reason.
fn no_secrets(log: &Path, found: Option<String>) {
    if let Some(found) = found.filter(|_| !std::thread::panicking()) {
        panic!("a secret is in {}: {found}", log.display());
    }
}

/// Nothing of the test's own environment: a KUBECONFIG there would be another cluster's.
fn clean(mut command: Command) -> Command {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        // Side by side on one machine; its log says which port it got. Of an older version it is none's.
        .env("FIREWALL_APPROVER_LISTEN", "127.0.0.1:0")
        .env("RUST_BACKTRACE", "1");
    command
}

/// The approver's place: its kubeconfig and its log.
pub struct ApproverHome {
    dir: TempDir,
    server: String,
}

impl ApproverHome {
    /// As the manifests have it: ServiceAccount firewall-approver, and nothing more.
    pub async fn new(seed: &Cluster) -> anyhow::Result<Self> {
        Self::with_server(seed, &seed.server_url()).await
    }

    /// Firewalls are told to reach the seed there.
    pub async fn with_server(seed: &Cluster, server: &str) -> anyhow::Result<Self> {
        let home = Self {
            dir: TempDir::new()?,
            server: server.to_owned(),
        };
        home.renew(seed).await?;
        Ok(home)
    }

    /// Writes its kubeconfig anew, with a token and the CAs of now.
    pub async fn renew(&self, seed: &Cluster) -> anyhow::Result<()> {
        let token = own_token(seed).await?;
        write_private(&self.kubeconfig(), &seed.kubeconfig_with_token(&token))
    }

    pub fn start(&self, more: &[&str]) -> anyhow::Result<Program> {
        self.start_killed(more, None)
    }

    pub fn start_killed(&self, more: &[&str], killed: Option<KilledAt<'_>>) -> anyhow::Result<Program> {
        self.spawn(&self.args(more), killed, &[])
    }

    /// As a pod that starts anew keeps its name, an approver that is started here again is the one of before.
    fn spawn(
        &self,
        args: &[String],
        killed: Option<KilledAt<'_>>,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<Program> {
        let name = self.name();
        let mut all = vec![("POD_NAME", name.as_str())];
        all.extend(environment);
        Program::start_in(&self.program()?, args, &self.log_path(), killed, &all)
    }

    /// Of this replica.
    pub fn name(&self) -> String {
        let dir = self.dir.path().file_name().unwrap_or_default();
        format!("firewall-approver{}", dir.to_string_lossy().replace('.', "-"))
    }

    fn args(&self, more: &[&str]) -> Vec<String> {
        let kubeconfig = self.kubeconfig().display().to_string();
        let mut args = ["run", "--kubeconfig", &kubeconfig, "--seed-server", &self.server]
            .map(str::to_owned)
            .to_vec();
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    /// Where the environment says more, or something else.
    pub fn start_in(&self, environment: &[(&str, &str)], more: &[&str]) -> anyhow::Result<Program> {
        let args = self.args(more);
        self.spawn(&args, None, environment)
    }

    /// From the next start on it is this version.
    pub fn put(&self, release: &Release) -> anyhow::Result<()> {
        release.put(APPROVER, &self.bin())
    }

    /// What is started here.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        installed(APPROVER, &self.bin())
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// As in a pod: no kubeconfig, but the ServiceAccount's files where the kubelet puts them.
    pub async fn start_in_pod(&self, pod: &Pod, seed: &Cluster, more: &[&str]) -> anyhow::Result<Program> {
        pod.refresh(seed).await?;
        let address = seed.server_url();
        let (host, port) = address
            .strip_prefix("https://")
            .and_then(|address| address.rsplit_once(':'))
            .context("no port")?;
        let mount = format!(
            "mount -t tmpfs none /run && mkdir -p {POD_FILES} && mount --bind '{}' {POD_FILES} && exec \"$@\"",
            pod.0.path().display()
        );
        let program = self.program()?.display().to_string();
        let mut args = [
            "-m",
            "sh",
            "-c",
            &mount,
            "sh",
            &program,
            "run",
            "--seed-server",
            &self.server,
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(more.iter().map(ToString::to_string));
        let name = self.name();
        let environment = [
            ("POD_NAME", name.as_str()),
            ("KUBERNETES_SERVICE_HOST", host),
            ("KUBERNETES_SERVICE_PORT", port),
        ];
        Program::spawn(clean(Command::new("unshare")), &args, &self.log_path(), &environment)
    }

    /// Firewalls are told to reach the seed there, from the next start on.
    pub fn move_server(&mut self, server: &str) {
        server.clone_into(&mut self.server);
    }

    /// Where firewalls are told to reach the seed.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// With arguments of the caller's alone.
    pub fn start_with(&self, args: &[&str]) -> anyhow::Result<Program> {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        self.spawn(&args, None, &[])
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }
}

impl Drop for ApproverHome {
    fn drop(&mut self) {
        let found = secrets::shown(&self.log(), &secrets::below(self.dir.path()));
        no_secrets(&self.log_path(), found);
    }
}

/// What the kubelet puts into a pod, and keeps up to date.
pub struct Pod(TempDir);

impl Pod {
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(TempDir::new()?))
    }

    /// A token and the CAs of now.
    pub async fn refresh(&self, seed: &Cluster) -> anyhow::Result<()> {
        write_private(&self.0.path().join("namespace"), "firewall-approver")?;
        write_private(&self.0.path().join("token"), &own_token(seed).await?)?;
        write_private(&self.0.path().join("ca.crt"), &seed.server_ca_pem())
    }
}

const POD_FILES: &str = "/run/secrets/kubernetes.io/serviceaccount";

async fn own_token(seed: &Cluster) -> anyhow::Result<String> {
    let arguments = [
        "create",
        "token",
        "-n",
        "firewall-approver",
        "firewall-approver",
        "--duration=24h",
    ];
    Ok(seed.kubectl_ok(&arguments).await?.trim().to_owned())
}

/// A firewall machine: the folders that the agent knows, somewhere else.
pub struct Machine {
    dir: TempDir,
    pub firewall: String,
    pub namespace: String,
}

impl Machine {
    /// Installed with the userdata that a bootstrap kubeconfig was put into.
    pub async fn install(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<Self> {
        let kubeconfig = bootstrap_kubeconfig(seed, namespace, firewall).await?;
        Self::with_kubeconfig(namespace, firewall, &kubeconfig)
    }

    pub fn with_kubeconfig(namespace: &str, firewall: &str, kubeconfig: &str) -> anyhow::Result<Self> {
        let machine = Self {
            dir: TempDir::new()?,
            firewall: firewall.to_owned(),
            namespace: namespace.to_owned(),
        };
        fs::create_dir_all(machine.config())?;
        fs::create_dir_all(machine.state())?;
        fs::set_permissions(machine.state(), fs::Permissions::from_mode(0o700))?;
        write_private(&machine.config().join(".bootstrap.kubeconfig"), kubeconfig)?;
        Ok(machine)
    }

    /// Starts the agent; the hook leaves a line in a file.
    pub fn start(&self) -> anyhow::Result<Program> {
        self.start_with(&[])
    }

    pub fn start_with(&self, more: &[&str]) -> anyhow::Result<Program> {
        self.start_killed(more, None)
    }

    pub fn start_killed(&self, more: &[&str], killed: Option<KilledAt<'_>>) -> anyhow::Result<Program> {
        Program::start(&self.program()?, &self.run_args(more), &self.log_path(), killed)
    }

    /// A package brings this version; what runs is not touched.
    pub fn put(&self, release: &Release) -> anyhow::Result<()> {
        release.put(AGENT, &self.bin())
    }

    /// What is started here.
    pub fn program(&self) -> anyhow::Result<PathBuf> {
        installed(AGENT, &self.bin())
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("usr/local/bin")
    }

    pub fn start_in(&self, environment: &[(&str, &str)]) -> anyhow::Result<Program> {
        let args = self.run_args(&[]);
        Program::start_in(&self.program()?, &args, &self.log_path(), None, environment)
    }

    fn run_args(&self, more: &[&str]) -> Vec<String> {
        let hook = format!("touch {}", self.dir.path().join("hook").display());
        let mut args = vec!["run".to_owned()];
        args.extend(self.places());
        args.extend(["--hook".to_owned(), hook]);
        args.extend(more.iter().map(ToString::to_string));
        args
    }

    /// Runs a command of the agent to its end.
    pub fn command(&self, command: &str, more: &[&str]) -> anyhow::Result<std::process::Output> {
        Ok(Command::new(self.program()?)
            .arg(command)
            .args(self.places())
            .args(more)
            .output()?)
    }

    fn places(&self) -> Vec<String> {
        let path = |path: PathBuf| path.display().to_string();
        vec![
            "--config-dir".into(),
            path(self.config()),
            "--state-dir".into(),
            path(self.state()),
        ]
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("etc/firewall-controller")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("var/lib/firewall-agent")
    }

    pub fn bootstrap_kubeconfig(&self) -> PathBuf {
        self.config().join(".bootstrap.kubeconfig")
    }

    /// What an operator carries to the machine.
    pub fn put_bootstrap_kubeconfig(&self, kubeconfig: &str) -> anyhow::Result<()> {
        write_private(&self.bootstrap_kubeconfig(), kubeconfig)
    }

    /// `firewall-agent status`, as people read it.
    pub fn status(&self) -> anyhow::Result<String> {
        let output = self.command("status", &[])?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The machine's private key, to the byte.
    pub fn key(&self) -> anyhow::Result<Vec<u8>> {
        Ok(fs::read(self.state().join("key.pem"))?)
    }

    pub fn seed_kubeconfig(&self) -> PathBuf {
        self.config().join(".seed.kubeconfig")
    }

    pub fn shoot_kubeconfig(&self) -> PathBuf {
        self.config().join(".shoot.kubeconfig")
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Loses its disk: everything but what the userdata put there.
    pub fn reinstall(&self) -> anyhow::Result<()> {
        let kubeconfig = fs::read(self.config().join(".bootstrap.kubeconfig"))?;
        fs::remove_dir_all(self.state())?;
        fs::remove_dir_all(self.config())?;
        fs::create_dir_all(self.config())?;
        fs::create_dir_all(self.state())?;
        fs::set_permissions(self.state(), fs::Permissions::from_mode(0o700))?;
        write_private(
            &self.config().join(".bootstrap.kubeconfig"),
            &String::from_utf8(kubeconfig)?,
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let found = secrets::shown(&self.log(), &secrets::below(self.dir.path()));
        no_secrets(&self.log_path(), found);
    }
}

/// `firewall-approver export`, as an operator runs it: a bootstrap kubeconfig to carry to the machine.
pub async fn export(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<String> {
    let operator = seed.dir().join("admin.kubeconfig");
    let output = tokio::process::Command::new(binary(APPROVER)?)
        .arg("export")
        .arg("--kubeconfig")
        .arg(operator)
        .arg(format!("{namespace}/{firewall}"))
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), output)
        .await
        .context("firewall-approver export does not end")??;
    if !output.status.success() {
        bail!("firewall-approver export: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// What userdata would carry, once the approver has made it.
pub async fn bootstrap_kubeconfig(seed: &Cluster, namespace: &str, firewall: &str) -> anyhow::Result<String> {
    let name = format!("{firewall}-bootstrap-kubeconfig");
    let client = seed.client().await?;
    let secrets: kube::Api<k8s_openapi::api::core::v1::Secret> = kube::Api::namespaced(client, namespace);
    eventually(
        &format!("Secret {namespace}/{name}"),
        Duration::from_secs(30),
        || async {
            let secret = secrets.get(&name).await?;
            let bytes = secret
                .data
                .unwrap_or_default()
                .remove("kubeconfig")
                .context("no key kubeconfig")?;
            Ok(String::from_utf8(bytes.0)?)
        },
    )
    .await
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// The version that was put there; where none was, the one of this build.
fn installed(name: &str, dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(name);
    if path.is_file() { Ok(path) } else { binary(name) }
}

/// The binaries stand beside the test's own folder; `make` builds them first.
fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let found = exe
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    found.with_context(|| format!("{name} is not built: run `cargo build --workspace --bins` first"))
}
