//! How far something has come that takes long: one line on a terminal, which is gone when it is done.
//!
//! On standard error, so that what is printed can go elsewhere; and nothing at all if that is no terminal, or if programs read
//! the output.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use mainspring::Engine;
use mainspring::seam::Clock;

use crate::output::Out;

/// Columns of the bar.
const WIDTH: usize = 24;
/// Between two drawings: more often, nobody can read it.
const BETWEEN: Duration = Duration::from_millis(50);

/// Draws the line. Dropping it removes the line.
pub(crate) struct Progress {
    clock: Arc<dyn Clock>,
    what: String,
    /// `None`: nobody knows.
    total: Option<usize>,
    begun: Duration,
    drawn: Option<Duration>,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(engine: &Engine, out: Out, what: impl Into<String>, total: Option<usize>) -> Self {
        let clock = Arc::clone(&engine.seams().clock);
        let begun = clock.monotonic();
        let shown = !out.is_json() && io::stderr().is_terminal();
        Progress { clock, what: what.into(), total, begun, drawn: None, shown }
    }

    /// So many are done.
    pub(crate) fn show(&mut self, done: usize) {
        let now = self.clock.monotonic();
        if !self.shown || self.drawn.is_some_and(|drawn| now.saturating_sub(drawn) < BETWEEN) {
            return;
        }
        self.drawn = Some(now);
        let line = line(&self.what, done, self.total, now.saturating_sub(self.begun));
        // Nobody may be looking any more; the work goes on all the same.
        let _unseen = write!(io::stderr(), "\r\u{1b}[2K{line}").and_then(|()| io::stderr().flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _unseen = write!(io::stderr(), "\r\u{1b}[2K").and_then(|()| io::stderr().flush());
        }
    }
}

fn line(what: &str, done: usize, total: Option<usize>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = if seconds > 0.0 { format!("  {:.0}/s", done as f64 / seconds) } else { String::new() };
    match total.filter(|total| *total > 0) {
        None => format!("{what}: {done}{rate}"),
        Some(total) => {
            let done = done.min(total);
            let filled = done * WIDTH / total;
            let bar = format!("{}{}", "█".repeat(filled), "░".repeat(WIDTH - filled));
            format!("{what} {bar} {done} of {total}{rate}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_from_left_to_right() {
        let at = |done| line("retry", done, Some(48), Duration::from_secs(2));
        assert_eq!(at(0), format!("retry {} 0 of 48  0/s", "░".repeat(24)));
        assert_eq!(at(24), format!("retry {}{} 24 of 48  12/s", "█".repeat(12), "░".repeat(12)));
        assert_eq!(at(48), format!("retry {} 48 of 48  24/s", "█".repeat(24)));
        assert!(at(60).contains(" 48 of 48 "), "more than was counted is not more than all");
    }

    #[test]
    fn without_a_total_it_counts() {
        assert_eq!(line("counting", 7, None, Duration::ZERO), "counting: 7");
        assert_eq!(line("counting", 10, None, Duration::from_secs(5)), "counting: 10  2/s");
    }
}
