//! Core and engine know no SQL: a statement belongs to the store that runs it.

use super::Finding;
use super::file::File;

const CRATES: [&str; 2] = ["mainspring-core", "mainspring"];

/// A statement's first word, and a word that must follow for it not to be plain English.
const STATEMENTS: [(&str, &[&str]); 8] = [
    ("select", &["from"]),
    ("insert", &["into", "or"]),
    ("update", &["set"]),
    ("delete", &["from"]),
    ("create", &["table", "index", "unique", "trigger", "view"]),
    ("alter", &["table"]),
    ("drop", &["table", "index"]),
    ("pragma", &[]),
];

pub(super) fn check(file: &File) -> Vec<Finding> {
    if !file.is_source_of(&CRATES) {
        return Vec::new();
    }
    let statements = file.literals.iter().filter(|literal| is_statement(&literal.text));
    statements.map(|literal| file.finding(literal.line, "SQL outside a store")).collect()
}

/// A literal that *starts* as a statement: the hostile names of tests, such as `'; drop table`, are data.
fn is_statement(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let Some(first) = words.next() else { return false };
    let Some((_, followers)) = STATEMENTS.iter().find(|(word, _)| first.eq_ignore_ascii_case(word)) else {
        return false;
    };
    let shouted = first.chars().all(|c| c.is_ascii_uppercase());
    let followed = |word: &str| followers.iter().any(|next| word.eq_ignore_ascii_case(next));
    shouted || followers.is_empty() || words.any(followed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_told_from_english() {
        for sql in [
            "SELECT 1",
            "\n    select id from jobs",
            "INSERT INTO jobs",
            "insert or ignore into jobs",
            "update jobs set state = 1",
            "DELETE FROM jobs",
            "create table jobs (id)",
            "PRAGMA synchronous",
            "drop table jobs",
        ] {
            assert!(is_statement(sql), "{sql}");
        }
        for english in ["", "select a queue", "update available", "job was deleted from the store", "created"]
        {
            assert!(!is_statement(english), "{english}");
        }
    }

    #[test]
    fn only_stores_hold_statements() {
        let lines = |path| check(&File::new(path, "//! A.\nconst A: &str = \"SELECT 1\";")).len();
        assert_eq!(lines("crates/mainspring/src/a.rs"), 1);
        assert_eq!(lines("crates/mainspring-core/src/a.rs"), 1);
        assert_eq!(lines("crates/mainspring-sqlite/src/a.rs"), 0);
        assert_eq!(lines("crates/mainspring/tests/a.rs"), 0);
    }
}
