//! Connections: each kind of work has one of its own.
//!
//! A shared connection is made when it is first needed, and again when it broke. Work on it is serial. What can be
//! sent at once is: a transaction of several statements is one round trip.
//!
//! # Invariants
//! - A connection is checked in only if no transaction is open on it.
//! - After a failed attempt to connect nobody tries again before a pause, which grows and is never the same for two
//!   processes: a database that comes back is not met by everybody at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use mainspring_core::error::OpenProblem;
use mainspring_core::store::flags;
use mainspring_core::{Error, fault};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Mutex, MutexGuard};
use tokio_postgres::{Client, Row, Statement};

use crate::address::Address;
use crate::connect;
use crate::error::Result;
use crate::options::StatementGate;
use crate::shared::Shared;
use crate::sql::{Call, in_schema};

/// Pauses after a failed attempt to connect: first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// The part of a call's time for which a job that comes in waits for a lock.
const PATIENCE: u32 = 5;

/// What the statements of a connection are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Few statements, again and again: planned once, by their indexes.
    Hot,
    /// The same for jobs that come in. They wait for a lock for a short time only: a caller's open transaction may have
    /// it, and others are behind them.
    Enqueue,
    /// Whatever operators ask: planned each time, as the database thinks best.
    Read,
}

/// Hot statements are written for their indexes. A plan that was made while a table was empty must not outlive that.
const PINNED: [&str; 7] = [
    "plan_cache_mode = force_generic_plan",
    "enable_seqscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "enable_bitmapscan = off",
    "enable_material = off",
    "jit = off",
];

/// One connection and who may use it.
pub(crate) struct SharedConnection {
    usage: Use,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    conn: Option<Conn>,
    /// When somebody may try to connect again, on the monotonic clock, and how long the next pause is.
    pause: Option<(Duration, Duration)>,
    why: String,
}

impl SharedConnection {
    pub(crate) fn new(usage: Use) -> Self {
        SharedConnection { usage, state: Mutex::default() }
    }

    /// The connection for oneself, connected.
    pub(crate) async fn check_out(&self, shared: &Shared) -> mainspring_core::Result<Checkout<'_>> {
        let mut state = self.state.lock().await;
        let conn = match state.conn.take().filter(|conn| conn.serves(shared)) {
            Some(conn) => conn,
            None => state.connect(self.usage, shared).await?,
        };
        Ok(Checkout { state, conn: Some(conn) })
    }
}

impl State {
    async fn connect(&mut self, usage: Use, shared: &Shared) -> mainspring_core::Result<Conn> {
        let now = shared.monotonic();
        if let Some((until, _)) = self.pause
            && now < until
        {
            return Err(Error::unavailable(self.why.clone()));
        }
        match Conn::open_in_time(usage, shared).await {
            Ok(conn) => {
                self.pause = None;
                Ok(conn)
            }
            Err(error) => {
                // Well below the lease: whoever is back first must not judge those that still pause.
                let longest = BACKOFF.1.min(shared.timeout() / 2);
                let next = self.pause.map_or(BACKOFF.0, |(_, last)| (last * 2).min(longest));
                self.pause =
                    Some((shared.monotonic() + next.mul_f64(0.5 + shared.rng.next_unit() / 2.0), next));
                self.why = error.to_string();
                // What is refused today may be let in again tomorrow: once it is open, a store is never given up.
                Err(Error::Unavailable { why: self.why.clone(), source: source(error) })
            }
        }
    }
}

/// A shared connection in somebody's hands. Dropped in the middle of something, it is closed.
pub(crate) struct Checkout<'a> {
    state: MutexGuard<'a, State>,
    conn: Option<Conn>,
}

impl Checkout<'_> {
    pub(crate) fn conn(&mut self) -> Option<&mut Conn> {
        self.conn.as_mut()
    }

    /// Gives the connection back, if nothing is open on it.
    pub(crate) fn check_in(mut self) {
        self.state.conn = self.conn.take().filter(|conn| !conn.open && !conn.client.is_closed());
    }
}

/// A connection.
pub(crate) struct Conn {
    pub(crate) client: Client,
    schema: Arc<str>,
    /// Behind a pooler, nothing of a session outlives a transaction.
    pooled: bool,
    usage: Use,
    /// By the statements' names.
    prepared: BTreeMap<&'static str, Statement>,
    /// Whether a transaction is open.
    open: bool,
    /// Whether jobs have ended that kept units of limits while they waited: those are to be counted.
    units_left: bool,
    /// The time-out that its session was set up with.
    timeout: Duration,
    /// Who lets each message pass, in tests of what happens between two of them.
    gate: Option<Arc<dyn StatementGate>>,
}

impl Conn {
    pub(crate) async fn open(usage: Use, shared: &Shared) -> mainspring_core::Result<Conn> {
        Conn::open_at(usage, shared, &shared.options.address, None, None).await
    }

    /// A connection for a call, which may not take longer than a call: the lease must not lapse over it.
    async fn open_in_time(usage: Use, shared: &Shared) -> mainspring_core::Result<Conn> {
        let limit = shared.timeout();
        let opening = Conn::open_at(usage, shared, &shared.options.address, Some(limit), None);
        let opened = tokio::time::timeout(limit, opening).await;
        opened.unwrap_or_else(|_| Err(Error::unavailable("the database did not answer in time")))
    }

    /// A connection to an address, whose notifications go to `notifications`. `limit`: how long the caller waits at most.
    pub(crate) async fn open_at(
        usage: Use,
        shared: &Shared,
        address: &Address,
        limit: Option<Duration>,
        notifications: Option<UnboundedSender<String>>,
    ) -> mainspring_core::Result<Conn> {
        let client = connect::client(shared, address, limit, notifications).await?;
        let conn = Conn {
            client,
            schema: Arc::clone(&shared.schema),
            pooled: address.is_pooled(),
            usage,
            prepared: BTreeMap::new(),
            open: false,
            units_left: false,
            timeout: shared.timeout(),
            gate: shared.options.gate.clone(),
        };
        if !conn.pooled {
            let sets = conn.settings(shared).map(|set| format!("SET {set}")).collect::<Vec<_>>().join(";");
            connect::answered(shared, async {
                let set = conn.client.batch_execute(&sets).await;
                set.map_err(|error| connect::failed(shared, OpenProblem::Refused, &error))
            })
            .await?;
        }
        Ok(conn)
    }

    /// Whether it can be used as it is: a session that was set up before a node with a shorter lease joined gives its
    /// statements too much time.
    fn serves(&self, shared: &Shared) -> bool {
        !self.client.is_closed() && self.timeout == shared.timeout()
    }

    /// What a session, or behind a pooler each transaction, is set to.
    fn settings(&self, shared: &Shared) -> impl Iterator<Item = String> {
        let pinned = PINNED.iter().filter(|_| self.usage != Use::Read).map(|&set| set.to_owned());
        let short = (self.usage == Use::Enqueue)
            .then(|| format!("lock_timeout = {}", (shared.timeout() / PATIENCE).as_millis()));
        pinned.chain(shared.session()).chain(short).collect::<Vec<_>>().into_iter()
    }

    /// Runs statements in a transaction of their own, all sent at once. One list of rows per statement.
    pub(crate) async fn commit(&mut self, shared: &Shared, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>> {
        if let ([call], false) = (calls, self.pooled) {
            return Ok(vec![self.send(call).await?]);
        }
        self.prepare(calls).await?;
        self.open = true;
        fault::point!("postgres.sending");
        let begin = self.begin_text(shared, "");
        let this = &*self;
        let rows = if let Some(gate) = &this.gate {
            this.one_by_one(&**gate, Some(&begin), calls, true).await
        } else {
            let begun = this.client.batch_execute(&begin);
            let sent = join_all(calls.iter().map(|call| this.send_prepared(call)));
            let committed = this.client.batch_execute("COMMIT");
            let (begun, sent, committed, ()) = tokio::join!(biased; begun, sent, committed, under_way());
            first_error(begun, sent, committed)
        };
        fault::point!("postgres.answered");
        self.open = matches!(&rows, Err(error) if !crate::error::answered(error));
        Ok(rows?)
    }

    /// Begins a transaction, with its first statements.
    pub(crate) async fn begin(
        &mut self,
        shared: &Shared,
        mode: &str,
        calls: &[Call<'_>],
    ) -> Result<Vec<Vec<Row>>> {
        self.prepare(calls).await?;
        self.open = true;
        let begin = self.begin_text(shared, mode);
        let this = &*self;
        if let Some(gate) = &this.gate {
            return Ok(this.one_by_one(&**gate, Some(&begin), calls, false).await?);
        }
        let begun = this.client.batch_execute(&begin);
        let sent = join_all(calls.iter().map(|call| this.send_prepared(call)));
        let (begun, sent) = tokio::join!(biased; begun, sent);
        Ok(first_error(begun, sent, Ok(()))?)
    }

    /// Notes the flags of a job that has ended while it waited.
    pub(crate) fn note_ended(&mut self, flags: i16) {
        self.units_left |= flags & flags::KEEPS != 0;
    }

    /// Whether there are units to be counted since the last time.
    pub(crate) fn take_units_left(&mut self) -> bool {
        std::mem::take(&mut self.units_left)
    }

    /// Whether a transaction is open.
    pub(crate) fn in_transaction(&self) -> bool {
        self.open
    }

    /// Goes on in a transaction.
    pub(crate) async fn step(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>> {
        self.prepare(calls).await?;
        let this = &*self;
        if let Some(gate) = &this.gate {
            return Ok(this.one_by_one(&**gate, None, calls, false).await?);
        }
        let sent = join_all(calls.iter().map(|call| this.send_prepared(call))).await;
        Ok(first_error(Ok(()), sent, Ok(()))?)
    }

    /// Ends a transaction with its last statements.
    pub(crate) async fn end(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>> {
        self.prepare(calls).await?;
        let this = &*self;
        let rows = if let Some(gate) = &this.gate {
            this.one_by_one(&**gate, None, calls, true).await
        } else {
            let sent = join_all(calls.iter().map(|call| this.send_prepared(call)));
            let committed = this.client.batch_execute("COMMIT");
            let (sent, committed) = tokio::join!(biased; sent, committed);
            first_error(Ok(()), sent, committed)
        };
        self.open = matches!(&rows, Err(error) if !crate::error::answered(error));
        Ok(rows?)
    }

    /// Ends a transaction that was given up.
    pub(crate) async fn roll_back(&mut self) {
        if let (Some(gate), true) = (&self.gate, self.open) {
            gate.pass("ROLLBACK").await;
        }
        if self.open && self.client.batch_execute("ROLLBACK").await.is_ok() {
            self.open = false;
        }
    }

    /// Sends a statement and does not wait for its answer.
    pub(crate) async fn send_unanswered(&mut self, call: &Call<'_>) -> Result<()> {
        self.prepare(std::slice::from_ref(call)).await?;
        let mut sent = std::pin::pin!(self.send_prepared(call));
        // The first poll sends it; answers that nobody waits for are thrown away.
        let polled = std::future::poll_fn(|context| Poll::Ready(sent.as_mut().poll(context))).await;
        match polled {
            Poll::Ready(Err(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// One statement in a transaction of its own, or in the one that is open.
    pub(crate) async fn send(&mut self, call: &Call<'_>) -> Result<Vec<Row>> {
        self.prepare(std::slice::from_ref(call)).await?;
        if let Some(gate) = &self.gate {
            gate.pass(call.sql).await;
        }
        Ok(self.send_prepared(call).await?)
    }

    /// One statement, as it is: before the session's first transaction.
    pub(crate) async fn ask(&self, call: &Call<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.send_prepared(call).await
    }

    /// Sends what is otherwise sent at once one message at a time, each when the gate lets it pass.
    async fn one_by_one(
        &self,
        gate: &dyn StatementGate,
        begin: Option<&str>,
        calls: &[Call<'_>],
        end: bool,
    ) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
        let mut begun = Ok(());
        if let Some(begin) = begin {
            gate.pass("BEGIN").await;
            begun = self.client.batch_execute(begin).await;
        }
        let mut sent = Vec::with_capacity(calls.len());
        for call in calls {
            gate.pass(call.sql).await;
            sent.push(self.send_prepared(call).await);
            if sent.last().is_some_and(Result::is_err) {
                break;
            }
        }
        let mut committed = Ok(());
        if end {
            // A transaction that has failed is rolled back by it.
            gate.pass("COMMIT").await;
            committed = self.client.batch_execute("COMMIT").await;
        }
        first_error(begun, sent, committed)
    }

    fn begin_text(&self, shared: &Shared, mode: &str) -> String {
        // Behind a pooler a database's default cannot be set aside for the session; and what we lock in one statement we
        // look at in the next.
        let mode = if mode.is_empty() { "ISOLATION LEVEL READ COMMITTED" } else { mode };
        let mut text = format!("BEGIN {mode};");
        if self.pooled {
            text.extend(self.settings(shared).map(|set| format!("SET LOCAL {set};")));
        }
        text
    }

    async fn send_prepared(&self, call: &Call<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self.prepared.get(call.name) {
            Some(statement) => {
                let args: Vec<_> = call.args.iter().map(|(arg, _)| *arg).collect();
                self.client.query(statement, &args).await
            }
            // Behind a pooler, or nobody prepared it.
            None => self.client.query_typed(&in_schema(call.sql, &self.schema), &call.args).await,
        }
    }

    async fn prepare(&mut self, calls: &[Call<'_>]) -> Result<()> {
        if self.pooled || self.usage == Use::Read {
            return Ok(());
        }
        for call in calls {
            if !self.prepared.contains_key(call.name) {
                let types: Vec<_> = call.args.iter().map(|(_, kind)| kind.clone()).collect();
                let sql = in_schema(call.sql, &self.schema);
                let statement = self.client.prepare_typed(&sql, &types).await?;
                self.prepared.insert(call.name, statement);
            }
        }
        Ok(())
    }
}

/// Comes by a failure point when all has left for the database, and nothing has come back yet.
#[cfg(debug_assertions)]
async fn under_way() {
    // What drives the connection has its turn before.
    tokio::task::yield_now().await;
    fault::point!("postgres.sent");
}

/// Nothing, outside of tests.
#[cfg(not(debug_assertions))]
async fn under_way() {}

/// What is behind a failure to connect.
fn source(error: Error) -> Option<mainspring_core::error::BoxError> {
    match error {
        Error::Open { source, .. } => source,
        other => Some(other.into()),
    }
}

/// All rows, or what went wrong first: later statements only say that the transaction has failed.
fn first_error(
    begun: Result<(), tokio_postgres::Error>,
    sent: Vec<Result<Vec<Row>, tokio_postgres::Error>>,
    committed: Result<(), tokio_postgres::Error>,
) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
    begun?;
    let rows = sent.into_iter().collect::<Result<Vec<_>, _>>()?;
    committed?;
    Ok(rows)
}
