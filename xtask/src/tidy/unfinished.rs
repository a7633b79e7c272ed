//! Nothing unfinished, switched off or waited for by guess.
//!
//! A marker of unfinished work belongs in an issue. A test that is ignored, expects a panic or sleeps proves nothing or
//! fails at random. A lint is switched off by `expect` with a reason, because `allow` outlives what it was for.

use super::Finding;
use super::file::{File, has_word, numbered};

const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];
const MACROS: [&str; 2] = ["todo!", "unimplemented!"];
const ATTRIBUTES: [(&str, &str); 5] = [
    ("#[ignore", "a test that does not run proves nothing: fix it or remove it"),
    ("#[should_panic", "catch the panic or return the error, and assert what it says"),
    ("#[allow(", "use `#[expect(…, reason = \"…\")]`"),
    ("#![allow(", "use `#![expect(…, reason = \"…\")]`"),
    (",allow(", "use `expect(…, reason = \"…\")`"),
];
const SLEEPS: [&str; 2] = ["thread::sleep", "time::sleep"];

pub(super) fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in file.code_lines().chain(numbered(&file.comments)) {
        if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
            findings.push(file.finding(number, format!("`{marker}`: finish it, or open an issue")));
        }
    }
    let mut in_tests = is_test_file(&file.path);
    for (number, line) in file.code_lines() {
        let dense: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        // By convention a file's tests are its last part.
        in_tests |= dense.starts_with("#[cfg(test)]");
        findings.extend(line_faults(&dense, in_tests).map(|fault| file.finding(number, fault)));
    }
    findings
}

/// What is wrong with one line of code, given without its spaces.
fn line_faults(dense: &str, in_tests: bool) -> impl Iterator<Item = String> {
    let macros = MACROS
        .iter()
        .filter(|name| dense.contains(**name))
        .map(|name| format!("`{name}`: finish it, or open an issue"));
    let attributes = ATTRIBUTES
        .iter()
        .filter(|(pattern, _)| dense.contains(pattern))
        .map(|(pattern, advice)| format!("`{pattern}`: {advice}"));
    let sleeps = SLEEPS
        .iter()
        .filter(move |name| in_tests && dense.contains(**name))
        .map(|name| format!("`{name}` in a test: move the clock, or wait for a condition with a deadline"));
    macros.chain(attributes).chain(sleeps)
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests") || path.ends_with("/tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&File::new(path, text)).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn markers_are_caught_in_code_comments_and_documents() {
        for marker in MARKERS {
            assert_eq!(lines("a.rs", &format!("//! A.\n// {marker}: later\n")), [2]);
            assert_eq!(lines("a.rs", &format!("fn {marker}() {{}}")), [1]);
            assert_eq!(lines("a.md", &format!("{marker}\n")), [1]);
            assert!(lines("a.rs", &format!("const A: &str = \"{marker}\";")).is_empty());
            assert!(lines("a.md", &format!("{marker}S {marker}_A\n")).is_empty());
        }
    }

    #[test]
    fn unfinished_macros_are_caught() {
        assert_eq!(lines("a.rs", "fn f() { todo!() }\nfn g() { unimplemented ! () }"), [1, 2]);
    }

    #[test]
    fn switched_off_tests_and_lints_are_caught() {
        for attribute in [
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[should_panic(expected = \"a\")]",
            "#[allow(dead_code)]",
            "#![allow(dead_code)]",
            "# [ allow (dead_code) ]",
            "#[cfg_attr(test, allow(dead_code))]",
        ] {
            assert_eq!(lines("a.rs", &format!("\n{attribute}\nfn f() {{}}")), [2], "{attribute}");
        }
        assert!(lines("a.rs", "#[expect(dead_code, reason = \"a\")]\nfn ignore() { allow(); }").is_empty());
    }

    #[test]
    fn sleeps_are_caught_in_tests_alone() {
        let sleep = "fn f() { thread::sleep(d); }\n";
        assert!(lines("crates/a/src/b.rs", sleep).is_empty());
        assert_eq!(lines("crates/a/src/b.rs", &format!("{sleep}#[cfg(test)]\nmod tests {{ {sleep} }}")), [3]);
        assert_eq!(lines("crates/a/tests/b.rs", sleep), [1]);
        assert_eq!(lines("crates/a/src/b/tests.rs", "fn f() { tokio::time::sleep(d).await; }"), [1]);
    }
}
