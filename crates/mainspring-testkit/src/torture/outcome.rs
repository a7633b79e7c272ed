//! What came of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::checker::Report;

/// How often a fault was injected, and how often it hit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// Faults.
    pub injected: usize,
    /// Hits.
    pub hit: usize,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The store.
    pub store: &'static str,
    /// The seed.
    pub seed: u64,
    /// Faults that were injected.
    pub cycles: usize,
    /// How long it took.
    pub took: Duration,
    /// Faults by kind, also those that were not injected.
    pub faults: BTreeMap<String, FaultCount>,
    /// What the checker says.
    pub report: Report,
    /// What else is worth telling.
    pub notes: Vec<String>,
    /// What else must not have happened.
    pub problems: Vec<String>,
    /// Where ledger and store are kept, if anything is wrong.
    pub kept: Option<PathBuf>,
}

impl Outcome {
    /// Whether every promise was kept, and every fault that was injected has hit at least once.
    pub fn is_clean(&self) -> bool {
        self.report.is_clean() && self.problems.is_empty()
    }

    /// Panics with the whole story if anything is wrong.
    pub fn assert_clean(&self) {
        assert!(self.is_clean(), "{self}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        writeln!(
            f,
            "torture of {}, seed {}: {} cycles in {seconds:.0} s",
            self.store, self.seed, self.cycles
        )?;
        for (name, FaultCount { injected, hit }) in self.faults.iter().filter(|(_, tally)| tally.injected > 0)
        {
            writeln!(f, "  fault: {name:<30} {injected:>4} injected, {hit:>4} hit")?;
        }
        writeln!(f, "{}", self.report.figures)?;
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        for violation in &self.report.violations {
            writeln!(f, "VIOLATION: {violation}")?;
        }
        if let Some(kept) = &self.kept {
            writeln!(f, "kept in {}", kept.display())?;
        }
        write!(f, "{}", if self.is_clean() { "every promise was kept" } else { "FAILED" })
    }
}
