//! The example is run.

use std::process::Command;

const DONE: &str = "add
one
add
one
turn 2500: approved
turn 5000: approved
turn 7500: approved
turn 10000: approved
the sum is 10000
frames: 20004, records that are left: 3
";

#[test]
fn ten_thousand_turns_are_streamed_and_leave_little() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-agent")).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), DONE);
}
