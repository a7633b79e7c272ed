//! The store: a handle that sends each call to its connection.
//!
//! All connections are driven by one thread of the store's own, so that no busy executor keeps a lease from being renewed,
//! and so that a caller may come from any executor. A call that was begun is finished whether or not its caller still
//! waits.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::error::OpenProblem;
use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, Progress, Record, Verb};
use mainspring_core::journal::{Inbox, JobEnd, Recorded, Recording, Signal, Signalled, Timeline};
use mainspring_core::name::{Key, QueueName, ScheduleName, SignalName};
use mainspring_core::output::{Ask, Output};
use mainspring_core::schedule::Schedule;
use mainspring_core::seam::{Pending, Seams};
use mainspring_core::store::{
    Changed, CheckPart, Checked, ClaimRequest, ClaimedBatch, Counts, Description, DueSchedules, Filter,
    Finding, Finish, Finished, Journals, Line, Listener, Listing, Node, Nodes, Operators, Page, Producers,
    Queue, QueueChange, Receipt, Registered, Registration, Renewal, Renewed, Rescue, Rescued, ScheduleWrite,
    Schedules, Store, Swept, Ticket, Written,
};
use mainspring_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::connect::{self, answered, problem};
use crate::connection::{Conn, SharedConnection, Use};
use crate::error::{Fault, passing};
use crate::migrate::{self, MIN_SERVER, SCHEMA_VERSION};
use crate::op::limits::settle;
use crate::op::{self, Op};
use crate::options::{Durability, Options};
use crate::shared::Shared;
use crate::sql::{Query, statement};
use crate::{enlist, idle_poll, listen, names, read};

/// Calls that may be under way at once: more than any program has.
const CALLS: u32 = 1 << 20;
/// How often a call is begun anew after a deadlock.
const ATTEMPTS: usize = 5;
/// What the network may add to the time that the database gives a call.
const GRACE: Duration = Duration::from_millis(500);

/// The connections of a store.
pub(crate) struct Connections {
    enqueue: SharedConnection,
    claim: SharedConnection,
    finish: SharedConnection,
    record: SharedConnection,
    /// The same for the other half of the jobs.
    record_odd: SharedConnection,
    signal: SharedConnection,
    renew: SharedConnection,
    pub(crate) sweep: SharedConnection,
    pub(crate) admin: SharedConnection,
    pub(crate) read: SharedConnection,
    /// For what takes long.
    check: SharedConnection,
}

impl Connections {
    fn new() -> Self {
        let hot = || SharedConnection::new(Use::Hot);
        Connections {
            enqueue: SharedConnection::new(Use::Enqueue),
            claim: hot(),
            finish: hot(),
            record: hot(),
            record_odd: hot(),
            signal: hot(),
            renew: hot(),
            sweep: hot(),
            admin: hot(),
            read: SharedConnection::new(Use::Read),
            check: SharedConnection::new(Use::Read),
        }
    }
}

/// A store in one schema of a Postgres database.
/// Dropping it closes it. The store's own thread finishes the calls under way first.
pub struct Postgres {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    calls: Arc<Semaphore>,
    listening: AtomicBool,
    version: String,
    created: bool,
}

impl Postgres {
    /// Opens a store in a Postgres database.
    ///
    /// # Errors
    /// [`Error::Open`] with the problem, if the store does not open with these options.
    pub async fn open(options: Options, seams: Seams) -> Result<Postgres> {
        let mut opening = Opening(Some(start(options, &seams)?));
        let shared = opening.shared();
        let (version, created) = on_own_thread(&shared, {
            let shared = Arc::clone(&shared);
            async move { set_up(&shared).await }
        })
        .await?;
        opening.0 = None;
        Ok(Postgres {
            shared,
            connections: Arc::new(Connections::new()),
            calls: Arc::new(Semaphore::new(CALLS as usize)),
            listening: AtomicBool::new(false),
            version,
            created,
        })
    }

    /// Migrates the schema to [`SCHEMA_VERSION`] and returns its old version; 0 if it had none.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    pub async fn migrate(options: &Options, seams: &Seams) -> Result<u32> {
        let opening = Opening(Some(start(options.clone(), seams)?));
        let shared = opening.shared();
        on_own_thread(&shared, {
            let shared = Arc::clone(&shared);
            async move { migrate::run(&mut Conn::open(Use::Read, &shared).await?, &shared).await }
        })
        .await
    }

    /// Removes the schema that the options name, with everything in it. For tests that own their schema.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    #[doc(hidden)]
    pub async fn remove(options: &Options, seams: &Seams) -> Result<()> {
        let opening = Opening(Some(start(options.clone(), seams)?));
        let shared = opening.shared();
        on_own_thread(&shared, {
            let shared = Arc::clone(&shared);
            async move { migrate::remove(&Conn::open(Use::Read, &shared).await?, &shared).await }
        })
        .await
    }

    /// Sends a call to a connection.
    pub(crate) fn call<O: Op>(
        &self,
        connection: fn(&Connections) -> &SharedConnection,
        op: O,
    ) -> Pending<'_, Result<O::Answer>> {
        let Ok(permit) = Arc::clone(&self.calls).try_acquire_owned() else {
            return Box::pin(std::future::ready(Err(Error::Closed)));
        };
        let (shared, connections) = (Arc::clone(&self.shared), Arc::clone(&self.connections));
        let (sender, receiver) = oneshot::channel();
        self.shared.runtime.spawn(async move {
            let answer = run(connection(&connections), &shared, &op).await;
            drop(permit);
            // The caller may have gone.
            drop(sender.send(answer));
        });
        Box::pin(async move {
            // Without an answer the store's thread is gone in the middle of it.
            receiver.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))
        })
    }

    /// An answer that is known without asking, unless the store is closed.
    fn known<T: Send + 'static>(&self, answer: T) -> Pending<'_, Result<T>> {
        let closed = self.calls.is_closed() || self.shared.is_closing();
        Box::pin(std::future::ready(if closed { Err(Error::Closed) } else { Ok(answer) }))
    }

    /// Tells the store's thread to end once nothing is under way.
    fn shut(&self) -> impl Future<Output = ()> + Send + use<> {
        let (shared, calls) = (Arc::clone(&self.shared), Arc::clone(&self.calls));
        async move {
            let rest: Option<OwnedSemaphorePermit> = Arc::clone(&calls).acquire_many_owned(CALLS).await.ok();
            calls.close();
            drop(rest);
            shared.close();
        }
    }
}

/// A store on its way. Its thread ends with it, also if whoever opens it does not wait for that any longer.
struct Opening(Option<Arc<Shared>>);

impl Opening {
    fn shared(&self) -> Arc<Shared> {
        Arc::clone(self.0.as_ref().expect("it is given up once, at the end"))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.close();
        }
    }
}

/// Runs a call on a connection, again if it met a deadlock.
async fn run<O: Op>(connection: &SharedConnection, shared: &Shared, op: &O) -> Result<O::Answer> {
    let mut attempt = 1;
    loop {
        let mut checkout = connection.check_out(shared).await?;
        let Some(conn) = checkout.conn() else { return Err(Error::Closed) };
        let limit = shared.timeout().max(O::PATIENCE) + GRACE;
        let outcome = tokio::time::timeout(limit, op.run(conn, shared)).await;
        let Ok(outcome) = outcome else {
            // The connection goes with its checkout: nobody knows what is still to come on it.
            return Err(if O::WRITES {
                Error::OutcomeUnknown { source: Some("the database did not answer in time".into()) }
            } else {
                Error::unavailable("the database did not answer in time")
            });
        };
        let fault = match outcome {
            Ok(answer) => {
                if conn.take_units_left() {
                    settle::settle(conn, shared).await;
                }
                checkout.check_in();
                if O::MOVES {
                    shared.moved();
                }
                return Ok(answer);
            }
            Err(fault) => fault,
        };
        if tokio::time::timeout(limit, conn.roll_back()).await.is_ok() {
            checkout.check_in();
        }
        match fault {
            Fault::Db(error) if passing(&error) && attempt < ATTEMPTS => attempt += 1,
            fault => return Err(fault.into_error(O::WRITES)),
        }
    }
}

/// Starts the store's own thread.
fn start(options: Options, seams: &Seams) -> Result<Arc<Shared>> {
    let location = options.address.location();
    let failed = |error: std::io::Error| Error::Open {
        location: location.clone(),
        problem: OpenProblem::Other,
        source: Some(error.into()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let shared = Arc::new(Shared::new(options, Arc::clone(&seams.clock), Arc::clone(&seams.rng), handle));
    let closed = Arc::clone(&shared);
    let body = Box::new(move || runtime.block_on(closed.closing()));
    seams.threads.spawn("postgres-io", body).map_err(failed)?;
    Ok(shared)
}

async fn on_own_thread<T: Send + 'static>(
    shared: &Shared,
    task: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    shared.runtime.spawn(async move { drop(sender.send(task.await)) });
    receiver.await.unwrap_or(Err(Error::Closed))
}

statement! {
    pub(crate) ServerSettings = "open.settings", whole ("it touches no table"), ()
    -> ServerRow { version_no: i32, version: String, fsync: String, synchronous_commit: String };
    "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
        current_setting('fsync'), current_setting('synchronous_commit')"
}

/// Checks the database and learns what there is to know of it. Returns its version, and whether the store was created.
async fn set_up(shared: &Shared) -> Result<(String, bool)> {
    let mut conn = Conn::open(Use::Read, shared).await?;
    let rows = answered(shared, async {
        let rows = conn.ask(&ServerSettings.call()).await;
        rows.map_err(|error| connect::failed(shared, OpenProblem::Other, &error))
    })
    .await?;
    let row = ServerSettings::first(&rows).map_err(|fault| fault.into_error(false))?;
    let server = row.ok_or_else(|| problem(shared, OpenProblem::Other, None))?;
    let version = server.version;
    if server.version_no < MIN_SERVER.0 {
        let database = OpenProblem::Database { found: version, needed: MIN_SERVER.1.to_owned() };
        return Err(problem(shared, database, None));
    }
    if shared.options.durability == Durability::Full {
        if server.fsync == "off" {
            return Err(problem(shared, OpenProblem::NotDurable { setting: "fsync" }, None));
        }
        // A database or a role may be set so; our sessions need not be.
        shared.insist_on_commit(server.synchronous_commit == "off");
    }
    let created = shared.options.migrate && migrate::run(&mut conn, shared).await? == 0;
    let found = answered(shared, migrate::look(&conn, shared)).await?;
    if found.version < SCHEMA_VERSION {
        let old = OpenProblem::TooOld { found: found.version, needed: SCHEMA_VERSION };
        return Err(problem(shared, old, None));
    }
    shared.set_store(found.store);
    answered(shared, async {
        names::refresh(&mut conn, shared).await.map_err(|fault| match fault {
            Fault::Refused(error) => error,
            Fault::Db(error) => connect::failed(shared, OpenProblem::Refused, &error),
        })
    })
    .await?;
    Ok((version, created))
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.shared.runtime.spawn(self.shut());
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("location", &self.shared.options.address.location())
            .finish_non_exhaustive()
    }
}

impl Store for Postgres {
    fn describe(&self) -> Description {
        Description {
            backend: "postgres",
            location: self.shared.options.address.location(),
            version: self.version.clone(),
            schema: SCHEMA_VERSION,
            durable: self.shared.options.durability == Durability::Full,
            // It has a schema of its own.
            created: self.created.then_some(0),
        }
    }

    fn subscribe(&self, listener: Weak<dyn Listener>) {
        self.shared.listen(listener);
        if !self.listening.swap(true, Ordering::Relaxed) {
            self.shared.runtime.spawn(listen::run(Arc::clone(&self.shared), Arc::clone(&self.connections)));
        }
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(self.shut())
    }
}

impl Producers for Postgres {
    fn enqueue(&self, jobs: Vec<New>) -> Pending<'_, Result<Vec<Receipt>>> {
        self.call(|to| &to.enqueue, op::enqueue::Enqueue(jobs))
    }

    fn ticket(&self) -> Ticket {
        Ticket {
            store: self.shared.store(),
            now: self.shared.now(),
            schema: self.shared.schema.to_string(),
            lines: Vec::new(),
        }
    }

    fn ticket_for(&self, jobs: Vec<New>) -> Pending<'_, Result<Ticket>> {
        self.call(|to| &to.enqueue, enlist::Prepare(jobs))
    }

    fn nudge(&self, id: JobId) {
        // Answered to nobody: it is a hint.
        drop(self.call(|to| &to.enqueue, enlist::Nudge(id)));
    }

    fn signal(&self, signals: Vec<Signal>) -> Pending<'_, Result<Vec<Signalled>>> {
        self.call(|to| &to.signal, op::signal::SignalOp(signals))
    }

    fn drop_signals(
        &self,
        id: JobId,
        name: SignalName,
        sender: Option<String>,
    ) -> Pending<'_, Result<Option<usize>>> {
        self.call(|to| &to.admin, op::drop_signals::DropSignals { id, name, sender })
    }

    fn job_ends(&self, ids: Vec<JobId>) -> Pending<'_, Result<Vec<JobEnd>>> {
        self.call(|to| &to.read, read::JobEnds(ids))
    }

    fn output(&self, asks: Vec<Ask>) -> Pending<'_, Result<Vec<Option<Output>>>> {
        self.call(|to| &to.read, read::Outputs(asks))
    }
}

impl Nodes for Postgres {
    fn register(&self, node: Registration) -> Pending<'_, Result<Registered>> {
        self.call(|to| &to.admin, op::node::Register(node))
    }

    fn renew(&self, renewal: Renewal) -> Pending<'_, Result<Renewed>> {
        self.call(|to| &to.renew, op::node::Renew(renewal))
    }

    fn retire(&self, node: NodeNo) -> Pending<'_, Result<usize>> {
        self.call(|to| &to.admin, op::node::Retire(node))
    }

    fn claim(&self, request: ClaimRequest) -> Pending<'_, Result<ClaimedBatch>> {
        let node = request.node;
        let taken = self.call(|to| &to.claim, op::claim::ClaimOp(request));
        // Here and not on the connection: the next claim need not wait for it.
        Box::pin(async move {
            let (claimed, unreadable) =
                taken.await?.read(&self.shared).map_err(|fault| fault.into_error(false))?;
            if !unreadable.is_empty() {
                let aside = op::unreadable::SetAside::new(node, unreadable);
                // The claim is made. It is asked for again, and then those that are still there are found again.
                let unknown = |_| Error::OutcomeUnknown { source: None };
                self.call(|to| &to.claim, aside).await.map_err(unknown)?;
            }
            Ok(claimed)
        })
    }

    fn inputs(&self, claims: Vec<Claim>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.call(|to| &to.read, read::Inputs(claims))
    }

    fn finish(&self, node: NodeNo, finishes: Vec<Finish>) -> Pending<'_, Result<Vec<Finished>>> {
        self.call(|to| &to.finish, op::finish::FinishOp { node, finishes })
    }

    fn disown(&self, node: NodeNo, settled: ClaimBatchNo, keep: Vec<Claim>) -> Pending<'_, Result<usize>> {
        self.call(|to| &to.claim, op::node::Disown { node, settled, keep })
    }

    fn progress(&self, node: NodeNo, progress: Vec<(Claim, Progress)>) -> Pending<'_, Result<()>> {
        self.call(|to| &to.finish, op::finish::ProgressOp { node, progress })
    }

    fn rescue(&self, rescue: Rescue) -> Pending<'_, Result<Rescued>> {
        if let Some(known) = idle_poll::rescue(&self.shared, rescue) {
            return self.known(known);
        }
        self.call(|to| &to.sweep, op::rescue::RescueOp(rescue))
    }

    fn promote(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        if let Some(known) = idle_poll::promote(&self.shared) {
            return self.known(known);
        }
        self.call(|to| &to.sweep, op::sweep::Promote(limit))
    }

    fn expire(&self, limit: usize) -> Pending<'_, Result<Swept>> {
        if let Some(known) = idle_poll::expire(&self.shared) {
            return self.known(known);
        }
        self.call(|to| &to.sweep, op::sweep::Expire(limit))
    }

    fn prune(&self, limit: usize) -> Pending<'_, Result<usize>> {
        self.call(|to| &to.sweep, op::prune::Prune(limit))
    }
}

impl Journals for Postgres {
    fn record(&self, node: NodeNo, recordings: Vec<Recording>) -> Pending<'_, Result<Vec<Recorded>>> {
        // Two connections, because a backend is one processor. All that one job records goes one way.
        let odd = recordings.first().is_some_and(|recording| recording.claim.row.0 & 1 == 1);
        let connection: fn(&Connections) -> &SharedConnection =
            if odd { |to| &to.record_odd } else { |to| &to.record };
        self.call(connection, op::record::RecordOp { node, recordings })
    }

    fn values(&self, id: JobId, keys: Vec<Key>) -> Pending<'_, Result<Vec<Option<Vec<u8>>>>> {
        self.call(|to| &to.read, read::Values { id, keys })
    }

    fn inbox(&self, claims: Vec<(Claim, i64)>) -> Pending<'_, Result<Vec<Inbox>>> {
        self.call(|to| &to.read, read::Inboxes(claims))
    }
}

impl Operators for Postgres {
    fn get(&self, id: JobId) -> Pending<'_, Result<Option<Record>>> {
        self.call(|to| &to.read, read::Get(id))
    }

    fn timeline(&self, id: JobId) -> Pending<'_, Result<Option<Timeline>>> {
        self.call(|to| &to.read, read::TimelineOp(id))
    }

    fn list(&self, filter: Filter, page: Page) -> Pending<'_, Result<Listing>> {
        self.call(|to| &to.read, read::List { filter, page })
    }

    fn counts(&self) -> Pending<'_, Result<Counts>> {
        self.call(|to| &to.read, read::CountsOp)
    }

    fn change(&self, ids: Vec<JobId>, verb: Verb, dry_run: bool) -> Pending<'_, Result<Vec<Changed>>> {
        self.call(|to| &to.admin, op::change::Change { ids, verb, dry_run })
    }

    fn lines(&self) -> Pending<'_, Result<Vec<Line>>> {
        self.call(|to| &to.read, read::LinesOp)
    }

    fn queues(&self) -> Pending<'_, Result<Vec<Queue>>> {
        self.call(|to| &to.read, read::QueuesOp)
    }

    fn configure(&self, queue: QueueName, change: QueueChange) -> Pending<'_, Result<Queue>> {
        self.call(|to| &to.admin, op::settings::Configure { queue, change })
    }

    fn delete_queue(&self, queue: QueueName) -> Pending<'_, Result<bool>> {
        self.call(|lanes| &lanes.admin, op::settings::DeleteQueue(queue))
    }

    fn audit(&self, subject: Option<Subject>, limit: usize) -> Pending<'_, Result<Vec<AuditEntry>>> {
        self.call(|to| &to.read, read::Audit { subject, limit })
    }

    fn nodes(&self) -> Pending<'_, Result<Vec<Node>>> {
        self.call(|to| &to.read, read::NodesOp)
    }

    fn check_part(&self, part: CheckPart) -> Pending<'_, Result<Checked>> {
        self.call(|to| &to.check, read::Check(part))
    }

    fn try_write(&self) -> Pending<'_, Result<()>> {
        self.call(|to| &to.check, op::settings::TryWrite)
    }

    fn diagnose(&self) -> Pending<'_, Result<Vec<Finding>>> {
        self.call(|to| &to.check, read::Diagnose)
    }
}

impl Schedules for Postgres {
    fn due_schedules(&self, limit: usize) -> Pending<'_, Result<DueSchedules>> {
        self.call(|to| &to.sweep, read::DueSchedulesOp(limit))
    }

    fn find_schedules(&self, names: Vec<ScheduleName>) -> Pending<'_, Result<Vec<Option<Schedule>>>> {
        self.call(|to| &to.read, read::FindSchedules(names))
    }

    fn list_schedules(
        &self,
        after: Option<ScheduleName>,
        limit: usize,
    ) -> Pending<'_, Result<Vec<Schedule>>> {
        self.call(|to| &to.read, read::ListSchedules { after, limit })
    }

    fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Pending<'_, Result<Vec<Written>>> {
        self.call(|to| &to.sweep, op::schedules::WriteSchedules(writes))
    }
}
