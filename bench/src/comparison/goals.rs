//! What we want to be true of the figures, and whether it is.

use super::results::{DRAIN, ENQUEUE, HELD, P50, Results, Row, Run};

/// One comparison of ours with the best of the others.
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    /// Ours and theirs, with the name of the best of them; none if one side was not measured.
    pub(crate) figures: Option<(f64, f64, String)>,
    /// How often theirs must fit into ours, or, for a latency, ours into theirs.
    pub(crate) wanted: f64,
    latency: bool,
}

impl Goal {
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (ours, theirs, _) = self.figures.as_ref()?;
        Some(if self.latency { theirs / ours } else { ours / theirs })
    }

    pub(crate) fn holds(&self) -> Option<bool> {
        self.ratio().map(|ratio| ratio >= self.wanted)
    }
}

/// All goals of the stores that were measured.
pub(crate) fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(run) = results.stores.get("postgres") {
        goals.push(rate(run, "Postgres: drain, each tuned", DRAIN, "tuned", 1.5));
        goals.push(rate(run, "Postgres: drain, each as its documentation starts", DRAIN, "start", 2.0));
        goals.push(rate(run, "Postgres: drain under a held snapshot, each tuned", HELD, "tuned", 3.0));
        goals.push(rate(run, "Postgres: bulk enqueue, each tuned", ENQUEUE, "tuned", 1.5));
        goals.push(latency(run, "Postgres: idle enqueue → start, p50"));
    }
    if let Some(run) = results.stores.get("sqlite") {
        goals.push(rate(run, "SQLite: drain at equal durability, each tuned", DRAIN, "tuned", 15.0));
        goals.push(latency(run, "SQLite: idle enqueue → start, p50"));
    }
    goals
}

fn rate(run: &Run, name: &'static str, metric: &str, setting: &str, wanted: f64) -> Goal {
    let rows = run.rows.iter().filter(|row| row.is(setting));
    let figures = compare(rows, metric, f64::max);
    Goal { name, figures, wanted, latency: false }
}

fn latency(run: &Run, name: &'static str) -> Goal {
    Goal { name, figures: compare(run.rows.iter(), P50, f64::min), wanted: 1.0, latency: true }
}

/// The best of ours and the best of theirs, with its name. Whoever risks what was acknowledged does not count.
fn compare<'a>(
    rows: impl Iterator<Item = &'a Row>,
    metric: &str,
    better: fn(f64, f64) -> f64,
) -> Option<(f64, f64, String)> {
    let (mut ours, mut theirs): (Option<f64>, Option<(f64, String)>) = (None, None);
    for row in rows.filter(|row| !row.relaxed) {
        let Some(value) = row.median(metric) else { continue };
        if row.ours {
            ours = Some(ours.map_or(value, |known| better(known, value)));
        } else if theirs.as_ref().is_none_or(|(known, _)| better(*known, value).total_cmp(known).is_ne()) {
            theirs = Some((value, row.system.clone()));
        }
    }
    let ((theirs, name), ours) = (theirs?, ours?);
    Some((ours, theirs, name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::results::Figures;
    use super::*;

    fn row(system: &str, setting: &str, drain: f64) -> Row {
        let figures = Figures { values: vec![drain], ..Figures::default() };
        Row {
            system: system.to_owned(),
            ours: system == "mainspring",
            setting: setting.to_owned(),
            shown: String::new(),
            note: String::new(),
            relaxed: false,
            figures: BTreeMap::from([(DRAIN.to_owned(), figures)]),
        }
    }

    fn run(rows: Vec<Row>) -> Run {
        Run { server: String::new(), machine: String::new(), jobs: 1, rounds: 1, limit: 1, rows }
    }

    #[test]
    fn ours_is_compared_with_the_best_of_the_same_setting() {
        let rows =
            vec![row("mainspring", "tuned", 30.0), row("slow", "tuned", 1.0), row("quick", "tuned", 10.0)];
        let goal = rate(&run(rows), "drain", DRAIN, "tuned", 3.0);
        assert_eq!(goal.figures, Some((30.0, 10.0, "quick".to_owned())));
        assert_eq!(goal.holds(), Some(true));
    }

    #[test]
    fn nobody_is_compared_with_who_risks_what_was_acknowledged() {
        let mut risky = row("risky", "tuned", 1_000.0);
        risky.relaxed = true;
        let rows = vec![row("mainspring", "tuned", 30.0), row("quick", "tuned", 20.0), risky];
        let goal = rate(&run(rows), "drain", DRAIN, "tuned", 2.0);
        assert_eq!(goal.holds(), Some(false));
    }

    #[test]
    fn what_was_not_measured_neither_holds_nor_fails() {
        let goal = rate(&run(vec![row("mainspring", "tuned", 30.0)]), "drain", DRAIN, "tuned", 2.0);
        assert_eq!(goal.holds(), None);
    }
}
