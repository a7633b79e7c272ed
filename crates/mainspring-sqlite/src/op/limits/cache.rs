//! What is known of limits: definitions, the numbers of keys, and groups.
//!
//! Keys and groups are made when the first job names them, and removed when none does any more. What is cached here reflects the
//! counter of settings, which every change of a limit and every removal of a key or a group increments.
//!
//! # Invariants
//! - A group's uses are in the order of their keys' numbers, so two jobs that take the same are of one group.
//! - What a rolled back transaction has interned is forgotten with it: the writer drops the whole cache then.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainspring_core::bounds;
use mainspring_core::job::New;
use mainspring_core::limit::{self, Definition, Limit, LimitUse};
use mainspring_core::name::LimitName;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::scope;
use crate::error::{Result, corrupt};
use crate::names::{Line, Names};

/// Keys and groups that are remembered, each at most twice as many. A group takes some hundred bytes.
const REMEMBERED: usize = 50_000;

/// Primary key.
const BY_NO: &str = "SELECT no, scope, definition FROM mainspring_limits WHERE no = ?1";
/// Unique index of scopes and names.
pub(crate) const BY_NAME: &str =
    "SELECT no, scope, definition FROM mainspring_limits WHERE scope = ?1 AND name = ?2";
/// Unique index of scopes and names: at most as many limits as there may be, for an error.
const NAMES: &str = "SELECT name FROM mainspring_limits WHERE scope = ?1 AND definition IS NOT NULL";
/// Unique index of limits and keys.
pub(crate) const FIND_KEY: &str = "SELECT no FROM mainspring_limit_keys WHERE limit_no = ?1 AND key = ?2";
/// Safe against other processes: the transaction excludes them between the look-up and this.
const ADD_KEY: &str = "INSERT INTO mainspring_limit_keys (limit_no, key) VALUES (?1, ?2)";
/// Unique index of lines and uses.
pub(crate) const FIND_GROUP: &str = "SELECT no FROM mainspring_limit_groups WHERE line = ?1 AND uses = ?2";
/// As for keys.
const ADD_GROUP: &str = "INSERT INTO mainspring_limit_groups (line, uses) VALUES (?1, ?2)";
const ADD_KEY_GROUP: &str =
    "INSERT INTO mainspring_limit_key_groups (limit_key, limit_group) VALUES (?1, ?2)";
/// Primary key.
const GROUP: &str = "SELECT line, uses FROM mainspring_limit_groups WHERE no = ?1";
/// The rows of totals, which are as few as queues and kinds that have one; only when settings have changed.
const TOTALS: &str = "SELECT l.scope, l.name, k.no FROM mainspring_limits l
    JOIN mainspring_limit_keys k ON k.limit_no = l.no AND k.key = '' WHERE l.scope > ?1 AND l.definition IS NOT NULL";

/// A limit with its number.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) no: i64,
    /// `None` if nobody defines it.
    pub(crate) limit: Option<Limit>,
}

/// Limited jobs of one line that take the same.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) line: i64,
    /// Numbers of keys, and units of each.
    pub(crate) uses: Vec<(i64, u16)>,
}

/// What is cached of limits.
#[derive(Default)]
pub(crate) struct Cache {
    /// The counter of settings that this reflects.
    settings: i64,
    limits: BTreeMap<i64, Arc<Known>>,
    names: BTreeMap<LimitName, i64>,
    keys: Recent<(i64, String), i64>,
    groups: Recent<(i64, String), i64>,
    by_no: Recent<i64, Arc<Group>>,
    /// Keys of the totals of queues and of kinds, by their numbers.
    queues: BTreeMap<i64, i64>,
    kinds: BTreeMap<i64, i64>,
}

impl Cache {
    /// Forgets what a change of settings may have made untrue.
    pub(crate) fn refresh(&mut self, conn: &Connection, names: &Names) -> Result<()> {
        if self.settings == names.settings() {
            return Ok(());
        }
        *self = Cache { settings: names.settings(), ..Cache::default() };
        let mut statement = conn.prepare_cached(TOTALS)?;
        let mut rows = statement.query([scope::NAMED])?;
        while let Some(row) = rows.next()? {
            let (scope, name, key): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if scope == scope::QUEUE {
                self.queues.extend(names.queue_named(&name).map(|no| (no, key)));
            } else {
                self.kinds.extend(names.kind_named(&name).map(|no| (no, key)));
            }
        }
        Ok(())
    }

    /// Whether any queue or kind has a total.
    pub(crate) fn has_totals(&self) -> bool {
        !(self.queues.is_empty() && self.kinds.is_empty())
    }

    /// The keys of the totals of a line: of its queue, and of its kind.
    pub(crate) fn totals(&self, line: &Line) -> impl Iterator<Item = i64> + use<> {
        let found = [self.queues.get(&line.queue).copied(), self.kinds.get(&line.kind).copied()];
        found.into_iter().flatten()
    }

    /// A limit by its number; `None` if it is none, or nobody defines it.
    pub(crate) fn limit(&mut self, conn: &Connection, no: i64) -> Result<Option<Arc<Known>>> {
        if let Some(known) = self.limits.get(&no) {
            return Ok(Some(Arc::clone(known)));
        }
        let found = conn.prepare_cached(BY_NO)?.query_row([no], columns).optional()?;
        found.map(|columns| self.know(columns)).transpose()
    }

    /// A limit that jobs name.
    pub(crate) fn named(&mut self, conn: &Connection, name: &LimitName) -> Result<Option<Arc<Known>>> {
        if let Some(known) = self.names.get(name).and_then(|no| self.limits.get(no)) {
            return Ok(Some(Arc::clone(known)));
        }
        let values = params![scope::NAMED, name.as_str()];
        let found = conn.prepare_cached(BY_NAME)?.query_row(values, columns).optional()?;
        let Some(columns) = found else { return Ok(None) };
        self.names.insert(name.clone(), columns.0);
        self.know(columns).map(Some)
    }

    fn know(&mut self, (no, scope, text): Columns) -> Result<Arc<Known>> {
        let known = Arc::new(Known { no, limit: read_limit(no, scope, text.as_deref())? });
        self.limits.insert(no, Arc::clone(&known));
        Ok(known)
    }

    /// The number of a key, made if it is the first time that it is named.
    pub(crate) fn key(&mut self, conn: &Connection, limit: i64, key: &str) -> Result<i64> {
        let wanted = (limit, key.to_owned());
        if let Some(no) = self.keys.get(&wanted) {
            return Ok(*no);
        }
        let found =
            conn.prepare_cached(FIND_KEY)?.query_row(params![limit, key], |row| row.get(0)).optional()?;
        let no = if let Some(no) = found {
            no
        } else {
            conn.prepare_cached(ADD_KEY)?.execute(params![limit, key])?;
            conn.last_insert_rowid()
        };
        self.keys.insert(wanted, no);
        Ok(no)
    }

    /// The group of jobs of a line that take these, made if it is the first time. Limits that are not there are left out; `None` if
    /// none is left.
    pub(crate) fn group_of(
        &mut self,
        conn: &Connection,
        line: i64,
        uses: &[LimitUse],
    ) -> Result<Option<i64>> {
        let mut numbers = Vec::with_capacity(uses.len());
        for one in uses {
            if let Some(known) = self.named(conn, &one.limit)? {
                numbers.push((self.key(conn, known.no, &one.key)?, one.units));
            }
        }
        if numbers.is_empty() {
            return Ok(None);
        }
        numbers.sort_unstable();
        let text = serde_json::to_string(&numbers).map_err(|error| corrupt(format!("uses: {error}")))?;
        let wanted = (line, text);
        if let Some(no) = self.groups.get(&wanted) {
            return Ok(Some(*no));
        }
        let found = conn
            .prepare_cached(FIND_GROUP)?
            .query_row(params![line, wanted.1], |row| row.get(0))
            .optional()?;
        let no = if let Some(no) = found {
            no
        } else {
            conn.prepare_cached(ADD_GROUP)?.execute(params![line, wanted.1])?;
            let no = conn.last_insert_rowid();
            for (key, _) in &numbers {
                conn.prepare_cached(ADD_KEY_GROUP)?.execute([*key, no])?;
            }
            no
        };
        self.by_no.insert(no, Arc::new(Group { line, uses: numbers }));
        self.groups.insert(wanted, no);
        Ok(Some(no))
    }

    /// A group by its number; `None` if it is none, or cannot be read.
    pub(crate) fn group(&mut self, conn: &Connection, no: i64) -> Result<Option<Arc<Group>>> {
        if let Some(group) = self.by_no.get(&no) {
            return Ok(Some(Arc::clone(group)));
        }
        let columns = |row: &Row<'_>| Ok((row.get(0).ok(), row.get::<_, String>(1).ok()));
        let found = conn.prepare_cached(GROUP)?.query_row([no], columns).optional()?;
        let Some((Some(line), Some(text))) = found else { return Ok(None) };
        let Ok(uses) = read_uses(&text) else { return Ok(None) };
        let group = Arc::new(Group { line, uses });
        self.by_no.insert(no, Arc::clone(&group));
        Ok(Some(group))
    }
}

/// Checks that every limit that jobs name is there, before anything is written.
pub(crate) fn check<'j>(
    cache: &mut Cache,
    conn: &Connection,
    jobs: impl IntoIterator<Item = &'j New>,
) -> Result<()> {
    let mut last: Option<&LimitName> = None;
    for one in jobs.into_iter().flat_map(|job| &job.options.limits) {
        if last == Some(&one.limit) {
            continue;
        }
        if cache.named(conn, &one.limit)?.is_none_or(|known| known.limit.is_none()) {
            return Err(limit::unknown(&one.limit, names(conn)?.iter()).into());
        }
        last = Some(&one.limit);
    }
    Ok(())
}

/// The names of all limits that somebody defines.
pub(crate) fn names(conn: &Connection) -> Result<Vec<LimitName>> {
    let mut statement = conn.prepare_cached(NAMES)?;
    let mut rows = statement.query([scope::NAMED])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        names.push(LimitName::new(row.get::<_, String>(0)?).map_err(|error| corrupt(error.to_string()))?);
    }
    Ok(names)
}

/// Numbers of keys and units, from their column.
pub(crate) fn read_uses(text: &str) -> Result<Vec<(i64, u16)>> {
    let uses: Vec<(i64, u16)> =
        serde_json::from_str(text).map_err(|error| corrupt(format!("uses of a group: {error}")))?;
    if uses.iter().any(|(_, units)| !(1..=bounds::UNITS).contains(units)) {
        return Err(corrupt("units of a group that are none"));
    }
    Ok(uses)
}

/// Number, scope and definition.
type Columns = (i64, i64, Option<String>);

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

/// A limit from its columns; a total as a limit without a name of its own.
pub(crate) fn read_limit(no: i64, scope: i64, text: Option<&str>) -> Result<Option<Limit>> {
    let bad = |error: serde_json::Error| corrupt(format!("limit {no}: {error}"));
    let Some(text) = text else { return Ok(None) };
    if scope == scope::NAMED {
        return serde_json::from_str(text).map(Some).map_err(bad);
    }
    let definition: Definition = serde_json::from_str(text).map_err(bad)?;
    let name = LimitName::new("total")?;
    Ok(Some(Limit { name, definition, paused: false, seed: None, edited_by: None }))
}

/// What was looked up lately: no more than a bound, and always what was asked for last.
struct Recent<K, V> {
    young: BTreeMap<K, V>,
    /// What was young before; dropped when the young ones are as many as are remembered.
    old: BTreeMap<K, V>,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Recent { young: BTreeMap::new(), old: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, V> Recent<K, V> {
    fn get(&mut self, key: &K) -> Option<&V> {
        if let Some((key, value)) = self.old.remove_entry(key) {
            self.insert(key, value);
        }
        self.young.get(key)
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}
