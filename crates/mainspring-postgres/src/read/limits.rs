//! Keys of limits as operators see them, and what keeps a job from being claimed.

use std::collections::BTreeMap;

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::job::Options;
use mainspring_core::limit::{
    self, Closed, KeyHolder, KeyState, KeyUse, Limit, LimitKey, LimitUse, Obstacle, Total,
};
use mainspring_core::name::LimitName;
use mainspring_core::tables::options::read_options;
use mainspring_core::time::Timestamp;
use uuid::Uuid;

use super::SNAPSHOT;
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names;
use crate::op::limits::define::{AllDefinitions, FindKey, KeyRow, definitions};
use crate::op::limits::groups;
use crate::op::{Op, now};
use crate::shared::Shared;
use crate::sql::{At, Present, Query, bound, statement};

statement! {
    /// Touches no table.
    pub(crate) Now<'a> = "limits.now", whole ("it touches no table"), (at: Present) -> NowRow { now: At };
    concat!("WITH ", now!(), "SELECT t.now FROM t")
}
statement! {
    /// Unique index of keys, from a key on.
    pub(crate) ListKeys<'a> = "limits.list_keys", by ["limit_keys_limit_no_key_key"],
    (limit_no: i32, after: &'a str, first: bool, limit: i64) -> KeyRow;
    "SELECT no, key, in_use, max, paused, next_free FROM mainspring.limit_keys WHERE limit_no = $1 AND (key > $2 OR $3)
    ORDER BY key LIMIT $4"
}
statement! {
    /// Unique index of names.
    pub(crate) FindNo<'a> = "limits.no", by ["limits_scope_name_key"], (name: &'a str) -> LimitNo { no: i32 };
    "SELECT no FROM mainspring.limits WHERE scope = {limit_scope.limit} AND name = $1"
}
statement! {
    /// `lease` as a whole, index `kept_units_units`, and the primary key of `jobs`.
    pub(crate) Holders<'a> = "limits.holders", whole ("`lease` has no more rows than all nodes have slots"),
    (limit_key: i64, limit: i64) -> HolderRow { id: Uuid, units: i64, keeps: bool };
    "SELECT j.id, cardinality(array_positions(h.units, $1))::bigint, h.keeps FROM (
        SELECT x.no, x.units, x.keeps FROM (
            SELECT no, units, false AS keeps FROM mainspring.lease WHERE units @> ARRAY[$1]
            UNION ALL SELECT k.no, k.units, NOT EXISTS (SELECT 1 FROM mainspring.lease l WHERE l.no = k.no)
            FROM mainspring.kept_units k WHERE k.units @> ARRAY[$1]) x ORDER BY x.no LIMIT $2) h
    JOIN mainspring.jobs j ON j.no = h.no ORDER BY j.no"
}
statement! {
    /// Index `limit_groups_units`, then `limited_claim`: jobs that wait for a key, as many as are counted.
    pub(crate) Waiters<'a> = "limits.waiters", by ["limited_claim", "jobs_pkey"],
    (limit_key: i64, counted: i64, shown: i64) -> WaiterRow { count: i64, ids: Vec<Uuid> };
    "WITH w AS MATERIALIZED (SELECT r.no FROM mainspring.limit_groups g
        CROSS JOIN LATERAL (SELECT no FROM mainspring.limited r WHERE r.limit_group = g.no LIMIT $2) r
        WHERE g.units @> ARRAY[$1] LIMIT $2)
    SELECT (SELECT count(*) FROM w), ARRAY(SELECT j.id FROM (SELECT w.no FROM w ORDER BY w.no LIMIT $3) w
        JOIN mainspring.jobs j ON j.no = w.no ORDER BY j.no)"
}
statement! {
    /// Unique index of ids, then primary keys; of the group of a limited job the first one, by `limited_claim`.
    pub(crate) FindReady<'a> = "limits.ready_job", by ["jobs_id_key", "ready_pkey", "limited_pkey"],
    (id: Uuid) -> ReadyJob { no: i64, line: i32, options: Option<String>, limited: bool, first: Option<Uuid>, first_no: Option<i64> };
    "SELECT j.no, j.line, j.options::text, w.no IS NOT NULL, f.id, f.no FROM mainspring.jobs j
    LEFT JOIN LATERAL (SELECT no FROM mainspring.ready WHERE no = j.no OFFSET 0) r ON true
    LEFT JOIN LATERAL (SELECT no, limit_group FROM mainspring.limited WHERE no = j.no OFFSET 0) w ON true
    LEFT JOIN LATERAL (SELECT x.no, y.id FROM (
        SELECT p.no FROM mainspring.limited p WHERE p.limit_group = w.limit_group ORDER BY p.level, p.ready_at, p.no LIMIT 1) x
        CROSS JOIN LATERAL (SELECT id FROM mainspring.jobs WHERE no = x.no OFFSET 0) y) f ON true
    WHERE j.id = $1 AND (r.no IS NOT NULL OR w.no IS NOT NULL)"
}
statement! {
    /// Primary key, its newest row, and the limit.
    pub(crate) FindTotals<'a> = "limits.totals_of", by ["limit_keys_pkey", "limits_pkey"],
    (nos: Vec<i64>) -> TotalState { position: i64, max: Option<i32>, in_use: i32 };
    "SELECT u.o - 1, l.max, x.in_use FROM unnest($1::bigint[]) WITH ORDINALITY AS u(no, o)
    CROSS JOIN LATERAL (SELECT * FROM mainspring.limit_keys WHERE no = u.no ORDER BY generation DESC LIMIT 1) x
    CROSS JOIN LATERAL (SELECT max FROM mainspring.limits WHERE no = x.limit_no AND NOT deleted OFFSET 0) l"
}

/// The keys of a limit behind one.
pub(crate) struct ListLimitKeys {
    pub(crate) name: LimitName,
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
}

impl Op for ListLimitKeys {
    type Answer = Vec<LimitKey>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<LimitKey>> {
        let (at, name) = (shared.at(), self.name.as_str());
        let calls = [Now { at: &at }.call(), FindNo { name: &name }.call()];
        let rows = conn.begin(shared, SNAPSHOT, &calls).await?;
        let now = Now::first(&rows[0])?.map(|row| row.now.0).unwrap_or_default();
        let Some(LimitNo { no }) = FindNo::first(&rows[1])? else {
            conn.end(&[]).await?;
            return Ok(Vec::new());
        };
        let (after, first) = (self.after.as_deref().unwrap_or_default(), self.after.is_none());
        let limit = bound(self.limit.min(bounds::LIMIT_KEYS_PAGE));
        let list = ListKeys { limit_no: &no, after: &after, first: &first, limit: &limit }.call();
        let rows = conn.end(&[list]).await?.pop().unwrap_or_default();
        let shown = |row: KeyRow| LimitKey::new(&self.name, &row.key, &rested(row.state(), now));
        Ok(ListKeys::rows(&rows)?.into_iter().map(shown).collect())
    }
}

/// As people see it: a bucket that is full again is not worth telling.
fn rested(state: KeyState, now: Timestamp) -> KeyState {
    KeyState { next_free: state.next_free.filter(|at| *at > now), ..state }
}

/// Who holds one key and who waits for it.
pub(crate) struct ShowLimitKey {
    pub(crate) limit: LimitName,
    pub(crate) key: String,
}

impl Op for ShowLimitKey {
    type Answer = KeyUse;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<KeyUse> {
        let ShowLimitKey { limit: name, key } = self;
        let at = shared.at();
        let rows = conn.begin(shared, SNAPSHOT, &[Now { at: &at }.call(), AllDefinitions.call()]).await?;
        let now = Now::first(&rows[0])?.map(|row| row.now.0).unwrap_or_default();
        let known = definitions(AllDefinitions::rows(&rows[1])?)?;
        let Some((limit_no, _)) = known.get(name) else {
            conn.end(&[]).await?;
            return Err(groups::unknown(conn, name).await?.into());
        };
        let key_text = key.as_str();
        let find = FindKey { limit_no, key: &key_text }.call();
        let row = FindKey::first(&conn.step(&[find]).await?.pop().unwrap_or_default())?;
        let state = row.as_ref().map(KeyRow::state).unwrap_or_default();
        let mut found = KeyUse {
            key: LimitKey::new(name, key, &rested(state, now)),
            holders: Vec::new(),
            waiting: 0,
            waiters: Vec::new(),
        };
        let Some(KeyRow { no, .. }) = row else {
            conn.end(&[]).await?;
            return Ok(found);
        };
        let (shown, counted) = (bound(bounds::LIMIT_JOBS), bound(bounds::LIMIT_WAITING));
        let calls = [
            Holders { limit_key: &no, limit: &shown }.call(),
            Waiters { limit_key: &no, counted: &counted, shown: &shown }.call(),
        ];
        let rows = conn.end(&calls).await?;
        let [holders, waiters] = rows.as_slice() else {
            return Err(corrupt("a limit key without an answer"));
        };
        for HolderRow { id, units, keeps } in Holders::rows(holders)? {
            let units = u16::try_from(units).unwrap_or(u16::MAX);
            found.holders.push(KeyHolder { job: job_id(id), units, keeps });
        }
        if let Some(waiters) = Waiters::first(waiters)? {
            found.waiting = u64::try_from(waiters.count).unwrap_or(0);
            found.waiters = waiters.ids.into_iter().map(job_id).collect();
        }
        Ok(found)
    }
}

fn job_id(id: Uuid) -> JobId {
    JobId::from_bytes(*id.as_bytes())
}

/// What keeps a ready job from being claimed.
pub(crate) struct FindObstacle(pub(crate) JobId);

impl Op for FindObstacle {
    type Answer = Option<Obstacle>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<Obstacle>> {
        let (at, id) = (shared.at(), Uuid::from_bytes(*self.0.as_bytes()));
        names::refresh(conn, shared).await?;
        let calls = [Now { at: &at }.call(), AllDefinitions.call(), FindReady { id: &id }.call()];
        let rows = conn.begin(shared, SNAPSHOT, &calls).await?;
        let obstacle = match FindReady::first(&rows[2])? {
            None => None,
            Some(job) => {
                let now = Now::first(&rows[0])?.map(|row| row.now.0).unwrap_or_default();
                let known = definitions(AllDefinitions::rows(&rows[1])?)?;
                obstacle_of(conn, shared, job, &known, now).await?
            }
        };
        conn.end(&[]).await?;
        Ok(obstacle)
    }
}

async fn obstacle_of(
    conn: &mut Conn,
    shared: &Shared,
    job: ReadyJob,
    known: &BTreeMap<LimitName, (i32, Limit)>,
    now: Timestamp,
) -> Result<Option<Obstacle>> {
    let totals: Vec<(Total, i64)> = {
        let names = shared.names();
        let line = names.line(job.line)?;
        let (queue, kind) = names.totals_of(line);
        let queue = queue.map(|key| (Total::Queue(line.queue_name.clone()), key));
        queue.into_iter().chain(kind.map(|key| (Total::Kind(line.kind_name.clone()), key))).collect()
    };
    if !totals.is_empty() {
        let nos: Vec<i64> = totals.iter().map(|(_, key)| *key).collect();
        let rows = conn.step(&[FindTotals { nos: &nos }.call()]).await?.pop().unwrap_or_default();
        for TotalState { position, max, in_use } in FindTotals::rows(&rows)? {
            let number = |n: i32| u32::try_from(n).unwrap_or(0);
            let total = usize::try_from(position).ok().and_then(|at| totals.get(at));
            if let (Some((total, _)), Some(max)) = (total, max)
                && in_use >= max
            {
                return Ok(Some(Obstacle::Total {
                    total: total.clone(),
                    in_use: number(in_use),
                    max: number(max),
                }));
            }
        }
    }
    if !job.limited {
        return Ok(None);
    }
    let options: Options = read_options(job.options.as_deref().map(str::as_bytes))?;
    for one in &options.limits {
        if let Some(obstacle) = obstacle_at(conn, one, known, now).await? {
            return Ok(Some(obstacle));
        }
    }
    let first = job.first.filter(|_| job.first_no != Some(job.no));
    Ok(first.map(|first| Obstacle::Behind { job: job_id(first) }))
}

/// Why a key of a limit does not admit a job.
async fn obstacle_at(
    conn: &mut Conn,
    one: &LimitUse,
    known: &BTreeMap<LimitName, (i32, Limit)>,
    now: Timestamp,
) -> Result<Option<Obstacle>> {
    let LimitUse { limit: name, key, units } = one.clone();
    let Some((limit_no, found)) = known.get(&name) else { return Ok(None) };
    let key_text = key.as_str();
    let find = FindKey { limit_no, key: &key_text }.call();
    let row = FindKey::first(&conn.step(&[find]).await?.pop().unwrap_or_default())?;
    let state = row.as_ref().map(KeyRow::state).unwrap_or_default();
    let Some(closed) = limit::closed(Some(found), &state, units, now) else { return Ok(None) };
    Ok(Some(match closed {
        Closed::Paused => {
            let key = (!found.paused && !key.is_empty()).then_some(key);
            Obstacle::Paused { limit: name, key }
        }
        Closed::Full { max } => {
            let (mut holders, limit) = (Vec::new(), bound(Obstacle::HOLDERS));
            if let Some(KeyRow { no, .. }) = row {
                let call = Holders { limit_key: &no, limit: &limit }.call();
                let rows = conn.step(&[call]).await?.pop().unwrap_or_default();
                holders = Holders::rows(&rows)?.into_iter().map(|holder| job_id(holder.id)).collect();
            }
            Obstacle::Limit { limit: name, key, units, in_use: state.in_use, max, holders }
        }
        Closed::Rate { until } => Obstacle::Rate { limit: name, key, until },
    }))
}
