//! In core and engine, time, randomness, threads and order are decided outside.
//!
//! The simulator runs many nodes in one thread and must see the same run for the same seed. One global clock, one
//! random id, one thread or one walk over a hash map breaks that, and no test would say where. Clippy bans the calls
//! that it can resolve; this rule also covers names that clippy does not look at, and has no attribute to switch it off.

use super::Finding;
use super::file::{File, has_word};

const CRATES: [&str; 2] = ["mainspring-core", "mainspring"];

/// The files that implement the seams for production.
const SEAMS: [&str; 1] = ["crates/mainspring/src/seams.rs"];
/// The file that may wrap a hash map in a type without iteration.
const LOOKUP: &str = "crates/mainspring-core/src/lookup.rs";

const CLOCK: (&str, &[&str]) = (
    "reads a global clock; take a `Clock`",
    &["SystemTime::now", "Instant::now", "Timestamp::now", "Zoned::now"],
);
const RANDOM: (&str, &[&str]) = (
    "draws global randomness; take an `Rng`",
    &[
        "rand::random",
        "rand::rng",
        "thread_rng",
        "OsRng",
        "getrandom",
        "Uuid::now_v7",
        "Uuid::new_v4",
        "RandomState",
    ],
);
const SPAWN: (&str, &[&str]) = (
    "starts a thread or task by itself; use the spawn seam",
    &["thread::spawn", "thread::Builder", "tokio::spawn", "task::spawn", "spawn_blocking", "JoinSet"],
);
const SLEEP: (&str, &[&str]) = (
    "waits on a global clock; wait through the `Clock`",
    &["thread::sleep", "tokio::time", "time::sleep", "time::timeout", "time::interval"],
);
const HASH: (&str, &[&str]) = (
    "has no fixed order; use `BTreeMap` or `BTreeSet`, or the type without iteration in mainspring-core's lookup.rs",
    &["HashMap", "HashSet"],
);

pub(super) fn check(file: &File) -> Vec<Finding> {
    if !file.is_source_of(&CRATES) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (reason, words) in [CLOCK, RANDOM, SPAWN, SLEEP, HASH] {
        let allowed =
            if reason == HASH.0 { file.path == LOOKUP } else { SEAMS.contains(&file.path.as_str()) };
        if allowed {
            continue;
        }
        for (number, line) in file.code_lines() {
            if let Some(word) = words.iter().find(|word| has_word(line, word)) {
                findings.push(file.finding(number, format!("`{word}` {reason}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn every_banned_name_is_caught_in_core_and_engine() {
        for (_, words) in [CLOCK, RANDOM, SPAWN, SLEEP, HASH] {
            for word in words {
                let text = format!("//! A.\nfn f() {{ {word}(); }}\n");
                assert_eq!(lines("crates/mainspring-core/src/a.rs", &text), [2], "{word}");
                assert_eq!(lines("crates/mainspring/src/node/a.rs", &text), [2], "{word}");
            }
        }
    }

    #[test]
    fn comments_and_strings_may_name_them() {
        let text = "//! No `SystemTime::now`.\nconst A: &str = \"HashMap\";\n";
        assert!(lines("crates/mainspring-core/src/a.rs", text).is_empty());
    }

    #[test]
    fn seams_and_other_crates_are_free() {
        let text = "fn f() { Instant::now(); tokio::spawn(g()); }";
        assert!(lines("crates/mainspring/src/seams.rs", text).is_empty());
        assert!(lines("crates/mainspring-cli/src/main.rs", text).is_empty());
        assert!(lines("crates/mainspring/tests/a.rs", text).is_empty());
    }

    #[test]
    fn hash_maps_live_in_one_file_alone() {
        let text = "use std::collections::HashMap;";
        assert!(lines("crates/mainspring-core/src/lookup.rs", text).is_empty());
        assert_eq!(lines("crates/mainspring/src/seams.rs", text), [1]);
        assert_eq!(lines("crates/mainspring-core/src/lookup.rs", "fn f() { Instant::now(); }"), [1]);
    }
}
