//! What is printed when `dev` ends.

use mainspring::State;
use serde_json::json;

use super::watch::Watch;
use crate::output::Out;
use crate::text;

pub(super) fn print(watch: &Watch, store: &str, out: Out) -> std::io::Result<()> {
    let ended = |state| watch.since_start(state);
    let left = |state| watch.counts.total(state);
    out.either(
        || {
            json!({
                "event": "summary",
                "succeeded": ended(State::Succeeded),
                "failed": ended(State::Failed),
                "cancelled": ended(State::Cancelled),
                "retried": watch.tally.retried,
                "recovered": watch.tally.recovered,
                "left": watch.unfinished(),
                "store": store,
            })
        },
        || {
            let flag = if store == DEFAULT { String::new() } else { format!(" --store {store}") };
            let resume = match left(State::Suspended) {
                0 => String::new(),
                _ => format!("\n  mainspring jobs resume --state suspended{flag}"),
            };
            format!(
                "\n\
                 \x20 succeeded  {:>6}\n\
                 \x20 failed     {:>6}\n\
                 \x20 cancelled  {:>6}\n\
                 \x20 retried    {:>6}\n\
                 \x20 recovered  {:>6}  after the worker died\n\
                 \n\
                 left in {}: {} ready, {} scheduled, {} running, {} suspended\n\
                 nothing is lost: `mainspring dev{flag}` continues from here\n\
                 \n\
                 next:\n\
                 \x20 mainspring jobs --state failed{flag}{resume}\n\
                 \x20 mainspring queue list{flag}\n\
                 \x20 mainspring enqueue sleep '{{\"ms\": 2000}}' --wait{flag}   (while `mainspring dev` runs)",
                ended(State::Succeeded),
                ended(State::Failed),
                ended(State::Cancelled),
                watch.tally.retried,
                watch.tally.recovered,
                text::plain(store),
                left(State::Ready),
                left(State::Scheduled),
                left(State::Running),
                left(State::Suspended),
            )
        },
    )
}

/// The store that commands use if none is named.
const DEFAULT: &str = "sqlite:mainspring.db";
