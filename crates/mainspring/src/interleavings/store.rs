//! A memory store whose calls take their time, fail, lose their answers or never end.

use std::sync::Weak;
use std::time::Duration;

use mainspring_core::id::{Batch, Claim, JobId, NodeNo};
use mainspring_core::job::{New, Progress, Record, Verb};
use mainspring_core::journal::{Inbox, Recorded, Recording, Sight, Signal, Signalled, Story};
use mainspring_core::memory::Memory;
use mainspring_core::name::{Key, QueueName, SignalName};
use mainspring_core::output::{Ask, Output};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, Filter, Finish, Finished,
    Line, Listener, Listing, Member, Node, Page, Queue, QueueChange, Receipt, Registration, Renewal, Renewed,
    Rescue, Rescued, Store, Swept, Ticket,
};
use mainspring_core::{Error, Result};
use mainspring_testkit::clock::ManualClock;

use super::step;

/// What a call meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is done and answered.
    Answered,
    /// It is done and answered after a time.
    Late(Duration),
    /// It is not done, and that is told.
    Failed,
    /// It is done, and its answer is lost.
    Lost,
    /// It is done, and nobody ever hears of it.
    Silent,
}

pub(crate) struct Shaky {
    memory: Memory,
    clock: ManualClock,
    fate: Box<dyn Fn(&'static str) -> Fate + Send + Sync>,
}

impl Shaky {
    pub(crate) fn new(
        memory: Memory,
        clock: ManualClock,
        fate: impl Fn(&'static str) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Shaky { memory, clock, fate: Box::new(fate) }
    }

    fn meet<'a, T: Send + 'a>(
        &'a self,
        name: &'static str,
        call: Pending<'a, Result<T>>,
    ) -> Pending<'a, Result<T>> {
        let fate = (self.fate)(name);
        Box::pin(async move {
            step();
            if fate == Fate::Failed {
                return Err(Error::unavailable("the interleaving has it so"));
            }
            let answer = call.await;
            step();
            match fate {
                Fate::Answered | Fate::Failed => answer,
                Fate::Late(time) => {
                    self.clock.sleep(time).await;
                    answer
                }
                Fate::Lost => Err(Error::OutcomeUnknown { source: None }),
                Fate::Silent => std::future::pending().await,
            }
        })
    }
}

/// Passes calls on through [`Shaky::meet`].
macro_rules! meet {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&self, $($argument: $type),*) -> Pending<'_, Result<$answer>> {
            self.meet(stringify!($name), self.memory.$name($($argument),*))
        }
    )*};
}

impl Store for Shaky {
    meet! {
        enqueue(jobs: Vec<New>) -> Vec<Receipt>;
        register(node: Registration) -> Member;
        renew(renewal: Renewal) -> Renewed;
        retire(node: NodeNo) -> usize;
        claim(request: ClaimRequest) -> ClaimedBatch;
        finish(node: NodeNo, finishes: Vec<Finish>) -> Vec<Finished>;
        disown(node: NodeNo, settled: Batch, keep: Vec<Claim>) -> usize;
        progress(node: NodeNo, progress: Vec<(Claim, Progress)>) -> ();
        record(node: NodeNo, recordings: Vec<Recording>) -> Vec<Recorded>;
        values(id: JobId, keys: Vec<Key>) -> Vec<Option<Vec<u8>>>;
        inputs(claims: Vec<Claim>) -> Vec<Option<Vec<u8>>>;
        inbox(claims: Vec<(Claim, i64)>) -> Vec<Inbox>;
        signal(signals: Vec<Signal>) -> Vec<Signalled>;
        drop_signals(id: JobId, name: SignalName, sender: Option<String>) -> Option<usize>;
        sights(ids: Vec<JobId>) -> Vec<Sight>;
        output(asks: Vec<Ask>) -> Vec<Option<Output>>;
        story(id: JobId) -> Option<Story>;
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
