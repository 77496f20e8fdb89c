//! How long a failed job waits. Owns the growth of the waits and their spread: a thousand agents that lose a seed
//! together must not come back together.

use jiff::{SignedDuration, Timestamp};

/// No wait is longer. A time that lies further ahead was noted by a clock that has since been set back.
pub(super) const LONGEST: SignedDuration = SignedDuration::from_mins(30);

/// How patiently a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Permissions that are on their way: 100 ms, doubling to 2 s.
    Lag,
    /// 2 s, doubling to 5 min.
    Normal,
    /// Nobody answers: 2 s, doubling to 30 s. Asked no more often than where all is well, a server that comes back, or has
    /// moved, is found soon.
    Away,
    /// A person has to look: 1 min, doubling to 30 min.
    Slow,
}

/// When a job is due, and how often in a row it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub failures: u32,
    pub at: Timestamp,
    /// How often in a row it failed in the same manner: what was waited for in another does not make this wait longer.
    pub(super) streak: u32,
    pub(super) patience: Patience,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            failures: 0,
            at: Timestamp::UNIX_EPOCH,
            streak: 0,
            patience: Patience::Normal,
        }
    }
}

impl Pace {
    pub fn due(&self, now: Timestamp) -> bool {
        due(self.at, now)
    }

    pub(super) fn succeed(&mut self, again: Timestamp) {
        *self = Self {
            at: again,
            ..Self::default()
        };
    }

    pub(super) fn fail(&mut self, patience: Patience, seed: u64, now: Timestamp) {
        if self.patience != patience {
            self.streak = 0;
            self.patience = patience;
        }
        self.at = later(now, delay(patience, self.streak, seed));
        self.streak = self.streak.saturating_add(1);
        self.failures = self.failures.saturating_add(1);
    }
}

/// Whether a noted time has come. One that is further ahead than any wait lasts counts as come.
pub(super) fn due(at: Timestamp, now: Timestamp) -> bool {
    now >= at || now.duration_until(at) > LONGEST
}

pub(super) fn later(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// Half of the wait is fixed, half is spread.
pub(super) fn delay(patience: Patience, failures: u32, seed: u64) -> SignedDuration {
    let (first, longest) = match patience {
        Patience::Lag => (100, 2_000),
        Patience::Normal => (2_000, 300_000),
        Patience::Away => (2_000, 30_000),
        Patience::Slow => (60_000, 1_800_000),
    };
    let full = longest.min(first << failures.min(16));
    let spread = mix(seed ^ u64::from(failures)) % (full / 2 + 1);
    SignedDuration::from_millis(i64::try_from(full / 2 + spread).unwrap_or(i64::MAX))
}

/// SplitMix64: neighbouring inputs give unrelated numbers.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_the_first_to_the_longest() {
        for (patience, first, longest) in [
            (Patience::Lag, 100, 2_000),
            (Patience::Normal, 2_000, 300_000),
            (Patience::Away, 2_000, 30_000),
            (Patience::Slow, 60_000, 1_800_000),
        ] {
            let mut full = first;
            for failures in 0..40 {
                for seed in 0..20 {
                    let wait = delay(patience, failures, seed).as_millis();
                    assert!(
                        wait >= full / 2 && wait <= full,
                        "{patience:?} {failures}: {wait} of {full}"
                    );
                }
                full = longest.min(full * 2);
            }
        }
    }

    #[test]
    fn agents_that_fail_together_come_back_apart() {
        let mut waits: Vec<_> = (0..1000)
            .map(|seed| delay(Patience::Normal, 7, seed).as_millis())
            .collect();
        waits.sort_unstable();
        waits.dedup();
        assert!(waits.len() > 900, "only {} different waits", waits.len());
    }

    #[test]
    fn a_clock_that_was_set_back_holds_nothing_up() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let mut pace = Pace::default();
        pace.fail(Patience::Normal, 1, now);
        assert!(!pace.due(now));
        assert!(pace.due(later(now, SignedDuration::from_hours(-24))));
    }

    #[test]
    fn many_short_waits_do_not_make_the_first_long_one_longer() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let mut pace = Pace::default();
        for _ in 0..12 {
            pace.fail(Patience::Lag, 1, now);
        }
        pace.fail(Patience::Normal, 1, now);
        assert!(now.duration_until(pace.at) <= SignedDuration::from_secs(2));
        assert_eq!(pace.failures, 13);
    }
}
