//! Kubeconfigs: ordinary ones that kubectl reads too, but read with our own strict parser.
//! Whatever could run a program, open a foreign file, lead elsewhere or drop the check of the server
//! refuses the whole file, by the name of the field. Owns no file: it gets text and gives text.

mod address;
mod ca;
mod fields;
mod read;
mod user;
mod write;

use std::path::PathBuf;

use secrecy::SecretString;
use zeroize::Zeroizing;

pub use ca::CaBundle;

use crate::key::PublicKey;
use crate::names::FirewallName;

/// Larger files are not looked at: nothing of ours comes near.
pub const KUBECONFIG_MAX: usize = 64 * 1024;
/// The name under which our part stands in the file's standard `extensions`.
pub const BOOTSTRAP_EXTENSION: &str = "firewall.metal-stack.io/bootstrap";
/// What Gardener's generic kubeconfig names as token file. It means "put your token here"; the path
/// exists in Gardener's own pods only and is never opened.
pub const TOKEN_PLACEHOLDER: &str = "/var/run/secrets/gardener.cloud/shoot/generic-kubeconfig/token";

#[derive(Debug)]
pub struct Kubeconfig {
    /// `https://host[:port]`.
    pub server: String,
    pub tls_server_name: Option<String>,
    pub ca: CaBundle,
    pub credential: Credential,
    /// The namespace to work in, and the name of everything in the file: cluster, user, context.
    pub namespace: String,
    pub bootstrap: Option<BootstrapExtension>,
}

#[derive(Debug)]
pub enum Credential {
    Certificate {
        certificate_pem: String,
        key_pem: SecretString,
    },
    /// Only in files that we wrote ourselves, so that a renewal need not write them again.
    CertificateFiles {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// Only in Gardener's template.
    None,
    Token(SecretString),
    /// As with `CertificateFiles`.
    TokenFile(PathBuf),
}

/// What a bootstrap kubeconfig tells the agent beside the way to the seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapExtension {
    pub firewall: FirewallName,
    /// Whose handovers are authentic; during a change of the key, the old and the new one.
    pub handover_keys: Vec<PublicKey>,
}

/// Names the file or object, the field, what is wrong with it and what to do. Never a value that
/// could be a secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("kubeconfig {what}: {fault}")]
pub struct KubeconfigError {
    pub what: String,
    pub fault: Fault,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{field}: {found} entries, exactly one is needed")]
    Count { field: String, found: usize },
    #[error("{field} is not allowed: {instead}")]
    Forbidden { field: String, instead: &'static str },
    #[error("{field} is missing: {instead}")]
    Missing { field: String, instead: &'static str },
    #[error("{field} names {found:?}, but {other} is {wanted:?}: write the same name in both")]
    Name {
        field: String,
        found: String,
        other: &'static str,
        wanted: String,
    },
    #[error(
        "not valid YAML at line {line}, column {column} (anchors, aliases, merge keys and duplicate keys are refused too)"
    )]
    NotYaml { line: u64, column: u64 },
    #[error("{found} bytes, {KUBECONFIG_MAX} at most")]
    TooLarge { found: usize },
    #[error("{field} has to be {wanted}")]
    Type { field: String, wanted: &'static str },
    #[error("{field} is not known here: remove it")]
    Unknown { field: String },
    #[error("{field}: {problem}")]
    Value { field: String, problem: String },
}

/// Where the text comes from decides what may stand in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Given,
    Local,
    Operator,
    Template,
}

impl Kubeconfig {
    /// A kubeconfig that came from somebody else: inline token or inline certificate and key.
    /// `what` is the file or object that errors name.
    pub fn read(what: &str, text: &str) -> Result<Self, KubeconfigError> {
        read::read(what, text, Source::Given)
    }

    /// One that we wrote on this machine: its credential may be files.
    pub fn read_local(what: &str, text: &str) -> Result<Self, KubeconfigError> {
        read::read(what, text, Source::Local)
    }

    /// One that an operator, or Gardener, put into a Secret for us: as strict as any, but its names only
    /// have to agree with each other; `namespace` then holds the name of its context.
    pub fn read_operators(what: &str, text: &str) -> Result<Self, KubeconfigError> {
        read::read(what, text, Source::Operator)
    }

    /// Gardener's generic kubeconfig: a server and a CA without a credential. Its names only have
    /// to agree with each other; `namespace` then holds the name of its context.
    pub fn read_template(what: &str, text: &str) -> Result<Self, KubeconfigError> {
        read::read(what, text, Source::Template)
    }

    /// YAML in a fixed order, so that the same content is always the same text.
    pub fn write(&self) -> Zeroizing<String> {
        write::write(self)
    }
}

#[cfg(test)]
mod tests;
