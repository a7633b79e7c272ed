//! All failure points, as the build found them in the sources.

/// A failure point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The crate that it is in.
    pub of: &'static str,
    /// Its name.
    pub name: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/points.rs"));

/// When a process comes by a point, told by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// While it works, again and again.
    Busy,
    /// When it joins.
    Joining,
    /// When it is sent home.
    Leaving,
    /// When it opens an empty store.
    Migrating,
    /// When it was stopped for longer than its lease, and wakes up.
    Woken,
    /// When it gives back what the dead have left.
    Rescuing,
    /// When it has lost an answer.
    Unsettled,
}

impl Point {
    /// When a process comes by: the second word of the name says so where it is not while it works.
    pub fn when(&self) -> When {
        match self.name.split('.').nth(1) {
            Some("join") => When::Joining,
            Some("leave") => When::Leaving,
            Some("migrate") => When::Migrating,
            Some("rejoin") => When::Woken,
            Some("rescue") => When::Rescuing,
            Some("lost") => When::Unsettled,
            _ => When::Busy,
        }
    }
}
