//! What was measured: everything that the page and the chart are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All stores, by name.
#[derive(Serialize, Deserialize, Default)]
pub(crate) struct Results {
    pub(crate) stores: BTreeMap<String, Run>,
}

/// One run on one store.
#[derive(Serialize, Deserialize)]
pub(crate) struct Run {
    /// The database and the machine, in words.
    pub(crate) server: String,
    pub(crate) machine: String,
    pub(crate) jobs: usize,
    pub(crate) rounds: usize,
    /// Seconds that one task may take.
    pub(crate) limit: u64,
    pub(crate) rows: Vec<Row>,
}

/// One queue in one setting.
#[derive(Serialize, Deserialize)]
pub(crate) struct Row {
    /// With its version.
    pub(crate) system: String,
    pub(crate) ours: bool,
    /// `start` or `tuned`.
    pub(crate) setting: String,
    /// The same in words.
    pub(crate) shown: String,
    pub(crate) note: String,
    /// Whether a power cut may take what was acknowledged.
    pub(crate) relaxed: bool,
    /// By metric.
    pub(crate) figures: BTreeMap<String, Figures>,
}

/// One metric in all rounds.
#[derive(Serialize, Deserialize, Default)]
pub(crate) struct Figures {
    pub(crate) unit: String,
    pub(crate) values: Vec<f64>,
    /// Why there are no more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

pub(crate) const ENQUEUE: &str = "bulk enqueue";
pub(crate) const DRAIN: &str = "drain";
pub(crate) const HELD: &str = "drain, held snapshot";
pub(crate) const P50: &str = "idle p50";
pub(crate) const P99: &str = "idle p99";

impl Figures {
    /// The one in the middle; of two, the mean.
    pub(crate) fn median(&self) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
        Some(f64::midpoint(*sorted.get(low)?, *sorted.get(high)?))
    }

    /// The least and the most.
    pub(crate) fn spread(&self) -> Option<(f64, f64)> {
        let least = self.values.iter().copied().min_by(f64::total_cmp)?;
        let most = self.values.iter().copied().max_by(f64::total_cmp)?;
        Some((least, most))
    }
}

impl Row {
    pub(crate) fn median(&self, metric: &str) -> Option<f64> {
        self.figures.get(metric)?.median()
    }

    pub(crate) fn is(&self, setting: &str) -> bool {
        self.setting == setting
    }
}
