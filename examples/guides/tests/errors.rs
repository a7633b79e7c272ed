//! The page on errors has every error, of the engine and of handlers, and no other.

use std::collections::BTreeSet;

const PAGE: &str = include_str!("../../../docs/errors.md");
const ERRORS: &str = include_str!("../../../crates/mainspring-core/src/error.rs");
const OUTCOMES: &str = include_str!("../../../crates/mainspring-core/src/job/outcome.rs");

/// The variants of an enum, as its source has them: words at the first level of indentation.
fn variants(source: &'static str, name: &str) -> BTreeSet<&'static str> {
    let body = source.split_once(&format!("pub enum {name} {{\n")).expect("the enum").1;
    let body = body.split_once("\n}\n").expect("its end").0;
    let words = body.lines().filter_map(|line| line.strip_prefix("    "));
    words
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .filter_map(|line| line.split([' ', '(', ',', '{']).next())
        .collect()
}

/// The first word of each row of the tables of one part of the page.
fn rows(part: &'static str) -> BTreeSet<&'static str> {
    let rows = part.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split([' ', '`']).next()).collect()
}

#[test]
fn every_error_is_on_the_page() {
    let (errors, rest) = PAGE.split_once("\n## `Open`").expect("a part for each");
    let open = rest.split_once("\n## ").map_or(rest, |(open, _)| open);
    let known = variants(ERRORS, "Error");
    assert!(known.len() > 20, "{known:?}");
    assert_eq!(rows(errors), known);
    assert_eq!(rows(open), variants(ERRORS, "OpenProblem"));
}

#[test]
fn every_way_in_which_an_attempt_goes_wrong_is_on_the_page() {
    let part = PAGE.split_once("\n## Of handlers").expect("a part of its own").1;
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let known: BTreeSet<String> =
        variants(OUTCOMES, "FaultKind").into_iter().map(str::to_ascii_lowercase).collect();
    assert_eq!(rows(part), known.iter().map(String::as_str).collect());
}
