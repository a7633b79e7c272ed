//! Journals as nodes and people read them.

use std::collections::BTreeMap;

use mainspring_core::id::{Claim, JobId};
use mainspring_core::journal::{
    ChildSummary, EntryKind, Inbox, JobEnd, Journal, Message, MessageBody, OnClose, Subject, Timeline, Value,
    Wait, Written,
};
use mainspring_core::name::Key;
use mainspring_core::{bounds, named};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::get::{status, time_of};
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::op::Op;
use crate::op::places::{place, state};
use crate::shared::Shared;
use crate::sql::{Call, bound};

/// Primary key of `steps`, by the jobs' numbers, twice: whether all values together are within what one job may take along, and
/// all jobs; and if so, all entries. Nearly always they are.
const ENTRIES: &str = "WITH z AS MATERIALIZED (SELECT max(x.size) <= $2 AND sum(x.size) <= $3 AS fits
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT sum(octet_length(s.value)) AS size FROM mainspring.steps s WHERE s.no = u.no) x)
    SELECT e.no, e.seq, e.key, e.kind, e.overlapped, e.claim, e.at, e.size::bigint, e.value, z.fits
    FROM z LEFT JOIN LATERAL (
        SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, octet_length(s.value) AS size
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT * FROM mainspring.steps s WHERE s.no = u.no OFFSET 0) s
        WHERE z.fits) e ON true";

/// The same if they are not: values are left out where the smaller ones before them have used up what one job may take along,
/// or all jobs together. Sizes are added up row by row as integers: sums of `bigint` are `numeric`, and ranges of rows
/// would be looked for, which took a fifth of the time.
const ENTRIES_CUT: &str = "SELECT e.no, e.seq, e.key, e.kind, e.overlapped, e.claim, e.at, e.size::bigint,
        CASE WHEN e.size <= $2 AND e.own <= $2 AND e.total <= $3 THEN e.value END
    FROM (SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, s.size,
            sum(s.size) FILTER (WHERE s.size <= $2)
                OVER (PARTITION BY s.no ORDER BY s.seq ROWS UNBOUNDED PRECEDING) AS own,
            sum(s.size) FILTER (WHERE s.size <= $2) OVER (ORDER BY s.no, s.seq ROWS UNBOUNDED PRECEDING) AS total
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, octet_length(s.value) AS size
            FROM mainspring.steps s WHERE s.no = u.no OFFSET 0) s) e";

/// Unread messages behind a number, job by job. Partial index `inbox_unread`. One more than a page is looked at, to tell
/// whether there are more; and a page ends before it takes too many bytes. The first may be larger, up to a bound of its own:
/// beyond that it is told of, without its body, to say that there is more.
const MESSAGES: &str =
    "SELECT m.o, m.seq, m.at, m.subject, m.sender, m.state, m.reason,
        CASE WHEN m.bytes <= $5 THEN m.note END, CASE WHEN m.bytes <= $5 THEN m.body END, m.count, m.bytes <= $5
    FROM (SELECT u.o, m.*, row_number() OVER w AS place,
            sum(coalesce(octet_length(m.body), 0) + coalesce(octet_length(m.note), 0)) OVER w AS bytes, count(*) OVER (PARTITION BY u.o) AS count
        FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(no, after, o)
        CROSS JOIN LATERAL (SELECT m.seq, m.at, m.subject, m.sender, m.state, m.reason, m.note, m.body
            FROM mainspring.inbox m WHERE m.no = u.no AND m.seq > u.after AND NOT m.read
            ORDER BY m.seq LIMIT $3 + 1) m
        WINDOW w AS (PARTITION BY u.o ORDER BY m.seq)) m
    WHERE m.place <= $3 AND (m.place = 1 OR m.bytes <= $4) ORDER BY m.o, m.seq";

const PREFETCH: i64 = bound(bounds::PREFETCH_BYTES);
const BATCH_BYTES: i64 = bound(bounds::BATCH_BYTES);
const PAGE: i64 = bound(bounds::INBOX_PAGE);
/// One message at least, whatever its size.
const ANY: i64 = i64::MAX;

/// What claimed jobs have recorded and been sent before, by their numbers, which are sorted; or why that cannot be read.
pub(crate) async fn journals(
    conn: &mut Conn,
    nos: &Vec<i64>,
) -> Result<BTreeMap<i64, std::result::Result<Box<Journal>, String>>> {
    if nos.is_empty() {
        return Ok(BTreeMap::new());
    }
    let afters = vec![0_i64; nos.len()];
    // All of them together are within what a claim may bring.
    let share = BATCH_BYTES / i64::try_from(nos.len()).unwrap_or(i64::MAX);
    let page = PREFETCH.min(share);
    let call = |sql| {
        let args =
            vec![(nos as _, Type::INT8_ARRAY), (&PREFETCH as _, Type::INT8), (&BATCH_BYTES as _, Type::INT8)];
        Call::new(sql, args)
    };
    // What a claimed job has recorded is changed by the owner of the claim only.
    let mut rows = conn.step(&[call(ENTRIES), messages(nos, &afters, &page, &share)]).await?;
    let (Some(messages), Some(mut entries)) = (rows.pop(), rows.pop()) else {
        return Err(corrupt("a journal without an answer"));
    };
    if entries.first().and_then(|row| row.get::<_, Option<bool>>(9)) == Some(false) {
        entries = conn.step(&[call(ENTRIES_CUT)]).await?.pop().unwrap_or_default();
    }
    entries.retain(|row| row.get::<_, Option<i64>>(0).is_some());
    entries.sort_by_key(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1)));
    let mut journals: BTreeMap<i64, std::result::Result<Box<Journal>, String>> =
        nos.iter().map(|no| (*no, Ok(Box::default()))).collect();
    for row in &entries {
        let Some(known) = journals.get_mut(&row.get::<_, i64>(0)) else { continue };
        match (legible(written(row, 2))?, &mut *known) {
            (Ok(entry), Ok(journal)) => journal.entries.push(entry),
            (Err(why), _) => *known = Err(format!("its journal: {why}")),
            (Ok(_), Err(_)) => {}
        }
    }
    let mut rest = messages.as_slice();
    for (place, no) in (1_i64..).zip(nos) {
        let own = rest.iter().take_while(|row| row.get::<_, i64>(0) == place).count();
        let (own, after) = rest.split_at(own);
        rest = after;
        let Some(known) = journals.get_mut(no) else { continue };
        match (legible(inbox(own))?, &mut *known) {
            (Ok(inbox), Ok(journal)) => journal.inbox = inbox,
            (Err(why), _) => *known = Err(format!("its inbox: {why}")),
            (Ok(_), Err(_)) => {}
        }
    }
    Ok(journals)
}

/// `bytes`: of a page. `first`: of its first message, which may be larger.
fn messages<'c>(nos: &'c Vec<i64>, afters: &'c Vec<i64>, bytes: &'c i64, first: &'c i64) -> Call<'c> {
    let args = vec![
        (nos as _, Type::INT8_ARRAY),
        (afters as _, Type::INT8_ARRAY),
        (&PAGE as _, Type::INT8),
        (bytes as _, Type::INT8),
        (first as _, Type::INT8),
    ];
    Call::new(MESSAGES, args)
}

/// An entry from its columns: key, kind, overlapped, claim, time, size and value.
pub(super) fn written(row: &Row, from: usize) -> Result<Written> {
    let kind: i16 = row.get(from + 1);
    let size: i64 = row.get(from + 5);
    Ok(Written {
        key: Key::new(row.get::<_, String>(from)).map_err(|error| corrupt(error.to_string()))?,
        kind: u8::try_from(kind)
            .ok()
            .and_then(EntryKind::from_code)
            .ok_or_else(|| corrupt(format!("{kind} is no kind of entry")))?,
        overlapped: row.get(from + 2),
        claim: u32::try_from(row.get::<_, i32>(from + 3)).unwrap_or(0),
        at: time_of(row, from + 4),
        value: match row.get::<_, Option<Vec<u8>>>(from + 6) {
            Some(value) => Value::Here(value),
            None => Value::There(usize::try_from(size).unwrap_or(0)),
        },
    })
}

/// The answers to so many questions of [`MESSAGES`].
fn inboxes(rows: &[Row], count: usize) -> Result<Vec<Inbox>> {
    let mut inboxes = vec![Inbox::default(); count];
    let mut there = vec![0_i64; count];
    for row in rows {
        let index = usize::try_from(row.get::<_, i64>(0) - 1).ok().filter(|&index| index < count);
        let index = index.ok_or_else(|| corrupt("an answer to nothing"))?;
        inboxes[index].messages.push(message(row)?);
        there[index] = row.get(9);
    }
    for (inbox, there) in inboxes.iter_mut().zip(there) {
        inbox.more = usize::try_from(there).unwrap_or(0) > inbox.messages.len();
    }
    Ok(inboxes)
}

/// The answer to one question of [`MESSAGES`].
fn inbox(rows: &[Row]) -> Result<Inbox> {
    let fits = rows.iter().filter(|row| row.get(10));
    let messages = fits.map(message).collect::<Result<Vec<_>>>()?;
    let there = rows.last().map_or(0, |row| row.get::<_, i64>(9));
    let more = usize::try_from(there).unwrap_or(0) > messages.len();
    Ok(Inbox { messages, more })
}

pub(super) fn message(row: &Row) -> Result<Message> {
    let subject: Subject =
        row.get::<_, &str>(3).parse().map_err(|error: mainspring_core::Error| corrupt(error.to_string()))?;
    let body: Option<Vec<u8>> = row.get(8);
    let mail = match (subject, row.get::<_, Option<i16>>(5)) {
        (Subject::Signal(name), None) => {
            MessageBody::Signal { name, sender: row.get(4), body: body.unwrap_or_default() }
        }
        (Subject::Child(child), Some(state)) => MessageBody::Ended {
            child,
            status: status(state, row.get(6))?,
            result: body,
            message: row.get(7),
        },
        (subject, _) => return Err(corrupt(format!("a message about {subject} is not what it says"))),
    };
    Ok(Message { no: row.get(1), at: time_of(row, 2), body: mail })
}

/// What wakes a suspended job, from its column.
pub(super) fn waits(text: Option<&str>) -> Result<Vec<Wait>> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let pairs: Vec<(String, u32)> =
        serde_json::from_str(text).map_err(|error| corrupt(format!("waits: {error}")))?;
    let wait = |(subject, need): (String, u32)| {
        let subject = subject.parse().map_err(|error: mainspring_core::Error| corrupt(error.to_string()))?;
        Ok(Wait { subject, need })
    };
    pairs.into_iter().map(wait).collect()
}

/// Primary keys of `jobs` and `steps`.
const VALUES: &str = "SELECT s.value FROM unnest($2::text[]) WITH ORDINALITY AS u(key, o)
    LEFT JOIN LATERAL (SELECT s.value FROM mainspring.steps s
        WHERE s.no = (SELECT j.no FROM mainspring.jobs j WHERE j.id = $1) AND s.key = u.key OFFSET 0) s ON true
    ORDER BY u.o";

/// Recorded values.
pub(crate) struct Values {
    pub(crate) id: JobId,
    pub(crate) keys: Vec<Key>,
}

impl Op for Values {
    type Answer = Vec<Option<Vec<u8>>>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Self::Answer> {
        let id = Uuid::from_bytes(*self.id.as_bytes());
        let keys: Vec<&str> = self.keys.iter().map(Key::as_str).collect();
        let args = vec![(&id as _, Type::UUID), (&keys as _, Type::TEXT_ARRAY)];
        let rows = conn.commit(shared, &[Call::new(VALUES, args)]).await?.pop().unwrap_or_default();
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Primary key of `jobs`.
const INPUTS: &str = "SELECT j.input FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS u(no, id, o)
    LEFT JOIN LATERAL (SELECT j.input FROM mainspring.jobs j WHERE j.no = u.no AND j.id = u.id OFFSET 0) j ON true
    ORDER BY u.o";

/// Inputs of claimed jobs.
pub(crate) struct Inputs(pub(crate) Vec<Claim>);

impl Op for Inputs {
    type Answer = Vec<Option<Vec<u8>>>;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Self::Answer> {
        let nos: Vec<i64> = self.0.iter().map(|claim| claim.row.0).collect();
        let ids: Vec<Uuid> = self.0.iter().map(|claim| Uuid::from_bytes(*claim.id.as_bytes())).collect();
        let args = vec![(&nos as _, Type::INT8_ARRAY), (&ids as _, Type::UUID_ARRAY)];
        let rows = conn.commit(shared, &[Call::new(INPUTS, args)]).await?.pop().unwrap_or_default();
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Primary key of `jobs`: which of these numbers are those of these ids.
const SAME: &str = "SELECT j.no FROM unnest($1::bigint[], $2::uuid[]) AS u(no, id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE no = u.no AND id = u.id OFFSET 0) j";

/// Unread messages.
pub(crate) struct Inboxes(pub(crate) Vec<(Claim, i64)>);

impl Op for Inboxes {
    type Answer = Vec<Inbox>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Inbox>> {
        let nos: Vec<i64> = self.0.iter().map(|(claim, _)| claim.row.0).collect();
        let ids: Vec<Uuid> = self.0.iter().map(|(claim, _)| Uuid::from_bytes(*claim.id.as_bytes())).collect();
        let afters: Vec<i64> = self.0.iter().map(|(_, after)| *after).collect();
        let same = Call::new(SAME, vec![(&nos, Type::INT8_ARRAY), (&ids, Type::UUID_ARRAY)]);
        let rows = conn.commit(shared, &[same, messages(&nos, &afters, &PREFETCH, &ANY)]).await?;
        let [same, messages] = rows.as_slice() else { return Err(corrupt("an inbox without an answer")) };
        let same: Vec<i64> = same.iter().map(|row| row.get(0)).collect();
        let inboxes = inboxes(messages, nos.len())?.into_iter().zip(&nos);
        Ok(inboxes.map(|(inbox, no)| if same.contains(no) { inbox } else { Inbox::default() }).collect())
    }
}

/// Unique index of ids, then primary keys. What there is to say to the end of a job: the reason that was given, or the
/// last error.
const JOB_ENDS: &str = named!(
    "SELECT j.no IS NOT NULL, d.state, d.reason, d.result,
        CASE WHEN d.state <> {state.succeeded} THEN coalesce(d.note, (SELECT e.message FROM mainspring.errors e
            WHERE e.no = j.no ORDER BY e.claim DESC LIMIT 1)) END
    FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, o)
    LEFT JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.done WHERE no = j.no OFFSET 0) d ON true
    ORDER BY u.o"
);

/// How jobs look to somebody who waits for their end.
pub(crate) struct JobEnds(pub(crate) Vec<JobId>);

impl Op for JobEnds {
    type Answer = Vec<JobEnd>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<JobEnd>> {
        let ids: Vec<Uuid> = self.0.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        let call = Call::new(JOB_ENDS, vec![(&ids, Type::UUID_ARRAY)]);
        let rows = conn.commit(shared, &[call]).await?.pop().unwrap_or_default();
        let job_end = |row: &Row| {
            if !row.get::<_, bool>(0) {
                return Ok(JobEnd::Missing);
            }
            let Some(state) = row.get::<_, Option<i16>>(1) else { return Ok(JobEnd::Open) };
            Ok(JobEnd::Ended { status: status(state, row.get(2))?, result: row.get(3), message: row.get(4) })
        };
        rows.iter().map(job_end).collect()
    }
}

/// Unique index of ids.
const NUMBER: &str = "SELECT no FROM mainspring.jobs WHERE id = $1";
/// Primary key of `steps`, by the job's number: the first entries, and one more to tell whether there are more.
const FIRST_ENTRIES: &str =
    "SELECT s.key, s.kind, s.overlapped, s.claim, s.at, octet_length(s.value)::bigint,
        CASE WHEN octet_length(s.value) <= $2 THEN s.value END
    FROM mainspring.steps s WHERE s.no = $1 ORDER BY s.seq LIMIT $3 + 1";
/// Index `children_parent`, then primary keys.
const CHILDREN: &str = named!(concat!(
    "SELECT j.id, c.on_close, ",
    state!(),
    ", coalesce(d.reason, s.reason)
    FROM mainspring.children c
    CROSS JOIN LATERAL (SELECT no, id FROM mainspring.jobs WHERE no = c.no OFFSET 0) j",
    place!(),
    "WHERE c.parent = $1 ORDER BY c.no"
));

const TIMELINE: i64 = bound(bounds::TIMELINE);
const TIMELINE_VALUE: i64 = bound(bounds::TIMELINE_VALUE_BYTES);

/// What a job has recorded, been sent and started.
pub(crate) struct TimelineOp(pub(crate) JobId);

impl Op for TimelineOp {
    type Answer = Option<Timeline>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<Timeline>> {
        let id = Uuid::from_bytes(*self.0.as_bytes());
        let begun =
            conn.begin(shared, super::SNAPSHOT, &[Call::new(NUMBER, vec![(&id, Type::UUID)])]).await?;
        let Some(no) = begun.first().and_then(|rows| rows.first()).map(|row| row.get::<_, i64>(0)) else {
            conn.end(&[]).await?;
            return Ok(None);
        };
        let (nos, afters) = (vec![no], vec![0_i64]);
        let entries =
            vec![(&no as _, Type::INT8), (&TIMELINE_VALUE as _, Type::INT8), (&TIMELINE as _, Type::INT8)];
        let rows = conn
            .end(&[
                Call::new(FIRST_ENTRIES, entries),
                messages(&nos, &afters, &PREFETCH, &ANY),
                Call::new(CHILDREN, vec![(&no, Type::INT8)]),
            ])
            .await?;
        let [entries, messages, children] = rows.as_slice() else {
            return Err(corrupt("a timeline without an answer"));
        };
        let page = entries.iter().take(bounds::TIMELINE).map(|row| written(row, 0)).collect::<Result<_>>()?;
        let child = |row: &Row| {
            let on_close: i16 = row.get(1);
            Ok(ChildSummary {
                id: JobId::from_bytes(*row.get::<_, Uuid>(0).as_bytes()),
                status: status(row.get(2), row.get(3))?,
                on_close: if on_close == OnClose::Abandon as i16 {
                    OnClose::Abandon
                } else {
                    OnClose::Cancel
                },
            })
        };
        Ok(Some(Timeline {
            entries: page,
            more: entries.len() > bounds::TIMELINE,
            inbox: inboxes(messages, 1)?.pop().unwrap_or_default(),
            children: children.iter().map(child).collect::<Result<_>>()?,
        }))
    }
}
