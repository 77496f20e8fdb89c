//! Tests of how one certificate follows another: whoever is served is trusted, whatever is late.

use proptest::prelude::*;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

/// Everything that is stored, and what is in force.
#[derive(Clone, Default)]
struct World {
    serving: Option<Facts>,
    since: Option<Timestamp>,
    next: Option<Facts>,
    noted: Option<Timestamp>,
    old: Option<String>,
    bundle: Vec<String>,
    made: u32,
}

const HOST: &str = "firewall-approver.firewall-approver.svc";

impl World {
    fn step(&self, host: &str, now: Timestamp, times: &Times) -> Step {
        step(&self.stood(), &self.bundle, host, now, times)
    }

    fn stood(&self) -> Stood<'_> {
        Stood {
            serving: self.serving.as_ref(),
            since: self.since,
            next: self.next.as_ref(),
            trusted: self.noted,
            old: self.old.as_deref(),
        }
    }

    fn take(&mut self, step: &Step, host: &str, now: Timestamp, times: &Times) {
        match step {
            Step::Make => {
                self.made += 1;
                let facts = Facts {
                    ca: format!("ca-{}", self.made),
                    host: host.into(),
                    until: now + times.life,
                };
                (self.next, self.noted) = (Some(facts), None);
            }
            Step::Trust => self.bundle = wanted(&self.stood()).into_iter().map(str::to_owned).collect(),
            Step::Note => self.noted = Some(now),
            Step::Unnote => self.noted = None,
            Step::Serve => {
                self.old = self.serving.take().map(|facts| facts.ca);
                (self.serving, self.since, self.noted) = (self.next.take(), Some(now), None);
            }
            Step::Forget => self.old = None,
            Step::Wait => {}
        }
    }
}

#[test]
fn the_first_certificate_is_served_as_soon_as_it_is_trusted() {
    let (mut world, times) = (World::default(), Times::of(SignedDuration::from_hours(24)));
    let mut steps = Vec::new();
    loop {
        let step = world.step(HOST, at(0), &times);
        if step == Step::Wait {
            break;
        }
        world.take(&step, HOST, at(0), &times);
        steps.push(step);
    }
    assert_eq!(steps, [Step::Make, Step::Trust, Step::Note, Step::Serve]);
}

#[test]
fn a_bundle_that_somebody_emptied_is_filled_again_and_the_spread_begins_anew() {
    let (mut world, times) = (World::default(), Times::of(SignedDuration::from_mins(1)));
    for second in 0..45 {
        for _ in 0..5 {
            let step = world.step(HOST, at(second), &times);
            world.take(&step, HOST, at(second), &times);
        }
        if world.noted.is_some() && world.serving.is_some() {
            world.bundle.clear();
            assert_eq!(world.step(HOST, at(second), &times), Step::Unnote);
            world.take(&Step::Unnote, HOST, at(second), &times);
            assert_eq!(world.step(HOST, at(second), &times), Step::Trust);
            return;
        }
    }
    panic!("nothing followed the first");
}

#[test]
fn a_clock_that_was_ahead_holds_nothing_up_once_it_is_right_again() {
    let (mut world, times) = (World::default(), Times::of(SignedDuration::from_mins(1)));
    let steps = |world: &mut World, from: i64, until: i64| {
        for second in from..until {
            for _ in 0..5 {
                let step = world.step(HOST, at(second), &times);
                world.take(&step, HOST, at(second), &times);
            }
        }
    };
    let day = 86_400;
    // In the midst of the second roll, a day ahead: one was served lately, and the one before it is trusted yet.
    steps(&mut world, day, day + 46);
    assert!(world.old.is_some() && world.since.is_some_and(|since| since > at(day)));
    steps(&mut world, 0, 5);
    assert_eq!(world.old, None, "the old one stays");
    world.serving.as_mut().unwrap().until = at(10);
    steps(&mut world, 5, 20);
    assert!(
        world.made >= 3 && world.since.is_some_and(|since| since < at(20)),
        "nothing follows"
    );
}

#[test]
fn another_address_gets_another_certificate() {
    let (mut world, times) = (World::default(), Times::of(SignedDuration::from_hours(1)));
    for host in [HOST, "127.0.0.1"] {
        for second in 0..200 {
            for _ in 0..5 {
                let step = world.step(host, at(second), &times);
                world.take(&step, host, at(second), &times);
            }
        }
        assert_eq!(world.serving.as_ref().unwrap().host, host);
    }
}

proptest! {
    /// Leaders come and go, API servers and replicas hear of things late: whatever any replica serves, any API server trusts.
    #[test]
    fn whatever_is_served_is_trusted_by_whatever_bundle_is_in_force(
        life in 60_i64..5_000,
        ticks in proptest::collection::vec((1_i64..9, any::<bool>(), 0_u8..3, 0_u8..3), 300..900),
    ) {
        let times = Times::of(SignedDuration::from_secs(life));
        let mut world = World::default();
        let mut now = at(0);
        // What each of three API servers trusts, and each of three replicas serves, and when it looked last.
        let mut trust: Vec<(Timestamp, Vec<String>)> = vec![(now, Vec::new()); 3];
        let mut serve: Vec<(Timestamp, Option<Facts>)> = vec![(now, None); 3];
        let (mut served, mut begun) = (0, false);
        for (pause, leads, api, replica) in ticks {
            now += SignedDuration::from_secs(pause.min(times.look.as_secs().max(1)));
            // Nobody is later than the times allow; some are as late as that.
            for (index, known) in trust.iter_mut().enumerate() {
                if known.0 + times.spread <= now + times.look || index == usize::from(api) {
                    *known = (now, world.bundle.clone());
                }
            }
            for (index, known) in serve.iter_mut().enumerate() {
                if known.0 + times.settle <= now + times.look || index == usize::from(replica) {
                    *known = (now, world.serving.clone());
                }
            }
            if leads {
                let step = world.step(HOST, now, &times);
                world.take(&step, HOST, now, &times);
            }
            begun = begun || serve.iter().all(|(_, facts)| facts.is_some())
                && trust.iter().all(|(_, bundle)| !bundle.is_empty());
            if !begun {
                continue;
            }
            for (_, facts) in &serve {
                let Some(facts) = facts.as_ref().filter(|facts| facts.until > now) else { continue };
                served += 1;
                for (_, bundle) in &trust {
                    prop_assert!(bundle.contains(&facts.ca), "{} is not in {bundle:?}", facts.ca);
                }
            }
        }
        prop_assert!(!begun || served > 0);
    }
}
