//! Errors of a test whose jobs do not do what it waits for.

use std::fmt;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Status, Summary};
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;

/// The errors of [`TestEngine`](super::TestEngine) and its friends. `Debug` prints the message, because a test that
/// returns the error prints that.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] mainspring_core::Error),
    /// Handlers wait for something that does not happen: for the clock, which only
    /// [`advance`](super::TestEngine::advance) moves, or for something outside.
    #[error("not idle after {}s: {}; does a handler wait for the clock to be advanced?", .patience.as_secs_f64(), list(.jobs))]
    StillRunning {
        /// How long the test waited, in real time.
        patience: Duration,
        /// The jobs that run.
        jobs: Vec<Summary>,
    },
    /// There is always more to do, such as a job that enqueues itself again.
    #[error("no end in sight: each job makes more work; running: {}", list(.jobs))]
    Endless {
        /// The jobs that run.
        jobs: Vec<Summary>,
    },
    /// The clock has stopped too often on its way: something is due again and again.
    #[error("the clock stopped {stops} times on its way and has come to {at}: advance it by less at a time; running: {}", list(.jobs))]
    TooFar {
        /// How often the clock stopped.
        stops: usize,
        /// The time it has come to.
        at: Timestamp,
        /// The jobs that run.
        jobs: Vec<Summary>,
    },
    /// A workflow does not tolerate a mishap of one of its steps.
    #[error("step `{key}` broke the workflow when {what}: {why}")]
    Broke {
        /// The step.
        key: Key,
        /// The mishap.
        what: String,
        /// What came of it.
        why: String,
    },
    /// The records of a job do not fit the code.
    #[error("the journal of job {id} does not fit: {why}")]
    Drifted {
        /// The job.
        id: JobId,
        /// What was asked for, and what is recorded; or what the handler did instead of going on.
        why: String,
    },
    /// A trial of a workflow that ran no step, so it tried nothing.
    #[error("the workflow ran no step, so that nothing could happen to one: it has not been tried")]
    NoSteps,
    /// The job has not ended: it runs, or waits for its time, for a node or for a person.
    #[error("job {id} has not ended: it is {status}{}", after(.error.as_deref(), .backoff.as_ref()))]
    NotEnded {
        /// The job.
        id: JobId,
        /// Its state.
        status: Status,
        /// Its last error, if any.
        error: Option<String>,
        /// The failed step and the time of its retry, if the job runs and waits only for that.
        backoff: Option<(Key, Timestamp)>,
    },
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn after(error: Option<&str>, backoff: Option<&(Key, Timestamp)>) -> String {
    let error = error.map(|error| format!(", after: {error}")).unwrap_or_default();
    let backoff = backoff.map(|(key, at)| format!("; step `{key}` is in its backoff until {at}"));
    error + &backoff.unwrap_or_default()
}

fn list(jobs: &[Summary]) -> String {
    /// Enough to see what is going on.
    const SHOWN: usize = 5;
    let mut text: Vec<_> = jobs
        .iter()
        .take(SHOWN)
        .map(|job| format!("job {} of kind `{}` runs (attempt {})", job.id, job.kind, job.failures + 1))
        .collect();
    if jobs.len() > SHOWN {
        text.push(format!("{} more", jobs.len() - SHOWN));
    }
    if text.is_empty() { "nothing".into() } else { text.join(", ") }
}
