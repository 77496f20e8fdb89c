use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use proptest::prelude::*;

use aws_lc_rs::digest::{SHA256, digest};

use super::*;

const CASES: u32 = 1000;

fn name() -> FirewallName {
    FirewallName::parse("shoot--project--cluster-firewall-0a1b2").unwrap()
}

fn good() -> (Csr, String) {
    let key = PrivateKey::generate().unwrap();
    let text = write(&name(), &key).unwrap();
    (
        Csr {
            firewall: name(),
            key: key.public(),
        },
        text,
    )
}

fn der_of(text: &str) -> Vec<u8> {
    pem::decode(text.as_bytes()).unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let (csr, text) = good();
    assert_eq!(read(text.as_bytes()).unwrap(), csr);
    assert!(text.ends_with("\n-----END CERTIFICATE REQUEST-----\n"));
    assert!(text.lines().all(|line| line.len() <= 64));
}

#[test]
fn the_longest_name_fits() {
    let key = PrivateKey::generate().unwrap();
    let name = FirewallName::parse(&"a".repeat(46)).unwrap();
    let text = write(&name, &key).unwrap();
    assert_eq!(read(text.as_bytes()).unwrap().firewall, name);
    assert!(text.len() < REQUEST_MAX / 4);
}

/// Byte by byte, so that a change of the writer and the reader together is seen too.
#[test]
fn the_request_info_is_the_agreed_one() {
    let (csr, text) = good();
    let name = "fw.metal-stack.io:shoot--project--cluster-firewall-0a1b2";
    assert_eq!((ORGANIZATION.len(), name.len()), (27, 56));
    let subject = [
        &[0x30, 0x67][..],
        &[0x31, 0x24, 0x30, 0x22, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x0c, 27],
        ORGANIZATION.as_bytes(),
        &[0x31, 0x3f + 2, 0x30, 0x3f, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 56],
        name.as_bytes(),
    ]
    .concat();
    let spki = csr.key.spki_der();
    let length = 3 + subject.len() + spki.len() + 2;
    let expected = [
        &[0x30, 0x81, length as u8, 0x02, 0x01, 0x00][..],
        &subject,
        &spki,
        &[0xa0, 0x00],
    ]
    .concat();
    let mut expected = expected;
    expected[7] = (subject.len() - 2) as u8;
    assert_eq!(info(&super::subject(&csr.firewall), &csr.key), expected);
    assert!(der_of(&text).windows(expected.len()).any(|window| window == expected));
}

#[test]
fn other_libraries_read_the_request_too() {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer;
    let (csr, text) = good();
    let der = der_of(&text);
    let (rest, other) = X509CertificationRequest::from_der(&der).unwrap();
    assert!(rest.is_empty());
    other.verify_signature().unwrap();
    let info = other.certification_request_info;
    assert!(info.attributes().is_empty());
    assert_eq!(
        info.subject.to_string(),
        format!("O={ORGANIZATION}, CN={}", csr.firewall.user())
    );
    assert_eq!(info.subject_pki.raw, csr.key.spki_der());
}

#[test]
fn the_object_name_follows_from_the_bytes() {
    let (_, text) = good();
    let name = object_name(&text).unwrap();
    let hex: String = digest(&SHA256, &der_of(&text))
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(name, format!("firewall-{}", &hex[..40]));
    assert_ne!(name, object_name(&good().1).unwrap());
    assert_eq!(object_name("hello"), Err(CsrError::NotPem));
}

#[test]
fn a_request_that_is_too_large_is_not_looked_at() {
    let large = vec![b'-'; REQUEST_MAX + 1];
    assert_eq!(read(&large), Err(CsrError::TooLarge { found: REQUEST_MAX + 1 }));
}

#[test]
fn a_refusal_shows_little_of_what_it_was_given_and_nothing_raw() {
    let long = "\u{1b}[31m\n".repeat(100);
    let shown = shown(&long);
    assert!(shown.chars().count() <= 121);
    assert!(!shown.contains(char::is_control));
    let label = format!("-----BEGIN {long}-----");
    let message = read(label.as_bytes()).unwrap_err().to_string();
    assert!(message.len() < 400 && !message.contains(char::is_control), "{message}");
}

#[test]
fn a_subject_of_ours_is_noticed_in_foreign_text() {
    let (_, text) = good();
    assert!(claims_our_names(text.as_bytes()));
    assert!(claims_our_names(&der_of(&text)));
    assert!(claims_our_names(
        format!("-----BEGIN NOTHING-----\n{text}{text}").as_bytes()
    ));
    assert!(claims_our_names(
        format!("{}\n{text}", "harmless ".repeat(20_000)).as_bytes()
    ));
    let padded = element(SEQUENCE, &[&info(&subject(&name()), &good().0.key), &vec![0; 0x2_0000]]);
    assert!(claims_our_names(pem::encode(&padded).as_bytes()));
    let foreign = rcgen::CertificateParams::default();
    let foreign = foreign.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
    assert!(!claims_our_names(foreign.pem().unwrap().as_bytes()));
    assert!(!claims_our_names(b"fw.metal-stack.io:firewalls"));
    assert!(!claims_our_names(b""));
}

/// A change somewhere in some bytes.
#[derive(Clone, Debug)]
enum Edit {
    Delete { at: usize, count: usize },
    Flip { at: usize, bit: u8 },
    Insert { at: usize, bytes: Vec<u8> },
    Repeat { at: usize, count: usize },
    Set { at: usize, byte: u8 },
    Truncate { at: usize },
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = 0_usize..2048;
    let interesting = prop_oneof![
        Just(0),
        Just(0x80),
        Just(0x81),
        Just(0xff),
        Just(0x30),
        Just(0xa0),
        any::<u8>()
    ];
    prop_oneof![
        (at.clone(), 1_usize..40).prop_map(|(at, count)| Edit::Delete { at, count }),
        (at.clone(), 0_u8..8).prop_map(|(at, bit)| Edit::Flip { at, bit }),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..24)).prop_map(|(at, bytes)| Edit::Insert { at, bytes }),
        (at.clone(), 1_usize..40).prop_map(|(at, count)| Edit::Repeat { at, count }),
        (at.clone(), interesting).prop_map(|(at, byte)| Edit::Set { at, byte }),
        at.prop_map(|at| Edit::Truncate { at }),
    ]
}

fn apply(bytes: &mut Vec<u8>, edit: &Edit) {
    if bytes.is_empty() {
        return;
    }
    let length = bytes.len();
    match edit {
        Edit::Delete { at, count } => drop(bytes.drain(at % length..(at % length + count).min(length))),
        Edit::Flip { at, bit } => bytes[at % length] ^= 1 << bit,
        Edit::Insert { at, bytes: new } => drop(bytes.splice(at % length..at % length, new.clone())),
        Edit::Repeat { at, count } => {
            let piece = bytes[at % length..(at % length + count).min(length)].to_vec();
            bytes.splice(at % length..at % length, piece);
        }
        Edit::Set { at, byte } => bytes[at % length] = *byte,
        Edit::Truncate { at } => bytes.truncate(at % length),
    }
}

/// Whatever is accepted says what the original says, and says nothing else.
fn hides_nothing(request: &[u8], original: &Csr) {
    let Ok(csr) = read(request) else { return };
    assert_eq!(&csr, original);
    let der = pem::decode(request).unwrap();
    let signature = read::parts(&der).unwrap().signature.to_vec();
    let again = pem::encode(&assemble(&info(&subject(&csr.firewall), &csr.key), &signature));
    assert_eq!(again.as_bytes(), request);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(CASES), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_of_the_bytes_hides_anything(edits in prop::collection::vec(edit(), 1..4)) {
        let (csr, text) = good();
        let original = der_of(&text);
        let mut der = original.clone();
        edits.iter().for_each(|edit| apply(&mut der, edit));
        let changed = pem::encode(&der);
        hides_nothing(changed.as_bytes(), &csr);
        prop_assert_eq!(read(changed.as_bytes()).is_ok(), der == original);
        claims_our_names(&der);
    }

    #[test]
    fn no_change_of_the_text_hides_anything(edits in prop::collection::vec(edit(), 1..4)) {
        let (csr, text) = good();
        let mut changed = text.clone().into_bytes();
        edits.iter().for_each(|edit| apply(&mut changed, edit));
        hides_nothing(&changed, &csr);
        prop_assert_eq!(read(&changed).is_ok(), changed == text.as_bytes());
        claims_our_names(&changed);
    }

    /// Signed again after the change: the signature alone is no protection against its own maker.
    #[test]
    fn the_owner_of_the_key_can_hide_nothing_either(edits in prop::collection::vec(edit(), 1..4)) {
        let key = PrivateKey::generate().unwrap();
        let mut changed = info(&subject(&name()), &key.public());
        edits.iter().for_each(|edit| apply(&mut changed, edit));
        let request = pem::encode(&assemble(&changed, &key.sign(&changed).unwrap()));
        if let Ok(csr) = read(request.as_bytes()) {
            // Another name of the right shape is a request like any other; the bytes still say it all.
            prop_assert_eq!(info(&subject(&csr.firewall), &csr.key), changed);
        }
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(read(&bytes).is_err());
        prop_assert!(read(pem::encode(&bytes).as_bytes()).is_err());
        claims_our_names(&bytes);
        claims_our_names(pem::encode(&bytes).as_bytes());
        let begun = format!("-----BEGIN CERTIFICATE REQUEST-----\n{}", BASE64_STANDARD.encode(&bytes));
        prop_assert!(read(begun.as_bytes()).is_err());
    }

    #[test]
    fn random_text_is_refused_without_a_panic(text in "(-----BEGIN |-----END |-----|CERTIFICATE REQUEST|[A-Za-z0-9+/=]{0,9}|:|\r?\n| |\\PC){0,40}") {
        prop_assert!(read(text.as_bytes()).is_err());
        claims_our_names(text.as_bytes());
    }
}

#[test]
fn the_canary_is_the_user_alone_and_no_firewall_s_request() {
    let key = PrivateKey::generate().unwrap();
    let text = write_canary(&key).unwrap();
    let der = der_of(&text);
    let (_, read_back) =
        <x509_parser::certification_request::X509CertificationRequest<'_> as x509_parser::prelude::FromDer<_>>::from_der(
            &der,
        )
        .unwrap();
    let info = &read_back.certification_request_info;
    assert_eq!(info.subject.to_string(), "CN=fw.metal-stack.io:_canary");
    assert_eq!(info.subject_pki.raw, key.public().spki_der());
    assert!(info.attributes().is_empty());
    assert!(read_back.verify_signature().is_ok());
    assert!(is_canary(text.as_bytes()));
    assert!(matches!(read(text.as_bytes()), Err(CsrError::Subject { .. })));
    assert!(!is_canary(good().1.as_bytes()) && !is_canary(b"") && !is_canary(&der));
}
