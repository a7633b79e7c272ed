//! The example is run: once as it is, and once with a crash in the middle.

use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_example-saga")).current_dir(dir).args(args).output().expect("it runs")
}

const UNDONE: &str = "\
an order of a chair
  reserve a chair
  release a chair
  undone: step `charge` failed: the card has expired
an order of piano
  reserve piano
  charge 4242
  refund 4242
  release piano
  undone: step `ship` failed: no carrier takes it
";

/// What was done in the world, without the keys.
fn world(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("world.txt")).expect("the world");
    text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(what, _)| what.to_owned()).collect()
}

const DONE: [&str; 9] = [
    "reserve a lamp",
    "charge 4242",
    "ship a lamp",
    "reserve a chair",
    "release a chair",
    "reserve piano",
    "charge 4242",
    "refund 4242",
    "release piano",
];

#[test]
fn what_cannot_be_completed_is_undone() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let shipped = "an order of a lamp\n  reserve a lamp\n  charge 4242\n  ship a lamp\n  a lamp is shipped\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{shipped}{UNDONE}"));
    assert_eq!(world(dir.path()), DONE);
}

#[test]
fn a_crash_in_the_middle_does_nothing_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = run(dir.path(), &["crash"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("  ship a lamp\n  the process dies\n"));
    let output = run(dir.path(), &[]);
    assert!(output.status.success(), "{output:?}");
    let shipped = "an order of a lamp\n  ship a lamp: done before\n  a lamp is shipped\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{shipped}{UNDONE}"));
    assert_eq!(world(dir.path()), DONE);
}
