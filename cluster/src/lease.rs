//! Which of several replicas writes: a Lease, with the rules of client-go. Whether a holder is gone is judged by the own
//! clock, from when its record was last seen to change, never by the times that it wrote; whoever holds it stops before
//! anybody else may begin. Owns no work: who leads is told, and every write asks right before it is made.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use thiserror::Error;
use tokio::time::Instant;

use crate::api::{call, call_opt};
use crate::client::{Gate, Writes, held};
use crate::failure::{Class, Failure};

/// Who has not renewed for so long may be followed by another.
pub const DURATION: Duration = Duration::from_secs(15);
/// Who could not renew for so long leads no more. The difference is for what is on its way.
pub const DEADLINE: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(2);
/// How often somebody who waits looks.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Error)]
#[error("Lease {lease}: {holder:?} has it now")]
pub struct Lost {
    /// Namespace and name.
    lease: String,
    holder: String,
}

/// Whether this replica may write, now.
#[derive(Clone, Default)]
pub struct Leadership {
    until: Arc<Mutex<Option<Instant>>>,
    writes: Writes,
}

impl Leadership {
    pub fn holds(&self) -> bool {
        self.holds_at(Instant::now())
    }

    /// A client that sends nothing but questions while somebody else leads.
    pub fn client(&self, client: Client) -> Client {
        let leadership = self.clone();
        held(client, Gate::new(&self.writes, move || leadership.holds()))
    }

    /// Writes nothing any more, though it leads still; ends when what is on its way has its answer.
    pub async fn close(&self) {
        self.writes.close().await;
    }

    fn holds_at(&self, now: Instant) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| now < until)
    }

    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// One replica's part in it.
pub struct Elector {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    leadership: Leadership,
}

/// What a holder wrote, and when that was first seen here.
struct Seen {
    spec: LeaseSpec,
    at: Instant,
}

impl Elector {
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            leadership: Leadership::default(),
        }
    }

    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Returns when this replica leads; until then `waiting` is told of whom it waits for, or why that is not known, once each.
    pub async fn acquire(&self, mut waiting: impl FnMut(Result<&str, &Failure>)) {
        let mut seen: Option<Seen> = None;
        let mut told = String::new();
        loop {
            match self.try_once(&mut seen).await {
                Ok(None) => return,
                Ok(Some(holder)) if holder != told => {
                    waiting(Ok(&holder));
                    told = holder;
                }
                Ok(Some(_)) => {}
                Err(failure) if failure.class.words() != told => {
                    waiting(Err(&failure));
                    failure.class.words().clone_into(&mut told);
                }
                Err(_) => {}
            }
            tokio::time::sleep(jittered(LOOK)).await;
        }
    }

    /// Keeps it; ends when another has it. A server that is away takes it from nobody: until it is back nothing is
    /// written, and if nobody came in between this replica goes on.
    pub async fn keep(&self) -> Lost {
        let mut silent = false;
        loop {
            tokio::time::sleep(jittered(RENEW)).await;
            match self.renew().await {
                Ok(None) if silent => {
                    silent = false;
                    tracing::info!("the lease {} is renewed again: nobody else has led", self.object());
                }
                Ok(None) => {}
                Ok(Some(holder)) => {
                    self.leadership.set(None);
                    let lease = self.object();
                    return Lost { lease, holder };
                }
                Err(failure) if !silent && !self.leadership.holds() => {
                    silent = true;
                    tracing::warn!(%failure, "the lease could not be renewed for {} s: nothing is written until it is", DEADLINE.as_secs());
                }
                Err(_) => {}
            }
        }
    }

    /// Leaves it to whoever waits: at once, where it would take until the end of the lease.
    pub async fn release(&self) -> Result<(), Failure> {
        if !self.leadership.holds() {
            return Ok(());
        }
        self.leadership.set(None);
        let Some(lease) = self.get().await? else { return Ok(()) };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
            return Ok(());
        }
        let free = LeaseSpec {
            holder_identity: None,
            lease_duration_seconds: Some(1),
            ..spec
        };
        self.put(lease, free).await.map(drop)
    }

    /// `None`: this replica leads. Else who does.
    async fn try_once(&self, seen: &mut Option<Seen>) -> Result<Option<String>, Failure> {
        let began = Instant::now();
        let Some(lease) = self.get().await? else {
            return self.create(began).await;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if seen.as_ref().is_none_or(|seen| seen.spec != spec) {
            *seen = Some(Seen {
                spec: spec.clone(),
                at: Instant::now(),
            });
        }
        let at = seen.as_ref().map_or(began, |seen| seen.at);
        if !is_free(&spec, at, Instant::now(), &self.identity) {
            return Ok(Some(spec.holder_identity.unwrap_or_default()));
        }
        let next = next_term(&spec, &self.identity);
        match self.put(lease, next).await {
            Ok(_) => {
                self.leadership.set(Some(began + DEADLINE));
                Ok(None)
            }
            Err(failure) if failure.is(Class::Conflict) => Ok(Some("another replica".to_owned())),
            Err(failure) => Err(failure),
        }
    }

    /// `None`: it is renewed. Else who has it.
    async fn renew(&self) -> Result<Option<String>, Failure> {
        let began = Instant::now();
        let Some(lease) = self.get().await? else {
            return self.create(began).await;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder != self.identity {
            return Ok(Some(holder));
        }
        let renewed = LeaseSpec {
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            lease_duration_seconds: Some(seconds(DURATION)),
            ..spec
        };
        self.put(lease, renewed).await?;
        self.leadership.set(Some(began + DEADLINE));
        Ok(None)
    }

    async fn create(&self, began: Instant) -> Result<Option<String>, Failure> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(next_term(&LeaseSpec::default(), &self.identity)),
        };
        let what = format!("create Lease {}", self.object());
        match call(what, self.leases.create(&PostParams::default(), &lease)).await {
            Ok(_) => {
                self.leadership.set(Some(began + DEADLINE));
                Ok(None)
            }
            Err(failure) if failure.is(Class::AlreadyExists) => Ok(Some("another replica".to_owned())),
            Err(failure) => Err(failure),
        }
    }

    async fn get(&self) -> Result<Option<Lease>, Failure> {
        call_opt(format!("get Lease {}", self.object()), self.leases.get(&self.name)).await
    }

    /// Over the version that was read: of two that try, one wins.
    async fn put(&self, mut lease: Lease, spec: LeaseSpec) -> Result<Lease, Failure> {
        lease.spec = Some(spec);
        let name = lease.name_any();
        let what = format!("update Lease {}", self.object());
        call(what, self.leases.replace(&name, &PostParams::default(), &lease)).await
    }

    fn object(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Whether it may be taken: nobody has it, it is one's own from before, or its holder was silent for its whole duration
/// since its last word was seen.
fn is_free(spec: &LeaseSpec, seen: Instant, now: Instant, identity: &str) -> bool {
    match spec.holder_identity.as_deref() {
        None | Some("") => true,
        Some(holder) if holder == identity => true,
        Some(_) => {
            let duration = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
            now >= seen + Duration::from_secs(duration.unwrap_or(0)).max(DURATION)
        }
    }
}

fn next_term(before: &LeaseSpec, identity: &str) -> LeaseSpec {
    let now = MicroTime(jiff::Timestamp::now());
    let same = before.holder_identity.as_deref() == Some(identity);
    let terms = before.lease_transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(seconds(DURATION)),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: Some(if same { terms } else { terms.saturating_add(1) }),
        ..LeaseSpec::default()
    }
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)
}

/// Replicas do not ask in step.
fn jittered(duration: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0u8) % 200;
    duration * u32::try_from(900 + random).unwrap_or(1000) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str, duration: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(duration),
            // Its own times are nobody's business.
            renew_time: Some(MicroTime(jiff::Timestamp::UNIX_EPOCH)),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn it_is_free_when_its_holder_was_silent_for_its_duration_by_the_own_clock() {
        let seen = Instant::now();
        let after = |seconds| seen + Duration::from_secs(seconds);
        let other = held_by("other", 15);
        assert!(!is_free(&other, seen, after(0), "me") && !is_free(&other, seen, after(14), "me"));
        assert!(is_free(&other, seen, after(15), "me"));
        assert!(is_free(&held_by("me", 15), seen, after(0), "me"));
        assert!(
            is_free(&LeaseSpec::default(), seen, after(0), "me") && is_free(&held_by("", 15), seen, after(0), "me")
        );
        // One that says it needs longer gets it, and nobody less than what we keep to ourselves.
        assert!(!is_free(&held_by("other", 60), seen, after(59), "me"));
        for nonsense in [-1, 0, 1] {
            assert!(!is_free(&held_by("other", nonsense), seen, after(14), "me"));
        }
    }

    #[test]
    fn a_term_is_counted_when_the_holder_changes() {
        let first = next_term(&LeaseSpec::default(), "me");
        let again = next_term(&first, "me");
        let other = next_term(&again, "other");
        let terms = [&first, &again, &other].map(|spec| spec.lease_transitions);
        assert_eq!(terms, [Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn who_could_not_renew_stops_before_another_may_begin() {
        let (leadership, began) = (Leadership::default(), Instant::now());
        assert!(!leadership.holds_at(began));
        leadership.set(Some(began + DEADLINE));
        assert!(leadership.holds_at(began + DEADLINE - Duration::from_millis(1)));
        assert!(!leadership.holds_at(began + DEADLINE));
        // What was on its way then is over before somebody who saw the last renewal at once may take it.
        assert!(!is_free(
            &held_by("other", 15),
            began,
            began + DEADLINE + crate::api::DEADLINE - Duration::from_millis(1),
            "me"
        ));
        leadership.set(None);
        assert!(!leadership.holds_at(began));
    }
}
