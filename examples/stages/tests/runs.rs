//! The example is run.

use std::process::Command;

#[test]
fn stages_run_once_for_two_callers() {
    let dir = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let output =
            Command::new(env!("CARGO_BIN_EXE_example-stages")).current_dir(&dir).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "one job for two callers: true\nwords: 6\n");
    }
}
