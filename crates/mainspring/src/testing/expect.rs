//! What a test expects to have been enqueued.

use std::fmt::Write;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Options, When};
use mainspring_core::time::Span;

use super::TestEngine;
use super::observed_store::EnqueuedJob;
use crate::enqueue::Enqueued;
use crate::job::Job;

/// Conditions on enqueued jobs, all of which must hold. [`expect_enqueued`](TestEngine::expect_enqueued) makes one.
///
/// Nothing is checked until you call one of the assertions at the end.
///
/// ```
/// # use mainspring::testing::TestEngine;
/// # use mainspring::Job;
/// # use std::time::Duration;
/// # #[derive(serde::Serialize, serde::Deserialize, Job)]
/// # #[job(kind = "welcome")]
/// # struct Welcome { user: u64 }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let test = TestEngine::new();
/// test.enqueue(Welcome { user: 7 }).queue("mail").tag("campaign").delay(Duration::from_hours(1)).await?;
/// let in_an_hour = test.now().after(Duration::from_hours(1));
/// test.expect_enqueued::<Welcome>().queue("mail").at(in_an_hour).tag("campaign").matching(|job| job.user == 7).assert();
/// test.expect_enqueued::<Welcome>().queue("default").assert_none();
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is looked at until an assertion is called"]
pub struct Expected<'a, J> {
    test: &'a TestEngine,
    conditions: Vec<Condition<'a, J>>,
}

/// Whether a job that was enqueued is one that is expected.
type Holds<'a, J> = Box<dyn Fn(&EnqueuedJob, &J) -> bool + 'a>;

struct Condition<'a, J> {
    words: String,
    holds: Holds<'a, J>,
}

impl<'a, J: Job> Expected<'a, J> {
    pub(super) fn new(test: &'a TestEngine) -> Self {
        Expected { test, conditions: Vec::new() }
    }

    fn with(mut self, words: String, holds: impl Fn(&EnqueuedJob, &J) -> bool + 'a) -> Self {
        self.conditions.push(Condition { words, holds: Box::new(holds) });
        self
    }

    fn with_options(self, words: String, holds: impl Fn(&Options) -> bool + 'a) -> Self {
        self.with(words, move |kept, _| holds(&kept.record.summary.options))
    }

    /// Expects this queue.
    pub fn queue(self, queue: impl Into<String>) -> Self {
        let queue = queue.into();
        self.with(format!("in queue `{queue}`"), move |kept, _| kept.record.summary.queue.as_str() == queue)
    }

    /// Expects this priority.
    pub fn priority(self, priority: u8) -> Self {
        let holds = move |kept: &EnqueuedJob, _: &J| kept.record.summary.priority.get() == priority;
        self.with(format!("with priority {priority}"), holds)
    }

    /// Expects this start: a time, or a [`Duration`] from now. The start of a job without a delay is its enqueue.
    pub fn at(self, when: impl Into<When>) -> Self {
        let at = when.into().resolve(self.test.now());
        self.with(format!("to run at {at}"), move |kept, _| kept.due == at)
    }

    /// Expects this tag.
    pub fn tag(self, tag: impl Into<String>) -> Self {
        let tag = tag.into();
        self.with_options(format!("with tag `{tag}`"), move |options| {
            options.tags.iter().any(|one| one.as_str() == tag)
        })
    }

    /// Expects this required label.
    pub fn label(self, label: impl Into<String>) -> Self {
        let label = label.into();
        self.with_options(format!("with label `{label}`"), move |options| {
            options.labels.iter().any(|one| one.as_str() == label)
        })
    }

    /// Expects this unique key.
    pub fn unique(self, key: impl Into<String>) -> Self {
        let key = key.into();
        self.with_options(format!("with unique key `{key}`"), move |options| {
            options.unique.as_ref().is_some_and(|unique| unique.key == key)
        })
    }

    /// Expects this header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.with_options(format!("with header `{name}: {value}`"), move |options| {
            options.headers.get(&name) == Some(&value)
        })
    }

    /// Expects this number of attempts.
    pub fn max_attempts(self, attempts: u16) -> Self {
        self.with_options(format!("with {attempts} attempts"), move |options| {
            options.max_attempts == attempts
        })
    }

    /// Expects this timeout of an attempt.
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = Span(timeout);
        self.with_options(format!("with a timeout of {timeout}"), move |options| {
            options.timeout == Some(timeout)
        })
    }

    /// Expects an input that meets this condition.
    pub fn matching(self, condition: impl Fn(&J) -> bool + 'a) -> Self {
        self.with("that match".into(), move |_, job| condition(job))
    }

    /// Asserts that there is such a job, and returns the first.
    ///
    /// # Panics
    /// If there is none; lists the jobs that were enqueued instead.
    #[track_caller]
    pub fn assert(self) -> Enqueued<J> {
        let all = self.test.enqueued_of::<J>();
        match all.iter().find(|(kept, job)| self.holds(kept, job)) {
            Some((kept, _)) => Enqueued::known(id(kept)),
            None => panic!("no job of kind `{}` {}; enqueued: {}", J::KIND, self.words(), shown(&all)),
        }
    }

    /// Asserts that there is no such job.
    ///
    /// # Panics
    /// If there is one; names it.
    #[track_caller]
    pub fn assert_none(self) {
        self.assert_count(0);
    }

    /// Asserts the number of such jobs.
    ///
    /// # Panics
    /// If there are more or fewer; lists them, and the other jobs that were enqueued.
    #[track_caller]
    pub fn assert_count(self, count: usize) {
        let (found, others): (Vec<_>, Vec<_>) =
            self.test.enqueued_of::<J>().into_iter().partition(|(kept, job)| self.holds(kept, job));
        let (kind, words, number) = (J::KIND, self.words(), found.len());
        assert!(
            number == count,
            "{number} instead of {count} jobs of kind `{kind}` {words}: {}; others: {}",
            shown(&found),
            shown(&others)
        );
    }

    fn holds(&self, kept: &EnqueuedJob, job: &J) -> bool {
        self.conditions.iter().all(|condition| (condition.holds)(kept, job))
    }

    fn words(&self) -> String {
        let words: Vec<&str> = self.conditions.iter().map(|condition| condition.words.as_str()).collect();
        if words.is_empty() { "at all".into() } else { words.join(", ") }
    }
}

impl<J> std::fmt::Debug for Expected<'_, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let conditions: Vec<&str> =
            self.conditions.iter().map(|condition| condition.words.as_str()).collect();
        f.debug_tuple("Expected").field(&conditions).finish()
    }
}

pub(super) fn id(kept: &EnqueuedJob) -> JobId {
    kept.record.summary.id
}

/// Jobs with what was said of them: a line for each.
fn shown<J: Job>(jobs: &[(EnqueuedJob, J)]) -> String {
    /// Enough to see what is going on.
    const SHOWN: usize = 20;
    if jobs.is_empty() {
        return "none".into();
    }
    let mut text = String::new();
    for (kept, job) in jobs.iter().take(SHOWN) {
        let summary = &kept.record.summary;
        let input = serde_json::to_string(job).unwrap_or_default();
        let options = serde_json::to_string(&summary.options).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "\n  {input} in queue `{}`, priority {}, to run at {}, {options}",
            summary.queue,
            summary.priority.get(),
            kept.due
        );
    }
    if jobs.len() > SHOWN {
        let _ = write!(text, "\n  and {} more", jobs.len() - SHOWN);
    }
    text
}
