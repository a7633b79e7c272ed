//! What users implement: the job as a type.

use std::time::Duration;

use mainspring_core::backoff::Backoff;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A type that can be enqueued. Usually derived:
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
    /// What its handler returns.
    type Result: Serialize + DeserializeOwned + Send + 'static;
    /// The name of its kind in the store. Renaming it strands jobs that are stored under the old name, unless that
    /// is kept in [`ALIASES`](Self::ALIASES).
    const KIND: &'static str;
    /// Names that it had before: a handler takes those too.
    const ALIASES: &'static [&'static str] = &[];
    /// The queue it goes to unless the caller says otherwise.
    const QUEUE: &'static str = "default";

    /// The signals that it takes; any if this is empty. Others are refused where the type of a job is known.
    const SIGNALS: &'static [&'static str] = &[];

    /// Refuses a signal whose payload, as JSON, is not of the type that is declared for its name. The derive makes it from
    /// `signals(…)`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid).
    fn check_signal(name: &str, body: &[u8]) -> Result<(), crate::Error> {
        let _ = (name, body);
        Ok(())
    }

    /// What applies to all jobs of this kind unless the caller says otherwise.
    fn options() -> JobOptions {
        JobOptions::default()
    }
}

/// What applies to all jobs of a kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobOptions {
    pub(crate) priority: Option<u8>,
    pub(crate) max_attempts: Option<u16>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
}

impl JobOptions {
    /// From 0 (claimed first) to 9; 5 if not set.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// How often it may fail before it fails for good; 10 if not set.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long one attempt may take; for ever if not set.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long to wait between attempts; as the queue says if not set.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }
}
