//! A page of Markdown, taken apart into prose, snippets and headings.
//!
//! As much of Markdown as the pages here use: fences of backticks, inline code, headings with `#`.
//!
//! # Invariants
//! - `prose` has as many lines as the text: what is code is blank in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Finding;

/// One page.
pub(super) struct Page {
    /// Relative to the root, with `/` between its parts.
    pub(super) path: String,
    /// All that is no code.
    pub(super) prose: String,
    pub(super) snippets: Vec<Snippet>,
    /// What links after `#` can name.
    pub(super) anchors: BTreeSet<String>,
}

/// A block of code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet {
    /// Where its fence opens, from 1.
    pub(super) line: usize,
    /// What stands behind the backticks.
    pub(super) info: String,
    pub(super) text: String,
    pub(super) closed: bool,
}

impl Page {
    /// Whether a file is one.
    pub(super) fn is(path: &str) -> bool {
        std::path::Path::new(path).extension().is_some_and(|extension| extension == "md")
    }

    pub(super) fn new(path: &str, text: &str) -> Self {
        let mut prose = String::new();
        let mut snippets: Vec<Snippet> = Vec::new();
        let mut headings = Vec::new();
        let mut fence: Option<Snippet> = None;
        for (index, line) in text.lines().enumerate() {
            let mark = line.trim_start().strip_prefix("```");
            match (&mut fence, mark) {
                (Some(_), Some("")) => {
                    snippets.extend(fence.take().map(|snippet| Snippet { closed: true, ..snippet }));
                }
                (Some(snippet), _) => {
                    snippet.text.push_str(line);
                    snippet.text.push('\n');
                }
                (None, Some(info)) => {
                    let (info, text) = (info.trim().to_owned(), String::new());
                    fence = Some(Snippet { line: index + 1, info, text, closed: false });
                }
                (None, None) => {
                    if let Some(heading) = heading(line) {
                        headings.push(heading);
                    }
                    prose.push_str(line);
                }
            }
            prose.push('\n');
        }
        snippets.extend(fence);
        let prose = without_inline_code(&prose);
        Page { path: path.to_owned(), prose, snippets, anchors: anchors(&headings) }
    }

    pub(super) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }
}

/// The text of a line that is a heading.
fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level)).then(|| text.strip_prefix(' ')).flatten().map(str::trim)
}

/// The anchors of headings, as GitHub makes them: a second one of the same words is numbered.
fn anchors(headings: &[&str]) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let numbered = headings.iter().map(|heading| {
        let slug = slug(heading);
        let count = seen.entry(slug.clone()).or_default();
        *count += 1;
        if *count == 1 { slug } else { format!("{slug}-{}", *count - 1) }
    });
    numbered.collect()
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

/// Blanks what stands between backticks on one line or, as prose is wrapped, on two.
fn without_inline_code(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find('`') {
        let ticks = rest[begin..].len() - rest[begin..].trim_start_matches('`').len();
        let mark = &rest[begin..begin + ticks];
        let inside = &rest[begin + ticks..];
        prose.push_str(&rest[..begin]);
        let end = inside.find(mark).filter(|end| !inside[..*end].contains("\n\n"));
        let Some(end) = end else {
            prose.push_str(mark);
            rest = inside;
            continue;
        };
        let code = &rest[begin..begin + 2 * ticks + end];
        prose.extend(code.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[begin + code.len()..];
    }
    prose.push_str(rest);
    prose
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_no_prose() {
        let page = Page::new("a.md", "# A\nuse `[x](y)` and\n```rust,no_run\n[z](w)\n```\nend `a\nb` c\n");
        assert_eq!(page.prose, "# A\nuse          and\n\n\n\nend   \n   c\n");
        let snippet = Snippet { line: 3, info: "rust,no_run".into(), text: "[z](w)\n".into(), closed: true };
        assert_eq!(page.snippets, [snippet]);
    }

    #[test]
    fn a_fence_that_is_never_closed_is_known() {
        assert!(!Page::new("a.md", "```\ntext\n").snippets[0].closed);
    }

    #[test]
    fn headings_have_the_anchors_of_github() {
        let page = Page::new("a.md", "# Why is it not running?\n## `Open`\n## A, b & c\n## `Open`\n#no\n");
        let anchors: Vec<&str> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-b--c", "open", "open-1", "why-is-it-not-running"]);
    }
}
