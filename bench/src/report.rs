//! Figures: printed as a table as they come, or as one JSON line each.

use std::time::Duration;

use serde_json::json;

/// Where figures go.
pub(crate) struct Report {
    bench: &'static str,
    store: String,
    json: bool,
}

impl Report {
    pub(crate) fn new(bench: &'static str, store: &str, json: bool) -> Self {
        if !json {
            println!("{:<52} {:>14}  unit", format!("{bench} on {store}"), "value");
            println!("{}", "-".repeat(76));
        }
        Report { bench, store: store.to_owned(), json }
    }

    /// One figure of ours.
    pub(crate) fn figure(&self, metric: &str, value: f64, unit: &str) {
        self.figure_of("mainspring", metric, value, unit);
    }

    /// One figure of some system.
    pub(crate) fn figure_of(&self, system: &str, metric: &str, value: f64, unit: &str) {
        if self.json {
            let line = json!({
                "bench": self.bench, "store": self.store, "system": system,
                "metric": metric, "value": value, "unit": unit,
            });
            println!("{line}");
        } else {
            let name =
                if system == "mainspring" { metric.to_owned() } else { format!("{metric} ({system})") };
            println!("{name:<52} {:>14}  {unit}", readable(value));
        }
    }

    /// The name of a system, above its figures.
    pub(crate) fn heading(&self, system: &str) {
        if !self.json {
            println!("\n{system}");
        }
    }

    /// One figure below the heading of its system, or why there is none.
    pub(crate) fn figure_below(&self, system: &str, metric: &str, value: Result<f64, &str>, unit: &str) {
        match value {
            Ok(value) if self.json => self.figure_of(system, metric, value, unit),
            Ok(value) => println!("  {metric:<50} {:>14}  {unit}", readable(value)),
            Err(why) if self.json => {
                let line = json!({
                    "bench": self.bench, "store": self.store, "system": system,
                    "metric": metric, "value": null, "unit": unit, "error": why,
                });
                println!("{line}");
            }
            Err(why) => println!("  {metric:<50} {:>14}  {why}", "none"),
        }
    }

    /// The middle and the tail of a set of latencies.
    pub(crate) fn latencies(&self, metric: &str, latencies: &mut [Duration]) {
        self.figure(&format!("{metric} p50"), millis(percentile(latencies, 0.50)), "ms");
        self.figure(&format!("{metric} p99"), millis(percentile(latencies, 0.99)), "ms");
    }
}

/// The value below which a share of all lie.
pub(crate) fn percentile(latencies: &mut [Duration], share: f64) -> Duration {
    latencies.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index within the slice")]
    let at = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
    latencies.get(at).copied().unwrap_or_default()
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Large numbers in groups of three, small ones with three digits.
pub(crate) fn readable(value: f64) -> String {
    if value < 1_000.0 {
        return format!("{value:.3}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
