//! `docs/lessons.md` names tests: each must exist.

use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_lesson_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lessons = std::fs::read_to_string(root.join("docs/lessons.md")).expect("the lessons");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let code: String = files.iter().map(|file| std::fs::read_to_string(file).expect("a source")).collect();
    let rows = lessons.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let names: Vec<&str> =
        rows.flat_map(|row| row.split('`').skip(1).step_by(2)).filter(|name| !name.contains(' ')).collect();
    assert!(names.len() > 40, "the table was not read: {names:?}");
    for name in names {
        assert!(code.contains(&format!("fn {name}(")), "no test is called `{name}`");
    }
}
