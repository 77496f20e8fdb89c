use serde_json::{Value, json};

use super::*;

fn key() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn claims(machine: &PrivateKey, authority: i64, generation: u64) -> Claims {
    Claims {
        seed: "seed-b".into(),
        namespace: "shoot--a".into(),
        firewall: FirewallName::parse("fw-1").unwrap(),
        key: machine.public().thumbprint(),
        order: Order { authority, generation },
        issued: at(1_000),
        expires: at(4_600),
        reason: "SeedMoved".into(),
    }
}

#[test]
fn what_was_sealed_is_opened_by_that_agent_alone() {
    let (handover, machine) = (key(), key());
    let (mine, other) = (SealKey::generate().unwrap(), SealKey::generate().unwrap());
    let claims = claims(&machine, 5, 1);
    let message = write(&handover, &claims, Some((mine.public(), "kubeconfig"))).unwrap();
    assert!(!message.contains("kubeconfig"));
    let read = read(&message, &[key().public(), handover.public()]).unwrap();
    assert_eq!(read.claims, claims);
    assert!(!read.is_notice());
    assert_eq!(read.open(&mine).unwrap().as_str(), "kubeconfig");
    assert!(matches!(read.open(&other), Err(HandoverError::NotForUs)));
}

#[test]
fn a_notice_has_nothing_to_open() {
    let (handover, machine) = (key(), key());
    let message = write(&handover, &claims(&machine, 5, 1), None).unwrap();
    let read = read(&message, &[handover.public()]).unwrap();
    assert!(read.is_notice());
    let seal = SealKey::generate().unwrap();
    assert!(matches!(read.open(&seal), Err(HandoverError::Notice)));
}

#[test]
fn only_a_signature_of_a_key_that_is_believed_counts() {
    let (handover, machine, thief) = (key(), key(), key());
    let message = write(&thief, &claims(&machine, 5, 1), None).unwrap();
    for keys in [vec![], vec![handover.public()], vec![machine.public()]] {
        assert!(matches!(read(&message, &keys), Err(HandoverError::NotAuthentic(..))));
    }
}

/// Each half is authentic, and they were never said together.
#[test]
fn claims_and_a_sealed_part_of_different_handovers_do_not_go_together() {
    let (handover, machine) = (key(), key());
    let seal = SealKey::generate().unwrap();
    let payload = |generation| -> Payload {
        let message = write(
            &handover,
            &claims(&machine, 5, generation),
            Some((seal.public(), "kubeconfig")),
        );
        jws::open(TYPE, &handover.public(), &message.unwrap()).unwrap()
    };
    let (one, two) = (payload(1), payload(2));
    let mixed = Payload {
        claims: two.claims,
        sealed: one.sealed,
    };
    // Signed again, as only a leaked handover key could: even then the sealed part is bound to its claims.
    let message = jws::sign(TYPE, &handover, &mixed).unwrap();
    let read = read(&message, &[handover.public()]).unwrap();
    assert!(matches!(read.open(&seal), Err(HandoverError::NotForUs)));
}

#[test]
fn a_sealed_part_that_a_stranger_added_is_not_authentic() {
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let (handover, machine) = (key(), key());
    let seal = SealKey::generate().unwrap();
    let notice = write(&handover, &claims(&machine, 5, 1), None).unwrap();
    let parts: Vec<&str> = notice.split('.').collect();
    let mut payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    let theirs = write(&key(), &claims(&machine, 5, 1), Some((seal.public(), "kubeconfig"))).unwrap();
    let theirs: Value = jws::unverified(&theirs).unwrap();
    payload["sealed"] = theirs["sealed"].clone();
    let forged = format!(
        "{}.{}.{}",
        parts[0],
        URL_SAFE_NO_PAD.encode(payload.to_string()),
        parts[2]
    );
    assert!(matches!(
        read(&forged, &[handover.public()]),
        Err(HandoverError::NotAuthentic(..))
    ));
}

#[test]
fn it_counts_for_this_machine_and_for_now_only() {
    let (handover, machine) = (key(), key());
    let firewall = FirewallName::parse("fw-1").unwrap();
    let read = read(
        &write(&handover, &claims(&machine, 5, 1), None).unwrap(),
        &[handover.public()],
    )
    .unwrap();
    let public = machine.public();
    read.check(&firewall, &public, at(1_000)).unwrap();
    read.check(&firewall, &public, at(700)).unwrap();
    assert!(matches!(
        read.check(&firewall, &public, at(699)),
        Err(HandoverError::NotYet(_))
    ));
    read.check(&firewall, &public, at(4_599)).unwrap();
    assert!(matches!(
        read.check(&firewall, &public, at(4_600)),
        Err(HandoverError::Expired(_))
    ));
    let other = FirewallName::parse("fw-2").unwrap();
    assert!(matches!(
        read.check(&other, &public, at(1_000)),
        Err(HandoverError::OtherFirewall(_))
    ));
    assert!(matches!(
        read.check(&firewall, &key().public(), at(1_000)),
        Err(HandoverError::OtherKey(_))
    ));
}

#[test]
fn older_is_refused_for_ever_and_equal_only_if_it_is_the_same() {
    let (handover, machine) = (key(), key());
    let message = |authority, generation| {
        let seal = SealKey::generate().unwrap();
        let message = write(
            &handover,
            &claims(&machine, authority, generation),
            Some((seal.public(), "k")),
        );
        read(&message.unwrap(), &[handover.public()]).unwrap()
    };
    let taken = message(5, 3);
    let fence = Fence::of(&taken);
    fence.admits(&taken).unwrap();
    for (authority, generation) in [(5, 3), (5, 2), (4, 99)] {
        let refused = fence.admits(&message(authority, generation));
        assert!(
            matches!(refused, Err(HandoverError::Older { .. })),
            "{authority}/{generation}"
        );
    }
    for (authority, generation) in [(5, 4), (6, 0)] {
        fence.admits(&message(authority, generation)).unwrap();
    }
    Fence::default().admits(&message(0, 1)).unwrap();
}

#[test]
fn a_message_of_another_type_under_the_same_key_is_no_handover() {
    let handover = key();
    let message = jws::sign("firewall-seed-access-report+jwt", &handover, &json!({"claims": {}})).unwrap();
    assert!(matches!(
        read(&message, &[handover.public()]),
        Err(HandoverError::NotAuthentic(..))
    ));
}

#[test]
fn what_is_too_long_is_not_even_verified() {
    let long = "a".repeat(HANDOVER_MAX + 1);
    assert!(matches!(read(&long, &[]), Err(HandoverError::TooLong(_))));
}

#[test]
fn a_fence_survives_its_file() {
    let fence = Fence {
        order: Order {
            authority: 7,
            generation: 3,
        },
        digest: Some("ab".into()),
    };
    let text = serde_json::to_string(&fence).unwrap();
    assert_eq!(serde_json::from_str::<Fence>(&text).unwrap(), fence);
}

/// What a later version adds must not cut off a firewall whose agent is older; the header decides how a message is
/// verified, and stays as it is.
#[test]
fn c4_claims_and_parts_of_a_later_version_are_passed_over() {
    let (handover, machine, seal) = (key(), key(), SealKey::generate().unwrap());
    let mut claims = serde_json::to_value(claims(&machine, 5, 1)).unwrap();
    claims["later"] = json!({"any": "thing"});
    let raw = serde_json::value::to_raw_value(&claims).unwrap();
    let to = HpkePublicKey(seal.public().point().to_vec());
    let (encapsulated, ciphertext) = SUITE.seal(INFO, raw.get().as_bytes(), b"kubeconfig", &to).unwrap();
    let payload = json!({
        "claims": raw,
        "sealed": {
            "encapsulated": URL_SAFE_NO_PAD.encode(encapsulated.0),
            "ciphertext": URL_SAFE_NO_PAD.encode(ciphertext),
            "later": 1,
        },
        "later": [],
    });
    let message = jws::sign(TYPE, &handover, &payload).unwrap();
    let read = read(&message, &[handover.public()]).unwrap();
    assert_eq!(read.open(&seal).unwrap().as_str(), "kubeconfig");
    assert_eq!(read.claims.order.generation, 1);
}
