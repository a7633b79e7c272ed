//! Settings of queues, and their deletion.

use std::collections::BTreeMap;

use mainspring_core::name::QueueName;
use mainspring_core::store::{Counts, Queue, QueueChange, Retention, Settings};
use mainspring_core::time::micros;
use tokio_postgres::types::Type;

use super::{CONFIRM, Op};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names::{self, read_queue};
use crate::read::state_of;
use crate::shared::Shared;
use crate::sql::Call;

/// Advisory lock: the one that names are added under. Who holds it is alone with the queues, and every later statement
/// sees what those before him have committed.
const LOCK: &str = "SELECT pg_advisory_xact_lock($1, -1)";
/// Unique index of names, looked at first: a conflict would use up a number each time.
const ADD: &str = "INSERT INTO mainspring.queues (name, retain_succeeded, retain_failed)
    SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT 1 FROM mainspring.queues WHERE name = $1)";
/// Unique index of names.
const QUEUE: &str = "SELECT no, name, paused, backoff, retain_succeeded, retain_failed, deleted
    FROM mainspring.queues WHERE name = $1";
/// Primary key.
const SET: &str =
    "UPDATE mainspring.queues SET paused = $2, backoff = $3, retain_succeeded = $4, retain_failed = $5,
        deleted = $6
    WHERE no = $1";
/// Unique index of names; the whole of small tables, as for all counts. A job that another transaction is about to store is not
/// seen and waits for nobody: once it is, its queue is there again.
const COUNTS: &str = "SELECT c.state, sum(c.n)::bigint FROM (
        SELECT line, state, n FROM mainspring.counts
        UNION ALL SELECT line, state, n FROM mainspring.count_deltas) c
    JOIN mainspring.lines l ON l.no = c.line JOIN mainspring.queues q ON q.no = l.queue
    WHERE q.name = $1 GROUP BY c.state HAVING sum(c.n) > 0";
/// Primary key: tells other processes to read the settings again.
const CHANGED: &str = "INSERT INTO mainspring.meta AS m (key, value) VALUES ('settings', '1')
    ON CONFLICT (key) DO UPDATE SET value = (m.value::bigint + 1)::text";

/// Changes a queue's settings, creating it if need be.
pub(crate) struct Configure {
    pub(crate) queue: QueueName,
    pub(crate) change: QueueChange,
}

impl Op for Configure {
    type Answer = Queue;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Queue> {
        self.change.check()?;
        let (class, name, retention) = (shared.class(), self.queue.as_str(), Retention::default());
        let (succeeded, failed) = (micros(retention.succeeded.0), micros(retention.failed.0));
        let add = vec![(&name as _, Type::TEXT), (&succeeded as _, Type::INT8), (&failed as _, Type::INT8)];
        let calls = [
            Call::new(LOCK, vec![(&class, Type::INT4)]),
            Call::new(ADD, add),
            Call::new(QUEUE, vec![(&name, Type::TEXT)]),
        ];
        let rows = conn.begin(shared, "", &calls).await?.pop().unwrap_or_default();
        let row = rows.first().ok_or_else(|| corrupt("a queue that was just added is missing"))?;
        let (no, mut queue) = read_queue(row)?;
        let before = queue.settings.clone();
        self.change.apply(&mut queue.settings);
        if queue.settings == before && !row.get::<_, bool>(6) {
            conn.end(&[]).await?;
            learn(conn, shared).await;
        } else {
            set(conn, shared, no, (&before, &queue.settings), false).await?;
        }
        Ok(queue)
    }
}

/// Forgets a queue that has no jobs.
pub(crate) struct DeleteQueue(pub(crate) QueueName);

impl Op for DeleteQueue {
    type Answer = bool;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<bool> {
        let (class, name) = (shared.class(), self.0.as_str());
        let calls = [
            Call::new(LOCK, vec![(&class, Type::INT4)]),
            Call::new(QUEUE, vec![(&name, Type::TEXT)]),
            Call::new(COUNTS, vec![(&name, Type::TEXT)]),
        ];
        let rows = conn.begin(shared, "", &calls).await?;
        let mut states = BTreeMap::new();
        for row in &rows[2] {
            states.insert(state_of(row.get(0))?, u64::try_from(row.get::<_, i64>(1)).unwrap_or(0));
        }
        let empty = Counts(BTreeMap::from([(self.0.clone(), states)])).check_empty(&self.0);
        let there = rows[1].first().filter(|row| !row.get::<_, bool>(6));
        match (empty, there) {
            (Ok(()), Some(row)) => {
                let (no, queue) = read_queue(row)?;
                set(conn, shared, no, (&queue.settings, &Settings::default()), true).await?;
                Ok(true)
            }
            (empty, _) => {
                conn.end(&[]).await?;
                Ok(empty.map(|()| false)?)
            }
        }
    }
}

/// Writes a queue's settings, from some to others, ends the transaction and tells of it.
async fn set(
    conn: &mut Conn,
    shared: &Shared,
    no: i32,
    (before, settings): (&Settings, &Settings),
    deleted: bool,
) -> Result<()> {
    let backoff = settings.backoff.map(|backoff| backoff.to_string());
    let succeeded = micros(settings.retention.succeeded.0);
    let failed = micros(settings.retention.failed.0);
    let args = vec![
        (&no as _, Type::INT4),
        (&settings.paused as _, Type::BOOL),
        (&backoff as _, Type::TEXT),
        (&succeeded as _, Type::INT8),
        (&failed as _, Type::INT8),
        (&deleted as _, Type::BOOL),
    ];
    conn.end(&[Call::new(SET, args), Call::new(CHANGED, Vec::new())]).await?;
    learn(conn, shared).await;
    if before.paused && !settings.paused {
        let mut hints = Hints::default();
        hints.queue(no);
        hints.send(conn, shared).await;
    }
    Ok(())
}

/// Reads settings again after a change is made. Who does not know of it yet finds out by the counter, and so does this handle.
async fn learn(conn: &mut Conn, shared: &Shared) {
    if let Err(fault) = names::refresh(conn, shared).await {
        tracing::debug!(?fault, "settings were not read again");
    }
}

/// Whoever stores, claims or ends jobs writes to these.
const WRITTEN: &str = "LOCK TABLE mainspring.jobs, mainspring.ready, mainspring.timers, mainspring.suspended,
    mainspring.lease, mainspring.done, mainspring.superseded, mainspring.errors, mainspring.steps, mainspring.inbox,
    mainspring.output, mainspring.children, mainspring.ends, mainspring.keys, mainspring.deadlines, mainspring.tags,
    mainspring.progress, mainspring.nodes, mainspring.counts, mainspring.count_deltas IN ROW EXCLUSIVE MODE";
/// A writer that waits longer than this fails.
const SOON: &str = "SELECT set_config('lock_timeout', '2s', true)";
/// Primary key: a row that nobody else sees.
const TRY: &str = "INSERT INTO mainspring.count_deltas (n, line, state) VALUES (0, 0, 0)";
const FORGET: &str = "DELETE FROM mainspring.count_deltas WHERE n = 0 AND line = 0";

/// Takes the locks of writers on all tables, writes, and takes it back in the same transaction.
pub(crate) struct TryWrite;

impl Op for TryWrite {
    type Answer = ();

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        let calls = [SOON, WRITTEN, TRY, FORGET, CONFIRM].map(|sql| Call::new(sql, Vec::new()));
        conn.commit(shared, &calls).await.map(drop)
    }
}
