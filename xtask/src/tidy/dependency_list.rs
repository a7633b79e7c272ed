//! `docs/dependencies.md` names every external crate that a member uses, and no other.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::file::{File, numbered};
use super::packages::Package;

const PATH: &str = "docs/dependencies.md";

pub(super) fn check(files: &[File], packages: &[Package]) -> Vec<Finding> {
    let text = files.iter().find(|file| file.path == PATH).map_or("", |file| file.text.as_str());
    let finding = |line, message| Finding { path: PATH.to_owned(), line, message };
    let used: BTreeSet<&str> = packages
        .iter()
        .flat_map(|package| &package.dependencies)
        .filter(|dependency| dependency.external)
        .map(|dependency| dependency.name.as_str())
        .collect();
    let mut listed = BTreeMap::new();
    let mut findings = Vec::new();
    for (number, name) in numbered(text).filter_map(|(number, line)| Some((number, listed_name(line)?))) {
        if listed.insert(name, number).is_some() {
            findings.push(finding(number, format!("`{name}` is listed twice")));
        }
        if !used.contains(name) {
            findings.push(finding(number, format!("`{name}` is listed, but no package uses it")));
        }
    }
    let missing = used.iter().filter(|name| !listed.contains_key(*name));
    findings.extend(missing.map(|name| finding(0, format!("`{name}` is used, but not listed"))));
    findings
}

/// The crate of a line such as "| `serde` | … | … |".
fn listed_name(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::packages::example;
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let files = [File::new(PATH, text)];
        let packages =
            [example("crates/a", &["b", "ext:serde", "dev:ext:insta"]), example("crates/b", &["ext:serde"])];
        check(&files, &packages).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn each_used_crate_is_listed_once() {
        assert!(messages("| crate | for |\n|---|---|\n| `insta` | a |\n| `serde` | b |\n").is_empty());
        assert_eq!(
            messages("| `insta` | a |\n| `serde` | b |\n| `serde` | c |\n"),
            ["docs/dependencies.md:3: `serde` is listed twice"]
        );
    }

    #[test]
    fn missing_and_stale_lines_are_caught() {
        assert_eq!(
            messages("| `insta` | a |\n| `rand` | b |\n"),
            [
                "docs/dependencies.md:2: `rand` is listed, but no package uses it",
                "docs/dependencies.md: `serde` is used, but not listed"
            ]
        );
        assert_eq!(messages("").len(), 2);
    }
}
