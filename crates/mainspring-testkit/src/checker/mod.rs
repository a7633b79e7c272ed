//! The checker: one judge for all rigs.
//!
//! Its input is a [history](crate::history) and what the store holds in the end; its output is a list of violations, each
//! told as the shortest story of the job concerned, and figures. It knows no engine and no store: a rule is a statement
//! about facts, so that whatever produces facts can be judged.
//!
//! A later capability adds its facts to the history and a file with its rules to `rules`.

mod evidence;
mod figures;
mod rules;
mod schedule;
mod timeline;
mod workflow;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{State, Summary};
use mainspring_core::output::{Ask, OutputItem};
use mainspring_core::store::{Counts, Filter, Finding, Page, Store};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};

use crate::history::Event;
use evidence::Evidence;
pub use figures::Figures;

/// What a store holds when all is over.
#[derive(Debug, Clone, Default)]
pub struct FinalState {
    /// All jobs.
    pub jobs: Vec<Summary>,
    /// What the store itself finds wrong.
    pub findings: Vec<Finding>,
    /// How many jobs it says to have, by queue and state.
    pub counts: Counts,
    /// What jobs have said, of those that somebody wanted to hear.
    pub outputs: BTreeMap<JobId, Vec<OutputItem>>,
}

impl FinalState {
    /// Looks through a store.
    ///
    /// # Errors
    /// As the store's.
    pub async fn look(store: &dyn Store) -> Result<Self, Error> {
        let mut found = FinalState::default();
        let mut after = None;
        loop {
            let page = store.list(Filter::default(), Page { after, limit: 1_000 }).await?;
            found.jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        found.findings = store.check().await?;
        found.counts = store.counts().await?;
        Ok(found)
    }

    /// Reads all that these jobs have said, as far as it is kept. Those that are not there have said nothing.
    ///
    /// # Errors
    /// As the store's.
    pub async fn listen(&mut self, store: &dyn Store, jobs: Vec<JobId>) -> Result<(), Error> {
        for id in jobs {
            let mut items: Vec<OutputItem> = Vec::new();
            loop {
                let after = items.last().map_or(0, |item| item.position);
                let ask = Ask { id, after, limit: bounds::OUTPUT_PAGE };
                let Some(Some(page)) = store.output(vec![ask]).await?.pop() else { break };
                if page.items.is_empty() {
                    break;
                }
                items.extend(page.items);
            }
            self.outputs.insert(id, items);
        }
        Ok(())
    }
}

/// How a history is to be read.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckTerms {
    /// Facts of the store are noted at the moment of their commit, all of them: the order of events is the order of
    /// commits. Otherwise answers may be missing, and come late.
    pub exact: bool,
    /// All faults are over and everybody had time enough: nothing may be left undone.
    pub settled: bool,
    /// How long ended jobs are kept, if the run is long enough for some to be removed.
    pub retention: Option<Duration>,
    /// Within which time beyond a lease a dead node must be expired, while nothing else is wrong.
    pub recovery: Option<Duration>,
    /// The store was cut back to an earlier moment: what was acknowledged last may be gone, but nothing in between.
    pub cut: bool,
    /// How many jobs one claim of a node takes at most, where that is known: it bounds what a node may hold.
    pub claim: Option<usize>,
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which rule says so.
    pub rule: &'static str,
    /// The job concerned, if it is about one.
    pub job: Option<JobId>,
    /// What is wrong.
    pub what: String,
    /// How it came about, line by line.
    pub timeline: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)?;
        self.timeline.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// What the checker says.
#[derive(Debug, Clone)]
pub struct Report {
    /// What happened, in numbers.
    pub figures: Figures,
    /// What must not have happened.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

/// Judges a run.
pub fn check(history: &[Event], found: &FinalState, terms: CheckTerms) -> Report {
    let evidence = Evidence::new(history, found, terms);
    let mut violations = Vec::new();
    for (rule, judge) in rules::ALL {
        let mut broken = Vec::new();
        judge(&evidence, &mut broken);
        violations.extend(broken.into_iter().map(|broken| Violation {
            rule,
            job: broken.job,
            timeline: timeline::render(&evidence, &broken),
            what: broken.what,
        }));
    }
    let figures = Figures::new(&evidence, &violations);
    Report { figures, violations }
}

/// A history as a story, one line per event.
pub fn render(history: &[Event]) -> impl Iterator<Item = String> {
    let start = history.first().map_or(Timestamp::EPOCH, |event| event.at);
    history.iter().map(move |event| timeline::line(start, event))
}

/// The names of all rules.
pub fn rules() -> impl Iterator<Item = &'static str> {
    rules::ALL.iter().map(|(name, _)| *name)
}

/// Whether a job waits for nothing but time and a free slot.
pub(crate) fn is_open(state: State) -> bool {
    matches!(state, State::Ready | State::Running | State::Scheduled | State::Blocked)
}
