//! Journals as nodes and people read them.

use std::collections::BTreeMap;
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId};
use mainspring_core::journal::{
    ChildSummary, EntryKind, Inbox, JobEnd, Journal, Message, MessageBody, OnClose, Subject, Timeline, Value,
    Wait, Written,
};
use mainspring_core::name::Key;
use tokio_postgres::Row;
use uuid::Uuid;

use super::get::status;
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::op::Op;
use crate::op::places::{place, state};
use crate::shared::Shared;
use crate::sql::statement::{FromRow, row};
use crate::sql::{At, Call, Query, bound, statement};

row! {
    /// Whether all fits, and the job that an entry is of; none if there is no entry.
    pub(crate) EntryHead { fits: Option<bool>, no: Option<i64> }
}

row! {
    /// An entry of a journal.
    pub(crate) EntryRow after EntryHead {
        seq: i64, key: String, kind: i16, overlapped: bool, claim: i32, at: At, size: i64, value: Option<Vec<u8>>,
        took: Option<i32>,
    }
}

row! {
    /// An unread message.
    pub(crate) MessageRow {
        seq: i64, at: At, subject: String, sender: String, state: Option<i16>, reason: Option<i16>,
        note: Option<String>, body: Option<Vec<u8>>,
    }
}

row! {
    /// A message of a page, which answers one of several questions.
    pub(crate) PagedMessage after MessageRow { asked: i64, count: i64, fits: bool }
}

statement! {
    /// Primary key of `steps`, by the jobs' numbers, twice: whether all values together are within what one job may take along, and
    /// all jobs; and if so, all entries. Nearly always they are.
    pub(crate) Entries<'a> = "journal.entries", by ["steps_pkey"],
    (nos: Vec<i64>, most: i64, most_of_all: i64) -> EntryRow;
    "WITH z AS MATERIALIZED (SELECT max(x.size) <= $2 AND sum(x.size) <= $3 AS fits
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT sum(octet_length(s.value)) AS size FROM mainspring.steps s WHERE s.no = u.no) x)
    SELECT z.fits, e.no, e.seq, e.key, e.kind, e.overlapped, e.claim, e.at, e.size::bigint, e.value, e.took
    FROM z LEFT JOIN LATERAL (
        SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, s.took, octet_length(s.value) AS size
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT * FROM mainspring.steps s WHERE s.no = u.no OFFSET 0) s
        WHERE z.fits) e ON true"
}

statement! {
    /// The same if they are not: values are left out where the smaller ones before them have used up what one job may take along,
    /// or all jobs together. Sizes are added up row by row as integers: sums of `bigint` are `numeric`, and ranges of rows
    /// would be looked for, which took a fifth of the time.
    pub(crate) EntriesCut<'a> = "journal.entries_cut", by ["steps_pkey"],
    (nos: Vec<i64>, most: i64, most_of_all: i64) -> EntryRow;
    "SELECT true, e.no, e.seq, e.key, e.kind, e.overlapped, e.claim, e.at, e.size::bigint,
        CASE WHEN e.size <= $2 AND e.own <= $2 AND e.total <= $3 THEN e.value END, e.took
    FROM (SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, s.took, s.size,
            sum(s.size) FILTER (WHERE s.size <= $2)
                OVER (PARTITION BY s.no ORDER BY s.seq ROWS UNBOUNDED PRECEDING) AS own,
            sum(s.size) FILTER (WHERE s.size <= $2) OVER (ORDER BY s.no, s.seq ROWS UNBOUNDED PRECEDING) AS total
        FROM unnest($1::bigint[]) AS u(no) CROSS JOIN LATERAL (
            SELECT s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, s.value, s.took, octet_length(s.value) AS size
            FROM mainspring.steps s WHERE s.no = u.no OFFSET 0) s) e"
}

statement! {
    /// Unread messages behind a number, job by job. Partial index `inbox_unread`. One more than a page is looked at, to tell
    /// whether there are more; and a page ends before it takes too many bytes. The first may be larger, up to a bound of its own:
    /// beyond that it is told of, without its body, to say that there is more.
    pub(crate) Messages<'a> = "journal.messages", by ["inbox_unread"],
    (nos: Vec<i64>, afters: Vec<i64>, page: i64, bytes: i64, first: i64) -> PagedMessage;
    "SELECT m.seq, m.at, m.subject, m.sender, m.state, m.reason,
        CASE WHEN m.bytes <= $5 THEN m.note END, CASE WHEN m.bytes <= $5 THEN m.body END, m.o, m.count, m.bytes <= $5
    FROM (SELECT u.o, m.*, row_number() OVER w AS place,
            sum(coalesce(octet_length(m.body), 0) + coalesce(octet_length(m.note), 0)) OVER w AS bytes, count(*) OVER (PARTITION BY u.o) AS count
        FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(no, after, o)
        CROSS JOIN LATERAL (SELECT m.seq, m.at, m.subject, m.sender, m.state, m.reason, m.note, m.body
            FROM mainspring.inbox m WHERE m.no = u.no AND m.seq > u.after AND NOT m.read
            ORDER BY m.seq LIMIT $3 + 1) m
        WINDOW w AS (PARTITION BY u.o ORDER BY m.seq)) m
    WHERE m.place <= $3 AND (m.place = 1 OR m.bytes <= $4) ORDER BY m.o, m.seq"
}

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
    // What a claimed job has recorded is changed by the owner of the claim only.
    let entries = Entries { nos, most: &PREFETCH, most_of_all: &BATCH_BYTES }.call();
    let mut rows = conn.step(&[entries, messages(nos, &afters, &page, &share)]).await?;
    let (Some(messages), Some(mut entries)) = (rows.pop(), rows.pop()) else {
        return Err(corrupt("a journal without an answer"));
    };
    if entries.first().map(EntryHead::read).transpose()?.and_then(|head| head.fits) == Some(false) {
        let cut = EntriesCut { nos, most: &PREFETCH, most_of_all: &BATCH_BYTES }.call();
        entries = conn.step(&[cut]).await?.pop().unwrap_or_default();
    }
    // A job without entries has a row without one.
    let mut read = Vec::with_capacity(entries.len());
    for row in &entries {
        if EntryHead::read(row)?.no.is_some() {
            read.push(EntryRow::read(row)?);
        }
    }
    read.sort_by_key(|entry| (entry.base.no, entry.seq));
    let mut journals: BTreeMap<i64, std::result::Result<Box<Journal>, String>> =
        nos.iter().map(|no| (*no, Ok(Box::default()))).collect();
    for entry in read {
        let Some(known) = entry.base.no.and_then(|no| journals.get_mut(&no)) else { continue };
        match (legible(written(entry))?, &mut *known) {
            (Ok(entry), Ok(journal)) => journal.entries.push(entry),
            (Err(why), _) => *known = Err(format!("its journal: {why}")),
            (Ok(_), Err(_)) => {}
        }
    }
    let mut rest = Messages::rows(&messages)?;
    for (place, no) in (1_i64..).zip(nos) {
        let own = rest.iter().take_while(|message| message.asked == place).count();
        let own = rest.drain(..own).collect();
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
    Messages { nos, afters, page: &PAGE, bytes, first }.call()
}

/// An entry from its row.
pub(super) fn written(row: EntryRow) -> Result<Written> {
    let kind = u8::try_from(row.kind).ok().and_then(EntryKind::from_code);
    Ok(Written {
        key: Key::new(row.key).map_err(|error| corrupt(error.to_string()))?,
        kind: kind.ok_or_else(|| corrupt(format!("{} is not a kind of entry", row.kind)))?,
        overlapped: row.overlapped,
        claim: u32::try_from(row.claim).unwrap_or(0),
        at: row.at.0,
        value: match row.value {
            Some(value) => Value::Here(value),
            None => Value::There(usize::try_from(row.size).unwrap_or(0)),
        },
        took: row.took.map(|took| Duration::from_millis(took.max(0).unsigned_abs().into())),
    })
}

/// The answers to so many questions of [`Messages`].
fn inboxes(rows: &[Row], count: usize) -> Result<Vec<Inbox>> {
    let mut inboxes = vec![Inbox::default(); count];
    let mut there = vec![0_i64; count];
    for row in Messages::rows(rows)? {
        let index = usize::try_from(row.asked - 1).ok().filter(|&index| index < count);
        let index = index.ok_or_else(|| corrupt("an answer to nothing"))?;
        there[index] = row.count;
        inboxes[index].messages.push(message(row.base)?);
    }
    for (inbox, there) in inboxes.iter_mut().zip(there) {
        inbox.more = usize::try_from(there).unwrap_or(0) > inbox.messages.len();
    }
    Ok(inboxes)
}

/// The answer to one question of [`Messages`].
fn inbox(rows: Vec<PagedMessage>) -> Result<Inbox> {
    let there = rows.last().map_or(0, |row| row.count);
    let fits = rows.into_iter().filter(|row| row.fits).map(|row| message(row.base));
    let messages = fits.collect::<Result<Vec<_>>>()?;
    let more = usize::try_from(there).unwrap_or(0) > messages.len();
    Ok(Inbox { messages, more })
}

pub(super) fn message(row: MessageRow) -> Result<Message> {
    let subject: Subject =
        row.subject.parse().map_err(|error: mainspring_core::Error| corrupt(error.to_string()))?;
    let mail = match (subject, row.state) {
        (Subject::Signal(name), None) => {
            MessageBody::Signal { name, sender: row.sender, body: row.body.unwrap_or_default() }
        }
        (Subject::Child(child), Some(state)) => MessageBody::Ended {
            child,
            status: status(state, row.reason)?,
            result: row.body,
            message: row.note,
        },
        (subject, _) => return Err(corrupt(format!("a message about {subject} is not what it says"))),
    };
    Ok(Message { no: row.seq, at: row.at.0, body: mail })
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

statement! {
    /// Primary keys of `jobs` and `steps`.
    pub(crate) FindValues<'a> = "journal.values", by ["jobs_id_key", "steps_pkey"],
    (id: Uuid, keys: Vec<&'a str>) -> Bytes { bytes: Option<Vec<u8>> };
    "SELECT s.value FROM unnest($2::text[]) WITH ORDINALITY AS u(key, o)
    LEFT JOIN LATERAL (SELECT s.value FROM mainspring.steps s
        WHERE s.no = (SELECT j.no FROM mainspring.jobs j WHERE j.id = $1) AND s.key = u.key OFFSET 0) s ON true
    ORDER BY u.o"
}

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
        let values = FindValues { id: &id, keys: &keys }.call();
        let rows = conn.commit(shared, &[values]).await?.pop().unwrap_or_default();
        Ok(FindValues::rows(&rows)?.into_iter().map(|value| value.bytes).collect())
    }
}

statement! {
    /// Unique index of ids.
    pub(crate) FindInputs<'a> = "journal.inputs", by ["jobs_id_key"], (nos: Vec<i64>, ids: Vec<Uuid>) -> Bytes;
    "SELECT j.input FROM unnest($1::bigint[], $2::uuid[]) WITH ORDINALITY AS u(no, id, o)
    LEFT JOIN LATERAL (SELECT j.input FROM mainspring.jobs j WHERE j.no = u.no AND j.id = u.id OFFSET 0) j ON true
    ORDER BY u.o"
}

/// Inputs of claimed jobs.
pub(crate) struct Inputs(pub(crate) Vec<Claim>);

impl Op for Inputs {
    type Answer = Vec<Option<Vec<u8>>>;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Self::Answer> {
        let nos: Vec<i64> = self.0.iter().map(|claim| claim.row.0).collect();
        let ids: Vec<Uuid> = self.0.iter().map(|claim| Uuid::from_bytes(*claim.id.as_bytes())).collect();
        let inputs = FindInputs { nos: &nos, ids: &ids }.call();
        let rows = conn.commit(shared, &[inputs]).await?.pop().unwrap_or_default();
        Ok(FindInputs::rows(&rows)?.into_iter().map(|input| input.bytes).collect())
    }
}

statement! {
    /// Unique index of ids: which of these numbers are those of these ids.
    pub(crate) Same<'a> = "journal.same", by ["jobs_id_key"], (nos: Vec<i64>, ids: Vec<Uuid>) -> SameJob { no: i64 };
    "SELECT j.no FROM unnest($1::bigint[], $2::uuid[]) AS u(no, id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE no = u.no AND id = u.id OFFSET 0) j"
}

/// Unread messages.
pub(crate) struct Inboxes(pub(crate) Vec<(Claim, i64)>);

impl Op for Inboxes {
    type Answer = Vec<Inbox>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Inbox>> {
        let nos: Vec<i64> = self.0.iter().map(|(claim, _)| claim.row.0).collect();
        let ids: Vec<Uuid> = self.0.iter().map(|(claim, _)| Uuid::from_bytes(*claim.id.as_bytes())).collect();
        let afters: Vec<i64> = self.0.iter().map(|(_, after)| *after).collect();
        let same = Same { nos: &nos, ids: &ids }.call();
        let rows = conn.commit(shared, &[same, messages(&nos, &afters, &PREFETCH, &ANY)]).await?;
        let [same, messages] = rows.as_slice() else { return Err(corrupt("an inbox without an answer")) };
        let same: Vec<i64> = Same::rows(same)?.into_iter().map(|job| job.no).collect();
        let inboxes = inboxes(messages, nos.len())?.into_iter().zip(&nos);
        Ok(inboxes.map(|(inbox, no)| if same.contains(no) { inbox } else { Inbox::default() }).collect())
    }
}

statement! {
    /// Unique index of ids, then primary keys. What there is to say to the end of a job: the reason that was given, or the
    /// last error.
    pub(crate) FindJobEnds<'a> = "journal.job_ends", by ["jobs_id_key", "done_pkey", "errors_pkey"],
    (ids: Vec<Uuid>)
    -> JobEndRow {
        known: bool, state: Option<i16>, reason: Option<i16>, result: Option<Vec<u8>>, message: Option<String>,
    };
    "SELECT j.no IS NOT NULL, d.state, d.reason, d.result,
        CASE WHEN d.state <> {state.succeeded} THEN coalesce(d.note, (SELECT e.message FROM mainspring.errors e
            WHERE e.no = j.no AND e.kind <> {fault.crashed} ORDER BY e.claim DESC LIMIT 1)) END
    FROM unnest($1::uuid[]) WITH ORDINALITY AS u(id, o)
    LEFT JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ON true
    LEFT JOIN LATERAL (SELECT * FROM mainspring.done WHERE no = j.no OFFSET 0) d ON true
    ORDER BY u.o"
}

/// How jobs look to somebody who waits for their end.
pub(crate) struct JobEnds(pub(crate) Vec<JobId>);

impl Op for JobEnds {
    type Answer = Vec<JobEnd>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<JobEnd>> {
        let ids: Vec<Uuid> = self.0.iter().map(|id| Uuid::from_bytes(*id.as_bytes())).collect();
        let rows = conn.commit(shared, &[FindJobEnds { ids: &ids }.call()]).await?.pop().unwrap_or_default();
        let job_end = |row: JobEndRow| {
            if !row.known {
                return Ok(JobEnd::Missing);
            }
            let Some(state) = row.state else { return Ok(JobEnd::Open) };
            Ok(JobEnd::Ended { status: status(state, row.reason)?, result: row.result, message: row.message })
        };
        FindJobEnds::rows(&rows)?.into_iter().map(job_end).collect()
    }
}

statement! {
    /// Unique index of ids.
    pub(crate) Number<'a> = "journal.number", by ["jobs_id_key"], (id: Uuid) -> SameJob;
    "SELECT no FROM mainspring.jobs WHERE id = $1"
}
statement! {
    /// Primary key of `steps`, by the job's number: the first entries, and one more to tell whether there are more.
    pub(crate) FirstEntries<'a> = "journal.first_entries", by ["steps_pkey"],
    (no: i64, value_bytes: i64, limit: i64) -> EntryRow;
    "SELECT true, s.no, s.seq, s.key, s.kind, s.overlapped, s.claim, s.at, octet_length(s.value)::bigint,
        CASE WHEN octet_length(s.value) <= $2 THEN s.value END, s.took
    FROM mainspring.steps s WHERE s.no = $1 ORDER BY s.seq LIMIT $3 + 1"
}
statement! {
    /// Index `children_parent`, then primary keys.
    pub(crate) ListChildren<'a> = "journal.children",
    by ["children_parent", "jobs_pkey", "done_pkey", "ready_pkey", "lease_pkey", "timers_pkey", "suspended_pkey"],
    (parent: i64) -> ChildRow { id: Uuid, on_close: i16, state: Option<i16>, reason: Option<i16> };
    concat!(
    "SELECT j.id, c.on_close, ",
    state!(),
    ", coalesce(d.reason, s.reason)
    FROM mainspring.children c
    CROSS JOIN LATERAL (SELECT no, id FROM mainspring.jobs WHERE no = c.no OFFSET 0) j",
    place!(),
    "WHERE c.parent = $1 ORDER BY c.no"
)
}

const TIMELINE: i64 = bound(bounds::TIMELINE);
const TIMELINE_VALUE: i64 = bound(bounds::TIMELINE_VALUE_BYTES);

/// What a job has recorded, been sent and started.
pub(crate) struct TimelineOp(pub(crate) JobId);

impl Op for TimelineOp {
    type Answer = Option<Timeline>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<Timeline>> {
        let id = Uuid::from_bytes(*self.0.as_bytes());
        let begun = conn.begin(shared, super::SNAPSHOT, &[Number { id: &id }.call()]).await?;
        let number = begun.first().map(|rows| Number::first(rows)).transpose()?.flatten();
        let Some(no) = number.map(|job| job.no) else {
            conn.end(&[]).await?;
            return Ok(None);
        };
        let (nos, afters) = (vec![no], vec![0_i64]);
        let rows = conn
            .end(&[
                FirstEntries { no: &no, value_bytes: &TIMELINE_VALUE, limit: &TIMELINE }.call(),
                messages(&nos, &afters, &PREFETCH, &ANY),
                ListChildren { parent: &no }.call(),
            ])
            .await?;
        let [entries, messages, children] = rows.as_slice() else {
            return Err(corrupt("a timeline without an answer"));
        };
        let entries = FirstEntries::rows(entries)?;
        let more = entries.len() > bounds::TIMELINE;
        let page = entries.into_iter().take(bounds::TIMELINE).map(written).collect::<Result<_>>()?;
        let child = |row: ChildRow| {
            let state = row.state.ok_or_else(|| corrupt("a child is in no place"))?;
            Ok(ChildSummary {
                id: JobId::from_bytes(*row.id.as_bytes()),
                status: status(state, row.reason)?,
                on_close: if row.on_close == OnClose::Abandon as i16 {
                    OnClose::Abandon
                } else {
                    OnClose::Cancel
                },
            })
        };
        Ok(Some(Timeline {
            entries: page,
            more,
            inbox: inboxes(messages, 1)?.pop().unwrap_or_default(),
            children: ListChildren::rows(children)?.into_iter().map(child).collect::<Result<_>>()?,
        }))
    }
}
