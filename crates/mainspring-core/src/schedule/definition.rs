//! What a person or a program says of a schedule, and what the store knows of it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Missed, Overlap, Rule};
use crate::id::JobId;
use crate::job::{New, Options, PayloadBounds, Priority, When};
use crate::name::{Kind, QueueName, ScheduleName, Tag};
use crate::time::{Span, Timestamp};
use crate::{Error, Result, Uuid, bounds};

/// The header of a job that names its schedule.
pub const HEADER_SCHEDULE: &str = "schedule";
/// The header of a job that says which fire it is for.
pub const HEADER_FIRE: &str = "fire";
/// How late a fire may be before it counts as missed, unless the schedule says otherwise.
const GRACE: std::time::Duration = std::time::Duration::from_mins(1);

/// What a schedule does, and when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// When it fires.
    pub rule: Rule,
    /// What each fire enqueues.
    pub job: Template,
    /// What becomes of fires that were missed.
    #[serde(default)]
    pub missed: Missed,
    /// How late a fire may be before it counts as missed.
    #[serde(default = "grace")]
    pub grace: Span,
    /// What happens while the job of the fire before has not ended.
    #[serde(default)]
    pub overlap: Overlap,
    /// Whether it pauses once one of its jobs has failed.
    #[serde(default)]
    pub pause_on_failure: bool,
}

fn grace() -> Span {
    Span(GRACE)
}

/// The job that each fire enqueues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its kind.
    pub kind: Kind,
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    #[serde(default)]
    pub priority: Priority,
    /// Its input. In every text in it, `{{fire}}` stands for the time of the fire, `{{last}}` for that of the fire before,
    /// `{{schedule}}` for the name of the schedule.
    #[serde(default)]
    pub input: Value,
    /// When it fails if it has not ended, counted from when it is enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Span>,
    /// What is rarely set.
    #[serde(default)]
    pub options: Options,
}

impl Definition {
    /// A definition with the defaults: missed fires enqueue one job, and jobs may overlap.
    pub fn new(rule: Rule, job: Template) -> Self {
        Definition {
            rule,
            job,
            missed: Missed::default(),
            grace: grace(),
            overlap: Overlap::default(),
            pause_on_failure: false,
        }
    }

    /// Checks every bound, that it fires at all after `now`, and that its jobs can be enqueued.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`], naming what is wrong.
    pub fn check(&self, name: &ScheduleName, bounds: &PayloadBounds, now: Timestamp) -> Result<()> {
        self.rule.check(now)?;
        self.missed.check()?;
        if matches!(self.missed, Missed::All(_)) && self.overlap != Overlap::Allow {
            let why = "missed fires that enqueue a job each overlap: `all` needs `overlap = allow`";
            return Err(Error::Invalid { what: "schedule", why: why.into() });
        }
        if self.grace.0 > bounds::DELAY {
            return Err(Error::Invalid { what: "grace", why: "more than ten years".into() });
        }
        self.job.make(name, JobId::from_bytes([0; 16]), now, None).check(bounds, now)
    }
}

impl Template {
    /// The job of one fire.
    pub(super) fn make(
        &self,
        schedule: &ScheduleName,
        id: JobId,
        fire: Timestamp,
        last: Option<Timestamp>,
    ) -> New {
        let fire = super::times::exact(fire);
        let last = last.map(super::times::exact).unwrap_or_default();
        let words = [("{{fire}}", fire.as_str()), ("{{last}}", &last), ("{{schedule}}", schedule.as_str())];
        let mut input = self.input.clone();
        fill(&mut input, &words);
        let mut options = self.options.clone();
        options.headers.insert(HEADER_SCHEDULE.to_owned(), schedule.to_string());
        options.headers.insert(HEADER_FIRE.to_owned(), fire.clone());
        options.tags.push(tag(schedule));
        New {
            id,
            kind: self.kind.clone(),
            queue: self.queue.clone(),
            priority: self.priority,
            input: input.to_string().into_bytes(),
            run: None,
            deadline: self.deadline.map(|deadline| When::After(deadline.0)),
            options,
            journal: Vec::new(),
        }
    }
}

/// The tag that all jobs of a schedule have.
pub fn tag(schedule: &ScheduleName) -> Tag {
    Tag::new(format!("schedule={schedule}"))
        .expect("the name of a schedule is shorter than a tag and has no control characters")
}

/// The nominal time of the fire that a job is for, as its headers have it; `None`: it is of no schedule.
pub fn fire_of(options: &Options) -> Option<Timestamp> {
    super::times::point(options.headers.get(HEADER_FIRE)?).ok()
}

/// Puts words in where a text names them.
fn fill(value: &mut Value, words: &[(&str, &str)]) {
    match value {
        Value::String(text) => {
            for (word, meaning) in words {
                if text.contains(word) {
                    *text = text.replace(word, meaning);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| fill(value, words)),
        Value::Object(fields) => fields.values_mut().for_each(|value| fill(value, words)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A schedule, as a store has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// Which version of its row this is. Every write increments it, and names the version that it was decided on.
    pub version: i64,
    /// When to look at it next; `None` while it is paused, and once it has ended.
    pub next_at: Option<Timestamp>,
    /// What it does.
    pub definition: Definition,
    /// How far it has come.
    pub state: ScheduleState,
}

/// How far a schedule has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// Minted when it was created. Ids of its jobs follow from it, so one of the same name that was deleted has others.
    pub generation: Uuid,
    /// The nominal time of the last fire that was dealt with; at first, when it was created.
    pub last_fire: Timestamp,
    /// The last job that it enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_job: Option<JobId>,
    /// How many jobs its rule has enqueued.
    #[serde(default)]
    pub fired: u64,
    /// Why it does not fire, if somebody has paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Pause>,
    /// What happened last that a person should know: fires that were left out, a clock that was wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    /// Why its last fire could not be stored; it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Trouble>,
    /// The code that names it, if code does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// The person who defined it last. What code says does not change it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_by: Option<String>,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Since when.
    pub at: Timestamp,
    /// By whom.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Something that a person should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Since when.
    pub at: Timestamp,
    /// What.
    pub text: String,
}

/// What keeps a fire from being stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// When that was met last.
    pub at: Timestamp,
    /// What it is.
    pub text: String,
    /// How often in a row.
    pub times: u32,
}

/// What code says of a schedule that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// The revision of the definition: a higher one replaces a lower one.
    pub revision: u32,
    /// The version of the application that gave it.
    pub by: String,
    /// When a node that names it was started last. If all live nodes were started later, code names it no more.
    #[serde(default)]
    pub seen: Timestamp,
}
