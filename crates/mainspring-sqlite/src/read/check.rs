//! The self-check: looks for what must not be there.
//!
//! Part by part, each in a read transaction of its own, so that nobody's log waits for a look at the whole file: the tables
//! one by one, then jobs by ranges of their numbers, and then what can only be asked of everything at once. Questions are
//! statements that give one line of text per violation; columns are decoded as a claim and a look at a job decode them.

use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::Options;
use mainspring_core::named;
use mainspring_core::store::{CheckPart, Checked, Finding};
use rusqlite::{OptionalExtension, Row, params};

use super::Reader;
use super::schedules;
use crate::error::{Fault, Result, corrupt, legible};
use crate::op::inbox::{read_message, read_waits};
use crate::op::journal::read_entry;

/// How long one part may take. Most take moments.
pub(crate) const PATIENCE: Duration = Duration::from_mins(10);
/// Jobs that one part looks at.
const CHUNK: i64 = 20_000;
/// Findings of one kind that one part tells.
const LISTED: usize = 10;

/// The tables, in order: the first parts.
const TABLES: &str = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'mainspring_*'
    ORDER BY name LIMIT 1 OFFSET ?1";
/// Primary key of `jobs`: where a range ends, and the highest number.
const RANGE: &str = "SELECT max(no), (SELECT max(no) FROM mainspring_jobs) FROM (
    SELECT no FROM mainspring_jobs WHERE no > ?1 ORDER BY no LIMIT ?2)";
/// Primary key.
const ID: &str = "SELECT id FROM mainspring_jobs WHERE no = ?1";

/// What to ask of a range of jobs, by their numbers, and what a person can do if there is an answer. All by primary keys and
/// the indexes by number.
const OF_A_RANGE: [(&str, &str); 10] = [
    // Each job is in exactly one place.
    (
        "SELECT 'job number ' || j.no || ' is in ' || count(p.place) || ' places: ' ||
                coalesce(group_concat(p.place, ', '), 'none')
         FROM mainspring_jobs j LEFT JOIN (
            SELECT no, 'ready' AS place FROM mainspring_ready WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'limited' AS place FROM mainspring_limited WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'timers' AS place FROM mainspring_timers WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'suspended' AS place FROM mainspring_suspended WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'lease' AS place FROM mainspring_lease WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'done' AS place FROM mainspring_done WHERE no > ?1 AND no <= ?2 AND superseded = 0) p ON p.no = j.no
         WHERE j.no > ?1 AND j.no <= ?2 GROUP BY j.no HAVING count(p.place) <> 1 LIMIT 10",
        "keep a copy of the file and report it: moves are made in one transaction",
    ),
    // Nothing is in a place without being a job.
    (
        "SELECT place || ' holds number ' || no || ', which is no job' FROM (
            SELECT no, 'ready' AS place FROM mainspring_ready WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'limited' AS place FROM mainspring_limited WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'timers' AS place FROM mainspring_timers WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'suspended' AS place FROM mainspring_suspended WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'lease' AS place FROM mainspring_lease WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'done' AS place FROM mainspring_done WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'limit_holders' AS place FROM mainspring_limit_holders WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'errors' AS place FROM mainspring_errors WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'progress' AS place FROM mainspring_progress WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'deadlines' AS place FROM mainspring_deadlines WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'steps' AS place FROM mainspring_steps WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'inbox' AS place FROM mainspring_inbox WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'output' AS place FROM mainspring_output WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, 'children' AS place FROM mainspring_children WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT parent, 'children' FROM mainspring_children WHERE parent > ?1 AND parent <= ?2) p
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_jobs j WHERE j.no = p.no) LIMIT 10",
        "keep a copy of the file and report it: a job is removed with all its rows",
    ),
    // A deadline belongs to a job that has not ended.
    (
        "SELECT 'job number ' || x.no || ' has ended and still has a deadline' FROM mainspring_deadlines x
         WHERE x.no > ?1 AND x.no <= ?2 AND EXISTS (SELECT 1 FROM mainspring_done d WHERE d.no = x.no AND d.superseded = 0) LIMIT 10",
        "delete the row from mainspring_deadlines, and report it",
    ),
    // What wakes a job has not happened while it sleeps.
    (
        named!(
        "SELECT 'job number ' || s.no || ' waits for what it has been sent' FROM mainspring_suspended s
         WHERE s.no > ?1 AND s.no <= ?2 AND s.reason <= {reasons.last_awaiting} AND EXISTS (
            SELECT 1 FROM json_each(CASE WHEN json_valid(s.waits) THEN s.waits END) w
            WHERE (SELECT count(*) FROM mainspring_inbox i WHERE i.no = s.no AND i.read = 0
                    AND i.subject = json_extract(w.value, '$[0]')) >= json_extract(w.value, '$[1]')) LIMIT 10"
        ),
        "resume the job, and report it",
    ),
    // A job that has recorded something, or was sent something, is claimed with it.
    (
        named!(
        "SELECT 'job number ' || p.no || ' has a journal that its place does not know of' FROM (
            SELECT no, flags FROM mainspring_ready WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_limited WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_timers WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_suspended WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_lease WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_done WHERE no > ?1 AND no <= ?2 AND superseded = 0) p
         WHERE p.flags & {flag.journal} = 0 AND (EXISTS (SELECT 1 FROM mainspring_steps s WHERE s.no = p.no)
            OR EXISTS (SELECT 1 FROM mainspring_inbox i WHERE i.no = p.no)
            OR EXISTS (SELECT 1 FROM mainspring_output o WHERE o.no = p.no)) LIMIT 10"
        ),
        "keep a copy of the file and report it: the job would repeat its recorded steps",
    ),
    // A job that has a parent or children tells them of its end.
    (
        named!(
        "SELECT 'job number ' || p.no || ' has a family that its place does not know of' FROM (
            SELECT no, flags FROM mainspring_ready WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_limited WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_timers WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_suspended WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_lease WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_done WHERE no > ?1 AND no <= ?2 AND superseded = 0) p
         WHERE p.flags & {flag.parent} = 0 AND EXISTS (SELECT 1 FROM mainspring_children c WHERE c.no = p.no)
            OR p.flags & {flag.children} = 0 AND EXISTS (SELECT 1 FROM mainspring_children c WHERE c.parent = p.no) LIMIT 10"
        ),
        "keep a copy of the file and report it: its family would not learn of its end",
    ),
    // Errors per job are bounded.
    (
        named!(
        "SELECT 'job number ' || no || ' keeps ' || count(*) || ' errors' FROM mainspring_errors
         WHERE no > ?1 AND no <= ?2 GROUP BY no HAVING count(*) > {bound.errors_kept} LIMIT 10"
        ),
        "report it; the oldest errors are removed as new ones come",
    ),
    // A claim meets every limited job: its group has a turn, or is blocked at a key.
    (
        "SELECT 'job number ' || p.no || ' waits in `limited` and its group has no turn' FROM mainspring_limited p
         WHERE p.no > ?1 AND p.no <= ?2
            AND NOT EXISTS (SELECT 1 FROM mainspring_group_turns t
                WHERE t.limit_group = p.limit_group AND t.level = p.level AND t.line = p.line)
            AND NOT EXISTS (SELECT 1 FROM mainspring_blocked_groups b
                WHERE b.limit_group = p.limit_group AND b.level = p.level AND b.line = p.line) LIMIT 10",
        "wait for the next prune, which gives it a turn, and report it",
    ),
    // Who holds units of limits is claimed, or waits and keeps them.
    (
        named!(
        "SELECT 'job number ' || h.no || ' holds units of limits and neither runs nor keeps them' FROM mainspring_limit_holders h
         WHERE h.no > ?1 AND h.no <= ?2 AND NOT EXISTS (
            SELECT 1 FROM mainspring_lease p WHERE p.no = h.no AND p.flags & {flag.limited} <> 0
            UNION ALL SELECT 1 FROM mainspring_ready p WHERE p.no = h.no AND p.flags & {flag.keeps} <> 0
            UNION ALL SELECT 1 FROM mainspring_timers p WHERE p.no = h.no AND p.flags & {flag.keeps} <> 0
            UNION ALL SELECT 1 FROM mainspring_suspended p WHERE p.no = h.no AND p.flags & {flag.keeps} <> 0) LIMIT 10"
        ),
        "keep a copy of the file and report it: others wait for what it holds",
    ),
    // Who keeps units holds some.
    (
        named!(
        "SELECT 'job number ' || p.no || ' keeps units of limits that it does not hold' FROM (
            SELECT no, flags FROM mainspring_ready WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_timers WHERE no > ?1 AND no <= ?2
            UNION ALL SELECT no, flags FROM mainspring_suspended WHERE no > ?1 AND no <= ?2) p
         WHERE p.flags & {flag.keeps} <> 0
            AND NOT EXISTS (SELECT 1 FROM mainspring_limit_holders h WHERE h.no = p.no) LIMIT 10"
        ),
        "keep a copy of the file and report it: it is claimed without room",
    ),
];

/// What to ask of everything at once.
const OF_ALL: [(&str, &str); 10] = [
    // Counts equal what is in the places.
    (
        named!(
        "SELECT 'queue ' || q.name || ' is said to have ' || sum(c.said) || ' jobs in state ' || c.state ||
                ' and has ' || sum(c.is_so)
         FROM (
            SELECT queue, state, n AS said, 0 AS is_so FROM mainspring_counts
            UNION ALL SELECT queue, state, n, 0 FROM mainspring_count_deltas
            UNION ALL SELECT l.queue, p.state, 0, count(*) FROM (
                SELECT line, {state.ready} AS state FROM mainspring_ready
                UNION ALL SELECT line, {state.ready} FROM mainspring_limited
                UNION ALL SELECT line, {state.scheduled} FROM mainspring_timers
                UNION ALL SELECT line, {state.suspended} FROM mainspring_suspended
                UNION ALL SELECT line, {state.running} FROM mainspring_lease
                UNION ALL SELECT j.line, d.state FROM mainspring_done d JOIN mainspring_jobs j ON j.no = d.no
                    WHERE d.superseded = 0) p
                JOIN mainspring_lines l ON l.no = p.line GROUP BY l.queue, p.state) c
         JOIN mainspring_queues q ON q.no = c.queue
         GROUP BY c.queue, c.state HAVING sum(c.said) <> sum(c.is_so) LIMIT 10"
        ),
        "the figures of this queue are wrong, its jobs are not; report it",
    ),
    // A key without an expiry belongs to a job that has not ended.
    (
        "SELECT 'unique key `' || k.key || '` is held by job number ' || k.no || ', which has ended or is gone'
         FROM mainspring_keys k WHERE k.expires_at IS NULL AND (
            NOT EXISTS (SELECT 1 FROM mainspring_jobs j WHERE j.no = k.no)
            OR EXISTS (SELECT 1 FROM mainspring_done d WHERE d.no = k.no AND d.superseded = 0)) LIMIT 10",
        "delete the row from mainspring_keys to free the key, and report it",
    ),
    // A claim belongs to a node that lives, or is still to be drained.
    (
        named!(
        "SELECT 'job number ' || l.no || ' is claimed by node ' || l.node || ', which is gone'
         FROM mainspring_lease l LEFT JOIN mainspring_nodes n ON n.no = l.node
         WHERE n.no IS NULL OR (n.state <> {node.live} AND n.drained = 1) LIMIT 10"
        ),
        "report it; a retired node holds no jobs",
    ),
    // Every line is one of a known queue and kind.
    (
        "SELECT 'line ' || l.no || ' has no queue or no kind' FROM mainspring_lines l
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_queues q WHERE q.no = l.queue)
            OR NOT EXISTS (SELECT 1 FROM mainspring_kinds k WHERE k.no = l.kind) LIMIT 10",
        "report it; names are never removed",
    ),
    // Tags are found by their words alone.
    (
        "SELECT 'tags holds number ' || t.no || ', which is no job' FROM mainspring_tags t
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_jobs j WHERE j.no = t.no) LIMIT 10",
        "keep a copy of the file and report it: a job is removed with all its rows",
    ),
    // What is in use of a key is what is held.
    (
        "SELECT 'key `' || k.key || '` of limit `' || l.name || '` is said to have ' || k.in_use || ' units in use, and '
                || coalesce(h.units, 0) || ' are held'
         FROM mainspring_limit_keys k JOIN mainspring_limits l ON l.no = k.limit_no AND l.scope = 0
         LEFT JOIN (
            SELECT json_extract(u.value, '$[0]') AS limit_key, sum(json_extract(u.value, '$[1]')) AS units
            FROM mainspring_limit_holders h JOIN mainspring_limit_groups g ON g.no = h.limit_group
            JOIN json_each(CASE WHEN json_valid(g.uses) THEN g.uses END) u ON u.type = 'array' GROUP BY 1) h
            ON h.limit_key = k.no
         WHERE k.in_use <> coalesce(h.units, 0) LIMIT 10",
        "report it; jobs are let in as if the units that are said to be in use were",
    ),
    // What is in use of a total are the claims of its lines.
    (
        "SELECT 'the total of ' || CASE l.scope WHEN 1 THEN 'queue' ELSE 'kind' END || ' `' || l.name
                || '` is said to count ' || k.in_use || ' claims'
         FROM mainspring_limits l JOIN mainspring_limit_keys k ON k.limit_no = l.no AND k.key = ''
         WHERE l.scope >= 1 AND l.definition IS NOT NULL AND k.in_use <> (
            SELECT count(*) FROM mainspring_lease p JOIN mainspring_lines n ON n.no = p.line
            JOIN mainspring_queues q ON q.no = n.queue JOIN mainspring_kinds d ON d.no = n.kind
            WHERE l.name = CASE l.scope WHEN 1 THEN q.name ELSE d.name END) LIMIT 10",
        "remove the total and set it again, which counts the claims, and report it",
    ),
    // Nobody is blocked at a key with room, unless another group of its line has a turn and passes it on. Time lets others in.
    (
        "SELECT 'groups wait at key `' || k.key || '` of limit `' || l.name || '`, which has room for ' || b.units
         FROM (SELECT DISTINCT limit_key, line, level, units FROM mainspring_blocked_groups) b
         JOIN mainspring_limit_keys k ON k.no = b.limit_key JOIN mainspring_limits l ON l.no = k.limit_no
         WHERE k.due IS NULL AND (l.definition IS NULL OR (
            CASE WHEN json_valid(l.definition) THEN json_extract(l.definition, '$.rate') IS NULL
                AND coalesce(json_extract(l.definition, '$.paused'), 0) = 0
                AND k.paused = 0 AND coalesce(k.max, json_extract(l.definition, '$.max'), k.in_use + b.units)
                    >= k.in_use + b.units END))
            AND NOT EXISTS (
                SELECT 1 FROM mainspring_group_turns t WHERE t.line = b.line AND t.level = b.level
                    AND (l.scope > 0 OR EXISTS (SELECT 1 FROM mainspring_limit_key_groups g
                        WHERE g.limit_key = b.limit_key AND g.limit_group = t.limit_group))) LIMIT 10",
        "pause and resume the limit, which lets them in, and report it",
    ),
    // Everybody who waits for a key waits for one that there is.
    (
        "SELECT 'groups are blocked at limit key number ' || b.limit_key || ', which is none'
         FROM (SELECT DISTINCT limit_key FROM mainspring_blocked_groups) b
         WHERE NOT EXISTS (SELECT 1 FROM mainspring_limit_keys k WHERE k.no = b.limit_key) LIMIT 10",
        "delete their rows from mainspring_blocked_groups: the next prune gives them turns. Report it",
    ),
    // Remembered changes of one thing are bounded.
    (
        named!(
        "SELECT subject || ' keeps ' || count(*) || ' changes' FROM mainspring_audit
         GROUP BY subject HAVING count(*) > {bound.audit} LIMIT 10"
        ),
        "report it; the oldest changes are removed as new ones come",
    ),
];

/// The columns of a table that no reader could take: the number of each job, and the first such column. Texts and JSON are
/// decoded apart.
macro_rules! mistyped {
    ($table:literal, $($when:literal),+) => {
        named!(concat!("SELECT no, bad FROM (SELECT no, CASE ", $("WHEN ", $when, " ",)+ "END AS bad FROM mainspring_", $table,
            " WHERE no > ?1 AND no <= ?2) WHERE bad IS NOT NULL LIMIT 10"))
    };
}
/// A whole number within bounds.
macro_rules! whole {
    ($column:literal, $low:literal, $high:literal) => {
        concat!(
            "typeof(",
            $column,
            ") <> 'integer' OR ",
            $column,
            " NOT BETWEEN ",
            $low,
            " AND ",
            $high,
            " THEN '",
            $column,
            "'"
        )
    };
}
/// What all places have in common.
macro_rules! place {
    ($table:literal, $($when:expr),+) => {
        named!(concat!("SELECT no, bad FROM (SELECT no, CASE ",
            "WHEN typeof(line) <> 'integer' OR NOT EXISTS (SELECT 1 FROM mainspring_lines l WHERE l.no = line) THEN 'line' ",
            "WHEN ", whole!("claim", "0", "4294967295"), " WHEN ", whole!("failures", "0", "65535"),
            " WHEN ", whole!("crashes", "0", "65535"), " WHEN typeof(crashed) <> 'integer' THEN 'crashed'",
            " WHEN typeof(flags) <> 'integer' THEN 'flags' ",
            $("WHEN ", $when, " ",)+ "END AS bad FROM mainspring_", $table,
            " WHERE no > ?1 AND no <= ?2) WHERE bad IS NOT NULL LIMIT 10"))
    };
}

/// Tables, and what none of their columns may hold.
const COLUMNS: [(&str, &str); 7] = [
    (
        "jobs",
        mistyped!(
            "jobs",
            "typeof(id) <> 'blob' OR length(id) <> 16 THEN 'id'",
            "typeof(line) <> 'integer' OR NOT EXISTS (SELECT 1 FROM mainspring_lines l WHERE l.no = line) THEN 'line'",
            "typeof(priority) <> 'integer' OR priority NOT BETWEEN 0 AND {priority.last} THEN 'priority'",
            "typeof(created_at) <> 'integer' THEN 'created_at'",
            "typeof(deadline) NOT IN ('integer', 'null') THEN 'deadline'",
            "typeof(options) NOT IN ('text', 'null') THEN 'options'",
            "typeof(input) <> 'blob' THEN 'input'"
        ),
    ),
    (
        "ready",
        place!(
            "ready",
            "typeof(level) <> 'integer' OR level NOT BETWEEN 0 AND {level.last}
                OR level & {level.priority_bits} > {priority.last} THEN 'level'",
            "typeof(ready_at) <> 'integer' THEN 'ready_at'"
        ),
    ),
    (
        "limited",
        place!(
            "limited",
            "typeof(level) <> 'integer' OR level NOT BETWEEN 0 AND {level.last}
                OR level & {level.priority_bits} > {priority.last} THEN 'level'",
            "typeof(limit_group) <> 'integer'
                OR NOT EXISTS (SELECT 1 FROM mainspring_limit_groups g WHERE g.no = limit_group) THEN 'limit_group'",
            "typeof(ready_at) <> 'integer' THEN 'ready_at'"
        ),
    ),
    (
        "timers",
        place!("timers", whole!("priority", "0", "{priority.last}"), "typeof(due) <> 'integer' THEN 'due'"),
    ),
    (
        "suspended",
        place!(
            "suspended",
            whole!("priority", "0", "{priority.last}"),
            whole!("reason", "{reasons.first}", "{reasons.last_suspended}"),
            "typeof(due) NOT IN ('integer', 'null') THEN 'due'",
            "typeof(waits) NOT IN ('text', 'null') THEN 'waits'"
        ),
    ),
    (
        "lease",
        place!(
            "lease",
            whole!("priority", "0", "{priority.last}"),
            "typeof(node) <> 'integer' THEN 'node'",
            "typeof(claimed_at) <> 'integer' THEN 'claimed_at'"
        ),
    ),
    (
        "done",
        mistyped!(
            "done",
            "typeof(state) <> 'integer' OR state NOT BETWEEN {states.first_ended} AND {states.last} THEN 'state'",
            "typeof(reason) NOT IN ('integer', 'null') OR reason NOT BETWEEN {reasons.first_ended} AND {reasons.last} THEN 'reason'",
            "typeof(claim) <> 'integer' OR claim NOT BETWEEN 0 AND 4294967295 THEN 'claim'",
            "typeof(finished_at) <> 'integer' THEN 'finished_at'",
            "typeof(claimed_at) NOT IN ('integer', 'null') THEN 'claimed_at'",
            "typeof(node) NOT IN ('integer', 'null') THEN 'node'",
            "typeof(result) NOT IN ('blob', 'null') THEN 'result'"
        ),
    ),
];

/// How what is decoded is read, from its row.
type Decode = fn(&Row<'_>) -> Result<()>;

/// Tables and what of them is decoded: the first column is the number of the job.
const DECODED: [(&str, &str, Decode); 4] = [
    (
        "options of jobs",
        "SELECT no, options FROM mainspring_jobs WHERE no > ?1 AND no <= ?2 AND options IS NOT NULL",
        |row| {
            let text: String = row.get(1)?;
            serde_json::from_str::<Options>(&text).map(drop).map_err(|error| corrupt(error.to_string()))
        },
    ),
    (
        "waits of suspended",
        "SELECT no, waits FROM mainspring_suspended WHERE no > ?1 AND no <= ?2 AND waits IS NOT NULL",
        |row| read_waits(row.get::<_, Option<String>>(1)?.as_deref()).map(drop),
    ),
    (
        "steps",
        "SELECT no, key, kind, overlapped, claim, at, length(value), NULL, took FROM mainspring_steps
            WHERE no > ?1 AND no <= ?2",
        |row| read_entry(row).map(drop),
    ),
    (
        "inbox",
        "SELECT no, subject, sender, at, state, reason, note, body FROM mainspring_inbox
            WHERE no > ?1 AND no <= ?2 AND read = 0",
        |row| read_message(row).map(drop),
    ),
];

/// Findings about schedules that are told, at most.
const BAD_ROWS: usize = 10;

/// What to do about a job that cannot be read.
const UNREADABLE: &str = "the next claim sets the job aside as unreadable. Restore the data by hand and run `mainspring job ID resume`, or run `mainspring job ID cancel` or `delete`";

/// Looks for what must not be there, in one part of the store.
pub(crate) fn check(reader: &mut Reader, part: CheckPart) -> Result<Checked> {
    let CheckPart { part, after } = part;
    let mut look = Look { reader, findings: Vec::new() };
    match part {
        0 => look.table(after),
        1 => look.range(after),
        _ => {
            match OF_ALL.get(part - 2) {
                Some((sql, hint)) => look.ask(sql, hint, &[])?,
                None => look.schedules()?,
            }
            let next = (part - 2 < OF_ALL.len()).then_some(CheckPart { part: part + 1, after: 0 });
            Ok(look.told(next, (1, 1)))
        }
    }
}

/// All parts, one after the other.
#[cfg(feature = "fuzz")]
pub(crate) fn check_all(reader: &mut Reader) -> Result<Vec<Finding>> {
    let (mut next, mut findings) = (Some(CheckPart::default()), Vec::new());
    while let Some(part) = next {
        let checked = check(reader, part)?;
        findings.extend(checked.findings);
        next = checked.next;
    }
    Ok(findings)
}

struct Look<'r> {
    reader: &'r mut Reader,
    findings: Vec<Finding>,
}

impl Look<'_> {
    fn told(self, next: Option<CheckPart>, (done, total): (i64, i64)) -> Checked {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Checked { findings: self.findings, next, done: count(done), total: count(total) }
    }

    /// One table and its indexes, as SQLite itself checks them.
    fn table(mut self, index: i64) -> Result<Checked> {
        let name: Option<String> =
            self.reader.conn.prepare_cached(TABLES)?.query_row([index], |row| row.get(0)).optional()?;
        let Some(name) = name else {
            return Ok(self.told(Some(CheckPart { part: 1, after: i64::MIN }), (0, 1)));
        };
        self.ask(
            &format!("PRAGMA quick_check('{name}')"),
            "the file is damaged: restore a backup, or copy what can be read with `.recover`",
            &[],
        )?;
        Ok(self.told(Some(CheckPart { part: 0, after: index + 1 }), (0, 1)))
    }

    /// A range of jobs, and what else has numbers in it.
    fn range(mut self, after: i64) -> Result<Checked> {
        let (end, last): (Option<i64>, Option<i64>) = self
            .reader
            .conn
            .prepare_cached(RANGE)?
            .query_row([after, CHUNK], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let last = last.unwrap_or(0);
        // Behind the last job, nothing may be left.
        let to = end.filter(|end| *end < last).unwrap_or(i64::MAX);
        for (sql, hint) in OF_A_RANGE {
            self.ask(sql, hint, &[after, to])?;
        }
        for (table, sql) in COLUMNS {
            let bad = self.numbers(sql, after, to)?.into_iter();
            let bad = bad.map(|(no, column)| (no, format!("column {column} of {table} cannot be read")));
            self.unreadable(bad.collect())?;
        }
        for (what, sql, decode) in DECODED {
            self.decode(what, sql, decode, (after, to))?;
        }
        let next =
            if to == i64::MAX { CheckPart { part: 2, after: 0 } } else { CheckPart { part: 1, after: to } };
        Ok(self.told(Some(next), (to.min(last), last)))
    }

    fn ask(&mut self, sql: &str, hint: &str, values: &[i64]) -> Result<()> {
        let mut statement = self.reader.conn.prepare(sql)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values))?;
        while let Some(row) = rows.next()? {
            let what: String = row.get(0)?;
            if what != "ok" {
                self.findings.push(Finding { what, hint: hint.to_owned() });
            }
        }
        Ok(())
    }

    /// Schedules and their changes, decoded as who reads them does.
    fn schedules(&mut self) -> Result<()> {
        let found = schedules::illegible(self.reader, BAD_ROWS)?;
        self.findings
            .extend(found.into_iter().map(|what| Finding { what, hint: schedules::ILLEGIBLE.into() }));
        Ok(())
    }

    fn numbers(&self, sql: &str, after: i64, to: i64) -> Result<Vec<(i64, String)>> {
        let mut statement = self.reader.conn.prepare(sql)?;
        let rows = statement.query_map([after, to], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn decode(&mut self, what: &str, sql: &str, decode: Decode, range: (i64, i64)) -> Result<()> {
        let mut bad = Vec::new();
        {
            let mut statement = self.reader.conn.prepare(sql)?;
            let mut rows = statement.query(params![range.0, range.1])?;
            while let Some(row) = rows.next()? {
                if let Err(why) = legible(decode(row))? {
                    bad.push((row.get(0)?, format!("{what}: {why}")));
                    if bad.len() == LISTED {
                        break;
                    }
                }
            }
        }
        self.unreadable(bad)
    }

    /// Tells of jobs, by their numbers, what of them cannot be read.
    fn unreadable(&mut self, bad: Vec<(i64, String)>) -> Result<()> {
        for (no, what) in bad {
            let what = format!("{}: {what}", self.name(no)?);
            self.findings.push(Finding { what, hint: UNREADABLE.into() });
        }
        Ok(())
    }

    /// A job's id, or its number if that cannot be read.
    fn name(&self, no: i64) -> Result<String> {
        let id = self.reader.conn.prepare_cached(ID)?.query_row([no], |row| row.get(0)).optional();
        Ok(match legible(id.map_err(Fault::from))? {
            Ok(Some(id)) => format!("job {}", JobId::from_bytes(id)),
            Ok(None) | Err(_) => format!("job number {no}"),
        })
    }
}
