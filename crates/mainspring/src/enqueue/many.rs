//! Many jobs in one call.

use std::future::IntoFuture;
use std::iter::Peekable;
use std::marker::PhantomData;
use std::time::Duration;

use mainspring_core::backoff::Backoff;
use mainspring_core::job::{New, Priority, When};
use mainspring_core::limit::{LimitUse, check_uses};
use mainspring_core::name::{Label, LimitName, QueueName, Tag};
use mainspring_core::seam::Pending;
use mainspring_core::store::Receipt;
use mainspring_core::time::Span;
use mainspring_core::{Error, Result, bounds};
use serde_json::Value;

use super::{Draft, Enqueued, Input, Json, encode, input_of, mint, receipt};
use crate::engine::Engine;
use crate::enqueue::flush::{ContendedRetry, flush};
use crate::job::{Job, JobOptions};
use crate::limit::seed::TypeSeeds;

/// Many jobs of one type to enqueue. Nothing happens until you await it; see [`Engine::enqueue_many`].
#[must_use = "nothing is enqueued until this is awaited"]
pub struct EnqueueMany<'a, J> {
    engine: &'a Engine,
    inputs: Vec<Input>,
    draft: Result<Draft>,
    seeds: TypeSeeds,
    job: PhantomData<fn() -> J>,
}

impl<'a, J> EnqueueMany<'a, J> {
    setters!();

    fn new(
        engine: &'a Engine,
        draft: Result<Draft>,
        inputs: impl IntoIterator<Item = Result<Input>>,
        seeds: TypeSeeds,
    ) -> Self {
        // One more than allowed is enough to know that there are too many.
        let inputs: Result<Vec<_>> = inputs.into_iter().take(bounds::BULK + 1).collect();
        let (draft, inputs) = match (draft, inputs) {
            (Ok(draft), Ok(inputs)) => (Ok(draft), inputs),
            (Err(error), _) | (_, Err(error)) => (Err(error), Vec::new()),
        };
        EnqueueMany { engine, inputs, draft, seeds, job: PhantomData }
    }

    async fn store(self) -> Result<Vec<Enqueued<J>>> {
        let draft = self.draft?;
        if self.inputs.len() > bounds::BULK {
            return Err(Error::TooLarge {
                what: "bulk enqueue",
                size: self.inputs.len(),
                limit: bounds::BULK,
            });
        }
        let (now, bounds) = (self.engine.seams().clock.now(), self.engine.bounds());
        // Whatever is wrong is reported before anything is stored.
        for input in &self.inputs {
            bounds.check_input(&input.bytes)?;
        }
        let mut limited = !draft.limits.is_empty();
        draft.job(mint(self.engine), Vec::new(), &[]).check(bounds, now)?;
        for input in self.inputs.iter().filter(|input| !input.limits.is_empty()) {
            check_uses(&draft.limits(&input.limits))?;
            limited = true;
        }
        if limited {
            self.seeds.plant(self.engine).await?;
        }
        let (store, mut patience) = (&**self.engine.store(), ContendedRetry::new());
        let mut stored = Vec::with_capacity(self.inputs.len());
        let mut inputs = self.inputs.into_iter().peekable();
        let mut batch = next_batch(self.engine, &draft, &mut inputs);
        while !batch.is_empty() {
            // The next batch is made while the store has this one.
            let next = async { next_batch(self.engine, &draft, &mut inputs) };
            let (receipts, next) = tokio::join!(biased; flush(store, &batch), next);
            let receipts = receipts.map_err(|error| partial(stored.len(), error))?;
            for (job, mut answer) in batch.iter().zip(receipts) {
                if answer == Receipt::Contended {
                    let asked = patience.ask(store, &*self.engine.seams().clock, job).await;
                    answer = asked.map_err(|error| partial(stored.len(), error))?;
                }
                stored.push(receipt(job.id, answer).map_err(|error| partial(stored.len(), error))?);
            }
            batch = next;
        }
        Ok(stored)
    }
}

impl<'a, J: Job> EnqueueMany<'a, J> {
    pub(crate) fn of(engine: &'a Engine, jobs: impl IntoIterator<Item = J>) -> Self {
        let draft = Draft::new(J::KIND, J::QUEUE, &J::options());
        let inputs = jobs.into_iter().map(|job| input_of(engine, &job));
        EnqueueMany::new(engine, draft, inputs, TypeSeeds::of::<J>())
    }
}

impl<'a> EnqueueMany<'a, Json> {
    pub(crate) fn json(engine: &'a Engine, kind: &str, inputs: impl IntoIterator<Item = Value>) -> Self {
        let draft = Draft::new(kind, "default", &JobOptions::default());
        let inputs =
            inputs.into_iter().map(|input| encode(&input).map(|bytes| Input { bytes, limits: Vec::new() }));
        EnqueueMany::new(engine, draft, inputs, TypeSeeds::unknown())
    }
}

/// What a call came to that failed after its first jobs were stored.
fn partial(stored: usize, error: Error) -> Error {
    if stored == 0 { error } else { Error::Partial { stored, source: Box::new(error) } }
}

/// As many jobs as one store batch may hold.
fn next_batch(
    engine: &Engine,
    draft: &Draft,
    inputs: &mut Peekable<impl Iterator<Item = Input>>,
) -> Vec<New> {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while let Some(input) = inputs.next_if(|input| {
        batch.len() < bounds::BATCH && (batch.is_empty() || bytes + input.bytes.len() <= bounds::BATCH_BYTES)
    }) {
        bytes += input.bytes.len();
        batch.push(draft.job(mint(engine), input.bytes, &input.limits));
    }
    batch
}

impl<'a, J: 'a> IntoFuture for EnqueueMany<'a, J> {
    type Output = Result<Vec<Enqueued<J>>>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.store())
    }
}
