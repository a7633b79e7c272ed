//! All fuzz targets under libFuzzer, in one program: `FUZZ_TARGET` names the one to run.
//!
//! The targets themselves are in the workspace, where they are compiled and run by every test run; this program gives
//! them to the fuzzer. Before it starts, the committed corpus is written into the directory `FUZZ_SEEDS`, one file per
//! input, which is how libFuzzer wants it.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use mainspring_conformance::fuzz::{self, Target, corpus};

static CHOSEN: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: begin(),
    |bytes: &[u8]| CHOSEN.get().expect("chosen at the start")(bytes)
);

fn begin() {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let seeds = PathBuf::from(std::env::var_os("FUZZ_SEEDS").expect("FUZZ_SEEDS names a directory"));
    let target = targets().find(|target| target.0 == name).expect("FUZZ_TARGET is a target").1;
    for (index, input) in corpus(&name).into_iter().enumerate() {
        std::fs::write(seeds.join(format!("seed-{index}")), input).expect("seeds can be written");
    }
    CHOSEN.set(target).expect("chosen once");
}

fn targets() -> impl Iterator<Item = Target> {
    fuzz::TARGETS
        .into_iter()
        .chain(mainspring_sqlite::fuzz::TARGETS)
        .chain(mainspring_postgres::fuzz::TARGETS)
        .chain(mainspring::fuzz::TARGETS)
        .chain(mainspring_cli::fuzz::TARGETS)
}
