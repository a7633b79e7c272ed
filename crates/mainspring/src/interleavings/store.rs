//! A memory store whose calls take their time, fail, lose their answers or never end.

use std::sync::Weak;
use std::time::Duration;

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Progress, Record, Verb};
use mainspring_core::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use mainspring_core::memory::Memory;
use mainspring_core::name::{Key, QueueName, SignalName};
use mainspring_core::output::{Ask, Output};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, Filter, Finish, Finished,
    Line, Listener, Listing, Node, Page, Queue, QueueChange, Receipt, Registered, Registration, Renewal,
    Renewed, Rescue, Rescued, Store, Swept, Ticket,
};
use mainspring_core::{Error, Result};
use mainspring_testkit::clock::ManualClock;

use super::yield_point;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It is done and answered.
    Answered,
    /// It is done and answered after a time.
    Late(Duration),
    /// It is not done, and its error says so.
    Failed,
    /// It is done, and its answer is lost.
    Lost,
    /// It is done, and never answered.
    Silent,
}

pub(crate) struct FailingStore {
    memory: Memory,
    clock: ManualClock,
    outcome: Box<dyn Fn(&'static str) -> CallOutcome + Send + Sync>,
}

impl FailingStore {
    pub(crate) fn new(
        memory: Memory,
        clock: ManualClock,
        outcome: impl Fn(&'static str) -> CallOutcome + Send + Sync + 'static,
    ) -> Self {
        FailingStore { memory, clock, outcome: Box::new(outcome) }
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        call: Pending<'a, Result<T>>,
    ) -> Pending<'a, Result<T>> {
        let outcome = (self.outcome)(name);
        Box::pin(async move {
            yield_point();
            if outcome == CallOutcome::Failed {
                return Err(Error::unavailable("the interleaving has it so"));
            }
            let answer = call.await;
            yield_point();
            match outcome {
                CallOutcome::Answered | CallOutcome::Failed => answer,
                CallOutcome::Late(time) => {
                    self.clock.sleep(time).await;
                    answer
                }
                CallOutcome::Lost => Err(Error::OutcomeUnknown { source: None }),
                CallOutcome::Silent => std::future::pending().await,
            }
        })
    }
}

/// Passes calls on through [`FailingStore::call`].
macro_rules! calls {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($argument: $type),*) -> Pending<'_, Result<$answer>> {
            self.call(stringify!($name), self.memory.$name($($argument),*))
        }
    )*};
}

impl Store for FailingStore {
    calls! {
        enqueue(jobs: Vec<New>) -> Vec<Receipt>;
        register(node: Registration) -> Registered;
        renew(renewal: Renewal) -> Renewed;
        retire(node: NodeNo) -> usize;
        claim(request: ClaimRequest) -> ClaimedBatch;
        finish(node: NodeNo, finishes: Vec<Finish>) -> Vec<Finished>;
        disown(node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> usize;
        progress(node: NodeNo, progress: Vec<(Claim, Progress)>) -> ();
        record(node: NodeNo, recordings: Vec<Recording>) -> Vec<Recorded>;
        values(id: JobId, keys: Vec<Key>) -> Vec<Option<Vec<u8>>>;
        inputs(claims: Vec<Claim>) -> Vec<Option<Vec<u8>>>;
        inbox(claims: Vec<(Claim, i64)>) -> Vec<Inbox>;
        signal(signals: Vec<Signal>) -> Vec<Signalled>;
        drop_signals(id: JobId, name: SignalName, sender: Option<String>) -> Option<usize>;
        job_ends(ids: Vec<JobId>) -> Vec<JobEnd>;
        output(asks: Vec<Ask>) -> Vec<Option<Output>>;
        timeline(id: JobId) -> Option<Timeline>;
        rescue(rescue: Rescue) -> Rescued;
        promote(limit: usize) -> Swept;
        expire(limit: usize) -> Swept;
        prune(limit: usize) -> usize;
        get(id: JobId) -> Option<Record>;
        list(filter: Filter, page: Page) -> Listing;
        counts() -> Counts;
        change(ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Vec<Changed>;
        lines() -> Vec<Line>;
        queues() -> Vec<Queue>;
        configure(queue: QueueName, change: QueueChange) -> Queue;
        delete_queue(queue: QueueName) -> bool;
        nodes() -> Vec<Node>;
        check_part(part: CheckPart) -> Checked;
        try_write() -> ();
    }

    fn describe(&self) -> Description {
        self.memory.describe()
    }

    fn ticket(&self) -> Ticket {
        self.memory.ticket()
    }

    fn nudge(&self, id: JobId) {
        self.memory.nudge(id);
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        self.memory.subscribe(listener);
    }

    fn close(&self) -> Pending<'_, ()> {
        self.memory.close()
    }
}
