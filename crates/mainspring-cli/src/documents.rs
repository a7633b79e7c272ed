//! Every command line in the documents is one that the program takes.

use std::path::{Path, PathBuf};

use clap::Parser;

use crate::args::Args;
use crate::command::tail;

/// What stands for the program in the documents.
const PROGRAMS: [&str; 2] = ["mainspring ", "cargo run --release -- "];

/// All pages, with their paths.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Vec::new();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.push(root.join("README.md"));
    pages.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).expect("a page"))).collect()
}

/// Command lines of a page: lines of snippets, and code within prose, that begin with the program.
fn command_lines(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
            continue;
        }
        let pieces: Vec<&str> = if inside {
            vec![line.trim().trim_start_matches("$ ")]
        } else {
            line.split('`').skip(1).step_by(2).collect()
        };
        for piece in pieces {
            let command = PROGRAMS.iter().find_map(|program| piece.strip_prefix(program));
            // A dependency in a manifest begins like a command.
            lines.extend(command.filter(|command| !command.starts_with('=')).map(str::to_owned));
        }
    }
    lines
}

/// The words of a command line as a shell takes them, up to a comment, a pipe or the next command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '>' | '&' | ';') => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn command_lines_of_the_documents_are_taken() {
    let mut read = 0;
    for (path, page) in pages() {
        for line in command_lines(&page) {
            // A form with something left out is for people: `job ID VERB`, `queue …`.
            if line.contains(['…', '[', '<']) || line.contains("VERB") {
                continue;
            }
            let mut words = words(&line);
            if words.len() == 1 {
                // A command is named, not run.
                words.push("--help".to_owned());
            }
            let words = std::iter::once("mainspring".to_owned()).chain(words).map(Into::into);
            if let Err(error) = Args::try_parse_from(tail::in_order(words.collect())) {
                assert!(!error.use_stderr(), "{}: `mainspring {line}`\n{error}", path.display());
            }
            read += 1;
        }
    }
    assert!(read > 30, "{read} command lines are in the documents");
}

#[test]
fn words_are_those_of_a_shell() {
    assert_eq!(
        words("jobs --why \"sent by mistake\" '{\"a\": 1}'  # all"),
        ["jobs", "--why", "sent by mistake", "{\"a\": 1}"]
    );
    assert_eq!(words("jobs | head; x"), ["jobs"]);
    assert_eq!(words("enqueue a ''"), ["enqueue", "a", ""]);
}
