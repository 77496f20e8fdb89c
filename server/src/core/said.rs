//! Which events are written. The same thing said again is counted in the event that stands; nobody makes many new ones by
//! making much be said, and all together stay within what a cluster keeps without noticing. Remembers little, and no more
//! than a fixed number of things.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use contract::reasons::Reason;
use jiff::{SignedDuration, Timestamp};

/// What is said again within this time belongs to the event that stands. Less than the hour that API servers keep events,
/// and more than the minutes after which what still waits is looked at.
const SERIES: SignedDuration = SignedDuration::from_mins(15);
/// How often the count of one event is written at most.
const COUNTED: SignedDuration = SignedDuration::from_secs(10);
/// New events by whoever gives cause for them: so many at once, and one more in so many seconds.
const OF_ONE: Rate = Rate {
    burst: 20.0,
    seconds: 30.0,
};
/// All writes together.
const OF_ALL: Rate = Rate {
    burst: 300.0,
    seconds: 0.2,
};
const SERIES_MAX: usize = 4096;
const CAUSES_MAX: usize = 1024;

/// One thing that is said of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Saying {
    pub on: Object,
    pub warning: bool,
    pub reason: Reason,
    pub action: &'static str,
    pub note: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub api_version: String,
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: Option<String>,
}

/// A count that is to be written into the event that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    pub saying: Arc<Saying>,
    /// The event's name.
    pub event: String,
    pub count: i32,
    pub last: Timestamp,
}

struct Series {
    event: String,
    count: i32,
    last: Timestamp,
    written: i32,
    written_at: Timestamp,
}

#[derive(Default)]
pub struct Book {
    series: HashMap<Arc<Saying>, Series>,
    causes: BTreeMap<String, Bucket>,
    all: Bucket,
    left_out: u64,
}

impl Book {
    /// The name of the event that is to be made for this; none where it is counted, or left out. `cause` is whoever
    /// brought it about.
    pub fn say(&mut self, cause: &str, saying: Arc<Saying>, now: Timestamp) -> Option<String> {
        if let Some(series) = self.series.get_mut(&saying) {
            if now.duration_since(series.last) < SERIES {
                series.count = series.count.saturating_add(1);
                series.last = now.max(series.last);
                return None;
            }
            self.series.remove(&saying);
        }
        self.forget(now);
        if self.series.len() >= SERIES_MAX || !self.may(cause, now) {
            self.left_out += 1;
            return None;
        }
        // As client-go names them. A request's name may be as long as a name can be.
        let object: String = saying.on.name.chars().take(200).collect();
        let event = format!("{}.{:x}", object.trim_end_matches(['.', '-']), now.as_nanosecond());
        let series = Series {
            event: event.clone(),
            count: 1,
            last: now,
            written: 1,
            written_at: now,
        };
        self.series.insert(saying, series);
        Some(event)
    }

    /// The event could not be written, or is not there any more: the next time makes a new one.
    pub fn lost(&mut self, saying: &Saying) {
        self.series.remove(saying);
    }

    /// The counts that may be written now.
    pub fn counts(&mut self, now: Timestamp) -> Vec<Count> {
        let mut counts = Vec::new();
        for (saying, series) in &mut self.series {
            let due = series.count > series.written && now.duration_since(series.written_at).abs() >= COUNTED;
            if !due || !self.all.take(&OF_ALL, now) {
                continue;
            }
            (series.written, series.written_at) = (series.count, now);
            counts.push(Count {
                saying: Arc::clone(saying),
                event: series.event.clone(),
                count: series.count,
                last: series.last,
            });
        }
        counts
    }

    /// How many were left out since this was asked last.
    pub fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    fn may(&mut self, cause: &str, now: Timestamp) -> bool {
        if self.causes.len() >= CAUSES_MAX && !self.causes.contains_key(cause) {
            // Whoever has his full number again is as good as unknown.
            self.causes.retain(|_, bucket| !bucket.is_full(&OF_ONE, now));
        }
        // All together first: so there are never more causes that used something up than there are events.
        self.all.has(&OF_ALL, now)
            && self.causes.entry(cause.to_owned()).or_default().take(&OF_ONE, now)
            && self.all.take(&OF_ALL, now)
    }

    fn forget(&mut self, now: Timestamp) {
        if self.series.len() >= SERIES_MAX {
            self.series
                .retain(|_, series| series.count > series.written || now.duration_since(series.last) < SERIES);
        }
    }
}

struct Rate {
    burst: f64,
    /// After so many there is one more.
    seconds: f64,
}

/// What is used up; it fills by itself.
#[derive(Default)]
struct Bucket {
    used: f64,
    at: Timestamp,
}

impl Bucket {
    fn fill(&mut self, rate: &Rate, now: Timestamp) {
        // A clock that was set back gives nothing.
        let passed = now.duration_since(self.at).as_secs_f64().max(0.0);
        self.used = (self.used - passed / rate.seconds).max(0.0);
        self.at = now;
    }

    fn has(&mut self, rate: &Rate, now: Timestamp) -> bool {
        self.fill(rate, now);
        self.used + 1.0 <= rate.burst
    }

    fn take(&mut self, rate: &Rate, now: Timestamp) -> bool {
        let has = self.has(rate, now);
        if has {
            self.used += 1.0;
        }
        has
    }

    fn is_full(&mut self, rate: &Rate, now: Timestamp) -> bool {
        self.fill(rate, now);
        self.used <= 0.0
    }
}

#[cfg(test)]
#[path = "said_tests.rs"]
mod tests;
