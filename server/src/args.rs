//! The command line. Every flag can be given as an environment variable of the same name too; none of them is a secret.

mod agent;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use axum::http::Uri;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use cluster::log::{self, Level};
use cluster::settings::Settings;
use cluster::spans::{certificate_duration, poll_interval, webhook_certificate_duration};
use contract::names::FirewallName;
use jiff::SignedDuration;

pub use agent::Agent;

/// Gives firewalls their access to this seed: makes their bootstrap credentials and RBAC, and approves their
/// certificate signing requests.
#[derive(Parser, Debug)]
#[command(name = "firewall-approver", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run in a seed until told to stop.
    Run(Run),
    /// Print a bootstrap kubeconfig for a firewall that cannot be told of its way in, to be carried to its machine.
    Export(Export),
    /// Print what a firewall's machine is to carry so that its agent begins by itself, for those who write userdata themselves.
    Userdata(Userdata),
}

#[derive(ClapArgs, Clone, Debug)]
pub struct Userdata {
    /// Your own kubeconfig for the seed: it has to let you read the Firewall and its Secret.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The language in which it is printed.
    #[arg(long, env = "FIREWALL_APPROVER_FORMAT", value_enum, default_value = "ignition")]
    pub format: Format,

    /// An Ignition config to put it into. Without it there is nothing else in what is printed.
    #[arg(long, env = "FIREWALL_APPROVER_TEMPLATE", value_name = "FILE")]
    pub template: Option<PathBuf>,

    #[command(flatten)]
    pub agent: Agent,

    /// The Firewall, as <namespace>/<name>.
    #[arg(value_name = "NAMESPACE/FIREWALL")]
    pub firewall: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Ignition,
    Butane,
    CloudInit,
}

#[derive(ClapArgs, Clone, Debug)]
pub struct Export {
    /// Your own kubeconfig for the seed: it has to let you annotate the Firewall and read its Secret.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// The Firewall, as <namespace>/<name>.
    #[arg(value_name = "NAMESPACE/FIREWALL")]
    pub firewall: String,
}

#[derive(ClapArgs, Clone, Debug)]
pub struct Run {
    /// Kubeconfig of the approver's own identity in the seed; in a pod its ServiceAccount is used.
    #[arg(long, env = "FIREWALL_APPROVER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Work on the Firewalls of this namespace only; may be given more than once, or several with commas. All
    /// namespaces without it.
    #[arg(
        long = "namespace",
        env = "FIREWALL_APPROVER_NAMESPACE",
        value_delimiter = ',',
        value_parser = namespace,
        value_name = "NAMESPACE"
    )]
    pub namespaces: Vec<String>,

    /// The approver's own namespace: where the key stands that bootstrap tokens are derived from.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_OWN_NAMESPACE",
        default_value = contract::names::APPROVER_NAMESPACE,
        value_parser = namespace,
        value_name = "NAMESPACE"
    )]
    pub own_namespace: String,

    /// This replica's name, by which one of several leads: no other may have it. In a pod the pod's name; without one the
    /// host's name and a random number, so that a restart waits until its former self is over.
    #[arg(long, env = "FIREWALL_APPROVER_IDENTITY", value_name = "NAME")]
    pub identity: Option<String>,

    /// Where firewalls reach this seed's API server (https://...). Without it the key `url` of ConfigMap
    /// garden/seed-api-server is used.
    #[arg(long, env = "FIREWALL_APPROVER_SEED_SERVER", value_parser = server, value_name = "URL")]
    pub seed_server: Option<String>,

    /// PEM file with the CAs of that server. Without it ConfigMap kube-root-ca.crt of the own namespace is used.
    #[arg(long, env = "FIREWALL_APPROVER_SEED_CA", value_name = "FILE")]
    pub seed_ca: Option<PathBuf>,

    /// What a firewall uses until it has a certificate. `auto` uses a token where a token opens nothing else.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_BOOTSTRAP_CREDENTIAL",
        value_enum,
        default_value = "auto"
    )]
    pub bootstrap_credential: BootstrapCredential,

    /// What a firewall works with: a certificate, or short tokens of a ServiceAccount, which it renews itself. Firewalls that
    /// are in follow a change by themselves. `token` is also for a seed that signs no client certificates.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_SEED_ACCESS",
        value_enum,
        default_value = "certificate"
    )]
    pub seed_access: SeedAccess,

    /// Life that each firewall is to ask for its certificate (600s to 365d); the seed may give less. Firewalls that are in
    /// renew when it changes. Without it each firewall's own setting counts.
    #[arg(long, env = "FIREWALL_APPROVER_CERTIFICATE_DURATION", value_parser = certificate_duration, value_name = "TIME")]
    pub certificate_duration: Option<SignedDuration>,

    /// Decide and explain, but approve, deny, provide and record nothing for any firewall. (The seed's key and the
    /// short-lived token of `auto` are still made.) Of use where firewalls have their records already.
    #[arg(long, env = "FIREWALL_APPROVER_DRY_RUN")]
    pub dry_run: bool,

    /// How often everything is looked at although nothing told of a change (1s to 1h).
    #[arg(long, env = "FIREWALL_APPROVER_POLL_INTERVAL", default_value = "5m", value_parser = poll, value_name = "TIME")]
    pub poll_interval: Duration,

    /// Where health and metrics are served over HTTP: /healthz, /readyz, /metrics.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_LISTEN",
        default_value = "[::]:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,

    /// Where API servers ask for Firewalls' userdata, over HTTPS: their machines then begin by themselves (manifests/webhook).
    /// Without it nobody is answered. A dry run answers nobody.
    #[arg(long, env = "FIREWALL_APPROVER_WEBHOOK_LISTEN", value_name = "ADDRESS:PORT")]
    pub webhook_listen: Option<SocketAddr>,

    /// Life of the certificate that this is served with (1m to 365d). The approver makes it, and the next one when two thirds of
    /// it are over.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_WEBHOOK_CERTIFICATE_DURATION",
        default_value = "90d",
        value_parser = webhook_certificate_duration,
        value_name = "TIME"
    )]
    pub webhook_certificate_duration: SignedDuration,

    #[command(flatten)]
    pub agent: Agent,

    /// How log lines look.
    #[arg(long, env = "FIREWALL_APPROVER_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: log::Format,

    /// How much is said in the log. While it runs, each SIGUSR1 makes that one step more, and after `trace` what it began with.
    #[arg(long, env = "FIREWALL_APPROVER_LOG_LEVEL", value_enum, default_value = "info")]
    pub log_level: Level,

    /// Print each setting, and whether flag, environment or default set it, as JSON; then end. Nobody is asked anything.
    #[arg(long)]
    pub print_config: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BootstrapCredential {
    Auto,
    Token,
    ServiceAccount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SeedAccess {
    Certificate,
    Token,
}

impl From<SeedAccess> for contract::access::Mode {
    fn from(access: SeedAccess) -> Self {
        match access {
            SeedAccess::Certificate => Self::Certificate,
            SeedAccess::Token => Self::Token,
        }
    }
}

impl Settings for Args {
    fn check(&self) -> Result<(), String> {
        let run = match &self.command {
            Command::Run(run) => run,
            Command::Userdata(userdata) => return userdata.agent.check(),
            Command::Export(_) => return Ok(()),
        };
        let mut seen = BTreeSet::new();
        match run.namespaces.iter().find(|namespace| !seen.insert(*namespace)) {
            Some(twice) => Err(format!(
                "--namespace (FIREWALL_APPROVER_NAMESPACE) names {twice:?} twice: give each namespace once"
            )),
            None => run.agent.check(),
        }
    }
}

/// A Firewall, as the commands for one of them take it.
pub fn object(text: &str) -> anyhow::Result<(&str, FirewallName)> {
    let (namespace, name) = text
        .split_once('/')
        .with_context(|| format!("{text:?} is not <namespace>/<firewall>"))?;
    Ok((namespace, FirewallName::parse(name)?))
}

fn poll(text: &str) -> Result<Duration, String> {
    poll_interval(text).map(SignedDuration::unsigned_abs)
}

fn namespace(text: &str) -> Result<String, String> {
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.is_empty() || text.len() > 63 || !text.bytes().all(inside) || text.starts_with('-') || text.ends_with('-') {
        return Err("no name of a namespace: small letters, digits and dashes within, 63 at most".into());
    }
    Ok(text.to_owned())
}

/// As a firewall's kubeconfig will hold it.
fn server(text: &str) -> Result<String, String> {
    let wanted = || "an address as https://<host>:<port> is wanted".to_owned();
    let uri: Uri = text.parse().map_err(|_| wanted())?;
    let authority = uri.authority().ok_or_else(wanted)?;
    if uri.scheme_str() != Some("https") || uri.query().is_some() || authority.host().is_empty() {
        return Err(wanted());
    }
    if authority.as_str().contains('@') {
        return Err("it names a user: a firewall comes with its own credential".into());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(more: &[&str]) -> Result<Args, String> {
        let args = ["firewall-approver", "run"].iter().chain(more);
        let args = Args::try_parse_from(args).map_err(|e| e.to_string())?;
        args.check()?;
        Ok(args)
    }

    #[test]
    fn what_cannot_be_a_setting_is_refused() {
        for good in [
            &["--seed-server", "https://seed.example:6443"][..],
            &["--seed-server", "https://[fd00::1]/proxied"],
            &["--namespace", "shoot--a--b,shoot--c--d"],
            &["--certificate-duration", "20m"],
        ] {
            run(good).unwrap();
        }
        for bad in [
            &["--seed-server", "http://seed.example"][..],
            &["--seed-server", "seed.example:6443"],
            &["--seed-server", "https://"],
            &["--seed-server", "https://somebody:word@seed.example"],
            &["--seed-server", "https://seed.example/?a=b"],
            &["--namespace", ""],
            &["--namespace", "Shoot"],
            &["--namespace", "a,b", "--namespace", "a"],
            &["--own-namespace", "-a"],
            &["--certificate-duration", "5m"],
            &["--poll-interval", "0s"],
        ] {
            assert!(run(bad).is_err(), "{bad:?}");
        }
    }
}
