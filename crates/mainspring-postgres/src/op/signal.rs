//! Signals: messages from outside.
//!
//! Under the locks of all mailboxes, what is there is looked at; then what is new is added, and who waited for it is woken.
//!
//! # Invariants
//! - A signal is stored once per sender and name.
//! - The job is looked at in a statement that begins after the lock of its mailbox was granted.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::id::JobId;
use mainspring_core::journal::{Signal, Signalled, Subject};
use mainspring_core::{bounds, named};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::mailbox::wake;
use super::places::update_waiting;
use super::{CONFIRM, Op, now};
use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::hint::Hints;
use crate::names;
use crate::read::status;
use crate::shared::Shared;
use crate::sql::{At, Call};

/// Unique index of ids; then advisory locks, in order of the jobs' numbers.
pub(crate) const LOCK: &str = "SELECT count(pg_advisory_xact_lock($1 # x.no)) FROM (
    SELECT DISTINCT j.no FROM unnest($2::uuid[]) AS u(id)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j ORDER BY j.no) x";
/// Unique index of ids, then primary keys: who has ended, and what is there already.
const LOOK: &str = "SELECT u.o, j.no, d.state, d.reason, EXISTS (SELECT 1 FROM mainspring.inbox m
        WHERE m.no = j.no AND m.subject = u.subject AND m.sender = u.sender)
    FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS u(id, subject, sender, o)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    LEFT JOIN LATERAL (SELECT state, reason FROM mainspring.done WHERE no = j.no OFFSET 0) d ON true";
/// Unique index of ids; partial index `inbox_unread`, as far as it matters.
const UNREAD: &str = "SELECT j.no, m.n FROM (SELECT DISTINCT id FROM unnest($1::uuid[]) AS u(id)) u
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j
    CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM mainspring.inbox m
        WHERE m.no = j.no AND NOT m.read AND m.state IS NULL LIMIT $2) m) m";
/// Appends, in the order of the batch. The locks are held, and nothing is there already.
const POST: &str = concat!(
    "WITH ",
    now!(),
    "INSERT INTO mainspring.inbox (no, at, subject, sender, body)
    SELECT u.no, t.now, u.subject, u.sender, u.body
    FROM t, unnest($2::bigint[], $3::text[], $4::text[], $5::bytea[]) AS u(no, subject, sender, body)"
);
/// Primary key of `lease`: whose claims have a message now.
const MARK_CLAIMED: &str = named!(
    "WITH u AS (UPDATE mainspring.lease l SET flags = l.flags | {flag.journal}
        WHERE l.no = ANY($1::bigint[]) AND l.flags & {flag.journal} = 0)
    SELECT l.no FROM mainspring.lease l WHERE l.no = ANY($1::bigint[])"
);
/// A job that is moved at this moment may miss its mark: a suspension looks into the inbox whatever that says. A claim steps
/// over what is locked here, so it is told of again.
const MARK_WAITING: &str = named!(concat!(
    "WITH ",
    now!(),
    update_waiting!(
        "$2::bigint[]",
        "p.flags & {flag.journal} = 0",
        "flags = p.flags | {flag.journal}",
        "flags = p.flags | {flag.journal}"
    ),
    " SELECT w.no, w.line, w.level, w.ready_at FROM w"
));
const WAKE: &str = wake!("SELECT u.no, u.subject FROM unnest($2::bigint[], $3::text[]) AS u(no, subject)");

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
        let look = vec![
            (&ids as _, Type::UUID_ARRAY),
            (&subjects as _, Type::TEXT_ARRAY),
            (&senders as _, Type::TEXT_ARRAY),
        ];
        let begun = conn
            .begin(
                shared,
                "",
                &[
                    Call::new(LOCK, vec![(&mailbox, Type::INT8), (&ids, Type::UUID_ARRAY)]),
                    Call::new(LOOK, look),
                    Call::new(UNREAD, vec![(&ids, Type::UUID_ARRAY), (&limit, Type::INT8)]),
                ],
            )
            .await?;
        let [_, looked, unread] = begun.as_slice() else { return Err(corrupt("signals without an answer")) };
        let decided = decide(signals, looked, unread)?;
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
            let confirm = repeated.then(|| Call::new(CONFIRM, Vec::new()));
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
        let post = vec![
            (&at as _, Type::TIMESTAMPTZ),
            (&nos as _, Type::INT8_ARRAY),
            (&new_subjects as _, Type::TEXT_ARRAY),
            (&new_senders as _, Type::TEXT_ARRAY),
            (&bodies as _, Type::BYTEA_ARRAY),
        ];
        let wake = vec![
            (&at as _, Type::TIMESTAMPTZ),
            (&nos as _, Type::INT8_ARRAY),
            (&new_subjects as _, Type::TEXT_ARRAY),
        ];
        let rows = conn
            .end(&[
                Call::new(MARK_CLAIMED, vec![(&marked, Type::INT8_ARRAY)]),
                Call::new(POST, post),
                Call::new(MARK_WAITING, vec![(&at, Type::TIMESTAMPTZ), (&marked, Type::INT8_ARRAY)]),
                Call::new(WAKE, wake),
            ])
            .await?;
        let [claimed, _, waiting, woken] = rows.as_slice() else {
            return Err(corrupt("signals without an answer"));
        };
        let mut hints = Hints::default();
        for row in claimed {
            if let Some(id) = jobs.get(&row.get::<_, i64>(0)) {
                hints.message(*id);
            }
        }
        let ready = waiting.iter().filter(|row| row.get::<_, Option<i32>>(1).is_some()).chain(woken);
        announce(conn, shared, hints, ready).await;
        Ok(answers)
    }
}

/// Tells where jobs are ready, from rows of number, line, level and time; with other hints.
pub(crate) async fn announce<'r>(
    conn: &mut Conn,
    shared: &Shared,
    mut hints: Hints,
    ready: impl Iterator<Item = &'r Row>,
) {
    for row in ready {
        hints.ready((row.get(1), row.get(2)), (row.get::<_, At>(3).0, row.get(0)));
    }
    names::learn_for_hints(conn, shared, hints.lines()).await;
    hints.send(conn, shared).await;
}

/// What becomes of each signal, and the number of its job if there is one.
fn decide(signals: &[Signal], looked: &[Row], unread: &[Row]) -> Result<Vec<(Option<i64>, Signalled)>> {
    let mut unread: BTreeMap<i64, usize> =
        unread.iter().map(|row| (row.get(0), usize::try_from(row.get::<_, i64>(1)).unwrap_or(0))).collect();
    let mut answers = vec![(None, Signalled::NotFound); signals.len()];
    let mut by_place: Vec<(usize, &Row)> = Vec::with_capacity(looked.len());
    for row in looked {
        let index = usize::try_from(row.get::<_, i64>(0) - 1).ok().filter(|&index| index < signals.len());
        by_place.push((index.ok_or_else(|| corrupt("an answer to nothing"))?, row));
    }
    by_place.sort_by_key(|(index, _)| *index);
    let mut seen: BTreeSet<(i64, &str, &str)> = BTreeSet::new();
    for (index, row) in by_place {
        let (signal, no): (&Signal, i64) = (&signals[index], row.get(1));
        let key = (no, signal.name.as_str(), signal.sender.as_str());
        let ended: Option<i16> = row.get(2);
        let count = unread.entry(no).or_default();
        let answer = if row.get(4) || seen.contains(&key) {
            Signalled::Repeated
        } else if let Some(state) = ended {
            Signalled::Ended(status(state, row.get(3))?)
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
