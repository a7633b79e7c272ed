//! The list of behaviours is complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn every_behaviour_is_listed_once() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = BTreeSet::new();
    for entry in fs::read_dir(&dir).expect("the sources are there") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        let names = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("pub async fn ")?.split_once('(')?;
            rest.starts_with("h: &Harness)").then(|| name.to_owned())
        });
        for name in names {
            assert!(written.insert(name.clone()), "`{name}` is written twice");
        }
    }
    let mut listed: Vec<String> = Vec::new();
    for (file, end) in [("mod.rs", "(@each"), ("limit_list.rs", "};")] {
        let text = fs::read_to_string(dir.join(file)).expect("the list");
        let list = text.split_once("@each $factory;").and_then(|(_, rest)| rest.split_once(end));
        let (list, _) = list.expect("the list has this form");
        listed.extend(list.lines().filter_map(|line| line.trim().strip_suffix(',')).map(str::to_owned));
    }
    assert_eq!(listed.len(), listed.iter().collect::<BTreeSet<_>>().len(), "a behaviour is listed twice");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), written);
}
