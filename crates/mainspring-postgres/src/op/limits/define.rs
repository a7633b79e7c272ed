//! Definitions of limits, settings of their keys, and totals; and what a change of them lets in.
//!
//! Whoever changes a definition holds the lock of names, so definitions change one after the other. The last statements take the lock
//! of settings for themselves: all claims that are on their way are over then, and every later one decides by the new
//! definition. After that commit, keys with blocked groups are looked at, some at a time; if that is cut short, a promotion goes on.

use std::collections::BTreeMap;

use mainspring_core::audit::{Subject, check_who};
use mainspring_core::limit::{self, Change, KeyChange, KeyState, Limit, LimitKey, LimitSeed};
use mainspring_core::name::LimitName;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, bounds};
use serde_json::{Value, json};
use uuid::Uuid;

use super::groups::{self, AddKeys};
use super::settle::{self, LockKeys, OpenKeys};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::names::{self, Lock};
use crate::op::Op;
use crate::op::schedules::{AddAudit, TrimAudit};
use crate::op::settings::AddChange;
use crate::shared::Shared;
use crate::sql::statement::row;
use crate::sql::{Call, Present, Query, bound, statement};

statement! {
    /// Advisory lock: waits for all claims that are on their way. Later ones wait for it, and see what is committed with it.
    pub(crate) LockSettings<'a> = "limits.lock_settings", whole ("it touches no table"), (class: i32);
    "SELECT pg_advisory_xact_lock($1, -3)"
}
statement! {
    /// Unique index of names.
    pub(crate) FindDefinitions<'a> = "limits.definitions", by ["limits_scope_name_key"],
    (names: Vec<&'a str>) -> DefinitionRow { no: i32, definition: Option<String> };
    "SELECT l.no, l.definition::text FROM unnest($1::text[]) AS u(name)
    CROSS JOIN LATERAL (SELECT no, definition FROM mainspring.limits
        WHERE scope = {limit_scope.limit} AND name = u.name AND NOT deleted OFFSET 0) l"
}
statement! {
    /// A small table.
    pub(crate) AllDefinitions = "limits.all", whole ("`limits` is bounded"), () -> DefinitionRow;
    "SELECT no, definition::text FROM mainspring.limits WHERE scope = {limit_scope.limit} AND NOT deleted ORDER BY name"
}
statement! {
    /// A small table.
    pub(crate) CountLimits = "limits.count", whole ("`limits` is bounded"), () -> LimitCount { count: i64 };
    "SELECT count(*) FROM mainspring.limits WHERE scope = {limit_scope.limit} AND NOT deleted"
}
statement! {
    /// Unique index of names. The locks of names and settings are held. Nobody is blocked at a limit that is new.
    pub(crate) PutLimits<'a> = "limits.put", by ["limits_scope_name_key"],
    (
        names: Vec<&'a str>, maxima: Vec<Option<i32>>, intervals: Vec<Option<i64>>, bursts: Vec<Option<i32>>,
        paused: Vec<bool>, deleted: Vec<bool>, definitions: Vec<Option<String>>,
    );
    "INSERT INTO mainspring.limits AS l (scope, name, max, interval, burst, paused, deleted, definition, swept)
    SELECT {limit_scope.limit}, u.name, u.max, u.interval, u.burst, u.paused, u.deleted, u.definition::json, true
    FROM unnest($1::text[], $2::int[], $3::bigint[], $4::int[], $5::boolean[], $6::boolean[], $7::text[])
        AS u(name, max, interval, burst, paused, deleted, definition)
    ON CONFLICT (scope, name) DO UPDATE SET max = excluded.max, interval = excluded.interval, burst = excluded.burst,
        paused = excluded.paused, deleted = excluded.deleted, definition = excluded.definition, swept = false"
}
statement! {
    /// Partial index `limits_unswept`.
    pub(crate) FindUnswept = "limits.unswept", by ["limits_unswept"], () -> Unswept { no: i32, definition: Option<String> };
    "SELECT no, definition::text FROM mainspring.limits WHERE NOT swept ORDER BY no LIMIT 1"
}
statement! {
    /// Unique index of keys, from a key on: all keys of one limit, once per change of it.
    pub(crate) FindBlocked<'a> = "limits.find_blocked", by ["limit_keys_limit_no_key_key"],
    (limit_no: i32, after: &'a str, first: bool, limit: i64) -> BlockedKey { no: i64, key: String };
    "SELECT no, key FROM mainspring.limit_keys WHERE limit_no = $1 AND (key > $2 OR $3) AND blocked > 0 ORDER BY key LIMIT $4"
}
statement! {
    /// Primary key. A later change has another definition, and is swept by itself.
    pub(crate) MarkSwept<'a> = "limits.mark_swept", by ["limits_pkey"], (no: i32, definition: Option<String>);
    "UPDATE mainspring.limits SET swept = true WHERE no = $1 AND definition::text IS NOT DISTINCT FROM $2"
}

row! {
    /// A key with its counters.
    pub(crate) KeyRow {
        no: i64, key: String, in_use: i32, max: Option<i32>, paused: bool, next_free: Option<i64>,
    }
}
statement! {
    /// Unique index of keys.
    pub(crate) FindKey<'a> = "limits.key", by ["limit_keys_limit_no_key_key"], (limit_no: i32, key: &'a str) -> KeyRow;
    "SELECT no, key, in_use, max, paused, next_free FROM mainspring.limit_keys WHERE limit_no = $1 AND key = $2"
}
statement! {
    /// Primary key, from its newest row on, which is locked.
    pub(crate) PutKey<'a> = "limits.put_key", by ["limit_keys_pkey"], (no: i64, max: Option<i32>, paused: bool);
    "UPDATE mainspring.limit_keys SET max = $2, paused = $3 WHERE no = $1"
}

/// Keys that one transaction looks at after a change.
const KEYS: i64 = 1_000;

/// One limit that changes.
struct Written {
    name: LimitName,
    before: Option<Limit>,
    after: Option<Limit>,
    verb: &'static str,
    who: String,
}

/// Definitions by their names.
pub(crate) type Definitions = BTreeMap<LimitName, (i32, Limit)>;

pub(crate) fn definitions(rows: Vec<DefinitionRow>) -> Result<Definitions> {
    let read = |row: DefinitionRow| {
        let text = row.definition.unwrap_or_default();
        let limit: Limit = serde_json::from_str(&text).map_err(|error| corrupt(format!("limit: {error}")))?;
        Ok((limit.name.clone(), (row.no, limit)))
    };
    rows.into_iter().map(read).collect()
}

/// Begins a change: the definitions of these names, which change no more until the end of the transaction; and how many limits there are.
async fn begin(conn: &mut Conn, shared: &Shared, names: &Vec<&str>) -> Result<(Definitions, usize)> {
    let class = shared.class();
    let calls = [Lock { class: &class }.call(), FindDefinitions { names }.call(), CountLimits.call()];
    let rows = conn.begin(shared, "", &calls).await?;
    let count = CountLimits::first(&rows[2])?.map_or(0, |row| row.count);
    Ok((definitions(FindDefinitions::rows(&rows[1])?)?, usize::try_from(count).unwrap_or(0)))
}

/// Refuses so many new limits if that would be too many.
fn check_room(count: usize, new: usize) -> Result<()> {
    let size = count + new;
    if new > 0 && size > bounds::LIMITS {
        return Err(Error::TooLarge { what: "number of limits", size, limit: bounds::LIMITS }.into());
    }
    Ok(())
}

/// Writes definitions, ends the transaction, and lets in whoever has room now.
async fn end(conn: &mut Conn, shared: &Shared, written: &[Written]) -> Result<()> {
    if written.is_empty() {
        conn.end(&[]).await?;
        return Ok(());
    }
    let (mut names, mut maxima, mut intervals, mut bursts) = (vec![], vec![], vec![], vec![]);
    let (mut paused, mut deleted, mut texts) = (vec![], vec![], vec![]);
    let mut audit = Audit::default();
    let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for one in written {
        let limit = one.after.as_ref().or(one.before.as_ref());
        let Some(limit) = limit else { continue };
        names.push(one.name.as_str());
        maxima.push(limit.definition.max.map(number));
        intervals.push(limit.definition.rate.map(|rate| rate.interval()));
        bursts.push(limit.definition.rate.map(|rate| number(rate.burst)));
        paused.push(limit.paused);
        deleted.push(one.after.is_none());
        texts.push(Some(json!(limit).to_string()));
        let value = |limit: &Option<Limit>| limit.as_ref().map(|limit| json!(limit));
        audit.add(
            &Subject::Limit(one.name.clone()),
            one.verb,
            &one.who,
            (value(&one.before), value(&one.after)),
        );
    }
    let (at, class, kept) = (shared.at(), shared.class(), bound(bounds::AUDIT));
    let put = PutLimits {
        names: &names,
        maxima: &maxima,
        intervals: &intervals,
        bursts: &bursts,
        paused: &paused,
        deleted: &deleted,
        definitions: &texts,
    };
    let mut calls = vec![LockSettings { class: &class }.call(), put.call()];
    calls.extend(audit.calls(&at, &kept));
    calls.push(AddChange.call());
    conn.end(&calls).await?;
    learn(conn, shared).await;
    sweep_all(conn, shared).await;
    Ok(())
}

/// Reads settings again after a change is made. Who does not know of it yet finds out by the counter, and so does this handle.
pub(super) async fn learn(conn: &mut Conn, shared: &Shared) {
    shared.groups().forget();
    if let Err(fault) = names::refresh(conn, shared).await {
        tracing::debug!(?fault, "settings were not read again");
    }
}

/// Lets in whoever has room since limits were changed. A failure is not worth a word: the next promotion makes up for it.
pub(crate) async fn sweep_all(conn: &mut Conn, shared: &Shared) {
    if let Err(fault) = sweep(conn, shared).await {
        conn.roll_back().await;
        tracing::debug!(?fault, "keys of a changed limit were not looked at");
    }
}

async fn sweep(conn: &mut Conn, shared: &Shared) -> Result<()> {
    for _ in 0..bounds::LIMITS {
        let rows = conn.send(&FindUnswept.call()).await?;
        let Some(Unswept { no, definition }) = FindUnswept::first(&rows)? else { break };
        let mut after: Option<String> = None;
        loop {
            let (behind, first) = (after.clone().unwrap_or_default(), after.is_none());
            let behind = behind.as_str();
            let find = FindBlocked { limit_no: &no, after: &behind, first: &first, limit: &KEYS };
            let keys = FindBlocked::rows(&conn.send(&find.call()).await?)?;
            let Some(last) = keys.last().map(|key| key.key.clone()) else { break };
            open(conn, shared, &keys.into_iter().map(|key| key.no).collect()).await?;
            after = Some(last);
        }
        conn.commit(shared, &[MarkSwept { no: &no, definition: &definition }.call()]).await?;
    }
    Ok(())
}

/// Gives turns to groups that are blocked at these keys, as far as there is room.
pub(crate) async fn open(conn: &mut Conn, shared: &Shared, nos: &Vec<i64>) -> Result<()> {
    let at = shared.at();
    let rows = conn.commit(shared, &[LockKeys { nos }.call(), OpenKeys { at: &at }.call()]).await?;
    settle::announce(conn, shared, rows.last().map_or(&[], Vec::as_slice)).await;
    Ok(())
}

/// What is remembered of changes, one column each.
#[derive(Default)]
pub(super) struct Audit<'a> {
    who: Vec<&'a str>,
    subjects: Vec<String>,
    verbs: Vec<&'a str>,
    requests: Vec<Option<Uuid>>,
    old: Vec<Option<String>>,
    new: Vec<Option<String>>,
}

impl<'a> Audit<'a> {
    pub(super) fn add(
        &mut self,
        subject: &Subject,
        verb: &'a str,
        who: &'a str,
        (old, new): (Option<Value>, Option<Value>),
    ) {
        self.who.push(who);
        self.subjects.push(subject.to_string());
        self.verbs.push(verb);
        self.requests.push(None);
        self.old.push(old.map(|value| value.to_string()));
        self.new.push(new.map(|value| value.to_string()));
    }

    pub(super) fn calls<'c>(&'c self, at: &'c Present, kept: &'c i64) -> [Call<'c>; 2] {
        let Audit { who, subjects, verbs, requests, old, new } = self;
        [
            AddAudit { at, who, subjects, verbs, requests, old, new }.call(),
            TrimAudit { subjects, kept }.call(),
        ]
    }
}

/// Applies what code says of limits.
pub(crate) struct SeedLimits(pub(crate) Vec<LimitSeed>);

impl Op for SeedLimits {
    type Answer = Vec<Limit>;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Limit>> {
        for seed in &self.0 {
            seed.check()?;
        }
        let names: Vec<&str> = self.0.iter().map(|seed| seed.name.as_str()).collect();
        // Processes that start say what is known already: nobody waits for them.
        let rows =
            conn.commit(shared, &[FindDefinitions { names: &names }.call()]).await?.pop().unwrap_or_default();
        let mut known = definitions(FindDefinitions::rows(&rows)?)?;
        let changes = |known: &Definitions| {
            self.0.iter().any(|seed| seed.apply(known.get(&seed.name).map(|(_, limit)| limit)).is_some())
        };
        if changes(&known) {
            let (found, count) = begin(conn, shared, &names).await?;
            known = found;
            check_room(count, self.0.iter().filter(|seed| !known.contains_key(&seed.name)).count())?;
            let mut written = Vec::new();
            for seed in &self.0 {
                let before = known.get(&seed.name).map(|(_, limit)| limit.clone());
                let Some(after) = seed.apply(before.as_ref()) else { continue };
                let verb = if before.is_some() { "seed" } else { "create" };
                let who = format!("code {}", seed.seed.by);
                known.insert(seed.name.clone(), (0, after.clone()));
                written.push(Written { name: seed.name.clone(), before, after: Some(after), verb, who });
            }
            end(conn, shared, &written).await?;
        }
        Ok(self.0.iter().filter_map(|seed| known.get(&seed.name)).map(|(_, limit)| limit.clone()).collect())
    }
}

/// Applies a person's change.
pub(crate) struct SetLimit {
    pub(crate) name: LimitName,
    pub(crate) change: Change,
    pub(crate) who: String,
}

impl Op for SetLimit {
    type Answer = Limit;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Limit> {
        let SetLimit { name, change, who } = self;
        change.check()?;
        check_who(who)?;
        let (mut found, count) = begin(conn, shared, &vec![name.as_str()]).await?;
        let before = found.remove(name).map(|(_, limit)| limit);
        check_room(count, usize::from(before.is_none()))?;
        let after = change.apply(name, before.as_ref(), who);
        let verb = change.verb(before.as_ref());
        let changed = before.as_ref() != Some(&after);
        let one = Written { name: name.clone(), before, after: Some(after.clone()), verb, who: who.clone() };
        end(conn, shared, if changed { std::slice::from_ref(&one) } else { &[] }).await?;
        Ok(after)
    }
}

/// Takes a person's edit back.
pub(crate) struct ResetLimit {
    pub(crate) name: LimitName,
    pub(crate) who: String,
}

impl Op for ResetLimit {
    type Answer = Limit;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Limit> {
        let ResetLimit { name, who } = self;
        check_who(who)?;
        let (mut found, _) = begin(conn, shared, &vec![name.as_str()]).await?;
        let Some((_, before)) = found.remove(name) else {
            return Err(groups::unknown(conn, name).await?.into());
        };
        let after = before.reset()?;
        let changed = before != after;
        let one = Written {
            name: name.clone(),
            before: Some(before),
            after: Some(after.clone()),
            verb: "reset",
            who: who.clone(),
        };
        end(conn, shared, if changed { std::slice::from_ref(&one) } else { &[] }).await?;
        Ok(after)
    }
}

/// Forgets a limit.
pub(crate) struct DeleteLimit {
    pub(crate) name: LimitName,
    pub(crate) who: String,
}

impl Op for DeleteLimit {
    type Answer = bool;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<bool> {
        let DeleteLimit { name, who } = self;
        check_who(who)?;
        let (mut found, _) = begin(conn, shared, &vec![name.as_str()]).await?;
        let before = found.remove(name).map(|(_, limit)| limit);
        let there = before.is_some();
        let one = Written { name: name.clone(), before, after: None, verb: "delete", who: who.clone() };
        end(conn, shared, if there { std::slice::from_ref(&one) } else { &[] }).await?;
        Ok(there)
    }
}

/// All limits, sorted.
pub(crate) struct ListLimits;

impl Op for ListLimits {
    type Answer = Vec<Limit>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Limit>> {
        let rows = conn.commit(shared, &[AllDefinitions.call()]).await?.pop().unwrap_or_default();
        Ok(definitions(AllDefinitions::rows(&rows)?)?.into_values().map(|(_, limit)| limit).collect())
    }
}

impl KeyRow {
    /// The key's state.
    pub(crate) fn state(&self) -> KeyState {
        KeyState {
            in_use: u32::try_from(self.in_use).unwrap_or(0),
            max: self.max.and_then(|max| u32::try_from(max).ok()),
            paused: self.paused,
            next_free: self.next_free.map(Timestamp::from_micros),
        }
    }
}

/// Changes one key of a limit.
pub(crate) struct SetLimitKey {
    pub(crate) limit: LimitName,
    pub(crate) key: String,
    pub(crate) change: KeyChange,
    pub(crate) who: String,
}

impl Op for SetLimitKey {
    type Answer = LimitKey;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<LimitKey> {
        let SetLimitKey { limit: name, key, change, who } = self;
        limit::check_key(key)?;
        change.check()?;
        check_who(who)?;
        let (mut found, _) = begin(conn, shared, &vec![name.as_str()]).await?;
        let Some((limit_no, _)) = found.remove(name) else {
            return Err(groups::unknown(conn, name).await?.into());
        };
        let (at, class, key) = (shared.at(), shared.class(), key.as_str());
        let (limits, keys) = (vec![limit_no], vec![key]);
        let find = FindKey { limit_no: &limit_no, key: &key };
        let calls = [AddKeys { at: &at, limits: &limits, keys: &keys }.call(), find.call()];
        let rows = conn.step(&calls).await?.pop().unwrap_or_default();
        let row =
            FindKey::first(&rows)?.ok_or_else(|| corrupt("a limit key that was just added is missing"))?;
        let before = row.state();
        let mut after = before;
        change.apply(&mut after);
        let shown = LimitKey::new(name, key, &after);
        if before == after {
            conn.end(&[]).await?;
            return Ok(shown);
        }
        let value = |state: &KeyState| Some(json!({ "key": key, "max": state.max, "paused": state.paused }));
        let mut audit = Audit::default();
        audit.add(&Subject::Limit(name.clone()), change.verb(), who, (value(&before), value(&after)));
        let max = after.max.map(|max| i32::try_from(max).unwrap_or(i32::MAX));
        let (kept, nos) = (bound(bounds::AUDIT), vec![row.no]);
        let mut calls = Vec::from(audit.calls(&at, &kept));
        // No claim decides by what was: keys are locked last.
        calls.push(LockSettings { class: &class }.call());
        calls.push(LockKeys { nos: &nos }.call());
        calls.push(PutKey { no: &row.no, max: &max, paused: &after.paused }.call());
        calls.push(OpenKeys { at: &at }.call());
        let rows = conn.end(&calls).await?.pop().unwrap_or_default();
        settle::announce(conn, shared, &rows).await;
        Ok(shown)
    }
}
