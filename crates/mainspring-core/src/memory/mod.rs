//! The memory store: the reference model that every other store is compared with.
//!
//! One mutex around one `Model`; each call of the [`Store`] trait is one plain synchronous method of the model, run
//! under the lock, so every call is atomic and calls happen in one order. Hints go out after the lock is released.
//! Clarity comes first here: where another store differs, this one is right, or the trait's words are wrong.
//!
//! # Invariants
//! - A job's place changes only in `Model::go` and `Model::enter`, which keep every index and count in step.
//! - Nothing survives the process, and nothing proves a process's death: nodes die by their lease alone.

mod admin;
mod check;
mod check_limits;
mod claim;
mod enqueue;
mod finish;
mod follow;
mod journal;
mod limited;
mod limits;
mod model;
mod nodes;
mod output;
mod place;
#[cfg(feature = "planted")]
mod planted;
mod rescue;
mod schedules;
mod sweep;
mod verbs;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::audit::{AuditEntry, Subject};
use crate::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use crate::job::{New, Progress, Record, Verb};
use crate::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use crate::limit::{Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse};
use crate::name::{Key, LimitName, QueueName, ScheduleName, SignalName};
use crate::output::{Ask, Output};
use crate::schedule::Schedule;
use crate::seam::{Clock, Pending};
use crate::store::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, DueSchedules, Filter,
    Finish, Finished, Hint, Journals, Limits, Line, Listener, Listeners, Listing, Node, Nodes, Operators,
    Page, Producers, Queue, QueueChange, Receipt, Registered, Registration, Renewal, Renewed, Rescue,
    Rescued, ScheduleWrite, Schedules, Store, Swept, Ticket, Written,
};
use crate::time::Timestamp;
use crate::{Error, Result};

use model::Model;

/// What [`Ticket::store`] says for a memory store: no transaction is ever on it.
const STORE_ID: [u8; 16] = *b"mainspring:memry";

/// A store in memory. Clones are the same store.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
    closed: Arc<AtomicBool>,
}

/// What all handles share.
struct Shared {
    clock: Arc<dyn Clock>,
    model: Mutex<Model>,
    listeners: Mutex<Listeners>,
}

impl Memory {
    /// An empty store that takes its time from a clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { clock, model: Mutex::default(), listeners: Mutex::default() };
        Memory { shared: Arc::new(shared), closed: Arc::default() }
    }

    /// Another handle on the same jobs, as another process would have: it is closed separately.
    #[must_use]
    pub fn another(&self) -> Self {
        Memory { shared: Arc::clone(&self.shared), closed: Arc::default() }
    }

    /// A copy of everything as it is now, under a clock of its own: what happens to either does not touch the other, and
    /// nobody listens to the copy. For tests and simulations that follow one state into several futures.
    #[must_use]
    pub fn fork(&self, clock: Arc<dyn Clock>) -> Self {
        let model = lock(&self.shared.model).clone();
        let shared = Shared { clock, model: Mutex::new(model), listeners: Mutex::default() };
        Memory { shared: Arc::new(shared), closed: Arc::default() }
    }

    /// Claims what another store has claimed for the same request. For tests that compare a store with this one: which
    /// of several jobs of one level and one moment comes first is a store's own affair, and the model follows.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no store may answer so; otherwise as [`Nodes::claim`].
    pub fn follow(&self, request: ClaimRequest, claimed: Vec<JobId>) -> Pending<'_, Result<ClaimedBatch>> {
        self.call(move |model, now| model.follow(&request, &claimed, now))
    }

    /// Which groups of limited jobs have a turn, in order, and where the others wait, as text. For tests that tell states apart: no
    /// call of the store shows it.
    #[must_use]
    pub fn groups(&self) -> String {
        lock(&self.shared.model).groups.shown()
    }

    /// Makes a job unreadable, as damage to its row would, or readable again. For tests of what becomes of such a job.
    pub fn damage(&self, id: JobId, why: Option<&str>) {
        let mut model = lock(&self.shared.model);
        let row = model.ids.get(&id).copied();
        if let Some(job) = row.and_then(|row| model.jobs.get_mut(&row)) {
            job.damage = why.map(str::to_owned);
        }
    }

    /// Runs one call on the model, then sends the hints that it left.
    fn call<'a, T: 'a>(
        &'a self,
        call: impl FnOnce(&mut Model, Timestamp) -> Result<T> + Send + 'a,
    ) -> Pending<'a, Result<T>> {
        Box::pin(async move {
            let (answer, hints) = {
                let mut model = lock(&self.shared.model);
                if self.closed.load(Ordering::Acquire) {
                    return Err(Error::Closed);
                }
                let now = self.shared.clock.now();
                let answer = call(&mut model, now);
                model.pass_on(now);
                (answer, model.take_hints())
            };
            self.shared.tell(&hints);
            answer
        })
    }
}

impl Shared {
    fn tell(&self, hints: &[Hint]) {
        if hints.is_empty() {
            return;
        }
        let listeners = lock(&self.listeners).live();
        for hint in hints {
            listeners.tell(hint);
        }
    }
}

/// A panic while the lock was held has stopped a test; what the others see of it is still worth more than a second
/// panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Store for Memory {
    fn describe(&self) -> Description {
        Description {
            backend: "memory",
            location: "memory".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            schema: 1,
            durable: false,
            created: None,
        }
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        lock(&self.shared.listeners).add(listener);
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            // Under the lock, so that whatever began before is done when this returns.
            let _model = lock(&self.shared.model);
            self.closed.store(true, Ordering::Release);
        })
    }
}

impl Producers for Memory {
    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        self.call(move |model, now| model.enqueue(jobs, now))
    }

    fn ticket(&self) -> Ticket {
        Ticket {
            store: STORE_ID,
            now: Some(self.shared.clock.now()),
            schema: String::new(),
            lines: Vec::new(),
        }
    }

    fn nudge(&self, _id: JobId) {}

    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>> {
        self.call(move |model, now| model.signal(signals, now))
    }

    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>> {
        self.call(move |model, _| model.drop_signals(id, &name, sender.as_deref()))
    }

    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>> {
        self.call(move |model, _| Ok(model.job_ends(&ids)))
    }

    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>> {
        self.call(move |model, _| Ok(model.outputs(&asks)))
    }
}

impl Nodes for Memory {
    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>> {
        self.call(move |model, now| Ok(model.register(node, now)))
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>> {
        self.call(move |model, now| model.renew(&renewal, now))
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        self.call(move |model, now| model.retire(node, now))
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        self.call(move |model, now| model.claim(&request, now))
    }

    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.call(move |model, _| Ok(model.inputs(&claims)))
    }

    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>> {
        self.call(move |model, now| model.finish(node, finishes, now))
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        self.call(move |model, now| model.disown(node, settled, &keep, now))
    }

    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>> {
        self.call(move |model, _| {
            model.progress(node, progress);
            Ok(())
        })
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        self.call(move |model, now| model.rescue(rescue, now))
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.call(move |model, now| model.promote(limit, now))
    }

    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.call(move |model, now| model.expire(limit, now))
    }

    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>> {
        self.call(move |model, now| Ok(model.prune(limit, now)))
    }
}

impl Journals for Memory {
    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        self.call(move |model, now| model.record(node, recordings, now))
    }

    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.call(move |model, _| Ok(model.values(id, &keys)))
    }

    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>> {
        self.call(move |model, _| Ok(model.inboxes(&claims)))
    }
}

impl Operators for Memory {
    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>> {
        self.call(move |model, _| Ok(model.get(id)))
    }

    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>> {
        self.call(move |model, _| Ok(model.timeline(id)))
    }

    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>> {
        self.call(move |model, _| model.list(&filter, &page))
    }

    fn counts(&self) -> Pending<'_, Result<Counts>> {
        self.call(|model, _| Ok(model.counts.clone()))
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        self.call(move |model, now| model.change(&ids, &verb, dry_run, now))
    }

    fn lines(&self) -> Pending<'_, Result<Vec<Line>>> {
        self.call(|model, _| Ok(model.ready_lines()))
    }

    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>> {
        self.call(|model, _| Ok(model.queues()))
    }

    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>> {
        self.call(move |model, _| model.configure(queue, &change))
    }

    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>> {
        self.call(move |model, _| model.delete_queue(&queue))
    }

    fn audit(&self, subject: Option<Subject>, limit: usize) -> Pending<'_, Result<Vec<AuditEntry>>> {
        self.call(move |model, _| Ok(model.audit(subject.as_ref(), limit)))
    }

    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>> {
        self.call(|model, _| Ok(model.nodes()))
    }

    fn check_part(&self, _part: CheckPart) -> Pending<'_, Result<Checked>> {
        self.call(|model, _| Ok(Checked { findings: model.check(), next: None, done: 1, total: 1 }))
    }

    fn try_write(&self) -> Pending<'_, Result<()>> {
        self.call(|_, _| Ok(()))
    }
}

impl Schedules for Memory {
    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>> {
        self.call(move |model, now| Ok(model.due_schedules(limit, now)))
    }

    fn find_schedules(&self, names: Vec<ScheduleName>) -> Pending<'_, Result<Vec<Option<Schedule>>>> {
        self.call(move |model, _| Ok(names.iter().map(|name| model.schedules.get(name).cloned()).collect()))
    }

    fn list_schedules(
        &self,
        after: Option<ScheduleName>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<Schedule>>> {
        self.call(move |model, _| Ok(model.list_schedules(after.as_ref(), limit)))
    }

    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>> {
        self.call(move |model, now| model.write_schedules(writes, now))
    }
}

impl Limits for Memory {
    fn seed_limits(&self, seeds: Vec<LimitSeed>) -> Pending<'_, Result<Vec<Limit>>> {
        self.call(move |model, now| model.seed_limits(&seeds, now))
    }

    fn set_limit(&self, name: LimitName, change: Change, who: String) -> Pending<'_, Result<Limit>> {
        self.call(move |model, now| model.set_limit(&name, change, &who, now))
    }

    fn reset_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<Limit>> {
        self.call(move |model, now| model.reset_limit(&name, &who, now))
    }

    fn delete_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<bool>> {
        self.call(move |model, now| Ok(model.delete_limit(&name, &who, now)))
    }

    fn limits(&self) -> Pending<'_, Result<Vec<Limit>>> {
        self.call(|model, _| Ok(model.limits.values().cloned().collect()))
    }

    fn set_limit_key(
        &self,
        limit: LimitName,
        key: String,
        change: KeyChange,
        who: String,
    ) -> Pending<'_, Result<LimitKey>> {
        self.call(move |model, now| model.set_limit_key(&limit, &key, change, &who, now))
    }

    fn limit_keys(
        &self,
        name: LimitName,
        after: Option<String>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<LimitKey>>> {
        self.call(move |model, now| Ok(model.list_limit_keys(&name, after.as_deref(), limit, now)))
    }

    fn limit_key(&self, limit: LimitName, key: String) -> Pending<'_, Result<KeyUse>> {
        self.call(move |model, now| model.limit_key(&limit, &key, now))
    }

    fn obstacle(&self, id: JobId) -> Pending<'_, Result<Option<Obstacle>>> {
        self.call(move |model, now| Ok(model.obstacle(id, now)))
    }

    fn set_total(&self, total: Total, max: Option<u32>, who: String) -> Pending<'_, Result<()>> {
        self.call(move |model, now| model.set_total(&total, max, &who, now))
    }

    fn totals(&self) -> Pending<'_, Result<Vec<TotalUse>>> {
        self.call(|model, _| Ok(model.list_totals()))
    }
}

#[cfg(test)]
mod tests;
