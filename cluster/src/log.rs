//! Logging of both programs: one line an event on standard error, JSON or text.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// Starts logging. A second call changes nothing.
pub fn init(format: Format) {
    let filter = Targets::new()
        .with_default(LevelFilter::INFO)
        // kube logs each failed request as an error, without its cause; who made the call logs it with both.
        .with_target("kube_client", LevelFilter::OFF)
        .with_target("kube_runtime", LevelFilter::OFF);
    let registry = tracing_subscriber::registry().with(filter);
    // Colours are for eyes: in a journal they are noise.
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(colours);
    let _ = match format {
        Format::Text => registry.with(lines).try_init(),
        Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
}
