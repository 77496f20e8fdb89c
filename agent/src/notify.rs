//! What systemd is told: that the agent runs, that its loop still turns, how it stands, and that it stops. Where there is no
//! systemd nobody is told, and a message that does not arrive hinders nothing.

use std::time::{Duration, Instant};

use sd_notify::NotifyState::{Ready, Status, Stopping, Watchdog};
use sd_notify::{NotifyState, notify, watchdog_enabled};

/// Said so often within the time after which systemd ends a process that says nothing.
const TIMES: u32 = 4;

/// The sign of life. It belongs to the loop alone: from a task or a thread of its own it would come from a hung loop, too.
pub(crate) struct Pulse {
    every: Option<Duration>,
    last: Option<Instant>,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self {
            every: watchdog_enabled().map(|limit| limit / TIMES),
            last: None,
        }
    }

    pub(crate) fn beat(&mut self) {
        let Some(every) = self.every else { return };
        if self.last.is_none_or(|last| last.elapsed() >= every) {
            self.last = Some(Instant::now());
            tell(&[Watchdog]);
        }
    }
}

/// The loop begins. A firewall that has no seed yet is ready too: it does what it is there for.
pub(crate) fn ready() {
    tell(&[Ready]);
}

pub(crate) fn stopping() {
    tell(&[Stopping]);
}

/// For people, in `systemctl status`: one line, as a line ends the message.
pub(crate) fn status(line: &str) {
    tell(&[Status(&line.replace(char::is_control, " "))]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = notify(states) {
        tracing::debug!("systemd was not told: {error}");
    }
}
