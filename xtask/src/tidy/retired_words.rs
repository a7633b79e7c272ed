//! Words that names no longer use.
//!
//! Some words meant nothing to a stranger (a desk, an ear, a pulse), and some are needed for something else (a limit, a
//! cursor, a schedule). A name that has one of them has a better one; [`WORDS`] says which. Files and types are looked at:
//! they are what a reader meets first.
//!
//! # Invariants
//! - A word counts whole: `HintRouter` may hear, and `heads` does not forbid `headers`.

use super::Finding;
use super::file::{File, has_word};

/// A word that is part of no name, and what to say instead.
const WORDS: &[(&str, &str)] = &[
    ("able", "abilities"),
    ("cursor", "position, until cursors of events are there"),
    ("desk", "slot table"),
    ("ear", "listener, router"),
    ("epoch", "what it counts"),
    ("heads", "scan bounds"),
    ("kin", "child"),
    ("lane", "connection"),
    ("parked", "cached, suspended"),
    ("pulse", "idle poll"),
    ("riding", "deferred"),
    ("story", "timeline"),
    ("topic", "subject"),
];

/// A word that is not the whole name of a type, because it does not say of what.
const NAMES: &[(&str, &str)] = &[
    ("Batch", "ClaimBatchNo"),
    ("Declares", "JobType"),
    ("Member", "Registered"),
    ("Mint", "MintToken"),
    ("Named", "SignalRef"),
];

/// Words in which a type is declared.
const DECLARED_BY: [&str; 4] = ["struct", "enum", "trait", "type"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    if let Some((word, better)) = retired(&file_words(&file.path)) {
        findings.push(file.finding(0, format!("`{word}` in a file's name: say {better}")));
    }
    for (number, line) in file.code_lines() {
        if let Some(name) = declared(line)
            && let Some((word, better)) = retired_type(name)
        {
            findings.push(file.finding(number, format!("`{word}` in the name `{name}`: say {better}")));
        }
    }
    findings
}

fn retired(words: &[String]) -> Option<(&'static str, &'static str)> {
    WORDS.iter().copied().find(|(word, _)| words.iter().any(|other| other == word))
}

fn retired_type(name: &str) -> Option<(&'static str, &'static str)> {
    retired(&type_words(name)).or_else(|| NAMES.iter().copied().find(|(retired, _)| *retired == name))
}

/// The words of a path's parts, in lower case.
fn file_words(path: &str) -> Vec<String> {
    path.split(['/', '_', '-', '.']).map(str::to_ascii_lowercase).collect()
}

/// The words of a type's name, in lower case: each begins with a capital.
fn type_words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for character in name.chars() {
        match words.last_mut() {
            Some(word) if !character.is_ascii_uppercase() => word.push(character),
            _ => words.push(character.to_ascii_lowercase().to_string()),
        }
    }
    words
}

/// The name of the type that a line of code declares.
fn declared(line: &str) -> Option<&str> {
    DECLARED_BY.iter().find_map(|keyword| {
        let (_, rest) = line.split_once(&format!("{keyword} ")).filter(|_| has_word(line, keyword))?;
        let end = rest.find(|character: char| !character.is_alphanumeric() && character != '_');
        let name = &rest[..end.unwrap_or(rest.len())];
        name.starts_with(|first: char| first.is_ascii_uppercase()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn retired_words_are_caught_in_the_names_of_files() {
        for path in ["crates/a/src/desk.rs", "docs/story.md", "crates/a/src/claim_heads.rs", "a/lane/mod.rs"]
        {
            assert_eq!(lines(path, ""), [0], "{path}");
        }
        for path in ["crates/a/src/slot_table.rs", "crates/a/src/history.rs", "crates/a/src/headers.rs"] {
            assert_eq!(lines(path, ""), [0; 0], "{path}");
        }
    }

    #[test]
    fn retired_words_are_caught_in_the_names_of_types() {
        for text in
            ["pub(crate) struct Ear(u8);", "enum JobStory {", "pub trait Named<T> {", "    type Mint = u8;"]
        {
            assert_eq!(lines("a.rs", &format!("//! A.\n{text}\n")), [2], "{text}");
        }
        for text in [
            "struct MintToken;",
            "enum Early {",
            "fn heads(ear: u8) {}",
            "// struct Desk;",
            "let a = \"struct Desk\";",
        ] {
            assert_eq!(lines("a.rs", &format!("//! A.\n{text}\n")), [0; 0], "{text}");
        }
    }
}
