//! Reasons: the words that stand in conditions, events, annotations and logs, one list for all of them. A reason is a
//! name that people search for and alerts match on, so it never changes once released. What it means, what the approver
//! does and what is left to a person stands beside it here; `docs/reference/reasons.md` is written from that.

use std::fmt;

/// What a reason is said of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Firewall,
    Request,
    /// The approver's own namespace.
    Namespace,
}

macro_rules! reasons {
    ($(#[$outer:meta])* $name:ident {
        $($(#[doc = $doc:literal])+ $variant:ident [$($on:ident),+] { does: $does:literal, todo: $todo:literal, })+
    }) => {
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

            pub fn on(self) -> &'static [On] {
                match self { $(Self::$variant => &[$(On::$on),+],)+ }
            }

            /// What the approver does about it.
            pub fn does(self) -> &'static str {
                match self { $(Self::$variant => $does,)+ }
            }

            /// What is left to a person.
            pub fn todo(self) -> &'static str {
                match self { $(Self::$variant => $todo,)+ }
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
        AutoApproved [Request] {
            does: "Approves it.",
            todo: "Nothing.",
        }
        /// The requester is not one of our identities, but the request claims a firewall's name.
        ForeignRequester [Request] {
            does: "Leaves it alone, and says so in an event and the log.",
            todo: "Do not approve it by hand. Find out who asks: `kubectl get csr <request> -o jsonpath={.spec.username}`.",
        }
        /// The request is for another signer.
        OtherSigner [Request] {
            does: "Leaves it alone: to deny it would take the right to approve for that signer.",
            todo: "Find out why one of our identities asks for that. Requests for other signers are not watched, so this is seldom seen.",
        }
        /// The bytes of the request are not exactly those of a firewall's request.
        MalformedRequest [Request] {
            does: "Denies it.",
            todo: "Other software, or another version, uses this credential: find out which.",
        }
        /// The usages are not those of a client certificate.
        WrongUsages [Request] {
            does: "Denies it.",
            todo: "As MalformedRequest.",
        }
        /// The asked lifetime is outside what is allowed.
        WrongExpiration [Request] {
            does: "Denies it.",
            todo: "`--certificate-duration` of the agent: 600 s to 365 d. Else as MalformedRequest.",
        }
        /// The requester asks for a certificate of another firewall.
        NotYours [Request] {
            does: "Denies it, and names it on the Firewall of whoever asked.",
            todo: "Find out who holds that credential: it was misused. A certificate is worth nothing when its Firewall is gone.",
        }
        /// Another key is pinned for this firewall.
        OtherKey [Request] {
            does: "Denies it.",
            todo: "If the machine was installed anew: `kubectl annotate --overwrite firewall -n <namespace> <name> firewall.metal-stack.io/rebootstrap=<UID>/<any new value>`. If not, somebody else has its credential.",
        }
        /// The request is older than the operator's word that let one new key in.
        Outdated [Request] {
            does: "Denies it.",
            todo: "Nothing: the agent asks again.",
        }
        /// The bootstrap credential is not the one that stands for this firewall, or is revoked.
        CredentialSpent [Request] {
            does: "Decides nothing, and looks again.",
            todo: "If the machine is yours and was installed anew: `kubectl annotate --overwrite firewall -n <namespace> <name> firewall.metal-stack.io/rebootstrap=<UID>/<any new value>`.",
        }
        /// Two keys came with one bootstrap credential: an operator has to say which is the machine's.
        TwoKeys [Firewall, Request] {
            does: "Approves neither, and takes the firewall's RoleBinding away: one of the keys may be a thief's.",
            todo: "Read [decisions](../decisions.md) first. Compare the keys in the message with `firewall-agent status` on the machine. If the first of them is the machine's: `kubectl annotate --overwrite firewall -n <namespace> <name> firewall.metal-stack.io/accept-key=<thumbprint>@<UID>`. If not: give the machine a Firewall of another name.",
        }
        /// Another Firewall in this seed has the same name and was first.
        NameTaken [Firewall, Request] {
            does: "Makes no credential and no rights for it. Also while a certificate of that name is still good.",
            todo: "Give it another name, or wait for that certificate's end.",
        }
        /// The firewall's name does not fit into a certificate.
        NameTooLong [Firewall] {
            does: "Nothing for this Firewall.",
            todo: "Give it another name: 46 characters at most, as a Kubernetes name.",
        }
        /// The firewall does not exist, or is not known yet.
        FirewallUnknown [Request] {
            does: "Decides nothing, and looks again: at once at first, each minute at last.",
            todo: "If it stays: is there a Firewall of that name, in a namespace that the approver works on (`--namespace`)?",
        }
        /// The firewall is being deleted.
        FirewallDeleted [Firewall, Request] {
            does: "Revokes its bootstrap credential, and approves nothing more.",
            todo: "Nothing.",
        }
        /// Facts that the decision needs are not known yet.
        FactsMissing [Request] {
            does: "Decides nothing, and looks again.",
            todo: "Usual for a moment. If it stays: the message names what is missing.",
        }
        /// An earlier request of the same identity is not decided yet.
        EarlierRequestOpen [Request] {
            does: "Decides the earlier one first.",
            todo: "If it stays: the earlier one has a reason of its own. It may be deleted: `kubectl delete csr <request>`.",
        }
        /// More requests of this identity were approved within a minute than a firewall ever needs.
        TooManyRequests [Request] {
            does: "Approves no more of them until that minute is over.",
            todo: "A firewall asks a few times in its life: find out who holds its credential. `kubectl get csr` shows the requests.",
        }
        /// The SubjectAccessReview said no.
        NotAllowed [Request] {
            does: "Decides nothing, and asks again.",
            todo: "Apply your overlay of `manifests/seed` again (`firewall-rbac.yaml`).",
        }
        /// The Firewall does not say yet how its shoot is reached.
        ShootAccessPending [Firewall] {
            does: "Keeps the bootstrap credential good, and waits for `status.shootAccess`.",
            todo: "Is firewall-controller-manager at work?",
        }
        /// The Firewall's shoot access names objects that a firewall must not read.
        ShootAccessRefused [Firewall] {
            does: "Gives the firewall no right to read them.",
            todo: "Correct `status.shootAccess`, and find out who wrote it.",
        }
        /// The Secret that opens the shoot to the approver is missing or cannot be used.
        ShootAccessMissing [Firewall] {
            does: "Works on for the firewall in the seed. It cannot read its report, nor tell it of a move.",
            todo: "Deploy Secret `shoot-access-firewall-approver` ([install](../install.md#in-each-shoot)); the message says what is wrong.",
        }
        /// The shoot's API server cannot be reached.
        ShootUnreachable [Firewall] {
            does: "Tries again every 20 s, and works on in the seed.",
            todo: "Look at the shoot, at `manifests/shoot` in it, at its webhooks.",
        }
        /// The bootstrap credential stands and the firewall has not come in yet.
        WaitingForFirewall [Firewall] {
            does: "Keeps the credential good, for 24 hours at most.",
            todo: "Start the machine; look at its `firewall-agent status`. Requests of its that were refused stand in `lastRefused` of the state.",
        }
        /// A certificate was issued and the firewall has not reported from it yet.
        WaitingForReport [Firewall] {
            does: "Keeps the bootstrap credential until the report.",
            todo: "Look at the machine, and whether its FirewallMonitor is there in the shoot.",
        }
        /// The bootstrap credential ran out before the firewall came in.
        CredentialExpired [Firewall] {
            does: "Has revoked it.",
            todo: "`kubectl annotate --overwrite firewall -n <namespace> <name> firewall.metal-stack.io/rebootstrap=<UID>/<any new value>`, and start the machine.",
        }
        /// An operator's annotation names another Firewall, or has another form than it should.
        AnnotationIgnored [Firewall] {
            does: "Does not act on it. Only an event and the log say so.",
            todo: "After a move it is from before: nothing. Else write it as [operations](../operations.md#commands) has it.",
        }
        /// The approver cannot read or write what it needs in the seed.
        SeedFailure [Firewall] {
            does: "Tries again after 2 to 30 s.",
            todo: "The message says what failed: rights, policies, API server.",
        }
        /// A request was approved and nobody signs it.
        ApprovedNotIssued [Request] {
            does: "Says so after 30 s, and again every 5 minutes. The agent gives it up after 15 minutes and asks anew.",
            todo: "Does kube-controller-manager run with `csrsigning` and a key for `kubernetes.io/kube-apiserver-client`? On a seed that signs none: `--seed-access=token`.",
        }
        /// The control plane came from another seed: the firewall has to come in here.
        SeedMoved [Firewall] {
            does: "Tells the firewall through its shoot, by a sealed handover.",
            todo: "Nothing. If it stays: [operations](../operations.md#it-does-not-come-back).",
        }
        /// This seed's API server is reached under another address.
        ServerMoved [Firewall] {
            does: "Hands the firewall over if it does not follow by itself.",
            todo: "As SeedMoved.",
        }
        /// This seed's API server has another CA.
        ServerCaChanged [Firewall] {
            does: "Hands the firewall over if it does not follow by itself.",
            todo: "As SeedMoved.",
        }
        /// The seed refuses certificates of the CA that this firewall's came from.
        IssuerRefused [Firewall] {
            does: "Has the firewall come in anew. Its canaries noticed.",
            todo: "Nothing. Was the CA dropped before the roll was through?",
        }
        /// Certificates come from a newer CA: the firewall's is to be renewed while both are trusted.
        IssuerSuperseded [Firewall] {
            does: "Has the firewall renew, within seconds.",
            todo: "Nothing.",
        }
        /// The seed's API server refuses the certificates that its own signer issues now: nobody is handed over for that.
        SignerNotTrusted [Request] {
            does: "Says so on the canary's request and in the log, and hands nobody over.",
            todo: "kube-apiserver's `--client-ca-file` and the signer's CA do not belong together: mend one of them.",
        }
        /// The approver's clock is not the seed's.
        ClockWrong [Namespace] {
            does: "Says so every five minutes while it is so, and works on by its own clock.",
            todo: "Set the clock of the node that the approver runs on. Credentials end too early or too late by as much.",
        }
        /// The certificate is near its end and was not renewed.
        Expiring [Firewall] {
            does: "Says so from 90 % of its life on.",
            todo: "Look at the machine: `firewall-agent status`.",
        }
        /// The certificate has ended.
        Expired [Firewall] {
            does: "Lets the firewall in anew, and tells it through its shoot.",
            todo: "Look at the machine. If it stays silent: `firewall-approver export <namespace>/<name>`.",
        }
        /// The firewall says that the seed refuses its certificate.
        AgentRefused [Firewall] {
            does: "Lets it in anew, every 5 minutes at most.",
            todo: "If it comes back: does the seed still trust the CA that signs?",
        }
        /// An operator asked for it.
        Requested [Firewall] {
            does: "Has the firewall come in anew.",
            todo: "Nothing.",
        }
        /// Another seed speaks for this firewall with a higher authority.
        OtherSeedAhead [Firewall] {
            does: "Stands aside: does nothing for it here.",
            todo: "After a move nothing: this is the seed that was left. Only if the control plane really is here: `firewall-approver export <namespace>/<name>`, which takes the firewall away from the other seed at once.",
        }
        /// Nothing on record says which key is the machine's, and its report names one: an operator has to accept it.
        KeyUnknown [Firewall] {
            does: "Believes no report, and hands nothing over.",
            todo: "Compare with `firewall-agent status` on the machine itself (what lies in the shoot may be anybody's). Then `kubectl annotate --overwrite firewall -n <namespace> <name> firewall.metal-stack.io/accept-key=<thumbprint>@<UID>`.",
        }
        /// The firewall does not believe this seed's handovers, as it has other handover keys.
        HandoverKeyLost [Firewall] {
            does: "Cannot tell it of its way in.",
            todo: "Restore Secret `firewall-bootstrap`, or `firewall-approver export <namespace>/<name>`.",
        }
        /// The machine was installed with the way to another seed, and has never come in.
        UserdataOutdated [Firewall] {
            does: "Waits.",
            todo: "`firewall-approver export <namespace>/<name>`, and put what it prints on the machine; or install it anew.",
        }
        /// The firewall works with its certificate.
        Bootstrapped [Firewall] {
            does: "Looks after it.",
            todo: "Nothing.",
        }
    }
}

#[cfg(test)]
mod tests;
