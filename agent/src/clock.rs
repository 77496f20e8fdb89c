//! How far this machine's clock is off, by the Date header of the seed. A wrong clock makes good certificates look
//! expired, so it has to be known before anything is blamed on a certificate.

use cluster::api::call;
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use tracing::info;

use crate::core::{Job, Patience, Via};
use crate::machine::Machine;

const EVERY: SignedDuration = SignedDuration::from_mins(5);
/// Less is not worth a word.
const NAMED_FROM: i64 = 30;

impl Machine {
    pub(crate) async fn measure_clock(&mut self, via: Via) {
        let link = match self.link(via) {
            Ok(link) => link,
            Err(problem) => return self.failed(Job::Clock, Patience::Normal, &problem),
        };
        let request = match http::Request::get("/version").body(Body::empty()) {
            Ok(request) => request,
            Err(error) => return self.failed(Job::Clock, Patience::Normal, &error),
        };
        let before = Timestamp::now();
        let answer = match call("ask the seed for its time (GET /version)", link.client.send(request)).await {
            Ok(answer) => answer,
            Err(failure) => return self.failed(Job::Clock, Patience::Normal, &failure),
        };
        let half = before.duration_until(Timestamp::now()) / 2;
        let date = answer
            .headers()
            .get(http::header::DATE)
            .and_then(|date| date.to_str().ok());
        let Some(skew) = date.and_then(|date| skew(before, half, date)) else {
            return self.failed(
                Job::Clock,
                Patience::Normal,
                &"the seed's answer has no Date that can be read",
            );
        };
        if named(skew) && self.clock_skew != Some(skew) {
            let direction = if skew > 0 { "ahead of" } else { "behind" };
            let seconds = skew.unsigned_abs();
            self.problem(
                "clock skew",
                &format!("this clock is {seconds} s {direction} the seed's: set it"),
            );
        } else if !named(skew) && self.problems.remove("clock skew").is_some() {
            info!(firewall = %self.firewall, "the clock is right again");
        }
        self.clock_skew = Some(skew);
        self.done(Job::Clock, EVERY);
    }
}

fn named(skew: i64) -> bool {
    skew.abs() > NAMED_FROM
}

/// In whole seconds, positive if ours is ahead. The header has no fractions, so half a second is its middle.
fn skew(before: Timestamp, half: SignedDuration, date: &str) -> Option<i64> {
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_millisecond() + 500;
    let ours = before.checked_add(half).ok()?.as_millisecond();
    Some((ours - theirs) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skew_is_read_from_a_date_header() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let at = |second: i64| Timestamp::from_second(784_111_777 + second).unwrap();
        let skewed = |second| skew(at(second), SignedDuration::from_millis(100), date);
        assert_eq!(skewed(0), Some(0));
        assert_eq!(skewed(90), Some(89));
        assert_eq!(skewed(-90), Some(-90));
        assert_eq!(skew(at(0), SignedDuration::ZERO, "yesterday"), None);
    }
}
