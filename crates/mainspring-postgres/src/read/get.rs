//! One job as people see it.

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::job::{
    ErrorEntry, FaultKind, Options, Priority, Progress, Reason, Record, State, Status, Summary, Unreadable,
};
use mainspring_core::name::{Key, Kind, QueueName};
use mainspring_core::store::{Level, Mark, flags};
use mainspring_core::time::Timestamp;
use uuid::Uuid;

use super::journal::waits;
use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::names::{self, Names};
use crate::op::Op;
use crate::op::places::{of_place, place, state};
use crate::shared::Shared;
use crate::sql::statement::row;
use crate::sql::{At, Query, statement};

/// The columns of a summary, as [`summary`] reads them, from a job `j` and its place.
macro_rules! columns {
    () => {
        concat!(
            "j.no, j.id, j.line, j.created_at, j.deadline, j.options::text, ",
            state!(),
            ", coalesce(d.reason, s.reason),
        coalesce(d.priority, r.level & {level.priority_bits}, w.level & {level.priority_bits}, l.priority, m.priority, s.priority)::smallint, ",
            of_place!("claim"),
            ", ",
            of_place!("failures"),
            ", ",
            of_place!("crashes"),
            ", coalesce(",
            of_place!("flags"),
            ", 0::smallint), coalesce(m.due, s.due), coalesce(l.claimed_at, d.claimed_at), d.finished_at, coalesce(l.node, d.node),
        l.cancel IS NOT NULL,
        coalesce(l.stuck, 0::smallint), coalesce(r.level, w.level)"
        )
    };
}

row! {
    /// A job and its place.
    pub(crate) SummaryRow {
        no: i64, id: Uuid, line: i32, created_at: At, deadline: Option<At>, options: Option<String>, state: Option<i16>,
        reason: Option<i16>, priority: Option<i16>, claim: Option<i32>, failures: Option<i16>, crashes: Option<i16>,
        flags: i16, due: Option<At>, claimed_at: Option<At>, finished_at: Option<At>, node: Option<i32>,
        cancelling: bool, stuck: i16, level: Option<i16>,
    }
}

row! {
    /// Everything known of a job.
    pub(crate) RecordRow after SummaryRow {
        input: Vec<u8>, result: Option<Vec<u8>>, note: Option<String>, done: Option<i64>, total: Option<i64>,
        progress_note: Option<String>, error_claims: Vec<i32>, error_times: Vec<At>, error_kinds: Vec<i16>,
        error_messages: Vec<String>, error_began: Vec<At>, error_nodes: Vec<i32>, waits: Option<String>, last_key: Option<String>, last_at: Option<At>,
    }
}

statement! {
    /// Unique index of ids, then primary keys; errors from the beginning of theirs. One statement sees one moment.
    pub(crate) GetJob<'a> = "get.job",
    by ["jobs_id_key", "done_pkey", "ready_pkey", "limited_pkey", "lease_pkey", "timers_pkey", "suspended_pkey", "progress_pkey", "errors_pkey"],
    (id: Uuid) -> RecordRow;
    concat!(
    "SELECT ",
    columns!(),
    ", j.input, d.result, coalesce(d.note, s.note), p.done, p.total, p.note,
        ARRAY(SELECT e.claim FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.at FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.kind FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.message FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.claimed_at FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        ARRAY(SELECT e.node FROM mainspring.errors e WHERE e.no = j.no ORDER BY e.claim),
        s.waits::text, last.key, last.at FROM mainspring.jobs j",
    place!(),
    "LEFT JOIN mainspring.progress p ON p.no = j.no
    LEFT JOIN LATERAL (SELECT e.key, e.at FROM mainspring.steps e WHERE e.no = j.no AND l.stuck = {stuck.foreign}
        ORDER BY e.seq DESC LIMIT 1) last ON true WHERE j.id = $1"
)
}

statement! {
    /// Primary keys. Without payloads.
    pub(crate) Summaries<'a> = "get.summaries",
    by ["jobs_pkey", "done_pkey", "ready_pkey", "limited_pkey", "lease_pkey", "timers_pkey", "suspended_pkey"],
    (nos: Vec<i64>) -> SummaryRow;
    concat!("SELECT ", columns!(), " FROM mainspring.jobs j", place!(), "WHERE j.no = ANY($1)")
}

/// Everything known of a job.
pub(crate) struct Get(pub(crate) JobId);

impl Op for Get {
    type Answer = Option<Record>;

    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Option<Record>> {
        let id = Uuid::from_bytes(*self.0.as_bytes());
        let rows = conn.commit(shared, &[GetJob { id: &id }.call()]).await?.pop().unwrap_or_default();
        let Some(row) = GetJob::first(&rows)? else { return Ok(None) };
        let settings = shared.names().settings().to_owned();
        names::learn(conn, shared, [row.base.line], &settings).await?;
        let mut damage = Damage::default();
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        let progress = row.done.map(|done| Progress {
            done: count(done),
            total: row.total.map_or(0, count),
            note: row.progress_note.clone().unwrap_or_default(),
        });
        let waits = damage.note("waits", waits(row.waits.as_deref()))?.unwrap_or_default();
        let last = damage.note("steps", last(&row))?.flatten();
        let errors = damage.note("errors", errors(&row))?.unwrap_or_default();
        let RecordRow { base, input, result, note, .. } = row;
        let mut summary = summary(&shared.names(), &base)?;
        summary.unreadable = summary.unreadable.or(damage.0.what);
        Ok(Some(Record { waits, summary, input, result, note, errors, progress, last }))
    }
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
        let read = T::try_from(count).map_err(|_| corrupt(format!("{count} is not a count")));
        Ok(self.note(what, read)?.unwrap_or_default())
    }
}

/// A summary from its columns. What of it cannot be read is shown as if it had never been set.
pub(super) fn summary(names: &Names, row: &SummaryRow) -> Result<Summary> {
    let no = row.no;
    let mut damage = Damage::default();
    let (kind, queue) = match damage.note("line", names.line(row.line))? {
        Some(line) => (line.kind_name.clone(), line.queue_name.clone()),
        None => (Kind::new("unreadable")?, QueueName::new("unreadable")?),
    };
    let state = row.state.ok_or_else(|| corrupt(format!("job number {no} is in no place")))?;
    let status = damage.note("state or reason", status(state, row.reason))?;
    let time = |at: Option<At>| at.map(|at| at.0);
    // It is the place that says whether there is a deadline: a job that was run again has none.
    let has_deadline = row.flags & flags::DEADLINE != 0;
    let options = match &row.options {
        None => Ok(Options::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(error.to_string())),
    };
    let options = damage.note("options", options)?.unwrap_or_default();
    let code = row.level.map_or(Ok(()), |code| {
        let level = u8::try_from(code).ok().and_then(Level::from_code);
        level.map(drop).ok_or_else(|| corrupt(format!("{code} is not a level")))
    });
    damage.note("level", code)?;
    Ok(Summary {
        id: JobId::from_bytes(*row.id.as_bytes()),
        kind,
        queue,
        priority: damage.note("priority", priority(row.priority.unwrap_or(-1)))?.unwrap_or_default(),
        status: status.unwrap_or(Status::because(State::Suspended, Reason::Unreadable)),
        claim: damage.count("claim", row.claim.unwrap_or(0).into())?,
        failures: damage.count("failures", row.failures.unwrap_or(0).into())?,
        crashes: damage.count("crashes", row.crashes.unwrap_or(0).into())?,
        created_at: row.created_at.0,
        run_at: time(row.due),
        claimed_at: time(row.claimed_at),
        finished_at: time(row.finished_at),
        deadline: time(row.deadline).filter(|_| has_deadline),
        node: row.node.map(|node| NodeNo(node.into())),
        cancelling: row.cancelling,
        stuck: row.stuck == i16::from(Mark::BLOCKED),
        foreign: row.stuck == i16::from(Mark::FOREIGN),
        options,
        unreadable: damage.0.what,
    })
}

fn last(row: &RecordRow) -> Result<Option<(Key, Timestamp)>> {
    let (Some(key), Some(at)) = (row.last_key.clone(), row.last_at) else { return Ok(None) };
    let key = Key::new(key).map_err(|error| corrupt(error.to_string()))?;
    Ok(Some((key, at.0)))
}

/// Errors from their columns, which are of one table and so of one length.
fn errors(row: &RecordRow) -> Result<Vec<ErrorEntry>> {
    let entry = |(index, message): (usize, &String)| {
        let kind = row.error_kinds[index];
        let code = u8::try_from(kind).ok().and_then(FaultKind::from_code);
        Ok(ErrorEntry {
            claim: u32::try_from(row.error_claims[index]).unwrap_or(0),
            claimed_at: row.error_began[index].0,
            node: NodeNo(row.error_nodes[index].into()),
            at: row.error_times[index].0,
            kind: code.ok_or_else(|| corrupt(format!("{kind} is not a kind of fault")))?,
            message: message.clone(),
        })
    };
    row.error_messages.iter().enumerate().map(entry).collect()
}

/// A status from its two columns.
pub(crate) fn status(state: i16, reason: Option<i16>) -> Result<Status> {
    let reason = match reason {
        None => None,
        Some(code) => {
            let reason = u8::try_from(code).ok().and_then(Reason::from_code);
            Some(reason.ok_or_else(|| corrupt(format!("{code} is not a reason")))?)
        }
    };
    Ok(Status { state: state_of(state)?, reason })
}

/// A state from its column.
pub(crate) fn state_of(code: i16) -> Result<State> {
    let state = u8::try_from(code).ok().and_then(State::from_code);
    state.ok_or_else(|| corrupt(format!("{code} is not a state")))
}

pub(crate) fn priority(code: i16) -> Result<Priority> {
    let priority = u8::try_from(code).ok().and_then(|code| Priority::new(code).ok());
    priority.ok_or_else(|| corrupt(format!("{code} is not a priority")))
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
