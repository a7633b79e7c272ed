//! The example is run, and it is the one that the README shows.

use std::process::Command;

#[test]
fn the_job_comes_back_with_its_result() {
    let dir = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let output =
            Command::new(env!("CARGO_BIN_EXE_example-hello")).current_dir(&dir).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "welcome, user 7\n");
    }
}

#[test]
fn the_readme_shows_this_example() {
    let source = include_str!("../src/main.rs");
    let shown = &source[source.find("use mainspring").expect("the first import")..];
    assert!(
        include_str!("../../../README.md").contains(shown),
        "README.md shows another text than src/main.rs"
    );
}
