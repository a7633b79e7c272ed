//! Unique keys: at most one job of a kind with the same key at a time.
//!
//! A key is held from the enqueue until the job starts, ends, or a while after it has ended. It is released once and
//! never taken again, so that a retry can never conflict.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::time::as_span;
use crate::{Error, Result};

/// A unique key, and its rules. A job holds it until [`Until`] says; [`OnConflict`] decides about a second job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unique {
    /// The key, unique among jobs of one kind.
    pub key: String,
    /// How long the job holds it. Default: until the job ends.
    #[serde(default)]
    pub until: Until,
    /// The answer to a second job with the key. Default: [`OnConflict::Keep`].
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// When a job releases its unique key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// When a node first claims the job.
    Started,
    /// When the job ends.
    #[default]
    Finished,
    /// This long after the job has ended.
    #[serde(with = "as_span")]
    After(Duration),
}

/// The answer to a job whose key another job holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Nothing is stored; the caller gets the id of the job that holds the key.
    #[default]
    Keep,
    /// The holder is cancelled if it still waits, and the new job, with a new id, takes its key. A holder that runs
    /// or has ended is kept.
    Replace,
    /// Nothing is stored; the caller gets [`Error::Conflict`](crate::Error::Conflict) with the id of the job that
    /// holds the key.
    Reject,
}

impl Until {
    /// The number that stands for [`Started`](Until::Started) in a store.
    pub const STARTED: u8 = 0;
    /// The number that stands for [`Finished`](Until::Finished) in a store.
    pub const FINISHED: u8 = 1;
    /// The number that stands for [`After`](Until::After) in a store, beside the period.
    pub const AFTER: u8 = 2;

    /// Returns what a store keeps: its number, and the period after the end, which is zero for the others.
    pub const fn code(self) -> (u8, Duration) {
        match self {
            Until::Started => (Until::STARTED, Duration::ZERO),
            Until::Finished => (Until::FINISHED, Duration::ZERO),
            Until::After(period) => (Until::AFTER, period),
        }
    }

    /// Holds the key for this long after the job has ended.
    pub const fn after(period: Duration) -> Self {
        Until::After(period)
    }
}

impl Unique {
    /// A key that is held until the job ends, and that keeps the existing job on conflict.
    pub fn new(key: impl Into<String>) -> Self {
        Unique { key: key.into(), until: Until::default(), on_conflict: OnConflict::default() }
    }

    /// Sets how long the key is held.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Cancels a waiting holder and takes its key.
    #[must_use]
    pub fn replace(mut self) -> Self {
        self.on_conflict = OnConflict::Replace;
        self
    }

    /// Refuses the new job with an error if the key is held.
    #[must_use]
    pub fn reject(mut self) -> Self {
        self.on_conflict = OnConflict::Reject;
        self
    }

    /// Checks the bounds.
    pub(super) fn check(&self) -> Result<()> {
        const WHAT: &str = "unique key";
        if self.key.is_empty() {
            return Err(Error::Invalid { what: WHAT, why: "empty".into() });
        }
        if self.key.len() > bounds::KEY_BYTES {
            return Err(Error::TooLarge { what: WHAT, size: self.key.len(), limit: bounds::KEY_BYTES });
        }
        if self.key.contains('\0') {
            return Err(Error::Invalid { what: WHAT, why: "NUL is not allowed".into() });
        }
        match self.until {
            Until::After(period) if period > bounds::DELAY => {
                Err(Error::Invalid { what: "unique period", why: "longer than ten years".into() })
            }
            Until::After(_) | Until::Started | Until::Finished => Ok(()),
        }
    }
}

impl<T: Into<String>> From<T> for Unique {
    fn from(key: T) -> Self {
        Unique::new(key)
    }
}
