//! A step of an application's CI: does today's code still fit the workflows that are under way?
//!
//! Journals of real workflows are kept beside the code, one of each shape that is under way:
//!
//! ```sh
//! mainspring job ID --json > journals/order-waits-for-payment.json
//! ```
//!
//! and each is run through today's handlers before a deploy. No body of a step is run. In an application this is a command of its
//! `xtask`, or a test; here it is `cargo run -p example-deploy-check -- [DIRECTORY]`, which fails if one does not fit.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod orders;

use std::path::PathBuf;
use std::process::ExitCode;

use mainspring::testing::{Error, verify_journal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/journals");
    let directory = std::env::args().nth(1).map_or_else(|| PathBuf::from(kept), PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    // A check of nothing is worse than none.
    if files.is_empty() {
        return Err(format!("{} has no journals", directory.display()).into());
    }
    let mut drifted = 0;
    for file in &files {
        let name = file.file_stem().unwrap_or_default().display();
        match verify_journal(&std::fs::read(file)?, orders::node).await {
            Ok(verified) if verified.next.is_empty() => println!("fits     {name}: ends"),
            Ok(verified) => println!("fits     {name}: goes on with {}", verified.next.join(", ")),
            Err(Error::Drifted { why, .. }) => {
                drifted += 1;
                println!("drifted  {name}: {why}");
            }
            Err(error) => return Err(format!("{}: {error}", file.display()).into()),
        }
    }
    println!("{} of {} fit", files.len() - drifted, files.len());
    Ok(if drifted == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
