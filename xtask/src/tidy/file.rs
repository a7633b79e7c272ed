//! A file as the rules see it: Rust sources taken apart into code, comments and string literals.
//!
//! A rule about code must not fire on a comment that explains it, and this program's own patterns are string literals.
//! So a small lexer blanks out what is not wanted and keeps line numbers. It knows nested comments, raw strings and the
//! difference between a lifetime and a character.
//!
//! # Invariants
//! - `code` and `comments` have as many lines as the text.
//! - Every character other than a line break is in at most one of `code`, `comments` and `literals`.

use std::path::Path;

use super::Finding;

/// One file, taken apart. Files in other languages are all comment.
pub(super) struct File {
    /// Relative to the root, with `/` between its parts.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) code: String,
    pub(super) comments: String,
    pub(super) literals: Vec<Literal>,
}

/// The content of one string literal, as written.
pub(super) struct Literal {
    /// Where it starts, from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

enum Part {
    Code,
    Comment,
    Text,
}

impl File {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let mut file = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: String::new(),
            comments: String::new(),
            literals: Vec::new(),
        };
        if file.is_rust() {
            file.take_apart(text);
        } else {
            text.clone_into(&mut file.comments);
        }
        file
    }

    pub(super) fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == "rs")
    }

    /// True if the file is one of the crates named, and part of what they ship.
    pub(super) fn is_source_of(&self, crates: &[&str]) -> bool {
        self.is_rust() && crates.iter().any(|name| self.path.starts_with(&format!("crates/{name}/src/")))
    }

    pub(super) fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    /// Lines of code with their numbers from 1.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.code)
    }

    fn take_apart(&mut self, text: &str) {
        let mut at = 0;
        let mut line = 1;
        while at < text.len() {
            let after_word = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let (part, length) = next_part(&text[at..], after_word);
            let taken = &text[at..at + length];
            let (code, comment) = match part {
                Part::Code => (taken.to_owned(), blank(taken)),
                Part::Comment => (blank(taken), taken.to_owned()),
                Part::Text => {
                    self.literals.push(Literal { line, text: unquoted(taken).to_owned() });
                    (blank(taken), blank(taken))
                }
            };
            self.code.push_str(&code);
            self.comments.push_str(&comment);
            line += taken.matches('\n').count();
            at += length;
        }
    }
}

/// Lines with their numbers from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// True if `line` contains `word` with nothing that would make it part of a longer word.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(joins) && !line[at + word.len()..].starts_with(joins))
}

/// What `rest` starts with, and its length in bytes.
fn next_part(rest: &str, after_word: bool) -> (Part, usize) {
    if rest.starts_with("//") {
        return (Part::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Part::Comment, block_comment(rest));
    }
    if !after_word && let Some(length) = raw_string(rest) {
        return (Part::Text, length);
    }
    if rest.starts_with('"') {
        return (Part::Text, string(rest));
    }
    if let Some(length) = character(rest) {
        return (Part::Text, length);
    }
    (Part::Code, rest.chars().next().map_or(1, char::len_utf8))
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    })?;
    let body = &rest[prefix.len()..];
    let hashes = body.len() - body.trim_start_matches('#').len();
    let closing = format!("\"{}", "#".repeat(hashes));
    let open = prefix.len() + hashes + 1;
    Some(rest[open..].find(&closing).map_or(rest.len(), |at| open + at + closing.len()))
}

fn string(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `'x'`, `'\''` or `'\u{1F600}'`, but not the lifetime `'x`.
fn character(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    let first = body.chars().next()?;
    // An escape is at least two characters, the second of which may be a quote.
    let (skipped, at_once) = if first == '\\' { (2, false) } else { (first.len_utf8(), true) };
    let closing = body.get(skipped..)?.find('\'')?;
    (closing == 0 || !at_once).then_some(1 + skipped + closing + 1)
}

fn blank(taken: &str) -> String {
    taken.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}

fn unquoted(taken: &str) -> &str {
    let quotes = |c: char| c == '"' || c == '\'' || c == '#';
    taken.trim_start_matches(|c: char| c.is_ascii_lowercase()).trim_matches(quotes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> File {
        File::new("a.rs", text)
    }

    fn literals(text: &str) -> Vec<String> {
        rust(text).literals.into_iter().map(|literal| literal.text).collect()
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let file = rust("a(); // b()\n/* c /* d */ e */ f(\"g\");\n");
        assert_eq!(file.code.split_whitespace().collect::<Vec<_>>(), ["a();", "f(", ");"]);
        assert_eq!(file.comments.trim_end().lines().next().map(str::trim), Some("// b()"));
        assert_eq!(file.comments.lines().count(), file.text.lines().count());
    }

    #[test]
    fn strings_end_where_they_end() {
        assert_eq!(literals(r#"f("a\"b", "c // d") // "e""#), [r#"a\"b"#, "c // d"]);
        assert_eq!(literals("f(r#\"a\"b\"#, br\"c\\\", r#type)"), ["a\"b", "c\\"]);
        assert_eq!(literals("\"never closed"), ["never closed"]);
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        let file = rust(
            "fn f<'a>(x: &'a str) -> char { match x { _ => '\"' } } // 'tis\nlet q = '\\''; let z = 'é';",
        );
        assert!(file.code.contains("<'a>(x: &'a str)"), "{}", file.code);
        assert_eq!(file.literals.len(), 3);
        assert!(file.code.contains("let z ="));
    }

    #[test]
    fn literal_knows_its_line() {
        let file = rust("\n\nlet a = \"x\ny\";\nlet b = \"z\";");
        assert_eq!(file.literals.iter().map(|literal| literal.line).collect::<Vec<_>>(), [3, 5]);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("use a::HashMap;", "HashMap"));
        assert!(!has_word("use a::HashMapper;", "HashMap"));
        assert!(!has_word("use a::MyHashMap;", "HashMap"));
    }
}
