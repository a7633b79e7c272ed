//! The chart of the page: bars of jobs per second, drawn by hand, readable on light and on dark paper.

use std::fmt::Write as _;

use super::results::{DRAIN, ENQUEUE, HELD, Results, Run};
use crate::report::readable;

/// One group of bars per metric.
const PANELS: [(&str, &str, &str); 5] = [
    ("postgres", DRAIN, "Postgres: drain, jobs/s"),
    ("postgres", HELD, "Postgres: drain under a held snapshot, jobs/s"),
    ("postgres", ENQUEUE, "Postgres: bulk enqueue, jobs/s"),
    ("sqlite", DRAIN, "SQLite: drain, jobs/s"),
    ("sqlite", ENQUEUE, "SQLite: bulk enqueue, jobs/s"),
];

const WIDTH: f64 = 860.0;
/// Where bars begin, and how long the longest is.
const LEFT: f64 = 190.0;
const LONGEST: f64 = 560.0;
/// From one bar to the next.
const STEP: f64 = 15.0;
const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:#24292f}.h{font-weight:600;font-size:14px}.n{font-size:11px}\
    .ours{fill:#1f6feb}.theirs{fill:#8c959f}.start{opacity:.45}.bg{fill:#fff}\
    @media(prefers-color-scheme:dark){text{fill:#c9d1d9}.bg{fill:#0d1117}.theirs{fill:#6e7681}}";

/// The whole picture.
pub(crate) fn svg(results: &Results) -> String {
    let mut body = String::new();
    let mut y = 24.0;
    for (store, metric, title) in PANELS {
        if let Some(run) = results.stores.get(store) {
            y = panel(&mut body, run, metric, title, y);
        }
    }
    let _ = writeln!(
        body,
        r#"<text class="n" x="10" y="{y:.0}">Strong: tuned. Pale: as the documentation starts a new user. The middle of all rounds; the line is their spread.</text>"#
    );
    let height = y + 14.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" \
         role=\"img\" aria-label=\"Jobs per second of Mainspring and its peers\">\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

/// One group; returns where the next begins.
fn panel(body: &mut String, run: &Run, metric: &str, title: &str, top: f64) -> f64 {
    let most = run
        .rows
        .iter()
        .filter_map(|row| row.figures.get(metric)?.spread())
        .map(|(_, most)| most)
        .fold(1.0, f64::max);
    let _ = writeln!(body, r#"<text class="h" x="10" y="{top:.0}">{title}</text>"#);
    let mut y = top + 8.0;
    let mut last = "";
    for row in &run.rows {
        if row.system != last {
            last = &row.system;
            y += 3.0;
            let _ = writeln!(
                body,
                r#"<text x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                y + 11.0,
                row.system
            );
        }
        let whose = if row.ours { "ours" } else { "theirs" };
        let shade = if row.is("start") { " start" } else { "" };
        let figures = row.figures.get(metric);
        let mut end = LEFT;
        let mut words = "none".to_owned();
        if let Some((median, (least, most_of_it))) = figures.and_then(|it| it.median().zip(it.spread())) {
            let at = |value: f64| LEFT + LONGEST * value / most;
            let _ = writeln!(
                body,
                r#"<rect class="{whose}{shade}" x="{LEFT}" y="{y:.1}" width="{:.1}" height="12" rx="2"/><path d="M{:.1} {:.1}H{:.1}" stroke="currentColor" stroke-opacity=".5"/>"#,
                (at(median) - LEFT).max(1.0),
                at(least),
                y + 6.0,
                at(most_of_it),
            );
            end = at(most_of_it);
            words = readable(median.round());
            words.truncate(words.trim_end_matches(".000").len());
        }
        if row.relaxed {
            words.push_str(" (relaxed durability)");
        }
        let _ = writeln!(body, r#"<text class="n" x="{:.1}" y="{:.1}">{words}</text>"#, end + 6.0, y + 10.0);
        y += STEP;
    }
    y + 30.0
}
