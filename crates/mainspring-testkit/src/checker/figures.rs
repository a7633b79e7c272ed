//! A run in numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Violation;
use super::evidence::{Evidence, Fault, JobFacts};
use super::rules::{deaths, in_peace, witnessed};
use crate::history::EnqueueAnswer;

/// What happened, in numbers. Those of several runs add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Figures {
    /// Runs that these are of.
    pub runs: usize,
    /// Enqueues that were sent.
    pub asked: usize,
    /// Jobs whose enqueue was acknowledged.
    pub acknowledged: usize,
    /// Enqueues that met a held key.
    pub existing: usize,
    /// Verbs of operators that were applied.
    pub verbs: usize,
    /// Claims that were given out.
    pub claims: usize,
    /// Outcomes that were accepted.
    pub accepted: usize,
    /// Outcomes that were refused, because their claim was not the sender's any more.
    pub stale: usize,
    /// Nodes that were expired.
    pub expired: usize,
    /// Acknowledged jobs that are gone.
    pub lost: usize,
    /// Jobs with more than one outcome.
    pub doubled: usize,
    /// Faults, by kind.
    pub faults: BTreeMap<String, usize>,
    /// How long it took to find each dead node that held jobs, if there was somebody to find it.
    pub recoveries: Vec<Duration>,
    /// Those of them around which nothing else was wrong, other than that more nodes died.
    pub peaceful: Vec<Duration>,
    /// Promises that were broken.
    pub violations: usize,
}

impl Figures {
    pub(super) fn new(evidence: &Evidence<'_>, violations: &[Violation]) -> Self {
        let job_facts = || evidence.job_facts.values();
        let broken = |rule: &str| violations.iter().filter(|violation| violation.rule == rule).count();
        let mut faults = BTreeMap::new();
        for fault in &evidence.faults {
            *faults.entry(fault.kind.to_owned()).or_default() += 1;
        }
        let finished = |applied: bool| {
            job_facts()
                .flat_map(|facts| &facts.finished)
                .filter(|finished| finished.applied == applied)
                .count()
        };
        Figures {
            runs: 1,
            asked: job_facts().filter(|facts| facts.is_known()).count(),
            acknowledged: job_facts().filter(|facts| facts.is_acknowledged()).count(),
            existing: job_facts().filter(|facts| is_existing(facts)).count(),
            verbs: job_facts().flat_map(|facts| &facts.orders).filter(|order| order.obeyed.is_some()).count(),
            claims: job_facts().map(|facts| facts.claims.len()).sum(),
            accepted: finished(true),
            stale: finished(false),
            expired: evidence.expiries.len(),
            lost: broken("nothing acknowledged is lost"),
            doubled: broken("one outcome"),
            faults,
            recoveries: recoveries(evidence, witnessed),
            peaceful: recoveries(evidence, in_peace),
            violations: violations.len(),
        }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Figures) {
        self.runs += other.runs;
        self.asked += other.asked;
        self.acknowledged += other.acknowledged;
        self.existing += other.existing;
        self.verbs += other.verbs;
        self.claims += other.claims;
        self.accepted += other.accepted;
        self.stale += other.stale;
        self.expired += other.expired;
        self.lost += other.lost;
        self.doubled += other.doubled;
        for (kind, count) in &other.faults {
            *self.faults.entry(kind.clone()).or_default() += count;
        }
        self.recoveries.extend(&other.recoveries);
        self.peaceful.extend(&other.peaceful);
        self.violations += other.violations;
    }
}

fn is_existing(facts: &JobFacts<'_>) -> bool {
    matches!(facts.acknowledged, Some((_, EnqueueAnswer::Existing(_))))
}

fn recoveries(
    evidence: &Evidence<'_>,
    counts: fn(&Evidence<'_>, &Fault<'_>, Duration) -> bool,
) -> Vec<Duration> {
    let mut recoveries = Vec::new();
    for (fault, node) in deaths(evidence) {
        if !counts(evidence, fault, evidence.nodes[&node].lease) {
            continue;
        }
        let expired = evidence.expiries.iter().find(|(at, no)| *no == node && *at > fault.at);
        recoveries.extend(expired.map(|(at, _)| evidence.time(*at).since(evidence.time(fault.at))));
    }
    recoveries
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  runs                     {}", self.runs)?;
        writeln!(f, "  enqueues                 {}", self.asked)?;
        writeln!(
            f,
            "  acknowledged             {} (and {} that met a held key)",
            self.acknowledged, self.existing
        )?;
        writeln!(f, "  verbs of operators       {}", self.verbs)?;
        writeln!(f, "  claims                   {}", self.claims)?;
        writeln!(f, "  outcomes accepted        {}", self.accepted)?;
        writeln!(f, "  stale writes refused     {}", self.stale)?;
        writeln!(f, "  nodes expired            {}", self.expired)?;
        let mut sorted = self.recoveries.clone();
        sorted.sort_unstable();
        if let (Some(slowest), Some(median)) = (sorted.last(), sorted.get(sorted.len() / 2)) {
            let (median, slowest) = (median.as_secs_f64(), slowest.as_secs_f64());
            writeln!(f, "  deaths found after       {median:.2} s in the median, {slowest:.2} s at most")?;
        }
        if let Some(slowest) = self.peaceful.iter().max() {
            let (count, slowest) = (self.peaceful.len(), slowest.as_secs_f64());
            writeln!(f, "  of those in peace        {count}, after {slowest:.2} s at most")?;
        }
        for (kind, count) in &self.faults {
            writeln!(f, "  fault: {kind:<17} {count}")?;
        }
        writeln!(f, "  lost                     {}", self.lost)?;
        writeln!(f, "  doubled                  {}", self.doubled)?;
        write!(f, "  promises broken          {}", self.violations)
    }
}
