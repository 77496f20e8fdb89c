//! What a process of ours is, from its first instruction to its end: no cores, told to stop by a signal, and ended by the
//! first task that dies.

use std::fmt::Display;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// So long what is under way may take to end in good order.
pub const DRAIN: Duration = Duration::from_secs(10);
/// And so long all of it, with what is given back at the end.
const LATE: Duration = Duration::from_secs(15);
/// What a shell says of a process that a signal ended.
const BY_SIGNAL: u8 = 128;

/// Runs a program, and ends at once when it is through: what still runs then is not waited for.
pub fn main(program: &'static str, work: impl Future<Output = ExitCode>) -> ExitCode {
    let failed = |sentence: &str| {
        // Nobody is left to be told that this failed too.
        let _ = writeln!(io::stderr(), "{program}: {sentence}");
        ExitCode::FAILURE
    };
    if let Err(error) = no_core_dumps() {
        return failed(&format!("core dumps cannot be turned off: {error}"));
    }
    std::panic::set_hook(Box::new(ends));
    crate::client::install_crypto();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("no threads can be had: {error}")),
    };
    let code = runtime.block_on(work);
    runtime.shutdown_background();
    code
}

/// The kernel writes no core of this process, to whatever place or program, and nobody but root reads its memory.
fn no_core_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The host's name and a random number.
pub fn unique_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", RandomState::new().hash_one(std::process::id()))
}

tokio::task_local! {
    static TASK: &'static str;
}

/// Work under a name: if it panics, that is what the process says before it ends.
pub async fn named<F: Future>(name: &'static str, work: F) -> F::Output {
    TASK.scope(name, work).await
}

/// Whatever panics, in whichever task: without it the others would go on as if it did its part.
fn ends(panic: &PanicHookInfo<'_>) {
    let name = TASK.try_with(|name| *name).unwrap_or("process");
    if tracing::dispatcher::has_been_set() {
        tracing::error!("the {name} died, and the process ends: {panic}");
    } else {
        let _ = writeln!(io::stderr(), "the {name} died: {panic}");
    }
    std::process::abort();
}

/// Does a program's work until it is through, and says in the log why it ended. The first SIGTERM or SIGINT cancels what the
/// work was given, by which it is to end in good order and in time; the second one is not discussed.
pub async fn serve<F, E>(program: &str, work: impl FnOnce(CancellationToken) -> F) -> ExitCode
where
    F: Future<Output = Result<(), E>>,
    E: Display,
{
    let stop = CancellationToken::new();
    let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) = match signals {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!("{program}: signals cannot be listened for: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut told = async || {
        tokio::select! {
            _ = terminate.recv() => ("SIGTERM", 15),
            _ = interrupt.recv() => ("SIGINT", 2),
        }
    };
    let through = |end: Result<(), E>| match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    };
    let mut work = std::pin::pin!(work(stop.clone()));
    tokio::select! {
        end = &mut work => return through(end),
        (name, _) = told() => {
            tracing::info!("told to stop ({name}): what is under way ends first, within {} s; a second signal ends it at once", DRAIN.as_secs());
            stop.cancel();
        }
    }
    let (why, code) = tokio::select! {
        end = work => return through(end),
        (name, number) = told() => (format!("{name} again"), BY_SIGNAL + number),
        () = tokio::time::sleep(LATE) => (format!("not through within {} s", LATE.as_secs()), 1),
    };
    tracing::error!("{program}: {why}: ended at once, whatever is under way");
    ExitCode::from(code)
}
