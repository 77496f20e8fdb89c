//! The binary `firewall-approver`: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    cluster::process::main("firewall-approver", server::main())
}
