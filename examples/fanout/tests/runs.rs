//! The example is run: once as it is, and once with a crash in the middle.

use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_example-fanout")).current_dir(dir).args(args).output().expect("it runs")
}

const DONE: &str = "all 1000 are published\ntogether they have 4500 megapixels\nrecords that are left: 2\n";

#[test]
fn all_items_are_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), DONE);
}

#[test]
fn after_a_crash_it_goes_on_with_what_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(dir.path(), &["crash"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the process dies at photo 500\n");
    let output = run(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), DONE);
}
