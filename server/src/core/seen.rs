//! The facts of one firewall at one moment: what stands in the seed and in its shoot, gathered by the shell. Judges none.

use contract::access::Mode;
use contract::handover::Claims;
use contract::names::FirewallName;
use contract::record::{Certificate, CredentialKind};
use contract::report::Report;
use jiff::Timestamp;

use super::canary::Issuers;

/// What was seen of a firewall.
pub struct Seen<'a> {
    pub firewall: &'a FirewallName,
    pub uid: &'a str,
    pub seed: &'a str,
    /// Fingerprints of where firewalls reach this seed.
    pub server: &'a str,
    pub ca: &'a str,
    /// When the Firewall was made in this seed.
    pub created: Timestamp,
    pub kind: CredentialKind,
    /// What firewalls are to work with.
    pub mode: Mode,
    /// The operator's annotations on the Firewall.
    pub accept_key: Option<&'a str>,
    pub rebootstrap: Option<&'a str>,
    pub export: Option<&'a str>,
    /// The shoot was opened a moment ago: what stands in it is not known yet.
    pub blind: bool,
    /// The FirewallMonitor was seen.
    pub monitor: bool,
    /// The handover in the FirewallMonitor, if the shoot's handover key signed it for this firewall.
    pub authentic: Option<&'a Claims>,
    /// What became of the CAs that certificates come from.
    pub issuers: &'a Issuers,
    /// The firewall's report, if the pinned key signed it.
    pub report: Option<&'a Report>,
    /// The newest certificate of the pinned key that was issued for it.
    pub certificate: Option<&'a Certificate>,
    /// The end of the last certificate of its name among the requests that still exist, of whatever key.
    pub certified_until: Option<Timestamp>,
    /// Whether its token's id turned out to be somebody else's.
    pub id_taken: bool,
    /// The epoch of the token that stands in its userdata, where the webhook put one there.
    pub baked: Option<u32>,
}
