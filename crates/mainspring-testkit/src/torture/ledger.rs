//! The ledger: one history of many processes, kept where a kill cannot reach it.
//!
//! An append-only file with one event per line, in JSON. A line is written by one `write` call on a file that is open for
//! appending, so that lines of several processes never mix. A kill may tear the last line of its process where it crosses
//! a page; readers step over such a line.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use crate::history::{Actor, Event, Fact, Recorder};

use super::wait::now;
use super::{Error, Result};

/// The writing end.
#[derive(Debug)]
pub struct Ledger(File);

impl Ledger {
    /// Opens or creates a ledger.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map(Ledger).map_err(Error::io(format!("opening the ledger {}", path.display())))
    }

    fn write(&self, event: &Event) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        (&self.0).write_all(&line)
    }
}

impl Recorder for Ledger {
    fn note(&self, by: Actor, fact: Fact) {
        let event = Event { at: now(), by, fact };
        // A history with gaps proves nothing: whoever cannot write it down must not go on.
        self.write(&event).expect("the ledger can be written");
    }
}

/// All events, in the order in which they were written.
///
/// # Errors
/// [`Error::Io`].
pub fn read(path: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read(path).map_err(Error::io("reading the ledger"))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Writes a whole history in place of a ledger.
///
/// # Errors
/// [`Error::Io`].
pub fn rewrite(path: &Path, events: &[Event]) -> Result<()> {
    std::fs::remove_file(path).map_err(Error::io("removing the ledger"))?;
    let ledger = Ledger::open(path)?;
    let written = events.iter().try_for_each(|event| ledger.write(event));
    written.map_err(Error::io("writing the ledger"))
}

/// The event of a line. What was torn in front of it is skipped.
fn parse(line: &[u8]) -> Option<Event> {
    const START: &[u8] = br#"{"at":"#;
    serde_json::from_slice(line).ok().or_else(|| {
        let start = line.windows(START.len()).rposition(|window| window == START)?;
        serde_json::from_slice(&line[start..]).ok()
    })
}

/// Follows a ledger while it grows, and counts what was done.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    rest: Vec<u8>,
    /// Runs that came to their end.
    pub(super) ended: usize,
}

impl Tail {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("reading the ledger"))?;
        Ok(Tail { file, rest: Vec::new(), ended: 0 })
    }

    /// Reads on to the present end.
    pub(super) fn follow(&mut self) -> Result<()> {
        self.file.read_to_end(&mut self.rest).map_err(Error::io("reading the ledger"))?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let fresh: Vec<u8> = self.rest.drain(..whole).collect();
        let ended = |line: &&[u8]| line.windows(12).any(|window| window == br#""is":"ended""#);
        self.ended += fresh.split(|byte| *byte == b'\n').filter(ended).count();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_line_costs_itself_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ledger");
        let ledger = Ledger::open(&path).expect("a ledger");
        ledger.note(1, Fact::Calm);
        (&ledger.0).write_all(br#"{"at":17,"by":3,"is":"fau"#).expect("written");
        ledger.note(2, Fact::Calm);
        let events = read(&path).expect("a ledger");
        assert_eq!(events.iter().map(|event| event.by).collect::<Vec<_>>(), [1, 2]);
    }
}
