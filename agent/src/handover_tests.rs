//! Which handovers are taken up, and that a machine is whole again after a kill between any two writes.

use std::fs;
use std::path::Path;

use contract::handover::{Claims, write};
use contract::key::PrivateKey;
use contract::kubeconfig::{BootstrapExtension, CaBundle};
use secrecy::SecretString;

use super::*;
use crate::core::{Action, Own, Seen, Via, next};
use crate::machine::{Machine, Settings};
use crate::monitor::Monitor;
use crate::pair::OwnPair;
use crate::paths::Paths;
use crate::request::Candidate;
use crate::store::{Handled, Store, Switching};

#[path = "handover_tests/restarts.rs"]
mod restarts;

const OLD: &str = "https://seed-a.example.org";
const NEW: &str = "https://seed-b.example.org";

fn name() -> FirewallName {
    FirewallName::parse("fw-1").unwrap()
}

fn ca() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    rcgen::CertificateParams::default().self_signed(&key).unwrap().pem()
}

fn kubeconfig(firewall: &str, namespace: &str) -> Kubeconfig {
    Kubeconfig {
        server: NEW.into(),
        tls_server_name: None,
        ca: CaBundle::from_pem(&ca()).unwrap(),
        credential: Credential::Token(SecretString::from("abcdef.0123456789abcdef")),
        namespace: namespace.into(),
        bootstrap: Some(BootstrapExtension {
            firewall: FirewallName::parse(firewall).unwrap(),
            handover_keys: vec![PrivateKey::generate().unwrap().public()],
        }),
    }
}

fn order(authority: i64, generation: u64) -> Order {
    Order { authority, generation }
}

fn claims(key: &PublicKey, order: Order) -> Claims {
    let now = Timestamp::now();
    Claims {
        seed: "seed-b-uid".into(),
        namespace: "shoot--p--s".into(),
        firewall: name(),
        key: key.thumbprint(),
        order,
        issued: now,
        expires: now.checked_add(SignedDuration::from_mins(30)).unwrap(),
        reason: "SeedMoved".into(),
    }
}

/// A machine with its own certificate in seed A, and whoever hands it over.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    approver: PrivateKey,
    key: PrivateKey,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        cluster::client::install_crypto();
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self {
            dir,
            approver: PrivateKey::generate().unwrap(),
            key: PrivateKey::generate().unwrap(),
        };
        fs::create_dir(fixture.paths().config).unwrap();
        let store = fixture.store();
        let access = fixture.access(OLD);
        store.write_key(&fixture.key).unwrap();
        store.write_access(&access).unwrap();
        store.switch_pair(&fixture.pair(), &fixture.key).unwrap();
        store.install(&access).unwrap();
        fixture
    }

    fn paths(&self) -> Paths {
        Paths {
            config: self.dir.path().join("config"),
            state: self.dir.path().join("state"),
        }
    }

    fn store(&self) -> Store {
        Store::open(self.paths()).unwrap()
    }

    pub(crate) fn machine(&self) -> Machine {
        let settings = Settings {
            paths: self.paths(),
            certificate_duration: SignedDuration::from_hours(720),
            hook: Vec::new(),
            poll_interval: SignedDuration::from_mins(5),
        };
        Machine::open(settings).unwrap()
    }

    fn access(&self, server: &str) -> Access {
        Access {
            firewall: name(),
            namespace: "shoot--p--s".into(),
            server: server.into(),
            tls_server_name: None,
            ca: ca(),
            seed: Some("seed-a-uid".into()),
            handover_keys: vec![self.approver.public()],
            mode: "certificate".into(),
        }
    }

    fn pair(&self) -> OwnPair {
        use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, contract::names::ORGANIZATION);
        params.distinguished_name.push(DnType::CommonName, name().user());
        // Two of one key would have the same one.
        let random = SealKey::generate().unwrap();
        params.serial_number = Some(rcgen::SerialNumber::from_slice(&random.public().point()[1..17]));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::from_pem(&self.key.to_pem()).unwrap();
        OwnPair::new(&params.self_signed(&key).unwrap().pem(), &self.key).unwrap()
    }

    fn sealed(&self, machine: &Machine, claims: &Claims) -> String {
        let kubeconfig = kubeconfig("fw-1", &claims.namespace).write();
        let to = machine.seal.as_ref().unwrap().public();
        write(&self.approver, claims, Some((to, &kubeconfig))).unwrap()
    }

    fn good(&self, machine: &Machine, order: Order) -> String {
        self.sealed(machine, &claims(&self.key.public(), order))
    }
}

fn show(machine: &mut Machine, message: &str) {
    machine.monitor = Some(Monitor {
        handover: Some(message.to_owned()),
        report: None,
    });
    machine.take_up();
}

/// All that a machine keeps, file by file.
fn files_of(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for folder in [dir.to_owned(), dir.join("pairs")] {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.path().is_file() {
                all.push((entry.path().display().to_string(), fs::read(entry.path()).unwrap()));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn a8_an_authentic_handover_is_taken_up_and_the_next_request_goes_through_it() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let seal = machine.seal.as_ref().unwrap().public().clone();
    let message = fixture.good(&machine, order(7, 1));
    show(&mut machine, &message);
    assert_eq!(machine.fence.order, order(7, 1));
    assert_ne!(
        machine.seal.as_ref().unwrap().public(),
        &seal,
        "the seal key is used once"
    );
    let link = machine.link(Via::Handover).unwrap();
    assert_eq!(
        (link.access.server.as_str(), link.access.seed.as_deref()),
        (NEW, Some("seed-b-uid"))
    );
    // Until it has worked, the old one stands.
    assert_eq!(machine.link(Via::Own).unwrap().access.server, OLD);
    let action = next(&machine.state, &Seen::default(), Timestamp::now());
    assert_eq!(
        action,
        Action::WriteRequest {
            replacement: false,
            via: Via::Handover
        }
    );
    assert_eq!(machine.store.key().unwrap().unwrap().public(), fixture.key.public());
    let text = fs::read_to_string(machine.store.paths.fence()).unwrap();
    assert!(text.contains("\"authority\": 7"), "{text}");
}

#[tokio::test]
async fn d2_whatever_is_wrong_with_a_handover_leaves_everything_as_it_was() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    // Something was taken up before, so that there is something to lose.
    let message = fixture.good(&machine, order(5, 5));
    show(&mut machine, &message);
    machine.forget_handover().unwrap();
    machine.state.handover = None;
    let ours = fixture.key.public();
    let good = claims(&ours, order(5, 6));
    let ago = |minutes| {
        Timestamp::now()
            .checked_sub(SignedDuration::from_mins(minutes))
            .unwrap()
    };
    let ahead = |minutes| {
        Timestamp::now()
            .checked_add(SignedDuration::from_mins(minutes))
            .unwrap()
    };
    let to = machine.seal.as_ref().unwrap().public().clone();
    let signed = |key: &PrivateKey, claims: &Claims| {
        let text = kubeconfig("fw-1", &claims.namespace).write();
        write(key, claims, Some((&to, &text))).unwrap()
    };
    let with_content = |text: &str| write(&fixture.approver, &good, Some((&to, text))).unwrap();
    let changed = |change: fn(&mut Claims)| {
        let mut claims = good.clone();
        change(&mut claims);
        signed(&fixture.approver, &claims)
    };
    // The sealed part of one under the claims of another, with the signature of the latter.
    let mixed = {
        let (one, other) = (
            signed(&fixture.approver, &good),
            changed(|claims| claims.order.generation = 9),
        );
        let parts = |message: &str| message.split('.').map(str::to_owned).collect::<Vec<_>>();
        let (one, other) = (parts(&one), parts(&other));
        format!("{}.{}.{}", one[0], one[1], other[2])
    };
    let other_seal = SealKey::generate().unwrap();
    let text = kubeconfig("fw-1", "shoot--p--s").write();
    let exec = text.replace("token:", "exec:");
    let table = [
        ("not authentic", "nonsense".to_owned()),
        ("not authentic", signed(&PrivateKey::generate().unwrap(), &good)),
        // The machine's own key signs reports, and no handover.
        ("not authentic", signed(&fixture.key, &good)),
        ("not authentic", mixed),
        ("too long", "x".repeat(contract::handover::HANDOVER_MAX + 1)),
        (
            "for another firewall",
            changed(|claims| claims.firewall = FirewallName::parse("fw-2").unwrap()),
        ),
        (
            "for another key",
            signed(
                &fixture.approver,
                &claims(&PrivateKey::generate().unwrap().public(), order(5, 6)),
            ),
        ),
        (
            "expired",
            signed(
                &fixture.approver,
                &Claims {
                    expires: ago(1),
                    ..good.clone()
                },
            ),
        ),
        (
            "from the future",
            signed(
                &fixture.approver,
                &Claims {
                    issued: ahead(6),
                    ..good.clone()
                },
            ),
        ),
        (
            "older than the one taken up",
            changed(|claims| claims.order.generation = 4),
        ),
        (
            "older than the one taken up",
            changed(|claims| claims.order.authority = 4),
        ),
        // The same number, and not the very same message.
        (
            "older than the one taken up",
            changed(|claims| claims.order.generation = 5),
        ),
        (
            "sealed to another key",
            write(&fixture.approver, &good, Some((other_seal.public(), &text))).unwrap(),
        ),
        ("wrong content", with_content("nonsense")),
        ("wrong content", with_content(&exec)),
        (
            "wrong content",
            with_content(&kubeconfig("fw-2", "shoot--p--s").write()),
        ),
        (
            "wrong content",
            with_content(&kubeconfig("fw-1", "shoot--p--other").write()),
        ),
        (
            "wrong content",
            with_content(
                &Kubeconfig {
                    bootstrap: None,
                    ..kubeconfig("fw-1", "shoot--p--s")
                }
                .write(),
            ),
        ),
    ];
    let before = (files_of(&fixture.paths().state), machine.fence.clone());
    for (kind, message) in table {
        let count = machine.refused_handovers.get(kind).copied().unwrap_or(0);
        show(&mut machine, &message);
        assert_eq!(machine.refused_handovers.get(kind), Some(&(count + 1)), "{kind}");
        assert!(machine.handover.is_none() && machine.state.handover.is_none(), "{kind}");
        assert_eq!(
            (files_of(&fixture.paths().state), machine.fence.clone()),
            before,
            "{kind}"
        );
        assert_eq!(machine.seal.as_ref().unwrap().public(), &to, "{kind}");
    }
    // And after all of that, the right one counts.
    show(&mut machine, &signed(&fixture.approver, &good));
    assert_eq!(machine.handover.as_ref().unwrap().order(), order(5, 6));
}

#[tokio::test]
async fn a8_a_notice_is_answered_with_a_report_once_and_is_no_refusal() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let notice = write(&fixture.approver, &claims(&fixture.key.public(), order(1, 1)), None).unwrap();
    let waiting = |machine: &mut Machine| machine.done(Job::Report, SignedDuration::from_mins(5));
    waiting(&mut machine);
    show(&mut machine, &notice);
    assert!(machine.state.pace(Job::Report).due(Timestamp::now()));
    waiting(&mut machine);
    show(&mut machine, &notice);
    assert!(!machine.state.pace(Job::Report).due(Timestamp::now()));
    assert!(machine.refused_handovers.is_empty() && machine.fence == Fence::default());
    // An older notice than what was taken up is nothing to answer.
    let message = fixture.good(&machine, order(2, 1));
    show(&mut machine, &message);
    waiting(&mut machine);
    show(
        &mut machine,
        &write(&fixture.approver, &claims(&fixture.key.public(), order(1, 9)), None).unwrap(),
    );
    assert!(!machine.state.pace(Job::Report).due(Timestamp::now()));
}

#[tokio::test]
async fn a8_the_same_message_is_taken_up_once() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let message = fixture.good(&machine, order(1, 1));
    show(&mut machine, &message);
    machine.state.handover = None;
    show(&mut machine, &message);
    assert!(machine.state.handover.is_none() && machine.refused_handovers.is_empty());
}

#[tokio::test]
async fn what_was_refused_is_not_named_any_more_once_something_else_stands_there_or_the_machine_came_in() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let taken = fixture.good(&machine, order(2, 1));
    show(&mut machine, &taken);
    let older = fixture.good(&machine, order(1, 1));
    show(&mut machine, &older);
    assert!(machine.problems[REFUSED].contains("refused"), "{:?}", machine.problems);
    // Taken up already: nothing that stands there is refused.
    show(&mut machine, &taken);
    assert_eq!(machine.problems.get(REFUSED), None);

    show(&mut machine, &older);
    assert!(machine.problems.contains_key(REFUSED));
    machine.candidate = Some(Candidate {
        pair: fixture.pair(),
        access: fixture.access(NEW),
        via: Via::Bootstrap,
        link: None,
    });
    machine.switch();
    assert_eq!(machine.problems.get(REFUSED), None);
    // It is judged anew, and if it is still there it says so.
    show(&mut machine, &older);
    assert!(machine.problems.contains_key(REFUSED));
}

#[tokio::test]
async fn a_wrong_clock_is_allowed_for() {
    let fixture = Fixture::new();
    let mut machine = fixture.machine();
    let hour = SignedDuration::from_hours(1);
    let mut early = claims(&fixture.key.public(), order(1, 1));
    early.issued = early.issued.checked_add(hour).unwrap();
    early.expires = early.expires.checked_add(hour).unwrap();
    let message = fixture.sealed(&machine, &early);
    show(&mut machine, &message);
    assert_eq!(machine.refused_handovers.get("from the future"), Some(&1));
    machine.clock_skew = Some(-3600);
    show(&mut machine, &message);
    let pending = machine.state.handover.unwrap();
    assert!(Timestamp::now().duration_until(pending.expires) <= SignedDuration::from_mins(31));
}

#[test]
fn an_agents_debug_output_has_no_secret_of_a_handover() {
    let pending = PendingHandover {
        seed: "s".into(),
        fence: Fence::default(),
        expires: Timestamp::UNIX_EPOCH,
        reason: "r".into(),
        kubeconfig: Zeroizing::new("secret".into()),
    };
    assert!(!format!("{pending:?}").contains("secret"));
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn d2_in_whatever_order_handovers_come_none_is_taken_up_after_a_newer_one(
        orders in proptest::collection::vec((0_i64..4, 0_u64..4), 1..15),
    ) {
        let (approver, seal) = (PrivateKey::generate().unwrap(), SealKey::generate().unwrap());
        let mut guard = Guard {
            firewall: name(),
            key: PrivateKey::generate().unwrap().public(),
            keys: vec![approver.public()],
            fence: Fence::default(),
            now: Timestamp::now(),
        };
        for (authority, generation) in orders {
            let claims = claims(&guard.key, order(authority, generation));
            let text = kubeconfig("fw-1", &claims.namespace).write();
            let message = write(&approver, &claims, Some((seal.public(), &text))).unwrap();
            let newer = claims.order > guard.fence.order;
            let taken = guard.take(&message, &seal);
            proptest::prop_assert_eq!(taken.is_ok(), newer);
            if let Ok(pending) = taken {
                guard.fence = pending.fence;
            }
        }
    }
}
