//! How often work on an object has failed in a row, so that each backs off by itself. Remembers those only that fail.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::core::retry;

/// No object waits longer: what hinders it may be over at any time, and nothing tells so.
const LONGEST: Duration = Duration::from_secs(30);
/// Whoever may make requests may make many.
const FAILING_MAX: usize = 10_000;

#[derive(Default)]
pub struct Retries(Mutex<HashMap<String, u32>>);

impl Retries {
    /// How long to wait, after one more failure.
    pub fn failed(&self, object: &str, first: Duration) -> Duration {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failing.len() >= FAILING_MAX && !failing.contains_key(object) {
            failing.clear();
        }
        let failures = failing.entry(object.to_owned()).or_default();
        *failures = failures.saturating_add(1);
        retry::after(*failures, first, LONGEST, object)
    }

    pub fn worked(&self, object: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(2);

    #[test]
    fn each_object_backs_off_by_itself_and_begins_anew_once_it_worked() {
        let retries = Retries::default();
        let waits: Vec<_> = (0..4).map(|_| retries.failed("a", FIRST)).collect();
        assert!(waits.is_sorted() && waits[3] >= 5 * FIRST, "{waits:?}");
        assert!(retries.failed("b", FIRST) <= FIRST);
        retries.worked("a");
        assert!(retries.failed("a", FIRST) <= FIRST);
        assert!(retries.failed("b", FIRST) > FIRST);
    }

    #[test]
    fn p30_a_crowd_that_fails_is_not_remembered_for_ever() {
        let retries = Retries::default();
        for number in 0..2 * FAILING_MAX {
            retries.failed(&number.to_string(), FIRST);
        }
        assert!(retries.0.lock().unwrap().len() <= FAILING_MAX);
    }
}
