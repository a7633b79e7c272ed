//! The self-check: looks for what must not be there.
//!
//! Part by part, each of one moment: what moves meanwhile is no violation. A question is a statement that gives one line of
//! text per violation, at most a few of each; columns are decoded as a claim and a look at a job decode them.

use std::time::Duration;

use mainspring_core::job::Options;
use mainspring_core::store::{CheckPart, Checked, Finding};

use super::journal::{EntryRow, MessageRow, message, waits, written};
use super::{SNAPSHOT, schedules};
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::op::Op;
use crate::op::mailbox::came;
use crate::op::places::all_places;
use crate::shared::Shared;
use crate::sql::statement::row;
use crate::sql::{Call, Query, statement};

statement! {
    /// The questions walk whole tables, which takes longer than any other call may.
    pub(crate) BePatient = "check.patience", whole ("it touches no table"), ();
    "SELECT set_config('statement_timeout', '10min', true)"
}

statement! {
    /// Each job is in exactly one place.
    pub(crate) OnePlace = "check.places", whole ("it walks whole tables, for people"), () -> Violation { what: String };
    concat!(
            "SELECT 'job number ' || j.no || ' is in ' || count(p.place) || ' places: ' ||
                coalesce(string_agg(p.place, ', '), 'none')
         FROM mainspring.jobs j LEFT JOIN ",
            all_places!(),
            " p ON p.no = j.no GROUP BY j.no HAVING count(p.place) <> 1 LIMIT 10"
        )
}
statement! {
    /// Nothing is in a place without being a job, and a place agrees with its job on the line.
    pub(crate) Strays = "check.strays", whole ("it walks whole tables, for people"), () -> Violation;
    concat!(
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
            UNION ALL SELECT no, NULL, 'limited_jobs' FROM mainspring.limited_jobs
            UNION ALL SELECT no, NULL, 'kept_units' FROM mainspring.kept_units
            UNION ALL SELECT no, NULL, 'deadlines' FROM mainspring.deadlines) p
         LEFT JOIN mainspring.jobs j ON j.no = p.no WHERE j.no IS NULL OR p.line <> j.line LIMIT 10"
        )
}
statement! {
    /// Counts equal what is in the places.
    pub(crate) Counts = "check.counts", whole ("it walks whole tables, for people"), () -> Violation;
    concat!(
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
        )
}
statement! {
    /// A key without an expiry belongs to a job that has not ended.
    pub(crate) Keys = "check.keys", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'unique key `' || k.key || '` is held by job number ' || k.no || ', which has ended or is gone'
         FROM mainspring.keys k WHERE k.expires_at IS NULL AND (
            NOT EXISTS (SELECT 1 FROM mainspring.jobs j WHERE j.no = k.no)
            OR EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = k.no)) LIMIT 10"
}
statement! {
    /// A deadline belongs to a job that has not ended.
    pub(crate) Deadlines = "check.deadlines", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'job number ' || x.no || ' has ended and still has a deadline' FROM mainspring.deadlines x
         WHERE EXISTS (SELECT 1 FROM mainspring.done d WHERE d.no = x.no) LIMIT 10"
}
statement! {
    /// A claim belongs to a node that lives, or is still to be drained.
    pub(crate) Claims = "check.claims", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'job number ' || l.no || ' is claimed by node ' || l.node || ', which is gone'
         FROM mainspring.lease l LEFT JOIN mainspring.nodes n ON n.no = l.node
         WHERE n.no IS NULL OR (n.state <> {node.live} AND n.drained) LIMIT 10"
}
statement! {
    /// A suspended job whose wait is over does not exist.
    pub(crate) Waits = "check.waits", whole ("it walks whole tables, for people"), () -> Violation;
    concat!(
            "SELECT 'job ' || j.id || ' waits for what it has been sent'
             FROM mainspring.suspended s JOIN mainspring.jobs j ON j.no = s.no
             WHERE s.reason <= {reasons.last_awaiting} AND s.waits IS NOT NULL AND EXISTS (
                SELECT 1 FROM jsonb_array_elements(s.waits) AS w(wait) WHERE ",
            came!("s.no", "w.wait"),
            ") LIMIT 10"
        )
}
statement! {
    /// A place says that its job has a journal, and a family.
    pub(crate) Marks = "check.marks", whole ("it walks whole tables, for people"), () -> Violation;
    concat!(
            "SELECT p.place || ' holds job number ' || p.no || ' without the mark of its journal or its family'
         FROM ",
            all_places!(),
            " p
         WHERE p.flags & {flag.journal} = 0 AND EXISTS (SELECT 1 FROM mainspring.steps x WHERE x.no = p.no)
            OR p.flags & {flag.journal} = 0 AND EXISTS (SELECT 1 FROM mainspring.output x WHERE x.no = p.no)
            OR p.flags & {flag.children} = 0 AND EXISTS (SELECT 1 FROM mainspring.children x WHERE x.parent = p.no)
            OR p.flags & {flag.parent} = 0 AND EXISTS (SELECT 1 FROM mainspring.children x WHERE x.no = p.no) LIMIT 10"
        )
}
statement! {
    /// Families are told of ends within seconds.
    pub(crate) Families = "check.families", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'the family of job number ' || no || ' has not been reported of its end' FROM mainspring.ends
         WHERE at < clock_timestamp() - interval '1 min' LIMIT 10"
}
statement! {
    /// Every line is one of a known queue and kind.
    pub(crate) Lines = "check.lines", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'line ' || l.no || ' has no queue or no kind' FROM mainspring.lines l
         WHERE NOT EXISTS (SELECT 1 FROM mainspring.queues q WHERE q.no = l.queue)
            OR NOT EXISTS (SELECT 1 FROM mainspring.kinds k WHERE k.no = l.kind) LIMIT 10"
}
statement! {
    /// Errors per job are bounded.
    pub(crate) Errors = "check.errors", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'job number ' || no || ' keeps ' || count(*) || ' errors' FROM mainspring.errors
         GROUP BY no HAVING count(*) > {bound.errors_kept} LIMIT 10"
}

statement! {
    /// Remembered changes of one thing are bounded.
    pub(crate) Changes = "check.changes", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT subject || ' keeps ' || count(*) || ' changes' FROM mainspring.audit
         GROUP BY subject HAVING count(*) > {bound.audit} LIMIT 10"
}
statement! {
    /// What limit keys say is in use is what claims and waiting jobs hold.
    pub(crate) InUse = "check.in_use", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'limit key `' || k.key || '` of limit `' || l.name || '` is said to have ' || k.in_use || ' units in use and has '
            || coalesce(z.n, 0)
         FROM mainspring.limit_keys k JOIN mainspring.limits l ON l.no = k.limit_no LEFT JOIN (
            SELECT u.limit_key, count(*) AS n FROM (SELECT units FROM mainspring.lease UNION ALL SELECT units FROM mainspring.kept_units
                UNION ALL SELECT units FROM mainspring.returned_units) y, unnest(y.units) AS u(limit_key) GROUP BY u.limit_key) z
            ON z.limit_key = k.no
         WHERE k.in_use <> coalesce(z.n, 0) AND NOT (l.deleted AND l.scope <> {limit_scope.limit}) LIMIT 10"
}
statement! {
    /// A group with jobs has a turn, or is blocked at a key.
    pub(crate) Turns = "check.turns", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'limit group ' || g.limit_group || ' has ready jobs and no turn'
         FROM (SELECT DISTINCT limit_group FROM mainspring.limited) g
         WHERE NOT EXISTS (SELECT 1 FROM mainspring.group_turns t WHERE t.limit_group = g.limit_group)
            AND NOT EXISTS (SELECT 1 FROM mainspring.blocked_groups b WHERE b.limit_group = g.limit_group) LIMIT 10"
}
statement! {
    /// Who is blocked at a key with room for it waits for a turn that others of its line have at that key.
    pub(crate) Blocked = "check.blocked", whole ("it walks whole tables, for people"), () -> Violation;
    "SELECT 'limit group ' || b.limit_group || ' is blocked at key `' || k.key || '` of limit `' || l.name || '`, which has room'
         FROM mainspring.blocked_groups b JOIN mainspring.limit_keys k ON k.no = b.limit_key
         JOIN mainspring.limits l ON l.no = k.limit_no
         WHERE l.swept AND k.due IS NULL AND (l.deleted OR NOT l.paused AND NOT k.paused AND l.interval IS NULL
                AND b.units <= coalesce(k.max, l.max, {bound.any_units}) - k.in_use)
            AND NOT EXISTS (SELECT 1 FROM mainspring.returned_units)
            AND NOT EXISTS (SELECT 1 FROM mainspring.group_turns t JOIN mainspring.limit_groups g ON g.no = t.limit_group
                WHERE t.line = b.line AND (g.units @> ARRAY[b.limit_key] OR l.scope <> {limit_scope.limit})) LIMIT 10"
}
statement! {
    /// Limit keys count who is blocked at them, and limited jobs are of their groups.
    pub(crate) Groups = "check.groups", whole ("it walks whole tables, for people"), () -> Violation;
    "(SELECT 'limit key `' || k.key || '` is said to have ' || k.blocked || ' blocked groups and has ' || coalesce(z.n, 0)
         FROM mainspring.limit_keys k LEFT JOIN (
            SELECT limit_key, count(*) AS n FROM mainspring.blocked_groups GROUP BY limit_key) z ON z.limit_key = k.no
         WHERE k.blocked <> coalesce(z.n, 0) LIMIT 10)
     UNION ALL (SELECT 'job number ' || r.no || ' waits in a limit group that is not its own'
         FROM mainspring.limited r LEFT JOIN mainspring.limited_jobs y ON y.no = r.no
         LEFT JOIN mainspring.limit_groups g ON g.no = r.limit_group
         WHERE y.limit_group IS DISTINCT FROM r.limit_group OR g.line IS DISTINCT FROM r.line LIMIT 10)"
}

/// A statement that gives findings, and what a person can do about them.
type Question = (fn() -> Call<'static>, &'static str);

/// What to ask, and what a person can do if there is an answer. All of these walk whole tables; none takes a lock.
const QUESTIONS: [Question; 16] = [
    (|| OnePlace.call(), "keep a copy of the database and report it: moves are made in one transaction"),
    (
        || Strays.call(),
        "keep a copy of the database and report it: a job is removed with all its rows, and stays in its line",
    ),
    (|| Counts.call(), "the figures of this queue are wrong, its jobs are not; report it"),
    (|| Keys.call(), "delete the row from the table keys to free the key, and report it"),
    (|| Deadlines.call(), "delete the row from the table deadlines, and report it"),
    (|| Claims.call(), "report it; a retired node holds no jobs"),
    (|| Waits.call(), "resume the job, and report it: a message must wake the job that waits for it"),
    (|| Marks.call(), "report it; the store does not read the job's records without their flag"),
    (|| Families.call(), "start a node: its sweeps finish what a dead process left"),
    (|| Lines.call(), "report it; names are never removed"),
    (
        || InUse.call(),
        "report it: claims and their units are written in one transaction. `mainspring limit set` a higher maximum meanwhile",
    ),
    (
        || Turns.call(),
        "pause and resume one of its limits, and report it: a job enters with a turn of its group",
    ),
    (
        || Blocked.call(),
        "pause and resume the limit, and report it: whoever makes room lets blocked groups in",
    ),
    (|| Groups.call(), "keep a copy of the database and report it"),
    (|| Errors.call(), "report it; the oldest errors are removed as new ones come"),
    (|| Changes.call(), "report it; the oldest changes are removed as new ones come"),
];

statement! {
    /// Primary key of `jobs`: where a range of jobs ends, and the highest number.
    pub(crate) Range<'a> = "check.range", by ["jobs_pkey"],
    (after: i64, limit: i64) -> RangeEnd { end: Option<i64>, last: Option<i64> };
    "SELECT max(no), (SELECT max(no) FROM mainspring.jobs) FROM (
    SELECT no FROM mainspring.jobs WHERE no > $1 ORDER BY no LIMIT $2) x"
}
/// Jobs that one part looks at.
const CHUNK: i64 = 20_000;

statement! {
    /// Primary keys, a range of them: columns of places that no reader could take, by the id of the job and the first such column.
    pub(crate) Columns<'a> = "check.columns",
    by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey", "lease_pkey", "done_pkey", "jobs_pkey"],
    (after: i64, to: i64) -> BadColumn { id: String, place: String, column: String };
    "SELECT j.id::text, p.place, p.bad FROM (
        SELECT no, 'ready' AS place, CASE WHEN level NOT BETWEEN 0 AND {level.last}
                OR level & {level.priority_bits} > {priority.last} THEN 'level'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END AS bad
        FROM mainspring.ready WHERE no > $1 AND no <= $2
        UNION ALL SELECT no, 'limited', CASE WHEN level NOT BETWEEN 0 AND {level.last}
                OR level & {level.priority_bits} > {priority.last} THEN 'level'
            WHEN claim < 0 THEN 'claim' WHEN failures < 0 THEN 'failures' WHEN crashes < 0 THEN 'crashes' END
        FROM mainspring.limited WHERE no > $1 AND no <= $2
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
}
statement! {
    /// Primary keys: what is decoded, by the id of the job. What `waits` hold is read as text.
    pub(crate) JobOptions<'a> = "check.options", by ["jobs_pkey"],
    (after: i64, to: i64) -> TextOf { id: String, text: String };
    "SELECT id::text, options::text FROM mainspring.jobs
    WHERE no > $1 AND no <= $2 AND options IS NOT NULL"
}
statement! {
    pub(crate) JobWaits<'a> = "check.job_waits", by ["suspended_pkey", "jobs_pkey"], (after: i64, to: i64) -> TextOf;
    "SELECT j.id::text, s.waits::text FROM mainspring.suspended s JOIN mainspring.jobs j ON j.no = s.no
    WHERE s.no > $1 AND s.no <= $2 AND s.waits IS NOT NULL"
}
statement! {
    pub(crate) JobSteps<'a> = "check.steps", by ["steps_pkey", "jobs_pkey"], (after: i64, to: i64) -> StepOf;
    "SELECT true, s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, octet_length(s.value)::bigint,
        NULL::bytea, s.took, j.id::text
    FROM mainspring.steps s JOIN mainspring.jobs j ON j.no = s.no WHERE s.no > $1 AND s.no <= $2"
}
statement! {
    pub(crate) JobMessages<'a> = "check.messages", by ["inbox_unread", "jobs_pkey"], (after: i64, to: i64) -> MessageOf;
    "SELECT m.seq, m.at, m.subject, m.sender, m.state, m.reason, m.note, m.body, j.id::text
    FROM mainspring.inbox m JOIN mainspring.jobs j ON j.no = m.no WHERE m.no > $1 AND m.no <= $2 AND NOT m.read"
}

row! {
    /// An entry of a journal, and the job it is of.
    pub(crate) StepOf after EntryRow { id: String }
}

row! {
    /// A message, and the job that it is for.
    pub(crate) MessageOf after MessageRow { id: String }
}

/// Findings of one kind that one part tells.
const FINDINGS: usize = 10;

/// What to do about a job that cannot be read.
const UNREADABLE: &str = "the next claim sets the job aside as unreadable. Restore the data by hand and run `mainspring job ID resume`, or run `mainspring job ID cancel` or `delete`";

/// Looks for what must not be there, in one part of the store: first jobs by ranges of their numbers, then question by
/// question. Each part has a snapshot of its own.
pub(crate) struct Check(pub(crate) CheckPart);

impl Op for Check {
    type Answer = Checked;
    const PATIENCE: Duration = Duration::from_mins(10);

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Checked> {
        conn.begin(shared, SNAPSHOT, &[BePatient.call()]).await?;
        let CheckPart { part, after } = self.0;
        let Some(index) = part.checked_sub(1) else {
            return range(conn, after).await;
        };
        let mut findings = Vec::new();
        if let Some((question, hint)) = QUESTIONS.get(index) {
            let rows = conn.end(&[question()]).await?.pop().unwrap_or_default();
            let found = OnePlace::rows(&rows)?.into_iter();
            findings.extend(found.map(|it| Finding { what: it.what, hint: (*hint).to_owned() }));
        } else {
            let found = schedules::illegible(conn, FINDINGS).await?.into_iter();
            findings.extend(found.map(|what| Finding { what, hint: schedules::ILLEGIBLE.to_owned() }));
        }
        let next = (index < QUESTIONS.len()).then_some(CheckPart { part: part + 1, after: 0 });
        Ok(Checked { findings, next, done: 1, total: 1 })
    }
}

/// Decodes a range of jobs.
async fn range(conn: &mut Conn, after: i64) -> Result<Checked> {
    let found = conn.step(&[Range { after: &after, limit: &CHUNK }.call()]).await?.pop().unwrap_or_default();
    let (end, last) = Range::first(&found)?.map_or((None, None), |range| (range.end, range.last));
    let last = last.unwrap_or(0);
    let to = end.filter(|end| *end < last).unwrap_or(i64::MAX);
    let (after, end) = (&after, &to);
    let answers = conn
        .end(&[
            Columns { after, to: end }.call(),
            JobOptions { after, to: end }.call(),
            JobWaits { after, to: end }.call(),
            JobSteps { after, to: end }.call(),
            JobMessages { after, to: end }.call(),
        ])
        .await?;
    let [columns, options, waiting, steps, messages] = answers.as_slice() else {
        return Err(corrupt("a range without an answer"));
    };
    let mut found = Unreadable::default();
    for BadColumn { id, place, column } in Columns::rows(columns)? {
        found.add(format!("job {id}: column {column} of {place} cannot be read"));
    }
    let options = JobOptions::rows(options)?.into_iter().map(|TextOf { id, text }| {
        let read: std::result::Result<Options, _> = serde_json::from_str(&text);
        (id, read.map(drop).map_err(|error| corrupt(error.to_string())))
    });
    found.decode("options of jobs", options)?;
    let waiting = JobWaits::rows(waiting)?.into_iter();
    found.decode("waits of suspended", waiting.map(|it| (it.id, waits(Some(&it.text)).map(drop))))?;
    let steps = JobSteps::rows(steps)?.into_iter();
    found.decode("steps", steps.map(|step| (step.id, written(step.base).map(drop))))?;
    let messages = JobMessages::rows(messages)?.into_iter();
    found.decode("inbox", messages.map(|it| (it.id, message(it.base).map(drop))))?;
    let findings = found.0;
    let next =
        if to == i64::MAX { CheckPart { part: 1, after: 0 } } else { CheckPart { part: 0, after: to } };
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Checked { findings, next: Some(next), done: count(to.min(last)), total: count(last) })
}

/// What cannot be read.
#[derive(Default)]
struct Unreadable(Vec<Finding>);

impl Unreadable {
    fn add(&mut self, what: String) {
        self.0.push(Finding { what, hint: UNREADABLE.into() });
    }

    /// Takes in what became of decoding something of jobs, by their ids.
    fn decode(&mut self, what: &str, read: impl Iterator<Item = (String, Result<()>)>) -> Result<()> {
        let mut reported = 0;
        for (id, read) in read {
            if let Err(why) = legible(read)?
                && reported < FINDINGS
            {
                reported += 1;
                self.add(format!("job {id}: {what}: {why}"));
            }
        }
        Ok(())
    }
}
