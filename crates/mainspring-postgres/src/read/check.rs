//! The self-check: looks for what must not be there.
//!
//! Part by part, each of one moment: what moves meanwhile is no violation. A question is a statement that gives one line of
//! text per violation, at most a few of each; columns are decoded as a claim and a look at a job decode them.

use std::time::Duration;

use mainspring_core::job::Options;
use mainspring_core::named;
use mainspring_core::store::{CheckPart, Checked, Finding};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::SNAPSHOT;
use super::journal::{message, waits, written};
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::op::Op;
use crate::op::mailbox::came;
use crate::op::places::all_places;
use crate::shared::Shared;
use crate::sql::Call;

/// The questions walk whole tables, which takes longer than any other call may.
const PATIENCE: &str = "SELECT set_config('statement_timeout', '10min', true)";

/// What to ask, and what a person can do if there is an answer. All of these walk whole tables; none takes a lock.
const QUESTIONS: [(&str, &str); 11] = [
    // Each job is in exactly one place.
    (
        named!(concat!(
            "SELECT 'job number ' || j.no || ' is in ' || count(p.place) || ' places: ' ||
                coalesce(string_agg(p.place, ', '), 'none')
         FROM mainspring.jobs j LEFT JOIN ",
            all_places!(),
            " p ON p.no = j.no GROUP BY j.no HAVING count(p.place) <> 1 LIMIT 10"
        )),
        "keep a copy of the database and report it: moves are made in one transaction",
    ),
    // Nothing is in a place without being a job, and a place agrees with its job on the line.
    (
        named!(concat!(
            "SELECT CASE WHEN j.no IS NULL THEN p.place || ' holds number ' || p.no || ', which is no job'
                ELSE p.place || ' holds job number ' || p.no || ' in line ' || p.line || ' instead of ' || j.line END
         FROM (SELECT no, line, place FROM ",
            all_places!(),
            " a
            UNION ALL SELECT no, NULL, 'superseded' FROM mainspring.superseded
            UNION ALL SELECT no, NULL, 'errors' FROM mainspring.errors
            UNION ALL SELECT no, NULL, 'progress' FROM mainspring.progress
            UNION ALL SELECT no, NULL, 'tags' FROM mainspring.tags
            UNION ALL SELECT no, NULL, 'steps' FROM mainspring.steps
            UNION ALL SELECT no, NULL, 'inbox' FROM mainspring.inbox
            UNION ALL SELECT no, NULL, 'output' FROM mainspring.output
            UNION ALL SELECT no, NULL, 'children' FROM mainspring.children
            UNION ALL SELECT parent, NULL, 'children' FROM mainspring.children
            UNION ALL SELECT no, NULL, 'ends' FROM mainspring.ends
            UNION ALL SELECT no, NULL, 'deadlines' FROM mainspring.deadlines) p
         LEFT JOIN mainspring.jobs j ON j.no = p.no WHERE j.no IS NULL OR p.line <> j.line LIMIT 10"
        )),
        "keep a copy of the database and report it: a job is removed with all its rows, and stays in its line",
    ),
    // Counts equal what is in the places.
    (
        named!(concat!(
            "SELECT 'line ' || c.line || ' of queue ' || coalesce(q.name, '(none)') || ' is said to have ' || sum(c.said) ||
                ' jobs in state ' || c.state || ' and has ' || sum(c.is_so)
         FROM (
            SELECT line, state, n AS said, 0 AS is_so FROM mainspring.counts
            UNION ALL SELECT line, state, n, 0 FROM mainspring.count_deltas
            UNION ALL SELECT line, state, 0, count(*) FROM ",
            all_places!(),
            " a GROUP BY line, state) c
         LEFT JOIN mainspring.lines l ON l.no = c.line LEFT JOIN mainspring.queues q ON q.no = l.queue
         GROUP BY c.line, q.name, c.state HAVING sum(c.said) <> sum(c.is_so) LIMIT 10"
        )),
        "the figures of this queue are wrong, its jobs are not; report it",
    ),
    // A key without an expiry belongs to a job that has not ended.
    (
        "SELECT 'unique key `' || k.key || '` is held by job number ' || k.no || ', which has ended or is gone'
         FROM mainspring.keys k WHERE k.expires_at IS NULL AND (
            NOT EXISTS (SELECT 1 FROM mainspring.jobs j WHERE j.no = k.no)
            OR EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = k.no)) LIMIT 10",
        "delete the row from the table keys to free the key, and report it",
    ),
    // A deadline belongs to a job that has not ended.
    (
        "SELECT 'job number ' || x.no || ' has ended and still has a deadline' FROM mainspring.deadlines x
         WHERE EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = x.no) LIMIT 10",
        "delete the row from the table deadlines, and report it",
    ),
    // A claim belongs to a node that lives, or is still to be drained.
    (
        named!(
            "SELECT 'job number ' || l.no || ' is claimed by node ' || l.node || ', which is gone'
         FROM mainspring.lease l LEFT JOIN mainspring.nodes n ON n.no = l.node
         WHERE n.no IS NULL OR (n.state <> {node.live} AND n.drained) LIMIT 10"
        ),
        "report it; a node that is gone holds nothing",
    ),
    // A suspended job whose wait is over does not exist.
    (
        named!(concat!(
            "SELECT 'job ' || j.id || ' waits for what it has been sent'
             FROM mainspring.suspended s JOIN mainspring.jobs j ON j.no = s.no
             WHERE s.reason <= {reasons.last_awaiting} AND s.waits IS NOT NULL AND EXISTS (
                SELECT 1 FROM jsonb_array_elements(s.waits) AS w(wait) WHERE ",
            came!("s.no", "w.wait"),
            ") LIMIT 10"
        )),
        "resume the job, and report it: a message wakes whoever waits for it",
    ),
    // A place says that its job has a journal, and a family.
    (
        named!(concat!(
            "SELECT p.place || ' holds job number ' || p.no || ' without the mark of its journal or its family'
         FROM ",
            all_places!(),
            " p
         WHERE p.flags & {flag.journal} = 0 AND EXISTS (SELECT 1 FROM mainspring.steps x WHERE x.no = p.no)
            OR p.flags & {flag.journal} = 0 AND EXISTS (SELECT 1 FROM mainspring.output x WHERE x.no = p.no)
            OR p.flags & {flag.children} = 0 AND EXISTS (SELECT 1 FROM mainspring.children x WHERE x.parent = p.no)
            OR p.flags & {flag.parent} = 0 AND EXISTS (SELECT 1 FROM mainspring.children x WHERE x.no = p.no) LIMIT 10"
        )),
        "report it; what a job has recorded is not read without its mark",
    ),
    // Families are told of ends within seconds.
    (
        "SELECT 'the family of job number ' || no || ' has not been reported of its end' FROM mainspring.ends
         WHERE at < clock_timestamp() - interval '1 min' LIMIT 10",
        "start a node: sweeps tell what a process that died has left",
    ),
    // Every line is one of a known queue and kind.
    (
        "SELECT 'line ' || l.no || ' has no queue or no kind' FROM mainspring.lines l
         WHERE NOT EXISTS (SELECT 1 FROM mainspring.queues q WHERE q.no = l.queue)
            OR NOT EXISTS (SELECT 1 FROM mainspring.kinds k WHERE k.no = l.kind) LIMIT 10",
        "report it; names are never removed",
    ),
    // Errors per job are bounded.
    (
        named!(
            "SELECT 'job number ' || no || ' keeps ' || count(*) || ' errors' FROM mainspring.errors
         GROUP BY no HAVING count(*) > {bound.errors_kept} LIMIT 10"
        ),
        "report it; the oldest errors are removed as new ones come",
    ),
];

/// Primary key of `jobs`: where a range of jobs ends, and the highest number.
const RANGE: &str = "SELECT max(no), (SELECT max(no) FROM mainspring.jobs) FROM (
    SELECT no FROM mainspring.jobs WHERE no > $1 ORDER BY no LIMIT $2) x";
/// Jobs that one part looks at.
const CHUNK: i64 = 20_000;

/// Primary keys, a range of them: columns of places that no reader could take, by the id of the job and the first such column.
const COLUMNS: &str = named!(
    "SELECT j.id::text, p.place, p.bad FROM (
        SELECT no, 'ready' AS place, CASE WHEN level NOT BETWEEN 0 AND {level.last}
                OR level & {level.priority_bits} > {priority.last} THEN 'level'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END AS bad
        FROM mainspring.ready WHERE no > $1 AND no <= $2
        UNION ALL SELECT no, 'timers', CASE WHEN priority NOT BETWEEN 0 AND {priority.last} THEN 'priority'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END
        FROM mainspring.timers WHERE no > $1 AND no <= $2
        UNION ALL SELECT no, 'suspended', CASE WHEN priority NOT BETWEEN 0 AND {priority.last} THEN 'priority'
            WHEN reason NOT BETWEEN {reasons.first} AND {reasons.last_suspended} THEN 'reason'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END
        FROM mainspring.suspended WHERE no > $1 AND no <= $2
        UNION ALL SELECT no, 'lease', CASE WHEN priority NOT BETWEEN 0 AND {priority.last} THEN 'priority'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END
        FROM mainspring.lease WHERE no > $1 AND no <= $2
        UNION ALL SELECT no, 'done', CASE WHEN state NOT BETWEEN {states.first_ended} AND {states.last} THEN 'state'
            WHEN reason NOT BETWEEN {reasons.first_ended} AND {reasons.last} THEN 'reason' WHEN claim < 0 THEN 'claim' END
        FROM mainspring.done WHERE no > $1 AND no <= $2) p
    JOIN mainspring.jobs j ON j.no = p.no WHERE p.bad IS NOT NULL LIMIT 10"
);
/// Primary keys: what is decoded, by the id of the job. What `waits` hold is read as text.
const OPTIONS: &str = "SELECT id::text, options::text FROM mainspring.jobs
    WHERE no > $1 AND no <= $2 AND options IS NOT NULL";
const WAITS: &str =
    "SELECT j.id::text, s.waits::text FROM mainspring.suspended s JOIN mainspring.jobs j ON j.no = s.no
    WHERE s.no > $1 AND s.no <= $2 AND s.waits IS NOT NULL";
const STEPS: &str =
    "SELECT j.id::text, s.key, s.kind, s.overlapped, s.claim, s.at, octet_length(s.value)::bigint,
        NULL::bytea
    FROM mainspring.steps s JOIN mainspring.jobs j ON j.no = s.no WHERE s.no > $1 AND s.no <= $2";
const MESSAGES: &str = "SELECT j.id::text, m.seq, m.at, m.subject, m.sender, m.state, m.reason, m.note, m.body
    FROM mainspring.inbox m JOIN mainspring.jobs j ON j.no = m.no WHERE m.no > $1 AND m.no <= $2 AND NOT m.read";

/// How what is decoded is read, from its row.
type Decode = fn(&Row) -> Result<()>;

const DECODED: [(&str, &str, Decode); 4] = [
    ("options of jobs", OPTIONS, |row| {
        serde_json::from_str::<Options>(row.get(1)).map(drop).map_err(|error| corrupt(error.to_string()))
    }),
    ("waits of suspended", WAITS, |row| waits(row.get(1)).map(drop)),
    ("steps", STEPS, |row| written(row, 1).map(drop)),
    ("inbox", MESSAGES, |row| message(row).map(drop)),
];
/// Findings of one kind that one part tells.
const FINDINGS: usize = 10;

/// What to do about a job that cannot be read.
const UNREADABLE: &str = "a claim that meets it sets it aside as unreadable. Restore what is damaged by hand, then \
    `mainspring job ID resume`; or `mainspring job ID cancel`, or `delete`";

/// Looks for what must not be there, in one part of the store: first jobs by ranges of their numbers, then question by
/// question. Each part has a snapshot of its own.
pub(crate) struct Check(pub(crate) CheckPart);

impl Op for Check {
    type Answer = Checked;
    const PATIENCE: Duration = Duration::from_mins(10);

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Checked> {
        conn.begin(shared, SNAPSHOT, &[Call::new(PATIENCE, Vec::new())]).await?;
        let CheckPart { part, after } = self.0;
        let Some(index) = part.checked_sub(1) else {
            return range(conn, after).await;
        };
        let mut findings = Vec::new();
        if let Some((sql, hint)) = QUESTIONS.get(index) {
            let rows = conn.end(&[Call::new(sql, Vec::new())]).await?;
            let found = |row: &Row| Finding { what: row.get(0), hint: (*hint).to_owned() };
            findings.extend(rows.iter().flatten().map(found));
        } else {
            conn.end(&[]).await?;
        }
        let next = (index + 1 < QUESTIONS.len()).then_some(CheckPart { part: part + 1, after: 0 });
        Ok(Checked { findings, next, done: 1, total: 1 })
    }
}

/// Decodes a range of jobs.
async fn range(conn: &mut Conn, after: i64) -> Result<Checked> {
    let args = vec![(&after as _, Type::INT8), (&CHUNK as _, Type::INT8)];
    let found = conn.step(&[Call::new(RANGE, args)]).await?;
    let (end, last): (Option<i64>, Option<i64>) =
        found.iter().flatten().next().map_or((None, None), |row| (row.get(0), row.get(1)));
    let last = last.unwrap_or(0);
    let to = end.filter(|end| *end < last).unwrap_or(i64::MAX);
    let range = || vec![(&after as _, Type::INT8), (&to as _, Type::INT8)];
    let decoded = DECODED.iter().map(|(_, sql, _)| Call::new(sql, range()));
    let calls: Vec<Call<'_>> = std::iter::once(Call::new(COLUMNS, range())).chain(decoded).collect();
    let answers = conn.end(&calls).await?;
    let unreadable = |what: String| Finding { what, hint: UNREADABLE.into() };
    let mut findings = Vec::new();
    let mut answers = answers.iter();
    for row in answers.next().into_iter().flatten() {
        let (id, place, column): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        findings.push(unreadable(format!("job {id}: column {column} of {place} cannot be read")));
    }
    for (rows, (what, _, decode)) in answers.zip(DECODED) {
        let mut reported = 0;
        for row in rows {
            if let Err(why) = legible(decode(row))?
                && reported < FINDINGS
            {
                reported += 1;
                findings.push(unreadable(format!("job {}: {what}: {why}", row.get::<_, &str>(0))));
            }
        }
    }
    let next =
        if to == i64::MAX { CheckPart { part: 1, after: 0 } } else { CheckPart { part: 0, after: to } };
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Checked { findings, next: Some(next), done: count(to.min(last)), total: count(last) })
}
