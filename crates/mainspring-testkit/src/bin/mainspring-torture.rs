//! Tortures a store; see [`mainspring_testkit::torture`]. Run by `cargo xtask torture`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line speaks through its streams")]

use std::error::Error;
use std::process::ExitCode;

use mainspring_testkit::torture;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match runtime.block_on(torture::command(&arguments)) {
        Ok(outcome) => {
            println!("{outcome}");
            Ok(if outcome.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Err(error) => {
            eprintln!("error: {error}");
            Ok(ExitCode::FAILURE)
        }
    }
}
