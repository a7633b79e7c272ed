//! The binary `mainspring`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mainspring_cli::main()
}
