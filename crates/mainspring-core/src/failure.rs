//! What handlers return when they do not succeed.
//!
//! [`Failure`] takes any error by `?`. A few errors are understood by the engine instead of being counted as a
//! failure: those are [`Control`]s, made by [`snooze`], [`retry_in`], [`discard`], [`cancel`] and [`throttled`].
//! They are found again anywhere in a chain of sources, so a layer of context above them does no harm.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::error::{BoxError, chain};

/// The error of a handler or of a step's body. `?` makes it from any error.
///
/// It is deliberately not an [`std::error::Error`] itself: only so can it convert from all of them.
pub struct Failure(BoxError);

impl Failure {
    /// Returns the [`Control`] in the chain of sources, if there is one.
    pub fn control(&self) -> Option<&Control> {
        chain(&*self.0).find_map(|error| error.downcast_ref())
    }

    /// Returns the error itself.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0
    }

    /// Returns the error, to be the source of another.
    pub fn into_error(self) -> BoxError {
        self.0
    }

    /// Returns the error and its sources in one line, each after a colon. If a text already ends with that of its
    /// source, the source is not repeated. Beyond [`SOURCES`](crate::bounds::SOURCES) the text says that it was cut.
    pub fn message(&self) -> String {
        let mut text = self.0.to_string();
        let mut last: &(dyn StdError + 'static) = &*self.0;
        for error in chain(&*self.0).skip(1) {
            let cause = error.to_string();
            if !text.ends_with(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            last = error;
        }
        if last.source().is_some() {
            text.push_str(": … (cut after ");
            text.push_str(&crate::bounds::SOURCES.to_string());
            text.push_str(" sources)");
        }
        text
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.into())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

/// An instruction to the engine, which travels as an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Control {
    /// Counts a failure and runs the job again after this delay, instead of the backoff's.
    #[error("retry in {0:?}")]
    RetryIn(Duration),
    /// Runs the job again after this delay; counts nothing.
    #[error("snoozed for {0:?}")]
    Snooze(Duration),
    /// Fails the job for good, whatever attempts are left.
    #[error("discarded: {0}")]
    Discard(String),
    /// Ends the job as cancelled.
    #[error("cancelled: {0}")]
    Cancel(String),
    /// Runs the job again after this delay, or after the backoff's if there is none; counts nothing.
    #[error("throttled")]
    Throttled(Option<Duration>),
}

/// Runs the job again after `delay`. Counts neither a failure nor an attempt.
pub fn snooze(delay: Duration) -> Control {
    Control::Snooze(delay)
}

/// Counts a failure and runs the job again after `delay`, if attempts are left.
pub fn retry_in(delay: Duration) -> Control {
    Control::RetryIn(delay)
}

/// Fails the job for good, because another attempt would not help.
pub fn discard(why: impl Into<String>) -> Control {
    Control::Discard(why.into())
}

/// Ends the job as cancelled.
pub fn cancel(why: impl Into<String>) -> Control {
    Control::Cancel(why.into())
}

/// Runs the job again after `retry_after`, or after the backoff's delay if it is `None`, because a service asked for
/// a pause. Counts neither a failure nor an attempt.
pub fn throttled(retry_after: impl Into<Option<Duration>>) -> Control {
    Control::Throttled(retry_after.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("while sending")]
    struct Wrapped(#[source] Control);

    fn fails(text: &str) -> Result<(), Failure> {
        Err(text)?
    }

    #[test]
    fn takes_any_error_by_question_mark() {
        fn parse() -> Result<u8, Failure> {
            Ok("300".parse::<u8>()?)
        }
        assert!(parse().expect_err("too big").message().contains("number too large"));
        assert_eq!(fails("boom").expect_err("fails").message(), "boom");
    }

    /// An error with so many sources below it.
    #[derive(Debug, thiserror::Error)]
    #[error("layer {0}")]
    struct Layer(usize, #[source] Option<Box<Layer>>);

    /// An error that is its own source.
    #[derive(Debug)]
    struct Loop(&'static str);

    impl fmt::Display for Loop {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl StdError for Loop {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(self)
        }
    }

    #[test]
    fn a_chain_of_sources_is_told_up_to_its_bound() {
        let layers = |sources| (0..=sources).fold(None, |below, n| Some(Box::new(Layer(n, below))));
        let message = |sources| Failure::from(layers(sources).expect("a layer")).message();
        let bound = crate::bounds::SOURCES;
        let whole = message(bound);
        assert!(whole.starts_with(&format!("layer {bound}: ")) && whole.ends_with(": layer 0"), "{whole}");
        let cut = message(bound + 1);
        assert!(cut.ends_with(": layer 1: … (cut after 64 sources)"), "{cut}");
    }

    #[test]
    fn a_chain_of_sources_that_leads_back_to_itself_ends() {
        let failure = Failure::from(Loop("round and round"));
        assert_eq!(failure.control(), None);
        assert_eq!(failure.message(), "round and round: … (cut after 64 sources)");
    }

    #[test]
    fn control_is_found_under_context() {
        let failure = Failure::from(Wrapped(discard("no such user")));
        assert_eq!(failure.control(), Some(&Control::Discard("no such user".into())));
        assert_eq!(failure.message(), "while sending: discarded: no such user");
        assert_eq!(failure.to_string(), failure.message());
        assert_eq!(format!("{failure:?}"), "Wrapped(Discard(\"no such user\"))");
        assert_eq!(Failure::from("plain").control(), None);
    }
}
