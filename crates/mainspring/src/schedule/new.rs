//! A schedule on its way.

use std::time::Duration;

use mainspring_core::Result;
use mainspring_core::error::Error;
use mainspring_core::job::{Options, Priority};
use mainspring_core::name::{Kind, QueueName, ScheduleName, Tag};
use mainspring_core::schedule::{Definition, Missed, Overlap, Rule, Template, Times, Zone};
use mainspring_core::time::{Span, Timestamp};
use serde_json::Value;

use crate::enqueue::{encode, in_order};
use crate::job::{Job, JobOptions};
use crate::limit::{LimitUse, NewLimit};

/// A schedule that is named by code: for [`NodeBuilder::schedule`](crate::NodeBuilder::schedule) and
/// [`Schedules::set`](super::Schedules::set). What is wrong with it is told there.
#[derive(Debug, Clone)]
#[must_use = "a schedule does nothing until a node or the engine is given it"]
pub struct NewSchedule {
    name: String,
    revision: u32,
    definition: Result<Definition, Problem>,
    /// What the type of its job says of limits.
    limits: Vec<NewLimit>,
}

/// What is wrong, so that a schedule can be cloned.
#[derive(Debug, Clone)]
struct Problem(std::sync::Arc<Error>);

impl NewSchedule {
    /// A schedule of this name that enqueues this job. In every text of the job, `{{fire}}` stands for the time of the fire,
    /// `{{last}}` for that of the fire before, `{{schedule}}` for the name of the schedule.
    pub fn of<J: Job>(name: impl Into<String>, job: &J) -> Self {
        let input = encode(job).and_then(|input| {
            serde_json::from_slice(&input)
                .map_err(|error| Error::Convert { what: "input", source: error.into() })
        });
        let input = input.and_then(|input| Ok((input, job.limits()?)));
        NewSchedule::new(name, J::KIND, J::QUEUE, &J::options(), input, J::limit_seeds())
    }

    /// A schedule whose job is known by its kind, with an input as JSON.
    pub fn json(name: impl Into<String>, kind: &str, input: Value) -> Self {
        NewSchedule::new(name, kind, "default", &JobOptions::default(), Ok((input, Vec::new())), Vec::new())
    }

    fn new(
        name: impl Into<String>,
        kind: &str,
        queue: &str,
        defaults: &JobOptions,
        input: Result<(Value, Vec<LimitUse>)>,
        limits: Vec<NewLimit>,
    ) -> Self {
        let make = || -> Result<Definition> {
            let (input, uses) = input?;
            let mut options = Options { limits: in_order(uses), ..Options::default() };
            if let Some(attempts) = defaults.max_attempts {
                options.max_attempts = attempts;
            }
            options.timeout = defaults.timeout.map(Span);
            options.backoff = defaults.backoff;
            let job = Template {
                kind: Kind::new(kind)?,
                queue: QueueName::new(queue)?,
                priority: defaults.priority.map(Priority::new).transpose()?.unwrap_or_default(),
                input,
                deadline: None,
                options,
            };
            let mut rule = Rule::new(Times::every(Duration::from_hours(1))?);
            rule.times.clear();
            Ok(Definition::new(rule, job))
        };
        let definition = make().map_err(|error| Problem(error.into()));
        NewSchedule { name: name.into(), revision: 1, definition, limits }
    }

    fn change(mut self, change: impl FnOnce(&mut Definition) -> Result<()>) -> Self {
        if let Ok(definition) = &mut self.definition
            && let Err(error) = change(definition)
        {
            self.definition = Err(Problem(error.into()));
        }
        self
    }

    fn with(self, set: impl FnOnce(&mut Definition)) -> Self {
        self.change(|it| {
            set(it);
            Ok(())
        })
    }

    /// When it fires: a cron expression of five or six fields, a name such as `@daily`, or `every 5m`. Called again, it fires at
    /// these times as well.
    pub fn times(self, times: &str) -> Self {
        self.change(|it| {
            it.rule.times.push(times.parse()?);
            Ok(())
        })
    }

    /// When it does not fire: a day (`2026-12-25`), days (`2026-12-24..2027-01-01`), or what a cron expression names.
    pub fn except(self, except: &str) -> Self {
        self.change(|it| {
            it.rule.except.push(except.parse()?);
            Ok(())
        })
    }

    /// The zone of its local times, by its IANA name; UTC if not set.
    pub fn zone(self, zone: &str) -> Self {
        self.change(|it| Zone::new(zone).map(|zone| it.rule.zone = zone))
    }

    /// No fire is before this.
    pub fn from(self, from: impl Into<Timestamp>) -> Self {
        self.with(|it| it.rule.from = Some(from.into()))
    }

    /// No fire is after this.
    pub fn until(self, until: impl Into<Timestamp>) -> Self {
        self.with(|it| it.rule.until = Some(until.into()))
    }

    /// How many jobs it enqueues in all.
    pub fn count(self, count: u64) -> Self {
        self.with(|it| it.rule.count = Some(count))
    }

    /// It fires by some amount below this later, always the same: schedules of one time are spread.
    pub fn jitter(self, jitter: Duration) -> Self {
        self.with(|it| it.rule.jitter = Some(Span(jitter)))
    }

    /// What becomes of fires that no node was there for; one job for all of them if not set.
    pub fn missed(self, missed: Missed) -> Self {
        self.with(|it| it.missed = missed)
    }

    /// How late a fire may be before it counts as missed; a minute if not set.
    pub fn grace(self, grace: Duration) -> Self {
        self.with(|it| it.grace = Span(grace))
    }

    /// What happens while the job of the fire before has not ended; the next is enqueued beside it if not set.
    pub fn overlap(self, overlap: Overlap) -> Self {
        self.with(|it| it.overlap = overlap)
    }

    /// Pauses it once one of its jobs has failed: the next fire finds that out.
    pub fn pause_on_failure(self) -> Self {
        self.with(|it| it.pause_on_failure = true)
    }

    /// The queue of its jobs.
    pub fn queue(self, queue: &str) -> Self {
        self.change(|it| QueueName::new(queue).map(|queue| it.job.queue = queue))
    }

    /// The priority of its jobs, from 0 (claimed first) to 9 (last).
    pub fn priority(self, priority: u8) -> Self {
        self.change(|it| Priority::new(priority).map(|priority| it.job.priority = priority))
    }

    /// A word to find its jobs by.
    pub fn tag(self, tag: &str) -> Self {
        self.change(|it| {
            it.job.options.tags.push(Tag::new(tag)?);
            Ok(())
        })
    }

    /// When each of its jobs fails if it has not ended, counted from its fire.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|it| it.job.deadline = Some(Span(deadline)))
    }

    /// Which version of the schedule this is; 1 if not set. Increment it with every change: of two nodes that name one schedule, the higher
    /// revision wins.
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    /// What the type of its job says of limits: the store has to know them first.
    pub(crate) fn take_limits(&mut self) -> Vec<NewLimit> {
        std::mem::take(&mut self.limits)
    }

    /// Its name, what it does, and its revision.
    pub(crate) fn parts(self) -> Result<(ScheduleName, Definition, u32)> {
        let name = ScheduleName::new(&self.name)?;
        match self.definition {
            Ok(definition) => Ok((name, definition, self.revision)),
            Err(Problem(error)) => Err(std::sync::Arc::try_unwrap(error)
                .unwrap_or_else(|shared| Error::Invalid { what: "schedule", why: shared.to_string() })),
        }
    }
}
