//! Statements of the stores on SQL: codes have names, and places are written to through their fragments.
//!
//! Those on Postgres are declared, with types for their arguments and rows: no column is read by its position.
//!
//! A bare number in a statement says nothing to its reader, and nobody finds it again when it changes. A second text that
//! enters a place, or takes claims out of `lease`, forgets what the next feature adds to the first.

use super::Finding;
use super::file::File;

/// A store, and how it writes to places.
struct Store {
    name: &'static str,
    /// Where fragments are used.
    operations: &'static str,
    /// The one file that writes to places.
    places: &'static str,
    /// What stands before the name of a table.
    prefix: &'static str,
    /// The words with which one would read a row by position.
    by_hand: &'static [&'static str],
}

const STORES: [Store; 2] = [
    Store {
        name: "mainspring-postgres",
        operations: "crates/mainspring-postgres/src/op/",
        places: "crates/mainspring-postgres/src/op/places.rs",
        prefix: "mainspring.",
        by_hand: &["row.get(", "row.get::<", "row.try_get", "Type::INT"],
    },
    Store {
        name: "mainspring-sqlite",
        operations: "crates/mainspring-sqlite/src/op/",
        places: "crates/mainspring-sqlite/src/op/moves.rs",
        prefix: "mainspring_",
        by_hand: &[],
    },
];

/// The one file that reads rows by position.
const STATEMENT: &str = "crates/mainspring-postgres/src/sql/statement.rs";

/// What only the file of places says, each with the name of a place.
const OF_PLACES: [(&str, &[&str]); 2] = [
    ("INSERT INTO ", &["ready", "limited", "timers", "suspended", "done"]),
    ("DELETE FROM ", &["limited", "timers", "suspended", "lease"]),
];

/// Files of tests beside the code.
const TESTS: [&str; 2] = ["/src/tests/", "/src/fuzz.rs"];

/// Columns whose numbers are codes. Elsewhere 0 and 1 mean themselves.
const CODES: [&str; 10] =
    ["state", "reason", "flags", "level", "until", "class", "kind", "was", "stuck", "on_close"];

/// Numbers that are no codes: the largest `smallint`, and the microseconds of a second.
const PLAIN: [&str; 2] = ["32767", "1000000"];

/// Words of SQL that no other text of the crate shouts.
const WORDS: [&str; 10] =
    ["SELECT", "INSERT", "UPDATE", "DELETE", "WHERE", "CASE", "WHEN", "RETURNING", "LATERAL", "EXISTS"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let Some(store) = STORES.iter().find(|store| file.is_source_of(&[store.name])) else {
        return Vec::new();
    };
    // Tests damage what they like.
    if TESTS.iter().any(|part| file.path.contains(part)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let in_operation = file.path != STATEMENT;
    for (line, code) in file.code_lines().filter(|_| in_operation) {
        if store.by_hand.iter().any(|words| code.contains(words)) {
            findings.push(file.finding(line, "declare the statement, and read its rows by their fields"));
        }
    }
    for literal in &file.literals {
        // Questions about the server are about its numbers, not about ours.
        if literal.text.contains("pg_catalog") || literal.text.contains("current_setting") {
            continue;
        }
        let argument = alone(&literal.text).filter(|_| file.path.starts_with(store.operations));
        if let Some(number) = argument.or_else(|| bare_code(&literal.text)) {
            let message = format!("`{number}` in a statement: name it, as `mainspring_core::codes` does");
            findings.push(file.finding(literal.line, message));
        }
        let of_places = OF_PLACES.iter().filter(|_| file.path != store.places);
        for (verb, place) in
            of_places.flat_map(|(verb, places)| places.iter().map(move |place| (verb, place)))
        {
            let text = format!("{verb}{}{place}", store.prefix);
            if followed_by_end(&literal.text, &text) {
                findings.push(file.finding(literal.line, format!("`{text}` outside of {}", store.places)));
            }
        }
    }
    findings
}

/// Whether a text has another in it that ends as a word.
fn followed_by_end(text: &str, part: &str) -> bool {
    let ends = |at: usize| !text[at + part.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    text.match_indices(part).any(|(at, _)| ends(at))
}

/// A number that is all of a text, as one would give it to a fragment.
fn alone(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

/// The first number of a statement, or of a part of one, that looks like a code.
fn bare_code(text: &str) -> Option<&str> {
    let tokens = tokens(text);
    let shouts = tokens.iter().any(|token| WORDS.contains(token));
    let is_code = |at: usize| {
        let number = tokens[at];
        let before = |back: usize| at.checked_sub(back).map_or("", |at| tokens[at]);
        let is_number = number.starts_with(|c: char| c.is_ascii_digit());
        // No code is below zero, and nobody divides by one.
        if !is_number || ["-", "/"].contains(&before(1)) || PLAIN.contains(&number) {
            return false;
        }
        let compares = ["=", "<>", "<", ">", "<=", ">=", "&", "|"].contains(&before(1));
        let of_code = compares && CODES.contains(&before(2));
        of_code || !["0", "1"].contains(&number) && before(1) != "LIMIT"
    };
    (0..tokens.len()).find(|&at| shouts && is_code(at)).map(|at| tokens[at])
}

/// Words, numbers and operators, without what is quoted. Names of codes and arguments are words of their own.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let while_all = |fits: fn(char) -> bool| rest.find(|c| !fits(c)).unwrap_or(rest.len());
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            '{' => rest.find('}').map_or(rest.len(), |end| end + 1),
            '$' | '?' => 1 + rest[1..].find(|c| !word(c)).unwrap_or(rest.len() - 1),
            '=' | '<' | '>' => while_all(|c| ['=', '<', '>'].contains(&c)),
            _ if word(first) => while_all(|c| c.is_alphanumeric() || c == '_'),
            _ => first.len_utf8(),
        };
        let token = &rest[..length];
        if !first.is_whitespace() && first != '\'' {
            tokens.push(token);
        }
        rest = &rest[length..];
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_codes_are_told_from_other_numbers() {
        for (sql, found) in [
            ("SELECT 1 FROM x WHERE state = 5", Some("5")),
            ("WHERE p.flags & 1 <> 0", Some("1")),
            ("CASE WHEN crashes >= 3 THEN a END", Some("3")),
            ("UPDATE nodes SET state = 0", Some("0")),
            ("WHERE state IN (6, 7)", Some("6")),
            ("SELECT {state.ready} AS was, p.no WHERE p.flags & {flag.key} <> 0", None),
            ("WHERE no = $13 AND at < t.now - interval '10 s' LIMIT 1000 OFFSET 0", None),
            ("CASE WHEN n = 1 THEN least(n, 32767) END, k2 AS (DELETE", None),
            ("SELECT pg_try_advisory_xact_lock($1, -2)", None),
            ("SELECT x::int2[], 0 AS crashes", None),
            ("SELECT n.lease / 3", None),
            ("SELECT no FROM x WHERE no = ?12 AND state = ?2", None),
            ("at least 14 of them", None),
        ] {
            assert_eq!(bare_code(sql), found, "{sql}");
        }
        assert_eq!((alone("16"), alone("1 us"), alone("")), (Some("16"), None, None));
    }

    #[test]
    fn places_are_written_to_in_one_file() {
        let found =
            |path: &str, sql: &str| check(&File::new(path, &format!("const A: &str = {sql:?};"))).len();
        let delete = "WITH d AS (DELETE FROM mainspring.lease l WHERE true)";
        assert_eq!(found("crates/mainspring-postgres/src/op/a.rs", delete), 1);
        assert_eq!(found("crates/mainspring-postgres/src/op/places.rs", delete), 0);
        assert_eq!(found("crates/mainspring-testkit/src/a.rs", delete), 0);
        let insert = "INSERT INTO mainspring_done (seq) VALUES (?1)";
        assert_eq!(found("crates/mainspring-sqlite/src/op/a.rs", insert), 1);
        assert_eq!(found("crates/mainspring-sqlite/src/op/moves.rs", insert), 0);
        assert_eq!(found("crates/mainspring-sqlite/src/tests/a.rs", insert), 0);
        assert_eq!(
            found("crates/mainspring-postgres/src/op/a.rs", "INSERT INTO mainspring.done_2 SELECT 1"),
            0
        );
    }
}
