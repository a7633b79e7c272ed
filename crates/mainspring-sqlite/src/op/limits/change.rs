//! Changes of limits, of their keys and of totals.
//!
//! A change holds for every claim that begins after it. Groups that are blocked get turns in the same commit, at a bounded number of
//! keys; the others are due at once, and a node's next look at the time goes on with them.
//!
//! # Invariants
//! - Every change that changes something is in the audit, in that commit.
//! - A total counts all claims of its lines from the commit on that introduces it.

use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::bounds;
use mainspring_core::limit::{
    self, Change, Definition, KeyChange, KeyState, Limit, LimitKey, LimitSeed, Total,
};
use mainspring_core::name::LimitName;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, named};
use rusqlite::{OptionalExtension, params};
use serde_json::{Value, json};

use super::{cache, counters, scope};
use crate::error::{Result, corrupt};
use crate::names::Line;
use crate::op::{as_i64, schedules, settings};
use crate::writer::Tx;

/// Unique index of scopes and names.
const PUT: &str = "INSERT INTO mainspring_limits (scope, name, definition) VALUES (?1, ?2, ?3)
    ON CONFLICT (scope, name) DO UPDATE SET definition = excluded.definition";
/// Unique index of scopes and names: as many as there may be.
const COUNT: &str = "SELECT count(*) FROM mainspring_limits WHERE scope = ?1 AND definition IS NOT NULL";
/// The keys of one limit, by the unique index, and for each a look at who is blocked there. For a person's change.
const WAKE: &str = "UPDATE mainspring_limit_keys SET due = ?2 WHERE limit_no = ?1
    AND EXISTS (SELECT 1 FROM mainspring_blocked_groups b WHERE b.limit_key = mainspring_limit_keys.no)";
/// Primary key.
const KEY: &str = "SELECT in_use, max, paused, next_free FROM mainspring_limit_keys WHERE no = ?1";
const SET_KEY: &str = "UPDATE mainspring_limit_keys SET max = ?2, paused = ?3 WHERE no = ?1";
const SET_IN_USE: &str = "UPDATE mainspring_limit_keys SET in_use = ?2 WHERE no = ?1";
/// A scan of `lease`, whose size is bounded by the slots of all nodes: all claims of these lines count in a total from now on.
const COUNT_CLAIMS: &str = named!(
    "UPDATE mainspring_lease SET flags = flags | {flag.limited} WHERE line IN (SELECT value FROM json_each(?1))"
);

/// Applies what code says.
pub(crate) fn seed(tx: &mut Tx<'_>, seeds: &[LimitSeed]) -> Result<Vec<Limit>> {
    let mut new = 0;
    for seed in seeds {
        seed.check()?;
        new += usize::from(find(tx, &seed.name)?.is_none());
    }
    check_room(tx, new)?;
    let mut limits = Vec::with_capacity(seeds.len());
    for seed in seeds {
        let before = find(tx, &seed.name)?;
        let after = seed.apply(before.as_ref());
        if let Some(after) = &after {
            let verb = if before.is_some() { "seed" } else { "create" };
            let who = format!("code {}", seed.seed.by);
            put(tx, before.as_ref(), after, verb, &who)?;
        }
        limits.extend(after.or(before));
    }
    Ok(limits)
}

/// Applies a person's change.
pub(crate) fn set(tx: &mut Tx<'_>, name: &LimitName, change: Change, who: &str) -> Result<Limit> {
    change.check()?;
    let before = find(tx, name)?;
    check_room(tx, usize::from(before.is_none()))?;
    let after = change.apply(name, before.as_ref(), who);
    if before.as_ref() != Some(&after) {
        put(tx, before.as_ref(), &after, change.verb(before.as_ref()), who)?;
    }
    Ok(after)
}

/// Takes a person's edit back.
pub(crate) fn reset(tx: &mut Tx<'_>, name: &LimitName, who: &str) -> Result<Limit> {
    let before = known(tx, name)?;
    let after = before.reset()?;
    if before != after {
        put(tx, Some(&before), &after, "reset", who)?;
    }
    Ok(after)
}

/// Forgets a limit. Tells whether there was one.
pub(crate) fn delete(tx: &mut Tx<'_>, name: &LimitName, who: &str) -> Result<bool> {
    let Some(before) = find(tx, name)? else { return Ok(false) };
    write(tx, scope::NAMED, name.as_str(), None)?;
    remember(tx, before.subject(), "delete", who, (Some(json!(before)), None))?;
    Ok(true)
}

fn find(tx: &mut Tx<'_>, name: &LimitName) -> Result<Option<Limit>> {
    Ok(tx.state.limits.named(tx.conn, name)?.and_then(|known| known.limit.clone()))
}

/// A limit that somebody defines.
fn known(tx: &mut Tx<'_>, name: &LimitName) -> Result<Limit> {
    match find(tx, name)? {
        Some(limit) => Ok(limit),
        None => Err(limit::unknown(name, cache::names(tx.conn)?.iter()).into()),
    }
}

/// Refuses so many new limits if that would be too many.
fn check_room(tx: &Tx<'_>, new: usize) -> Result<()> {
    if new == 0 {
        return Ok(());
    }
    let count: i64 = tx.conn.prepare_cached(COUNT)?.query_row([scope::NAMED], |row| row.get(0))?;
    let size = usize::try_from(count).unwrap_or(0) + new;
    if size > bounds::LIMITS {
        return Err(Error::TooLarge { what: "number of limits", size, limit: bounds::LIMITS }.into());
    }
    Ok(())
}

fn put(tx: &mut Tx<'_>, before: Option<&Limit>, after: &Limit, verb: &str, who: &str) -> Result<()> {
    write(tx, scope::NAMED, after.name.as_str(), Some(&json!(after)))?;
    let values = (before.map(|limit| json!(limit)), Some(json!(after)));
    remember(tx, after.subject(), verb, who, values)
}

/// Writes a definition, and lets in who has room now.
fn write(tx: &mut Tx<'_>, scope: i64, name: &str, definition: Option<&Value>) -> Result<()> {
    counters::save(tx)?;
    let text = definition.map(ToString::to_string);
    tx.conn.prepare_cached(PUT)?.execute(params![scope, name, text])?;
    settings::changed(tx)?;
    let found = tx.conn.prepare_cached(cache::BY_NAME)?.query_row(params![scope, name], |row| row.get(0));
    let limit: i64 = found?;
    tx.conn.prepare_cached(WAKE)?.execute(params![limit, tx.micros()])?;
    counters::wake(tx, bounds::BATCH)?;
    if counters::next_due(tx)?.is_some_and(|due| due <= tx.now) {
        tx.hints.due(tx.now);
    }
    Ok(())
}

fn remember(
    tx: &Tx<'_>,
    subject: Subject,
    verb: &str,
    who: &str,
    (old, new): (Option<Value>, Option<Value>),
) -> Result<()> {
    let (who, verb) = (who.to_owned(), verb.to_owned());
    schedules::remember(tx, &AuditEntry { no: 0, at: tx.now, who, subject, verb, request: None, old, new })
}

/// Changes one key.
pub(crate) fn set_key(
    tx: &mut Tx<'_>,
    name: &LimitName,
    key: &str,
    change: KeyChange,
    who: &str,
) -> Result<LimitKey> {
    limit::check_key(key)?;
    change.check()?;
    known(tx, name)?;
    counters::save(tx)?;
    let limit = tx.state.limits.named(tx.conn, name)?.map(|known| known.no);
    let limit = limit.ok_or_else(|| corrupt("a limit that has just been there"))?;
    let found = tx
        .conn
        .prepare_cached(cache::FIND_KEY)?
        .query_row(params![limit, key], |row| row.get::<_, i64>(0))
        .optional()?;
    let before = match found {
        Some(no) => tx.conn.prepare_cached(KEY)?.query_row([no], |row| read_state(row, 0))?,
        None => KeyState::default(),
    };
    let mut after = before;
    change.apply(&mut after);
    if before != after {
        let no = tx.state.limits.key(tx.conn, limit, key)?;
        tx.conn.prepare_cached(SET_KEY)?.execute(params![no, after.max, after.paused])?;
        counters::look_later(tx, no)?;
        let value = |state: &KeyState| Some(json!({ "key": key, "max": state.max, "paused": state.paused }));
        let values = (value(&before), value(&after));
        remember(tx, Subject::Limit(name.clone()), change.verb(), who, values)?;
    }
    Ok(LimitKey::new(name, key, &after))
}

/// The state of a key from four columns.
pub(crate) fn read_state(row: &rusqlite::Row<'_>, from: usize) -> rusqlite::Result<KeyState> {
    Ok(KeyState {
        in_use: u32::try_from(row.get::<_, i64>(from)?.max(0)).unwrap_or(u32::MAX),
        max: row.get(from + 1)?,
        paused: row.get(from + 2)?,
        next_free: row.get::<_, Option<i64>>(from + 3)?.map(Timestamp::from_micros),
    })
}

/// Sets a total, or removes it.
pub(crate) fn set_total(tx: &mut Tx<'_>, total: &Total, max: Option<u32>, who: &str) -> Result<()> {
    Total::check(max)?;
    let before = total_of(tx, total)?;
    if before == max {
        return Ok(());
    }
    if let Total::Queue(queue) = total {
        settings::name(tx, queue)?;
    }
    put_total(tx, total, before, max)?;
    let value = |max: Option<u32>| max.map(|max| json!({ "max_running": max }));
    remember(tx, total.subject(), "set", who, (value(before), value(max)))
}

/// Removes a total, if there is one.
pub(crate) fn remove_total(tx: &mut Tx<'_>, total: &Total) -> Result<()> {
    let before = total_of(tx, total)?;
    if before.is_some() { put_total(tx, total, before, None) } else { Ok(()) }
}

fn name_of(total: &Total) -> (i64, &str) {
    match total {
        Total::Queue(queue) => (scope::QUEUE, queue.as_str()),
        Total::Kind(kind) => (scope::KIND, kind.as_str()),
    }
}

fn total_of(tx: &Tx<'_>, total: &Total) -> Result<Option<u32>> {
    let (scope, name) = name_of(total);
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, Option<String>>(2)?));
    let found = tx.conn.prepare_cached(cache::BY_NAME)?.query_row(params![scope, name], row).optional()?;
    let Some((no, text)) = found else { return Ok(None) };
    Ok(cache::read_limit(no, scope, text.as_deref())?.and_then(|limit| limit.definition.max))
}

fn put_total(tx: &mut Tx<'_>, total: &Total, before: Option<u32>, max: Option<u32>) -> Result<()> {
    let (scope, name) = name_of(total);
    counters::save(tx)?;
    match total {
        Total::Queue(queue) => tx.state.names.intern_queue(tx.conn, queue)?,
        Total::Kind(kind) => tx.state.names.intern_kind(tx.conn, kind)?,
    };
    if before.is_none() {
        count_claims(tx, total)?;
    }
    let definition = max.map(|max| json!(Definition { max: Some(max), rate: None }));
    write(tx, scope, name, definition.as_ref())?;
    for (_, line) in tx.state.names.lines().filter(|(_, line)| counts_in(line, total)) {
        tx.hints.ready(&line.queue_name);
    }
    Ok(())
}

/// Whether jobs of a line count in a total.
fn counts_in(line: &Line, total: &Total) -> bool {
    match total {
        Total::Queue(queue) => line.queue_name == *queue,
        Total::Kind(kind) => line.kind_name == *kind,
    }
}

/// Counts the claims of a total that is new, which give their places back from now on.
fn count_claims(tx: &mut Tx<'_>, total: &Total) -> Result<()> {
    let (scope, name) = name_of(total);
    tx.conn.prepare_cached(PUT)?.execute(params![scope, name, None::<&str>])?;
    let limit: i64 =
        tx.conn.prepare_cached(cache::BY_NAME)?.query_row(params![scope, name], |row| row.get(0))?;
    let key = tx.state.limits.key(tx.conn, limit, "")?;
    let lines: Vec<i64> =
        tx.state.names.lines().filter(|(_, line)| counts_in(line, total)).map(|(no, _)| no).collect();
    let lines = serde_json::to_string(&lines).map_err(|error| corrupt(format!("lines: {error}")))?;
    let running = tx.conn.prepare_cached(COUNT_CLAIMS)?.execute([lines])?;
    tx.conn.prepare_cached(SET_IN_USE)?.execute(params![key, as_i64(running)])?;
    Ok(())
}
