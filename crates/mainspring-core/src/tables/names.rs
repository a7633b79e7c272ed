//! Interned names: queues, kinds and lines, which tables call by small numbers.

use std::time::Duration;

use crate::job::New;
use crate::name::{Kind, Label, QueueName};
use crate::store::{Queue, Retention, Settings};
use crate::time::{Span, micros};
use crate::{Error, Result, bounds};

/// One line, of a store whose numbers of names are `N`.
#[derive(Debug, Clone)]
pub struct Line<N> {
    /// The number of its queue.
    pub queue: N,
    /// The name of its queue.
    pub queue_name: QueueName,
    /// The number of its kind.
    pub kind: N,
    /// The name of its kind.
    pub kind_name: Kind,
    /// The labels that its jobs require.
    pub labels: Vec<Label>,
}

/// Whether two jobs are of one line.
pub fn is_same_line(one: &New, other: &New) -> bool {
    one.kind == other.kind && one.queue == other.queue && one.options.labels == other.options.labels
}

/// Refuses so many new lines beside those that there are, if that would be too many.
///
/// # Errors
/// [`Error::TooLarge`].
pub fn check_room(lines: i64, new: usize) -> Result<()> {
    let size = usize::try_from(lines).unwrap_or(usize::MAX).saturating_add(new);
    if size > bounds::LINES {
        return Err(Error::TooLarge { what: "number of lines", size, limit: bounds::LINES });
    }
    Ok(())
}

/// The columns of a row of the table of queues.
#[derive(Debug)]
pub struct QueueColumns {
    /// Its name.
    pub name: String,
    /// Whether it gives no jobs.
    pub paused: bool,
    /// The backoff of its jobs, if it has one.
    pub backoff: Option<String>,
    /// How long jobs that succeeded are kept, in microseconds.
    pub retain_succeeded: i64,
    /// How long others that ended are kept, in microseconds.
    pub retain_failed: i64,
}

impl QueueColumns {
    /// The queue.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a column cannot be read.
    pub fn read(self) -> Result<Queue> {
        let span = |micros: i64| Span(Duration::from_micros(u64::try_from(micros).unwrap_or(0)));
        let corrupt = |error: Error| Error::Corrupt { why: error.to_string() };
        let settings = Settings {
            paused: self.paused,
            backoff: self.backoff.map(|text| text.parse()).transpose().map_err(corrupt)?,
            retention: Retention { succeeded: span(self.retain_succeeded), failed: span(self.retain_failed) },
        };
        Ok(Queue { name: QueueName::new(self.name).map_err(corrupt)?, settings })
    }
}

/// The columns `retain_succeeded` and `retain_failed` of a new queue.
pub fn default_retention() -> (i64, i64) {
    let retention = Retention::default();
    (micros(retention.succeeded.0), micros(retention.failed.0))
}

/// Labels as they are stored.
pub fn labels_text(labels: &[Label]) -> String {
    serde_json::to_string(labels).expect("labels are plain text")
}

/// The labels of a line, from what is stored.
///
/// # Errors
/// [`Error::Corrupt`] if they cannot be read.
pub fn read_labels(line: i64, text: &str) -> Result<Vec<Label>> {
    serde_json::from_str(text)
        .map_err(|error| Error::Corrupt { why: format!("labels of line {line}: {error}") })
}
