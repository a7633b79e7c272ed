//! Schedules: rows that are compared, written, and enqueue jobs in the same transaction.

use std::collections::BTreeSet;

use mainspring_core::bounds;
use mainspring_core::job::New;
use mainspring_core::store::{Receipt, ScheduleWrite, Written};

use uuid::Uuid;

use super::{Op, enqueue, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::shared::Shared;
use crate::sql::statement::{FromRow as _, row};
use crate::sql::{At, Present, bound, statement};

row! {
    /// The name of a row that was written.
    pub(crate) WrittenName { name: String }
}
statement! {
    /// Primary key, in order of the names; rows that others are writing are stepped over. The version is compared again by the
    /// update, with the row as it is then.
    pub(crate) ChangeSchedules<'a> = "schedules.change", by ["schedules_pkey"],
    (
        names: Vec<&'a str>, versions: Vec<i64>, next_at: Vec<Option<At>>, definitions: Vec<String>, states: Vec<String>,
    ) -> WrittenName;
    "WITH u AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::text[])
            AS u(name, version, next_at, definition, state))
    , x AS MATERIALIZED (SELECT s.name FROM u CROSS JOIN LATERAL (SELECT c.name FROM mainspring.schedules c
        WHERE c.name = u.name AND c.version = u.version FOR UPDATE SKIP LOCKED) s ORDER BY s.name)
    UPDATE mainspring.schedules c SET version = c.version + 1, next_at = u.next_at, definition = u.definition::json,
        state = u.state::json
    FROM u WHERE c.name = u.name AND c.version = u.version AND c.name = ANY(ARRAY(SELECT x.name FROM x)) RETURNING c.name"
}
statement! {
    /// Primary key. A name that somebody else is adding is waited for: he commits at once.
    pub(crate) AddSchedules<'a> = "schedules.add", whole ("it appends"),
    (names: Vec<&'a str>, next_at: Vec<Option<At>>, definitions: Vec<String>, states: Vec<String>) -> WrittenName;
    "INSERT INTO mainspring.schedules (name, version, next_at, definition, state)
    SELECT u.name, 1, u.next_at, u.definition::json, u.state::json
    FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[]) AS u(name, next_at, definition, state)
    ORDER BY u.name ON CONFLICT (name) DO NOTHING RETURNING name"
}
statement! {
    /// Primary key, as [`ChangeSchedules`].
    pub(crate) RemoveSchedules<'a> = "schedules.remove", by ["schedules_pkey"],
    (names: Vec<&'a str>, versions: Vec<i64>) -> WrittenName;
    "WITH x AS MATERIALIZED (SELECT s.name FROM unnest($1::text[], $2::bigint[]) AS u(name, version)
        CROSS JOIN LATERAL (SELECT c.name FROM mainspring.schedules c
            WHERE c.name = u.name AND c.version = u.version FOR UPDATE SKIP LOCKED) s ORDER BY s.name)
    DELETE FROM mainspring.schedules c USING unnest($1::text[], $2::bigint[]) AS u(name, version)
    WHERE c.name = u.name AND c.version = u.version AND c.name = ANY(ARRAY(SELECT x.name FROM x)) RETURNING c.name"
}
statement! {
    /// An append.
    pub(crate) AddAudit<'a> = "schedules.add_audit", whole ("it appends"),
    (
        at: Present, who: Vec<&'a str>, subjects: Vec<String>, verbs: Vec<&'a str>,
        requests: Vec<Option<Uuid>>, old: Vec<Option<String>>, new: Vec<Option<String>>,
    );
    concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.audit (at, who, subject, verb, request, old, new)
    SELECT t.now, u.who, u.subject, u.verb, u.request, u.old::json, u.new::json
    FROM t, unnest($2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[]) WITH ORDINALITY
        AS u(who, subject, verb, request, old, new, o) ORDER BY u.o"
)
}
statement! {
    /// Index `audit_subject`: those beyond the bound.
    pub(crate) TrimAudit<'a> = "schedules.trim_audit", by ["audit_subject"], (subjects: Vec<String>, kept: i64);
    "DELETE FROM mainspring.audit a USING unnest($1::text[]) AS u(subject)
    WHERE a.subject = u.subject AND a.no <= (SELECT b.no FROM mainspring.audit b WHERE b.subject = u.subject
        ORDER BY b.no DESC LIMIT 1 OFFSET $2)"
}

/// Writes rows whose version is the expected one.
pub(crate) struct WriteSchedules(pub(crate) Vec<ScheduleWrite>);

/// Rows as arguments, one column each.
#[derive(Default)]
struct Rows<'a> {
    names: Vec<&'a str>,
    versions: Vec<i64>,
    next_at: Vec<Option<At>>,
    definitions: Vec<String>,
    states: Vec<String>,
}

impl<'a> Rows<'a> {
    fn add(&mut self, write: &'a ScheduleWrite) -> Result<()> {
        self.names.push(write.name.as_str());
        self.versions.push(write.expected.unwrap_or(0));
        let Some(row) = &write.row else { return Ok(()) };
        let text =
            |json: serde_json::Result<String>| json.map_err(|error| corrupt(format!("schedule: {error}")));
        self.next_at.push(row.next_at.map(At));
        self.definitions.push(text(serde_json::to_string(&row.definition))?);
        self.states.push(text(serde_json::to_string(&row.state))?);
        Ok(())
    }
}

/// What is remembered, one column each.
#[derive(Default)]
struct Entries<'a> {
    who: Vec<&'a str>,
    subjects: Vec<String>,
    verbs: Vec<&'a str>,
    requests: Vec<Option<Uuid>>,
    old: Vec<Option<String>>,
    new: Vec<Option<String>>,
}

impl<'a> Entries<'a> {
    fn new(writes: impl Iterator<Item = &'a ScheduleWrite>) -> Self {
        let mut entries = Entries::default();
        for entry in writes.filter_map(|write| write.audit.as_ref()) {
            entries.who.push(&entry.who);
            entries.subjects.push(entry.subject.to_string());
            entries.verbs.push(&entry.verb);
            entries.requests.push(entry.request);
            entries.old.push(entry.old.as_ref().map(ToString::to_string));
            entries.new.push(entry.new.as_ref().map(ToString::to_string));
        }
        entries
    }
}

impl Op for WriteSchedules {
    type Answer = Vec<Written>;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Written>> {
        let writes = &self.0;
        let all: Vec<New> = writes.iter().flat_map(|write| write.jobs.iter().cloned()).collect();
        let lines = names::lines_of(conn, shared, &all).await?;
        let won = compare(conn, shared, writes).await?;
        // What is left of the jobs, with their lines.
        let owners = writes.iter().flat_map(|write| write.jobs.iter().map(|_| write.name.as_str()));
        let chosen: Vec<bool> = owners.map(|name| won.contains(name)).collect();
        let keep = |index: &usize| chosen[*index];
        let jobs: Vec<New> = (0..all.len()).filter(keep).map(|index| all[index].clone()).collect();
        let lines: Vec<_> = (0..all.len()).filter(keep).map(|index| lines[index]).collect();
        let at = shared.at();
        let entries = Entries::new(writes.iter().filter(|write| won.contains(write.name.as_str())));
        let kept = bound(bounds::AUDIT);
        let remember = [
            AddAudit {
                at: &at,
                who: &entries.who,
                subjects: &entries.subjects,
                verbs: &entries.verbs,
                requests: &entries.requests,
                old: &entries.old,
                new: &entries.new,
            }
            .call(),
            TrimAudit { subjects: &entries.subjects, kept: &kept }.call(),
        ];
        let remember = if entries.subjects.is_empty() { &[][..] } else { &remember[..] };
        let receipts = if jobs.is_empty() {
            conn.end(remember).await?;
            Some(Vec::new())
        } else {
            if !remember.is_empty() {
                conn.step(remember).await?;
            }
            enqueue::within(conn, shared, &jobs, &lines).await?
        };
        let stored = receipts.is_some();
        if stored {
            announce(conn, shared, writes, &won).await;
        } else {
            conn.roll_back().await;
        }
        let mut receipts: std::vec::IntoIter<Receipt> = receipts.unwrap_or_default().into_iter();
        let answer = |write: &ScheduleWrite| match won.contains(write.name.as_str()) {
            false => Written::Stale,
            true if !stored => Written::Contended,
            true => Written::Stored(receipts.by_ref().take(write.jobs.len()).collect()),
        };
        Ok(writes.iter().map(answer).collect())
    }
}

/// Begins a transaction and writes what may be written: the names of that.
async fn compare(conn: &mut Conn, shared: &Shared, writes: &[ScheduleWrite]) -> Result<BTreeSet<String>> {
    let (mut changed, mut added, mut removed) = (Rows::default(), Rows::default(), Rows::default());
    for write in writes {
        match (write.expected, &write.row) {
            (Some(_), Some(_)) => changed.add(write)?,
            (None, Some(_)) => added.add(write)?,
            (_, None) => removed.add(write)?,
        }
    }
    let mut calls = Vec::new();
    if !changed.names.is_empty() {
        let Rows { names, versions, next_at, definitions, states } = &changed;
        calls.push(ChangeSchedules { names, versions, next_at, definitions, states }.call());
    }
    if !added.names.is_empty() {
        let Rows { names, next_at, definitions, states, .. } = &added;
        calls.push(AddSchedules { names, next_at, definitions, states }.call());
    }
    if !removed.names.is_empty() {
        calls.push(RemoveSchedules { names: &removed.names, versions: &removed.versions }.call());
    }
    let rows = conn.begin(shared, "", &calls).await?;
    rows.iter().flatten().map(|row| Ok(WrittenName::read(row)?.name)).collect()
}

/// Tells when to look at what was written.
async fn announce(conn: &mut Conn, shared: &Shared, writes: &[ScheduleWrite], won: &BTreeSet<String>) {
    let rows = writes.iter().filter(|write| won.contains(write.name.as_str()));
    if let Some(at) = rows.filter_map(|write| write.row.as_ref()?.next_at).min() {
        let mut hints = Hints::default();
        hints.due(at);
        hints.send(conn, shared).await;
    }
}
