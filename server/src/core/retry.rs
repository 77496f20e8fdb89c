//! How long to wait after the same thing has failed again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Twice as long each time, from `first` to `longest`. Up to a quarter less by the name of what failed, so that what
/// failed together is not tried again together.
pub fn after(failures: u32, first: Duration, longest: Duration, what: &str) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    let wait = doubled.min(longest);
    let mut hasher = DefaultHasher::new();
    (what, failures).hash(&mut hasher);
    let percent = u32::try_from(hasher.finish() % 25).unwrap_or(0);
    wait - wait * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn each_failure_doubles_the_wait_up_to_half_a_minute() {
        let first = Duration::from_secs(2);
        for (failures, least, most) in [(0, 1500, 2000), (1, 1500, 2000), (2, 3000, 4000), (4, 12_000, 16_000)] {
            let wait = after(failures, first, LONGEST, "shoot--a/fw").as_millis();
            assert!((least..=most).contains(&wait), "{failures}: {wait}");
        }
        for failures in [5, 6, 40, u32::MAX] {
            let wait = after(failures, first, LONGEST, "shoot--a/fw").as_millis();
            assert!((22_500..=30_000).contains(&wait), "{failures}: {wait}");
        }
    }

    #[test]
    fn a_fleet_that_failed_together_is_spread() {
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|n| after(5, Duration::from_secs(2), LONGEST, &format!("shoot--{n}/fw")).as_millis())
            .collect();
        assert!(waits.len() > 15, "{waits:?}");
    }
}
