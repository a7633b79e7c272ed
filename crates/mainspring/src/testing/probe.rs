//! A look at every step that a handler runs.

use mainspring_core::id::JobId;
use mainspring_core::journal::Journal;
use mainspring_core::name::Key;

/// What becomes of a step whose body has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeVerdict {
    /// It is recorded.
    Keep,
    /// Its body is run once more, and then it is recorded.
    Again,
    /// It has failed, with this message.
    Fail(String),
    /// The node dies here, between the effect and its record.
    Crash,
}

/// Looks at steps.
pub(crate) trait Probe: Send + Sync + 'static {
    /// The body of a step has succeeded.
    fn ran(&self, job: JobId, key: &Key) -> ProbeVerdict;

    /// The node dies.
    fn crash(&self);

    /// What a job is taken to have recorded, in place of what it has.
    fn journal(&self, _job: JobId) -> Option<Journal> {
        None
    }

    /// An operation is not recorded: whether it is not to be done either.
    fn stops(&self, _job: JobId, _key: &Key) -> bool {
        false
    }
}
