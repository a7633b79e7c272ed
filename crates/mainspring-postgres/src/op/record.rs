//! Record: what handlers have done and do not do again.
//!
//! A batch of entries is one statement: it locks the claims, so that none of them ends before the entries are committed,
//! and inserts. Of claims that have recorded before, [`append`](super::append) is enough. What is rarer (messages that were
//! read, errors that are taken back, children) adds statements to the same transaction.
//!
//! # Invariants
//! - Nothing is written for a claim but under the lock of its row of `lease`: whoever takes a claim away, deletes that row
//!   and waits. So a record needs no lock on its node, and one that comes late finds nothing to lock.
//! - An entry whose key is there already changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::{Differs, New};
use mainspring_core::journal::{Recorded, Recording, Writes};
use mainspring_core::name::Key;
use mainspring_core::time::millis;
use mainspring_core::{Error, bounds};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::append::append;
use super::enqueue::{self, Columns};
use super::node::{self, number_of};
use super::output::Pushes;
use super::{Op, now, same_id};
use crate::connection::Conn;
use crate::error::{Fault, Result, corrupt};
use crate::names;
use crate::shared::Shared;
use crate::sql::{Call, Present, Query, bound, statement};

/// Primary key of `lease`, in order of the numbers, and a shared lock on what is held; the rows of claims that record for
/// the first time, or that crashed before and make progress, are changed. Then appends. Returns the numbers that were held. Both lists of
/// numbers are sorted, so that `width_bucket` finds a number by halving.
macro_rules! record {
    ($now:expr, $progress:expr, $again:expr) => {
        concat!(
            "WITH ",
            $now,
            ", s AS MATERIALIZED (SELECT l.no, l.flags & {flag.journal} = 0 OR (l.crashes <> 0 OR l.crashed <> 0) AND ",
            $progress,
            " AS fresh
                FROM mainspring.lease l
                WHERE l.no = ANY($3::bigint[]) AND l.node = $2
                    AND l.claim = ($4::int[])[width_bucket(l.no, $3::bigint[])] FOR NO KEY UPDATE)
            , h AS MATERIALIZED (SELECT coalesce(array_agg(s.no ORDER BY s.no), '{}') AS nos FROM s)
            , u AS (UPDATE mainspring.lease l SET flags = l.flags | {flag.journal},
                    crashes = CASE WHEN ",
            $progress,
            " THEN 0 ELSE l.crashes END, crashed = CASE WHEN ",
            $progress,
            " THEN 0 ELSE l.crashed END
                WHERE l.no = ANY(ARRAY(SELECT s.no FROM s WHERE s.fresh)))
            , i AS (INSERT INTO mainspring.steps (no, at, claim, kind, overlapped, took, key, value)
                SELECT e.no, t.now, ($4::int[])[width_bucket(e.no, $3::bigint[])], e.kind, e.overlapped, e.took, e.key,
                    e.value
                FROM t, h, unnest($5::bigint[], $6::smallint[], $7::boolean[], $8::int[], $9::text[], $10::bytea[])
                    AS e(no, kind, overlapped, took, key, value)
                WHERE h.nos[width_bucket(e.no, h.nos)] = e.no ",
            $again,
            ") SELECT h.nos FROM h"
        )
    };
}
pub(crate) use record;
/// Whether what a claim writes is progress of its job.
macro_rules! progress {
    () => {
        "($11::boolean[])[width_bucket(l.no, $3::bigint[])]"
    };
}
statement! {
    /// Plain inserts: the primary key of `steps` refuses a repeat.
    pub(crate) Record<'a> = "record.write", by ["lease_pkey"],
    (
        at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, entry_nos: Vec<i64>, kinds: Vec<i16>,
        overlapped: Vec<bool>, took: Vec<Option<i32>>, keys: Vec<&'a str>, values: Vec<&'a [u8]>, progress: Vec<bool>,
    )
    -> Locked { nos: Vec<i64> };
    record!(now!(), progress!(), "")
}
statement! {
    /// The same where some are there already. Costs more, and is rarely needed.
    pub(crate) RecordAgain<'a> = "record.write_again", by ["lease_pkey"],
    (
        at: Present, node: i32, nos: Vec<i64>, claims: Vec<i32>, entry_nos: Vec<i64>, kinds: Vec<i16>,
        overlapped: Vec<bool>, took: Vec<Option<i32>>, keys: Vec<&'a str>, values: Vec<&'a [u8]>, progress: Vec<bool>,
    )
    -> Locked;
    record!(now!(), progress!(), "ON CONFLICT (no, key) DO NOTHING")
}
statement! {
    /// Primary key of `lease`, in order of the numbers. For batches of several statements, as [`RECORD`] does.
    pub(crate) Fence<'a> = "record.fence", by ["lease_pkey"],
    (node: i32, nos: Vec<i64>, claims: Vec<i32>) -> Fenced { no: i64 };
    "SELECT l.no FROM unnest($2::bigint[], $3::int[]) AS f(no, claim)
    CROSS JOIN LATERAL (SELECT l.no FROM mainspring.lease l
        WHERE l.no = f.no AND l.claim = f.claim AND l.node = $1 FOR NO KEY UPDATE) l"
}
statement! {
    /// Primary keys of `lease` and `steps`. The claims are locked.
    pub(crate) Forget<'a> = "record.forget", by ["lease_pkey", "steps_pkey"],
    (node: i32, nos: Vec<i64>, claims: Vec<i32>, keys: Vec<&'a str>);
    "DELETE FROM mainspring.steps WHERE ctid = ANY(ARRAY(
    SELECT s.tid FROM unnest($2::bigint[], $3::int[], $4::text[]) AS f(no, claim, key)
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.lease l
        WHERE l.no = f.no AND l.claim = f.claim AND l.node = $1 OFFSET 0) l
    CROSS JOIN LATERAL (SELECT s.ctid AS tid FROM mainspring.steps s
        WHERE s.no = f.no AND s.key = f.key OFFSET 0) s))"
}
statement! {
    /// Primary key of `lease`, partial index `inbox_unread`. The claims are locked.
    pub(crate) Read<'a> = "record.read", by ["lease_pkey", "inbox_unread"],
    (node: i32, nos: Vec<i64>, claims: Vec<i32>, seqs: Vec<i64>);
    "UPDATE mainspring.inbox SET read = true WHERE ctid = ANY(ARRAY(
    SELECT m.tid FROM unnest($2::bigint[], $3::int[], $4::bigint[]) AS f(no, claim, seq)
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.lease l
        WHERE l.no = f.no AND l.claim = f.claim AND l.node = $1 OFFSET 0) l
    CROSS JOIN LATERAL (SELECT m.ctid AS tid FROM mainspring.inbox m
        WHERE m.no = f.no AND m.seq = f.seq AND NOT m.read OFFSET 0) m))"
}
statement! {
    /// Partial index `inbox_read`, from its end, per job: the last are kept.
    pub(crate) Trim<'a> = "record.trim_inbox", by ["inbox_read"], (nos: Vec<i64>, kept: i64);
    "DELETE FROM mainspring.inbox WHERE ctid = ANY(ARRAY(
    SELECT m.tid FROM (SELECT DISTINCT no FROM unnest($1::bigint[]) AS u(no)) u
    CROSS JOIN LATERAL (SELECT m.ctid AS tid FROM mainspring.inbox m
        WHERE m.no = u.no AND m.read AND m.state IS NULL ORDER BY m.seq DESC OFFSET $2) m))"
}
statement! {
    /// Primary key of `lease`. The claims are locked.
    pub(crate) Owns<'a> = "record.owns", by ["lease_pkey"], (nos: Vec<i64>);
    "UPDATE mainspring.lease l SET flags = l.flags | {flag.children}
    WHERE l.no = ANY($1::bigint[]) AND l.flags & {flag.children} = 0"
}
statement! {
    /// Primary key of `steps`.
    pub(crate) Has<'a> = "record.has", by ["steps_pkey"],
    (nos: Vec<i64>, keys: Vec<&'a str>) -> There { position: i64 };
    "SELECT u.o - 1 FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS u(no, key, o)
    CROSS JOIN LATERAL (SELECT 1 FROM mainspring.steps s WHERE s.no = u.no AND s.key = u.key OFFSET 0) s"
}
statement! {
    /// Unique index of ids, then appends.
    pub(crate) Family<'a> = "record.family", by ["jobs_id_key"],
    (ids: Vec<Uuid>, parents: Vec<i64>, on_close: Vec<i16>);
    "INSERT INTO mainspring.children (no, parent, on_close)
    SELECT j.no, u.parent, u.on_close FROM unnest($1::uuid[], $2::bigint[], $3::smallint[]) AS u(id, parent, on_close)
    CROSS JOIN LATERAL (SELECT no FROM mainspring.jobs WHERE id = u.id OFFSET 0) j"
}

/// How often a batch is begun anew because others have stored a part of it.
const ROUNDS: usize = 4;

/// Writes into journals, as arguments. Jobs in order of their numbers, each once.
#[derive(Default)]
pub(crate) struct Pages<'a> {
    pub(crate) nos: Vec<i64>,
    pub(crate) claims: Vec<i32>,
    /// Whether what they write is progress of their jobs.
    progress: Vec<bool>,
    pub(crate) entry_nos: Vec<i64>,
    pub(crate) kinds: Vec<i16>,
    pub(crate) overlapped: Vec<bool>,
    pub(crate) took: Vec<Option<i32>>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) values: Vec<&'a [u8]>,
    read: (Vec<i64>, Vec<i32>, Vec<i64>),
    pub(crate) forget: (Vec<i64>, Vec<i32>, Vec<&'a str>),
    pushes: Pushes<'a>,
}

/// Read signals that are kept.
const KEPT: i64 = bound(bounds::INBOX_READ);

impl<'a> Pages<'a> {
    fn of(claims: BTreeMap<i64, i32>, recordings: Vec<&'a Recording>) -> Self {
        let mut pages = Pages::default();
        for (no, claim) in claims {
            pages.claim(no, claim, false);
        }
        for recording in recordings {
            if !recording.writes.idle
                && let Ok(index) = pages.nos.binary_search(&recording.claim.row.0)
            {
                pages.progress[index] = true;
            }
            pages.add(recording.claim.row.0, number_of(&recording.claim), &recording.writes);
        }
        pages
    }

    /// Adds a claim that writes; the next by number. `progress`: whether that is progress of its job.
    pub(crate) fn claim(&mut self, no: i64, claim: i32, progress: bool) {
        self.nos.push(no);
        self.claims.push(claim);
        self.progress.push(progress);
    }

    /// Adds what a claim writes.
    pub(crate) fn add(&mut self, no: i64, claim: i32, writes: &'a Writes) {
        for entry in &writes.entries {
            self.entry_nos.push(no);
            self.kinds.push(entry.kind.code().into());
            self.overlapped.push(entry.overlapped);
            self.took.push(entry.took.map(millis));
            self.keys.push(entry.key.as_str());
            self.values.push(&entry.value);
        }
        for seq in &writes.read {
            self.read.0.push(no);
            self.read.1.push(claim);
            self.read.2.push(*seq);
        }
        for key in &writes.forget {
            self.forget.0.push(no);
            self.forget.1.push(claim);
            self.forget.2.push(key.as_str());
        }
        self.pushes.add(no, claim, &writes.output);
    }

    /// Whether nobody writes.
    pub(crate) fn is_empty(&self) -> bool {
        self.nos.is_empty()
    }

    /// Whether entries may be there already.
    pub(crate) fn has_entries(&self) -> bool {
        !self.entry_nos.is_empty()
    }

    /// The statements. `again`: whether entries are there already.
    pub(crate) fn calls<'c>(&'c self, at: &'c Present, node: &'c i32, again: bool) -> Vec<Call<'c>> {
        let mut calls = Vec::with_capacity(1);
        if self.is_empty() {
            return calls;
        }
        if !self.forget.0.is_empty() {
            let (nos, claims, keys) = &self.forget;
            calls.push(Forget { node, nos, claims, keys }.call());
        }
        macro_rules! write {
            ($Statement:ident) => {
                $Statement {
                    at,
                    node,
                    nos: &self.nos,
                    claims: &self.claims,
                    entry_nos: &self.entry_nos,
                    kinds: &self.kinds,
                    overlapped: &self.overlapped,
                    took: &self.took,
                    keys: &self.keys,
                    values: &self.values,
                    progress: &self.progress,
                }
                .call()
            };
        }
        calls.push(if again { write!(RecordAgain) } else { write!(Record) });
        if !self.read.0.is_empty() {
            let (nos, claims, seqs) = &self.read;
            calls.push(Read { node, nos, claims, seqs }.call());
            calls.push(Trim { nos, kept: &KEPT }.call());
        }
        calls.extend(self.pushes.calls(at, node));
        calls
    }
}

/// Whether a statement failed because of what is there already.
pub(crate) fn is_repeat(fault: &Fault) -> bool {
    matches!(fault, Fault::Db(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
}

/// Writes into the journals of claimed jobs.
pub(crate) struct RecordOp {
    pub(crate) node: NodeNo,
    pub(crate) recordings: Vec<Recording>,
}

impl Op for RecordOp {
    type Answer = Vec<Recorded>;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Vec<Recorded>> {
        Children::new(&self.recordings, &BTreeMap::new())?;
        if self.recordings.is_empty() {
            return Ok(Vec::new());
        }
        let node = node::number(self.node).unwrap_or(-1);
        if append(conn, shared, node, &self.recordings).await? {
            return Ok(vec![Recorded::Stored; self.recordings.len()]);
        }
        // Of several claims of one job only the newest can be held.
        let mut newest: BTreeMap<i64, i32> = BTreeMap::new();
        for Recording { claim, .. } in &self.recordings {
            let number = newest.entry(claim.row.0).or_insert(-1);
            *number = number_of(claim).max(*number);
        }
        let mut refused = BTreeMap::new();
        let held = loop {
            let children = Children::new(&self.recordings, &refused)?;
            let passes = self.passes(&newest, &refused);
            if refused.len() == self.recordings.len() {
                break BTreeSet::new();
            }
            if children.jobs.is_empty() {
                break write(conn, shared, node, &newest, &passes).await?;
            }
            match children.start(conn, shared, node, &newest, &passes).await? {
                Started::Taken(more) => refused.extend(more),
                Started::All(held) => {
                    let parents = self.recordings.iter().filter(|recording| !recording.children.is_empty());
                    shared.add_parents(parents.map(|recording| recording.claim.row.0));
                    break held;
                }
            }
        };
        shared
            .recorded_claims
            .note(newest.iter().filter(|(no, _)| held.contains(no)).map(|(no, claim)| (*no, *claim)));
        let is_held = |claim: &Claim| {
            held.contains(&claim.row.0) && newest.get(&claim.row.0) == Some(&number_of(claim))
        };
        let answer = |(at, recording): (usize, &Recording)| match refused.get(&at) {
            Some(taken) => *taken,
            None if is_held(&recording.claim) => Recorded::Stored,
            None => Recorded::LeaseLost,
        };
        Ok(self.recordings.iter().enumerate().map(answer).collect())
    }
}

impl RecordOp {
    /// What is written, in as few statements as possible: nearly always one. What is taken back after it was written takes
    /// another one. `refused`: nothing of these.
    fn passes(&self, newest: &BTreeMap<i64, i32>, refused: &BTreeMap<usize, Recorded>) -> Vec<Pages<'_>> {
        let mut passes: Vec<(BTreeMap<i64, i32>, Vec<&Recording>)> = vec![Default::default()];
        let current = |claim: &Claim| newest.get(&claim.row.0) == Some(&number_of(claim));
        let writes = self.recordings.iter().enumerate().filter(|(at, _)| !refused.contains_key(at));
        for recording in writes.map(|(_, recording)| recording).filter(|it| current(&it.claim)) {
            let no = recording.claim.row.0;
            if !recording.writes.forget.is_empty()
                && passes.last().is_some_and(|(claims, _)| claims.contains_key(&no))
            {
                passes.push(Default::default());
            }
            if let Some((claims, recordings)) = passes.last_mut() {
                claims.insert(no, number_of(&recording.claim));
                recordings.push(recording);
            }
        }
        passes.into_iter().map(|(claims, recordings)| Pages::of(claims, recordings)).collect()
    }
}

/// Stores what is written for claims that are held. Their numbers.
async fn write(
    conn: &mut Conn,
    shared: &Shared,
    node: i32,
    newest: &BTreeMap<i64, i32>,
    passes: &[Pages<'_>],
) -> Result<BTreeSet<i64>> {
    let at = shared.at();
    let (nos, claims): (Vec<i64>, Vec<i32>) = newest.iter().unzip();
    for again in [false, true] {
        let pages = passes.iter().flat_map(|pages| pages.calls(&at, &node, again));
        let mut calls: Vec<Call<'_>> = pages.collect();
        if calls.len() > 1 {
            calls.insert(0, fence(&node, &nos, &claims));
        }
        match conn.commit(shared, &calls).await {
            Ok(rows) => {
                let mut held = BTreeSet::new();
                let answers = calls.iter().zip(&rows);
                for (_, rows) in
                    answers.filter(|(call, _)| call.is::<Record<'_>>() || call.is::<RecordAgain<'_>>())
                {
                    held.extend(Record::first(rows)?.into_iter().flat_map(|row| row.nos));
                }
                return Ok(held);
            }
            Err(fault) if !again && is_repeat(&fault) => {}
            Err(fault) => return Err(fault),
        }
    }
    Err(corrupt("an entry is there and is not"))
}

fn fence<'c>(node: &'c i32, nos: &'c Vec<i64>, claims: &'c Vec<i32>) -> Call<'c> {
    Fence { node, nos, claims }.call()
}

/// Children that start with a batch.
struct Children<'a> {
    jobs: Vec<New>,
    /// The recording that each comes with, and the key of its entry.
    starts: Vec<(usize, Option<&'a Key>)>,
    /// The claim that starts each of them.
    parents: Vec<(i64, i32)>,
    on_close: Vec<i16>,
}

/// What became of them.
enum Started {
    /// They are there, of the claims that are held: their numbers.
    All(BTreeSet<i64>),
    /// The ids of some belong to others: what is said of their recordings. Nothing is stored.
    Taken(BTreeMap<usize, Recorded>),
}

impl<'a> Children<'a> {
    /// Those of all recordings but the refused ones.
    fn new(recordings: &'a [Recording], refused: &BTreeMap<usize, Recorded>) -> Result<Self> {
        let mut all =
            Children { jobs: Vec::new(), starts: Vec::new(), parents: Vec::new(), on_close: Vec::new() };
        for (at, recording) in recordings.iter().enumerate().filter(|(at, _)| !refused.contains_key(at)) {
            for child in &recording.children {
                if child.job.options.unique.is_some() {
                    return Err(Error::Invalid { what: "child", why: "it has a unique key".into() }.into());
                }
                if !child.job.journal.is_empty() {
                    return Err(Error::Invalid { what: "child", why: "it has a journal".into() }.into());
                }
                let mut job = child.job.clone();
                job.options.parent = Some(recording.claim.id);
                all.starts.push((at, recording.start_of(job.id)));
                all.jobs.push(job);
                all.parents.push((recording.claim.row.0, number_of(&recording.claim)));
                all.on_close.push(child.on_close as i16);
            }
        }
        Ok(all)
    }

    /// Stores what is written for claims that are held, with their children.
    async fn start(
        &self,
        conn: &mut Conn,
        shared: &Shared,
        node: i32,
        newest: &BTreeMap<i64, i32>,
        passes: &[Pages<'_>],
    ) -> Result<Started> {
        let lines = names::lines_of(conn, shared, &self.jobs).await?;
        let at = shared.at();
        let (nos, claims): (Vec<i64>, Vec<i32>) = newest.iter().unzip();
        let ids: Vec<Uuid> = self.jobs.iter().map(|job| Uuid::from_bytes(*job.id.as_bytes())).collect();
        for round in 1..=ROUNDS {
            let known = enqueue::Known { ids: &ids }.call();
            let begun = conn.begin(shared, "", &[fence(&node, &nos, &claims), known]).await?;
            let [held, known] = begun.as_slice() else { return Err(corrupt("a fence without an answer")) };
            let held: BTreeSet<i64> = Fence::rows(held)?.into_iter().map(|row| row.no).collect();
            let known: BTreeSet<Uuid> = enqueue::Known::rows(known)?.into_iter().map(|row| row.id).collect();
            let is_held = |index: &usize| {
                let (no, claim) = self.parents[*index];
                held.contains(&no) && newest.get(&no) == Some(&claim)
            };
            let wanted: Vec<usize> = (0..self.jobs.len()).filter(is_held).collect();
            let (chosen, taken) = self.choose(conn, &wanted, &ids, &known).await?;
            if !taken.is_empty() {
                conn.roll_back().await;
                return Ok(Started::Taken(taken));
            }
            let columns = Columns::new(&self.jobs, &lines, &chosen)?;
            let parents: Vec<i64> = chosen.iter().map(|&index| self.parents[index].0).collect();
            let on_close: Vec<i16> = chosen.iter().map(|&index| self.on_close[index]).collect();
            let owners: Vec<i64> = parents.iter().copied().collect::<BTreeSet<i64>>().into_iter().collect();
            let mut calls: Vec<Call<'_>> =
                passes.iter().flat_map(|pages| pages.calls(&at, &node, round > 1)).collect();
            if !chosen.is_empty() {
                calls.push(Owns { nos: &owners }.call());
                calls.push(columns.insert(&at));
                calls.push(Family { ids: &columns.ids, parents: &parents, on_close: &on_close }.call());
            }
            match conn.end(&calls).await {
                Ok(rows) => {
                    // Behind the insert there is only the family.
                    if let Some(rows) = rows.iter().nth_back(1).filter(|_| !chosen.is_empty()) {
                        shared.moved();
                        enqueue::announce(conn, shared, &enqueue::Insert::rows(rows)?).await;
                    }
                    return Ok(Started::All(held));
                }
                Err(fault) if round < ROUNDS && is_repeat(&fault) => conn.roll_back().await,
                Err(fault) => return Err(fault),
            }
        }
        Err(corrupt("a child is there and is not"))
    }

    /// Which of them are to be stored, and what is said of recordings whose children have the ids of others.
    async fn choose(
        &self,
        conn: &mut Conn,
        wanted: &[usize],
        ids: &[Uuid],
        known: &BTreeSet<Uuid>,
    ) -> Result<(Vec<usize>, BTreeMap<usize, Recorded>)> {
        let (mut chosen, mut first) = (Vec::new(), BTreeMap::new());
        let mut refused: BTreeMap<usize, (usize, Differs)> = BTreeMap::new();
        // Of several children of one recording, the first is named.
        let mut refuse = |index: usize, differs: Differs| {
            let (at, _) = self.starts[index];
            let named = refused.entry(at).or_insert((index, differs));
            if index < named.0 {
                *named = (index, differs);
            }
        };
        for &index in wanted.iter().filter(|&&index| !known.contains(&ids[index])) {
            let other = *first.entry(ids[index]).or_insert(index);
            let ((at, key), (other_at, other_key)) = (self.starts[index], self.starts[other]);
            if other == index {
                chosen.push(index);
            } else if at != other_at {
                let differs = same_id::compare(&self.jobs[index], &self.jobs[other]);
                let again = key.is_none() || key == other_key;
                if let Some(differs) = differs.or((!again).then_some(Differs::Step)) {
                    refuse(index, differs);
                }
            }
        }
        let repeated: Vec<usize> = wanted.iter().copied().filter(|&at| known.contains(&ids[at])).collect();
        if !repeated.is_empty() {
            let jobs: Vec<New> = repeated.iter().map(|&index| self.jobs[index].clone()).collect();
            let met = same_id::meet(conn, &jobs, |_| true).await?;
            let recorded = self.recorded(conn, &repeated).await?;
            for (at, differs) in met {
                let index = repeated[at];
                let again = self.starts[index].1.is_none() || recorded.contains(&index);
                if let Some(differs) = differs.or((!again).then_some(Differs::Step)) {
                    refuse(index, differs);
                }
            }
        }
        let answer = |(at, (index, differs)): (usize, (usize, Differs))| {
            (at, Recorded::Taken { child: self.jobs[index].id, differs })
        };
        Ok((chosen, refused.into_iter().map(answer).collect()))
    }

    /// Those whose start is recorded already.
    async fn recorded(&self, conn: &mut Conn, children: &[usize]) -> Result<BTreeSet<usize>> {
        let keys = children.iter().filter_map(|&index| Some((index, self.starts[index].1?)));
        let (asked, keys): (Vec<usize>, Vec<&str>) = keys.map(|(index, key)| (index, key.as_str())).unzip();
        let nos: Vec<i64> = asked.iter().map(|&index| self.parents[index].0).collect();
        let has = Has { nos: &nos, keys: &keys }.call();
        let rows = Has::rows(&conn.step(&[has]).await?.pop().unwrap_or_default())?;
        let at = |row: &There| asked.get(usize::try_from(row.position).ok()?).copied();
        Ok(rows.iter().filter_map(at).collect())
    }
}
