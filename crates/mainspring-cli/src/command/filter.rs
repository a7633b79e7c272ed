//! Which jobs: ids and filters, as the command line has them.

use mainspring::admin::{ErrorText, Filter};
use mainspring::name::{Kind, QueueName, Tag};
use mainspring::time::Timestamp;
use mainspring::{JobId, Reason, State};

use crate::report::Refused;
use crate::time_point::TimePoint;

/// Conditions; all that are given must hold.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct JobFilter {
    /// Jobs in this queue.
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Jobs of this kind.
    #[arg(long)]
    kind: Option<String>,
    /// Jobs in this state; may be given several times, or as a list with commas.
    #[arg(long, value_delimiter = ',')]
    state: Vec<String>,
    /// Jobs with this reason, such as `exhausted`, `hold`, `timer` or `signal`.
    #[arg(long)]
    reason: Option<String>,
    /// Jobs with this tag.
    #[arg(long)]
    tag: Option<String>,
    /// Whose last error contains this text, in upper or lower case. Goes through jobs that have failed: of millions, that
    /// takes a while.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Jobs enqueued since then: a duration back from now, or a time.
    #[arg(long, value_name = "WHEN")]
    since: Option<TimePoint>,
    /// Jobs enqueued before then: a duration back from now, or a time.
    #[arg(long, value_name = "WHEN")]
    before: Option<TimePoint>,
}

impl JobFilter {
    /// Whether no condition is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_none()
            && self.kind.is_none()
            && self.state.is_empty()
            && self.reason.is_none()
            && self.tag.is_none()
            && self.error.is_none()
            && self.since.is_none()
            && self.before.is_none()
    }

    /// The queue.
    pub(crate) fn queue(&self) -> Option<&str> {
        self.queue.as_deref()
    }

    /// The filter that a store understands.
    pub(crate) fn filter(&self, now: Timestamp) -> mainspring::Result<Filter> {
        Ok(Filter {
            queue: self.queue.as_deref().map(QueueName::new).transpose()?,
            kind: self.kind.as_deref().map(Kind::new).transpose()?,
            states: self.state.iter().map(|state| state.parse::<State>()).collect::<Result<_, _>>()?,
            reason: self.reason.as_deref().map(str::parse::<Reason>).transpose()?,
            tag: self.tag.as_deref().map(Tag::new).transpose()?,
            error: self.error.as_deref().map(ErrorText::new).transpose()?,
            created_from: self.since.map(|point| point.back(now)),
            created_before: self.before.map(|point| point.back(now)),
        })
    }
}

/// Reads an id.
pub(crate) fn id(text: &str) -> Result<JobId, Refused> {
    text.parse().map_err(|_| {
        Refused::usage(
            format!("`{text}` is not a job id"),
            "copy the whole id, as `mainspring jobs` and `mainspring enqueue` print it",
        )
    })
}
