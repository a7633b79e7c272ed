//! Groups of limited jobs, and the keys of limits, as small numbers.
//!
//! A group is a line and a list of limit keys with units. Groups and keys are interned in transactions of their own, before jobs
//! that name them come in, so that enqueues only insert. What is cached here stays true for longer than it is cached: a
//! prune removes groups and keys that were not used for [`UNUSED`] alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainspring_core::job::New;
use mainspring_core::limit::{self, LimitUse};
use mainspring_core::name::LimitName;
use mainspring_core::store::TicketLine;
use mainspring_core::time::micros;

use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::op::now;
use crate::shared::Shared;
use crate::sql::{Present, Query, statement};

statement! {
    /// Unique index of names.
    pub(crate) FindLimits<'a> = "limits.find", by ["limits_scope_name_key"], (names: Vec<&'a str>) -> FoundLimit { no: i32, name: String };
    "SELECT l.no, l.name FROM unnest($1::text[]) AS u(name)
    CROSS JOIN LATERAL (SELECT no, name FROM mainspring.limits
        WHERE scope = {limit_scope.limit} AND name = u.name AND NOT deleted OFFSET 0) l"
}
statement! {
    /// A small table.
    pub(crate) AllNames = "limits.names", whole ("`limits` is bounded"), () -> NamedLimit { name: String };
    "SELECT name FROM mainspring.limits WHERE scope = {limit_scope.limit} AND NOT deleted ORDER BY name"
}
statement! {
    /// Unique index of keys, in their order: two who need the same new keys wait for each other once.
    pub(crate) AddKeys<'a> = "limits.add_keys", by ["limit_keys_limit_no_key_key"],
    (at: Present, limits: Vec<i32>, keys: Vec<&'a str>);
    concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.limit_keys (limit_no, key, used_at) SELECT u.limit_no, u.key, t.now
    FROM t CROSS JOIN unnest($2::int[], $3::text[]) AS u(limit_no, key)
    WHERE NOT EXISTS (SELECT 1 FROM mainspring.limit_keys k WHERE k.limit_no = u.limit_no AND k.key = u.key)
    ORDER BY u.limit_no, u.key ON CONFLICT (limit_no, key) DO NOTHING"
)
}
statement! {
    /// Unique index of keys.
    pub(crate) FindKeys<'a> = "limits.find_keys", by ["limit_keys_limit_no_key_key"],
    (limits: Vec<i32>, keys: Vec<&'a str>) -> FoundKey { position: i64, no: i64 };
    "SELECT u.o - 1, k.no FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u(limit_no, key, o)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.limit_keys WHERE limit_no = u.limit_no AND key = u.key OFFSET 0) k"
}
statement! {
    /// Unique index of groups, in their order.
    pub(crate) AddGroups<'a> = "limits.add_groups", by ["limit_groups_line_units_key"],
    (at: Present, lines: Vec<i32>, units: Vec<String>);
    concat!(
    "WITH ",
    now!(),
    ", u AS MATERIALIZED (SELECT u.line, u.units::bigint[] AS units FROM unnest($2::int[], $3::text[]) AS u(line, units))
    INSERT INTO mainspring.limit_groups (line, units, used_at) SELECT u.line, u.units, t.now FROM t CROSS JOIN u
    WHERE NOT EXISTS (SELECT 1 FROM mainspring.limit_groups g WHERE g.line = u.line AND g.units = u.units)
    ORDER BY u.line, u.units ON CONFLICT (line, units) DO NOTHING"
)
}
statement! {
    /// Unique index of groups; rows that were not used for a while are written. A prune that is about to remove one is waited for.
    pub(crate) UseGroups<'a> = "limits.use_groups", by ["limit_groups_line_units_key"],
    (at: Present, lines: Vec<i32>, units: Vec<String>, fresh: i64);
    concat!(
    "WITH ",
    now!(),
    "UPDATE mainspring.limit_groups SET used_at = t.now FROM t WHERE no = ANY(ARRAY(
        SELECT g.no FROM unnest($2::int[], $3::text[]) AS u(line, units)
        CROSS JOIN LATERAL (SELECT g.no FROM mainspring.limit_groups g WHERE g.line = u.line AND g.units = u.units::bigint[]
            AND g.used_at < (SELECT t.now FROM t) - $4 * interval '1 us' ORDER BY g.no FOR UPDATE) g))"
)
}
statement! {
    /// Unique index of groups; and their keys, whose rows a prune locks before it looks at groups. Nothing of a group that lacks
    /// one.
    pub(crate) FindGroups<'a> = "limits.find_groups", by ["limit_groups_line_units_key", "limit_keys_pkey"],
    (lines: Vec<i32>, units: Vec<String>) -> FoundGroup { position: i64, no: i32 };
    "SELECT u.o - 1, g.no FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u(line, units, o)
    CROSS JOIN LATERAL (SELECT no, g.units FROM mainspring.limit_groups g WHERE g.line = u.line AND g.units = u.units::bigint[] OFFSET 0) g
    WHERE NOT EXISTS (SELECT 1 FROM unnest(g.units) AS y(limit_key)
        WHERE NOT EXISTS (SELECT 1 FROM mainspring.limit_keys k WHERE k.no = y.limit_key))"
}
statement! {
    /// Primary key: waits for a prune that is about to remove one of these.
    pub(crate) HoldKeys<'a> = "limits.hold_keys", by ["limit_keys_pkey"], (nos: Vec<i64>);
    "SELECT count(*) FROM (SELECT DISTINCT u.no FROM unnest($1::bigint[]) AS u(no) ORDER BY u.no) u
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.limit_keys k WHERE k.no = u.no FOR KEY SHARE) k"
}

/// Groups that are cached at most.
const CACHED: usize = 100_000;
/// How long a group is cached.
const FRESH: Duration = Duration::from_hours(1);
/// How long a group is kept that has no jobs.
pub(crate) const UNUSED: Duration = Duration::from_hours(12);
/// How often groups are interned anew because somebody has removed what they need.
const ROUNDS: usize = 4;

/// A line, and what its jobs take of which limits.
type Group = (i32, Vec<LimitUse>);

/// What is known of groups.
#[derive(Default)]
pub(crate) struct GroupCache {
    /// The counter of settings changes under which limits were looked at.
    settings: String,
    groups: BTreeMap<Group, (i32, Duration)>,
}

impl GroupCache {
    fn find(&self, group: &Group, now: Duration) -> Option<i32> {
        self.groups.get(group).filter(|(_, since)| now.saturating_sub(*since) < FRESH).map(|(no, _)| *no)
    }

    /// A limit was changed.
    pub(crate) fn forget(&mut self) {
        self.groups.clear();
    }
}

/// The groups of these jobs, in order; made if they are the first. None of a job without limits.
pub(crate) async fn groups_of(
    conn: &mut Conn,
    shared: &Shared,
    jobs: &[New],
    lines: &[TicketLine],
) -> Result<Vec<Option<i32>>> {
    if jobs.iter().all(|job| job.options.limits.is_empty()) {
        return Ok(vec![None; jobs.len()]);
    }
    let group = |(job, line): (&New, &TicketLine)| {
        (!job.options.limits.is_empty()).then(|| (line.line, job.options.limits.clone()))
    };
    let wanted: Vec<Option<Group>> = jobs.iter().zip(lines).map(group).collect();
    for _ in 0..ROUNDS {
        let missing: BTreeSet<&Group> = {
            let (settings, now) = (shared.names().settings().to_owned(), shared.monotonic());
            let mut cache = shared.groups();
            if cache.settings != settings {
                cache.forget();
                cache.settings = settings;
            }
            wanted.iter().flatten().filter(|group| cache.find(group, now).is_none()).collect()
        };
        if !missing.is_empty() {
            intern(conn, shared, &missing.into_iter().collect::<Vec<_>>()).await?;
        }
        let (cache, now) = (shared.groups(), shared.monotonic());
        let found: Option<Vec<Option<i32>>> = wanted
            .iter()
            .map(|group| group.as_ref().map_or(Some(None), |it| cache.find(it, now).map(Some)))
            .collect();
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(corrupt("a limit group that was just added is missing"))
}

/// Makes groups known.
async fn intern(conn: &mut Conn, shared: &Shared, groups: &[&Group]) -> Result<()> {
    let uses: BTreeSet<(&LimitName, &str)> =
        groups.iter().flat_map(|(_, uses)| uses.iter().map(|one| (&one.limit, one.key.as_str()))).collect();
    let names: BTreeSet<&LimitName> = uses.iter().map(|(limit, _)| *limit).collect();
    let names: Vec<&str> = names.into_iter().map(LimitName::as_str).collect();
    let rows = conn.commit(shared, &[FindLimits { names: &names }.call()]).await?.pop().unwrap_or_default();
    let found: BTreeMap<String, i32> =
        FindLimits::rows(&rows)?.into_iter().map(|row| (row.name, row.no)).collect();
    let mut limits = Vec::with_capacity(uses.len());
    for (limit, _) in &uses {
        let Some(no) = found.get(limit.as_str()) else { return Err(unknown(conn, limit).await?.into()) };
        limits.push(*no);
    }
    let keys: Vec<&str> = uses.iter().map(|(_, key)| *key).collect();
    let at = shared.at();
    let calls = [
        AddKeys { at: &at, limits: &limits, keys: &keys }.call(),
        FindKeys { limits: &limits, keys: &keys }.call(),
    ];
    let rows = conn.commit(shared, &calls).await?.pop().unwrap_or_default();
    let mut numbers: BTreeMap<(&LimitName, &str), i64> = BTreeMap::new();
    let in_order: Vec<_> = uses.iter().collect();
    for FoundKey { position, no } in FindKeys::rows(&rows)? {
        if let Some(one) = usize::try_from(position).ok().and_then(|at| in_order.get(at)) {
            numbers.insert(**one, no);
        }
    }
    let (mut lines, mut units, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (line, uses) in groups {
        let mut of_group: Vec<i64> = Vec::new();
        for one in uses {
            let no = numbers.get(&(&one.limit, one.key.as_str()));
            let no = no.ok_or_else(|| corrupt("a limit key that was just added is missing"))?;
            of_group.extend(std::iter::repeat_n(*no, usize::from(one.units)));
        }
        of_group.sort_unstable();
        let text: Vec<String> = of_group.iter().map(ToString::to_string).collect();
        lines.push(*line);
        units.push(format!("{{{}}}", text.join(",")));
        all.extend(of_group);
    }
    let fresh = micros(UNUSED / 2);
    let calls = [
        AddGroups { at: &at, lines: &lines, units: &units }.call(),
        UseGroups { at: &at, lines: &lines, units: &units, fresh: &fresh }.call(),
        HoldKeys { nos: &all }.call(),
        FindGroups { lines: &lines, units: &units }.call(),
    ];
    let rows = conn.commit(shared, &calls).await?.pop().unwrap_or_default();
    let now = shared.monotonic();
    let mut cache = shared.groups();
    if cache.groups.len() + groups.len() > CACHED {
        cache.groups.clear();
    }
    for FoundGroup { position, no } in FindGroups::rows(&rows)? {
        if let Some(group) = usize::try_from(position).ok().and_then(|at| groups.get(at)) {
            cache.groups.insert((*group).clone(), (no, now));
        }
    }
    Ok(())
}

/// What is said of a limit that nobody has defined.
pub(crate) async fn unknown(conn: &mut Conn, limit: &LimitName) -> Result<mainspring_core::Error> {
    let rows = conn.send(&AllNames.call()).await?;
    let names: Vec<LimitName> =
        AllNames::rows(&rows)?.into_iter().filter_map(|row| LimitName::new(row.name).ok()).collect();
    Ok(limit::unknown(limit, names.iter()))
}
