//! The audit: which settings somebody has changed, of schedules, limits, queues and kinds.
//!
//! An entry is written in the commit of the change that it remembers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::name::{Kind, LimitName, QueueName, ScheduleName};
use crate::time::Timestamp;
use crate::{Error, Result, Uuid, bounds};

/// A change that somebody made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number: later changes have higher ones. The store gives it.
    #[serde(default)]
    pub no: i64,
    /// When. The store gives it.
    #[serde(default)]
    pub at: Timestamp,
    /// Who.
    pub who: String,
    /// What was changed.
    pub subject: Subject,
    /// What was done, in one word.
    pub verb: String,
    /// The request that it was done for, if somebody asked for it: who has lost the answer finds it by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Uuid>,
    /// What it was before; `None`: it was not there.
    pub old: Option<Value>,
    /// What it is now; `None`: it is not there any more.
    pub new: Option<Value>,
}

/// What an entry of the audit is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Subject {
    /// A schedule.
    Schedule(ScheduleName),
    /// A limit, or one of its keys.
    Limit(LimitName),
    /// The total of a queue.
    Queue(QueueName),
    /// The total of a kind.
    Kind(Kind),
}

impl fmt::Display for Subject {
    /// As stores keep it: `schedule/nightly`, `limit/gpu`. No name has a slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Schedule(name) => write!(f, "schedule/{name}"),
            Subject::Limit(name) => write!(f, "limit/{name}"),
            Subject::Queue(name) => write!(f, "queue/{name}"),
            Subject::Kind(name) => write!(f, "kind/{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('/') {
            Some(("schedule", name)) => ScheduleName::new(name).map(Subject::Schedule),
            Some(("limit", name)) => LimitName::new(name).map(Subject::Limit),
            Some(("queue", name)) => QueueName::new(name).map(Subject::Queue),
            Some(("kind", name)) => Kind::new(name).map(Subject::Kind),
            _ => Err(Error::Invalid {
                what: "subject",
                why: format!("`{text}` names nothing that is audited"),
            }),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> String {
        subject.to_string()
    }
}

/// Checks the name of who changes something.
///
/// # Errors
/// [`Error::Invalid`] or [`Error::TooLarge`].
pub fn check_who(who: &str) -> Result<()> {
    if who.len() > bounds::WHO_BYTES {
        return Err(Error::TooLarge {
            what: "name of who does it",
            size: who.len(),
            limit: bounds::WHO_BYTES,
        });
    }
    if who.is_empty() || who.chars().any(char::is_control) {
        return Err(Error::Invalid {
            what: "name of who does it",
            why: "empty, or with control characters".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read_as_they_are_written() {
        let subjects = [
            Subject::Schedule(ScheduleName::new("a:b").expect("a name")),
            Subject::Limit(LimitName::new("schedule").expect("a name")),
            Subject::Queue(QueueName::new("q").expect("a name")),
            Subject::Kind(Kind::new("k.v1").expect("a name")),
        ];
        for subject in subjects {
            assert_eq!(subject.to_string().parse::<Subject>().ok(), Some(subject));
        }
        for bad in ["", "nightly", "schedule/", "other/x", "limit/a/b"] {
            assert!(bad.parse::<Subject>().is_err(), "{bad}");
        }
    }
}
