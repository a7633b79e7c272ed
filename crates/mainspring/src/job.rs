//! What users implement: the job as a type.

use std::time::Duration;

use mainspring_core::backoff::Backoff;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limit::{LimitUse, NewLimit};
use crate::schedule::NewSchedule;

/// A type that you can enqueue. Usually you derive it:
///
/// ```
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, mainspring::Job)]
/// #[job(kind = "welcome", result = String, queue = "mail", max_attempts = 5, timeout = "30s")]
/// struct Welcome {
///     user: u64,
/// }
/// ```
///
/// By hand it is as short:
///
/// ```
/// # use serde::{Deserialize, Serialize};
/// #[derive(Serialize, Deserialize)]
/// struct Resize { image: String }
///
/// impl mainspring::Job for Resize {
///     type Result = ();
///     const KIND: &'static str = "resize";
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The type that its handler returns.
    type Result: Serialize + DeserializeOwned + Send + 'static;
    /// The name of its kind in the store. If you rename it, keep the old name in [`ALIASES`](Self::ALIASES):
    /// otherwise no handler takes the jobs that are stored under it.
    const KIND: &'static str;
    /// Earlier names of the kind; its handler takes those too.
    const ALIASES: &'static [&'static str] = &[];
    /// The queue of its jobs, unless the enqueue names another.
    const QUEUE: &'static str = "default";

    /// The signals that its jobs take; empty: any. Where a job's type is known, other signals are an error.
    const SIGNALS: &'static [&'static str] = &[];

    /// Checks that a signal's payload, as JSON, has the type that is declared for its name. The derive makes it from
    /// `signals(…)`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if it has another type, or the signal is not declared.
    fn check_signal(name: &str, body: &[u8]) -> Result<(), crate::Error> {
        let _ = (name, body);
        Ok(())
    }

    /// When a job of this kind is enqueued by itself. A node that handles the kind names the schedule when it starts. The
    /// derive makes it from `schedule = "…"`.
    fn schedule() -> Option<NewSchedule> {
        None
    }

    /// The limits that this job takes part in. The derive makes it from `limit(…)`. An enqueue that
    /// [names](crate::enqueue::Enqueue::limit) one of them itself replaces what is said of that one here.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for the name of a limit that is none.
    fn limits(&self) -> Result<Vec<LimitUse>, crate::Error> {
        Ok(Vec::new())
    }

    /// What code says of those limits. A node that handles the kind tells the store of it when it starts, and so does the
    /// first enqueue of a process. The derive makes it from `max`, `rate` and `burst` in `limit(…)`.
    fn limit_seeds() -> Vec<NewLimit> {
        Vec::new()
    }

    /// The defaults of all jobs of this kind, unless the enqueue says otherwise.
    fn options() -> JobOptions {
        JobOptions::default()
    }
}

/// Defaults of all jobs of a kind; see [`Job::options`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobOptions {
    pub(crate) priority: Option<u8>,
    pub(crate) max_attempts: Option<u16>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
}

impl JobOptions {
    /// Sets the priority, from 0 (claimed first) to 9. Default: 5.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets how often a job may fail before it fails for good. Default: 10.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Sets how long one attempt may take. Default: no bound.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long to wait between attempts. Default: the queue's backoff.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }
}
