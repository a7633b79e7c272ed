//! Whoever uses the engine can write down every type that it takes and returns, with `mainspring` alone.
//!
//! The types are the core's, and the engine exports those that its users meet, each from the module where they look for it.
//! Two searches find what is missing: types in public signatures of the engine, and types of the public fields of what is
//! exported. The compiler knows when a type of the engine itself cannot be reached (`unreachable_pub`).

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::file::File;

const CORE: &str = "crates/mainspring-core/src/";
const ENGINE: &str = "crates/mainspring/src/";

/// Exports the whole core, for tools that look beneath the engine: what is found there alone is not found.
const BENEATH: &str = "crates/mainspring/src/store.rs";
/// What needs no other export: the store and what a suspension writes are beneath the engine, and the core's `Result` is the
/// engine's own as well.
const ELSEWHERE: [&str; 3] = ["store::Store", "journal::Suspension", "Result"];

/// A type of the core as its users call it: the module below the crate's root, and the name.
type Name = String;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let core: Vec<&File> = files.iter().filter(|file| is_part(file, CORE)).collect();
    let engine: Vec<&File> = files.iter().filter(|file| is_part(file, ENGINE)).collect();
    let exports: BTreeSet<Name> =
        engine.iter().filter(|file| file.path != BENEATH).flat_map(|file| exports(file)).collect();
    let is_there = |name: &str| {
        let module = name.split("::").next().unwrap_or_default();
        exports.contains(name) || exports.contains(module) || ELSEWHERE.contains(&name)
    };
    let fields: BTreeMap<Name, Vec<(&File, Signature)>> = definitions(&core);
    let mut findings = Vec::new();
    for file in &engine {
        let imports = imports(file, "mainspring_core");
        for signature in signatures(file) {
            for name in signature.types(&imports) {
                if !is_there(&name) {
                    findings.push(missing(file, signature.line, &name, "is in a public signature"));
                }
            }
        }
    }
    for name in &exports {
        for (file, signature) in fields.get(name).into_iter().flatten() {
            let module = module(&file.path);
            let mut imports = imports(file, "crate");
            // What a file defines needs no import, nor what its parent hands down.
            for other in fields.keys() {
                if let Some(("", own)) = other.strip_prefix(module).and_then(|rest| rest.split_once("::")) {
                    imports.entry(own.to_owned()).or_insert_with(|| other.clone());
                }
            }
            for other in signature.types(&imports) {
                if !is_there(&other) {
                    let why = format!("is in `{name}`, which the engine exports,");
                    findings.push(missing(file, signature.line, &other, &why));
                }
            }
        }
    }
    findings.sort();
    findings.dedup();
    findings
}

fn missing(file: &File, line: usize, name: &str, why: &str) -> Finding {
    file.finding(line, format!("`{name}` {why} but cannot be named from `mainspring`: export it there"))
}

fn is_part(file: &File, crate_dir: &str) -> bool {
    let is_test = |part: &str| ["tests", "tests.rs", "interleavings", "fuzz.rs"].contains(&part);
    file.is_rust() && file.path.starts_with(crate_dir) && !file.path.split('/').any(is_test)
}

/// The module of the core that users know a file by: the first below the root.
fn module(path: &str) -> &str {
    let path = path.strip_prefix(CORE).unwrap_or(path);
    path.split(['/', '.']).next().unwrap_or_default()
}

/// Types and whole modules of the core that a file exports.
fn exports(file: &File) -> Vec<Name> {
    let exports =
        uses(&file.code).into_iter().filter(|used| used.public && used.path[0] == "mainspring_core");
    exports.map(|used| used.path[1..].join("::")).collect()
}

/// What names in a file stand for, as far as they come from `root`, the core.
fn imports(file: &File, root: &str) -> BTreeMap<String, Name> {
    let imports = uses(&file.code).into_iter().filter(|used| used.path[0] == root && used.path.len() > 1);
    imports.map(|used| (used.name, used.path[1..].join("::"))).collect()
}

/// What one `use` declares.
struct Used {
    public: bool,
    path: Vec<String>,
    /// What the file calls it.
    name: String,
}

fn uses(code: &str) -> Vec<Used> {
    let mut found = Vec::new();
    for statement in code.split(';') {
        let Some((before, tree)) = statement.rsplit_once("use ") else { continue };
        expand(before.trim_end().ends_with("pub"), tree.trim(), &[], &mut found);
    }
    found
}

/// Takes `a::{b, c::d}` apart into `a::b` and `a::c::d`.
fn expand(public: bool, tree: &str, before: &[String], found: &mut Vec<Used>) {
    let (stem, inside) = match tree.split_once('{') {
        Some((stem, rest)) => (stem, Some(rest.rsplit_once('}').map_or(rest, |(inside, _)| inside))),
        None => (tree, None),
    };
    let (stem, alias) = stem.split_once(" as ").map_or((stem, None), |(stem, alias)| (stem, Some(alias)));
    let parts = stem.split("::").map(str::trim).filter(|part| !part.is_empty() && *part != "self");
    let path: Vec<String> = before.iter().cloned().chain(parts.map(str::to_owned)).collect();
    if let Some(inside) = inside {
        for branch in branches(inside).into_iter().map(str::trim).filter(|branch| !branch.is_empty()) {
            expand(public, branch, &path, found);
        }
    } else if let Some(last) = path.last() {
        let name = alias.map_or(last.as_str(), str::trim).to_owned();
        found.push(Used { public, path, name });
    }
}

/// What commas separate outside of braces.
fn branches(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The part of an item that its users see.
struct Signature {
    line: usize,
    text: String,
}

impl Signature {
    /// The types of the core in it.
    fn types<'a>(&'a self, imports: &'a BTreeMap<String, Name>) -> impl Iterator<Item = Name> + 'a {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let words = self.text.split(move |c: char| !is_path(c)).map(|word| word.trim_matches(':'));
        let is_type =
            |word: &&str| word.rsplit("::").next().is_some_and(|last| last.starts_with(char::is_uppercase));
        words.filter(is_type).filter_map(|word| match word.split_once("::") {
            Some(("mainspring_core", path)) => Some(path.to_owned()),
            Some((first, rest)) => imports.get(first).map(|module| format!("{module}::{rest}")),
            None => imports.get(word).cloned(),
        })
    }
}

/// Public functions, fields, variants and aliases of a file.
fn signatures(file: &File) -> Vec<Signature> {
    items(file).into_iter().map(|(_, signature)| signature).collect()
}

/// What the core defines for its users, with the types that are visible in it.
fn definitions<'a>(core: &[&'a File]) -> BTreeMap<Name, Vec<(&'a File, Signature)>> {
    let mut definitions: BTreeMap<Name, Vec<_>> = BTreeMap::new();
    for file in core {
        for (name, signature) in items(file) {
            if let Some(name) = name {
                let name = format!("{}::{name}", module(&file.path));
                definitions.entry(name).or_default().push((*file, signature));
            }
        }
    }
    definitions
}

/// Public items of a file: the names of types, and what is visible of each item.
fn items(file: &File) -> Vec<(Option<String>, Signature)> {
    let mut items = Vec::new();
    let mut at = 0;
    for line in file.code.split_inclusive('\n') {
        let (start, words) = (at, line.trim_start());
        at += line.len();
        let Some(item) = words.strip_prefix("pub ").or_else(|| words.strip_prefix("type Output")) else {
            continue;
        };
        let kind = item.split_whitespace().find(|word| !["async", "const", "unsafe"].contains(word));
        let rest = &file.code[start..];
        let named = |kind: &str| {
            let name = item.strip_prefix(kind)?.trim_start();
            Some(name[..name.find(|c: char| !c.is_alphanumeric() && c != '_')?].to_owned())
        };
        let (name, text) = match kind {
            // A public field belongs to the struct that was found before.
            Some(kind) if kind.ends_with(':') => continue,
            Some("use" | "mod") => continue,
            Some("struct") => (named("struct"), fields(body(rest))),
            Some("enum") => (named("enum"), variants(body(rest))),
            Some("trait") => (named("trait"), head(rest).to_owned()),
            Some("type") => (named("type"), head(rest).to_owned()),
            _ => (None, head(rest).to_owned()),
        };
        let line = file.code[..start].matches('\n').count() + 1;
        items.push((name, Signature { line, text }));
    }
    items
}

/// An item up to its body.
fn head(item: &str) -> &str {
    &item[..item.find(['{', ';']).unwrap_or(item.len())]
}

/// An item with its body.
fn body(item: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in item.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return &item[..at],
            '}' => depth -= 1,
            ';' if depth == 0 => return &item[..at],
            _ => {}
        }
    }
    item
}

/// An enum without the names of its variants.
fn variants(item: &str) -> String {
    let (mut depth, mut is_name, mut text) = (0_usize, false, String::new());
    for c in item.chars() {
        match c {
            '{' | '(' => depth += 1,
            '}' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        is_name = match c {
            '{' | ',' if depth == 1 => true,
            '{' | '(' | '=' => false,
            _ => is_name,
        };
        text.push(if is_name && c.is_alphanumeric() { ' ' } else { c });
    }
    text
}

/// The public fields of a struct, and its head.
fn fields(item: &str) -> String {
    match item.split_once('{') {
        Some((head, body)) => {
            let visible = body.split(',').filter(|field| field.trim_start().contains("pub "));
            std::iter::once(head).chain(visible).collect::<Vec<_>>().join(",")
        }
        None if item.contains("(pub ") => item.to_owned(),
        None => item.split('(').next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "use crate::time::Timestamp;\npub struct Record {\n    pub at: Timestamp,\n    secret: Row,\n    \
        pub kind: Kind,\n}\npub enum Kind { Plain(Row) }\npub struct Row(i64);\n";

    fn found(lib: &str, engine: &str) -> Vec<String> {
        let files = [
            File::new("crates/mainspring-core/src/job/record.rs", JOB),
            File::new("crates/mainspring-core/src/time.rs", "pub struct Timestamp(i64);\n"),
            File::new("crates/mainspring-core/src/store/mod.rs", "pub trait Store {\n}\n"),
            File::new("crates/mainspring/src/lib.rs", lib),
            File::new("crates/mainspring/src/store.rs", "pub use mainspring_core::{job, time};\n"),
            File::new("crates/mainspring/src/jobs.rs", engine),
        ];
        check(&files).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_type_of_a_public_signature_is_exported() {
        let imported = "use mainspring_core::job::{self, Record};\nuse mainspring_core::store::Store;\n";
        for signature in [
            "pub async fn get(&self) -> Result<Record> {\n",
            "pub fn get(\n    at: mainspring_core::job::Record,\n) {\n",
            "pub struct Got {\n    pub record: job::Record,\n}\n",
            "pub enum Got {\n    One(Record),\n}\n",
            "type Output = Result<Record>;\n",
        ] {
            let messages = found("", &format!("{imported}{signature}"));
            assert_eq!(messages.len(), 1, "{signature}: {messages:?}");
            assert!(messages[0].starts_with("`job::Record` is in a public signature"), "{messages:?}");
            let all = "pub use mainspring_core::{time, job::{Kind, Record, Row}};\n";
            assert!(found(all, &format!("{imported}{signature}")).is_empty(), "{signature}");
        }
        for private in [
            "pub(crate) fn get() -> Record {\n",
            "pub struct Got {\n    record: Record,\n}\n",
            "fn get() -> Record {\n    pub_fn()\n}\n",
            "pub fn store(&self) -> &dyn Store {\n",
            "pub fn get() -> usize {\n    let record: Record = todo();\n}\n",
        ] {
            assert!(found("", &format!("{imported}{private}")).is_empty(), "{private}");
        }
    }

    #[test]
    fn so_are_the_types_of_its_public_fields() {
        let messages = found("pub use mainspring_core::job::Record;\n", "");
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages.iter().any(|message| message.starts_with("`job::Kind` is in `job::Record`")));
        assert!(messages.iter().any(|message| message.starts_with("`time::Timestamp` is in")));
        let messages = found("pub use mainspring_core::{job::Kind, time};\n", "");
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].starts_with("`job::Row` is in `job::Kind`"), "{messages:?}");
    }
}
