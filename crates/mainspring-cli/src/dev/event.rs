//! Events: what `dev` tells, one line each.

use mainspring::JobId;
use mainspring::time::Timestamp;
use serde_json::{Value, json};

use crate::text;

/// How an event is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Bad,
    Warn,
    Plain,
    Loud,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: Timestamp,
    pub(super) tone: Tone,
    /// One word for it.
    pub(super) word: &'static str,
    /// The job it is about, with its kind.
    pub(super) job: Option<(JobId, String)>,
    pub(super) detail: String,
}

impl Event {
    /// The line that people read.
    pub(super) fn line(&self) -> String {
        let job = self.job.as_ref().map(|(id, kind)| format!("{kind} {id} ")).unwrap_or_default();
        format!("{} {:<9} {job}{}", text::clock(self.at), self.word, text::line(&self.detail, 400))
            .trim_end()
            .to_owned()
    }

    /// What programs read.
    pub(super) fn json(&self) -> Value {
        json!({
            "at": self.at.to_string(),
            "event": self.word,
            "id": self.job.as_ref().map(|(id, _)| id.to_string()),
            "kind": self.job.as_ref().map(|(_, kind)| kind),
            "detail": self.detail,
        })
    }
}
