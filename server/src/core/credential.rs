//! The life of a bootstrap credential: how long it stands, when it is extended, and what ends it.

use contract::record::{Credential, CredentialKind, Record};
use jiff::{SignedDuration, Timestamp};

use super::seen::Seen;

/// A bootstrap token's life, and how long before its end it is extended.
pub const TOKEN_LIFE: SignedDuration = SignedDuration::from_mins(60);
pub const EXTEND_BEFORE: SignedDuration = SignedDuration::from_mins(30);
/// Nothing extends a bootstrap credential past this.
pub const CREDENTIAL_LIMIT: SignedDuration = SignedDuration::from_hours(24);

/// A credential that nobody has seen yet.
pub fn fresh(kind: CredentialKind, epoch: u32, now: Timestamp) -> Credential {
    let life = match kind {
        CredentialKind::Token => TOKEN_LIFE,
        CredentialKind::ServiceAccount => CREDENTIAL_LIMIT,
    };
    Credential {
        kind,
        epoch,
        allocated: now,
        expires: now + life,
        limit: now + CREDENTIAL_LIMIT,
        revoked: None,
    }
}

/// The epoch of a credential that is allotted for the first time: by the clock, for where a record was lost it must not be
/// the one whose token somebody may still have.
pub fn first_epoch(now: Timestamp) -> u32 {
    u32::try_from(now.as_second()).unwrap_or(0)
}

/// The epoch of the next credential: that of the userdata, where it is newer than all that there were.
pub fn next_epoch(held: Option<&Credential>, baked: Option<u32>) -> u32 {
    let next = held.map_or(0, |held| held.epoch.saturating_add(1));
    baked.map_or(next, |baked| baked.max(next))
}

/// What it is now. None where none is needed.
pub fn credential(next: &Record, seen: &Seen<'_>, now: Timestamp) -> Option<Credential> {
    let fresh = |epoch| fresh(seen.kind, epoch, now);
    let Some(held) = &next.credential else {
        // None once a key is pinned: whoever has come in renews with its certificate.
        let epoch = seen.baked.unwrap_or_else(|| first_epoch(now));
        return next.keys.pin.is_none().then(|| fresh(epoch));
    };
    let newer = seen.baked.is_some_and(|baked| baked > held.epoch);
    // A ServiceAccount's token goes by no epoch: what stands is what the userdata has.
    let another = seen.kind == CredentialKind::Token || held.revoked.is_some();
    if newer && another && next.keys.pin.is_none() && !next.contested() {
        // Another Firewall than the credential was allotted for, and nobody came in with that: its machine has this one.
        return Some(fresh(next_epoch(Some(held), seen.baked)));
    }
    if held.revoked.is_some() {
        return Some(held.clone());
    }
    let came_in = next.proven() && next.keys.open_until.is_none() && next.handover.is_none();
    if came_in || held.limit <= now {
        return Some(Credential {
            revoked: Some(now),
            ..held.clone()
        });
    }
    if seen.id_taken {
        return Some(fresh(next_epoch(Some(held), seen.baked)));
    }
    if held.kind != seen.kind && next.keys.pin.is_none() {
        // The flag, or what the probe found, has changed: the other kind, from its beginning.
        return Some(fresh(held.epoch));
    }
    if held.kind == CredentialKind::Token && held.expires - EXTEND_BEFORE <= now && held.expires < held.limit {
        return Some(Credential {
            expires: (now + TOKEN_LIFE).min(held.limit),
            ..held.clone()
        });
    }
    Some(held.clone())
}
