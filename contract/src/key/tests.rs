use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der};
use rcgen::{KeyPair as RcgenKey, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData};

use super::*;

// RFC 7515, appendix A.3: a public example key.
const X: &str = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
const Y: &str = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";

fn example_point() -> Vec<u8> {
    let mut point = vec![4];
    point.extend(BASE64_URL_SAFE_NO_PAD.decode(X).unwrap());
    point.extend(BASE64_URL_SAFE_NO_PAD.decode(Y).unwrap());
    point
}

#[test]
fn a_key_survives_its_pem() {
    let key = PrivateKey::generate().unwrap();
    let pem = key.to_pem();
    assert!(pem.lines().all(|line| line.len() <= 64));
    assert!(pem.ends_with("-----END PRIVATE KEY-----\n"));
    let again = PrivateKey::from_pem(&pem).unwrap();
    assert_eq!(again.public(), key.public());
    assert_eq!(*again.to_pem(), *pem);
}

#[test]
fn a_sec1_key_is_read_too() {
    let key = PrivateKey::generate().unwrap();
    let sec1: EcPrivateKeyRfc5915Der<'_> = key.pair.private_key().as_der().unwrap();
    let body = BASE64_STANDARD.encode(sec1.as_ref());
    let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n");
    let again = PrivateKey::from_pem(&pem).unwrap();
    assert_eq!(again.public(), key.public());
    assert!(again.to_pem().starts_with("-----BEGIN PRIVATE KEY-----"));
}

#[test]
fn other_kinds_of_keys_are_refused_by_name() {
    let refusal = |algorithm| PrivateKey::from_pem(&RcgenKey::generate_for(algorithm).unwrap().serialize_pem());
    assert_eq!(
        refusal(&PKCS_ECDSA_P384_SHA384).unwrap_err(),
        KeyError::NotP256 { found: "ECDSA P-384" }
    );
    assert!(matches!(refusal(&PKCS_ED25519), Err(KeyError::NotP256 { .. })));
    assert!(matches!(refusal(&PKCS_RSA_SHA256), Err(KeyError::NotP256 { .. })));
}

#[test]
fn no_key_two_keys_and_damaged_text_are_told_apart() {
    let pem = PrivateKey::generate().unwrap().to_pem();
    assert_eq!(PrivateKey::from_pem("").unwrap_err(), KeyError::Absent);
    assert_eq!(
        PrivateKey::from_pem(&format!("{}{}", *pem, *pem)).unwrap_err(),
        KeyError::Several { found: 2 }
    );
    assert_eq!(
        PrivateKey::from_pem(&pem[..pem.len() / 2]).unwrap_err(),
        KeyError::DamagedPem
    );
}

#[test]
fn the_debug_of_a_private_key_is_its_thumbprint() {
    let key = PrivateKey::generate().unwrap();
    assert_eq!(format!("{key:?}"), format!("PrivateKey({})", key.public().thumbprint()));
}

#[test]
fn pkcs8_is_what_other_libraries_read() {
    let key = PrivateKey::generate().unwrap();
    let der = key.pkcs8_der();
    let other = RcgenKey::try_from(der).unwrap();
    assert_eq!(other.public_key_raw(), key.public().point());
}

#[test]
fn a_signature_verifies_for_its_message_only() {
    let key = PrivateKey::generate().unwrap();
    let signature = key.sign(b"message").unwrap();
    assert!(key.public().verifies(b"message", &signature));
    assert!(!key.public().verifies(b"massage", &signature));
    assert!(
        !PrivateKey::generate()
            .unwrap()
            .public()
            .verifies(b"message", &signature)
    );
}

#[test]
fn a_point_off_the_curve_is_refused() {
    let mut point = example_point();
    assert!(PublicKey::from_point(&point).is_ok());
    point[64] ^= 1;
    assert_eq!(PublicKey::from_point(&point), Err(KeyError::OffCurve));
    let mut zero = [0; POINT_LENGTH];
    zero[0] = 4;
    assert_eq!(PublicKey::from_point(&zero), Err(KeyError::OffCurve));
}

#[test]
fn other_encodings_of_the_same_point_are_refused() {
    let point = example_point();
    let mut compressed = point[..33].to_vec();
    compressed[0] = 2 + (point[64] & 1);
    assert_eq!(
        PublicKey::from_point(&compressed),
        Err(KeyError::NotAPoint { found: 33 })
    );
    // The hybrid form: 06 or 07, then both coordinates.
    let mut hybrid = point.clone();
    hybrid[0] = 6 + (point[64] & 1);
    assert_eq!(PublicKey::from_point(&hybrid), Err(KeyError::NotAPoint { found: 65 }));
    assert!(matches!(
        PublicKey::from_point(&[]),
        Err(KeyError::NotAPoint { found: 0 })
    ));
}

#[test]
fn the_spki_has_exactly_one_encoding() {
    let key = PublicKey::from_point(&example_point()).unwrap();
    let spki = key.spki_der();
    assert_eq!(spki.len(), 91);
    assert_eq!(PublicKey::from_spki_der(&spki).unwrap(), key);
    assert_eq!(
        RcgenKey::generate().unwrap().subject_public_key_info()[..26],
        spki[..26]
    );
    let mut longer = spki.clone();
    longer.push(0);
    assert_eq!(PublicKey::from_spki_der(&longer), Err(KeyError::NotP256Spki));
    assert_eq!(PublicKey::from_spki_der(&spki[..90]), Err(KeyError::NotP256Spki));
    for index in 0..26 {
        let mut changed = spki.clone();
        changed[index] ^= 1;
        assert_eq!(
            PublicKey::from_spki_der(&changed),
            Err(KeyError::NotP256Spki),
            "byte {index}"
        );
    }
}

#[test]
fn the_thumbprint_is_that_of_rfc_7638() {
    // Computed apart from this code: SHA-256 over the JWK's required members.
    let key = PublicKey::from_point(&example_point()).unwrap();
    assert_eq!(key.thumbprint().as_str(), "oKIywvGUpTVTyxMQ3bwIIeQUudfr_CkLMjCE19ECD-U");
}

#[test]
fn a_thumbprint_has_exactly_one_spelling() {
    let text = PublicKey::from_point(&example_point())
        .unwrap()
        .thumbprint()
        .to_string();
    assert_eq!(text.parse::<Thumbprint>().unwrap().as_str(), text);
    let loose_bits = format!("{}V", &text[..42]);
    for wrong in [
        "",
        &text[..42],
        &format!("{text}A"),
        &format!("{text}="),
        &loose_bits,
        &text.replace('_', "/"),
    ] {
        assert_eq!(Thumbprint::parse(wrong), Err(KeyError::NotAThumbprint), "{wrong:?}");
    }
}

#[test]
fn keys_and_thumbprints_survive_json() {
    let key = PublicKey::from_point(&example_point()).unwrap();
    let json = serde_json::to_string(&(&key, key.thumbprint())).unwrap();
    let (again, thumbprint): (PublicKey, Thumbprint) = serde_json::from_str(&json).unwrap();
    assert_eq!((again, thumbprint), (key.clone(), key.thumbprint()));
    assert!(serde_json::from_str::<PublicKey>(r#""BAAA""#).is_err());
    assert!(serde_json::from_str::<PublicKey>(r#""not base64!""#).is_err());
}
