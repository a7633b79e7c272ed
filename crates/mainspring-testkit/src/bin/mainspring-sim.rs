//! The simulator; see [`mainspring_testkit::sim`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    mainspring_testkit::sim::main(&arguments)
}
