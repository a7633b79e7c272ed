//! The form of a source file: it says what it is for, and it is short.

use super::Finding;
use super::file::File;

/// Past this a file is split; about 400 lines is normal.
const LINES_MAX: usize = 800;

pub(super) fn check(file: &File) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        findings.push(file.finding(1, "the file does not open with `//!` and what it is for"));
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        findings.push(file.finding(0, format!("{lines} lines, at most {LINES_MAX}; split it")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&File::new(path, text)).len()
    }

    #[test]
    fn file_opens_with_its_purpose() {
        assert_eq!(count("crates/a/src/lib.rs", "//! Purpose.\n"), 0);
        assert_eq!(count("crates/a/src/lib.rs", "use a;\n//! Purpose.\n"), 1);
        assert_eq!(count("crates/a/src/lib.rs", ""), 1);
        assert_eq!(count("README.md", "Purpose.\n"), 0);
    }

    #[test]
    fn file_ends_at_800_lines() {
        let lines = |count: usize| "//! A line.\n".repeat(count);
        assert_eq!(count("a.rs", &lines(800)), 0);
        assert_eq!(count("a.rs", &lines(801)), 1);
    }
}
