//! A handover that is read was signed by the believed key, to the byte; what is sealed in it is opened by that one agent.

use std::sync::OnceLock;

use contract::handover::{Claims, Fence, HANDOVER_MAX, Handover, HandoverError, Order, SealKey, read, write};
use contract::names::FirewallName;
use jiff::SignedDuration;
use serde_json::Value;

use super::{FIREWALL, is_fit_for_a_log, jws, key, now, other_key, split};

pub const TYPE: &str = "firewall-seed-handover+jwt";

/// The agent's key to seal to, and another's. It is only ever in memory, so each run has its own.
pub fn seal() -> &'static [SealKey; 2] {
    static KEYS: OnceLock<[SealKey; 2]> = OnceLock::new();
    KEYS.get_or_init(|| [SealKey::generate().unwrap(), SealKey::generate().unwrap()])
}

/// Claims that are good for this firewall, its key and `now`.
pub fn claims() -> Claims {
    Claims {
        seed: "2b1f7a52-7b0e-4f0e-9a34-0d3f6a1c9e11".to_owned(),
        namespace: "shoot--project--cluster".to_owned(),
        firewall: FirewallName::parse(FIREWALL).unwrap(),
        key: key().public().thumbprint(),
        order: Order {
            authority: 5,
            generation: 1,
        },
        issued: now(),
        expires: now() + SignedDuration::from_hours(1),
        reason: "SeedMoved".to_owned(),
    }
}

/// The fuzzer's input: a message as `jws::message` makes it, or (fourth) what is sealed in a good one.
pub fn check_input(input: &[u8]) {
    let (mode, rest) = split(input);
    if mode % 4 < 3 {
        let _ = check(&jws::message(mode % 4, rest, TYPE, &key()));
        return;
    }
    let text = String::from_utf8_lossy(rest);
    match write(&key(), &claims(), Some((seal()[0].public(), &text))) {
        Ok(message) => {
            let handover = check(&message).unwrap();
            assert_eq!(handover.open(&seal()[0]).unwrap().as_str(), text);
            assert!(text.len() < 32 || !message.contains(&*text));
        }
        Err(error) => assert!(matches!(error, HandoverError::TooLong(_)) && text.len() > HANDOVER_MAX / 4),
    }
}

/// Gives what the reader made of it.
pub fn check(message: &str) -> Result<Handover, HandoverError> {
    let (ours, theirs) = (key().public(), other_key().public());
    if read(message, std::slice::from_ref(&theirs)).is_ok() {
        assert!(jws::verified(message, TYPE, &theirs).is_some());
    }
    assert!(read(message, &[]).is_err());
    let verdict = read(message, std::slice::from_ref(&ours));
    assert_eq!(verdict.is_ok(), read(message, &[ours.clone(), ours.clone()]).is_ok());
    let payload = jws::verified(message, TYPE, &ours);
    match &verdict {
        Err(error) => is_fit_for_a_log(error),
        Ok(handover) => {
            assert!(message.len() <= HANDOVER_MAX);
            // What the reader has no use for it does not look into, and this one does.
            if let Ok(payload) = serde_json::from_slice::<Value>(&payload.unwrap()) {
                assert_eq!(
                    handover.claims,
                    serde_json::from_value(payload["claims"].clone()).unwrap()
                );
                assert_eq!(handover.is_notice(), payload["sealed"].is_null());
            }
            meant(handover);
            opened(handover);
            Fence::of(handover).admits(handover).unwrap();
            let above = Fence {
                order: Order {
                    authority: i64::MAX,
                    generation: u64::MAX,
                },
                digest: None,
            };
            is_fit_for_a_log(&above.admits(handover).unwrap_err());
        }
    }
    verdict
}

fn meant(handover: &Handover) {
    let (firewall, key) = (FirewallName::parse(FIREWALL).unwrap(), key().public());
    let claims = &handover.claims;
    let expected = claims.firewall == firewall
        && claims.key == key.thumbprint()
        && claims.issued.as_second() <= now().as_second() + 300
        && claims.expires > now();
    let verdict = handover.check(&firewall, &key, now());
    if let Err(error) = &verdict {
        is_fit_for_a_log(error);
    } else {
        assert!(expected, "{claims:?}");
    }
    assert!(verdict.is_err() || handover.check(&firewall, &other_key().public(), now()).is_err());
}

fn opened(handover: &Handover) {
    let [mine, others] = seal();
    for error in [handover.open(mine).err(), handover.open(others).err()]
        .into_iter()
        .flatten()
    {
        is_fit_for_a_log(&error);
    }
    // Whatever opens for one opens for no other.
    assert!(handover.open(mine).is_err() || handover.open(others).is_err());
}
