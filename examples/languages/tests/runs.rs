//! The example is run.

use std::process::Command;

#[test]
fn python_and_shell_run_jobs_and_end_with_the_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        Command::new(env!("CARGO_BIN_EXE_example-languages")).current_dir(&dir).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 2, "{printed}");
    assert_eq!(lines[0], r#"{"words":6}"#);
    assert!(lines[1].starts_with("\"hello from "), "{printed}");
}
