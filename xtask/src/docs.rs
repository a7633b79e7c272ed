//! `cargo xtask docs`: what is written for people holds.
//!
//! Four parts: the pages themselves (every link leads somewhere, every Rust snippet is one that is compiled), the
//! reference that rustdoc makes (no warnings), the snippets (they compile, and run where that makes sense), and the
//! tests that hold pages against the program: tables, queries, errors, command lines, JSON. `cargo xtask test` runs the
//! same parts, each in the step where it belongs and none twice.

mod links;
mod page;
mod snippets;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::{cargo, test, tidy};
use page::Page;

/// The crate whose documentation tests are the pages.
const GUIDES: &str = "examples/guides/src/lib.rs";

/// The command.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    if let Some(argument) = args.first() {
        bail!("docs takes no arguments, found `{argument}`");
    }
    pages()?;
    reference()?;
    tests()?;
    snippets()?;
    println!("\nthe documentation holds");
    Ok(ExitCode::SUCCESS)
}

/// Links, and which snippets are compiled at all. Addresses on the web are not asked: what others do must not fail a build.
pub(crate) fn pages() -> Result<()> {
    let paths = tidy::paths()?;
    let texts = tidy::texts(&paths);
    let guides = texts.iter().find(|(path, _)| *path == GUIDES).map_or("", |(_, text)| text.as_str());
    let pages: Vec<Page> =
        texts.iter().filter(|(path, _)| Page::is(path)).map(|(path, text)| Page::new(path, text)).collect();
    let mut findings: Vec<_> = pages.iter().flat_map(|page| links::check(page, &pages, &paths)).collect();
    findings.extend(pages.iter().flat_map(|page| snippets::check(page, guides)));
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("the pages have {} places to fix", findings.len());
    }
    println!("docs: {} pages are in order", pages.len());
    Ok(())
}

/// What rustdoc makes of the libraries. Libraries only: the binary `mainspring` would be written over the library of the
/// same name.
pub(crate) fn reference() -> Result<()> {
    let mut command = cargo::command();
    command.args(["doc", "--workspace", "--lib", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
    test::run_step(&mut command)
}

/// Every snippet of the pages and of the reference.
pub(crate) fn snippets() -> Result<()> {
    test::cargo_step(&["test", "--doc", "--workspace"])
}

/// Pages held against the program, which are part of the test run otherwise.
fn tests() -> Result<()> {
    test::cargo_step(&["test", "-p", "example-guides", "--tests"])?;
    test::cargo_step(&["test", "-p", "mainspring-cli", "--tests", "documents"])
}
