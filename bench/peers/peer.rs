//! What the programs beside this file share: what they are asked, and how they answer.
//!
//! A program is started with the address of an empty database, the name of a setting, a number of workflows and a number
//! of steps for each. One workflow: how long does a step take? Several: how many steps per second, in rounds that are
//! repeated until a second has passed, after a short one that nobody measures. The answer is one JSON line per figure,
//! and the number of steps that the database must hold. Anything else is a failure, and its reason is on stderr.

use std::error::Error;
use std::time::Duration;

pub(crate) type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// What a step returns, which is 200 bytes in JSON.
pub(crate) const RESULT: usize = 198;

/// Steps of each workflow in the round that is not measured.
pub(crate) const WARM: usize = 5;

/// What a program is asked.
pub(crate) struct Asked {
    pub(crate) address: String,
    pub(crate) setting: String,
    pub(crate) workflows: usize,
    pub(crate) steps: usize,
}

impl Asked {
    pub(crate) fn read() -> Result<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [address, setting, workflows, steps] = args.as_slice() else {
            return Err("expected <address> <setting> <workflows> <steps>".into());
        };
        Ok(Asked {
            address: address.clone(),
            setting: setting.clone(),
            workflows: workflows.parse()?,
            steps: steps.parse()?,
        })
    }
}

/// How long steps of one workflow took.
pub(crate) fn tell_latencies(mut latencies: Vec<Duration>, steps: usize) {
    latencies.sort_unstable();
    for (name, share) in [("p50", 50), ("p99", 99)] {
        let at = (latencies.len() * share / 100).min(latencies.len().saturating_sub(1));
        let value = latencies.get(at).copied().unwrap_or_default().as_secs_f64() * 1e3;
        tell(&format!("a step of one workflow {name}"), value, "ms");
    }
    tell(STEPS, steps as f64, "steps");
}

/// Rounds of many workflows at the same time.
pub(crate) struct Rounds {
    steps: usize,
    measured: usize,
    spent: Duration,
}

impl Rounds {
    /// None yet, but so many steps that are not measured.
    pub(crate) fn after(warm: usize) -> Self {
        Rounds { steps: warm, measured: 0, spent: Duration::ZERO }
    }

    /// Whether one more is needed.
    pub(crate) fn more(&self) -> bool {
        self.spent < Duration::from_secs(1)
    }

    pub(crate) fn add(&mut self, steps: usize, spent: Duration) {
        self.steps += steps;
        self.measured += steps;
        self.spent += spent;
    }

    pub(crate) fn tell(&self, asked: &Asked) {
        let metric = format!("{} workflows x {} steps", asked.workflows, asked.steps);
        tell(&metric, self.measured as f64 / self.spent.as_secs_f64(), "steps/s");
        tell(STEPS, self.steps as f64, "steps");
    }
}

/// The name of the figure that the database is compared with.
const STEPS: &str = "steps in the database";

/// One figure; no text in it needs to be escaped.
fn tell(metric: &str, value: f64, unit: &str) {
    println!(r#"{{"metric":"{metric}","value":{value},"unit":"{unit}"}}"#);
}
