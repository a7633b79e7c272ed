//! The example is run.

use std::process::Command;

#[test]
fn a_rolled_back_transaction_leaves_neither_row_nor_job() {
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        Command::new(env!("CARGO_BIN_EXE_example-outbox")).current_dir(&dir).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let expected = "ada: 1 row, mail to user 1 sent\nbob: 0 rows, no job\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
