//! The example is run.

use std::process::Command;

#[test]
fn two_nodes_together_call_the_bank_as_it_allows() {
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        Command::new(env!("CARGO_BIN_EXE_example-bank")).current_dir(&dir).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!((lines[0], lines[2]), ("210 cents in 20 payments", "spread over a second: true"));
    let most = lines[1].strip_prefix("at most ").and_then(|rest| rest.strip_suffix(" calls at a time"));
    let most: usize = most.and_then(|most| most.parse().ok()).expect("a number");
    assert!((1..=5).contains(&most), "{printed}");
}
