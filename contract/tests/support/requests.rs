//! The list of requests: each file of the corpus, the answer that it has to get, and what it contains.

use rcgen::{KeyPair, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256};

use super::*;

/// Name of the file (without `.pem`), expected variant of the refusal (`Ok`: accepted), and its text.
pub(crate) fn all() -> Vec<(&'static str, &'static str, String)> {
    let mut all = vec![("good-plain", "Ok", pem(&Request::good().der()))];
    let longest = format!("fw.metal-stack.io:{}", "a".repeat(46));
    all.push((
        "good-longest-name",
        "Ok",
        pem(&Request::good().subject(&names(ORGANIZATION, &longest)).der()),
    ));
    all.extend(
        subjects()
            .into_iter()
            .map(|(name, answer, request)| (name, answer, pem(&request.der()))),
    );
    all.extend(
        attributes()
            .into_iter()
            .map(|(name, answer, request)| (name, answer, pem(&request.der()))),
    );
    all.extend(
        keys()
            .into_iter()
            .map(|(name, answer, request)| (name, answer, pem(&request.der()))),
    );
    all.extend(
        encodings()
            .into_iter()
            .map(|(name, answer, der)| (name, answer, pem(&der))),
    );
    all.extend(texts());
    all
}

fn names(organization: &str, name: &str) -> [Vec<u8>; 2] {
    [rdn(O, UTF8, organization.as_bytes()), rdn(CN, UTF8, name.as_bytes())]
}

fn subjects() -> Vec<(&'static str, &'static str, Request)> {
    let with = |rdns: &[Vec<u8>]| Request::good().subject(rdns);
    let organization = || rdn(O, UTF8, ORGANIZATION.as_bytes());
    let name = || rdn(CN, UTF8, NAME.as_bytes());
    let together = [
        attribute(O, UTF8, ORGANIZATION.as_bytes()),
        attribute(CN, UTF8, NAME.as_bytes()),
    ]
    .concat();
    let wide: Vec<u8> = NAME.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let other = "fw.metal-stack.io:other";
    let behind = seq(&[&tlv(6, CN), &tlv(UTF8, NAME.as_bytes()), &tlv(UTF8, b"hidden")]);
    let too_long = format!("fw.metal-stack.io:{}", "a".repeat(47));
    vec![
        (
            "common-name-bmpstring",
            "SubjectEncoding",
            with(&[organization(), rdn(CN, BMP, &wide)]),
        ),
        (
            "common-name-printablestring",
            "SubjectEncoding",
            with(&[organization(), rdn(CN, PRINTABLE, NAME.as_bytes())]),
        ),
        (
            "common-name-teletexstring",
            "SubjectEncoding",
            with(&[organization(), rdn(CN, TELETEX, NAME.as_bytes())]),
        ),
        (
            "common-name-twice",
            "Subject",
            with(&[organization(), name(), rdn(CN, UTF8, other.as_bytes())]),
        ),
        ("common-name-first", "Subject", with(&[name(), organization()])),
        ("common-name-admin", "Subject", with(&names(ORGANIZATION, "admin"))),
        (
            "common-name-wrong-prefix",
            "Subject",
            with(&names(ORGANIZATION, "system:node:firewall")),
        ),
        ("common-name-only", "Subject", with(&[name()])),
        ("name-too-long", "Name", with(&names(ORGANIZATION, &too_long))),
        (
            "name-upper-case",
            "Name",
            with(&names(ORGANIZATION, "fw.metal-stack.io:Firewall")),
        ),
        ("name-empty", "Name", with(&names(ORGANIZATION, "fw.metal-stack.io:"))),
        (
            "name-with-nul",
            "Name",
            with(&names(ORGANIZATION, "fw.metal-stack.io:firewall\0other")),
        ),
        (
            "name-with-newline",
            "Name",
            with(&names(ORGANIZATION, "fw.metal-stack.io:firewall\n")),
        ),
        (
            "organization-printablestring",
            "SubjectEncoding",
            with(&[rdn(O, PRINTABLE, ORGANIZATION.as_bytes()), name()]),
        ),
        (
            "organization-twice",
            "Subject",
            with(&[organization(), rdn(O, UTF8, b"system:masters"), name()]),
        ),
        (
            "organization-after",
            "Subject",
            with(&[organization(), name(), rdn(O, UTF8, b"system:masters")]),
        ),
        ("organization-masters", "Subject", with(&names("system:masters", NAME))),
        (
            "organization-and-name-in-one-rdn",
            "Subject",
            with(&[tlv(0x31, &together)]),
        ),
        (
            // Go reads past it, and signs.
            "subject-element-behind-a-value",
            "NotDer",
            with(&[organization(), tlv(0x31, &behind)]),
        ),
        ("subject-empty", "Subject", with(&[])),
        (
            "subject-with-empty-rdn",
            "NotCanonical",
            with(&[organization(), name(), tlv(0x31, &[])]),
        ),
        (
            "subject-with-serial-number",
            "Subject",
            with(&[organization(), name(), rdn(&[0x55, 0x04, 0x05], PRINTABLE, b"1")]),
        ),
    ]
}

fn attributes() -> Vec<(&'static str, &'static str, Request)> {
    let with = |attributes: &[Vec<u8>]| Request::good().attributes(attributes);
    let dns = || san(&tlv(0x82, b"kubernetes.default.svc"));
    let upn = [
        tlv(6, &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x82, 0x37, 0x14, 0x02, 0x03]),
        tlv(0xa0, &tlv(UTF8, b"admin")),
    ];
    let authority = (&[0x55, 0x1d, 0x13][..], seq(&[&tlv(1, &[0xff])]));
    let password = seq(&[&tlv(6, CHALLENGE_PASSWORD), &tlv(0x31, &tlv(UTF8, b"secret"))]);
    let unknown = seq(&[&tlv(6, &[0x2a, 0x03, 0x04]), &tlv(0x31, &tlv(UTF8, b"x"))]);
    vec![
        ("attribute-challenge-password", "Attributes", with(&[password])),
        ("attribute-unknown", "Attributes", with(&[unknown])),
        (
            "extension-basic-constraints-ca",
            "Extensions",
            with(&[extension_request(&[authority])]),
        ),
        (
            "extension-key-usage",
            "Extensions",
            with(&[extension_request(&[key_usage()])]),
        ),
        ("extension-request-empty", "Extensions", with(&[extension_request(&[])])),
        (
            "extension-request-twice",
            "Extensions",
            with(&[extension_request(&[key_usage()]), extension_request(&[dns()])]),
        ),
        ("extension-san-dns", "Extensions", with(&[extension_request(&[dns()])])),
        (
            "extension-san-other-name",
            "Extensions",
            with(&[extension_request(&[san(&tlv(0xa0, &upn.concat()))])]),
        ),
        (
            "extension-san-uri",
            "Extensions",
            with(&[extension_request(&[san(&tlv(0x86, b"spiffe://seed/admin"))])]),
        ),
    ]
}

fn keys() -> Vec<(&'static str, &'static str, Request)> {
    let key = |algorithm| KeyPair::generate_for(algorithm).unwrap();
    let ecdsa = |hash: u8| seq(&[&tlv(6, &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, hash])]);
    let rsa = seq(&[
        &tlv(6, &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b]),
        &tlv(5, &[]),
    ]);
    let hybrid = |point: &[u8]| {
        let mut point = point.to_vec();
        point[0] = 6 + (point[64] & 1);
        p256_spki(&point)
    };
    let off_curve = |point: &[u8]| {
        let mut point = point.to_vec();
        point[64] ^= 1;
        p256_spki(&point)
    };
    let mut null_parameters = Request::good();
    null_parameters.algorithm = seq(&[&tlv(6, ECDSA_SHA256), &tlv(5, &[])]);
    vec![
        (
            "key-ed25519",
            "KeyType",
            Request::with_key(key(&PKCS_ED25519), seq(&[&tlv(6, &[0x2b, 0x65, 0x70])])),
        ),
        (
            "key-p256-compressed",
            "KeyType",
            p256_as(|pair, _| p256_spki(&compressed(pair))),
        ),
        (
            "key-p256-explicit-curve",
            "KeyType",
            p256_as(|_, point| explicit_curve_spki(point)),
        ),
        ("key-p256-hybrid", "KeyType", p256_as(|_, point| hybrid(point))),
        ("key-p256-off-curve", "Key", p256_as(|_, point| off_curve(point))),
        (
            "key-p384",
            "KeyType",
            Request::with_key(key(&PKCS_ECDSA_P384_SHA384), ecdsa(3)),
        ),
        (
            "key-p521",
            "KeyType",
            Request::with_key(key(&PKCS_ECDSA_P521_SHA512), ecdsa(4)),
        ),
        ("key-rsa-2048", "KeyType", Request::with_key(key(&PKCS_RSA_SHA256), rsa)),
        (
            "signature-algorithm-null-parameters",
            "SignatureAlgorithm",
            null_parameters,
        ),
    ]
}

fn encodings() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let good = Request::good();
    let info = good.info();
    let der = good.der();

    let mut version = Request::good();
    version.version = 1;
    let mut unused_bits = Request::good();
    unused_bits.unused_bits = 1;
    let mut no_attributes = Request::good();
    no_attributes.attributes.clear();
    let mut attributes_as_set = Request::good();
    attributes_as_set.attributes = tlv(0x31, &[]);
    let mut foreign = Request::good();
    let other = KeyPair::generate().unwrap();
    foreign.signer = Box::new(move |message| other.sign(message).unwrap());
    let mut padded = Request::good();
    let signer = padded.signer;
    padded.signer = Box::new(move |message| pad_first_integer(&signer(message)));
    let mut longer = Request::good();
    let signer = longer.signer;
    longer.signer = Box::new(move |message| [signer(message), vec![0]].concat());

    let content = |der: &[u8]| der[4..].to_vec();
    assert_eq!(der[1], 0x82, "a request has more than 255 bytes");
    let indefinite = [vec![0x30, 0x80], content(&der), vec![0, 0]].concat();
    let padded_length = [vec![0x30, 0x83, 0], der[2..].to_vec()].concat();
    let mut inner = Request::good();
    let subject = inner.subject.clone();
    assert!(subject[1] < 0x80);
    inner.subject = [vec![0x30, 0x81], subject[1..].to_vec()].concat();
    let after_attributes = {
        let mut more = info[if info[1] == 0x81 { 3 } else { 4 }..].to_vec();
        more.extend(tlv(4, b"hidden"));
        good.der_over(&tlv(0x30, &more))
    };
    let after_signature = tlv(0x30, &[content(&der), tlv(4, b"hidden")].concat());
    vec![
        ("attributes-as-set", "NotDer", attributes_as_set.der()),
        ("attributes-missing", "NotDer", no_attributes.der()),
        ("der-hidden-after-attributes", "NotDer", after_attributes),
        ("der-hidden-after-signature", "TrailingDer", after_signature),
        ("der-indefinite-length", "NotDer", indefinite),
        ("der-padded-length", "NotDer", padded_length),
        ("der-padded-length-in-subject", "NotDer", inner.der()),
        (
            "der-trailing-bytes",
            "TrailingDer",
            [der.clone(), b"hello".to_vec()].concat(),
        ),
        ("der-truncated", "NotDer", der[..der.len() - 1].to_vec()),
        ("signature-by-another-key", "BadSelfSignature", foreign.der()),
        ("signature-padded-integer", "Signature", padded.der()),
        ("signature-trailing-byte", "Signature", longer.der()),
        ("signature-unused-bits", "Signature", unused_bits.der()),
        ("version-1", "Version", version.der()),
    ]
}

fn pad_first_integer(signature: &[u8]) -> Vec<u8> {
    let first = usize::from(signature[3]);
    let (r, s) = (&signature[4..4 + first], &signature[4 + first..]);
    seq(&[&tlv(2, &[&[0], r].concat()), s])
}

fn texts() -> Vec<(&'static str, &'static str, String)> {
    let der = Request::good().der();
    let text = pem(&der);
    let second = pem(&Request::good().der());
    let headers = text.replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\nuser: admin\n\n", 1);
    vec![
        ("pem-76-columns", "PemNotCanonical", pem_with(&der, 76, "\n")),
        ("pem-crlf", "PemNotCanonical", pem_with(&der, 64, "\r\n")),
        ("pem-empty", "NotPem", String::new()),
        ("pem-headers", "PemHeaders", headers),
        (
            "pem-leading-text",
            "LeadingText",
            format!("Certificate Request: harmless\n{text}"),
        ),
        (
            "pem-new-certificate-request",
            "PemLabel",
            text.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"),
        ),
        ("pem-no-last-newline", "PemNotCanonical", text.trim_end().to_owned()),
        ("pem-trailing-text", "TrailingPem", format!("{text}hello\n")),
        ("pem-two-blocks", "SeveralPemBlocks", format!("{text}{second}")),
        ("pem-two-last-newlines", "PemNotCanonical", format!("{text}\n")),
    ]
}
