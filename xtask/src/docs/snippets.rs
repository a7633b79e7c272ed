//! Every snippet of a page is checked by somebody: Rust by rustdoc, JSON here, our own commands here.
//!
//! Rust is compiled because `examples/guides` includes the page. Command lines of `mainspring` are read by a test of the
//! program, queries are run by tests of the tables.

use crate::HELP;
use crate::tidy::Finding;

use super::page::{Page, Snippet};

/// `guides`: the source that includes the pages whose Rust is compiled.
pub(super) fn check(page: &Page, guides: &str) -> Vec<Finding> {
    let compiled = guides.contains(&format!("include_str!(\"../../../{}\")", page.path));
    let mut findings = Vec::new();
    if page.path.starts_with("docs/guides/") && !compiled {
        findings.push(page.finding(0, "examples/guides does not include this page"));
    }
    for snippet in &page.snippets {
        findings.extend(complaint(snippet, compiled).map(|complaint| page.finding(snippet.line, complaint)));
        for name in commands(&snippet.text) {
            if !HELP.contains(&format!("\n  {name} ")) {
                findings.push(page.finding(snippet.line, format!("there is no `cargo xtask {name}`")));
            }
        }
    }
    findings
}

fn complaint(snippet: &Snippet, compiled: bool) -> Option<String> {
    if !snippet.closed {
        return Some("the snippet has no end".to_owned());
    }
    let mut words = snippet.info.split(',').map(str::trim);
    match words.next() {
        Some("rust") if !compiled => {
            Some("nobody compiles this Rust: include the page in examples/guides".to_owned())
        }
        Some("rust") if words.any(|word| word.starts_with("ignore")) => {
            Some("Rust that is ignored is not compiled; use `no_run` or `compile_fail`".to_owned())
        }
        Some("json") => {
            let parsed = serde_json::from_str::<serde_json::Value>(&snippet.text);
            parsed.err().map(|error| format!("this is not JSON: {error}"))
        }
        _ => None,
    }
}

/// The words behind `cargo xtask`.
fn commands(text: &str) -> impl Iterator<Item = &str> {
    let behind = text.split("cargo xtask ").skip(1);
    behind.filter_map(|rest| rest.split_whitespace().next()).filter(|word| !word.starts_with(['<', '[', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        let guides = "#[doc = include_str!(\"../../../docs/guides/in.md\")]";
        check(&Page::new(path, text), guides).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn rust_is_compiled_or_found() {
        assert_eq!(complaints("docs/guides/in.md", "```rust,no_run\nfn a() {}\n```\n"), [""; 0]);
        let ignored = complaints("docs/guides/in.md", "\n```rust,ignore\nfn a() {}\n```\n");
        assert!(ignored[0].starts_with("docs/guides/in.md:2: Rust that is ignored"), "{ignored:?}");
        let outside = complaints("docs/x.md", "```rust\nfn a() {}\n```\n");
        assert!(outside[0].starts_with("docs/x.md:1: nobody compiles"), "{outside:?}");
        assert_eq!(complaints("docs/guides/out.md", "words\n").len(), 1);
    }

    #[test]
    fn json_and_our_own_commands_are_read() {
        assert_eq!(complaints("a.md", "```json\n{\"a\": 1}\n```\n```text\ncargo xtask docs\n```\n"), [""; 0]);
        assert!(complaints("a.md", "```json\n{a: 1}\n```\n")[0].starts_with("a.md:1: this is not JSON"));
        assert_eq!(
            complaints("a.md", "```\ncargo xtask nap\n```\n"),
            ["a.md:1: there is no `cargo xtask nap`"]
        );
        assert_eq!(complaints("a.md", "```\nopen\n"), ["a.md:1: the snippet has no end"]);
    }
}
