//! One job as people see it.

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{
    ErrorEntry, FaultKind, Options, Priority, Progress, Reason, Record, State, Status, Summary, Unreadable,
};
use mainspring_core::name::{Key, Kind, QueueName};
use mainspring_core::named;
use mainspring_core::store::{Level, Mark, flags};
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::journal::waits;
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::names::{self, Names};
use crate::op::Op;
use crate::op::places::{of_place, place, state};
use crate::shared::Shared;
use crate::sql::{At, Call};

/// The columns of a summary, as [`summary`] reads them, from a job `j` and its place.
macro_rules! columns {
    () => {
        concat!(
            "j.no, j.id, j.line, j.created_at, j.deadline, j.options::text, ",
            state!(),
            ", coalesce(d.reason, s.reason),
        coalesce(d.priority, r.level & {level.priority_bits}, l.priority, m.priority, s.priority)::smallint, ",
            of_place!("claim"),
            ", ",
            of_place!("failures"),
            ", ",
            of_place!("crashes"),
            ", coalesce(",
            of_place!("flags"),
            ", 0::smallint), coalesce(m.due, s.due), l.claimed_at, d.finished_at, l.node, l.cancel IS NOT NULL,
        coalesce(l.stuck, 0::smallint), r.level"
        )
    };
}

/// Unique index of ids, then primary keys; errors from the beginning of theirs. One statement sees one moment.
const GET: &str = named!(concat!(
    "SELECT ",
    columns!(),
    ", j.input, d.result, coalesce(d.note, s.note), p.done, p.total, p.note,
        ARRAY(SELECT e.claim FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.at FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.kind FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.message FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        s.waits::text, last.key, last.at FROM mainspring.jobs j",
    place!(),
    "LEFT JOIN mainspring.progress p ON p.no = j.no
    LEFT JOIN LATERAL (SELECT e.key, e.at FROM mainspring.steps e WHERE e.no = j.no AND l.stuck = {stuck.foreign}
        ORDER BY e.seq DESC LIMIT 1) last ON true WHERE j.id = $1"
));

/// Primary keys. Without payloads.
pub(super) const SUMMARIES: &str =
    named!(concat!("SELECT ", columns!(), " FROM mainspring.jobs j", place!(), "WHERE j.no = ANY($1)"));

/// Where the columns of a summary end.
const BESIDE: usize = 20;

/// Everything known of a job.
pub(crate) struct Get(pub(crate) JobId);

impl Op for Get {
    type Answer = Option<Record>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<Record>> {
        let id = Uuid::from_bytes(*self.0.as_bytes());
        let call = Call::new(GET, vec![(&id, Type::UUID)]);
        let rows = conn.commit(shared, &[call]).await?.pop().unwrap_or_default();
        let Some(row) = rows.first() else { return Ok(None) };
        let settings = shared.names().settings().to_owned();
        names::learn(conn, shared, [line(row)], &settings).await?;
        let mut summary = summary(&shared.names(), row)?;
        let mut damage = Damage::default();
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        let progress = row.get::<_, Option<i64>>(BESIDE + 3).map(|done| Progress {
            done: count(done),
            total: count(row.get(BESIDE + 4)),
            note: row.get(BESIDE + 5),
        });
        let waits = damage.note("waits", waits(row.get(BESIDE + 10)))?.unwrap_or_default();
        let errors = damage.note("errors", errors(row))?.unwrap_or_default();
        let last = damage.note("steps", last(row))?.flatten();
        summary.unreadable = summary.unreadable.or(damage.0.what);
        Ok(Some(Record {
            waits,
            summary,
            input: row.get(BESIDE),
            result: row.get(BESIDE + 1),
            note: row.get(BESIDE + 2),
            errors,
            progress,
            last,
        }))
    }
}

/// The number of a job.
pub(super) fn number(row: &Row) -> i64 {
    row.get(0)
}

/// The line of a job.
pub(super) fn line(row: &Row) -> i32 {
    row.get(2)
}

/// What of a job cannot be read: the first of it, in words.
#[derive(Default)]
struct Damage(Unreadable);

impl Damage {
    /// What was read; or nothing, and a note of it.
    fn note<T>(&mut self, what: &str, read: Result<T>) -> Result<Option<T>> {
        Ok(self.0.note(what, legible(read)?))
    }

    /// A count, which is not below zero.
    fn count<T: TryFrom<i64> + Default>(&mut self, what: &str, count: i64) -> Result<T> {
        let read = T::try_from(count).map_err(|_| corrupt(format!("{count} is no count")));
        Ok(self.note(what, read)?.unwrap_or_default())
    }
}

/// A summary from its columns. What of it cannot be read is shown as if it had never been set.
pub(super) fn summary(names: &Names, row: &Row) -> Result<Summary> {
    let no = number(row);
    let mut damage = Damage::default();
    let (kind, queue) = match damage.note("line", names.line(line(row)))? {
        Some(line) => (line.kind_name.clone(), line.queue_name.clone()),
        None => (Kind::new("unreadable")?, QueueName::new("unreadable")?),
    };
    let id: Uuid = row.get(1);
    let options: Option<&str> = row.get(5);
    let state: Option<i16> = row.get(6);
    let state = state.ok_or_else(|| corrupt(format!("job number {no} is in no place")))?;
    let status = damage.note("state or reason", status(state, row.get(7)))?;
    let time = |column: usize| row.get::<_, Option<At>>(column).map(|at| at.0);
    // It is the place that says whether there is a deadline: a job that was run again has none.
    let has_deadline = row.get::<_, i16>(12) & flags::DEADLINE != 0;
    let options = match options {
        None => Ok(Options::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(error.to_string())),
    };
    let options = damage.note("options", options)?.unwrap_or_default();
    let level: Option<i16> = row.get(19);
    let code = level.map_or(Ok(()), |code| {
        let level = u8::try_from(code).ok().and_then(Level::from_code);
        level.map(drop).ok_or_else(|| corrupt(format!("{code} is no level")))
    });
    damage.note("level", code)?;
    Ok(Summary {
        id: JobId::from_bytes(*id.as_bytes()),
        kind,
        queue,
        priority: damage.note("priority", priority(row.get(8)))?.unwrap_or_default(),
        status: status.unwrap_or(Status::because(State::Suspended, Reason::Unreadable)),
        claim: damage.count("claim", row.get::<_, i32>(9).into())?,
        failures: damage.count("failures", row.get::<_, i16>(10).into())?,
        crashes: damage.count("crashes", row.get::<_, i16>(11).into())?,
        created_at: time_of(row, 3),
        run_at: time(13),
        claimed_at: time(14),
        finished_at: time(15),
        deadline: time(4).filter(|_| has_deadline),
        node: row.get::<_, Option<i32>>(16).map(|node| NodeNo(node.into())),
        cancelling: row.get(17),
        stuck: row.get::<_, i16>(18) == i16::from(Mark::BLOCKED),
        foreign: row.get::<_, i16>(18) == i16::from(Mark::FOREIGN),
        options,
        unreadable: damage.0.what,
    })
}

fn last(row: &Row) -> Result<Option<(Key, Timestamp)>> {
    let Some(key) = row.get::<_, Option<String>>(BESIDE + 11) else { return Ok(None) };
    let key = Key::new(key).map_err(|error| corrupt(error.to_string()))?;
    Ok(Some((key, time_of(row, BESIDE + 12))))
}

fn errors(row: &Row) -> Result<Vec<ErrorEntry>> {
    let claims: Vec<i32> = row.get(BESIDE + 6);
    let times: Vec<At> = row.get(BESIDE + 7);
    let kinds: Vec<i16> = row.get(BESIDE + 8);
    let messages: Vec<String> = row.get(BESIDE + 9);
    let entries = claims.into_iter().zip(times).zip(kinds).zip(messages);
    let entry = |(((claim, at), kind), message): (((i32, At), i16), String)| {
        let code = u8::try_from(kind).ok().and_then(FaultKind::from_code);
        let kind = code.ok_or_else(|| corrupt(format!("{kind} is no kind of fault")))?;
        Ok(ErrorEntry { claim: u32::try_from(claim).unwrap_or(0), at: at.0, kind, message })
    };
    entries.map(entry).collect()
}

/// A status from its two columns.
pub(crate) fn status(state: i16, reason: Option<i16>) -> Result<Status> {
    let reason = match reason {
        None => None,
        Some(code) => {
            let reason = u8::try_from(code).ok().and_then(Reason::from_code);
            Some(reason.ok_or_else(|| corrupt(format!("{code} is no reason")))?)
        }
    };
    Ok(Status { state: state_of(state)?, reason })
}

/// A state from its column.
pub(crate) fn state_of(code: i16) -> Result<State> {
    let state = u8::try_from(code).ok().and_then(State::from_code);
    state.ok_or_else(|| corrupt(format!("{code} is no state")))
}

pub(crate) fn priority(code: i16) -> Result<Priority> {
    let priority = u8::try_from(code).ok().and_then(|code| Priority::new(code).ok());
    priority.ok_or_else(|| corrupt(format!("{code} is no priority")))
}

pub(super) fn time_of(row: &Row, column: usize) -> Timestamp {
    row.get::<_, At>(column).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_are_none_are_corrupt() {
        assert_eq!(status(5, None).ok(), Some(Status::plain(State::Succeeded)));
        assert_eq!(status(4, Some(8)).ok(), Some(Status::because(State::Suspended, Reason::Hold)));
        for (state, reason) in [(-1, None), (99, None), (300, None), (6, Some(-1)), (6, Some(999))] {
            assert!(status(state, reason).is_err(), "{state} {reason:?}");
        }
        assert!(priority(0).is_ok() && priority(9).is_ok());
        assert!(priority(10).is_err() && priority(-1).is_err() && priority(256).is_err());
    }
}
