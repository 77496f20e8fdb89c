//! Every name that both programs, the manifests or an operator use. Nothing here decides anything: a name that has a
//! rule (a firewall's) is parsed once, into a type that cannot hold a wrong one.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The API group of Firewall and FirewallMonitor, and the prefix of all our labels and annotations.
pub const API_GROUP: &str = "firewall.metal-stack.io";

/// The one signer that firewalls' certificates come from.
pub const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Organization (Kubernetes group) of every firewall's certificate.
pub const ORGANIZATION: &str = "fw.metal-stack.io:firewalls";
/// Common name (Kubernetes user) of a firewall's certificate is this and the firewall's name.
pub const USER_PREFIX: &str = "fw.metal-stack.io:";
/// User of the approver's canaries. No firewall's: the underscore is in no Firewall's name.
pub const CANARY_USER: &str = "fw.metal-stack.io:_canary";
/// A common name has at most 64 characters (X.509, ub-common-name).
pub const COMMON_NAME_MAX: usize = 64;
/// What is left of a common name for the firewall's own.
pub const FIREWALL_NAME_MAX: usize = COMMON_NAME_MAX - USER_PREFIX.len();

/// Extra group of our bootstrap tokens. An extra group has to match `system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]`:
/// no dots, and the bare `system:bootstrappers` makes every request with that token a 401.
pub const BOOTSTRAP_GROUP: &str = "system:bootstrappers:metal-stack:firewall";
/// User name prefix of every bootstrap token.
pub const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
/// Where bootstrap tokens have to stand.
pub const TOKEN_NAMESPACE: &str = "kube-system";
pub const TOKEN_SECRET_PREFIX: &str = "bootstrap-token-";
pub const TOKEN_SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// Namespace of the ServiceAccounts that serve as bootstrap credential where tokens would open too much.
pub const SERVICE_ACCOUNT_NAMESPACE: &str = "firewall-bootstrap";
pub const SERVICE_ACCOUNT_USER_PREFIX: &str = "system:serviceaccount:firewall-bootstrap:";
pub const SERVICE_ACCOUNT_GROUP: &str = "system:serviceaccounts:firewall-bootstrap";
/// Namespace of the ServiceAccounts whose tokens are a firewall's access itself, where certificates are not.
pub const ACCESS_NAMESPACE: &str = "firewall-access";
pub const ACCESS_USER_PREFIX: &str = "system:serviceaccount:firewall-access:";
pub const ACCESS_GROUP: &str = "system:serviceaccounts:firewall-access";

/// Resources that a SubjectAccessReview asks for: they exist in RBAC only.
pub const BOOTSTRAP_SUBRESOURCE: &str = "firewallcontroller";
pub const RENEWAL_SUBRESOURCE: &str = "selffirewallcontroller";

/// Field manager of everything the approver applies.
pub const APPROVER: &str = "firewall-approver";
/// Field manager of what the agent patches.
pub const AGENT: &str = "firewall-agent";
/// Namespace of the approver itself and of the per-seed key.
pub const APPROVER_NAMESPACE: &str = "firewall-approver";
/// The ConfigMap in which an API server publishes the CAs that it has ever taken client certificates of, and its key.
pub const CLIENT_CA_NAMESPACE: &str = "kube-system";
pub const CLIENT_CA_CONFIG_MAP: &str = "extension-apiserver-authentication";
pub const CLIENT_CA_KEY: &str = "client-ca-file";
/// Secret in the approver's namespace with the key that all bootstrap tokens of this seed are derived from.
pub const SEED_KEY_SECRET: &str = "firewall-approver-key";

/// On a bootstrap ServiceAccount whose Firewall is about to be made: when that was asked for, in seconds.
pub const ADMITTED: &str = "firewall.metal-stack.io/admitted";
/// What serves Firewalls' userdata is called like the lease of those who serve it, and this: a Secret in the approver's own
/// namespace.
pub const WEBHOOK_SECRET_SUFFIX: &str = "-webhook";

/// The one Secret per shoot that outlives a seed, and the Secret that opens the shoot to the approver.
pub const STATE_SECRET: &str = "firewall-bootstrap";
pub const STATE_HANDOVER_KEY: &str = "handover-key";
/// The state's key of a firewall's record is its name and this.
pub const RECORD_SUFFIX: &str = ".json";
pub const SHOOT_ACCESS_SECRET: &str = "shoot-access-firewall-approver";
/// Gardener carries Secrets with this label to the new seed when a control plane moves.
pub const PERSIST_LABEL: &str = "persist";
/// Namespace of the FirewallMonitors in the shoot.
pub const MONITOR_NAMESPACE: &str = "firewall";
/// The only Secrets of a shoot's control plane that upstream lets its firewalls read.
pub const GENERIC_KUBECONFIG_PREFIX: &str = "generic-token-kubeconfig";
pub const SHOOT_TOKEN_SECRET: &str = "shoot-access-firewall-controller-manager";

/// Everything of ours carries this label and is swept by it.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Which firewall an object of ours stands for.
pub const FIREWALL_LABEL: &str = "firewall.metal-stack.io/firewall";

/// Which namespace that firewall's Firewall stands in.
pub const NAMESPACE_LABEL: &str = "firewall.metal-stack.io/namespace";
/// UID of that Firewall.
pub const UID_LABEL: &str = "firewall.metal-stack.io/uid";

/// Annotations. On the FirewallMonitor, in the shoot:
pub const SEED_ACCESS: &str = "firewall.metal-stack.io/seed-access";
pub const SEED_ACCESS_REPORT: &str = "firewall.metal-stack.io/seed-access-report";
/// On the Firewall, in the seed, for people and by operators:
pub const SEED_ACCESS_STATE: &str = "firewall.metal-stack.io/seed-access-state";
pub const RENEW: &str = "firewall.metal-stack.io/renew-seed-access";
pub const REBOOTSTRAP: &str = "firewall.metal-stack.io/rebootstrap";
/// Which of its bootstrap tokens stands in the userdata. Written when the Firewall is made.
pub const BOOTSTRAP_EPOCH: &str = "firewall.metal-stack.io/bootstrap-epoch";
/// `<Firewall UID>/<value>`: makes a bootstrap credential for the machine that is known already.
pub const EXPORT: &str = "firewall.metal-stack.io/export-bootstrap";
pub const ACCEPT_KEY: &str = "firewall.metal-stack.io/accept-key";

/// The finalizer with which firewall-controller-manager waits for a machine to go. A migration takes it away first.
pub const UPSTREAM_FINALIZER: &str = "firewall.metal-stack.io/firewall-controller-manager";

/// Reason and message of an approval, as people grep for them.
pub const APPROVED_REASON: &str = "AutoApproved";
pub const APPROVED_MESSAGE: &str = "Auto approving firewall-controller client certificate after SubjectAccessReview.";

/// A firewall's name, short enough to stand in a certificate and shaped like a Kubernetes object name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FirewallName(String);

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NameError {
    #[error(
        "firewall name {0:?} is longer than {FIREWALL_NAME_MAX} characters and does not fit into a certificate's common name: give the firewall a shorter name"
    )]
    TooLong(String),
    #[error(
        "firewall name {0:?} is not a Kubernetes object name (lower-case letters, digits, '-' and '.', at the ends a letter or digit)"
    )]
    NotADnsName(String),
}

impl FirewallName {
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if !is_dns_subdomain(name) {
            return Err(NameError::NotADnsName(name.chars().take(COMMON_NAME_MAX).collect()));
        }
        if name.len() > FIREWALL_NAME_MAX {
            return Err(NameError::TooLong(name.to_owned()));
        }
        Ok(Self(name.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The Kubernetes user that its certificate makes it.
    pub fn user(&self) -> String {
        format!("{USER_PREFIX}{}", self.0)
    }

    /// The Kubernetes user that its token makes it.
    pub fn access_user(&self) -> String {
        format!("{ACCESS_USER_PREFIX}{}", self.0)
    }

    /// Its Role and RoleBinding. A name that nobody else gives to a Role: of a Role that was there before, the approver
    /// could otherwise make the firewall's own.
    pub fn role(&self) -> String {
        self.user()
    }

    /// The one Secret of ours in the seed that this firewall reads. A name that nobody else gives to a Secret: of one that
    /// was there before, the approver could otherwise make what a firewall of a fitting name may read.
    pub fn agent_secret(&self) -> String {
        format!("{}.fw.metal-stack.io", self.0)
    }

    /// The Secret that holds the bootstrap kubeconfig until the firewall has come in.
    pub fn bootstrap_kubeconfig_secret(&self) -> String {
        format!("{}-bootstrap-kubeconfig", self.0)
    }

    /// Where the shoot's state Secret keeps this firewall's record.
    pub fn record_key(&self) -> String {
        format!("{}{RECORD_SUFFIX}", self.0)
    }

    /// ServiceAccount, Role and RoleBinding of this firewall's lifeline in the shoot.
    pub fn lifeline(&self) -> String {
        format!("firewall-agent-{}", self.0)
    }
}

impl fmt::Display for FirewallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for FirewallName {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        Self::parse(&name)
    }
}

impl From<FirewallName> for String {
    fn from(name: FirewallName) -> Self {
        name.0
    }
}

fn is_dns_subdomain(name: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.iter().all(|&c| alphanumeric(c) || c == b'-')
                && bytes.first().copied().is_some_and(alphanumeric)
                && bytes.last().copied().is_some_and(alphanumeric)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_46_characters_fits_and_one_of_47_does_not() {
        assert_eq!(FIREWALL_NAME_MAX, 46);
        assert!(FirewallName::parse(&"a".repeat(46)).is_ok());
        assert!(matches!(
            FirewallName::parse(&"a".repeat(47)),
            Err(NameError::TooLong(_))
        ));
        assert_eq!(
            FirewallName::parse(&"a".repeat(46)).unwrap().user().len(),
            COMMON_NAME_MAX
        );
    }

    #[test]
    fn what_kubernetes_would_not_name_an_object_is_refused() {
        for bad in [
            "", "-a", "a-", "A", "a_b", "a..b", ".a", "a b", "a:b", "ä", "a\u{0}", "_canary",
        ] {
            assert!(
                matches!(FirewallName::parse(bad), Err(NameError::NotADnsName(_))),
                "{bad:?}"
            );
        }
        for good in ["a", "0", "shoot--p--s-firewall-0a1b2", "a.b"] {
            assert!(FirewallName::parse(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_stored_name_is_checked_when_it_is_read() {
        assert!(serde_json::from_str::<FirewallName>("\"fw-1\"").is_ok());
        assert!(serde_json::from_str::<FirewallName>("\"fw_1\"").is_err());
    }
}
