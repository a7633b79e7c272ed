//! Lists all failure points: whatever stands in `point!("…")` in the sources of the other crates.
//!
//! A list that is kept by hand forgets; this one fails the build when two points share a name.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The crates that may have points.
const CRATES: [&str; 4] = ["mainspring-core", "mainspring-sqlite", "mainspring-postgres", "mainspring"];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("..");
    let mut points = BTreeMap::new();
    for name in CRATES {
        let sources = root.join(name).join("src");
        println!("cargo::rerun-if-changed={}", sources.display());
        scan(&sources, name, &mut points)?;
    }
    let mut code = String::from("/// All of them.\npub const ALL: &[Point] = &[\n");
    for (point, of) in points {
        writeln!(code, "    Point {{ of: \"{of}\", name: \"{point}\" }},")?;
    }
    code.push_str("];\n");
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("points.rs"), code)?;
    Ok(())
}

fn scan(
    folder: &Path,
    of: &'static str,
    points: &mut BTreeMap<String, &'static str>,
) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            scan(&path, of, points)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for name in names(&std::fs::read_to_string(&path)?) {
                if points.insert(name.clone(), of).is_some() {
                    return Err(format!("two failure points are called `{name}`").into());
                }
            }
        }
    }
    Ok(())
}

/// The names in a source, without those in comments.
fn names(source: &str) -> Vec<String> {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.filter_map(|line| line.split_once("point!(\"")?.1.split_once('"').map(|(name, _)| name.to_owned()))
        .collect()
}
