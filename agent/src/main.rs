//! The binary `firewall-agent`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    match agent::begin() {
        Ok((args, place)) => cluster::process::main("firewall-agent", agent::main(args, place)),
        Err(code) => code,
    }
}
