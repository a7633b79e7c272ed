//! Schedules and what was changed about them.

use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::Schedule;
use mainspring_core::store::DueSchedules;
use uuid::Uuid;

use crate::connection::Conn;
use crate::error::{Result, corrupt, legible};
use crate::op::{Op, now};
use crate::shared::Shared;
use crate::sql::statement::{FromRow as _, row};
use crate::sql::{At, Present, Query as _, bound, statement};

row! {
    /// A schedule.
    pub(crate) ScheduleRow { name: String, version: i64, next_at: Option<At>, definition: String, state: String }
}
row! {
    /// A change.
    pub(crate) AuditRow {
        no: i64, at: At, who: String, subject: String, verb: String, request: Option<Uuid>, old: Option<String>,
        new: Option<String>,
    }
}
statement! {
    /// Partial index `schedules_next`, from its first entry on; and its next entry behind those.
    pub(crate) FindDue<'a> = "schedules.due", by ["schedules_next"],
    (at: Present, limit: i64)
    -> DueRow {
        name: Option<String>, version: Option<i64>, next_at: Option<At>, definition: Option<String>, state: Option<String>,
        now: At, next: Option<At>,
    };
    concat!(
    "WITH ",
    now!(),
    ", d AS MATERIALIZED (SELECT c.* FROM mainspring.schedules c WHERE c.next_at IS NOT NULL
        AND c.next_at <= (SELECT now FROM t) ORDER BY c.next_at, c.name LIMIT $2)
    SELECT d.name, d.version, d.next_at, d.definition::text, d.state::text, t.now,
        (SELECT c.next_at FROM mainspring.schedules c WHERE c.next_at IS NOT NULL
        ORDER BY c.next_at, c.name LIMIT 1 OFFSET (SELECT count(*) FROM d))
    FROM t LEFT JOIN d ON true ORDER BY d.next_at, d.name"
)
}
statement! {
    /// Primary key.
    pub(crate) FindNamed<'a> = "schedules.find", by ["schedules_pkey"], (names: Vec<&'a str>) -> ScheduleRow;
    "SELECT c.name, c.version, c.next_at, c.definition::text, c.state::text FROM unnest($1::text[]) AS u(name)
    CROSS JOIN LATERAL (SELECT * FROM mainspring.schedules WHERE name = u.name OFFSET 0) c"
}
statement! {
    /// Primary key, from a name on.
    pub(crate) ListNamed<'a> = "schedules.list", by ["schedules_pkey"], (after: &'a str, limit: i64) -> ScheduleRow;
    "SELECT name, version, next_at, definition::text, state::text FROM mainspring.schedules
    WHERE name > $1 ORDER BY name LIMIT $2"
}
statement! {
    /// Primary key, from its end.
    pub(crate) AuditAll<'a> = "schedules.audit", by ["audit_pkey"], (limit: i64) -> AuditRow;
    "SELECT no, at, who, subject, verb, request, old::text, new::text FROM mainspring.audit ORDER BY no DESC LIMIT $1"
}
statement! {
    /// Index `audit_subject`, from its end.
    pub(crate) AuditOf<'a> = "schedules.audit_of", by ["audit_subject"], (limit: i64, subject: &'a str) -> AuditRow;
    "SELECT no, at, who, subject, verb, request, old::text, new::text FROM mainspring.audit
    WHERE subject = $2 ORDER BY no DESC LIMIT $1"
}

/// Schedules to be looked at by now. One that cannot be read does not keep the others from firing.
pub(crate) struct DueSchedulesOp(pub(crate) usize);

impl Op for DueSchedulesOp {
    type Answer = DueSchedules;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<DueSchedules> {
        let (at, limit) = (shared.at(), bound(self.0));
        let call = FindDue { at: &at, limit: &limit }.call();
        let rows = FindDue::rows(&conn.commit(shared, &[call]).await?.pop().unwrap_or_default())?;
        let first = rows.first().ok_or_else(|| corrupt("a look at schedules without an answer"))?;
        let (now, next) = (first.now.0, first.next.map(|at| at.0));
        let mut schedules = Vec::new();
        for DueRow { name, version, next_at, definition, state, .. } in rows {
            let (Some(name), Some(version), Some(definition), Some(state)) =
                (name, version, definition, state)
            else {
                continue;
            };
            match legible(schedule(&ScheduleRow { name, version, next_at, definition, state }))? {
                Ok(schedule) => schedules.push(schedule),
                Err(why) => tracing::warn!(%why, "unreadable schedule does not fire"),
            }
        }
        Ok(DueSchedules { now, schedules, next })
    }
}

/// Schedules by their names.
pub(crate) struct FindSchedules(pub(crate) Vec<ScheduleName>);

impl Op for FindSchedules {
    type Answer = Vec<Option<Schedule>>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Option<Schedule>>> {
        let names: Vec<&str> = self.0.iter().map(ScheduleName::as_str).collect();
        let rows =
            conn.commit(shared, &[FindNamed { names: &names }.call()]).await?.pop().unwrap_or_default();
        let found: Vec<Schedule> = FindNamed::rows(&rows)?.iter().map(schedule).collect::<Result<_>>()?;
        Ok(self.0.iter().map(|name| found.iter().find(|it| it.name == *name).cloned()).collect())
    }
}

/// Schedules behind a name.
pub(crate) struct ListSchedules {
    pub(crate) after: Option<ScheduleName>,
    pub(crate) limit: usize,
}

impl Op for ListSchedules {
    type Answer = Vec<Schedule>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Schedule>> {
        let (after, limit) = (self.after.as_ref().map_or("", ScheduleName::as_str), bound(self.limit));
        let call = ListNamed { after: &after, limit: &limit }.call();
        let rows = conn.commit(shared, &[call]).await?.pop().unwrap_or_default();
        ListNamed::rows(&rows)?.iter().map(schedule).collect()
    }
}

/// Changes, the last first.
pub(crate) struct Audit {
    pub(crate) subject: Option<Subject>,
    pub(crate) limit: usize,
}

impl Op for Audit {
    type Answer = Vec<AuditEntry>;
    const WRITES: bool = false;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<AuditEntry>> {
        let limit = bound(self.limit);
        let subject = self.subject.as_ref().map(ToString::to_string).unwrap_or_default();
        let subject = subject.as_str();
        let call = match self.subject {
            Some(_) => AuditOf { limit: &limit, subject: &subject }.call(),
            None => AuditAll { limit: &limit }.call(),
        };
        let rows = conn.commit(shared, &[call]).await?.pop().unwrap_or_default();
        rows.iter().map(|row| entry(AuditRow::read(row)?)).collect()
    }
}

/// What to do about a row that [`illegible`] tells of.
pub(crate) const ILLEGIBLE: &str =
    "a schedule that cannot be read does not fire: correct its row, or delete it and set the schedule again";

/// Ends a transaction with a look at all schedules and changes: what is wrong with their rows, of each at most so many.
pub(crate) async fn illegible(conn: &mut Conn, most: usize) -> Result<Vec<String>> {
    let (after, limit) = ("", i64::MAX);
    let calls = [ListNamed { after: &after, limit: &limit }.call(), AuditAll { limit: &limit }.call()];
    let answers = conn.end(&calls).await?;
    let [schedules, changes] = answers.as_slice() else {
        return Err(corrupt("a look at schedules without an answer"));
    };
    let mut found = Vec::new();
    for row in ListNamed::rows(schedules)? {
        if let Err(why) = legible(schedule(&row))?
            && found.len() < most
        {
            found.push(format!("schedule `{}` cannot be read: {why}", row.name));
        }
    }
    let schedules = found.len();
    for row in changes {
        let row = AuditRow::read(row)?;
        let no = row.no;
        if let Err(why) = legible(entry(row))?
            && found.len() < schedules + most
        {
            found.push(format!("change {no} cannot be read: {why}"));
        }
    }
    Ok(found)
}

fn entry(row: AuditRow) -> Result<AuditEntry> {
    let json = |text: Option<String>| {
        text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(format!("audit: {error}"))))
            .transpose()
    };
    Ok(AuditEntry {
        no: row.no,
        at: row.at.0,
        who: row.who,
        subject: row.subject.parse().map_err(|error: mainspring_core::Error| corrupt(error.to_string()))?,
        verb: row.verb,
        request: row.request,
        old: json(row.old)?,
        new: json(row.new)?,
    })
}

fn name_of(name: &str) -> Result<ScheduleName> {
    ScheduleName::new(name).map_err(|error| corrupt(error.to_string()))
}

fn schedule(row: &ScheduleRow) -> Result<Schedule> {
    let name = name_of(&row.name)?;
    let unreadable = |error: serde_json::Error| corrupt(format!("schedule `{name}`: {error}"));
    Ok(Schedule {
        version: row.version,
        next_at: row.next_at.map(|at| at.0),
        definition: serde_json::from_str(&row.definition).map_err(unreadable)?,
        state: serde_json::from_str(&row.state).map_err(unreadable)?,
        name,
    })
}
