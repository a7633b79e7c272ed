//! The effects ledger: what handlers did, kept where a kill cannot reach it.
//!
//! An append-only text file. A line is written by one `write` call on a file opened for appending, so that lines of
//! several processes never mix and a killed process leaves whole lines only.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use mainspring_core::id::JobId;

/// Something that a handler did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// Whether this is the end of the run or its beginning.
    pub ended: bool,
    /// The job.
    pub job: JobId,
    /// The claim under which it was done.
    pub claim: u32,
    /// The process that did it.
    pub pid: u32,
}

/// The writing end.
#[derive(Debug)]
pub struct Ledger(File);

impl Ledger {
    /// Opens or creates a ledger.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Ledger)
    }

    /// Adds an effect.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn write(&self, effect: Effect) -> io::Result<()> {
        let Effect { ended, job, claim, pid } = effect;
        let line = format!("{} {job} {claim} {pid}\n", if ended { "end" } else { "begin" });
        (&self.0).write_all(line.as_bytes())
    }
}

/// All effects, in the order in which they were written.
///
/// # Errors
/// What the operating system says, or `InvalidData` for a line that no [`Ledger`] wrote.
pub fn read(path: &Path) -> io::Result<Vec<Effect>> {
    let bad = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not an effect: {line:?}"));
    std::fs::read_to_string(path)?.lines().map(|line| parse(line).ok_or_else(|| bad(line))).collect()
}

fn parse(line: &str) -> Option<Effect> {
    let mut words = line.split(' ');
    let ended = match words.next()? {
        "begin" => false,
        "end" => true,
        _ => return None,
    };
    Some(Effect {
        ended,
        job: JobId::from_str(words.next()?).ok()?,
        claim: words.next()?.parse().ok()?,
        pid: words.next()?.parse().ok()?,
    })
}
