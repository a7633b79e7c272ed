//! What the handle, its connections and its tasks share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{Abilities, Hint, Listener, Listeners, Registration};
use mainspring_core::time::Timestamp;
use tokio::sync::watch;

use crate::idle_poll::IdlePoll;
use crate::listen::Waiting;
use crate::names::Names;
use crate::op::append::RecordedClaims;
use crate::op::contended_ids::ContendedIds;
use crate::op::limits::groups::GroupCache;
use crate::options::{Durability, Options, Time};
use crate::scan_bounds::ScanBounds;
use crate::sql::{At, Present};

/// The shortest time-out of a call, however short a lease is: a busy database needs that long now and then.
const TIMEOUT_MIN: Duration = Duration::from_millis(500);

/// Claims that are known to have children, at most: more than all slots of a process.
const PARENTS: usize = 100_000;

/// Claims that are known to hold units of limits, at most.
const LIMITED: usize = 100_000;

/// What everybody shares.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) schema: Arc<str>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    listeners: Mutex<Listeners>,
    /// Where driver tasks run.
    pub(crate) runtime: tokio::runtime::Handle,
    names: Mutex<Names>,
    scan_bounds: Mutex<ScanBounds>,
    /// The same for turns of groups.
    turn_bounds: Mutex<ScanBounds>,
    nodes: Mutex<BTreeMap<i32, Local>>,
    /// Claims of this process whose jobs have children, by the numbers of the jobs: their ends take a moment longer.
    parents: Mutex<BTreeSet<i64>>,
    store: Mutex<[u8; 16]>,
    handle: u64,
    /// How long a call may take, in microseconds.
    timeout: AtomicU64,
    /// Which queues this process waits for.
    pub(crate) waiting: Waiting,
    /// Jobs whose ids open transactions have.
    pub(crate) contended_ids: ContendedIds,
    /// Claims that have recorded something.
    pub(crate) recorded_claims: RecordedClaims,
    groups: Mutex<GroupCache>,
    /// Claims of this process that hold units of limits, by the numbers of the jobs.
    limited: Mutex<BTreeSet<i64>>,
    /// The last row of returned units that this handle has counted.
    last_returned: AtomicI64,
    /// The last limit group and limit key that a prune of this handle has looked at.
    pruned: Mutex<(i64, i64)>,
    /// Whether sessions must be told to wait for stable storage.
    insist: AtomicBool,
    /// Whether jobs were moved since counts were last folded.
    moved: AtomicBool,
    /// Whether others can tell us of their commits.
    listening: AtomicBool,
    idle_poll: Mutex<Option<IdlePoll>>,
    /// How often something was said to become due.
    dues: AtomicU64,
    closing: watch::Sender<bool>,
}

/// What a claim must know of its node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Local {
    pub(crate) abilities: Abilities,
    pub(crate) settlements: i32,
    /// The last claim batch; `None` if it has had none.
    pub(crate) batch: Option<u64>,
    /// Whether the answer to the last claim of this node came through this handle and arrived. A repeat of an earlier one is
    /// known by its number.
    pub(crate) fresh: bool,
}

impl Local {
    pub(crate) fn new(node: &Registration) -> Self {
        Local { abilities: node.abilities.clone(), fresh: true, ..Local::default() }
    }
}

impl Shared {
    pub(crate) fn new(
        options: Options,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let timeout = AtomicU64::new(micros(options.timeout));
        Shared {
            schema: options.schema().into(),
            options,
            clock,
            handle: rng.next_u64(),
            rng,
            listeners: Mutex::default(),
            runtime,
            names: Mutex::default(),
            scan_bounds: Mutex::default(),
            turn_bounds: Mutex::default(),
            nodes: Mutex::default(),
            parents: Mutex::default(),
            store: Mutex::default(),
            timeout,
            waiting: Waiting::default(),
            contended_ids: ContendedIds::default(),
            recorded_claims: RecordedClaims::default(),
            groups: Mutex::default(),
            limited: Mutex::default(),
            last_returned: AtomicI64::new(0),
            pruned: Mutex::default(),
            insist: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            idle_poll: Mutex::default(),
            dues: AtomicU64::new(0),
            closing: watch::Sender::new(false),
        }
    }

    /// Notes that claims hold units of limits: their ends have two statements more.
    pub(crate) fn note_limited(&self, nos: impl IntoIterator<Item = i64>) {
        let mut limited = lock(&self.limited);
        limited.extend(nos);
        // What was claimed and never finished here. What these hold is counted a moment later.
        while limited.len() > LIMITED {
            limited.pop_first();
        }
    }

    /// Whether one of these claims holds units of limits.
    pub(crate) fn has_limited(&self, nos: &[i64]) -> bool {
        let limited = lock(&self.limited);
        !limited.is_empty() && nos.iter().any(|no| limited.contains(no))
    }

    /// Their claims have ended.
    pub(crate) fn forget_limited(&self, nos: &[i64]) {
        let mut limited = lock(&self.limited);
        for no in nos {
            limited.remove(no);
        }
    }

    /// Notes that claimed jobs have children.
    pub(crate) fn add_parents(&self, nos: impl IntoIterator<Item = i64>) {
        let mut parents = self.parents.lock().unwrap_or_else(PoisonError::into_inner);
        parents.extend(nos);
        // What was claimed and never finished here. Who is forgotten is told of a moment later, like all others.
        while parents.len() > PARENTS {
            parents.pop_first();
        }
    }

    /// Whether one of these claimed jobs has children.
    pub(crate) fn has_parents(&self, nos: &[i64]) -> bool {
        let parents = self.parents.lock().unwrap_or_else(PoisonError::into_inner);
        !parents.is_empty() && nos.iter().any(|no| parents.contains(no))
    }

    /// Their claims have ended. Whoever is claimed again is noted again.
    pub(crate) fn forget_parents(&self, nos: &[i64]) {
        let mut parents = self.parents.lock().unwrap_or_else(PoisonError::into_inner);
        for no in nos {
            parents.remove(no);
        }
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::Relaxed)
    }

    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::Relaxed);
    }

    /// Ends the store's own thread.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until the store is closed.
    pub(crate) async fn closing(&self) {
        // The sender is ours, so this ends with the value only.
        drop(self.closing.subscribe().wait_for(|closing| *closing).await);
    }

    /// Our sessions wait for stable storage though the database's default is not to.
    pub(crate) fn insist_on_commit(&self, insist: bool) {
        self.insist.store(insist, Ordering::Relaxed);
    }

    /// Something was written.
    pub(crate) fn moved(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// Whether something was written since the last time.
    pub(crate) fn take_moved(&self) -> bool {
        self.moved.swap(false, Ordering::Relaxed)
    }

    /// A claim gave less than was asked for in these queues, or not.
    pub(crate) fn waiting(&self, queues: &[(i32, bool)]) {
        self.waiting.note(queues, self.monotonic());
    }

    /// The argument that says what time it is; `None`: the server's.
    pub(crate) fn at(&self) -> Present {
        Present(self.now().map(At))
    }

    /// The store's time where the handle knows it without asking.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        match self.options.time {
            Time::Server => None,
            Time::Clock => Some(self.clock.now()),
        }
    }

    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Sends hints to a listener until it is dropped.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        lock(&self.listeners).add(listener);
    }

    /// Tells everybody here who listens.
    pub(crate) fn tell(&self, hint: &Hint) {
        let live = lock(&self.listeners).live();
        live.tell(hint);
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }

    pub(crate) fn scan_bounds(&self) -> MutexGuard<'_, ScanBounds> {
        lock(&self.scan_bounds)
    }

    pub(crate) fn turn_bounds(&self) -> MutexGuard<'_, ScanBounds> {
        lock(&self.turn_bounds)
    }

    pub(crate) fn groups(&self) -> MutexGuard<'_, GroupCache> {
        lock(&self.groups)
    }

    /// The last row of returned units that this handle has counted: its own come behind it.
    pub(crate) fn last_returned(&self) -> i64 {
        self.last_returned.load(Ordering::Relaxed)
    }

    pub(crate) fn note_returned(&self, last: i64) {
        self.last_returned.fetch_max(last, Ordering::Relaxed);
    }

    /// The last limit group and limit key that a prune has looked at.
    pub(crate) fn pruned(&self) -> (i64, i64) {
        *lock(&self.pruned)
    }

    pub(crate) fn note_pruned(&self, last: (i64, i64)) {
        *lock(&self.pruned) = last;
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, BTreeMap<i32, Local>> {
        lock(&self.nodes)
    }

    pub(crate) fn dues(&self) -> u64 {
        self.dues.load(Ordering::Relaxed)
    }

    pub(crate) fn say_due(&self) {
        self.dues.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn idle_poll(&self) -> MutexGuard<'_, Option<IdlePoll>> {
        lock(&self.idle_poll)
    }

    pub(crate) fn store(&self) -> [u8; 16] {
        *lock(&self.store)
    }

    pub(crate) fn set_store(&self, store: [u8; 16]) {
        *lock(&self.store) = store;
    }

    /// How long a call may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_micros(self.timeout.load(Ordering::Relaxed))
    }

    /// A node with this lease uses the store: no call may take so long that the lease could lapse meanwhile.
    pub(crate) fn limit_timeout(&self, lease: Duration) {
        let limit = (lease / 3).max(TIMEOUT_MIN);
        self.timeout.fetch_min(micros(limit), Ordering::Relaxed);
    }

    /// The first half of the two numbers that name our advisory locks: stores in one database must not meet in them.
    pub(crate) fn class(&self) -> i32 {
        let store = self.store();
        i32::from_be_bytes([store[0], store[1], store[2], store[3]])
    }

    /// What the locks of mailboxes are made of, with the number of a job.
    pub(crate) fn mailbox(&self) -> i64 {
        let store = self.store();
        store.iter().skip(8).fold(0_i64, |number, byte| number << 8 | i64::from(*byte))
    }

    /// The same for the locks of those who wait for jobs.
    pub(crate) fn waiting_class(&self) -> i32 {
        self.class().wrapping_add(1)
    }

    /// The channel of notifications.
    pub(crate) fn channel(&self) -> String {
        let store = self.store();
        let number = store.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        format!("mainspring_{number:016x}")
    }

    /// Tells the notifications of this handle from those of others.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// What each session is set to.
    pub(crate) fn session(&self) -> Vec<String> {
        let timeout = self.timeout().as_millis();
        let mut sets = vec![
            // A database may have other defaults.
            "default_transaction_isolation = 'read committed'".to_owned(),
            format!("statement_timeout = {timeout}"),
            format!("lock_timeout = {timeout}"),
            // A client that was stopped in the middle of a transaction holds nobody up for longer.
            format!("idle_in_transaction_session_timeout = {timeout}"),
            "client_min_messages = 'warning'".to_owned(),
        ];
        match self.options.durability {
            Durability::Relaxed => sets.push("synchronous_commit = off".to_owned()),
            Durability::Full if self.insist.load(Ordering::Relaxed) => {
                sets.push("synchronous_commit = on".to_owned());
            }
            Durability::Full => {}
        }
        sets
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What a panic left behind is still worth more than a second panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
