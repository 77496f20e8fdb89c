//! What a process that holds keys does before anything else.

use std::hash::{BuildHasher, RandomState};
use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// The kernel writes no core of this process, to whatever place or program, and nobody but root reads its memory.
pub fn no_core_dumps() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The host's name and a random number.
pub fn unique_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}_{:016x}", RandomState::new().hash_one(std::process::id()))
}
