//! Reasons: the words that stand in conditions, events, annotations and logs, one list for all of them. A reason is a
//! name that people search for and alerts match on, so it never changes once released.

use std::fmt;

macro_rules! reasons {
    ($(#[$outer:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }

            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a request or a firewall is as it is.
    Reason {
        /// The request is exactly as the contract says and its requester may make it.
        AutoApproved,
        /// The requester is not one of our identities, but the request claims a firewall's name.
        ForeignRequester,
        /// The request is for another signer.
        OtherSigner,
        /// The bytes of the request are not exactly those of a firewall's request.
        MalformedRequest,
        /// The usages are not those of a client certificate.
        WrongUsages,
        /// The asked lifetime is outside what is allowed.
        WrongExpiration,
        /// The requester asks for a certificate of another firewall.
        NotYours,
        /// Another key is pinned for this firewall.
        OtherKey,
        /// The request is older than the operator's word that let one new key in.
        Outdated,
        /// The bootstrap credential is not the one that stands for this firewall, or is revoked.
        CredentialSpent,
        /// Two keys came with one bootstrap credential: an operator has to say which is the machine's.
        TwoKeys,
        /// Another Firewall in this seed has the same name and was first.
        NameTaken,
        /// The firewall's name does not fit into a certificate.
        NameTooLong,
        /// The firewall does not exist, or is not known yet.
        FirewallUnknown,
        /// The firewall is being deleted.
        FirewallDeleted,
        /// Facts that the decision needs are not known yet.
        FactsMissing,
        /// An earlier request of the same identity is not decided yet.
        EarlierRequestOpen,
        /// More requests of this identity were approved within a minute than a firewall ever needs.
        TooManyRequests,
        /// The SubjectAccessReview said no.
        NotAllowed,
        /// The Firewall does not say yet how its shoot is reached.
        ShootAccessPending,
        /// The Firewall's shoot access names objects that a firewall must not read.
        ShootAccessRefused,
        /// The Secret that opens the shoot to the approver is missing or cannot be used.
        ShootAccessMissing,
        /// The shoot's API server cannot be reached.
        ShootUnreachable,
        /// The bootstrap credential stands and the firewall has not come in yet.
        WaitingForFirewall,
        /// A certificate was issued and the firewall has not reported from it yet.
        WaitingForReport,
        /// The bootstrap credential ran out before the firewall came in.
        CredentialExpired,
        /// An operator's annotation names another Firewall, or has another form than it should.
        AnnotationIgnored,
        /// The approver cannot read or write what it needs in the seed.
        SeedFailure,
        /// A request was approved and nobody signs it.
        ApprovedNotIssued,
        /// The control plane came from another seed: the firewall has to come in here.
        SeedMoved,
        /// This seed's API server is reached under another address.
        ServerMoved,
        /// This seed's API server has another CA.
        ServerCaChanged,
        /// The seed refuses certificates of the CA that this firewall's came from.
        IssuerRefused,
        /// Certificates come from a newer CA: the firewall's is to be renewed while both are trusted.
        IssuerSuperseded,
        /// The seed's API server refuses the certificates that its own signer issues now: nobody is handed over for that.
        SignerNotTrusted,
        /// The certificate is near its end and was not renewed.
        Expiring,
        /// The certificate has ended.
        Expired,
        /// The firewall says that the seed refuses its certificate.
        AgentRefused,
        /// An operator asked for it.
        Requested,
        /// Another seed speaks for this firewall with a higher authority.
        OtherSeedAhead,
        /// Nothing on record says which key is the machine's, and its report names one: an operator has to accept it.
        KeyUnknown,
        /// The firewall does not believe this seed's handovers, as it has other handover keys.
        HandoverKeyLost,
        /// The machine was installed with the way to another seed, and has never come in.
        UserdataOutdated,
        /// The firewall works with its certificate.
        Bootstrapped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_one_word_with_a_meaning() {
        for reason in Reason::ALL {
            assert!(
                reason.as_str().chars().all(char::is_alphanumeric),
                "Kubernetes wants CamelCase: {reason}"
            );
            assert!(reason.meaning().ends_with('.'), "{reason}");
        }
    }
}
