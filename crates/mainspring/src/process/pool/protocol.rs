//! The protocol between a worker and a child: one JSON object per line.
//!
//! The child says that it is ready, and then answers requests, one at a time. `docs/guides/other-languages.md` has it for people.

use std::collections::BTreeMap;

use mainspring_core::bounds;
use mainspring_core::job::cut;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::context::Info;

/// The version that this side speaks.
pub(super) const VERSION: u32 = 1;
/// Bytes of a line that an error quotes.
const QUOTED: usize = 200;

/// A job for a child.
#[derive(Debug, Serialize)]
struct Request<'a> {
    v: u32,
    id: String,
    kind: &'a str,
    queue: &'a str,
    attempt: u16,
    max_attempts: u16,
    claim: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u128>,
    headers: &'a BTreeMap<String, String>,
    input: &'a RawValue,
}

/// Asks a child to stop the job that it has.
#[derive(Debug, Serialize)]
struct Cancel {
    cancel: String,
}

/// The line that hands a job to a child.
pub(super) fn request(info: &Info, input: &[u8]) -> Result<Vec<u8>, String> {
    let input: &RawValue = match input {
        [] => RawValue::NULL,
        input => serde_json::from_slice(input).map_err(|error| format!("the input is not JSON: {error}"))?,
    };
    let request = Request {
        v: VERSION,
        id: info.id.to_string(),
        kind: info.kind.as_str(),
        queue: info.queue.as_str(),
        attempt: info.attempt,
        max_attempts: info.max_attempts(),
        claim: info.claim,
        deadline_ms: info.timeout().map(|timeout| timeout.as_millis()),
        headers: info.headers(),
        input,
    };
    line(&request)
}

/// The line that asks a child to stop a job.
pub(super) fn cancel(info: &Info) -> Result<Vec<u8>, String> {
    line(&Cancel { cancel: info.id.to_string() })
}

fn line(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut line = serde_json::to_vec(value).map_err(|error| error.to_string())?;
    // Inside of JSON, a line break is space between two tokens: a text has it escaped.
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    line.push(b'\n');
    Ok(line)
}

/// The first line of a child.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ready {
    ready: u32,
    kinds: Option<Vec<String>>,
}

/// Reads the first line of a child that is to run these kinds.
pub(super) fn ready(line: &[u8], kinds: &[String]) -> Result<(), String> {
    let Ok(ready) = serde_json::from_slice::<Ready>(line) else {
        return Err(format!("its first line is not `{{\"ready\":{VERSION}}}`, but `{}`", quoted(line)));
    };
    if ready.ready != VERSION {
        return Err(format!("it speaks version {} of the protocol, not {VERSION}", ready.ready));
    }
    match kinds.iter().find(|kind| ready.kinds.as_ref().is_some_and(|kinds| !kinds.contains(kind))) {
        Some(kind) => Err(format!("its ready line does not name kind `{kind}`")),
        None => Ok(()),
    }
}

/// What a child says of the job that it has.
#[derive(Debug)]
pub(super) enum Answer {
    /// How far it has come.
    Progress { done: u64, total: u64, note: String },
    /// A line for the log.
    Log(Level, String),
    /// It succeeded, with this result.
    Ok(Box<RawValue>),
    /// It failed; whether it is to be tried again.
    Error { why: String, retry: bool },
    /// It is to run again after so many seconds, or after the backoff's delay.
    Throttled(Option<f64>),
    /// It is cancelled.
    Cancel(String),
}

/// How important a line of the log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    progress: Option<ProgressSaid>,
    log: Option<String>,
    level: Option<Level>,
    #[serde(default, deserialize_with = "present")]
    ok: Option<Box<RawValue>>,
    error: Option<String>,
    retry: Option<bool>,
    #[serde(default, deserialize_with = "present")]
    throttled: Option<Pause>,
    cancel: Option<String>,
}

/// Seconds, or as long as the backoff says.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Pause(Option<f64>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressSaid {
    #[serde(default)]
    done: u64,
    #[serde(default)]
    total: u64,
    #[serde(default)]
    note: String,
}

/// A field that is there, `null` as well.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// Reads what a child says while it has the job `id`.
pub(super) fn answer(line: &[u8], id: &str) -> Result<Answer, String> {
    let said: Line = serde_json::from_slice(line)
        .map_err(|error| format!("broke the protocol with `{}`: {error}", quoted(line)))?;
    if said.id != id {
        return Err(format!("answered for `{}`, which is not the job it has", cut(said.id, QUOTED)));
    }
    let broken = |why: &str| Err(format!("broke the protocol with `{}`: {why}", quoted(line)));
    if said.level.is_some() && said.log.is_none() {
        return broken("`level` belongs to `log`");
    }
    if said.retry.is_some() && said.error.is_none() {
        return broken("`retry` belongs to `error`");
    }
    let (level, retry) = (said.level.unwrap_or(Level::Info), said.retry.unwrap_or(true));
    let progress = said.progress.map(|said| {
        let ProgressSaid { done, total, note } = said;
        Answer::Progress { done, total, note }
    });
    let all = [
        progress,
        said.log.map(|text| Answer::Log(level, text)),
        said.ok.map(Answer::Ok),
        said.error.map(|why| Answer::Error { why, retry }),
        said.throttled.map(|Pause(after)| Answer::Throttled(after)),
        said.cancel.map(Answer::Cancel),
    ];
    let mut all = all.into_iter().flatten();
    match (all.next(), all.next()) {
        (Some(Answer::Throttled(Some(after))), None)
            if !(0.0..=bounds::DELAY.as_secs_f64()).contains(&after) =>
        {
            broken("`throttled` is not a number of seconds up to ten years")
        }
        (Some(one), None) => Ok(one),
        _ => broken("it takes one of `progress`, `log`, `ok`, `error`, `throttled`, `cancel`"),
    }
}

/// The beginning of a line, fit to be shown.
pub(super) fn quoted(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * QUOTED)]);
    cut(printable(&text), QUOTED)
}

/// A text without control characters, which could write to somebody's terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{FFFD}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Answer, String> {
        answer(line.as_bytes(), "7")
    }

    #[test]
    fn null_is_a_result_and_a_pause_of_the_backoff() {
        assert!(matches!(read(r#"{"id":"7","ok":null}"#), Ok(Answer::Ok(ok)) if ok.get() == "null"));
        assert!(matches!(read(r#"{"id":"7","throttled":null}"#), Ok(Answer::Throttled(None))));
        assert!(matches!(read(r#"{"id":"7","throttled":1.5}"#), Ok(Answer::Throttled(Some(_)))));
    }

    #[test]
    fn a_line_says_one_thing() {
        for line in [
            r#"{"id":"7"}"#,
            r#"{"id":"7","ok":1,"error":"x"}"#,
            r#"{"id":"7","ok":1,"progress":{}}"#,
            r#"{"id":"7","ok":1,"retry":false}"#,
            r#"{"id":"7","ok":1,"level":"info"}"#,
            r#"{"id":"7","ok":1,"okay":1}"#,
            r#"{"id":"7","throttled":-1}"#,
            r#"{"id":"7","throttled":1e300}"#,
            r#"{"id":"7","progress":{"done":-1}}"#,
            r#"{"id":7,"ok":1}"#,
            r#"{"ok":1}"#,
            "[]",
            "hello",
            "",
        ] {
            assert!(read(line).is_err_and(|why| why.starts_with("broke the protocol with `")), "{line}");
        }
        assert_eq!(
            read(r#"{"id":"8","ok":1}"#).expect_err("another job"),
            "answered for `8`, which is not the job it has"
        );
    }

    #[test]
    fn a_large_number_is_passed_on_as_it_was_written() {
        let line = r#"{"id":"7","ok":123456789012345678901234567890.10}"#;
        assert!(matches!(read(line), Ok(Answer::Ok(ok)) if ok.get() == "123456789012345678901234567890.10"));
    }

    #[test]
    fn a_ready_line_names_its_version_and_all_kinds() {
        let kinds = ["a".to_owned(), "b".to_owned()];
        let ready = |line: &str| ready(line.as_bytes(), &kinds);
        assert_eq!(ready(r#"{"ready":1}"#), Ok(()));
        assert_eq!(ready(r#"{"ready":1,"kinds":["b","c","a"]}"#), Ok(()));
        let refused = |line| ready(line).expect_err("refused");
        assert_eq!(refused(r#"{"ready":1,"kinds":["a"]}"#), "its ready line does not name kind `b`");
        assert_eq!(refused(r#"{"ready":2}"#), "it speaks version 2 of the protocol, not 1");
        assert_eq!(
            refused("Loading…\u{1b}[2J"),
            "its first line is not `{\"ready\":1}`, but `Loading…\u{FFFD}[2J`"
        );
        assert!(refused(&"x".repeat(10_000)).len() < 300);
    }
}
