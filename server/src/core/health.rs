//! Whether the approver can do its work, dependency by dependency: what is known of each becomes a check, and the checks
//! become the answer that people know from Kubernetes. Knows neither HTTP nor clocks: ages come from whoever observed.

use std::fmt::Write;
use std::time::Duration;

use cluster::failure::Class;

use super::canary::Tried;

/// A watch that failed tries again within 30 s, and a connection takes its 5: if nothing failed for this long, it runs.
const FAILED_LATELY: Duration = Duration::from_secs(40);
/// So long a list may take when the poll is due.
const LIST: Duration = Duration::from_secs(30);
/// Each canary asks every second.
const ANSWERED_WITHIN: i64 = 30;
/// What a check says is for a line.
const TEXT_MAX: usize = 300;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Good,
    /// It may come back by itself.
    Away(String),
    /// It will not, before somebody does something.
    Broken(String),
}

impl Health {
    /// Of two sides of one thing the worse.
    pub fn or_worse(self, other: Self) -> Self {
        match (&self, &other) {
            (Self::Broken(_), _) | (Self::Away(_), Self::Good | Self::Away(_)) | (Self::Good, Self::Good) => self,
            _ => other,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// `kind`, or `kind/which`.
    pub name: String,
    pub health: Health,
}

impl Check {
    pub fn new(name: impl Into<String>, health: Health) -> Self {
        Self {
            name: name.into(),
            health,
        }
    }

    /// Whether it is meant by this name: its own, or that of all of its kind.
    fn is(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What is known of a watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// How long ago it brought an event or a list, or began.
    pub quiet: Duration,
    /// Whether it ever brought anything.
    pub listed: bool,
    /// How long ago it failed, if nothing came since, and how.
    pub failed: Option<(Duration, Class)>,
    /// How often it begins with a list anew.
    pub poll: Duration,
}

impl Watch {
    pub fn health(&self) -> Health {
        let quiet = self.quiet.as_secs();
        if let Some((_, class)) = self.failed.filter(|(ago, _)| *ago < FAILED_LATELY) {
            return failing(
                class,
                &format!("{}; the last event or list is {quiet} s old", class.words()),
            );
        }
        if self.quiet > self.poll + LIST {
            return Health::Away(format!("neither an event nor a list for {quiet} s"));
        }
        if !self.listed {
            return Health::Away("its first list is not there yet".into());
        }
        Health::Good
    }
}

/// What a failure means for whoever depends on it.
pub fn failing(class: Class, what: &str) -> Health {
    match class {
        Class::Forbidden | Class::Untrusted | Class::Invalid | Class::Misconfigured => Health::Broken(what.into()),
        Class::Unauthenticated
        | Class::UntrustedTime
        | Class::NotFound
        | Class::Conflict
        | Class::AlreadyExists
        | Class::Busy
        | Class::Unreachable => Health::Away(what.into()),
    }
}

/// An older CA that is refused is over, as at the end of each roll: that is no fault, and no check any more.
pub fn canary(tried: &Tried<'_>, now: jiff::Timestamp) -> Option<Check> {
    let seconds = |since: jiff::Timestamp| since.duration_until(now).as_secs();
    let health = if tried.dead && !tried.newest {
        return None;
    } else if tried.dead {
        Health::Broken("the seed refuses the certificates that its signer issues now (SignerNotTrusted)".into())
    } else if let Some(since) = tried.refused {
        Health::Away(format!("the seed refuses it, for {} s", seconds(since)))
    } else {
        match tried.accepted.map(seconds) {
            None => Health::Away("it was not let in yet".into()),
            Some(ago) if ago > ANSWERED_WITHIN => Health::Away(format!("no answer to it for {ago} s")),
            Some(_) => Health::Good,
        }
    };
    Some(Check::new(format!("canary/{}", short(tried.issuer)), health))
}

/// Enough of an issuer's hash to tell one from another.
pub fn short(issuer: &str) -> &str {
    issuer.get(..16).unwrap_or(issuer)
}

/// What somebody wants to know.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// One check, or those of one kind; none: all.
    pub only: Option<String>,
    pub exclude: Vec<String>,
    pub verbose: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

/// 200 if all is well; 500 if something is broken; 503 if nothing is, but something is away.
pub fn answer(endpoint: &str, checks: &[Check], question: &Question) -> Answer {
    let asked = |check: &&Check| question.only.as_ref().is_none_or(|only| check.is(only));
    let asked: Vec<&Check> = checks.iter().filter(asked).collect();
    if let Some(only) = question.only.as_ref().filter(|_| asked.is_empty()) {
        let body = format!("there is no check {}\n", line(only));
        return Answer { status: 404, body };
    }
    let (mut status, mut body) = (200, String::new());
    for check in &asked {
        let name = &check.name;
        let _ = if question.exclude.iter().any(|name| check.is(name)) {
            writeln!(body, "[+]{name} excluded: ok")
        } else {
            match &check.health {
                Health::Good => writeln!(body, "[+]{name} ok"),
                Health::Away(why) => {
                    // What is broken outranks it.
                    status = if status == 500 { 500 } else { 503 };
                    writeln!(body, "[-]{name} failed: {}", line(why))
                }
                Health::Broken(why) => {
                    status = 500;
                    writeln!(
                        body,
                        "[-]{name} failed, and will not come back by itself: {}",
                        line(why)
                    )
                }
            }
        };
    }
    let unknown = question
        .exclude
        .iter()
        .filter(|name| !asked.iter().any(|check| check.is(name)));
    for name in unknown {
        let _ = writeln!(body, "warn: there is no check {} to exclude", line(name));
    }
    let passed = status == 200;
    let verdict = if passed { "passed" } else { "failed" };
    let _ = writeln!(body, "{endpoint} check {verdict}");
    if passed && !question.verbose {
        body = "ok".into();
    }
    Answer { status, body }
}

/// The names of the checks that fail.
pub fn failed(checks: &[Check]) -> Vec<&str> {
    let failed = checks.iter().filter(|check| check.health != Health::Good);
    failed.map(|check| check.name.as_str()).collect()
}

/// Nothing in it makes another line, whoever's words they are.
fn line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(TEXT_MAX)
        .collect()
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
