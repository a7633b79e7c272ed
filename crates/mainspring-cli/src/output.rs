//! Output: tables for people, JSON for programs, and a quiet end when nobody reads it.

use std::io::{self, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::color::{self, Color};

/// Where a command prints to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    json: bool,
    colors: bool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Out { json, colors: !json && color::wanted(io::stdout().is_terminal()) }
    }

    /// A text in a colour, if colours are wanted.
    pub(crate) fn paint(self, color: Color, text: &str) -> String {
        if self.colors { color.paint(text) } else { text.to_owned() }
    }

    /// Whether programs read the output.
    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Whether a person looks at the output as it comes.
    pub(crate) fn is_terminal(self) -> bool {
        !self.json && io::stdout().is_terminal()
    }

    /// Prints a line.
    #[expect(clippy::unused_self, reason = "printing goes through the output that was chosen")]
    pub(crate) fn line(self, text: impl AsRef<str>) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_ref().as_bytes())?;
        stdout.write_all(b"\n")?;
        stdout.flush()
    }

    /// Prints a value as JSON: readable on a terminal, one line elsewhere.
    pub(crate) fn value(self, value: &Value) -> io::Result<()> {
        let text = if io::stdout().is_terminal() { format!("{value:#}") } else { value.to_string() };
        self.line(text)
    }

    /// Prints one or the other, depending on who reads it.
    pub(crate) fn either(
        self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        if self.json { self.value(&value()) } else { self.line(text()) }
    }

    /// As [`table`](Self::table), with the cells below one header in colours.
    pub(crate) fn table_in_colors(
        self,
        headers: &[&str],
        rows: &[Vec<String>],
        header: &str,
        colors: &[Color],
    ) -> String {
        let table = self.table(headers, rows);
        if self.colors { color::column(&table, header, colors) } else { table }
    }

    /// A table without lines. On a terminal that is too narrow the columns move together, and then the last ones give
    /// way: a row is a line, always. Programs and pipes get everything.
    pub(crate) fn table(self, headers: &[&str], rows: &[Vec<String>]) -> String {
        let room = if self.is_terminal() { crossterm::terminal::size().ok() } else { None };
        // A terminal that does not know its width says 0.
        let room = room.filter(|(columns, _)| *columns > 0);
        let room = room.map_or(usize::MAX, |(columns, _)| usize::from(columns));
        fitted(headers, rows, room)
    }
}

/// Columns that are shown however narrow the terminal is.
const KEPT: usize = 3;

/// The widest form of a table that has room.
fn fitted(headers: &[&str], rows: &[Vec<String>], room: usize) -> String {
    let forms = (KEPT.min(headers.len())..headers.len()).rev().map(|columns| (columns, 1));
    let forms = [(headers.len(), 2), (headers.len(), 1)].into_iter().chain(forms);
    let mut text = String::new();
    for (columns, gap) in forms {
        text = drawn(&headers[..columns], rows, gap);
        if text.lines().all(|line| line.chars().count() <= room) {
            break;
        }
    }
    text
}

fn drawn(headers: &[&str], rows: &[Vec<String>], gap: u16) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers.to_vec());
    table.add_rows(rows.iter().map(|row| row[..headers.len()].to_vec()));
    for column in table.column_iter_mut() {
        column.set_padding((0, gap));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_costs_space_and_then_columns() {
        let headers = ["A", "B", "C", "D"];
        let rows = [["aaaa", "bbbb", "cccc", "dddd"].map(String::from).to_vec()];
        assert_eq!(fitted(&headers, &rows, 80), "A     B     C     D\naaaa  bbbb  cccc  dddd");
        assert_eq!(fitted(&headers, &rows, 21), "A    B    C    D\naaaa bbbb cccc dddd");
        assert_eq!(fitted(&headers, &rows, 18), "A    B    C\naaaa bbbb cccc");
        assert_eq!(fitted(&headers, &rows, 1), "A    B    C\naaaa bbbb cccc");
    }
}
