//! The example is run: on the journals that are kept, on one that its code has left behind, and on nothing.

use std::process::{Command, Output};

fn run(directory: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_example-deploy-check"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).arg(directory).output().expect("it runs")
}

#[test]
fn what_is_under_way_goes_on() {
    let output = run("journals");
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        told,
        "fits     order-is-paid: goes on with ship\n\
         fits     order-waits-for-payment: goes on with paid\n\
         2 of 2 fit\n"
    );
}

#[test]
fn code_that_left_a_workflow_behind_is_not_deployed() {
    let output = run("tests/drifted");
    assert!(!output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.starts_with("drifted  order-booked: "), "{told}");
    assert!(told.contains("book") && told.ends_with("0 of 1 fit\n"), "{told}");
}

#[test]
fn a_check_of_nothing_fails() {
    assert!(!run("src").status.success());
}
