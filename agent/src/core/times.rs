//! When something that ends is renewed. Computed from stored facts only, so that a restart changes nothing.

use aws_lc_rs::digest::{SHA256, digest};
use contract::cert::counts_from;
use contract::names::FirewallName;
use jiff::{SignedDuration, Timestamp};

use super::backoff::later;

/// Between which parts of its life a certificate is renewed, in thousandths.
pub const RENEWAL_EARLIEST: i64 = 700;
pub const RENEWAL_LATEST: i64 = 900;

/// A token is replaced at this part of its life, in thousandths.
const TOKEN_REFRESH: i64 = 800;
/// At this part of its life a lifeline's token is replaced, in thousandths, and after this time at the latest.
const LIFELINE_RENEWAL: i64 = 100;
const LIFELINE_RENEWAL_LATEST: SignedDuration = SignedDuration::from_hours(24);
/// How often a token is read again that does not say when it ends.
const OPAQUE_TOKEN: SignedDuration = SignedDuration::from_mins(5);
/// How often a token is read again that is over its time while its Secret has no newer one.
const STALE_MIN: SignedDuration = SignedDuration::from_secs(5);
const STALE_MAX: SignedDuration = SignedDuration::from_mins(5);

/// When a certificate is renewed: at 70 to 90 % of its life, spread over the firewalls by their names. To the millisecond:
/// of many that came in together hardly two share a second.
pub fn renewal_at(firewall: &FirewallName, not_before: Timestamp, not_after: Timestamp) -> Timestamp {
    let hash = digest(&SHA256, firewall.as_str().as_bytes());
    let number = hash
        .as_ref()
        .iter()
        .take(8)
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let from = counts_from(not_before, not_after);
    let earliest = part(from, not_after, RENEWAL_EARLIEST);
    let latest = part(from, not_after, RENEWAL_LATEST);
    let room = u64::try_from(earliest.duration_until(latest).as_millis()).unwrap_or(0);
    let share = i64::try_from(number % (room + 1)).unwrap_or(0);
    later(earliest, SignedDuration::from_millis(share))
}

/// When to look for a newer token. `life` is what the token says of itself, if it says anything.
pub fn token_refresh_at(life: Option<(Timestamp, Timestamp)>, now: Timestamp) -> Timestamp {
    let Some((issued, expires)) = life else {
        return later(now, OPAQUE_TOKEN);
    };
    let at = part(issued, expires, TOKEN_REFRESH);
    if at > now {
        return at;
    }
    let left = now.duration_until(expires);
    later(now, (left / 4).clamp(STALE_MIN, STALE_MAX))
}

/// When a lifeline asks for its next token: each day, or at a tenth of its life if that is sooner.
pub fn lifeline_renewal_at((issued, expires): (Timestamp, Timestamp)) -> Timestamp {
    part(issued, expires, LIFELINE_RENEWAL).min(later(issued, LIFELINE_RENEWAL_LATEST))
}

fn part(from: Timestamp, to: Timestamp, thousandths: i64) -> Timestamp {
    let life = from.duration_until(to).as_millis().max(0);
    let share = i64::try_from(life * i128::from(thousandths) / 1000).unwrap_or(i64::MAX);
    later(from, SignedDuration::from_millis(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn certificates_are_renewed_between_70_and_90_percent_and_spread() {
        let mut times = Vec::new();
        for n in 0..500 {
            let name = FirewallName::parse(&format!("fw-{n}")).unwrap();
            let time = renewal_at(&name, at(1_000), at(1_001_000)).as_second();
            assert!((701_000..=901_100).contains(&time), "{time}");
            assert_eq!(time, renewal_at(&name, at(1_000), at(1_001_000)).as_second());
            times.push(time);
        }
        times.sort_unstable();
        times.dedup();
        assert!(times.len() > 150, "only {} different times", times.len());
    }

    #[test]
    fn a_token_is_refreshed_at_80_percent_of_its_life() {
        assert_eq!(token_refresh_at(Some((at(0), at(1000))), at(10)), at(800));
    }

    #[test]
    fn a_token_that_nobody_replaced_is_looked_at_more_often_towards_its_end() {
        let life = Some((at(0), at(40_000)));
        assert_eq!(token_refresh_at(life, at(36_000)), at(36_300));
        assert_eq!(token_refresh_at(life, at(39_800)), at(39_850));
        assert_eq!(token_refresh_at(life, at(39_999)), at(40_004));
        assert_eq!(token_refresh_at(life, at(50_000)), at(50_005));
    }

    #[test]
    fn a_token_without_dates_is_read_every_five_minutes() {
        assert_eq!(token_refresh_at(None, at(10)), at(310));
    }

    #[test]
    fn d4_a_lifeline_is_renewed_each_day_or_at_a_tenth_of_its_life() {
        assert_eq!(lifeline_renewal_at((at(0), at(365 * 86_400))), at(86_400));
        assert_eq!(lifeline_renewal_at((at(0), at(3_600))), at(360));
        assert_eq!(lifeline_renewal_at((at(5), Timestamp::MAX)), at(86_405));
    }
}
