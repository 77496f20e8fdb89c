//! Which requests the approver may approve or deny: those of our identities, for our signer, and approve only one whose
//! bytes name a firewall as their subject; of its own only one for the canary, a user without any rights. The layout is
//! not repeated here: it is read off requests that the contract writes.

use contract::csr;
use contract::grant;
use contract::key::PrivateKey;
use contract::names::{self, FIREWALL_NAME_MAX, FirewallName};

use super::{Policy, approver, bytes, the_approver};

/// PEM's first line. Its length is a multiple of three, so base64 of the text behind it begins at a whole character.
const FIRST_LINE: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
const COLUMNS: usize = 64;
/// The longest header of the outermost element: tag, length of the length, two bytes of length.
const HEADER_MAX: usize = 4;

pub(super) fn policy() -> Policy {
    let layout = Layout::read();
    let mut variables = vec![
        ("old", conditions("oldObject")),
        ("new", conditions("object")),
        ("added", "variables.new.filter(c, !(c in variables.old))".to_owned()),
        ("decided", format!("variables.added.filter(c, {})", decision())),
        (
            "granted",
            format!(
                "variables.added.filter(c, c.status == 'True' && c.type == '{}' && c.reason == '{}')",
                grant::CONDITION,
                grant::CONDITION_REASON
            ),
        ),
        ("own", format!("oldObject.spec.username == '{}'", approver())),
    ];
    variables.extend(layout.variables());
    Policy {
        name: "requests",
        about: "The approver decides on requests of firewalls, and approves only a subject that is a firewall's. Of its own\n\
                requests it approves only one for its canary: a user whom nothing gives any rights.\n\
                The subject is read out of the request's bytes: CEL sees them as base64 of PEM, which is base64 of DER.",
        who: the_approver(),
        group: "certificates.k8s.io",
        versions: "v1",
        resource: "certificatesigningrequests/approval",
        operations: &["UPDATE"],
        variables,
        validations: vec![
            (
                format!("the approver decides on requests for the signer {} only", names::SIGNER),
                format!("oldObject.spec.signerName == '{}'", names::SIGNER),
            ),
            (
                "the approver decides on requests of firewalls only: of their bootstrap credentials and certificates (and on its own)"
                    .to_owned(),
                format!("variables.own || ({})", requester()),
            ),
            (
                format!(
                    "the approver adds one condition, Approved with reason {} or Denied, with the first of them {} at most, and changes no other",
                    names::APPROVED_REASON,
                    grant::CONDITION
                ),
                "variables.old.all(c, c in variables.new) && variables.decided.size() == 1 &&
  (variables.added.size() == 1 || (variables.added.size() == 2 && variables.granted.size() == 1 && !variables.own &&
    variables.decided.all(c, c.type == 'Approved')))"
                    .to_owned(),
            ),
            (
                format!(
                    "the approver approves only the subject O={}, CN={}<firewall>, with an ECDSA P-256 key and nothing else",
                    names::ORGANIZATION,
                    names::USER_PREFIX
                ),
                format!(
                    "variables.own || !variables.new.exists(c, c.type == 'Approved') || ({})",
                    layout.condition()
                ),
            ),
            (
                format!(
                    "of its own requests the approver approves only the subject CN={}, with an ECDSA P-256 key and nothing else",
                    names::CANARY_USER
                ),
                format!(
                    "!variables.own || !variables.new.exists(c, c.type == 'Approved') || ({})",
                    layout.canary()
                ),
            ),
        ],
    }
}

fn conditions(object: &str) -> String {
    format!("has({object}.status.conditions) ? {object}.status.conditions : []")
}

fn decision() -> String {
    format!(
        "c.status == 'True' && (c.type == 'Denied' || (c.type == 'Approved' && c.reason == '{}'))",
        names::APPROVED_REASON
    )
}

fn requester() -> String {
    let identities = [
        (names::BOOTSTRAP_USER_PREFIX, names::BOOTSTRAP_GROUP),
        (names::SERVICE_ACCOUNT_USER_PREFIX, names::SERVICE_ACCOUNT_GROUP),
        (names::ACCESS_USER_PREFIX, names::ACCESS_GROUP),
        (names::USER_PREFIX, names::ORGANIZATION),
    ];
    let any: Vec<String> = identities
        .iter()
        .map(|(user, group)| {
            format!("(oldObject.spec.username.startsWith('{user}') && '{group}' in oldObject.spec.groups)")
        })
        .collect();
    format!("has(oldObject.spec.groups) && (\n  {})", any.join(" ||\n  "))
}

/// What every request of ours has in common, by offset from the start of its CertificationRequestInfo.
struct Layout {
    /// Before the name: bytes that are always the same.
    fixed: Vec<(usize, u8)>,
    /// Before the name: lengths, less the length of the name.
    lengths: Vec<(usize, u8)>,
    name: usize,
    /// Behind the name: the key's type, up to where the key itself begins.
    key: Vec<(usize, u8)>,
}

impl Layout {
    /// Compares requests for names of one and of two characters: what grows by one is a length.
    fn read() -> Self {
        let key = PrivateKey::generate().expect("a key");
        let (one, two) = (info("x", &key), info("xx", &key));
        let name = one.iter().zip(&two).rposition(|(a, b)| (*a, *b) == (b'x', b'x'));
        let spki = key.public().spki_der();
        let behind = position(&one, &key);
        assert_eq!(name, Some(behind - 1), "the name stands just before the key");
        let name = behind - 1;
        let (mut fixed, mut lengths) = (Vec::new(), Vec::new());
        for (offset, (a, b)) in one.iter().zip(&two).take(name).enumerate() {
            match b - a {
                0 => fixed.push((offset, *a)),
                _ => lengths.push((offset, a - 1)),
            }
        }
        // An uncompressed point has 64 bytes behind its first.
        let key = spki[..spki.len() - 64].iter().copied().enumerate().collect();
        Self {
            fixed,
            lengths,
            name,
            key,
        }
    }

    /// How many bytes of DER may have to be looked at.
    fn reach(&self) -> usize {
        HEADER_MAX + self.name + FIREWALL_NAME_MAX + self.key.len()
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let bytes = self.reach().next_multiple_of(3);
        let characters = bytes / 3 * 4;
        let text = (characters + characters / COLUMNS).next_multiple_of(3);
        let from = FIRST_LINE.len() / 3 * 4;
        let length = self.lengths.last().expect("the name has a length");
        let request = format!("oldObject.spec.request.substring({from}, {})", from + text / 3 * 4);
        vec![
            ("indices", bytes::indices(text)),
            ("outer", bytes::sextets(&request)),
            // The text of the PEM block behind its first line.
            ("pem", bytes::decoded("variables.outer", "variables.indices")),
            ("inner", {
                let value = bytes::value_of_code("c");
                format!(
                    "variables.indices.filter(i, i < {characters}).map(i, variables.pem[i + i / {COLUMNS}]).map(c,\n  {value})"
                )
            }),
            (
                "der",
                bytes::decoded("variables.inner", &format!("variables.indices.filter(i, i < {bytes})")),
            ),
            // Where the CertificationRequestInfo begins: behind an outer header of three bytes or of four.
            ("start", "variables.der[1] == 129 ? 3 : 4".to_owned()),
            (
                "length",
                format!("variables.der[variables.start + {}] - {}", length.0, length.1),
            ),
        ]
    }

    fn condition(&self) -> String {
        let allowed = bytes::list((0..=u8::MAX).filter(|byte| in_the_middle(*byte)));
        let ends = bytes::list((0..=u8::MAX).filter(|byte| at_an_end(*byte)));
        let name = self.name;
        format!(
            "
  {} &&
  variables.length >= 1 && variables.length <= {FIREWALL_NAME_MAX} &&
  {}.all(b, variables.der[variables.start + b[0]] == b[1]) &&
  {}.all(b, variables.der[variables.start + b[0]] == b[1] + variables.length) &&
  variables.indices.filter(i, i < variables.length).all(i, variables.der[variables.start + {name} + i] in {allowed}) &&
  [0, variables.length - 1].all(i, variables.der[variables.start + {name} + i] in {ends}) &&
  {}.all(b, variables.der[variables.start + {name} + variables.length + b[0]] == b[1])",
            self.readable(),
            pairs(&self.fixed),
            pairs(&self.lengths),
            pairs(&self.key),
        )
    }

    /// The canary's name is always the same: all that comes before the key's point is.
    fn canary(&self) -> String {
        let key = PrivateKey::generate().expect("a key");
        let info = info_of(&csr::write_canary(&key).expect("a request"));
        let fixed = position(&info, &key) + self.key.len();
        assert!(HEADER_MAX + fixed <= self.reach(), "it is all decoded");
        let fixed: Vec<(usize, u8)> = info.iter().take(fixed).copied().enumerate().collect();
        format!(
            "
  {} &&
  {}.all(b, variables.der[variables.start + b[0]] == b[1])",
            self.readable(),
            pairs(&fixed),
        )
    }

    /// What was decoded is what the signer reads.
    fn readable(&self) -> String {
        use base64::Engine as _;
        let first_line = base64::engine::general_purpose::STANDARD.encode(FIRST_LINE);
        let characters = self.reach().div_ceil(3) * 4;
        let newlines = bytes::list((1..=characters / COLUMNS).map(|line| line * (COLUMNS + 1) - 1));
        format!(
            "oldObject.spec.request.startsWith('{first_line}') &&
  {newlines}.all(i, variables.pem[i] == 10) && variables.inner.all(v, v >= 0) &&
  variables.der[0] == 48 && variables.der[1] in [129, 130]"
        )
    }
}

fn pairs(pairs: &[(usize, u8)]) -> String {
    bytes::list(pairs.iter().map(|(offset, byte)| format!("[{offset}, {byte}]")))
}

/// Whether a firewall's name may have this byte between its ends, and at them: asked of the contract itself.
fn in_the_middle(byte: u8) -> bool {
    byte.is_ascii() && FirewallName::parse(&format!("x{}x", char::from(byte))).is_ok()
}

fn at_an_end(byte: u8) -> bool {
    byte.is_ascii() && FirewallName::parse(&char::from(byte).to_string()).is_ok()
}

/// The CertificationRequestInfo of a request for this name, and what follows it.
fn info(name: &str, key: &PrivateKey) -> Vec<u8> {
    let name = FirewallName::parse(name).expect("a name");
    info_of(&csr::write(&name, key).expect("a request"))
}

fn info_of(pem: &str) -> Vec<u8> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
    let header = if block.contents[1] == 0x81 { 3 } else { 4 };
    block.contents[header..].to_vec()
}

/// Where the key stands in a request.
fn position(info: &[u8], key: &PrivateKey) -> usize {
    let spki = key.public().spki_der();
    let found = info.windows(spki.len()).position(|window| window == spki);
    found.expect("the key is in the request")
}
