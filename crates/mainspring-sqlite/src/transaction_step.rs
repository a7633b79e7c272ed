//! Transaction steps: an application's own SQL and the record of it, in one commit.
//!
//! A step of a workflow that changes tables in the store's own file can do so exactly once: [`Sqlite::transact`] runs a
//! closure on the writer's connection, in a transaction of its own that no other request shares, and commits what the
//! closure did together with the [`Recording`] that says so. A repeat finds the record and does not run the closure. A
//! closure that fails, panics or takes too long leaves nothing behind, and the writer continues.
//!
//! The closure gets [`Sql`] and not a connection: it can neither end the transaction nor change the connection, and it
//! cannot write to Mainspring's own tables. While it runs, an authorizer refuses such statements, and a commit hook turns
//! any commit into a rollback, whatever it came from. SQL that takes longer than the limit is interrupted.
//!
//! # What a closure that blocks costs, and why it expires nobody
//!
//! The limit cannot stop a closure that waits in Rust. Until it returns, nothing of this handle is written, and no renewal
//! of its nodes either. Their leases may lapse, but nobody expires them:
//!
//! - The transaction holds SQLite's write lock from its beginning, so no other handle or process can write meanwhile. A
//!   rescue is a write. (If SQLite itself ends the transaction early, as when it interrupts a statement that writes, the store
//!   takes the lock again before the closure continues.)
//! - The store did not answer a rescuer during the whole time either. A rescuer may judge a node by its lease only if the store
//!   answered it within half of that lease, and without a break for all of it. After a silence shorter than half a lease, no
//!   lease has lapsed, because nodes renew each third. After a longer one, the rescuer begins to count again. Before it has
//!   counted up to a lease, the store writes the waiting renewals, which overtake everything else.
//!
//! It does cost time, for every writer. So the log names a closure that exceeds its limit, and the store rolls it back when it
//! returns. The store refuses a write that would wait for its own thread.
//!
//! # Invariants
//! - What a closure did is committed with its record, or not at all.
//! - While a closure runs, nothing on its connection is committed.
//! - A closure runs only for the owner of the claim, and only if its key is not recorded.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainspring_core::error::BoxError;
use mainspring_core::id::NodeNo;
use mainspring_core::job::New;
use mainspring_core::journal::{Entry, Recorded, Recording};
use mainspring_core::seam::{Clock, Pending};
use mainspring_core::store::{Enlist, EnlistSync, Receipt, Ticket, inside};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, OptionalExtension, Params, Row, ffi, params};

use crate::error::Fault;
use crate::oneshot::{Sender, channel};
use crate::op::journal;
use crate::turnstile::Turnstile;
use crate::writer::{Call, Env, Tx, Weight};
use crate::{Sqlite, enlist};

/// How long a closure may take by default. The store accepts no other write meanwhile.
pub const LIMIT: Duration = Duration::from_secs(5);

/// Steps of SQLite's machine between two looks at the clock: some tens of microseconds.
const STEPS: i32 = 10_000;

/// Unique index of keys.
const RECORDED: &str = "SELECT value FROM mainspring_steps WHERE no = ?1 AND key = ?2";

/// The few rows of the schema.
const NAMES: &str = "SELECT name FROM sqlite_schema";

/// Pragmas that only tell about tables.
const PRAGMAS: [&str; 7] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
];

/// The record that commits together with a closure's SQL.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its name in the log.
    pub name: String,
    /// How long the closure may take; see [`LIMIT`].
    pub limit: Duration,
    /// The node that holds the claim.
    pub node: NodeNo,
    /// The claim, and the other records of the commit.
    pub recording: Recording,
    /// The entry whose value the closure returns. The store ignores the value in it.
    pub entry: Entry,
}

/// The result of [`Sqlite::transact`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done<T> {
    /// The closure ran, and its changes are committed.
    Now(T),
    /// The key was recorded before, with this value. The closure did not run.
    Before(Vec<u8>),
}

/// Why a transaction step committed nothing.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The closure returned an error.
    Failed(BoxError),
    /// The closure panicked, with this message.
    Panicked(String),
    /// The closure took longer than this.
    TooLong(Duration),
    /// SQLite ended the transaction while the closure ran.
    Lost,
    /// The store failed. After [`OutcomeUnknown`](mainspring_core::Error::OutcomeUnknown) the transaction may be
    /// committed, and a repeat finds out.
    Store(mainspring_core::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Failed(_) => f.write_str("the transaction's closure failed"),
            Error::Panicked(message) => write!(f, "the transaction's closure panicked: {message}"),
            Error::TooLong(limit) => {
                write!(f, "the transaction took longer than {}", mainspring_core::time::Span(*limit))
            }
            Error::Lost => f.write_str("the transaction was rolled back by SQLite while its closure ran"),
            Error::Store(_) => f.write_str("the transaction was not stored"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Failed(cause) => Some(&**cause),
            Error::Store(cause) => Some(cause),
            Error::Panicked(_) | Error::TooLong(_) | Error::Lost => None,
        }
    }
}

impl Sqlite {
    /// Runs a closure in its own transaction and commits its SQL together with the record of the step. The closure
    /// returns the caller's value, and the recorded value as JSON. The closure runs on the store's writing thread and
    /// blocks all other writes, so it should run its SQL and return. SQLite does not enforce foreign keys there, and
    /// functions that you added to your own connections are missing.
    ///
    /// # Errors
    /// [`Error`]. Nothing has changed then, unless the outcome is unknown.
    pub fn transact<T, F>(&self, request: Request, body: F) -> Pending<'_, Result<Done<T>, Error>>
    where
        T: Send + 'static,
        F: FnOnce(&mut Sql<'_>) -> Result<(T, Vec<u8>), BoxError> + Send + 'static,
    {
        let (sender, receiver) = channel();
        let mut request = request;
        journal::adopt_children(&mut request.recording);
        self.env.queue.push(Box::new(Step { request, body: Some(body), sender, reply: None }));
        Box::pin(async move {
            let unknown = || Error::Store(mainspring_core::Error::OutcomeUnknown { source: None });
            receiver.await.unwrap_or_else(|| Err(unknown()))
        })
    }
}

/// The database as a closure of a transaction step sees it.
/// Every call fails after the time limit, or after SQLite has ended the transaction.
pub struct Sql<'a> {
    conn: &'a Connection,
    guard: &'a Guard,
    turnstile: Option<&'a Turnstile>,
    clock: &'a dyn Clock,
    /// Whether SQLite has ended the transaction.
    lost: bool,
    /// Jobs that came with it: somebody may wait for them.
    enlisted: Vec<New>,
}

impl Sql<'_> {
    /// Runs a statement and returns how many rows it changed.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn execute(&mut self, sql: &str, values: impl Params) -> rusqlite::Result<usize> {
        self.call(|conn| conn.execute(sql, values))
    }

    /// Runs several statements.
    ///
    /// # Errors
    /// SQLite's error.
    pub fn execute_batch(&mut self, sql: &str) -> rusqlite::Result<()> {
        self.call(|conn| conn.execute_batch(sql))
    }

    /// Returns the first row of a query.
    ///
    /// # Errors
    /// The error of SQLite or of the closure; [`rusqlite::Error::QueryReturnedNoRows`] if there is none.
    pub fn query_row<T>(
        &mut self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.call(|conn| conn.query_row(sql, values, read))
    }

    /// Returns all rows of a query.
    ///
    /// # Errors
    /// The error of SQLite or of the closure.
    pub fn query_map<T>(
        &mut self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.call(|conn| conn.prepare(sql)?.query_map(values, read)?.collect())
    }

    /// Returns the row number of the last insert.
    pub fn last_insert_rowid(&self) -> i64 {
        self.conn.last_insert_rowid()
    }

    fn call<T>(&mut self, body: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        if self.lost {
            return Err(refused(ffi::SQLITE_ABORT, "the transaction was rolled back"));
        }
        if self.guard.is_late(self.clock) {
            return Err(refused(ffi::SQLITE_INTERRUPT, "the transaction has taken too long"));
        }
        let answer = body(self.conn);
        if self.conn.is_autocommit() {
            self.lost = true;
            self.lock_again();
        }
        answer
    }

    /// Keeps others from writing until the closure has returned: what it does then has no effect, but how long it takes
    /// has.
    fn lock_again(&self) {
        let Some(turnstile) = self.turnstile else { return };
        let begun = self.guard.ourselves(|| turnstile.begin(self.conn, self.clock));
        if let Err(error) = begun {
            tracing::warn!(%error, "the turnstile is open while a rolled-back transaction step still runs");
        }
    }
}

impl Enlist<Sqlite> for Sql<'_> {
    fn enlist(
        &mut self,
        ticket: &Ticket,
        jobs: Vec<New>,
    ) -> impl Future<Output = mainspring_core::Result<Vec<Receipt>>> {
        ready(self.enlist_sync(ticket, jobs))
    }
}

impl EnlistSync<Sqlite> for Sql<'_> {
    fn enlist_sync(&mut self, ticket: &Ticket, jobs: Vec<New>) -> mainspring_core::Result<Vec<Receipt>> {
        let refused = |error: rusqlite::Error| crate::error::rolled_back(&error);
        let guard = self.guard;
        let receipts =
            self.call(|conn| Ok(guard.ourselves(|| enlist::enlist(conn, ticket, &jobs)))).map_err(refused)?;
        self.enlisted.extend(jobs);
        receipts
    }
}

impl fmt::Debug for Sql<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sql").finish_non_exhaustive()
    }
}

fn refused(code: i32, why: &str) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(why.to_owned()))
}

/// What the writer's connection asks while somebody else's code uses it. Nothing of this is asked of our own statements,
/// but whether it is to be asked.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Whether somebody else's code is running.
    foreign: AtomicBool,
    /// When it has to be over, in microseconds of monotonic time.
    deadline: AtomicU64,
    /// Whether it has altered a table.
    altered: AtomicBool,
    /// What is called by our names, as the store was opened. A store that a newer program has migrated since has more:
    /// then a step that alters a table is refused until this program is started again.
    names: OnceLock<BTreeSet<String>>,
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            foreign: AtomicBool::new(false),
            deadline: AtomicU64::new(u64::MAX),
            altered: AtomicBool::new(false),
            names: OnceLock::new(),
        }
    }
}

impl Guard {
    /// Sets it up. Once and for all: a change of the authorizer has SQLite prepare all statements anew.
    pub(crate) fn install(
        self: &Arc<Self>,
        conn: &mut Connection,
        clock: &Arc<dyn Clock>,
    ) -> rusqlite::Result<()> {
        let (guard, clock) = (Arc::clone(self), Arc::clone(clock));
        conn.progress_handler(STEPS, Some(move || guard.is_late(&*clock)))?;
        let guard = Arc::clone(self);
        conn.commit_hook(Some(move || guard.foreign.load(Ordering::Relaxed)))?;
        let guard = Arc::clone(self);
        let _ = self.names.set(names(conn)?);
        conn.authorizer(Some(move |context: AuthContext<'_>| {
            if !guard.foreign.load(Ordering::Relaxed) {
                return Authorization::Allow;
            }
            // The new name of a table that is renamed is not among what is asked about.
            if matches!(context.action, AuthAction::AlterTable { .. }) {
                guard.altered.store(true, Ordering::Relaxed);
            }
            if is_allowed(&context.action) { Authorization::Allow } else { Authorization::Deny }
        }))
    }

    /// Whether somebody else's code has given a table of its own a name of ours.
    fn has_renamed(&self, conn: &Connection) -> rusqlite::Result<bool> {
        Ok(self.altered.swap(false, Ordering::Relaxed) && Some(&names(conn)?) != self.names.get())
    }

    /// Runs somebody else's code until a time.
    fn foreign<T>(&self, deadline: Duration, body: impl FnOnce() -> T) -> T {
        let micros = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
        self.deadline.store(micros, Ordering::Relaxed);
        self.foreign.store(true, Ordering::Relaxed);
        let answer = body();
        self.foreign.store(false, Ordering::Relaxed);
        self.deadline.store(u64::MAX, Ordering::Relaxed);
        answer
    }

    /// Runs our own code in the midst of somebody else's.
    fn ourselves<T>(&self, body: impl FnOnce() -> T) -> T {
        let deadline = self.deadline.swap(u64::MAX, Ordering::Relaxed);
        self.foreign.store(false, Ordering::Relaxed);
        let answer = body();
        self.foreign.store(true, Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Relaxed);
        answer
    }

    fn is_late(&self, clock: &dyn Clock) -> bool {
        let deadline = self.deadline.load(Ordering::Relaxed);
        // Our own statements do not even look at the clock.
        deadline != u64::MAX && clock.monotonic().as_micros() > u128::from(deadline)
    }
}

/// Whether a closure may do this: anything with tables of its own, and nothing that outlives or ends its transaction.
fn is_allowed(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Select
        | AuthAction::Recursive
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Reindex { .. } => true,
        AuthAction::Pragma { pragma_name, .. } => {
            PRAGMAS.contains(&pragma_name.to_ascii_lowercase().as_str())
        }
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::CreateTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateVtable { table_name, .. }
        | AuthAction::DropVtable { table_name, .. } => !is_ours(table_name),
        AuthAction::CreateView { view_name } | AuthAction::DropView { view_name } => !is_ours(view_name),
        AuthAction::CreateIndex { index_name: name, table_name }
        | AuthAction::DropIndex { index_name: name, table_name }
        | AuthAction::CreateTrigger { trigger_name: name, table_name }
        | AuthAction::DropTrigger { trigger_name: name, table_name } => {
            !is_ours(name) && !is_ours(table_name)
        }
        // Transactions, other files, statistics that our plans would follow, and temporary tables, which would stay on
        // the connection and could stand in front of ours.
        _ => false,
    }
}

/// What in the file is called by our names.
fn names(conn: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut all = conn.prepare(NAMES)?;
    let names = all.query_map([], |row| row.get::<_, String>(0))?;
    names.filter(|name| name.as_ref().map_or(true, |name| is_ours(name))).collect()
}

fn is_ours(table: &str) -> bool {
    const PREFIX: &str = "mainspring_";
    table.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// A request to the writer.
struct Step<T, F> {
    request: Request,
    body: Option<F>,
    sender: Sender<Result<Done<T>, Error>>,
    reply: Option<Result<Done<T>, Error>>,
}

impl<T, F> Step<T, F>
where
    F: FnOnce(&mut Sql<'_>) -> Result<(T, Vec<u8>), BoxError>,
{
    fn step(&mut self, tx: &mut Tx<'_>) -> Result<Done<T>, Error> {
        let Request { name, limit, node, recording, entry } = &mut self.request;
        let no = recording.claim.row.0;
        journal::check_children(tx, std::slice::from_ref(recording)).map_err(store)?;
        if !journal::is_held(tx, *node, &recording.claim).map_err(store)? {
            return Err(Error::Store(mainspring_core::Error::LeaseLost));
        }
        let recorded = tx
            .conn
            .prepare_cached(RECORDED)
            .and_then(|mut recorded| {
                recorded.query_row(params![no, entry.key.as_str()], |row| row.get(0)).optional()
            })
            .map_err(|error| store(error.into()))?;
        if let Some(value) = recorded {
            return Ok(Done::Before(value));
        }
        let (Some(env), Some(body)) = (tx.state.home.clone(), self.body.take()) else {
            return Err(Error::Store(mainspring_core::Error::unavailable("a transaction runs once")));
        };
        let began = env.clock.monotonic();
        let (value, bytes) = run(tx, &env, name, *limit, body)?;
        entry.took = Some(env.clock.monotonic().saturating_sub(began));
        // The closure may have enlisted jobs, which have taken numbers and names that we do not know of.
        tx.reload().map_err(store)?;
        entry.value = bytes;
        recording.writes.entries.push(entry.clone());
        match journal::record(tx, *node, std::slice::from_ref(recording)).map_err(store)?.first() {
            Some(Recorded::Stored) => Ok(Done::Now(value)),
            _ => Err(Error::Store(mainspring_core::Error::LeaseLost)),
        }
    }
}

/// Runs a closure, and makes sure that the transaction is still there.
fn run<T>(
    tx: &mut Tx<'_>,
    env: &Arc<Env>,
    name: &str,
    limit: Duration,
    body: impl FnOnce(&mut Sql<'_>) -> Result<(T, Vec<u8>), BoxError>,
) -> Result<(T, Vec<u8>), Error> {
    let clock = &*env.clock;
    let guard = &*env.guard;
    let deadline = clock.monotonic().saturating_add(limit);
    let mut sql =
        Sql { conn: tx.conn, guard, turnstile: tx.turnstile, clock, lost: false, enlisted: Vec::new() };
    let watch = Watch::begin(env, name, limit);
    let outcome = guard.foreign(deadline, || inside(|| catch_unwind(AssertUnwindSafe(|| body(&mut sql)))));
    drop(watch);
    let late = clock.monotonic() > deadline;
    match outcome {
        Err(panic) => Err(Error::Panicked(message(&*panic))),
        Ok(_) if late => Err(Error::TooLong(limit)),
        Ok(Err(error)) => Err(Error::Failed(error)),
        Ok(Ok(_)) if sql.lost => Err(Error::Lost),
        Ok(Ok(_)) if guard.has_renamed(tx.conn).map_err(|error| store(error.into()))? => {
            let why =
                "a table was renamed to a name that begins with `mainspring_`, and these are the store's";
            Err(Error::Failed(refused(ffi::SQLITE_AUTH, why).into()))
        }
        Ok(Ok(answer)) => {
            for job in sql.enlisted {
                tx.hints.ready(&job.queue);
                for time in [job.run, job.deadline].into_iter().flatten() {
                    tx.hints.due(time.resolve(tx.now));
                }
            }
            Ok(answer)
        }
    }
}

/// Names a closure in the log while it blocks.
struct Watch {
    running: Arc<AtomicBool>,
    task: mainspring_core::seam::Task,
}

impl Watch {
    fn begin(env: &Arc<Env>, name: &str, limit: Duration) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let (watched, name) = (Arc::clone(&running), name.to_owned());
        // The clock's timers belong to the executor: begun on the task, not on the writer's thread.
        let clock = Arc::clone(&env.clock);
        let task = env.spawn.spawn(Box::pin(async move {
            clock.sleep(limit).await;
            if watched.load(Ordering::Acquire) {
                tracing::error!(
                    name,
                    limit = %mainspring_core::time::Span(limit),
                    "transaction step takes too long; the store accepts no writes until it returns"
                );
            }
        }));
        Watch { running, task }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Release);
        self.task.abort();
    }
}

/// What a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

fn store(fault: Fault) -> Error {
    Error::Store(match fault {
        Fault::Refused(error) => error,
        Fault::Sql(error) => crate::error::rolled_back(&error),
    })
}

impl<T, F> Call for Step<T, F>
where
    T: Send,
    F: FnOnce(&mut Sql<'_>) -> Result<(T, Vec<u8>), BoxError> + Send,
{
    fn weight(&self) -> Weight {
        let Request { recording, .. } = &self.request;
        Weight { rows: 1 + journal::rows(recording), bytes: journal::bytes(recording), urgent: false }
    }

    /// Another request must not be rolled back with it, nor wait for its commit.
    fn alone(&self) -> bool {
        true
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> rusqlite::Result<()> {
        let outcome = self.step(tx);
        let ended = outcome.is_ok();
        self.reply = Some(outcome);
        // Whatever it was: the transaction must not be committed.
        if ended { Ok(()) } else { Err(refused(ffi::SQLITE_ABORT, "a transaction was given up")) }
    }

    fn answer(self: Box<Self>) {
        let it = *self;
        let unrun = || Err(Error::Store(mainspring_core::Error::unavailable("the request was not run")));
        it.sender.send(it.reply.unwrap_or_else(unrun));
    }

    fn refuse(self: Box<Self>, error: mainspring_core::Error) {
        let it = *self;
        // Its own words say more; but what it would have said of a commit that failed is not true.
        it.sender.send(match it.reply {
            Some(Err(own)) => Err(own),
            Some(Ok(_)) | None => Err(Error::Store(error)),
        });
    }
}
