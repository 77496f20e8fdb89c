use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, PKCS_ECDSA_P384_SHA384, SerialNumber, date_time_ymd,
};

use super::*;
use crate::key::PrivateKey;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "client-ca");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    Authority {
        issuer: Issuer::new(params, key),
        pem,
    }
}

fn params(subject: &[(DnType, &str)]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    params.serial_number = Some(SerialNumber::from(0x0123_4567_89ab_u64));
    params.not_before = date_time_ymd(2026, 3, 1);
    params.not_after = date_time_ymd(2026, 3, 31);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    params
}

const OURS: [(DnType, &str); 2] = [
    (DnType::OrganizationName, ORGANIZATION),
    (DnType::CommonName, "fw.metal-stack.io:fw-1"),
];

fn issue(params: &CertificateParams, key: &KeyPair) -> String {
    params.signed_by(key, &authority().issuer).unwrap().pem()
}

#[test]
fn a_firewalls_certificate_is_read_in_full() {
    let key = PrivateKey::generate().unwrap();
    let machine = KeyPair::try_from(key.pkcs8_der()).unwrap();
    let authority = authority();
    let pem = params(&OURS).signed_by(&machine, &authority.issuer).unwrap().pem();
    let issued = read_certificate(&format!("{pem}{}", authority.pem)).unwrap();
    assert_eq!(issued.serial, "0123456789ab");
    assert_eq!(issued.not_before, "2026-03-01T00:00:00Z".parse().unwrap());
    assert_eq!(issued.not_after, "2026-03-31T00:00:00Z".parse().unwrap());
    assert_eq!(issued.firewall.as_str(), "fw-1");
    assert_eq!(issued.key, key.public());
    assert_eq!(issued.issuer, "CN=client-ca");
    assert_eq!(issued.authority_key_id.unwrap().len(), 40);
    assert!(issued.client_auth);
}

#[test]
fn a_certificate_that_cannot_log_in_is_seen_as_such() {
    let mut params = params(&OURS);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = false;
    let issued = read_certificate(&issue(&params, &KeyPair::generate().unwrap())).unwrap();
    assert!(!issued.client_auth);
    assert_eq!(issued.authority_key_id, None);
}

/// The signer writes the subject anew, and in the narrowest string type that holds it.
#[test]
fn a_subject_in_another_string_type_is_the_same_subject() {
    let printable = |text: &str| DnValue::PrintableString(text.try_into().unwrap());
    let mut params = params(&[]);
    params
        .distinguished_name
        .push(DnType::OrganizationName, printable(ORGANIZATION));
    params
        .distinguished_name
        .push(DnType::CommonName, printable("fw.metal-stack.io:fw-1"));
    let issued = read_certificate(&issue(&params, &KeyPair::generate().unwrap())).unwrap();
    assert_eq!(issued.firewall.as_str(), "fw-1");
}

#[test]
fn a_subject_that_is_not_exactly_ours_is_refused() {
    let name = "fw.metal-stack.io:fw-1";
    let subjects: [&[(DnType, &str)]; 7] = [
        &[],
        &[(DnType::CommonName, name)],
        &[(DnType::OrganizationName, ORGANIZATION)],
        &[(DnType::CommonName, name), (DnType::OrganizationName, ORGANIZATION)],
        &[(DnType::OrganizationName, "system:masters"), (DnType::CommonName, name)],
        &[(DnType::OrganizationName, ORGANIZATION), (DnType::CommonName, "admin")],
        &[
            (DnType::OrganizationName, ORGANIZATION),
            (DnType::CommonName, name),
            (DnType::CountryName, "DE"),
        ],
    ];
    for subject in subjects {
        let pem = issue(&params(subject), &KeyPair::generate().unwrap());
        assert!(
            matches!(read_certificate(&pem), Err(CertificateError::Subject { .. })),
            "{subject:?}"
        );
    }
    let bad_name = [
        (DnType::OrganizationName, ORGANIZATION),
        (DnType::CommonName, "fw.metal-stack.io:FW"),
    ];
    let pem = issue(&params(&bad_name), &KeyPair::generate().unwrap());
    assert!(matches!(read_certificate(&pem), Err(CertificateError::Name(_))));
}

#[test]
fn a_certificate_for_another_kind_of_key_is_refused() {
    let pem = issue(&params(&OURS), &KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap());
    assert!(matches!(
        read_certificate(&pem),
        Err(CertificateError::Key(KeyError::NotP256Spki))
    ));
}

#[test]
fn no_certificate_and_a_damaged_one_are_told_apart() {
    assert_eq!(read_certificate(""), Err(CertificateError::Absent));
    let key = PrivateKey::generate().unwrap().to_pem();
    assert_eq!(read_certificate(&key), Err(CertificateError::Absent));
    let pem = issue(&params(&OURS), &KeyPair::generate().unwrap());
    assert!(matches!(
        read_certificate(&pem[..pem.len() / 2]),
        Err(CertificateError::Damaged { .. })
    ));
    let other = pem.replacen("MII", "AII", 1);
    assert_ne!(other, pem);
    assert!(matches!(
        read_certificate(&other),
        Err(CertificateError::Damaged { .. })
    ));
    let large = " ".repeat(CHAIN_MAX + 1);
    assert!(matches!(
        read_certificate(&large),
        Err(CertificateError::TooLarge { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_certificate_never_panics(index in 0_usize..4096, byte: u8) {
        let pem = issue(&params(&OURS), &KeyPair::generate().unwrap());
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut der = der.to_vec();
        let index = index % der.len();
        der[index] = byte;
        use base64::Engine;
        let body = base64::prelude::BASE64_STANDARD.encode(&der);
        let _ = read_certificate(&format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n"));
    }
}

#[test]
fn of_a_certificate_that_was_backdated_the_life_counts_from_its_issue() {
    let at = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(counts_from(at(0), at(360)), at(300));
    assert_eq!(counts_from(at(0), at(2_592_000)), at(300));
    // One that nobody backdated, and that is over before that.
    assert_eq!(counts_from(at(0), at(300)), at(0));
    assert_eq!(counts_from(Timestamp::MAX, Timestamp::MAX), Timestamp::MAX);
}
