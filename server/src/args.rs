//! The command line. Every flag can be given as an environment variable too; none of them is a secret.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

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
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Work on the Firewalls of this namespace only; may be given more than once. All namespaces without it.
    #[arg(
        long = "namespace",
        env = "FIREWALL_APPROVER_NAMESPACES",
        value_delimiter = ',',
        value_name = "NAMESPACE"
    )]
    pub namespaces: Vec<String>,

    /// The approver's own namespace: where the key stands that bootstrap tokens are derived from.
    #[arg(long, env = "POD_NAMESPACE", default_value = contract::names::APPROVER_NAMESPACE, value_name = "NAMESPACE")]
    pub own_namespace: String,

    /// This replica's name, by which one of several leads: no other may have it. In a pod the pod's name; without one the
    /// host's name and a random number, so that a restart waits until its former self is over.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,

    /// Where firewalls reach this seed's API server (https://...). Without it the key `url` of ConfigMap
    /// garden/seed-api-server is used.
    #[arg(long, env = "FIREWALL_APPROVER_SEED_SERVER", value_name = "URL")]
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

    /// Decide and explain, but approve, deny, provide and record nothing for any firewall. (The seed's key and the
    /// short-lived token of `auto` are still made.) Of use where firewalls have their records already.
    #[arg(long, env = "FIREWALL_APPROVER_DRY_RUN")]
    pub dry_run: bool,

    /// How often everything is looked at although nothing told of a change (1s to 1h).
    #[arg(long, env = "FIREWALL_APPROVER_POLL_INTERVAL", default_value = "5m", value_parser = interval, value_name = "TIME")]
    pub poll_interval: Duration,

    /// Where health and metrics are served over HTTP: /healthz, /readyz, /metrics.
    #[arg(
        long,
        env = "FIREWALL_APPROVER_LISTEN",
        default_value = "[::]:8080",
        value_name = "ADDRESS:PORT"
    )]
    pub listen: SocketAddr,

    /// How log lines look.
    #[arg(long, env = "FIREWALL_APPROVER_LOG_FORMAT", value_enum, default_value = "json")]
    pub log_format: LogFormat,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl From<LogFormat> for cluster::log::Format {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval: SignedDuration = text
        .parse()
        .map_err(|_| "not a duration; write for example 30s or 5m".to_owned())?;
    if (SignedDuration::from_secs(1)..=SignedDuration::from_hours(1)).contains(&interval) {
        Ok(interval.unsigned_abs())
    } else {
        Err("out of range: 1s at least, 1h at most".into())
    }
}
