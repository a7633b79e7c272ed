//! The example is run, and told to end.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn a_node_that_is_told_to_end_gives_its_job_back() {
    let dir = tempfile::tempdir().expect("a directory");
    // The second run goes on with the job that the first one left.
    for _ in 0..2 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_example-shutdown"))
            .current_dir(&dir)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "running; end me with Ctrl-C\n");
        let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
        assert!(told.success());
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("the rest");
        assert_eq!(rest, "ready, 0 failures, 0 crashes\n");
        assert!(child.wait().expect("its end").success());
    }
}
