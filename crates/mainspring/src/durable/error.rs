//! Errors of steps, as they are recorded and found again.

use std::error::Error as StdError;
use std::time::Duration;

use mainspring_core::error::{BoxError, chain};
use mainspring_core::failure::{Control, Failure};
use mainspring_core::job::cut;
use mainspring_core::name::Key;
use mainspring_core::{Error, bounds};
use serde::{Deserialize, Serialize};

/// An error that was recorded, as a re-run meets it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct RecordedError {
    message: String,
    #[source]
    control: Option<Control>,
    /// Steps inside of the scope that failed, whose errors led to this one.
    blames: Vec<Key>,
}

/// What is recorded of an error: what the handler could tell it by.
#[derive(Serialize, Deserialize)]
struct Record {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    control: Option<RecordedControl>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    blames: Vec<Key>,
}

/// Blamed steps that are kept with an error.
const BLAMES: usize = 64;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RecordedControl {
    RetryIn(u64),
    Snooze(u64),
    Discard(String),
    Cancel(String),
    Throttled(Option<u64>),
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl RecordedControl {
    fn of(control: &Control) -> Option<Self> {
        Some(match control {
            Control::RetryIn(delay) => RecordedControl::RetryIn(micros(*delay)),
            Control::Snooze(delay) => RecordedControl::Snooze(micros(*delay)),
            Control::Discard(why) => RecordedControl::Discard(why.clone()),
            Control::Cancel(why) => RecordedControl::Cancel(why.clone()),
            Control::Throttled(delay) => RecordedControl::Throttled(delay.map(micros)),
            _ => return None,
        })
    }

    fn into_control(self) -> Control {
        match self {
            RecordedControl::RetryIn(delay) => Control::RetryIn(Duration::from_micros(delay)),
            RecordedControl::Snooze(delay) => Control::Snooze(Duration::from_micros(delay)),
            RecordedControl::Discard(why) => Control::Discard(why),
            RecordedControl::Cancel(why) => Control::Cancel(why),
            RecordedControl::Throttled(delay) => Control::Throttled(delay.map(Duration::from_micros)),
        }
    }
}

/// An error as it is recorded.
pub(crate) fn encode(failure: &Failure) -> Vec<u8> {
    let message = cut(failure.message(), bounds::ERROR_BYTES);
    let control = failure.control().and_then(RecordedControl::of);
    // Text and numbers: it cannot fail.
    let blames = blamed(failure).into_iter().take(BLAMES).collect();
    serde_json::to_vec(&Record { message, control, blames }).unwrap_or_default()
}

/// An error as it was recorded.
pub(crate) fn decode(key: &Key, value: &[u8]) -> Option<Error> {
    let Record { message, control, blames } = serde_json::from_slice(value).ok()?;
    let error = RecordedError { message, control: control.map(RecordedControl::into_control), blames };
    Some(failed(key, error.into()))
}

/// A step that failed.
pub(crate) fn failed(key: &Key, source: BoxError) -> Error {
    Error::Step { key: key.clone(), source }
}

/// Several failures that are one. The last of them, which tipped the scales, stands for all.
#[derive(Debug)]
pub(crate) struct Several {
    failed: Vec<BoxError>,
    of: usize,
}

impl Several {
    pub(crate) fn new(failed: Vec<BoxError>, of: usize) -> Self {
        Several { failed, of }
    }
}

impl std::fmt::Display for Several {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} items failed", self.failed.len(), self.of)
    }
}

impl StdError for Several {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.failed.last().map(|error| &**error as _)
    }
}

/// The keys of all steps whose errors led to a failure.
pub(crate) fn blamed(failure: &Failure) -> Vec<Key> {
    let mut keys = Vec::new();
    blame(failure.error(), &mut keys);
    keys
}

fn blame(error: &(dyn StdError + 'static), keys: &mut Vec<Key>) {
    for error in chain(error) {
        if let Some(Error::Step { key, .. }) = error.downcast_ref::<Error>() {
            keys.push(key.clone());
        }
        if let Some(RecordedError { blames, .. }) = error.downcast_ref() {
            keys.extend_from_slice(blames);
        }
        if let Some(Several { failed, .. }) = error.downcast_ref() {
            return failed.iter().for_each(|error| blame(&**error, keys));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainspring_core::failure::{discard, retry_in, snooze, throttled};

    #[test]
    fn a_recorded_error_keeps_its_words_and_what_it_asks_for() {
        let key = Key::new("charge").expect("a key");
        let minute = Duration::from_mins(1);
        for control in [retry_in(minute), snooze(minute), discard("no"), throttled(minute), throttled(None)] {
            let before = Failure::from(control.clone());
            let after = Failure::from(decode(&key, &encode(&before)).expect("an error"));
            assert_eq!(after.control(), Some(&control));
        }
        let plain = Failure::from(decode(&key, &encode(&Failure::from("declined"))).expect("an error"));
        assert_eq!(plain.message(), "step `charge` failed: declined");
        assert_eq!(blamed(&plain), [key]);
        assert!(blamed(&Failure::from("declined")).is_empty());
    }
}
