//! Decorators: stores that pass calls on to another store, and do something about some of them.
//!
//! A [`Decorator`] names the store that it decorates, and decides in [`around`](Decorator::around) what happens to a
//! call: it may note it, delay it, refuse it or make it twice. What is special about one method is said by
//! implementing that method of the decorator. Every decorator is a [`Store`].
//!
//! The table at the end has one row per method of the parts. A new method is a row here and a line in its part; no
//! decorator changes for it.

use super::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, DueSchedules, Filter,
    Finding, Finish, Finished, Journals, Limits, Line, Listener, Listing, Node, Nodes, Operators, Page,
    Producers, Queue, QueueChange, Receipt, Registered, Registration, Renewal, Renewed, Rescue, Rescued,
    ScheduleWrite, Schedules, Store, Swept, Ticket, Written,
};
use std::any::Any;
use std::sync::Weak;

use crate::Result;
use crate::audit::{AuditEntry, Subject};
use crate::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use crate::job::{New, Progress, Record, Verb};
use crate::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use crate::limit::{Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse};
use crate::name::{Key, LimitName, QueueName, ScheduleName, SignalName};
use crate::output::{Ask, Output};
use crate::schedule::Schedule;
use crate::seam::Pending;

/// A method of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// Whether it may write.
    pub writes: bool,
}

/// A call that has not run yet: a method with its arguments. A clone repeats it.
pub trait Call: Clone + Send + Sync + 'static {
    /// What the store answers.
    type Answer: Send + 'static;

    /// The method.
    const METHOD: Method;

    /// Makes the call.
    fn make(self, store: &dyn Store) -> Pending<'_, Result<Self::Answer>>;
}

impl<D: Decorator> Store for D {
    fn describe(&self) -> Description {
        self.inner().describe()
    }

    fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        Decorator::native(self)
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        Decorator::subscribe(self, listener);
    }

    fn close(&self) -> Pending<'_, ()> {
        self.inner().close()
    }
}

/// Makes of each row of the table a [`Call`], a method of [`Decorator`] that sends it by way of
/// [`around`](Decorator::around), and the method of its part that a decorator has as a store.
macro_rules! store_methods {
    (@writes reads) => { false };
    (@writes writes) => { true };
    ($(
        $Part:ident {
            $($kind:ident $Call:ident = $name:ident($($argument:ident: $Type:ty),*) -> $Answer:ty;)*
        } $(+ {
            $($plain:ident($($given:ident: $Given:ty),*) -> $Result:ty;)*
        })?
    )*) => {
        /// All methods of a store that are calls.
        pub const METHODS: &[Method] = &[$($($Call::METHOD),*),*];

        /// A store that passes calls on to another one.
        pub trait Decorator: Send + Sync + 'static {
            /// The store that is decorated.
            fn inner(&self) -> &dyn Store;

            /// What happens to each call. `call.make(self.inner())` makes it.
            fn around<C: Call>(&self, call: C) -> Pending<'_, Result<C::Answer>>;

            /// As [`Store::native`].
            fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
                self.inner().native()
            }

            /// As [`Store::subscribe`].
            fn subscribe(&self, listener: Weak<dyn Listener>) {
                self.inner().subscribe(listener);
            }
            $(
                $(
                    #[doc = concat!("As [`", stringify!($Part), "::", stringify!($name), "`].")]
                    fn $name(&self, $($argument: $Type),*) -> Pending<'_, Result<$Answer>> {
                        self.around($Call($($argument),*))
                    }
                )*
                $($(
                    #[doc = concat!("As [`", stringify!($Part), "::", stringify!($plain), "`].")]
                    fn $plain(&self, $($given: $Given),*) -> $Result {
                        self.inner().$plain($($given),*)
                    }
                )*)?
            )*
        }
        $(
            impl<D: Decorator> $Part for D {
                $(
                    fn $name(&self, $($argument: $Type),*) -> Pending<'_, Result<$Answer>> {
                        Decorator::$name(self, $($argument),*)
                    }
                )*
                $($(
                    fn $plain(&self, $($given: $Given),*) -> $Result {
                        Decorator::$plain(self, $($given),*)
                    }
                )*)?
            }
            $(
                #[doc = concat!("A call of [`", stringify!($Part), "::", stringify!($name), "`].")]
                #[derive(Debug, Clone)]
                pub struct $Call($(pub $Type),*);

                impl Call for $Call {
                    type Answer = $Answer;

                    const METHOD: Method =
                        Method { name: stringify!($name), writes: store_methods!(@writes $kind) };

                    fn make(self, store: &dyn Store) -> Pending<'_, Result<$Answer>> {
                        let $Call($($argument),*) = self;
                        store.$name($($argument),*)
                    }
                }
            )*
        )*
    };
}

store_methods! {
    Producers {
        writes EnqueueCall = enqueue(jobs: Vec<New>) -> Vec<Receipt>;
        writes TicketForCall = ticket_for(jobs: Vec<New>) -> Ticket;
        writes SignalCall = signal(signals: Vec<Signal>) -> Vec<Signalled>;
        writes DropSignalsCall = drop_signals(id: JobId, name: SignalName, sender: Option<String>) -> Option<usize>;
        reads JobEndsCall = job_ends(ids: Vec<JobId>) -> Vec<JobEnd>;
        reads OutputCall = output(asks: Vec<Ask>) -> Vec<Option<Output>>;
    } + {
        ticket() -> Ticket;
        nudge(id: JobId) -> ();
    }
    Nodes {
        writes RegisterCall = register(node: Registration) -> Registered;
        writes RenewCall = renew(renewal: Renewal) -> Renewed;
        writes RetireCall = retire(node: NodeNo) -> usize;
        writes ClaimCall = claim(request: ClaimRequest) -> ClaimedBatch;
        reads InputsCall = inputs(claims: Vec<Claim>) -> Vec<Option<Vec<u8>>>;
        writes FinishCall = finish(node: NodeNo, finishes: Vec<Finish>) -> Vec<Finished>;
        writes DisownCall = disown(node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> usize;
        writes ProgressCall = progress(node: NodeNo, progress: Vec<(Claim, Progress)>) -> ();
        writes RescueCall = rescue(rescue: Rescue) -> Rescued;
        writes PromoteCall = promote(limit: usize) -> Swept;
        writes ExpireCall = expire(limit: usize) -> Swept;
        writes PruneCall = prune(limit: usize) -> usize;
    }
    Journals {
        writes RecordCall = record(node: NodeNo, recordings: Vec<Recording>) -> Vec<Recorded>;
        reads ValuesCall = values(id: JobId, keys: Vec<Key>) -> Vec<Option<Vec<u8>>>;
        reads InboxCall = inbox(claims: Vec<(Claim, i64)>) -> Vec<Inbox>;
    }
    Operators {
        reads GetCall = get(id: JobId) -> Option<Record>;
        reads TimelineCall = timeline(id: JobId) -> Option<Timeline>;
        reads ListCall = list(filter: Filter, page: Page) -> Listing;
        reads CountsCall = counts() -> Counts;
        writes ChangeCall = change(ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Vec<Changed>;
        reads LinesCall = lines() -> Vec<Line>;
        reads QueuesCall = queues() -> Vec<Queue>;
        writes ConfigureCall = configure(queue: QueueName, change: QueueChange) -> Queue;
        writes DeleteQueueCall = delete_queue(queue: QueueName) -> bool;
        reads AuditCall = audit(subject: Option<Subject>, limit: usize) -> Vec<AuditEntry>;
        reads NodesCall = nodes() -> Vec<Node>;
        reads CheckPartCall = check_part(part: CheckPart) -> Checked;
        writes TryWriteCall = try_write() -> ();
        reads DiagnoseCall = diagnose() -> Vec<Finding>;
    }
    Schedules {
        reads DueSchedulesCall = due_schedules(limit: usize) -> DueSchedules;
        reads FindSchedulesCall = find_schedules(names: Vec<ScheduleName>) -> Vec<Option<Schedule>>;
        reads ListSchedulesCall = list_schedules(after: Option<ScheduleName>, limit: usize) -> Vec<Schedule>;
        writes WriteSchedulesCall = write_schedules(writes: Vec<ScheduleWrite>) -> Vec<Written>;
    }
    Limits {
        writes SeedLimitsCall = seed_limits(seeds: Vec<LimitSeed>) -> Vec<Limit>;
        writes SetLimitCall = set_limit(name: LimitName, change: Change, who: String) -> Limit;
        writes ResetLimitCall = reset_limit(name: LimitName, who: String) -> Limit;
        writes DeleteLimitCall = delete_limit(name: LimitName, who: String) -> bool;
        reads LimitsCall = limits() -> Vec<Limit>;
        writes SetLimitKeyCall = set_limit_key(limit: LimitName, key: String, change: KeyChange, who: String) -> LimitKey;
        reads LimitKeysCall = limit_keys(name: LimitName, after: Option<String>, limit: usize) -> Vec<LimitKey>;
        reads LimitKeyCall = limit_key(limit: LimitName, key: String) -> KeyUse;
        reads ObstacleCall = obstacle(id: JobId) -> Option<Obstacle>;
        writes SetTotalCall = set_total(total: Total, max: Option<u32>, who: String) -> ();
        reads TotalsCall = totals() -> Vec<TotalUse>;
    }
}
