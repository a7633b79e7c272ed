//! Enqueue: jobs come in.
//!
//! Jobs without unique keys are one statement of plain inserts. If an id is there already, or if there are keys, the
//! batch is gone through with care: what is held is looked up first, under the locks of the keys.
//!
//! # Invariants
//! - A repeated id changes nothing.
//! - Nobody waits for a key that an open transaction is about to take: its job is set aside. So is one whose id such a
//!   transaction has.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::id::JobId;
use mainspring_core::job::{New, OnConflict, Unique, When};
use mainspring_core::store::{Receipt, TicketLine, flags};
use mainspring_core::tables::options::options_text;
use mainspring_core::time::micros;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::contended_ids::Tried;
use super::family::{self, UnsentEnd};
use super::places::{count, end_waiting, enter_ready, leave_waiting, lock_waiting, waits};
use super::same_id::{self, meet};
use super::share::Shares;
use super::{Confirm, Op, contended_ids, key, now};
use crate::connection::Conn;
use crate::error::{Fault, Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::{At, Call, Present, Query, statement};

/// New jobs, from arrays of their columns, into `jobs` and their first places. `$now` is the store's time, `$no` a job's
/// number, `$new` what becomes of a job whose id is there already, `$stored` tells the others apart, and `$answer` is what is
/// returned.
macro_rules! insert {
    ($now:expr, $no:expr, $new:expr, $stored:expr, $answer:expr) => {
        $crate::op::enqueue::insert!($now, $no, $new, $stored, $answer, "", "", "", "", "")
    };
    ($now:expr, $no:expr, $new:expr, $stored:expr, $answer:expr, limited) => {
        $crate::op::enqueue::insert!(
            $now,
            $no,
            $new,
            $stored,
            $answer,
            ", u.limit_group",
            ", $12::int[]",
            ", limit_group",
            " AND n.limit_group IS NULL",
            concat!(
                $crate::op::places::enter_limited!(concat!(
                    "(SELECT n.no, n.line, n.limit_group, 0 AS claim, ({level.fresh} + n.priority)::smallint AS level,
                    0 AS failures, 0 AS crashes, 0 AS crashed, n.flags
                    FROM n WHERE n.run_at IS NULL AND n.limit_group IS NOT NULL AND ",
                    $stored,
                    ") e"
                )),
                "
            , of_groups AS (INSERT INTO mainspring.limited_jobs (no, limit_group)
                SELECT n.no, n.limit_group FROM n WHERE n.limit_group IS NOT NULL AND ",
                $stored,
                ")"
            )
        )
    };
    (
        $now:expr, $no:expr, $new:expr, $stored:expr, $answer:expr, $group:expr, $arrays:expr, $names:expr, $plain:expr,
        $limited:expr
    ) => {
        concat!(
            "WITH ",
            $now,
            ", n AS MATERIALIZED (
                SELECT ",
            $no,
            " AS no, u.id, u.line, u.priority, u.options::jsonb AS options, u.input, u.flags",
            $group,
            ",
                    CASE WHEN w.run_at > t.now THEN w.run_at END AS run_at,
                    coalesce(timestamptz 'epoch' + u.deadline_at * interval '1 us',
                        t.now + u.deadline_after * interval '1 us') AS deadline
                FROM t CROSS JOIN unnest($2::uuid[], $3::int[], $4::smallint[], $5::bigint[], $6::bigint[],
                        $7::bigint[], $8::bigint[], $9::text[], $10::bytea[], $11::smallint[]",
            $arrays,
            ")
                    AS u(id, line, priority, run_at, run_after, deadline_at, deadline_after, options, input, flags",
            $names,
            ")
                CROSS JOIN LATERAL (SELECT coalesce(timestamptz 'epoch' + u.run_at * interval '1 us',
                    t.now + u.run_after * interval '1 us') AS run_at) w)
            , j AS (INSERT INTO mainspring.jobs (no, id, created_at, deadline, line, priority, options, input)
                SELECT n.no, n.id, t.now, n.deadline, n.line, n.priority, n.options, n.input FROM n, t ",
            $new,
            ")",
            $crate::op::places::enter_ready!(concat!(
                "(SELECT n.no, n.line, 0 AS claim, ({level.fresh} + n.priority)::smallint AS level, 0 AS failures,
                    0 AS crashes, 0 AS crashed, n.flags FROM n WHERE n.run_at IS NULL",
                $plain,
                " AND ",
                $stored,
                ") e"
            )),
            $limited,
            $crate::op::places::enter_timers!(concat!(
                "(SELECT n.no, n.run_at AS due, n.line, 0 AS claim, n.priority, 0 AS failures, 0 AS crashes, 0 AS crashed,
                    n.flags FROM n WHERE n.run_at IS NOT NULL AND ",
                $stored,
                ") e"
            )),
            "
            , z AS (INSERT INTO mainspring.deadlines (no, at)
                SELECT n.no, n.deadline FROM n WHERE n.deadline IS NOT NULL AND ",
            $stored,
            ")
            , g AS (INSERT INTO mainspring.tags (tag, no)
                SELECT DISTINCT x.tag, n.no FROM n, jsonb_array_elements_text(n.options -> 'tags') AS x(tag)
                WHERE n.options ? 'tags' AND ",
            $stored,
            ")
            , c AS (INSERT INTO mainspring.count_deltas (line, state, n)
                SELECT n.line, CASE WHEN n.run_at IS NULL THEN {state.ready} ELSE {state.scheduled} END, count(*)
                FROM n WHERE ",
            $stored,
            " GROUP BY 1, 2) ",
            $answer
        )
    };
}
pub(crate) use insert;

statement! {
    /// Appends; the unique index of ids refuses a repeat. Numbers follow the order of the batch.
    pub(crate) Insert<'a> = "enqueue.insert", whole ("it appends"),
    (
        at: Present, ids: Vec<Uuid>, lines: Vec<i32>, priorities: Vec<i16>, run_at: Vec<Option<i64>>,
        run_after: Vec<Option<i64>>, deadline_at: Vec<Option<i64>>, deadline_after: Vec<Option<i64>>,
        options: Vec<Option<String>>, inputs: Vec<&'a [u8]>, flags: Vec<i16>,
    )
    -> Entered {
        now: At, line: Option<i32>, level: Option<i16>, first: Option<i64>, due: Option<At>, limited: Option<bool>,
    };
    insert!(
    now!(),
    "nextval('mainspring.job_numbers')",
    "",
    "true",
    "SELECT t.now, s.line, s.level, s.first, s.due, false FROM t LEFT JOIN (
        SELECT n.line, ({level.fresh} + n.priority)::smallint AS level, min(n.no) FILTER (WHERE n.run_at IS NULL) AS first,
            least(min(n.run_at), min(n.deadline)) AS due
        FROM n GROUP BY n.line, n.priority) s ON true"
)
}
statement! {
    /// The same for batches with limited jobs, whose groups are `$12`. Nothing is read and nothing is locked.
    pub(crate) InsertLimited<'a> = "enqueue.insert_limited", whole ("it appends"),
    (
        at: Present, ids: Vec<Uuid>, lines: Vec<i32>, priorities: Vec<i16>, run_at: Vec<Option<i64>>,
        run_after: Vec<Option<i64>>, deadline_at: Vec<Option<i64>>, deadline_after: Vec<Option<i64>>,
        options: Vec<Option<String>>, inputs: Vec<&'a [u8]>, flags: Vec<i16>, groups: Vec<Option<i32>>,
    )
    -> Entered;
    insert!(
    now!(),
    "nextval('mainspring.job_numbers')",
    "",
    "true",
    "SELECT t.now, s.line, s.level, s.first, s.due, s.limited FROM t LEFT JOIN (
        SELECT n.line, ({level.fresh} + n.priority)::smallint AS level, min(n.no) FILTER (WHERE n.run_at IS NULL) AS first,
            least(min(n.run_at), min(n.deadline)) AS due, n.limit_group IS NOT NULL AS limited
        FROM n GROUP BY n.line, n.priority, limited) s ON true",
    limited
)
}
statement! {
    /// The same for jobs that are ready at once and have neither deadlines nor tags, as most have: what they do not need is not
    /// looked for in every row.
    pub(crate) InsertPlain<'a> = "enqueue.insert_plain", whole ("it appends"),
    (
        at: Present, ids: Vec<Uuid>, lines: Vec<i32>, priorities: Vec<i16>, options: Vec<Option<String>>,
        inputs: Vec<&'a [u8]>, flags: Vec<i16>,
    )
    -> Entered;
    concat!(
    "WITH ",
    now!(),
    ", n AS MATERIALIZED (SELECT nextval('mainspring.job_numbers') AS no, u.id, u.line, u.priority,
            u.options::jsonb AS options, u.input, u.flags
        FROM unnest($2::uuid[], $3::int[], $4::smallint[], $5::text[], $6::bytea[], $7::smallint[])
            AS u(id, line, priority, options, input, flags))
    , j AS (INSERT INTO mainspring.jobs (no, id, created_at, line, priority, options, input)
        SELECT n.no, n.id, (SELECT t.now FROM t), n.line, n.priority, n.options, n.input FROM n)",
    enter_ready!(
        "(SELECT n.no, n.line, 0 AS claim, ({level.fresh} + n.priority)::smallint AS level, 0 AS failures, 0 AS crashes,
            0 AS crashed, n.flags FROM n) e"
    ),
    "
    , g AS MATERIALIZED (SELECT n.line, n.priority, count(*) AS n, min(n.no) AS first FROM n GROUP BY n.line, n.priority)
    , counted AS (INSERT INTO mainspring.count_deltas (line, state, n)
        SELECT g.line, {state.ready}, sum(g.n)::bigint FROM g GROUP BY g.line)
    SELECT t.now, g.line, ({level.fresh} + g.priority)::smallint AS level, g.first, NULL::timestamptz AS due,
        false FROM t, g"
)
}
statement! {
    /// Advisory locks, without waiting.
    pub(crate) TryKeys<'a> = "enqueue.try_keys", whole ("it touches no table"), (numbers: Vec<i64>) -> Tried;
    "SELECT pg_try_advisory_xact_lock(u.number) FROM unnest($1::bigint[]) WITH ORDINALITY AS u(number, o)
    ORDER BY u.o"
}
statement! {
    /// Unique index of ids.
    pub(crate) Known<'a> = "enqueue.known", by ["jobs_id_key"], (ids: Vec<Uuid>) -> KnownJob { id: Uuid };
    "SELECT j.id FROM unnest($1::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE id = u.id OFFSET 0) j"
}
statement! {
    /// Primary key of `keys`.
    pub(crate) Holders<'a> = "enqueue.holders", by ["keys_pkey"],
    (at: Present, kinds: Vec<i32>, keys: Vec<String>)
    -> HolderRow { kind: i32, key: String, id: Uuid, over: Option<bool> };
    concat!(
    "WITH ",
    now!(),
    "SELECT k.kind, k.key, k.id, k.expires_at <= t.now FROM t CROSS JOIN unnest($2::int[], $3::text[]) AS u(kind, key)
    CROSS JOIN LATERAL (SELECT * FROM mainspring.keys WHERE kind = u.kind AND key = u.key OFFSET 0) k"
)
}
statement! {
    /// Primary key of `keys`, however many keys are about to expire: those whose period has ended make room for their next
    /// holders. The locks of the keys are held, so nobody else takes them in between.
    pub(crate) Free<'a> = "enqueue.free_keys", by ["keys_pkey"], (at: Present, kinds: Vec<i32>, keys: Vec<&'a str>);
    concat!(
    "WITH ",
    now!(),
    "DELETE FROM mainspring.keys WHERE ctid = ANY(ARRAY(
        SELECT k.tid FROM t CROSS JOIN unnest($2::int[], $3::text[]) AS u(kind, key)
        CROSS JOIN LATERAL (SELECT ctid AS tid, expires_at FROM mainspring.keys
            WHERE kind = u.kind AND key = u.key OFFSET 0) k
        WHERE k.expires_at <= t.now))"
)
}
statement! {
    /// The locks of the keys are held and nobody holds the keys, so the primary key is not violated.
    pub(crate) Take<'a> = "enqueue.take_keys", by ["jobs_id_key"],
    (kinds: Vec<i32>, names: Vec<&'a str>, ids: Vec<Uuid>, untils: Vec<i16>, periods: Vec<i64>);
    "INSERT INTO mainspring.keys (kind, key, no, id, until, period)
    SELECT u.kind, u.key, j.no, u.id, u.until, u.period
    FROM unnest($1::int[], $2::text[], $3::uuid[], $4::smallint[], $5::bigint[]) AS u(kind, key, id, until, period)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j"
}
statement! {
    /// Primary keys of the waiting places: cancels a job in favour of another, and frees its key. Whoever takes it out of its
    /// place first wins; nothing is returned if that was somebody else.
    pub(crate) Replace<'a> = "enqueue.replace",
    by ["jobs_id_key", "ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "keys_no", "deadlines_pkey"],
    (at: Present, id: Uuid) -> Replaced { no: i64, flags: i16 };
    concat!(
    "WITH ",
    now!(),
    ", x AS MATERIALIZED (SELECT no FROM mainspring.jobs WHERE id = $2)",
    leave_waiting!("ARRAY(SELECT x.no FROM x)"),
    // The key is how it was found.
    "
    , e AS (SELECT w.was, w.no, w.line, w.claim, w.priority, w.failures, w.crashes,
            (w.flags | {flag.key})::smallint AS flags, {state.cancelled} AS state, {reason.replaced} AS reason,
            NULL::text AS note, NULL::bytea AS result FROM w)",
    end_waiting!("e", keys_go),
    count!("e"),
    " SELECT e.no, e.flags FROM e"
)
}
statement! {
    /// Primary keys of `keys` and of the waiting places: what became of a holder that was not where it had been. The lock of
    /// the key is held, so nobody else takes it meanwhile.
    pub(crate) Held<'a> = "enqueue.held", by ["keys_pkey", "ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey"],
    (at: Present, kind: i32, key: String) -> HeldKey { over: Option<bool>, waits: bool };
    concat!(
    "WITH ",
    now!(),
    "SELECT k.expires_at <= t.now, ",
    waits!("k.no"),
    " FROM t CROSS JOIN mainspring.keys k WHERE k.kind = $2 AND k.key = $3"
)
}
statement! {
    /// Unique index of ids, then the primary keys of the waiting places, each in order of the numbers: holders that are about
    /// to be replaced. The batch comes to them in an order of its own, and would wait in a circle with a verb on the same jobs.
    pub(crate) LockHolders<'a> = "enqueue.lock_holders",
    by ["jobs_id_key", "ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey"], (ids: Vec<Uuid>);
    concat!(
    "WITH x AS MATERIALIZED (SELECT j.no FROM unnest($1::uuid[]) AS u(id)
        CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ORDER BY j.no)",
    lock_waiting!("FOR UPDATE"),
    " SELECT (SELECT count(*) FROM in_ready), (SELECT count(*) FROM in_limited), (SELECT count(*) FROM in_timers),
        (SELECT count(*) FROM in_suspended)"
)
}
/// How often a holder that waits is looked for again because others move it.
const ROUNDS: usize = 16;

/// Stores jobs.
pub(crate) struct Enqueue(pub(crate) Vec<New>);

impl Op for Enqueue {
    type Answer = Vec<Receipt>;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Receipt>> {
        let jobs = &self.0;
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let lines = names::lines_of(conn, shared, jobs).await?;
        if !shared.contended_ids.knows(jobs) {
            let keyed = jobs.iter().any(|job| job.options.unique.is_some());
            let stored = if keyed {
                careful(conn, shared, jobs, &lines, false).await
            } else {
                plain(conn, shared, jobs, &lines).await
            };
            match stored {
                Err(Fault::Db(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                    conn.roll_back().await;
                }
                stored => return stored,
            }
        }
        let receipts = careful(conn, shared, jobs, &lines, true).await?;
        shared.contended_ids.note(jobs, &receipts);
        Ok(receipts)
    }
}

/// Stores a batch without keys, at once unless an id is there already.
async fn plain(conn: &mut Conn, shared: &Shared, jobs: &[New], lines: &[TicketLine]) -> Result<Vec<Receipt>> {
    let all: Vec<usize> = (0..jobs.len()).collect();
    let columns = Columns::new(jobs, lines, &all)?;
    let shares = Shares::new(jobs, &all);
    let at = shared.at();
    let calls: Vec<Call<'_>> = [columns.insert(&at)].into_iter().chain(shares.call(&at)).collect();
    match conn.commit(shared, &calls).await {
        Ok(rows) => {
            let entered = Insert::rows(rows.first().map_or(&[], Vec::as_slice))?;
            announce(conn, shared, &entered).await;
            Ok(vec![Receipt::Created; jobs.len()])
        }
        Err(Fault::Db(error)) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {
            careful(conn, shared, jobs, lines, false).await
        }
        Err(fault) => Err(fault),
    }
}

/// Tells where new jobs wait.
pub(crate) async fn announce(conn: &mut Conn, shared: &Shared, entered: &[Entered]) {
    let mut hints = Hints::default();
    for row in entered {
        if let (Some(line), Some(level), Some(first)) = (row.line, row.level, row.first) {
            hints.enter(row.limited == Some(true), (line, level), (row.now.0, first));
        }
        row.due.into_iter().for_each(|due| hints.due(due.0));
    }
    hints.send(conn, shared).await;
}

/// A key as the table has it.
type Key = (i32, String);

/// Goes through a batch one by one, as the model does, and stores as much as possible at once. `ids`: whether to look for
/// ids in the hands of open transactions as well.
async fn careful(
    conn: &mut Conn,
    shared: &Shared,
    jobs: &[New],
    lines: &[TicketLine],
    ids: bool,
) -> Result<Vec<Receipt>> {
    Ok(entered(conn, shared, jobs, lines, ids, |_| true).await?.unwrap_or_default())
}

/// The same in a transaction that is open. `None` if a job is contended: nothing is committed then, and the transaction
/// stays open.
pub(crate) async fn within(
    conn: &mut Conn,
    shared: &Shared,
    jobs: &[New],
    lines: &[TicketLine],
) -> Result<Option<Vec<Receipt>>> {
    entered(conn, shared, jobs, lines, false, |receipts| !receipts.contains(&Receipt::Contended)).await
}

async fn entered(
    conn: &mut Conn,
    shared: &Shared,
    jobs: &[New],
    lines: &[TicketLine],
    ids: bool,
    accepts: impl FnOnce(&[Receipt]) -> bool + Send,
) -> Result<Option<Vec<Receipt>>> {
    let mut batch = Careful::begin(conn, shared, jobs, lines, ids).await?;
    let mut receipts = Vec::with_capacity(jobs.len());
    for index in 0..jobs.len() {
        receipts.push(batch.enter(conn, shared, index).await?);
    }
    if !accepts(&receipts) {
        return Ok(None);
    }
    batch.store(conn, shared, true).await?;
    announce(conn, shared, &batch.stored).await;
    family::notify(conn, shared, batch.unsent).await;
    Ok(Some(receipts))
}

/// A batch on its way in.
struct Careful<'a> {
    jobs: &'a [New],
    lines: &'a [TicketLine],
    /// What is said of jobs whose ids are there already.
    met: BTreeMap<usize, Receipt>,
    /// Ids that this batch stores, and the job of each.
    known: BTreeMap<JobId, usize>,
    holders: BTreeMap<Key, JobId>,
    /// Keys in the hands of open transactions.
    contended: BTreeSet<Key>,
    /// Ids in the hands of open transactions.
    contended_ids: BTreeSet<JobId>,
    /// Keys whose period has ended: to be freed before the next insert.
    over: Vec<Key>,
    /// Some job was stored by an earlier call.
    repeated: bool,
    /// Jobs to be stored.
    pending: Vec<usize>,
    /// What was stored.
    stored: Vec<Entered>,
    /// Jobs that were replaced and whose families are to be told.
    unsent: Vec<UnsentEnd>,
}

impl<'a> Careful<'a> {
    async fn begin(
        conn: &mut Conn,
        shared: &Shared,
        jobs: &'a [New],
        lines: &'a [TicketLine],
        by_id: bool,
    ) -> Result<Self> {
        let keys: BTreeSet<Key> =
            jobs.iter().zip(lines).filter_map(|(job, line)| key_of(job, line)).collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let store = shared.store();
        let numbers: Vec<i64> = keys.iter().map(|(kind, key)| key::lock_number(&store, *kind, key)).collect();
        let ids: Vec<Uuid> = jobs.iter().map(|job| Uuid::from_bytes(*job.id.as_bytes())).collect();
        let mut locks = vec![TryKeys { numbers: &numbers }.call()];
        if by_id {
            locks.push(contended_ids::TryIds { ids: &ids }.call());
        }
        let open = conn.in_transaction();
        let locked = if open { conn.step(&locks).await? } else { conn.begin(shared, "", &locks).await? };
        let tried = |at: usize| TryKeys::rows(locked.get(at).map_or(&[], Vec::as_slice));
        let by_id = jobs.iter().zip(tried(1)?);
        let contended_ids = by_id.filter(|(_, id)| !id.got).map(|(job, _)| job.id).collect();
        let mut contended = BTreeSet::new();
        let (mut kinds, mut texts) = (Vec::new(), Vec::new());
        for (key, lock) in keys.into_iter().zip(tried(0)?) {
            if lock.got {
                kinds.push(key.0);
                texts.push(key.1);
            } else {
                contended.insert(key);
            }
        }
        let at = shared.at();
        // In statements that begin when the locks are held.
        let rows = conn
            .step(&[Known { ids: &ids }.call(), Holders { at: &at, kinds: &kinds, keys: &texts }.call()])
            .await?;
        let [known, holders] = rows.as_slice() else {
            return Err(corrupt("a look at keys without an answer"));
        };
        let known: BTreeSet<JobId> = Known::rows(known)?.into_iter().map(|job| job_id(job.id)).collect();
        let met = meet(conn, jobs, |job| known.contains(&job.id)).await?;
        let mut batch = Careful {
            jobs,
            lines,
            met: met.into_iter().map(|(index, differs)| (index, same_id::receipt(differs))).collect(),
            known: BTreeMap::new(),
            holders: BTreeMap::new(),
            contended,
            contended_ids,
            over: Vec::new(),
            repeated: false,
            pending: Vec::new(),
            stored: Vec::new(),
            unsent: Vec::new(),
        };
        for HolderRow { kind, key, id, over } in Holders::rows(holders)? {
            if over == Some(true) {
                batch.over.push((kind, key));
            } else {
                batch.holders.insert((kind, key), job_id(id));
            }
        }
        batch.lock_holders(conn).await?;
        Ok(batch)
    }

    /// Locks what is to be replaced, if that is more than one job.
    async fn lock_holders(&self, conn: &mut Conn) -> Result<()> {
        let replaces =
            |job: &New| job.options.unique.as_ref().is_some_and(|it| it.on_conflict == OnConflict::Replace);
        let jobs = self.jobs.iter().zip(self.lines).filter(|(job, _)| replaces(job));
        let held: Vec<Uuid> = jobs
            .filter_map(|(job, line)| self.holders.get(&key_of(job, line)?))
            .map(|holder| Uuid::from_bytes(*holder.as_bytes()))
            .collect();
        if held.len() > 1 {
            conn.step(&[LockHolders { ids: &held }.call()]).await?;
        }
        Ok(())
    }

    /// Decides on one job.
    async fn enter(&mut self, conn: &mut Conn, shared: &Shared, index: usize) -> Result<Receipt> {
        let job = &self.jobs[index];
        if let Some(receipt) = self.met.get(&index) {
            self.repeated = true;
            return Ok(*receipt);
        }
        if let Some(&first) = self.known.get(&job.id) {
            return Ok(same_id::receipt(same_id::compare(job, &self.jobs[first])));
        }
        if self.contended_ids.contains(&job.id) {
            return Ok(Receipt::Contended);
        }
        if let (Some(key), Some(unique)) = (key_of(job, &self.lines[index]), &job.options.unique) {
            if self.contended.contains(&key) {
                return Ok(Receipt::Contended);
            }
            if let Some(holder) = self.holders.get(&key).copied() {
                match unique.on_conflict {
                    OnConflict::Keep => return Ok(Receipt::Existing(holder)),
                    OnConflict::Reject => return Ok(Receipt::Rejected(holder)),
                    OnConflict::Replace => {
                        if let Some(receipt) = self.replace(conn, shared, &key, holder).await? {
                            return Ok(receipt);
                        }
                    }
                }
            }
            self.holders.insert(key, job.id);
        }
        self.known.insert(job.id, index);
        self.pending.push(index);
        Ok(Receipt::Created)
    }

    /// Cancels a waiting job in favour of a new one, or says why not.
    async fn replace(
        &mut self,
        conn: &mut Conn,
        shared: &Shared,
        key: &Key,
        holder: JobId,
    ) -> Result<Option<Receipt>> {
        // It may be one of this batch.
        self.store(conn, shared, false).await?;
        let (at, id) = (shared.at(), Uuid::from_bytes(*holder.as_bytes()));
        for _ in 0..ROUNDS {
            let replaced = conn.step(&[Replace { at: &at, id: &id }.call()]).await?.pop().unwrap_or_default();
            if let Some(Replaced { no, flags }) = Replace::first(&replaced)? {
                conn.note_ended(flags);
                let told = flags & flags::TOLD;
                self.unsent.extend((told != 0).then_some((no, told)));
                return Ok(None);
            }
            // It runs or has ended; or somebody has moved it just now, and may have ended it and let the key go.
            let held = Held { at: &at, kind: &key.0, key: &key.1 }.call();
            let Some(held) = Held::first(&conn.step(&[held]).await?.pop().unwrap_or_default())? else {
                return Ok(None);
            };
            if held.over == Some(true) {
                self.over.push(key.clone());
                return Ok(None);
            }
            if !held.waits {
                return Ok(Some(Receipt::Existing(holder)));
            }
        }
        Ok(Some(Receipt::Contended))
    }

    /// Stores what is pending; and ends the transaction, if that was all.
    async fn store(&mut self, conn: &mut Conn, shared: &Shared, end: bool) -> Result<()> {
        let at = shared.at();
        let columns = Columns::new(self.jobs, self.lines, &self.pending)?;
        let keys = Keys::new(self.jobs, self.lines, &self.pending);
        let shares = Shares::new(self.jobs, &self.pending);
        let over = std::mem::take(&mut self.over);
        let (over_kinds, over_keys): (Vec<i32>, Vec<&str>) =
            over.iter().map(|(kind, key)| (*kind, key.as_str())).unzip();
        let mut calls = Vec::new();
        if !over_kinds.is_empty() {
            calls.push(Free { at: &at, kinds: &over_kinds, keys: &over_keys }.call());
        }
        let insert = calls.len();
        if !self.pending.is_empty() {
            calls.push(columns.insert(&at));
            calls.extend(shares.call(&at));
            if !keys.kinds.is_empty() {
                calls.push(keys.take());
            }
        }
        if end && calls.is_empty() && self.repeated {
            calls.push(Confirm.call());
        }
        let rows = if end { conn.end(&calls).await? } else { conn.step(&calls).await? };
        if !self.pending.is_empty() {
            self.stored.extend(Insert::rows(&rows[insert])?);
            self.pending.clear();
        }
        Ok(())
    }
}

fn job_id(id: Uuid) -> JobId {
    JobId::from_bytes(*id.as_bytes())
}

fn key_of(job: &New, line: &TicketLine) -> Option<Key> {
    job.options.unique.as_ref().map(|unique: &Unique| (line.kind, unique.key.clone()))
}

/// Keys to be taken, as arguments.
#[derive(Default)]
pub(crate) struct Keys<'a> {
    pub(crate) kinds: Vec<i32>,
    pub(crate) names: Vec<&'a str>,
    pub(crate) ids: Vec<Uuid>,
    pub(crate) untils: Vec<i16>,
    pub(crate) periods: Vec<i64>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(jobs: &'a [New], lines: &[TicketLine], chosen: &[usize]) -> Self {
        let mut keys = Keys::default();
        for &index in chosen {
            let Some(unique) = &jobs[index].options.unique else { continue };
            let (until, period) = key::until(unique);
            keys.kinds.push(lines[index].kind);
            keys.names.push(&unique.key);
            keys.ids.push(Uuid::from_bytes(*jobs[index].id.as_bytes()));
            keys.untils.push(until);
            keys.periods.push(period);
        }
        keys
    }

    fn take(&self) -> Call<'_> {
        let Keys { kinds, names, ids, untils, periods } = self;
        Take { kinds, names, ids, untils, periods }.call()
    }
}

/// Jobs as arguments, one column each.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) lines: Vec<i32>,
    pub(crate) priorities: Vec<i16>,
    pub(crate) run_at: Vec<Option<i64>>,
    pub(crate) run_after: Vec<Option<i64>>,
    pub(crate) deadline_at: Vec<Option<i64>>,
    pub(crate) deadline_after: Vec<Option<i64>>,
    pub(crate) options: Vec<Option<String>>,
    pub(crate) inputs: Vec<&'a [u8]>,
    pub(crate) flags: Vec<i16>,
    /// Groups of limited jobs.
    pub(crate) groups: Vec<Option<i32>>,
    /// Whether some are to run later, have a deadline or have tags.
    special: bool,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(jobs: &'a [New], lines: &[TicketLine], chosen: &[usize]) -> Result<Self> {
        let mut columns = Columns::default();
        for &index in chosen {
            let job = &jobs[index];
            let (run_at, run_after) = when(job.run);
            let (deadline_at, deadline_after) = when(job.deadline);
            columns.special |= job.run.is_some() || job.deadline.is_some() || !job.options.tags.is_empty();
            columns.ids.push(Uuid::from_bytes(*job.id.as_bytes()));
            columns.lines.push(lines[index].line);
            columns.priorities.push(job.priority.get().into());
            columns.run_at.push(run_at);
            columns.run_after.push(run_after);
            columns.deadline_at.push(deadline_at);
            columns.deadline_after.push(deadline_after);
            columns.options.push(options_text(&job.options)?);
            columns.inputs.push(&job.input);
            columns.flags.push(flags::of(job));
            columns.groups.push(lines[index].group);
        }
        Ok(columns)
    }

    /// Whether some are limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.groups.iter().any(Option::is_some)
    }

    pub(crate) fn insert<'c>(&'c self, at: &'c Present) -> Call<'c> {
        if self.is_limited() {
            let insert = InsertLimited {
                at,
                ids: &self.ids,
                lines: &self.lines,
                priorities: &self.priorities,
                run_at: &self.run_at,
                run_after: &self.run_after,
                deadline_at: &self.deadline_at,
                deadline_after: &self.deadline_after,
                options: &self.options,
                inputs: &self.inputs,
                flags: &self.flags,
                groups: &self.groups,
            };
            return insert.call();
        }
        if !self.special {
            let insert = InsertPlain {
                at,
                ids: &self.ids,
                lines: &self.lines,
                priorities: &self.priorities,
                options: &self.options,
                inputs: &self.inputs,
                flags: &self.flags,
            };
            return insert.call();
        }
        let insert = Insert {
            at,
            ids: &self.ids,
            lines: &self.lines,
            priorities: &self.priorities,
            run_at: &self.run_at,
            run_after: &self.run_after,
            deadline_at: &self.deadline_at,
            deadline_after: &self.deadline_after,
            options: &self.options,
            inputs: &self.inputs,
            flags: &self.flags,
        };
        insert.call()
    }
}

/// A point in time, absolute or counted from the store's present.
fn when(when: Option<When>) -> (Option<i64>, Option<i64>) {
    match when {
        None => (None, None),
        // What is past is past: the database's calendar does not go back for ever.
        Some(When::At(at)) => (Some(at.as_micros().max(0)), None),
        Some(When::After(delay)) => (None, Some(micros(delay))),
    }
}
