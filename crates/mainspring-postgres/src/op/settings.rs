//! Settings of queues, and their deletion.

use std::collections::BTreeMap;

use mainspring_core::name::QueueName;
use mainspring_core::store::{Counts, Queue, QueueChange, Retention, Settings};
use mainspring_core::time::micros;

use super::limits::totals::DropTotal;
use super::{Confirm, Op};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names::{self, Lock, QueueRow};
use crate::read::state_of;
use crate::shared::Shared;
use crate::sql::{Query, statement};

statement! {
    /// Unique index of names, looked at first: a conflict would use up a number each time.
    pub(crate) AddQueue<'a> = "settings.add", by ["queues_name_key"],
    (name: &'a str, retain_succeeded: i64, retain_failed: i64);
    "INSERT INTO mainspring.queues (name, retain_succeeded, retain_failed)
    SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT 1 FROM mainspring.queues WHERE name = $1)"
}
statement! {
    /// Unique index of names.
    pub(crate) FindQueue<'a> = "settings.queue", by ["queues_name_key"], (name: &'a str) -> QueueRow;
    "SELECT no, name, paused, backoff, retain_succeeded, retain_failed, deleted
    FROM mainspring.queues WHERE name = $1"
}
statement! {
    /// Primary key.
    pub(crate) Set<'a> = "settings.set", by ["queues_pkey"],
    (
        no: i32, paused: bool, backoff: Option<String>, retain_succeeded: i64, retain_failed: i64, deleted: bool,
    );
    "UPDATE mainspring.queues SET paused = $2, backoff = $3, retain_succeeded = $4, retain_failed = $5,
        deleted = $6
    WHERE no = $1"
}
statement! {
    /// Unique index of names; the whole of small tables, as for all counts. A job that another transaction is about to store is not
    /// seen and waits for nobody: once it is, its queue is there again.
    pub(crate) CountQueue<'a> = "settings.count", by ["queues_name_key"],
    (name: &'a str) -> StateCount { state: i16, count: i64 };
    "SELECT c.state, sum(c.n)::bigint FROM (
        SELECT line, state, n FROM mainspring.counts
        UNION ALL SELECT line, state, n FROM mainspring.count_deltas) c
    JOIN mainspring.lines l ON l.no = c.line JOIN mainspring.queues q ON q.no = l.queue
    WHERE q.name = $1 GROUP BY c.state HAVING sum(c.n) > 0"
}
statement! {
    /// Primary key: tells other processes to read the settings again.
    pub(crate) AddChange = "settings.changed", by ["meta_pkey"], ();
    "INSERT INTO mainspring.meta AS m (key, value) VALUES ('settings', '1')
    ON CONFLICT (key) DO UPDATE SET value = (m.value::bigint + 1)::text"
}

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
        let calls = [
            // Whoever holds it is alone with the queues, and every later statement sees what those before him have committed.
            Lock { class: &class }.call(),
            AddQueue { name: &name, retain_succeeded: &succeeded, retain_failed: &failed }.call(),
            FindQueue { name: &name }.call(),
        ];
        let rows = conn.begin(shared, "", &calls).await?.pop().unwrap_or_default();
        let row = FindQueue::first(&rows)?;
        let row = row.ok_or_else(|| corrupt("a queue that was just added is missing"))?;
        let deleted = row.deleted;
        let (no, mut queue) = row.read()?;
        let before = queue.settings.clone();
        self.change.apply(&mut queue.settings);
        if queue.settings == before && !deleted {
            conn.end(&[]).await?;
            learn(conn, shared).await;
        } else {
            set(conn, shared, no, (&before, &queue.settings), None).await?;
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
            Lock { class: &class }.call(),
            FindQueue { name: &name }.call(),
            CountQueue { name: &name }.call(),
        ];
        let rows = conn.begin(shared, "", &calls).await?;
        let mut states = BTreeMap::new();
        for StateCount { state, count } in CountQueue::rows(&rows[2])? {
            states.insert(state_of(state)?, u64::try_from(count).unwrap_or(0));
        }
        let empty = Counts(BTreeMap::from([(self.0.clone(), states)])).check_empty(&self.0);
        let there = FindQueue::first(&rows[1])?.filter(|row| !row.deleted);
        match (empty, there) {
            (Ok(()), Some(row)) => {
                let (no, queue) = row.read()?;
                set(conn, shared, no, (&queue.settings, &Settings::default()), Some(&self.0)).await?;
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
    deleted_queue: Option<&QueueName>,
) -> Result<()> {
    let deleted = deleted_queue.is_some();
    let backoff = settings.backoff.map(|backoff| backoff.to_string());
    let succeeded = micros(settings.retention.succeeded.0);
    let failed = micros(settings.retention.failed.0);
    let set = Set {
        no: &no,
        paused: &settings.paused,
        backoff: &backoff,
        retain_succeeded: &succeeded,
        retain_failed: &failed,
        deleted: &deleted,
    };
    let name = deleted_queue.map_or("", QueueName::as_str);
    let mut calls = vec![set.call(), AddChange.call()];
    if deleted {
        calls.push(DropTotal { name: &name }.call());
    }
    conn.end(&calls).await?;
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
        tracing::debug!(?fault, "cannot refresh settings");
    }
}

statement! {
    /// Whoever stores, claims or ends jobs writes to these.
    pub(crate) LockWritten = "settings.lock_written", whole ("it locks tables"), ();
    "LOCK TABLE mainspring.jobs, mainspring.ready, mainspring.limited, mainspring.timers, mainspring.suspended,
    mainspring.lease, mainspring.done, mainspring.superseded, mainspring.errors, mainspring.steps, mainspring.inbox,
    mainspring.output, mainspring.children, mainspring.ends, mainspring.keys, mainspring.deadlines, mainspring.tags,
    mainspring.progress, mainspring.limits, mainspring.limit_keys, mainspring.limit_groups, mainspring.limited_jobs,
    mainspring.group_turns, mainspring.blocked_groups, mainspring.kept_units, mainspring.returned_units, mainspring.schedules, mainspring.audit, mainspring.nodes, mainspring.counts, mainspring.count_deltas IN ROW EXCLUSIVE MODE"
}
statement! {
    /// A writer that waits longer than this fails.
    pub(crate) WaitShortly = "settings.wait_shortly", whole ("it touches no table"), ();
    "SELECT set_config('lock_timeout', '2s', true)"
}
statement! {
    /// Primary key: a row that nobody else sees.
    pub(crate) TryInsert = "settings.try_insert", whole ("it appends"), ();
    "INSERT INTO mainspring.count_deltas (n, line, state) VALUES (0, 0, 0)"
}
statement! {
    pub(crate) TryDelete = "settings.try_delete", whole ("`count_deltas` has few rows"), ();
    "DELETE FROM mainspring.count_deltas WHERE n = 0 AND line = 0"
}

/// Takes the locks of writers on all tables, writes, and takes it back in the same transaction.
pub(crate) struct TryWrite;

impl Op for TryWrite {
    type Answer = ();

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<()> {
        let calls =
            [WaitShortly.call(), LockWritten.call(), TryInsert.call(), TryDelete.call(), Confirm.call()];
        conn.commit(shared, &calls).await.map(drop)
    }
}
