//! Jobs inside an application's own transaction on the same database.
//!
//! What jobs share with others is prepared beforehand, in a transaction of the store's own: names are interned, and keys
//! whose period has ended are freed. The caller's transaction then makes inserts only, and holds the locks of the keys
//! that it takes; nobody else waits for it.
//!
//! # Invariants
//! - Only inserts are made, and neither a key that is held nor a repeated id aborts the transaction, at READ COMMITTED.
//! - A transaction on another database, or on another store, is refused before anything is written.

#[cfg(feature = "deadpool")]
mod deadpool;
mod pools;
#[cfg(feature = "sqlx")]
mod sqlx;
mod tokio_postgres;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{New, OnConflict};
use mainspring_core::journal::{Recorded, Recording};
use mainspring_core::store::{self, Receipt, Ticket, TicketLine};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result};
use uuid::Uuid;

use crate::connection::Conn;
use crate::error;
use crate::hint::Hints;
use crate::names;
use crate::op::contended_ids::number_under_lock;
use crate::op::enqueue::{self, Columns, Keys, KnownJob, insert};
use crate::op::record::{Forget, Locked, Pages, record};
use crate::op::same_id::{Holder, SameId};
use crate::op::{Op, key, node, same_id};
use crate::shared::Shared;
use crate::sql::{At, Query, in_schema, statement};

statement! {
    /// System catalogue: what is said of our table, if it is there; and whether the transaction is marked. Never fails.
    pub(crate) Identity<'a> = "enlist.identity", whole ("it touches the catalogue alone"),
    (table: &'a str) -> Said { store: Option<String>, marked: bool };
    "SELECT obj_description(to_regclass($1)::oid, 'pg_class'),
    coalesce(current_setting('mainspring.step', true), '') = 'open'"
}

/// Marks a transaction as that of a step: the setting ends with it, however it ends. Savepoints leave it alone. `RESET ALL` takes
/// it away, and then the step is refused. What would survive that (an id, a lock, a cursor) takes a snapshot, after which the
/// body could not choose its isolation any more.
macro_rules! mark {
    () => {
        "SET LOCAL mainspring.step = 'open'"
    };
}
#[cfg(feature = "sqlx")]
use mark;
const MARK: &str = mark!();
statement! {
    /// Advisory locks, in order.
    pub(crate) LockKeys<'a> = "enlist.lock_keys", whole ("it touches no table"), (numbers: Vec<i64>);
    "SELECT count(pg_advisory_xact_lock(u.number))
    FROM (SELECT number FROM unnest($1::bigint[]) AS u(number) ORDER BY number) u"
}
statement! {
    /// Unique index of ids.
    pub(crate) Known<'a> = "enlist.known", by ["jobs_id_key"], (ids: Vec<Uuid>) -> KnownJob;
    "SELECT id FROM mainspring.jobs WHERE id = ANY($1)"
}
statement! {
    /// Primary key of `keys`.
    pub(crate) Holders<'a> = "enlist.holders", by ["keys_pkey"],
    (kinds: Vec<i32>, keys: Vec<String>) -> KeyHolder { kind: i32, key: String, id: Uuid };
    "SELECT k.kind, k.key, k.id FROM unnest($1::int[], $2::text[]) AS u(kind, key)
    JOIN mainspring.keys k ON k.kind = u.kind AND k.key = u.key"
}
statement! {
    /// Advisory locks of the ids, shared; then appends. The unique index of ids tells of a repeat without failing, and those ids
    /// are returned; `$1` is the time in tests.
    pub(crate) Insert<'a> = "enlist.insert", whole ("it appends"),
    (
        at: Option<i64>, ids: Vec<Uuid>, lines: Vec<i32>, priorities: Vec<i16>, run_at: Vec<Option<i64>>,
        run_after: Vec<Option<i64>>, deadline_at: Vec<Option<i64>>, deadline_after: Vec<Option<i64>>,
        options: Vec<Option<String>>, inputs: Vec<&'a [u8]>, flags: Vec<i16>,
    )
    -> KnownJob;
    insert!(
    "t AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch' + $1::bigint * interval '1 us', clock_timestamp()) AS now)",
    number_under_lock!(),
    "ON CONFLICT (id) DO NOTHING RETURNING no",
    "EXISTS (SELECT 1 FROM j WHERE j.no = n.no)",
    "SELECT n.id FROM n WHERE NOT EXISTS (SELECT 1 FROM j WHERE j.no = n.no)"
)
}
statement! {
    /// The same for jobs of which some are limited, each group with a turn. Appends alone: no counter is looked at.
    pub(crate) InsertLimited<'a> = "enlist.insert_limited", whole ("it appends"),
    (
        at: Option<i64>, ids: Vec<Uuid>, lines: Vec<i32>, priorities: Vec<i16>, run_at: Vec<Option<i64>>,
        run_after: Vec<Option<i64>>, deadline_at: Vec<Option<i64>>, deadline_after: Vec<Option<i64>>,
        options: Vec<Option<String>>, inputs: Vec<&'a [u8]>, flags: Vec<i16>, groups: Vec<Option<i32>>,
    )
    -> KnownJob;
    insert!(
    "t AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch' + $1::bigint * interval '1 us', clock_timestamp()) AS now)",
    number_under_lock!(),
    "ON CONFLICT (id) DO NOTHING RETURNING no",
    "EXISTS (SELECT 1 FROM j WHERE j.no = n.no)",
    "SELECT n.id FROM n WHERE NOT EXISTS (SELECT 1 FROM j WHERE j.no = n.no)",
    limited
)
}
statement! {
    /// Appends. The locks of the keys are held: above READ COMMITTED a key may be held that the snapshot does not show, and
    /// that is a serialization failure.
    pub(crate) Take<'a> = "enlist.take_keys", by ["jobs_id_key"],
    (kinds: Vec<i32>, names: Vec<&'a str>, ids: Vec<Uuid>, untils: Vec<i16>, periods: Vec<i64>);
    "INSERT INTO mainspring.keys (kind, key, no, id, until, period)
    SELECT u.kind, u.key, j.no, u.id, u.until, u.period
    FROM unnest($1::int[], $2::text[], $3::uuid[], $4::smallint[], $5::bigint[]) AS u(kind, key, id, until, period)
    JOIN mainspring.jobs j ON j.id = u.id ON CONFLICT (kind, key) DO NOTHING"
}

statement! {
    /// Primary key of `lease`, and a shared lock on the claim, so that it cannot end before the caller commits; then a plain
    /// insert. `$1` is the time in tests.
    pub(crate) Record<'a> = "enlist.record", by ["lease_pkey"],
    (
        at: Option<i64>, node: i32, nos: Vec<i64>, claims: Vec<i32>, entry_nos: Vec<i64>, kinds: Vec<i16>,
        overlapped: Vec<bool>, took: Vec<Option<i32>>, keys: Vec<&'a str>, values: Vec<&'a [u8]>,
    )
    -> Locked;
    record!(
    "t AS MATERIALIZED (SELECT coalesce(timestamptz 'epoch' + $1::bigint * interval '1 us', clock_timestamp()) AS now)",
    "true",
    ""
)
}
statement! {
    /// What is recorded must be as safe as the rest of the store, whatever the caller's session is set to. And a client that is
    /// gone between the record, which locks the claim, and the commit must not hold the job up for longer than a default lease
    /// allows: its server may not hear of that for hours. Touches no table.
    pub(crate) Insist = "enlist.insist", whole ("it touches no table"), ();
    "SELECT set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') = 'off'
    UNION ALL SELECT set_config('idle_in_transaction_session_timeout', '5s', true)
    WHERE current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 ms' AND '5 s'"
}

/// A client's transaction, for our statements. Each is given with the name of the schema that is put into it.
trait Session {
    fn identity(&mut self, statement: Identity<'_>) -> impl Future<Output = Result<(Option<String>, bool)>>;
    fn lock_keys(&mut self, schema: &str, statement: LockKeys<'_>) -> impl Future<Output = Result<()>>;
    /// The ids that are there already.
    fn known(&mut self, schema: &str, statement: Known<'_>) -> impl Future<Output = Result<Vec<Uuid>>>;
    fn holders(
        &mut self,
        schema: &str,
        statement: Holders<'_>,
    ) -> impl Future<Output = Result<Vec<(i32, String, Uuid)>>>;
    /// The ids that were there already.
    fn insert(&mut self, schema: &str, statement: Insert<'_>) -> impl Future<Output = Result<Vec<Uuid>>>;
    /// The same with limited jobs.
    fn insert_limited(
        &mut self,
        schema: &str,
        statement: InsertLimited<'_>,
    ) -> impl Future<Output = Result<Vec<Uuid>>>;
    fn same_id(
        &mut self,
        schema: &str,
        statement: SameId<'_>,
    ) -> impl Future<Output = Result<Vec<(i64, Holder)>>>;
    fn take(&mut self, schema: &str, statement: Take<'_>) -> impl Future<Output = Result<()>>;
    fn insist(&mut self) -> impl Future<Output = Result<()>>;
    fn forget(&mut self, schema: &str, statement: Forget<'_>) -> impl Future<Output = Result<()>>;
    /// The numbers of the jobs that are held.
    fn record(&mut self, schema: &str, statement: Record<'_>) -> impl Future<Output = Result<Vec<i64>>>;
}

/// The text of a statement for a schema.
fn text<Q: Query>(schema: &str) -> String {
    in_schema(Q::STATEMENT.sql, schema)
}

/// Records in a caller's transaction.
async fn enlist_recording(
    session: &mut impl Session,
    ticket: &Ticket,
    node: NodeNo,
    recording: Recording,
) -> Result<Recorded> {
    if !recording.children.is_empty() {
        return Err(Error::NotInTransaction { what: "starting a child" });
    }
    if !recording.writes.read.is_empty() {
        return Err(Error::NotInTransaction { what: "reading a message" });
    }
    if !recording.writes.output.is_empty() {
        return Err(Error::NotInTransaction { what: "pushing output" });
    }
    if !check(session, ticket).await? {
        return Err(Error::Invalid {
            what: "transaction",
            why: "its body has ended it (a COMMIT, ROLLBACK or the like) or reset its settings (RESET ALL), so the step is not \
                  recorded; if the body has committed rows, they are stored and cannot be undone"
                .into(),
        });
    }
    let Ok(node) = node::number(node) else { return Ok(Recorded::LeaseLost) };
    let (no, claim) = (recording.claim.row.0, node::number_of(&recording.claim));
    let mut pages = Pages::default();
    pages.claim(no, claim, true);
    pages.add(no, claim, &recording.writes);
    session.insist().await?;
    if !pages.forget.0.is_empty() {
        let (nos, claims, keys) = &pages.forget;
        session.forget(&ticket.schema, Forget { node: &node, nos, claims, keys }).await?;
    }
    let now = ticket.now.map(Timestamp::as_micros);
    let record = Record {
        at: &now,
        node: &node,
        nos: &pages.nos,
        claims: &pages.claims,
        entry_nos: &pages.entry_nos,
        kinds: &pages.kinds,
        overlapped: &pages.overlapped,
        took: &pages.took,
        keys: &pages.keys,
        values: &pages.values,
    };
    let held = session.record(&ticket.schema, record).await?;
    Ok(if held.contains(&no) { Recorded::Stored } else { Recorded::LeaseLost })
}

/// Stores jobs in a caller's transaction.
async fn enlist(session: &mut impl Session, ticket: &Ticket, jobs: Vec<New>) -> Result<Vec<Receipt>> {
    store::check_enlisted(&jobs)?;
    if ticket.lines.len() != jobs.len() {
        return Err(Error::ForeignTransaction { why: "the ticket is not for these jobs".into() });
    }
    check(session, ticket).await?;
    let (mut receipts, chosen) = choose(session, ticket, &jobs).await?;
    if !chosen.is_empty() {
        let columns = Columns::new(&jobs, &ticket.lines, &chosen).map_err(|fault| fault.into_error(false))?;
        let now = ticket.now.map(Timestamp::as_micros);
        macro_rules! insert_of {
            ($Statement:ident { $($more:tt)* }) => {
                $Statement {
                    at: &now,
                    ids: &columns.ids,
                    lines: &columns.lines,
                    priorities: &columns.priorities,
                    run_at: &columns.run_at,
                    run_after: &columns.run_after,
                    deadline_at: &columns.deadline_at,
                    deadline_after: &columns.deadline_after,
                    options: &columns.options,
                    inputs: &columns.inputs,
                    flags: &columns.flags,
                    $($more)*
                }
            };
        }
        let there = if columns.is_limited() {
            let insert = insert_of!(InsertLimited { groups: &columns.groups });
            session.insert_limited(&ticket.schema, insert).await?
        } else {
            session.insert(&ticket.schema, insert_of!(Insert {})).await?
        };
        let there: BTreeSet<JobId> = there.into_iter().map(job_id).collect();
        let chosen: Vec<usize> =
            chosen.into_iter().filter(|&index| !there.contains(&jobs[index].id)).collect();
        let met = meet(session, ticket, &jobs, |job| there.contains(&job.id)).await?;
        // What it is not told of is removed at this moment: it was there.
        receipts.iter_mut().zip(&jobs).for_each(|(receipt, job)| {
            if there.contains(&job.id) {
                *receipt = Receipt::Repeated;
            }
        });
        for (index, receipt) in met {
            receipts[index] = receipt;
        }
        let keys = Keys::new(&jobs, &ticket.lines, &chosen);
        if !keys.kinds.is_empty() {
            let Keys { kinds, names, ids, untils, periods } = &keys;
            session.take(&ticket.schema, Take { kinds, names, ids, untils, periods }).await?;
        }
    }
    Ok(receipts)
}

/// Refuses a transaction that is not on the ticket's store. Tells whether it is still the one that a step has begun.
async fn check(session: &mut impl Session, ticket: &Ticket) -> Result<bool> {
    let table = in_schema("mainspring.meta", &ticket.schema);
    let (said, marked) = session.identity(Identity { table: &table.as_str() }).await?;
    let Some(said) = said else {
        return Err(Error::ForeignTransaction { why: "no store in its database".into() });
    };
    if said.rsplit(' ').next().and_then(|id| id.parse::<Uuid>().ok()) != Some(Uuid::from_bytes(ticket.store))
    {
        return Err(Error::ForeignTransaction { why: "its database holds another store".into() });
    }
    Ok(marked)
}

/// What is said of jobs whose ids are there already.
async fn meet(
    session: &mut impl Session,
    ticket: &Ticket,
    jobs: &[New],
    asked: impl Fn(&New) -> bool,
) -> Result<Vec<(usize, Receipt)>> {
    let asked: Vec<usize> = (0..jobs.len()).filter(|&index| asked(&jobs[index])).collect();
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<Uuid> = asked.iter().map(|&index| Uuid::from_bytes(*jobs[index].id.as_bytes())).collect();
    let inputs: Vec<&[u8]> = asked.iter().map(|&index| jobs[index].input.as_slice()).collect();
    let holders = session.same_id(&ticket.schema, SameId { ids: &ids, inputs: &inputs }).await?;
    let met = holders.into_iter().filter_map(|(at, holder)| {
        let index = *asked.get(usize::try_from(at).ok()?)?;
        Some((index, same_id::receipt(holder.differs(&jobs[index]))))
    });
    Ok(met.collect())
}

/// One receipt per job, and the jobs that are to be stored.
async fn choose(
    session: &mut impl Session,
    ticket: &Ticket,
    jobs: &[New],
) -> Result<(Vec<Receipt>, Vec<usize>)> {
    let key = |job: &New, line: &TicketLine| {
        job.options.unique.as_ref().map(|unique| (line.kind, unique.key.clone()))
    };
    let wanted: BTreeSet<(i32, String)> =
        jobs.iter().zip(&ticket.lines).filter_map(|(job, line)| key(job, line)).collect();
    let mut known: BTreeMap<JobId, usize> = BTreeMap::new();
    let mut met = BTreeMap::new();
    let mut holders: BTreeMap<(i32, String), JobId> = BTreeMap::new();
    if !wanted.is_empty() {
        let mut numbers: Vec<i64> =
            wanted.iter().map(|(kind, key)| key::lock_number(&ticket.store, *kind, key)).collect();
        numbers.sort_unstable();
        session.lock_keys(&ticket.schema, LockKeys { numbers: &numbers }).await?;
        let ids: Vec<Uuid> = jobs.iter().map(|job| Uuid::from_bytes(*job.id.as_bytes())).collect();
        let there: BTreeSet<JobId> =
            session.known(&ticket.schema, Known { ids: &ids }).await?.into_iter().map(job_id).collect();
        met.extend(meet(session, ticket, jobs, |job| there.contains(&job.id)).await?);
        let (kinds, keys): (Vec<i32>, Vec<String>) = wanted.into_iter().unzip();
        let held = session.holders(&ticket.schema, Holders { kinds: &kinds, keys: &keys }).await?;
        holders.extend(held.into_iter().map(|(kind, key, id)| ((kind, key), job_id(id))));
    }
    let (mut receipts, mut chosen) = (Vec::with_capacity(jobs.len()), Vec::new());
    for (index, (job, line)) in jobs.iter().zip(&ticket.lines).enumerate() {
        if let Some(receipt) = met.get(&index) {
            receipts.push(*receipt);
            continue;
        }
        if let Some(&first) = known.get(&job.id) {
            receipts.push(same_id::receipt(same_id::compare(job, &jobs[first])));
            continue;
        }
        if let (Some(key), Some(unique)) = (key(job, line), &job.options.unique) {
            if let Some(holder) = holders.get(&key) {
                receipts.push(match unique.on_conflict {
                    OnConflict::Reject => Receipt::Rejected(*holder),
                    OnConflict::Keep | OnConflict::Replace => Receipt::Existing(*holder),
                });
                continue;
            }
            holders.insert(key, job.id);
        }
        known.insert(job.id, index);
        chosen.push(index);
        receipts.push(Receipt::Created);
    }
    Ok((receipts, chosen))
}

fn job_id(id: Uuid) -> JobId {
    JobId::from_bytes(*id.as_bytes())
}

statement! {
    /// Primary keys: where a job waits.
    pub(crate) Where<'a> = "enlist.where", by ["jobs_id_key", "ready_pkey", "limited_pkey", "timers_pkey"],
    (id: Uuid)
    -> Waiting { line: i32, level: Option<i16>, ready_at: Option<At>, no: i64, due: Option<At>, limited: bool };
    "SELECT j.line, coalesce(r.level, w.level), coalesce(r.ready_at, w.ready_at), j.no, m.due, w.no IS NOT NULL
    FROM mainspring.jobs j LEFT JOIN mainspring.ready r ON r.no = j.no LEFT JOIN mainspring.limited w ON w.no = j.no
    LEFT JOIN mainspring.timers m ON m.no = j.no WHERE j.id = $1"
}

/// Prepares what a caller's transaction needs to find.
pub(crate) struct Prepare(pub(crate) Vec<New>);

impl Op for Prepare {
    type Answer = Ticket;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> error::Result<Ticket> {
        let lines = names::lines_of(conn, shared, &self.0).await?;
        let keyed = self
            .0
            .iter()
            .zip(&lines)
            .filter_map(|(job, line)| Some((line.kind, job.options.unique.as_ref()?)));
        let (kinds, keys): (Vec<i32>, Vec<&str>) =
            keyed.map(|(kind, unique)| (kind, unique.key.as_str())).unzip();
        if !kinds.is_empty() {
            let at = shared.at();
            conn.commit(shared, &[enqueue::Free { at: &at, kinds: &kinds, keys: &keys }.call()]).await?;
        }
        Ok(Ticket { store: shared.store(), now: shared.now(), schema: shared.schema.to_string(), lines })
    }
}

/// Tells where a job waits that a caller's transaction has committed.
pub(crate) struct Nudge(pub(crate) JobId);

impl Op for Nudge {
    type Answer = ();
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> error::Result<()> {
        let id = Uuid::from_bytes(*self.0.as_bytes());
        let rows = conn.send(&Where { id: &id }.call()).await?;
        let mut hints = Hints::default();
        for job in Where::rows(&rows)? {
            if let (Some(level), Some(at)) = (job.level, job.ready_at) {
                hints.enter(job.limited, (job.line, level), (at.0, job.no));
            }
            job.due.into_iter().for_each(|due| hints.due(due.0));
        }
        hints.send(conn, shared).await;
        Ok(())
    }
}
