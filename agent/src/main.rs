//! The binary `firewall-agent`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cluster::process::main("firewall-agent", agent::main())
}
