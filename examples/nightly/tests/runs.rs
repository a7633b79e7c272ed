//! The example is run.

use std::process::Command;

#[test]
fn a_schedule_is_stored_once_and_run_by_hand() {
    let dir = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let output =
            Command::new(env!("CARGO_BIN_EXE_example-nightly")).current_dir(&dir).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let date =
            printed.strip_prefix("the next 7 nights are known\nby hand: the report of ").expect("a date");
        assert_eq!(date.trim_end().len(), "2026-03-29".len(), "{printed}");
    }
}
