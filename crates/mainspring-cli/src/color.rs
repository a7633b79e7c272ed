//! Colors: for terminals alone, and not for people who do not want them.
//!
//! `NO_COLOR`, set to anything, turns them off (<https://no-color.org>); so does a terminal that says it is `dumb`.

use mainspring::State;

/// What a piece of text looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
    Faint,
    Bold,
}

impl Color {
    /// What stands for it between `ESC [` and `m`.
    const fn code(self) -> &'static str {
        match self {
            Color::Red => "31",
            Color::Green => "32",
            Color::Yellow => "33",
            Color::Blue => "34",
            Color::Magenta => "35",
            Color::Cyan => "36",
            Color::Faint => "2",
            Color::Bold => "1",
        }
    }

    /// A text in this colour.
    pub(crate) fn paint(self, text: &str) -> String {
        if text.is_empty() { String::new() } else { format!("\u{1b}[{}m{text}\u{1b}[0m", self.code()) }
    }
}

/// Whether what is written to a stream is coloured. `terminal`: whether the stream is one.
pub(crate) fn wanted(terminal: bool) -> bool {
    terminal && allowed(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref())
}

fn allowed(no_color: Option<&std::ffi::OsStr>, term: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(std::ffi::OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// The colour of a state, as in the live view.
pub(crate) fn of(state: State) -> Color {
    match state {
        State::Ready => Color::Cyan,
        State::Scheduled => Color::Blue,
        State::Running => Color::Yellow,
        State::Succeeded => Color::Green,
        State::Failed => Color::Red,
        State::Suspended | State::Cancelled => Color::Magenta,
        State::Blocked | State::Skipped => Color::Faint,
    }
}

/// A table whose cells below one header are coloured, row by row, and whose headers are faint. The cells must not contain
/// what is wider or narrower than one column per character.
pub(crate) fn column(table: &str, header: &str, colors: &[Color]) -> String {
    let mut lines = table.lines();
    let Some(first) = lines.next() else { return String::new() };
    let Some(begin) = first.find(header) else { return table.to_owned() };
    let end = first[begin + header.len()..].find(|c: char| c != ' ').map(|at| begin + header.len() + at);
    let mut painted = vec![Color::Faint.paint(first)];
    for (line, color) in lines.zip(colors.iter().map(Some).chain(std::iter::repeat(None))) {
        let cell = line.get(begin..end.unwrap_or(line.len()).min(line.len()));
        painted.push(match (cell, color) {
            (Some(cell), Some(color)) => {
                let word = cell.trim_end();
                format!("{}{}{}", &line[..begin], color.paint(word), &line[begin + word.len()..])
            }
            _ => line.to_owned(),
        });
    }
    painted.join("\n")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn nobody_is_coloured_against_their_will() {
        let on = |no_color: Option<&str>, term: Option<&str>| {
            allowed(no_color.map(OsStr::new), term.map(OsStr::new))
        };
        assert!(on(None, Some("xterm-256color")) && on(Some(""), None));
        assert!(!on(Some("1"), Some("xterm")) && !on(Some("0"), None) && !on(None, Some("dumb")));
        assert!(!wanted(false));
    }

    #[test]
    fn one_column_is_coloured_and_nothing_moves() {
        let table = "ID  STATE    KIND\n1   failed   a\n22  ready    b";
        let painted = column(table, "STATE", &[Color::Red, Color::Cyan]);
        let expected = "\u{1b}[2mID  STATE    KIND\u{1b}[0m\n1   \u{1b}[31mfailed\u{1b}[0m   a\n\
            22  \u{1b}[36mready\u{1b}[0m    b";
        assert_eq!(painted, expected);
        assert_eq!(column("A\nb", "STATE", &[Color::Red]), "A\nb");
        assert_eq!(
            column("STATE\nx", "STATE", &[Color::Red]),
            "\u{1b}[2mSTATE\u{1b}[0m\n\u{1b}[31mx\u{1b}[0m"
        );
    }
}
