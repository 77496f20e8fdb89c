//! The command line. Every flag can be given as an environment variable too; none of them is a secret.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

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

    /// Decide and explain, but approve, deny, provide and record nothing for any firewall. (The seed's key and the
    /// short-lived token of `auto` are still made.) Of use where firewalls have their records already.
    #[arg(long, env = "FIREWALL_APPROVER_DRY_RUN")]
    pub dry_run: bool,

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
