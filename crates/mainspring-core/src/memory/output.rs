//! What jobs say.

use std::collections::VecDeque;

use crate::bounds;
use crate::output::{Ask, Output, OutputExtent, OutputItem, Push, What};
use crate::time::Timestamp;

use super::model::{Job, Model};

/// What a job has said, as far as it is kept.
#[derive(Clone, Default)]
pub(super) struct JobOutput {
    /// Each with the bytes that had been pushed before it.
    items: VecDeque<(OutputItem, u64)>,
    kept: OutputExtent,
    /// The claim and the number of the last one.
    last: (u32, u32),
}

impl JobOutput {
    pub(super) fn push(&mut self, push: Push, claim: u32, now: Timestamp) {
        let Push { number, step, body } = push;
        if self.last.0 == claim && number <= self.last.1 {
            return;
        }
        self.last = (claim, number);
        let before = self.kept.total;
        let position = self.kept.last + 1;
        let what = if let Some(body) = body {
            self.kept.total += body.len() as u64;
            What::Frame(body)
        } else {
            let void = |item: &OutputItem| item.step == step && matches!(item.what, What::Frame(_));
            let first = self.items.iter().find(|(item, _)| void(item));
            What::Reset { from: first.map_or(position, |(item, _)| item.position) }
        };
        self.kept.last = position;
        self.items.push_back((OutputItem { position, at: now, claim, step, what }, before));
        let kept = self.kept;
        while self.items.front().is_some_and(|(item, before)| !kept.keeps(item.position, *before)) {
            self.items.pop_front();
        }
    }

    fn page(&self, ask: &Ask) -> Vec<OutputItem> {
        let mut bytes = 0;
        let fits = |item: &&OutputItem| {
            let first = bytes == 0;
            bytes += size(item);
            first || bytes <= bounds::PREFETCH_BYTES
        };
        let behind = self.items.iter().map(|(item, _)| item).filter(|item| item.position > ask.after);
        behind.take(ask.limit.min(bounds::OUTPUT_PAGE)).take_while(fits).cloned().collect()
    }
}

fn size(item: &OutputItem) -> usize {
    match &item.what {
        What::Frame(body) => body.len(),
        What::Reset { .. } => 0,
    }
}

impl Model {
    pub(super) fn outputs(&self, asks: &[Ask]) -> Vec<Option<Output>> {
        let job = |ask: &Ask| self.ids.get(&ask.id).and_then(|row| self.jobs.get(row));
        asks.iter().map(|ask| job(ask).map(|job| job.output(ask))).collect()
    }
}

impl Job {
    fn output(&self, ask: &Ask) -> Output {
        let status = self.place.status();
        let mut output = Output {
            ended: status.state.is_terminal().then_some(status),
            progress: self.progress.clone(),
            ..Output::default()
        };
        if let Some(past) = self.past.as_deref() {
            output.items = past.said.page(ask);
            output.first = past.said.items.front().map_or(0, |(item, _)| item.position);
            output.last = past.said.kept.last;
        }
        output
    }
}
