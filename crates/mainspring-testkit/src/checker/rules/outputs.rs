//! What workflows say.
//!
//! What is void is what a reader is told to forget: all frames of a step, or of the handler, before a reset of it.

use std::collections::BTreeMap;

use mainspring_core::job::State;
use mainspring_core::output::{OutputItem, What};

use super::BrokenRule;
use super::workflows::flows;
use crate::checker::evidence::Evidence;
use crate::history::{OutputFrame, digest};

/// Who has heard all of it, and has forgotten what was taken back, knows what the workflow says in peace: all of it if it
/// succeeded, and otherwise what each step, and the handler, say first.
pub(super) fn told(evidence: &Evidence<'_>, broken: &mut Vec<BrokenRule>) {
    for (id, facts, flow) in flows(evidence) {
        let (Some((at, words)), Some(job)) = (flow.says, facts.found) else { continue };
        let items = evidence.found.outputs.get(id).map_or(&[][..], Vec::as_slice);
        let events = || {
            let last = facts.finished.iter().rev().find(|end| end.applied).map(|end| end.at);
            [at].into_iter().chain(last).collect::<Vec<_>>()
        };
        if let Some(what) = places(items) {
            broken.push(BrokenRule::job(*id, what, events()));
            continue;
        }
        // Who was retried from a step may say again what its handler said on the way there.
        if !flow.rewinds.is_empty() {
            continue;
        }
        let heard = heard(items);
        // Of a long output only the last is kept.
        let cut = items.first().is_some_and(|item| item.position > 1);
        let fits = match (job.status.state, cut) {
            (State::Succeeded, false) => heard == words,
            (State::Succeeded, true) => words.ends_with(&heard),
            (_, true) => true,
            // The handler may begin anew before the steps that it comes to do.
            (_, false) => {
                let (heard, words) = (by_speaker(&heard), by_speaker(words));
                heard.iter().all(|(step, said)| words.get(step).is_some_and(|all| all.starts_with(said)))
            }
        };
        if !fits {
            let what = format!(
                "it has {} frames to say, and {} are heard, not those or not in that order: {}",
                words.len(),
                heard.len(),
                render(items)
            );
            broken.push(BrokenRule::job(*id, what, events()));
        }
    }
}

/// What is wrong with the places of these: positions go up by one, claims do not go down, and a reset reaches back to the
/// first frame that it takes back.
fn places(items: &[OutputItem]) -> Option<String> {
    for pair in items.windows(2) {
        if pair[1].position != pair[0].position + 1 {
            return Some(format!("behind position {} comes {}", pair[0].position, pair[1].position));
        }
        if pair[1].claim < pair[0].claim {
            return Some(format!("position {} is of an earlier claim than the one before", pair[1].position));
        }
    }
    let cut = items.first().is_some_and(|item| item.position > 1);
    for (at, item) in items.iter().enumerate().filter(|_| !cut) {
        let What::Reset { from } = item.what else { continue };
        let void = |before: &&OutputItem| before.step == item.step && matches!(before.what, What::Frame(_));
        let first = items[..at].iter().find(void).map_or(item.position, |first| first.position);
        if from != first {
            let position = item.position;
            return Some(format!("the reset at {position} reaches back to {from}, and not to {first}"));
        }
    }
    None
}

/// What a reader has in the end.
fn heard(items: &[OutputItem]) -> Vec<OutputFrame> {
    let mut heard: Vec<OutputFrame> = Vec::new();
    for item in items {
        let step = item.step.as_ref().map(ToString::to_string);
        match &item.what {
            What::Frame(body) => heard.push(OutputFrame { step, digest: digest(body) }),
            What::Reset { .. } => heard.retain(|word| word.step != step),
        }
    }
    heard
}

fn by_speaker(words: &[OutputFrame]) -> BTreeMap<Option<&str>, Vec<u64>> {
    let mut all: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for word in words {
        all.entry(word.step.as_deref()).or_default().push(word.digest);
    }
    all
}

fn render(items: &[OutputItem]) -> String {
    let words = items.iter().map(|item| {
        let step = item.step.as_ref().map_or("handler", |step| step.as_str());
        match &item.what {
            What::Frame(body) => format!("{step} {:04x} by {}", digest(body) >> 48, item.claim),
            What::Reset { .. } => format!("reset of {step} by {}", item.claim),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}
