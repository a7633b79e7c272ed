//! The store: a handle that sends requests to the writer and the readers.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::error::OpenProblem;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Outcome, Progress, Record, Verb};
use mainspring_core::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use mainspring_core::limit::{
    Change, KeyChange, KeyUse, Limit, LimitKey, LimitSeed, Obstacle, Total, TotalUse,
};
use mainspring_core::name::{Key, LimitName, QueueName, ScheduleName, SignalName};
use mainspring_core::output::{Ask, Output};
use mainspring_core::schedule::Schedule;
use mainspring_core::seam::{Pending, Seams};
use mainspring_core::store::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, DueSchedules, Filter,
    Finding, Finish, Finished, Journals, Limits, Line, Listener, Listing, Node, Nodes, Operators, Page,
    Producers, Queue, QueueChange, Receipt, Registered, Registration, Renewal, Renewed, Rescue, Rescued,
    ScheduleWrite, Schedules, Store, Swept, Ticket, Written,
};
use mainspring_core::{Error, Result};

use crate::file_identity::Identity;
use crate::hint::Listeners;
use crate::migrate::{self, SCHEMA_VERSION};
use crate::oneshot::{Receiver, channel};
use crate::open_files::Files;
use crate::options::{Durability, Options};
use crate::read::{self, Pool, Reader};
use crate::turnstile::Turnstile;
use crate::writer::{self, Env, Queue as Requests, Tx, Typed, Weight};
use crate::{error, op, open};

/// Threads that read.
const READERS: usize = 2;

/// A store in one SQLite file.
/// Dropping it closes it. The store's own thread finishes the calls under way first.
pub struct Sqlite {
    pub(crate) env: Arc<Env>,
    pool: Arc<Pool>,
    store: [u8; 16],
    durability: Durability,
    created: Option<u32>,
}

impl Sqlite {
    /// Opens a store. Creates and migrates its file if needed. Blocks: do not call it on an executor's thread.
    ///
    /// # Errors
    /// [`Error::Open`] with the problem, if the store does not open with these options.
    #[expect(clippy::needless_pass_by_value, reason = "a store is opened with what it is to keep")]
    pub fn open(options: Options, seams: Seams) -> Result<Sqlite> {
        open::check(&options)?;
        let path = options.path.as_path();
        let before = Identity::at(path).ok().flatten();
        let mut conn = open::writer(&options, &*seams.clock)?;
        let created = migrate::run(&mut conn, path, &*seams.rng)?.created;
        let store = migrate::store_id(&conn)
            .map_err(|error| error::open(path, error))?
            .ok_or_else(|| error::problem_with(path, OpenProblem::NotAStore, None))?;
        let real = real_path(&conn, path);
        let files = Files::of(&real);
        if before.is_some_and(|before| Identity::at(&real).is_ok_and(|found| found != Some(before))) {
            return Err(misplaced(path, "it was replaced while it was opened".to_owned()));
        }
        let env = Arc::new(Env {
            path: real,
            files,
            clock: Arc::clone(&seams.clock),
            rng: Arc::clone(&seams.rng),
            queue: Requests::default(),
            listeners: Listeners::default(),
            spawn: Arc::clone(&seams.spawn),
            guard: Arc::default(),
            #[cfg(test)]
            fail_commit: std::sync::atomic::AtomicBool::default(),
        });
        let pool = Arc::new(Pool::default());
        let opened = Sqlite { env, pool, store, durability: options.durability, created };
        opened.start(conn, &options, &seams)?;
        Ok(opened)
    }

    /// Migrates the schema of a file to [`SCHEMA_VERSION`] and returns its old version; 0 if it had none. Opening does
    /// the same. Blocks.
    ///
    /// # Errors
    /// As [`Sqlite::open`].
    pub fn migrate(options: &Options, seams: &Seams) -> Result<u32> {
        open::check(options)?;
        let mut conn = open::writer(options, &*seams.clock)?;
        Ok(migrate::run(&mut conn, &options.path, &*seams.rng)?.found)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.env.path
    }

    fn start(&self, mut conn: rusqlite::Connection, options: &Options, seams: &Seams) -> Result<()> {
        let other = |cause: std::io::Error| {
            error::problem_with(&options.path, OpenProblem::Other, Some(cause.into()))
        };
        for number in 0..READERS {
            let conn = open::reader(options)?;
            let reader = Reader::new(conn, Arc::clone(&seams.clock), options.read_timeout)
                .map_err(|error| error::open(&options.path, error))?;
            let pool = Arc::clone(&self.pool);
            let env = Arc::clone(&self.env);
            let body = Box::new(move || {
                pool.serve(reader);
                env.queue.ended();
            });
            self.env.queue.began();
            self.spawned(seams.threads.spawn(&format!("sqlite-read-{number}"), body)).map_err(other)?;
        }
        // Now that every connection is open: all of them are on the same file.
        if let Some(why) = self.env.files.misplaced() {
            return Err(misplaced(&options.path, why));
        }
        // The turnstile waits, and quicker than SQLite would.
        conn.busy_timeout(Duration::ZERO).map_err(|error| error::open(&options.path, error))?;
        self.env.guard.install(&mut conn, &seams.clock).map_err(|error| error::open(&options.path, error))?;
        let turnstile = Turnstile::open(&self.env.path, options.busy_timeout);
        let env = Arc::clone(&self.env);
        let body = Box::new(move || writer::run(conn, turnstile, env));
        self.env.queue.began();
        self.spawned(seams.threads.spawn("sqlite-write", body)).map_err(other)
    }

    /// Counts a thread out again that could not be started.
    fn spawned(&self, started: std::io::Result<()>) -> std::io::Result<()> {
        if started.is_err() {
            self.env.queue.ended();
        }
        started
    }

    /// Sends a request to the writer.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        weight: Weight,
        body: impl FnMut(&mut Tx<'_>) -> error::Result<T> + Send + 'static,
    ) -> Pending<'_, Result<T>> {
        let (sender, receiver) = channel();
        self.env.queue.push(Box::new(Typed { weight, body, sender, reply: None }));
        Box::pin(async move {
            // The writer is gone without an answer only if it broke in the middle of a transaction.
            receiver.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))
        })
    }

    /// Sends a request to a reader.
    fn read<T: Send + 'static>(
        &self,
        body: impl FnOnce(&mut Reader) -> error::Result<T> + Send + 'static,
    ) -> Pending<'_, Result<T>> {
        self.read_within(Duration::ZERO, body)
    }

    /// The same for one that may take so long, if that is longer than others may.
    fn read_within<T: Send + 'static>(
        &self,
        patience: Duration,
        body: impl FnOnce(&mut Reader) -> error::Result<T> + Send + 'static,
    ) -> Pending<'_, Result<T>> {
        let refusal = self.env.queue.refusal();
        let answer: Option<Receiver<Result<T>>> = refusal.is_none().then(|| self.pool.read(patience, body));
        Box::pin(async move {
            match (answer, refusal) {
                (Some(answer), _) => answer.await.unwrap_or(Err(Error::Closed)),
                (None, refusal) => Err(refusal.unwrap_or(Error::Closed)),
            }
        })
    }
}

/// A file that was replaced in the middle of its opening.
fn misplaced(path: &Path, why: String) -> Error {
    error::problem_with(path, OpenProblem::Other, Some(std::io::Error::other(why).into()))
}

/// The file that SQLite works on, with links followed: locks must be where every other handle looks for them.
fn real_path(conn: &rusqlite::Connection, path: &Path) -> PathBuf {
    match conn.path() {
        Some(real) if !real.is_empty() => PathBuf::from(real),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.pool.close();
        self.env.queue.close();
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.env.path).finish_non_exhaustive()
    }
}

impl Store for Sqlite {
    fn describe(&self) -> Description {
        Description {
            backend: "sqlite",
            location: self.env.path.display().to_string(),
            version: rusqlite::version().to_owned(),
            schema: SCHEMA_VERSION,
            durable: self.durability == Durability::Full,
            created: self.created,
        }
    }

    fn native(&self) -> Option<&(dyn Any + Send + Sync)> {
        Some(self)
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        self.env.listeners.add(listener);
        // The writer sleeps without looking around while nobody listens.
        self.env.queue.nudge();
    }

    fn close(&self) -> Pending<'_, ()> {
        self.pool.close();
        self.env.queue.close();
        Box::pin(poll_fn(|context| {
            if self.env.queue.poll_ended(context.waker()) { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}

impl Producers for Sqlite {
    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        let bytes = jobs.iter().map(New::bytes).sum();
        let rows = jobs.iter().map(|job| 1 + job.journal.len()).sum();
        let weight = Weight { rows, bytes, urgent: false };
        self.write(weight, move |tx| op::enqueue::run(tx, &jobs))
    }

    fn ticket(&self) -> Ticket {
        Ticket {
            store: self.store,
            now: Some(self.env.clock.now()),
            schema: String::new(),
            lines: Vec::new(),
        }
    }

    fn nudge(&self, _id: JobId) {
        // A commit of another connection is noticed by itself; this only makes it sooner.
        self.env.queue.nudge();
    }

    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>> {
        let bytes = signals.iter().map(|signal| signal.body.len()).sum();
        let weight = Weight { rows: signals.len(), bytes, urgent: false };
        self.write(weight, move |tx| op::inbox::signal(tx, &signals))
    }

    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>> {
        self.write(Weight::rows(1), move |tx| op::inbox::drop_signals(tx, id, &name, sender.as_deref()))
    }

    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>> {
        self.read(move |reader| read::job_ends(reader, &ids))
    }

    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>> {
        self.read(move |reader| read::outputs(reader, &asks))
    }
}

impl Nodes for Sqlite {
    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>> {
        self.write(Weight::rows(1), move |tx| op::node::register(tx, &node))
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>> {
        let weight = Weight { rows: 1 + renewal.marks.len(), bytes: 0, urgent: true };
        self.write(weight, move |tx| op::node::renew(tx, &renewal))
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        self.write(Weight::rows(1), move |tx| op::node::retire(tx, node))
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        let rows = request.queues.iter().map(|(_, limit)| *limit).fold(0, usize::saturating_add);
        self.write(Weight::rows(rows), move |tx| op::claim::run(tx, &request))
    }

    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.read(move |reader| read::inputs(reader, &claims))
    }

    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>> {
        let writes = finishes.iter().filter_map(|finish| match &finish.outcome {
            Outcome::Suspend(suspension) => Some(&suspension.writes),
            _ => None,
        });
        let (rows, bytes) = writes.fold((finishes.len(), 0), |(rows, bytes), writes| {
            (rows + op::journal::rows_of(writes), bytes + writes.bytes())
        });
        let weight = Weight { rows, bytes, urgent: false };
        self.write(weight, move |tx| op::finish::run(tx, node, &finishes))
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        self.write(Weight::rows(1), move |tx| op::finish::disown(tx, node, settled, &keep))
    }

    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>> {
        self.write(Weight::rows(progress.len()), move |tx| op::finish::progress(tx, node, &progress))
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        self.write(Weight::rows(1), move |tx| op::rescue::run(tx, rescue))
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.write(Weight::rows(1), move |tx| op::due::promote(tx, limit))
    }

    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        self.write(Weight::rows(1), move |tx| op::due::expire(tx, limit))
    }

    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>> {
        // Several commits, if journals are long: others must not wait for all of them. Each is as good as a call of its own.
        let part = |limit| self.write(Weight::rows(1), move |tx| op::prune::run(tx, limit));
        let mut pending = part(limit);
        Box::pin(async move {
            let mut removed = 0;
            loop {
                let pruned = pending.await?;
                removed += pruned.removed;
                if !pruned.more {
                    return Ok(removed);
                }
                pending = part(limit - removed);
            }
        })
    }
}

impl Journals for Sqlite {
    fn record(&self, node: NodeNo, mut recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        let mut weight = Weight::default();
        for recording in &mut recordings {
            weight.rows += op::journal::rows(recording);
            weight.bytes += op::journal::bytes(recording);
            op::journal::adopt_children(recording);
        }
        self.write(weight, move |tx| op::journal::record(tx, node, &recordings))
    }

    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.read(move |reader| read::values(reader, id, &keys))
    }

    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>> {
        self.read(move |reader| read::inboxes(reader, &claims))
    }
}

impl Operators for Sqlite {
    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>> {
        self.read(move |reader| read::get(reader, id))
    }

    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>> {
        self.read(move |reader| read::timeline(reader, id))
    }

    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>> {
        self.read(move |reader| read::list(reader, &filter, &page))
    }

    fn counts(&self) -> Pending<'_, Result<Counts>> {
        self.read(read::counts)
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        self.write(Weight::rows(ids.len()), move |tx| op::change::run(tx, &ids, &verb, dry_run))
    }

    fn lines(&self) -> Pending<'_, Result<Vec<Line>>> {
        self.read(read::lines)
    }

    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>> {
        self.read(read::queues)
    }

    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>> {
        self.write(Weight::rows(1), move |tx| op::settings::configure(tx, &queue, &change))
    }

    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>> {
        self.write(Weight::rows(1), move |tx| op::settings::delete(tx, &queue))
    }

    fn audit(&self, subject: Option<Subject>, limit: usize) -> Pending<'_, Result<Vec<AuditEntry>>> {
        self.read(move |reader| read::audit(reader, subject.as_ref(), limit))
    }

    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>> {
        self.read(read::nodes)
    }

    fn check_part(&self, part: CheckPart) -> Pending<'_, Result<Checked>> {
        self.read_within(read::CHECK_PATIENCE, move |reader| read::check(reader, part))
    }

    fn try_write(&self) -> Pending<'_, Result<()>> {
        self.write(Weight::rows(1), op::settings::try_write)
    }

    fn diagnose(&self) -> Pending<'_, Result<Vec<Finding>>> {
        let env = Arc::clone(&self.env);
        self.read(move |_| Ok(env.files.findings()))
    }
}

impl Schedules for Sqlite {
    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>> {
        self.read(move |reader| read::due_schedules(reader, limit))
    }

    fn find_schedules(&self, names: Vec<ScheduleName>) -> Pending<'_, Result<Vec<Option<Schedule>>>> {
        self.read(move |reader| read::find_schedules(reader, &names))
    }

    fn list_schedules(
        &self,
        after: Option<ScheduleName>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<Schedule>>> {
        self.read(move |reader| read::list_schedules(reader, after.as_ref(), limit))
    }

    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>> {
        let bytes = writes.iter().flat_map(|write| &write.jobs).map(New::bytes).sum();
        let rows = writes.iter().map(|write| 1 + write.jobs.len()).sum();
        self.write(Weight { rows, bytes, urgent: false }, move |tx| op::schedules::write(tx, &writes))
    }
}

impl Limits for Sqlite {
    fn seed_limits(&self, seeds: Vec<LimitSeed>) -> Pending<'_, Result<Vec<Limit>>> {
        self.write(Weight::rows(seeds.len()), move |tx| op::limits::change::seed(tx, &seeds))
    }

    fn set_limit(&self, name: LimitName, change: Change, who: String) -> Pending<'_, Result<Limit>> {
        self.write(Weight::rows(1), move |tx| op::limits::change::set(tx, &name, change, &who))
    }

    fn reset_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<Limit>> {
        self.write(Weight::rows(1), move |tx| op::limits::change::reset(tx, &name, &who))
    }

    fn delete_limit(&self, name: LimitName, who: String) -> Pending<'_, Result<bool>> {
        self.write(Weight::rows(1), move |tx| op::limits::change::delete(tx, &name, &who))
    }

    fn limits(&self) -> Pending<'_, Result<Vec<Limit>>> {
        self.read(read::limits)
    }

    fn set_limit_key(
        &self,
        limit: LimitName,
        key: String,
        change: KeyChange,
        who: String,
    ) -> Pending<'_, Result<LimitKey>> {
        self.write(Weight::rows(1), move |tx| op::limits::change::set_key(tx, &limit, &key, change, &who))
    }

    fn limit_keys(
        &self,
        name: LimitName,
        after: Option<String>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<LimitKey>>> {
        self.read(move |reader| read::limit_keys(reader, &name, after.as_deref(), limit))
    }

    fn limit_key(&self, limit: LimitName, key: String) -> Pending<'_, Result<KeyUse>> {
        self.read(move |reader| read::limit_key(reader, &limit, &key))
    }

    fn obstacle(&self, id: JobId) -> Pending<'_, Result<Option<Obstacle>>> {
        self.read(move |reader| read::obstacle(reader, id))
    }

    fn set_total(&self, total: Total, max: Option<u32>, who: String) -> Pending<'_, Result<()>> {
        self.write(Weight::rows(1), move |tx| op::limits::change::set_total(tx, &total, max, &who))
    }

    fn totals(&self) -> Pending<'_, Result<Vec<TotalUse>>> {
        self.read(read::totals)
    }
}
