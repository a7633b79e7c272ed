//! The example is run.

use std::process::Command;

#[test]
fn an_answer_ends_the_wait_and_so_does_time() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-approval")).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let (why, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.contains("why: "));
    assert!(why[0].starts_with("  why: the handler waits for signal `decision`, until "), "{why:?}");
    let expected = [
        "ada answers on the fourth day",
        "  mail: please approve 120 euros for a trip",
        "  mail: do not forget 120 euros for a trip",
        "  mail: we have paid 120 euros for a trip",
        "  approved by ada",
        "nobody answers",
        "  mail: please approve 90000 euros for a yacht",
        "  mail: do not forget 90000 euros for a yacht",
        "  mail: do not forget 90000 euros for a yacht",
        "  nobody answered",
    ];
    assert_eq!(rest, expected);
}
