//! Output: tables for people, JSON for programs, and a quiet end when nobody reads it.

use std::io::{self, IsTerminal, Write};

use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde_json::Value;

/// Where a command prints to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    json: bool,
}

/// Columns narrower than this are unreadable: identifiers are never broken.
const ID_WIDTH: u16 = 36;

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Out { json }
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

    /// A table without lines, fitted to the terminal if there is one. A column named `ID` is never broken.
    pub(crate) fn table(self, headers: &[&str], rows: Vec<Vec<String>>) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(headers.to_vec());
        let arrangement =
            if self.is_terminal() { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        table.set_content_arrangement(arrangement);
        table.add_rows(rows);
        for (column, header) in table.column_iter_mut().zip(headers) {
            column.set_padding((0, 2));
            if *header == "ID" {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(ID_WIDTH + 2)));
            }
        }
        table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }
}
