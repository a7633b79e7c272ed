//! Signals: messages from outside.
//!
//! Under the locks of all mailboxes, what is there is looked at; then what is new is added, and who waited for it is woken.
//!
//! # Invariants
//! - A signal is stored once per sender and name.
//! - The job is looked at in a statement that begins after the lock of its mailbox was granted.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::bounds;
use mainspring_core::id::JobId;
use mainspring_core::journal::{Signal, Signalled, Subject};
use uuid::Uuid;

use super::mailbox::wake;
use super::places::update_waiting;
use super::{Confirm, Op, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::read::status;
use crate::shared::Shared;
use crate::sql::{At, Present, Query, statement};

statement! {
    /// Unique index of ids; then advisory locks, in order of the jobs' numbers.
    pub(crate) Lock<'a> = "signal.lock", by ["jobs_id_key"], (mailbox: i64, ids: Vec<Uuid>);
    "SELECT count(pg_advisory_xact_lock($1 # x.no)) FROM (
    SELECT DISTINCT j.no FROM unnest($2::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ORDER BY j.no) x"
}
statement! {
    /// Unique index of ids, then primary keys: who has ended, and what is there already.
    pub(crate) Look<'a> = "signal.look", by ["jobs_id_key", "inbox_pkey", "done_pkey"],
    (ids: Vec<Uuid>, subjects: Vec<String>, senders: Vec<&'a str>)
    -> Looked { position: i64, no: i64, state: Option<i16>, reason: Option<i16>, there: bool };
    "SELECT u.o, j.no, d.state, d.reason, EXISTS (SELECT 1 FROM mainspring.inbox m
        WHERE m.no = j.no AND m.subject = u.subject AND m.sender = u.sender)
    FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS u(id, subject, sender, o)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    LEFT JOIN LATERAL (SELECT state, reason FROM mainspring.done WHERE no = j.no OFFSET 0) d ON true"
}
statement! {
    /// Unique index of ids; partial index `inbox_unread`, as far as it matters.
    pub(crate) CountUnread<'a> = "signal.unread", by ["jobs_id_key", "inbox_unread"],
    (ids: Vec<Uuid>, limit: i64) -> Unread { no: i64, count: i64 };
    "SELECT j.no, m.n FROM (SELECT DISTINCT id FROM unnest($1::uuid[]) AS u(id)) u
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM mainspring.inbox m
        WHERE m.no = j.no AND NOT m.read AND m.state IS NULL LIMIT $2) m) m"
}
statement! {
    /// Appends, in the order of the batch. The locks are held, and nothing is there already.
    pub(crate) Post<'a> = "signal.post", whole ("it appends"),
    (at: Present, nos: Vec<i64>, subjects: Vec<&'a str>, senders: Vec<&'a str>, bodies: Vec<&'a [u8]>);
    concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.inbox (no, at, subject, sender, body)
    SELECT u.no, t.now, u.subject, u.sender, u.body
    FROM t, unnest($2::bigint[], $3::text[], $4::text[], $5::bytea[]) AS u(no, subject, sender, body)"
)
}
statement! {
    /// Primary key of `lease`: whose claims have a message now.
    pub(crate) MarkClaimed<'a> = "signal.mark_claimed", by ["lease_pkey"], (nos: Vec<i64>) -> Marked { no: i64 };
    "WITH u AS (UPDATE mainspring.lease l SET flags = l.flags | {flag.journal}
        WHERE l.no = ANY($1::bigint[]) AND l.flags & {flag.journal} = 0)
    SELECT l.no FROM mainspring.lease l WHERE l.no = ANY($1::bigint[])"
}
statement! {
    /// A job that is moved at this moment may miss its mark: a suspension looks into the inbox whatever that says. A claim steps
    /// over what is locked here, so it is told of again.
    pub(crate) MarkWaiting<'a> = "signal.mark_waiting", by ["ready_pkey", "limited_pkey", "timers_pkey", "suspended_pkey"],
    (at: Present, nos: Vec<i64>)
    -> MarkedWaiting { no: i64, line: Option<i32>, level: Option<i16>, ready_at: Option<At>, limit_group: Option<i32> };
    concat!(
    "WITH ",
    now!(),
    update_waiting!(
        "$2::bigint[]",
        "p.flags & {flag.journal} = 0",
        "flags = p.flags | {flag.journal}",
        "flags = p.flags | {flag.journal}"
    ),
    " SELECT w.no, w.line, w.level, w.ready_at, w.limit_group FROM w"
)
}
statement! {
    pub(crate) Wake<'a> = "signal.wake", by ["suspended_pkey", "inbox_pkey"],
    (at: Present, nos: Vec<i64>, subjects: Vec<&'a str>) -> Woken { no: i64, line: i32, level: i16, now: At, limited: bool };
    wake!("SELECT u.no, u.subject FROM unnest($2::bigint[], $3::text[]) AS u(no, subject)")
}

/// Puts signals into inboxes.
pub(crate) struct SignalOp(pub(crate) Vec<Signal>);

impl Op for SignalOp {
    type Answer = Vec<Signalled>;
    const MOVES: bool = true;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Signalled>> {
        let signals = &self.0;
        if signals.is_empty() {
            return Ok(Vec::new());
        }
        let mailbox = shared.mailbox();
        let ids: Vec<Uuid> = signals.iter().map(|signal| Uuid::from_bytes(*signal.job.as_bytes())).collect();
        let subjects: Vec<String> =
            signals.iter().map(|signal| Subject::Signal(signal.name.clone()).to_string()).collect();
        let senders: Vec<&str> = signals.iter().map(|signal| signal.sender.as_str()).collect();
        let limit = i64::try_from(bounds::INBOX).unwrap_or(i64::MAX);
        let begun = conn
            .begin(
                shared,
                "",
                &[
                    Lock { mailbox: &mailbox, ids: &ids }.call(),
                    Look { ids: &ids, subjects: &subjects, senders: &senders }.call(),
                    CountUnread { ids: &ids, limit: &limit }.call(),
                ],
            )
            .await?;
        let [_, looked, unread] = begun.as_slice() else { return Err(corrupt("signals without an answer")) };
        let decided = decide(signals, Look::rows(looked)?, &CountUnread::rows(unread)?)?;
        let (mut nos, mut stored) = (Vec::new(), Vec::new());
        for (index, (no, answer)) in decided.iter().enumerate() {
            if let (Some(no), Signalled::Stored) = (no, answer) {
                nos.push(*no);
                stored.push(index);
            }
        }
        let answers: Vec<Signalled> = decided.into_iter().map(|(_, answer)| answer).collect();
        if stored.is_empty() {
            let repeated = answers.contains(&Signalled::Repeated);
            let confirm = repeated.then(|| Confirm.call());
            conn.end(confirm.as_slice()).await?;
            return Ok(answers);
        }
        let at = shared.at();
        let new_subjects: Vec<&str> = stored.iter().map(|&index| subjects[index].as_str()).collect();
        let new_senders: Vec<&str> = stored.iter().map(|&index| senders[index]).collect();
        let bodies: Vec<&[u8]> = stored.iter().map(|&index| signals[index].body.as_slice()).collect();
        let jobs: BTreeMap<i64, JobId> =
            nos.iter().zip(&stored).map(|(no, &index)| (*no, signals[index].job)).collect();
        let marked: Vec<i64> = jobs.keys().copied().collect();
        let rows = conn
            .end(&[
                MarkClaimed { nos: &marked }.call(),
                Post { at: &at, nos: &nos, subjects: &new_subjects, senders: &new_senders, bodies: &bodies }
                    .call(),
                MarkWaiting { at: &at, nos: &marked }.call(),
                Wake { at: &at, nos: &nos, subjects: &new_subjects }.call(),
            ])
            .await?;
        let [claimed, _, waiting, woken] = rows.as_slice() else {
            return Err(corrupt("signals without an answer"));
        };
        let mut hints = Hints::default();
        for row in MarkClaimed::rows(claimed)? {
            if let Some(id) = jobs.get(&row.no) {
                hints.message(*id);
            }
        }
        for row in MarkWaiting::rows(waiting)? {
            if let (Some(line), Some(level), Some(at), None) =
                (row.line, row.level, row.ready_at, row.limit_group)
            {
                hints.ready((line, level), (at.0, row.no));
            }
        }
        announce(conn, shared, hints, &Wake::rows(woken)?).await;
        Ok(answers)
    }
}

/// Tells where jobs have become ready; with other hints.
pub(crate) async fn announce(conn: &mut Conn, shared: &Shared, mut hints: Hints, woken: &[Woken]) {
    for job in woken {
        hints.enter(job.limited, (job.line, job.level), (job.now.0, job.no));
    }
    names::learn_for_hints(conn, shared, hints.lines()).await;
    hints.send(conn, shared).await;
}

/// What becomes of each signal, and the number of its job if there is one.
fn decide(
    signals: &[Signal],
    looked: Vec<Looked>,
    unread: &[Unread],
) -> Result<Vec<(Option<i64>, Signalled)>> {
    let mut unread: BTreeMap<i64, usize> =
        unread.iter().map(|row| (row.no, usize::try_from(row.count).unwrap_or(0))).collect();
    let mut answers = vec![(None, Signalled::NotFound); signals.len()];
    let mut by_place: Vec<(usize, Looked)> = Vec::with_capacity(looked.len());
    for row in looked {
        let index = usize::try_from(row.position - 1).ok().filter(|&index| index < signals.len());
        by_place.push((index.ok_or_else(|| corrupt("an answer to nothing"))?, row));
    }
    by_place.sort_by_key(|(index, _)| *index);
    let mut seen: BTreeSet<(i64, &str, &str)> = BTreeSet::new();
    for (index, row) in by_place {
        let (signal, no) = (&signals[index], row.no);
        let key = (no, signal.name.as_str(), signal.sender.as_str());
        let count = unread.entry(no).or_default();
        let answer = if row.there || seen.contains(&key) {
            Signalled::Repeated
        } else if let Some(state) = row.state {
            Signalled::Ended(status(state, row.reason)?)
        } else if *count >= bounds::INBOX {
            Signalled::Full
        } else {
            *count += 1;
            seen.insert(key);
            Signalled::Stored
        };
        answers[index] = (Some(no), answer);
    }
    Ok(answers)
}
