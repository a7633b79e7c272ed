//! The store of an engine under test: what happens in it can be waited for, and what has left it is remembered.
//!
//! A store on a disk or behind a network answers from threads of its own, some time. [`ObservedStore`] counts the calls that are
//! under way, so that a test knows when nothing is. Hints of such a store would come some time, too: in their place
//! all listeners are notified after each call that may have changed something.
//!
//! # Invariants
//! - When no call is under way, no listener is still to be notified of one that has ended.
//! - A job is remembered before it is removed.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{New, Record, Verb};
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::decorator::{
    Call, Decorator, EnqueueCall, PromoteCall, RecordCall, RescueCall, TicketForCall,
};
use mainspring_core::store::{
    Changed, Filter, Hint, Listener, Page, Receipt, Rescue, Rescued, Store, Swept, Ticket,
};
use mainspring_core::time::Timestamp;
use mainspring_core::{Result, bounds};
use tokio::sync::Notify;

/// A job that was enqueued, as it was when it was last looked at.
#[derive(Debug, Clone)]
pub(super) struct EnqueuedJob {
    pub(super) record: Record,
    /// When it was to run.
    pub(super) due: Timestamp,
}

/// A store that is watched.
pub(super) struct ObservedStore {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// Whether it answers from threads of its own.
    slow: bool,
    calls: AtomicUsize,
    answered: Notify,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    /// Whether somebody may have written past us, in a transaction of his own.
    bypassed: AtomicBool,
    kept: Mutex<KnownJobs>,
}

#[derive(Default)]
struct KnownJobs {
    /// When jobs are to run that do not say so themselves any more.
    due: BTreeMap<JobId, Timestamp>,
    known: BTreeSet<JobId>,
    /// First to last.
    all: Vec<EnqueuedJob>,
}

/// Whether listeners are to be notified after a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayNotify {
    Yes,
    No,
}

impl ObservedStore {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, slow: bool) -> Self {
        ObservedStore {
            store,
            clock,
            slow,
            calls: AtomicUsize::new(0),
            answered: Notify::new(),
            listeners: Mutex::default(),
            bypassed: AtomicBool::new(false),
            kept: Mutex::default(),
        }
    }

    /// Whether no call is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.calls.load(Ordering::SeqCst) == 0
    }

    /// Waits until a call has ended.
    pub(super) async fn answered(&self) {
        let mut answered = std::pin::pin!(self.answered.notified());
        // Registered before the look, so that an end in between is not missed.
        answered.as_mut().enable();
        if !self.is_quiet() {
            answered.await;
        }
    }

    /// Notifies listeners if something may have been written past this store. Returns whether that may be.
    pub(super) fn notify_bypassed(&self) -> bool {
        let bypassed = self.slow && self.bypassed.swap(false, Ordering::SeqCst);
        if bypassed {
            self.notify_change();
        }
        bypassed
    }

    /// Everything that has been enqueued, first to last, whatever has become of it.
    pub(super) async fn enqueued(&self) -> Result<Vec<EnqueuedJob>> {
        self.remember().await?;
        Ok(self.jobs().all.clone())
    }

    fn jobs(&self) -> MutexGuard<'_, KnownJobs> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_change(&self) {
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.hint(&Hint::Foreign);
        }
    }

    fn note(&self, job: &New) {
        let now = self.clock.now();
        let due = job.run.map_or(now, |when| when.resolve(now));
        self.jobs().due.insert(job.id, due);
    }

    /// Looks at what is new.
    async fn remember(&self) -> Result<()> {
        let mut fresh = Vec::new();
        let mut page = Page { after: None, limit: bounds::PAGE };
        'pages: loop {
            // The store lists the last first.
            let listing = self.store.list(Filter::default(), page).await?;
            for job in listing.jobs {
                if self.jobs().known.contains(&job.id) {
                    break 'pages;
                }
                fresh.push(job.id);
            }
            match listing.next {
                Some(next) => page = Page { after: Some(next), limit: bounds::PAGE },
                None => break,
            }
        }
        for id in fresh.into_iter().rev() {
            let Some(record) = self.store.get(id).await? else { continue };
            let mut jobs = self.jobs();
            let summary = &record.summary;
            let due = jobs.due.remove(&id).or(summary.run_at).unwrap_or(summary.created_at);
            if jobs.known.insert(id) {
                jobs.all.push(EnqueuedJob { record, due });
            }
        }
        Ok(())
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        call: Pending<'a, Result<T>>,
        tells: MayNotify,
    ) -> Pending<'a, Result<T>> {
        if !self.slow {
            return call;
        }
        Box::pin(async move {
            let _under_way = UnderWay::begin(self);
            let answer = call.await;
            if tells == MayNotify::Yes && answer.is_ok() {
                self.notify_change();
            }
            answer
        })
    }
}

/// A call that is under way, until it is dropped.
struct UnderWay<'a>(&'a ObservedStore);

impl<'a> UnderWay<'a> {
    fn begin(store: &'a ObservedStore) -> Self {
        store.calls.fetch_add(1, Ordering::SeqCst);
        UnderWay(store)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
        self.0.answered.notify_waiters();
    }
}

/// Calls that write, and after which nobody has to look again.
const NOT_NOTIFIED: &[&str] = &[
    "ticket_for",
    "register",
    "renew",
    "claim",
    "progress",
    "rescue",
    "promote",
    "expire",
    "prune",
    "try_write",
];

impl Decorator for ObservedStore {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn around<C: Call>(&self, call: C) -> Pending<'_, Result<C::Answer>> {
        let notifies = C::METHOD.writes && !NOT_NOTIFIED.contains(&C::METHOD.name);
        self.call(call.make(&*self.store), if notifies { MayNotify::Yes } else { MayNotify::No })
    }

    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        for job in &jobs {
            self.note(job);
        }
        self.around(EnqueueCall(jobs))
    }

    fn ticket(&self) -> Ticket {
        self.bypassed.store(true, Ordering::SeqCst);
        self.store.ticket()
    }

    fn ticket_for(&self, jobs: Vec<New>) -> Pending<'_, Result<Ticket>> {
        for job in &jobs {
            self.note(job);
        }
        self.bypassed.store(true, Ordering::SeqCst);
        self.around(TicketForCall(jobs))
    }

    fn nudge(&self, id: JobId) {
        self.store.nudge(id);
        if self.slow {
            self.notify_change();
        }
    }

    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        for child in recordings.iter().flat_map(|recording| &recording.children) {
            self.note(&child.job);
        }
        self.around(RecordCall(node, recordings))
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        Box::pin(async move {
            let rescued = self.around(RescueCall(rescue)).await?;
            // A notification after each look would call for the next.
            if self.slow && !rescued.expired.is_empty() {
                self.notify_change();
            }
            Ok(rescued)
        })
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        Box::pin(async move {
            let swept = self.around(PromoteCall(limit)).await?;
            if self.slow && swept.moved > 0 {
                self.notify_change();
            }
            Ok(swept)
        })
    }

    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>> {
        let prune = async move {
            self.remember().await?;
            self.store.prune(limit).await
        };
        self.call(Box::pin(prune), MayNotify::No)
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        let change = async move {
            if verb == Verb::Delete {
                self.remember().await?;
            }
            self.store.change(ids, verb, dry_run).await
        };
        self.call(Box::pin(change), MayNotify::Yes)
    }

    fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.bypassed.store(true, Ordering::SeqCst);
        self.store.native()
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        if self.slow {
            self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener);
        } else {
            self.store.subscribe(listener);
        }
    }
}
