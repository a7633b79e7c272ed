//! What the tests share: a job, a ledger of effects, and an engine that keeps suspended handlers or does not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::{Context, Enqueued, Job, JobId, Status};
use serde::{Deserialize, Serialize};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const HOUR: Duration = Duration::from_hours(1);

/// A workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Job)]
#[job(kind = "flow", output = String)]
pub(crate) struct Flow {
    pub(crate) n: u64,
}

pub(crate) fn flow(n: u64) -> Flow {
    Flow { n }
}

/// What bodies did, in order. Clones are the same ledger.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Vec<String>>>);

impl Ledger {
    pub(crate) fn add(&self, entry: impl Into<String>) {
        self.0.lock().expect("the ledger").push(entry.into());
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.lock().expect("the ledger").clone()
    }

    pub(crate) fn count(&self, entry: &str) -> usize {
        self.entries().iter().filter(|one| *one == entry).count()
    }
}

/// An engine with one node that runs a handler; suspended handlers are kept in memory, or not.
pub(crate) async fn engine<F, Fut>(parked: usize, handler: F) -> TestEngine
where
    F: Fn(Context, Flow) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = mainspring::Result<String>> + Send + 'static,
{
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 4).parked(parked)).await.expect("a node");
    test
}

/// Both ways.
pub(crate) const PARKED: [usize; 2] = [1_000, 0];

pub(crate) async fn status(test: &TestEngine, id: JobId) -> Status {
    test.jobs().get(id).await.expect("the job is there").summary.status
}

/// The keys of all records of a job, in order.
pub(crate) async fn keys(test: &TestEngine, job: &Enqueued<Flow>) -> Vec<String> {
    let story = test.store().story(job.id).await.expect("a story").expect("the job is there");
    story.entries.iter().map(|entry| entry.key.to_string()).collect()
}
