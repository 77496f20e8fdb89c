//! The agent's mind: what it holds, what it sees, and what it does next. Pure: no I/O, no clock of its own, no async.
//! `next` says what to do, whoever runs it does it and tells with `State::after` how it ended.

mod backoff;
mod learn;
mod next;
mod times;
mod unit;

use jiff::Timestamp;

pub use backoff::{Pace, Patience};
pub use learn::{Event, REFUSALS, Void};
pub use next::next;
pub use times::{RENEWAL_EARLIEST, RENEWAL_LATEST, lifeline_renewal_at, renewal_at, token_refresh_at};
pub use unit::{is_vrf_name, vrf_of};

/// What is tried again on its own when it fails, without holding up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Job {
    /// From the key to a certificate that works.
    Access,
    /// How far this clock is off.
    Clock,
    /// Telling the consumer that its way to the seed changed.
    Consumer,
    /// Looking whether a handover stands in our FirewallMonitor, in case a watch did not say so.
    Handover,
    /// The lifeline's token and CA.
    Lifeline,
    /// Another server or CA that the seed told of.
    Offer,
    Report,
    /// Reading our Firewall and our own Secret.
    Seed,
    /// The shoot kubeconfig.
    Shoot,
}

impl Job {
    pub const ALL: [Self; 9] = [
        Self::Access,
        Self::Clock,
        Self::Consumer,
        Self::Handover,
        Self::Lifeline,
        Self::Offer,
        Self::Report,
        Self::Seed,
        Self::Shoot,
    ];

    /// As it stands in the status and in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Access => "seed access",
            Self::Clock => "clock",
            Self::Consumer => "hook",
            Self::Handover => "looking for a handover",
            Self::Lifeline => "lifeline",
            Self::Offer => "new server or CA",
            Self::Report => "report",
            Self::Seed => "reading the seed",
            Self::Shoot => "shoot access",
        }
    }
}

/// All that decides. It is rebuilt from the files at each start, with nothing pending.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Spreads the retries of many agents.
    pub seed: u64,
    pub key: bool,
    /// The certificate in use, or none before the first.
    pub own: Option<Own>,
    /// The consumer's kubeconfig says what we hold; false after a start that found a switch half done.
    pub installed: bool,
    /// The consumer was told of the kubeconfig as it stands.
    pub told: bool,
    /// When the consumer's hook was run last, by this process or an earlier one, however it ended.
    pub hook_run: Option<Timestamp>,
    /// A renewal was asked for and is not done yet.
    pub renewal: bool,
    /// The seed wants us to work with a token.
    pub token_wanted: bool,
    pub request: Option<Request>,
    /// The last request was refused before we sent it, so the next one is its replacement.
    pub replacing: bool,
    /// Refusals in a row.
    pub denials: u32,
    /// The seed offers another server or CA.
    pub offer: bool,
    /// When to look at the message that stands in our FirewallMonitor.
    pub found: Option<Timestamp>,
    /// The last message was refused: another is not judged before.
    pub quiet_until: Option<Timestamp>,
    /// The handover that was taken up and has not led to a certificate yet.
    pub handover: Option<Pending>,
    /// Answers in a row that refused our own certificate.
    pub refusals: u32,
    /// The seed does not accept our own certificate any more.
    pub refused: bool,
    /// There is a client for the shoot.
    pub shoot_way: bool,
    /// There is a lifeline.
    pub lifeline: bool,
    /// Our Firewall was read since the start.
    pub firewall_read: bool,
    /// There is what a report needs: the seed's id and a way into the shoot.
    pub reportable: bool,
    pub paces: [Pace; Job::ALL.len()],
}

impl State {
    pub fn pace(&self, job: Job) -> &Pace {
        &self.paces[job as usize]
    }

    pub(crate) fn pace_mut(&mut self, job: Job) -> &mut Pace {
        &mut self.paces[job as usize]
    }

    pub(crate) fn live(&self, now: Timestamp) -> bool {
        self.own.is_some_and(|own| now < own.not_after)
    }

    /// Whether our own certificate can be worked with.
    pub(crate) fn accepted(&self, now: Timestamp) -> bool {
        self.live(now) && !self.refused
    }
}

/// When the certificate in use ends, and when to renew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    pub renew_at: Timestamp,
    pub not_after: Timestamp,
    /// It is a token, which is renewed with itself.
    pub token: bool,
}

/// A handover that was taken up and not used yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub expires: Timestamp,
    /// When this process took it up.
    pub since: Timestamp,
}

/// The certificate request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub standing: Standing,
    /// Whose way it was made for; not known of one that an earlier process made.
    pub via: Option<Via>,
    /// It was made because the one before was spoilt before we sent it.
    pub replacement: bool,
    /// When this process first had it in the seed.
    pub sent: Option<Timestamp>,
    pub polls: u32,
    pub poll_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On our disk; whether the seed has it is not known.
    Written,
    /// In the seed, undecided.
    Pending,
    /// Approved, and no certificate yet.
    Approved,
    /// The certificate was issued and is what we asked for.
    Issued,
    /// It works.
    Tried,
    /// Nothing comes of it any more.
    Void,
}

/// What is looked at anew each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// There is a bootstrap kubeconfig that can be used.
    pub bootstrap: bool,
    /// And a person put it there since we came in: it goes before our own certificate.
    pub bootstrap_new: bool,
    /// Somebody asks for a renewal that was not taken up yet.
    pub renewal: bool,
}

/// Which credential a request goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Bootstrap,
    Handover,
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    MakeKey,
    /// Write the consumer's kubeconfig again, after a switch that a crash cut short.
    Install,
    /// Take up a renewal, on disk, so that it is done once.
    AcceptRenewal,
    /// Judge the message that stands in our FirewallMonitor.
    TakeUp,
    /// Forget a handover that expired before it could be used.
    DropHandover,
    /// Have a token made, try it and switch to it.
    RenewToken,
    WriteRequest {
        replacement: bool,
        via: Via,
    },
    SendRequest(Via),
    PollRequest(Via),
    DropRequest,
    TryCandidate,
    Switch,
    TryOffer,
    MeasureClock(Option<Via>),
    LookForHandover,
    RenewLifeline,
    ReadSeed,
    RefreshShoot,
    Report,
    TellConsumer,
    Wait {
        until: Timestamp,
        why: Why,
    },
}

/// What it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// All is well.
    Steady,
    /// The request was sent a moment ago.
    Answer,
    /// Nobody decides about the request.
    Undecided,
    /// The request is approved, and nobody signs it.
    Unsigned,
    /// Neither a certificate that the seed accepts nor a bootstrap kubeconfig that can be used.
    NoCredential,
    /// The first of the jobs that failed.
    Failed(Job),
}
