//! Whatever is changed in a good request or around it: it is approved if and only if it is still exactly good. What
//! good is says `goodness`, in other words than the policy and without any of its readers.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};

use super::*;

const CASES: u32 = 2000;

/// Which of the test's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Machine,
    Thief,
    Third,
}

#[derive(Clone, Debug)]
enum Mutation {
    PemByte(Index, u8),
    PemInsert(Index, u8),
    PemDelete(Index),
    DerByte(Index, u8),
    Written(&'static str, Whose),
    Usages(Vec<&'static str>),
    Expiration(Option<i32>),
    Signer(&'static str),
    Username(&'static str),
    Groups(Vec<&'static str>),
    TokenOwner(Option<(&'static str, &'static str)>),
    NoFirewall,
    Namesake {
        namespace: &'static str,
        created: i64,
        deleting: bool,
        on_record: bool,
    },
    Deleting,
    NoRecord,
    Keys(Option<(Whose, bool, bool, bool)>, Vec<Whose>, Option<i64>),
    Rearmed(i64),
    Sibling {
        name: &'static str,
        created: i64,
        decided: bool,
        key: Option<Whose>,
    },
    Review(Option<bool>),
}

/// A world, and every text in it that was written as a request of a firewall.
struct Mutated {
    world: World,
    written: Vec<(Vec<u8>, &'static str, Whose)>,
}

/// What an approval has to say.
#[derive(Debug, PartialEq, Eq)]
struct Good {
    namespace: String,
    /// The key that has to be pinned first.
    pin: Option<Thumbprint>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(CASES)))]

    #[test]
    fn approved_is_what_is_exactly_good_and_nothing_else(by in good_one(), mutations in mutations()) {
        let mutated = Mutated::of(by, mutations);
        let world = &mutated.world;
        let approved = match world.decide() {
            Decision::Approve { namespace, firewall, record } => {
                prop_assert_eq!(firewall.as_str(), NAME);
                if let Some(change) = &record {
                    prop_assert_eq!((&change.namespace, &change.firewall), (&namespace, &firewall));
                    // A renewal closes no window: it is for a key that comes with the credential.
                    prop_assert!(change.keys.open_until.is_none() || world.username.starts_with("fw.metal-stack.io:"));
                }
                let pin = record.map(|change| change.keys.pin.unwrap());
                prop_assert!(pin.as_ref().is_none_or(|pin| pin.key.as_ref().unwrap().thumbprint() == pin.thumbprint));
                Some(Good { namespace, pin: pin.map(|pin| pin.thumbprint) })
            }
            _ => None,
        };
        prop_assert_eq!(approved, goodness(&mutated));
    }

    #[test]
    fn nothing_is_approved_without_the_word_of_the_api_server(by in good_one(), mutations in mutations()) {
        let mutated = Mutated::of(by, mutations);
        let with = |review| mutated.world.clone().with(|w| w.review = review).outcome();
        let (unasked, refused) = (with(None), with(Some(Review::Refused("no".into()))));
        prop_assert!(unasked != Outcome::Approve && refused != Outcome::Approve);
        // It is asked exactly when all the rest is good, and its answer changes nothing else.
        match with(Some(Review::Allowed)) {
            Outcome::Approve => {
                prop_assert!(matches!(unasked, Outcome::Review(_)));
                prop_assert_eq!(refused, Outcome::Retry(Reason::NotAllowed));
            }
            other => prop_assert_eq!((unasked, refused), (other, other)),
        }
    }

    #[test]
    fn what_is_not_ours_is_never_touched(by in good_one(), mutations in mutations()) {
        let mutated = Mutated::of(by, mutations);
        let foreign = mutated.world.clone().with(|w| w.groups = vec!["system:authenticated".into()]);
        prop_assert!(matches!(foreign.outcome(), Outcome::Ignore(_)));
        let other_signer = mutated.world.with(|w| w.signer = "example.com/signer".into());
        prop_assert!(matches!(other_signer.outcome(), Outcome::Ignore(_)));
    }
}

fn good_one() -> impl Strategy<Value = By> {
    select(BY_ALL.to_vec())
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    vec(mutation(), 0..=3)
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let whose = || select(vec![Whose::Machine, Whose::Thief, Whose::Third]);
    let usages = [
        "digital signature",
        "client auth",
        "key encipherment",
        "server auth",
        "any",
        "client auth",
    ];
    let lifetimes = [
        None,
        Some(-1),
        Some(0),
        Some(599),
        Some(600),
        Some(86_400),
        Some(31_622_400),
        Some(31_622_401),
    ];
    let signers = [
        "kubernetes.io/kube-apiserver-client",
        "kubernetes.io/kube-apiserver-client-kubelet",
        "example.com/x",
        "",
    ];
    let users = [
        "system:bootstrap:abc123",
        "system:serviceaccount:firewall-bootstrap:fw-1",
        "system:serviceaccount:firewall-bootstrap:fw-2",
        "fw.metal-stack.io:fw-1",
        "fw.metal-stack.io:fw-2",
        "system:serviceaccount:default:fw-1",
        "eve",
    ];
    let groups = vec![
        "system:bootstrappers:metal-stack:firewall",
        "system:serviceaccounts:firewall-bootstrap",
        "fw.metal-stack.io:firewalls",
        "system:masters",
    ];
    let owners = [
        None,
        Some(("shoot--a", "fw-1")),
        Some(("shoot--b", "fw-1")),
        Some(("shoot--a", "fw-2")),
    ];
    let around = -2..=2_i64;
    let pin = proptest::option::of((whose(), any::<bool>(), any::<bool>(), any::<bool>()));
    let created = around.clone().prop_map(|second| 100 + second);
    prop_oneof![
        1 => (any::<Index>(), 1..=255_u8).prop_map(|(at, xor)| Mutation::PemByte(at, xor)),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::PemInsert(at, byte)),
        1 => any::<Index>().prop_map(Mutation::PemDelete),
        3 => (any::<Index>(), 1..=255_u8).prop_map(|(at, xor)| Mutation::DerByte(at, xor)),
        2 => (select(vec!["fw-1", "fw-1", "fw-2", "fw-11"]), whose()).prop_map(|(name, key)| Mutation::Written(name, key)),
        1 => subsequence(usages.to_vec(), 0..=usages.len()).prop_shuffle().prop_map(Mutation::Usages),
        1 => select(lifetimes.to_vec()).prop_map(Mutation::Expiration),
        1 => select(signers.to_vec()).prop_map(Mutation::Signer),
        1 => select(users.to_vec()).prop_map(Mutation::Username),
        1 => subsequence(groups, 0..=4).prop_map(Mutation::Groups),
        1 => select(owners.to_vec()).prop_map(Mutation::TokenOwner),
        1 => Just(Mutation::NoFirewall),
        2 => (select(vec!["shoot--a0", "shoot--b"]), 0..=2_i64, any::<bool>(), any::<bool>()).prop_map(
            |(namespace, created, deleting, on_record)| Mutation::Namesake { namespace, created, deleting, on_record }
        ),
        1 => Just(Mutation::Deleting),
        1 => Just(Mutation::NoRecord),
        5 => (pin, vec(whose(), 0..=2), proptest::option::of(around.prop_map(|second| 110 + second)))
            .prop_map(|(pin, candidates, open)| Mutation::Keys(pin, candidates, open)),
        4 => (select(vec!["firewall-a", "firewall-z"]), created, any::<bool>(), proptest::option::of(whose())).prop_map(
            |(name, created, decided, key)| Mutation::Sibling { name, created, decided, key }
        ),
        1 => select(vec![None, Some(false), Some(true)]).prop_map(Mutation::Review),
        2 => (98..=102_i64).prop_map(Mutation::Rearmed),
    ]
}

impl Whose {
    fn private(self) -> &'static PrivateKey {
        match self {
            Self::Machine => &MACHINE,
            Self::Thief => &THIEF,
            Self::Third => &THIRD,
        }
    }

    fn public(self) -> PublicKey {
        self.private().public()
    }
}

impl Mutated {
    fn of(by: By, mutations: Vec<Mutation>) -> Self {
        let world = World::good(by);
        let written = vec![(world.pem.clone(), NAME, Whose::Machine)];
        let mut mutated = mutations.into_iter().fold(Self { world, written }, Self::by);
        // Name and requester changed together make another firewall's good request, and in this world is none but NAME.
        let asked = mutated.written.iter().find(|(text, ..)| *text == mutated.world.pem);
        let allotted = mutated
            .world
            .token_owner
            .as_ref()
            .map(|(_, firewall)| firewall.as_str());
        let own = |name: &str| mutated.world.username.ends_with(&format!(":{name}")) || allotted == Some(name);
        if asked.is_some_and(|(_, name, _)| *name != NAME && own(name)) {
            mutated.world.firewalls.clear();
        }
        mutated
    }

    fn by(mut self, mutation: Mutation) -> Self {
        let world = &mut self.world;
        match mutation {
            Mutation::PemByte(at, xor) => {
                let at = at.index(world.pem.len());
                world.pem[at] ^= xor;
            }
            Mutation::PemInsert(at, byte) => world.pem.insert(at.index(world.pem.len() + 1), byte),
            Mutation::PemDelete(at) => {
                world.pem.remove(at.index(world.pem.len()));
            }
            Mutation::DerByte(at, xor) => {
                // Text that is no PEM any more is mutated enough.
                if let Some(mut der) = der(&world.pem) {
                    let at = at.index(der.len());
                    der[at] ^= xor;
                    world.pem = pem_of(&der);
                }
            }
            Mutation::Written(name, whose) => {
                world.pem = pem(name, whose.private());
                self.written.push((world.pem.clone(), name, whose));
            }
            Mutation::Usages(usages) => world.usages = usages.into_iter().map(str::to_owned).collect(),
            Mutation::Expiration(seconds) => world.expiration = seconds,
            Mutation::Signer(signer) => world.signer = signer.into(),
            Mutation::Username(username) => world.username = username.into(),
            Mutation::Groups(groups) => world.groups = groups.into_iter().map(str::to_owned).collect(),
            Mutation::TokenOwner(owner) => {
                // The worker looks for one only if a token made the request.
                if world.username.starts_with("system:bootstrap:") {
                    world.token_owner = owner.map(|(namespace, firewall)| (namespace.into(), name(firewall)));
                }
            }
            Mutation::NoFirewall => world.firewalls.clear(),
            Mutation::Namesake {
                namespace,
                created,
                deleting,
                on_record,
            } => world.firewalls.push(Standing {
                namespace: namespace.into(),
                uid: format!("uid-{namespace}-{}", world.firewalls.len()),
                created: at(created),
                deleting,
                record: on_record.then(|| record(Keys::default())),
            }),
            Mutation::Deleting => world.firewalls.iter_mut().for_each(|f| f.deleting = true),
            Mutation::NoRecord => world.firewalls.iter_mut().for_each(|f| f.record = None),
            Mutation::Keys(pin, candidates, open) => {
                let pin = pin.map(|(whose, seen, proven, accepted)| Pin {
                    thumbprint: whose.public().thumbprint(),
                    // A key is missing only if an operator named it.
                    key: (seen || !accepted).then(|| whose.public()),
                    since: at(40),
                    accepted,
                    proven: (proven && (seen || !accepted)).then(|| at(50)),
                });
                let mut candidates: Vec<_> = candidates.into_iter().map(Whose::public).collect();
                candidates.dedup();
                if let Some(pin) = &pin {
                    // Beside a pin stands at most the pinned key itself.
                    candidates.retain(|key| key.thumbprint() == pin.thumbprint);
                }
                let keys = Keys {
                    pin,
                    candidates,
                    open_until: open.map(at),
                    accepted: None,
                };
                world
                    .firewalls
                    .iter_mut()
                    .filter_map(|f| f.record.as_mut())
                    .for_each(|r| r.keys = keys.clone());
            }
            Mutation::Sibling {
                name,
                created,
                decided,
                key,
            } => {
                let key = key.map(Whose::public);
                world.siblings.push(Other {
                    name: name.into(),
                    created: at(created),
                    approved: decided.then(long_ago),
                    key,
                });
            }
            Mutation::Rearmed(second) => {
                // The first is the one that the firewall's name stands for, unless it was taken away.
                if world.firewalls.first().is_some_and(|f| f.record.is_some()) {
                    keys::rearmed(world, second);
                }
            }
            Mutation::Review(answer) => {
                world.review = answer.map(|yes| {
                    if yes {
                        Review::Allowed
                    } else {
                        Review::Refused("no".into())
                    }
                });
            }
        }
        self
    }
}

/// Whether it may be approved, and how. Names and numbers are written out: this is what was agreed.
fn goodness(mutated: &Mutated) -> Option<Good> {
    let world = &mutated.world;
    let (_, asked, whose) = mutated.written.iter().find(|(text, ..)| *text == world.pem)?;
    let key = whose.public();
    let groups: Vec<&str> = world.groups.iter().map(String::as_str).collect();
    let user = world.username.as_str();
    let by_token = user == "system:bootstrap:abc123" && groups.contains(&"system:bootstrappers:metal-stack:firewall");
    let by_account = user == format!("system:serviceaccount:firewall-bootstrap:{asked}")
        && groups.contains(&"system:serviceaccounts:firewall-bootstrap");
    let by_certificate =
        user == format!("fw.metal-stack.io:{asked}") && groups.contains(&"fw.metal-stack.io:firewalls");

    let count = |usage: &str| world.usages.iter().filter(|u| *u == usage).count();
    let encipherment = count("key encipherment");
    let usages = count("digital signature") == 1
        && count("client auth") == 1
        && encipherment <= 1
        && world.usages.len() == 2 + encipherment;
    let lifetime = world
        .expiration
        .is_some_and(|seconds| (600..=31_622_400).contains(&seconds));
    if *asked != NAME
        || world.signer != "kubernetes.io/kube-apiserver-client"
        || !usages
        || !lifetime
        || !(by_token || by_account || by_certificate)
        || world.review != Some(Review::Allowed)
    {
        return None;
    }

    let mut holders: Vec<&Standing> = world.firewalls.iter().filter(|f| f.record.is_some()).collect();
    holders.sort_by_key(|f| (f.created, f.uid.clone()));
    let holder = *holders.first()?;
    let owner = world
        .token_owner
        .as_ref()
        .map(|(namespace, firewall)| (namespace.as_str(), firewall.as_str()));
    if holder.deleting || (by_token && owner.is_none_or(|owner| owner != (&holder.namespace, NAME))) {
        return None;
    }
    // A requester that is no token has no allotment; a world that has one all the same must agree with it.
    if owner.is_some_and(|(namespace, _)| namespace != holder.namespace) {
        return None;
    }
    let open: Vec<&Other> = world.siblings.iter().filter(|s| s.approved.is_none()).collect();
    if open
        .iter()
        .any(|s| (s.created, s.name.as_str()) < (world.created, REQUEST))
    {
        return None;
    }

    let record = holder.record.as_ref()?;
    let kind = if by_token {
        CredentialKind::Token
    } else {
        CredentialKind::ServiceAccount
    };
    if !by_certificate && kind != world.kind {
        return None;
    }
    let keys = &record.keys;
    let thumbprint = key.thumbprint();
    let same_as_pinned = keys.pin.as_ref().map(|pin| pin.thumbprint == thumbprint);
    let alone = open
        .iter()
        .filter(|s| !outdated(record, s.created))
        .all(|s| s.key.as_ref().is_none_or(|other| *other == key));
    let window = keys.open_until.is_some_and(|until| until > world.now);
    let pin = match same_as_pinned {
        Some(true) if keys.pin.as_ref()?.key.is_some() => None,
        // Named by an operator before it came: now it is known.
        Some(true) => Some(thumbprint),
        _ if by_certificate || outdated(record, world.created) => return None,
        Some(false) if window && alone => Some(thumbprint),
        None if alone && keys.candidates.iter().all(|candidate| *candidate == key) => Some(thumbprint),
        _ => return None,
    };
    Some(Good {
        namespace: holder.namespace.clone(),
        pin,
    })
}

/// Made before the operator re-armed the credential.
fn outdated(record: &Record, created: Timestamp) -> bool {
    let allocated = record.credential.as_ref().map(|credential| credential.allocated);
    record.rebootstrap.is_some() && allocated.is_some_and(|at| at.as_second() > created.as_second())
}

fn der(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    BASE64_STANDARD.decode(body).ok().filter(|der| !der.is_empty())
}

fn pem_of(der: &[u8]) -> Vec<u8> {
    let body = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = body
        .as_bytes()
        .chunks(64)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .collect();
    let text = lines.join("\n");
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{text}\n-----END CERTIFICATE REQUEST-----\n").into_bytes()
}
