//! The example is run.

use std::process::Command;

#[test]
fn each_tenant_gets_its_part_of_the_gpu() {
    let dir = tempfile::tempdir().expect("a directory");
    let output =
        Command::new(env!("CARGO_BIN_EXE_example-tenants")).current_dir(&dir).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    for (line, (tenant, most)) in printed.lines().zip([("acme", 4), ("zoo", 2), ("pop", 2)]) {
        let said = line.strip_prefix(&format!("{tenant}: at most ")).and_then(|rest| rest.split(' ').next());
        let said: usize = said.and_then(|said| said.parse().ok()).expect("a number");
        assert!((1..=most).contains(&said), "{printed}");
    }
    assert!(printed.ends_with("units of the GPU in use at the end: 0\n"), "{printed}");
}
