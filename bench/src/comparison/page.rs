//! The figures for people: in the terminal, in `docs/performance.md`, and in short in the README.
//!
//! `--write` puts them between marks, so that no figure is ever copied by hand, and leaves all words around them alone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::results::{DRAIN, ENQUEUE, Figures, HELD, P50, P99, Results, Row, Run};
use super::{chart, goals};
use crate::report::readable;

/// What is shown, with its heading.
const COLUMNS: [(&str, &str); 5] = [
    (ENQUEUE, "bulk enqueue, jobs/s"),
    (DRAIN, "drain, jobs/s"),
    (HELD, "drain under a held snapshot, jobs/s"),
    (P50, "idle enqueue → start, p50, ms"),
    (P99, "p99, ms"),
];

/// For a terminal.
pub(crate) fn text(results: &Results) -> String {
    let mut text = String::new();
    for (store, run) in &results.stores {
        let _ =
            writeln!(text, "\nqueue on {store}: {} jobs, {} rounds, {}", run.jobs, run.rounds, run.server);
        let _ = writeln!(text, "{}", run.machine);
        for row in &run.rows {
            let _ = writeln!(text, "\n{} {}: {}", row.system, row.setting, row.shown);
            for (metric, figures) in &row.figures {
                let _ = writeln!(text, "  {metric:<24} {} {}", cell(Some(figures)), figures.unit);
            }
        }
    }
    let _ = writeln!(text, "\ngoals");
    for goal in goals::goals(results) {
        let ratio = goal.ratio().map_or("not measured".to_owned(), |ratio| format!("{ratio:.2} x"));
        let holds = goal.holds().map_or("", |holds| if holds { "holds" } else { "does not hold" });
        let _ = writeln!(text, "  {:<52} {ratio:>12} of {:.1} x  {holds}", goal.name, goal.wanted);
    }
    text
}

/// The middle, and in brackets how far the rounds lie apart; or why there is nothing.
fn cell(figures: Option<&Figures>) -> String {
    let Some(figures) = figures else { return "–".to_owned() };
    let Some((median, (least, most))) = figures.median().zip(figures.spread()) else {
        return figures.error.as_deref().unwrap_or("–").replace('|', "/");
    };
    let spread = format!("{} ({}–{})", short(median), short(least), short(most));
    if figures.error.is_some() { format!("{spread}, then failed") } else { spread }
}

/// Three digits that mean something.
fn short(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.2}");
    }
    let step = 10_f64.powf((value.log10().floor() - 2.0).max(0.0));
    let rounded = (value / step).round() * step;
    readable(rounded).trim_end_matches(".000").to_owned()
}

/// Writes the figures, the chart and both pages. What was measured of other stores stays.
pub(crate) fn write(results: Results) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the root")?.to_owned();
    let file = |name: &str| -> PathBuf { root.join(name) };
    let kept = file("docs/performance.json");
    let mut all: Results = match std::fs::read_to_string(&kept) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(_) => Results::default(),
    };
    all.stores.extend(results.stores);
    std::fs::write(&kept, serde_json::to_string_pretty(&all)? + "\n")?;
    std::fs::write(file("docs/performance.svg"), chart::svg(&all))?;
    replace(&file("docs/performance.md"), "figures", &page(&all))?;
    replace(&file("README.md"), "side by side", &brief(&all))?;
    Ok(())
}

/// Puts text between the marks of a name.
fn replace(path: &Path, name: &str, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path)?;
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let lost = || format!("{} has no marks for `{name}`", path.display());
    let (before, rest) = old.split_once(&begin).with_context(lost)?;
    let (_, after) = rest.split_once(&end).with_context(lost)?;
    std::fs::write(path, format!("{before}{begin}\n{text}\n{end}{after}"))?;
    Ok(())
}

fn title(store: &str) -> &'static str {
    if store == "postgres" { "Postgres" } else { "SQLite" }
}

/// What stands where figures will be.
const NOTHING: &str = "Not measured yet: `cargo xtask bench queue --peers --write` puts the figures here.";

/// Tables, settings and goals.
fn page(results: &Results) -> String {
    if results.stores.is_empty() {
        return NOTHING.to_owned() + "\n";
    }
    let mut text = String::new();
    for (store, run) in &results.stores {
        let _ = writeln!(text, "### {}\n", title(store));
        let _ = writeln!(
            text,
            "{} jobs, {} rounds, at most {} s for a task; {}; {}.\n",
            readable(run.jobs as f64),
            run.rounds,
            run.limit,
            run.server,
            run.machine
        );
        table(&mut text, run);
        settings(&mut text, run);
    }
    let _ = writeln!(text, "### Goals\n");
    let _ = writeln!(
        text,
        "| ours against the best of the others | ours | theirs | ratio | goal | |\n|---|---|---|---|---|---|"
    );
    for goal in goals::goals(results) {
        let (ours, theirs) =
            goal.figures.as_ref().map_or(("–".to_owned(), "–".to_owned()), |(ours, theirs, name)| {
                (short(*ours), format!("{} ({name})", short(*theirs)))
            });
        let ratio = goal.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let holds =
            goal.holds().map_or("not measured", |holds| if holds { "holds" } else { "**does not hold**" });
        let _ =
            writeln!(text, "| {} | {ours} | {theirs} | {ratio} | ≥ {} | {holds} |", goal.name, goal.wanted);
    }
    text
}

/// The columns that a run has.
fn columns(run: &Run) -> Vec<(&'static str, &'static str)> {
    let has = |metric: &str| run.rows.iter().any(|row| row.figures.contains_key(metric));
    COLUMNS.into_iter().filter(|(metric, _)| has(metric)).collect()
}

fn table(text: &mut String, run: &Run) {
    let columns = columns(run);
    let heads: Vec<&str> = columns.iter().map(|(_, head)| *head).collect();
    let _ = writeln!(text, "| | set up | {} |", heads.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "--:|".repeat(columns.len()));
    for row in &run.rows {
        let name = if row.ours { format!("**{}**", row.system) } else { row.system.clone() };
        let mark = if row.relaxed { ", relaxed" } else { "" };
        let cells: Vec<String> = match row.figures.get("everything") {
            Some(failed) => vec![cell(Some(failed))],
            None => columns.iter().map(|(metric, _)| cell(row.figures.get(*metric))).collect(),
        };
        let _ = writeln!(text, "| {name} | {}{mark} | {} |", words(row), cells.join(" | "));
    }
    text.push('\n');
}

fn words(row: &Row) -> &'static str {
    if row.is("start") { "as documented" } else { "tuned" }
}

/// What each does, and how it was set up.
fn settings(text: &mut String, run: &Run) {
    let mut last = "";
    for row in &run.rows {
        if row.system != last {
            last = &row.system;
            let _ = writeln!(text, "- **{}**: {}.", row.system, row.note);
        }
        let _ = writeln!(text, "  - {}: {}.", words(row), row.shown);
    }
    text.push('\n');
}

/// The tuned ones, without their spread.
fn brief(results: &Results) -> String {
    if results.stores.is_empty() {
        return NOTHING.to_owned() + "\n";
    }
    let mut text = String::new();
    for (store, run) in &results.stores {
        let columns: Vec<_> = columns(run).into_iter().filter(|(metric, _)| *metric != P99).collect();
        let heads: Vec<&str> = columns.iter().map(|(_, head)| *head).collect();
        let _ = writeln!(text, "| on {}, each tuned | {} |", title(store), heads.join(" | "));
        let _ = writeln!(text, "|---|{}", "--:|".repeat(columns.len()));
        for row in run.rows.iter().filter(|row| row.is("tuned")) {
            let name = if row.ours { format!("**{}**", row.system) } else { row.system.clone() };
            let cells: Vec<String> =
                columns.iter().map(|(metric, _)| row.median(metric).map_or("–".to_owned(), short)).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_that_mean_something() {
        assert_eq!(short(123_456.0), "123,000");
        assert_eq!(short(999_900.0), "1,000,000");
        assert_eq!(short(490.4), "490");
        assert_eq!(short(2.346), "2.35");
    }

    #[test]
    fn spread_is_shown_beside_the_middle_and_a_failure_after_it() {
        let mut figures = Figures { values: vec![3.0, 1.0, 2.0], ..Figures::default() };
        assert_eq!(cell(Some(&figures)), "2.00 (1.00–3.00)");
        figures.error = Some("did not end within 30 s".to_owned());
        assert_eq!(cell(Some(&figures)), "2.00 (1.00–3.00), then failed");
        figures.values.clear();
        assert_eq!(cell(Some(&figures)), "did not end within 30 s");
    }
}
