//! Logging of both programs: one line an event on standard error, JSON or text, and how much of it is said, which a signal
//! changes while the program runs.

use std::io::IsTerminal;

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Registry, reload};

/// What the level is for. What others' libraries say below `info` is theirs, and may hold what they send: it is never shown.
const OURS: [&str; 4] = ["agent", "cluster", "contract", "server"];

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// One step more than this; after the last one what the program began with.
    fn next(self, first: Self) -> Self {
        match self {
            Self::Error => Self::Warn,
            Self::Warn => Self::Info,
            Self::Info => Self::Debug,
            Self::Debug => Self::Trace,
            Self::Trace => first,
        }
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

fn targets(level: Level) -> Targets {
    let level = level.filter();
    Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        // kube logs each failed request as an error, without its cause; who made the call logs it with both.
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF)
        .with_targets(OURS.map(|ours| (ours, level)))
}

/// Starts logging, and listens for SIGUSR1 from here on. A second call changes nothing.
pub fn init(format: Format, level: Level) {
    let (filter, handle) = reload::Layer::new(targets(level));
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for eyes: in a journal they are noise.
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colours);
    let begun = match format {
        Format::Text => registry.with(lines).try_init(),
        Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    if begun.is_ok() {
        follow_signal(handle, level);
    }
}

/// Each SIGUSR1 makes the log one step louder, until it begins anew.
fn follow_signal(handle: reload::Handle<Targets, Registry>, first: Level) {
    let mut asked = match signal(SignalKind::user_defined1()) {
        Ok(asked) => asked,
        Err(error) => return tracing::warn!(%error, "SIGUSR1 is not listened for: the log level stays"),
    };
    tokio::spawn(async move {
        let mut level = first;
        while asked.recv().await.is_some() {
            level = level.next(first);
            let _ = handle.reload(targets(level));
            tracing::warn!("SIGUSR1: the log level is {:?} now", level);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_is_one_step_and_the_last_leads_back() {
        let steps = |first: Level, count: usize| {
            let levels = std::iter::successors(Some(first), |level| Some(level.next(first)));
            levels.skip(1).take(count).collect::<Vec<_>>()
        };
        assert_eq!(
            steps(Level::Info, 4),
            [Level::Debug, Level::Trace, Level::Info, Level::Debug]
        );
        assert_eq!(steps(Level::Trace, 2), [Level::Trace, Level::Trace]);
        assert_eq!(steps(Level::Warn, 2), [Level::Info, Level::Debug]);
    }

    #[test]
    fn the_level_is_for_ours_and_nobody_else_gets_below_info() {
        let would = |level, target: &str, asked: tracing::Level| targets(level).would_enable(target, &asked);
        assert!(would(Level::Trace, "agent::request", tracing::Level::TRACE));
        assert!(!would(Level::Debug, "agent::request", tracing::Level::TRACE));
        assert!(!would(Level::Trace, "rustls::client", tracing::Level::DEBUG));
        assert!(would(Level::Trace, "rustls::client", tracing::Level::INFO));
        assert!(!would(Level::Warn, "rustls::client", tracing::Level::INFO));
        assert!(!would(
            Level::Trace,
            "kube_client::client::builder",
            tracing::Level::ERROR
        ));
    }
}
