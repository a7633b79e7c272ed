//! Claim: from `ready` to `lease`.
//!
//! One round trip: the node's lock, its lease, the move. Which pairs of line and level to look at, and from where on, is
//! what [`ScanBounds`](crate::scan_bounds::ScanBounds) knows; if that gives less than was asked for, all pairs are looked for, at times.
//!
//! # Invariants
//! - A claim number is one higher than the job's last, and is written with the move.
//! - Nothing is claimed for a node that is not live, nor by a claim that was sent before the node settled a lost answer:
//!   both are checked in a statement that begins after the node's lock was granted.

mod statements;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::id::{Claim, JobId, Row as JobRow};
use mainspring_core::job::Options;
use mainspring_core::journal::{Journal, Value};
use mainspring_core::name::QueueName;
use mainspring_core::store::{ClaimRequest, Claimed, ClaimedBatch, Class, Level, flags};
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Op;
use super::limits::claim as limited;
use super::limits::settle::LockKeys;
use crate::connection::Conn;
use crate::error::{Fault, Result, corrupt, legible};
use crate::hint::Hints;
use crate::idle_poll;
use crate::names::{self, Names};
use crate::op::node;
use crate::op::unreadable::Unreadable;
use crate::read::journals;
use crate::scan_bounds::{LineLevel, Position, bound_args};
use crate::shared::Shared;
use crate::sql::{At, Call, Query};

pub(crate) use statements::{
    Adopt, Aside, ClaimCapped, ClaimMerged, ClaimOneQueue, Found, LockAndTouch, Scan, ScanTurns,
};

/// How often a claim goes on behind jobs that others hold. After that the next look at all pairs finds what is there.
const ROUNDS: usize = 3;

/// A job that a claim has found.
pub(crate) struct Job {
    no: i64,
    pub(crate) line: i32,
    level: i16,
    ready_at: At,
    claim: i32,
    failures: i16,
    crashes: i16,
    crashed: i64,
    flags: i16,
    id: Uuid,
    created_at: At,
    deadline: Option<At>,
    options: Option<String>,
    input: Option<Vec<u8>>,
    input_bytes: i32,
}

impl Job {
    fn is_limited(&self) -> bool {
        self.flags & (flags::LIMITED | flags::KEEPS) == flags::LIMITED
    }
}

impl Found {
    /// The job of this row; none if nothing was claimed.
    pub(crate) fn job(self) -> Option<Job> {
        Some(Job {
            no: self.no?,
            line: self.line?,
            level: self.level?,
            ready_at: self.ready_at?,
            claim: self.claim?,
            failures: self.failures?,
            crashes: self.crashes?,
            crashed: self.crashed?,
            flags: self.flags?,
            id: self.id?,
            created_at: self.created_at?,
            deadline: self.deadline,
            options: self.options,
            input: self.input,
            input_bytes: self.input_bytes?,
        })
    }
}

/// What a claim took, as the database told it.
pub(crate) struct Taken {
    now: Timestamp,
    /// In the order in which they are started.
    jobs: Vec<Job>,
    journals: BTreeMap<i64, Read>,
    /// How many of each queue.
    counts: BTreeMap<i32, usize>,
}

impl Taken {
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Taken { now, jobs: Vec::new(), journals: BTreeMap::new(), counts: BTreeMap::new() }
    }

    fn count(&self, queue: i32) -> usize {
        self.counts.get(&queue).copied().unwrap_or(0)
    }

    /// Whether the store's time is not known.
    pub(crate) fn is_timeless(&self) -> bool {
        self.now == Timestamp::EPOCH
    }

    /// How many jobs.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// How many suspects.
    pub(crate) fn suspects(&self) -> usize {
        self.of_class(Class::Suspect)
    }

    /// How many whose nodes were lost.
    pub(crate) fn lost(&self) -> usize {
        self.of_class(Class::Lost)
    }

    fn of_class(&self, one: Class) -> usize {
        self.jobs.iter().filter(|job| class(job.level) == one).count()
    }

    /// Puts the jobs in the order in which they are started: by their queues, as they were asked for, and by level and time.
    pub(crate) fn sort(&mut self, queues: &[(QueueName, usize)], shared: &Shared) -> Result<()> {
        let names = shared.names();
        let mut jobs = Vec::with_capacity(self.jobs.len());
        for job in self.jobs.drain(..) {
            let queue = &names.line(job.line)?.queue_name;
            jobs.push((queues.iter().position(|(one, _)| one == queue), job));
        }
        // Limited jobs are for free slots, which are those of the first jobs.
        jobs.sort_by_key(|(turn, job)| (*turn, job.level, !job.is_limited(), job.ready_at.0, job.no));
        self.jobs = jobs.into_iter().map(|(_, job)| job).collect();
        Ok(())
    }

    pub(crate) fn extend(&mut self, more: Taken) {
        // The time of the last round: no job of an answer is younger than the answer.
        self.now = self.now.max(more.now);
        self.jobs.extend(more.jobs);
        self.journals.extend(more.journals);
        for (queue, count) in more.counts {
            *self.counts.entry(queue).or_default() += count;
        }
    }

    /// What the node gets, and what cannot be read.
    pub(crate) fn read(mut self, shared: &Shared) -> Result<(ClaimedBatch, Vec<Unreadable>)> {
        let mut jobs = Vec::with_capacity(self.jobs.len());
        let mut unreadable = Vec::new();
        for found in self.jobs {
            let Job { no, claim, id, .. } = found;
            // Locked for each of them: the connections need the names as well, and do not wait for a whole batch.
            let job = legible(read(found, &shared.names()))?.and_then(|mut claimed| {
                claimed.journal = self.journals.remove(&no).transpose()?;
                Ok(claimed)
            });
            match job {
                Ok(claimed) => jobs.push(claimed),
                Err(why) => {
                    tracing::error!(job_id = %id, %why, "unreadable job set aside");
                    unreadable.push(Unreadable { no, claim, why });
                }
            }
        }
        Ok((ClaimedBatch { now: self.now, jobs }, unreadable))
    }
}

/// A journal, or why it cannot be read.
pub(crate) type Read = std::result::Result<Box<Journal>, String>;

/// Why a job that is set aside cannot be read; `None` if it can.
pub(crate) async fn illegible(conn: &mut Conn, shared: &Shared, no: i64) -> Result<Option<String>> {
    let rows = conn.step(&[Aside { no: &no }.call()]).await?.pop().unwrap_or_default();
    let Some(job) = Aside::first(&rows)?.and_then(Found::job) else { return Ok(None) };
    if let Err(why) = legible(read(job, &shared.names()))? {
        return Ok(Some(why));
    }
    Ok(journals(conn, &vec![no]).await?.remove(&no).and_then(std::result::Result::err))
}

/// A request for jobs.
pub(crate) struct ClaimOp(pub(crate) ClaimRequest);

impl Op for ClaimOp {
    type Answer = Taken;

    async fn run(&self, conn: &mut Conn, shared: &Shared) -> Result<Taken> {
        let request = &self.0;
        let node = node::number(request.node)?;
        let batch = i64::try_from(request.batch.0).map_err(|_| corrupt("a batch number beyond its bound"))?;
        node::know(conn, shared, node).await?;
        let repeated = {
            let mut nodes = shared.nodes();
            let local = nodes.get_mut(&node).ok_or(Error::LeaseLost)?;
            let repeated = !local.fresh || local.batch.is_some_and(|last| request.batch.0 <= last);
            local.batch = local.batch.max(Some(request.batch.0));
            // Until the answer is here.
            local.fresh = false;
            repeated
        };
        let claimed = if repeated {
            again(conn, shared, request, node, batch).await
        } else {
            claim(conn, shared, request, node, batch).await
        };
        let claimed = match claimed {
            // Or another handle has settled a lost answer of this node: then it has counted another settlement, and lives. What was
            // lost may be the answer to this very batch, and so be claimed there already.
            Err(Fault::Refused(Error::LeaseLost)) => {
                shared.nodes().remove(&node);
                node::know(conn, shared, node).await?;
                again(conn, shared, request, node, batch).await?
            }
            claimed => claimed?,
        };
        node::settled(shared, node, request.batch.0);
        Ok(claimed)
    }
}

/// Adopts what the node holds under this batch's number; claims only if that is nothing.
async fn again(
    conn: &mut Conn,
    shared: &Shared,
    request: &ClaimRequest,
    node: i32,
    batch: i64,
) -> Result<Taken> {
    let held = adopt(conn, shared, node, batch).await?;
    if held.jobs.is_empty() { claim(conn, shared, request, node, batch).await } else { Ok(held) }
}

/// What the node holds under this batch's number, once nothing that was sent before can add to it.
async fn adopt(conn: &mut Conn, shared: &Shared, node: i32, batch: i64) -> Result<Taken> {
    let (at, class) = (shared.at(), shared.class());
    let touch = LockAndTouch { at: &at, node: &node, class: &class }.call();
    let adopt = Adopt { at: &at, node: &node, batch: &batch }.call();
    let rows = node::settle(conn, shared, node, vec![touch, adopt]).await?;
    let found = Adopt::rows(&rows.into_iter().next_back().unwrap_or_default())?;
    let Some(first) = found.first() else { return Ok(Taken::nothing(Timestamp::EPOCH)) };
    let (now, settings) = (first.now.0, first.settings.clone().unwrap_or_default());
    let jobs: Vec<Job> = found.into_iter().filter_map(Found::job).collect();
    names::learn(conn, shared, jobs.iter().map(|job| job.line), &settings).await?;
    let journals = journals_of(conn, shared, &jobs).await?;
    if shared.names().has_totals() {
        shared.note_limited(jobs.iter().map(|job| job.no));
    }
    Ok(Taken { jobs, journals, ..Taken::nothing(now) })
}

/// What those of them have recorded and been sent whose places say that there is something.
async fn journals_of(conn: &mut Conn, shared: &Shared, jobs: &[Job]) -> Result<BTreeMap<i64, Read>> {
    let with = |flag: i16| jobs.iter().filter(move |job| job.flags & flag != 0).map(|job| job.no);
    shared.add_parents(with(flags::CHILDREN));
    shared.note_limited(with(flags::LIMITED | flags::KEEPS));
    let mut marked: Vec<i64> = with(flags::JOURNAL).collect();
    marked.sort_unstable();
    journals(conn, &marked).await
}

/// Claims from the pairs that are known to have jobs; and if that is too little, from those that a look around finds.
async fn claim(
    conn: &mut Conn,
    shared: &Shared,
    request: &ClaimRequest,
    node: i32,
    batch: i64,
) -> Result<Taken> {
    // The idle poll looks for what nobody reported; a claim does only if something may have been missed.
    let due = shared.scan_bounds().scan_is_due((!shared.is_listening()).then(|| shared.monotonic()));
    if due {
        scan(conn, shared).await?;
    }
    let special = limited::special_queues(shared, request, node);
    if !special.is_empty() {
        return limited::claim(conn, shared, request, (node, batch), &special).await;
    }
    plain(conn, shared, request, node, batch).await
}

/// The same, of queues that have neither turns nor totals.
pub(crate) async fn plain(
    conn: &mut Conn,
    shared: &Shared,
    request: &ClaimRequest,
    node: i32,
    batch: i64,
) -> Result<Taken> {
    let plan = Plan::new(shared, request, node);
    if plan.looks.is_empty()
        && let Some(now) = idle_poll::present(shared)
    {
        // Whoever puts a job there reports it, and the idle poll looks for what nobody reports.
        shared.waiting(&plan.queues.iter().map(|(no, ..)| (*no, true)).collect::<Vec<_>>());
        return Ok(Taken::nothing(now));
    }
    let (mut claimed, mut held) = take(conn, shared, &plan, node, batch, false).await?;
    for round in 2..=ROUNDS {
        if !held {
            break;
        }
        // Others hold jobs that were meant for this claim: their pairs have no more, so those behind them have their turn.
        // Or settings had changed, and nothing was claimed.
        let suspects = request.suspects.saturating_sub(claimed.suspects());
        let rest = ClaimRequest { queues: plan.rest(&claimed), suspects, ..request.clone() };
        let (more, again) =
            take(conn, shared, &Plan::new(shared, &rest, node), node, batch, round == ROUNDS).await?;
        claimed.extend(more);
        held = again;
    }
    shared.waiting(&plan.short(&claimed));
    Ok(claimed)
}

/// Looks for all pairs that have jobs.
async fn scan(conn: &mut Conn, shared: &Shared) -> Result<()> {
    let (generation, began) = (shared.scan_bounds().generation(), shared.monotonic());
    let turns = shared.turn_bounds().generation();
    match conn.commit(shared, &[Scan.call(), ScanTurns.call()]).await {
        Ok(rows) => {
            let generations = (generation, turns);
            read_scan(conn, shared, &rows, generations, began).await.map(drop)
        }
        // Dead rows under an old snapshot: what is known can be claimed all the same.
        Err(fault) if fault.is_timeout() => {
            conn.roll_back().await;
            shared.scan_bounds().gave_up((began, shared.monotonic()));
            Ok(())
        }
        Err(fault) => Err(fault),
    }
}

/// Takes in what scans of jobs and of turns have found, which began at these generations and this time. Returns what nobody
/// knew of.
pub(crate) async fn read_scan(
    conn: &mut Conn,
    shared: &Shared,
    rows: &[Vec<Row>],
    (generation, turns): (u64, u64),
    began: Duration,
) -> Result<Hints> {
    let found = |rows: Option<&Vec<Row>>| -> Result<Vec<(LineLevel, Position)>> {
        let rows = Scan::rows(rows.map_or(&[], Vec::as_slice))?;
        Ok(rows.into_iter().map(|it| ((it.line, it.level), (it.ready_at.0, it.no))).collect())
    };
    let (jobs, groups) = (found(rows.first())?, found(rows.get(1))?);
    let settings = shared.names().settings().to_owned();
    let lines = jobs.iter().chain(&groups).map(|((line, _), _)| *line);
    names::learn(conn, shared, lines, &settings).await?;
    let (now, listening) = (shared.monotonic(), shared.is_listening());
    let mut hints = Hints::default();
    let new = shared.scan_bounds().scanned(&jobs, generation, (began, now), listening);
    for (pair, position) in jobs.into_iter().filter(|(pair, _)| new.contains(pair)) {
        hints.ready(pair, position);
    }
    let new = shared.turn_bounds().scanned(&groups, turns, (began, now), listening);
    for (pair, position) in groups.into_iter().filter(|(pair, _)| new.contains(pair)) {
        hints.turn(pair, position.0);
    }
    Ok(hints)
}

/// One pair to look at.
struct Look {
    pair: LineLevel,
    bound: Position,
    queue: i32,
    /// How many of this pair at most.
    want: i32,
    /// How many of its queue at most, and how many of these are for free slots.
    most: i32,
    free: i32,
    /// The limit keys of the totals of its queue and its kind.
    totals: (Option<i64>, Option<i64>),
}

impl Look {
    /// Whether its class has a limit of its own: some may be left behind though there is room.
    fn is_limited(&self) -> bool {
        matches!(class(self.pair.1), Class::Suspect | Class::Lost) || self.totals != (None, None)
    }
}

/// What a claim looks at.
pub(crate) struct Plan {
    looks: Vec<Look>,
    /// Queues in the order in which they are served, with their limits.
    queues: Vec<(i32, QueueName, usize)>,
    suspects: i64,
}

impl Plan {
    pub(crate) fn new(shared: &Shared, request: &ClaimRequest, node: i32) -> Self {
        let (nodes, names) = (shared.nodes(), shared.names());
        let mut scan_bounds = shared.scan_bounds();
        let mut queues: Vec<(i32, QueueName, usize)> = Vec::new();
        for (queue, limit) in &request.queues {
            // A queue that is named twice is served once.
            let known =
                names.queue_no(queue).filter(|no| *limit > 0 && !queues.iter().any(|(one, ..)| one == no));
            queues.extend(known.map(|no| (no, queue.clone(), *limit)));
        }
        // Labels come at times that people choose: where the store's present is not known, ours is near enough.
        let now = idle_poll::present(shared).unwrap_or_else(|| shared.clock.now());
        let mut looks = Vec::new();
        if let Some(local) = nodes.get(&node) {
            let limits: BTreeMap<i32, usize> =
                queues.iter().map(|(queue, _, limit)| (*queue, *limit)).collect();
            for (no, line) in names.lines() {
                let Some((queue, limit)) = limits.get_key_value(&line.queue) else { continue };
                if local.abilities.runs(&line.kind_name, &line.labels, now) {
                    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
                    let (most, free) = (number(*limit), number(request.free(&line.queue_name)));
                    let lost = number(request.lost(&line.queue_name)).min(most);
                    looks.extend(scan_bounds.plan(no).map(|(pair, bound)| Look {
                        pair,
                        bound,
                        queue: *queue,
                        want: if class(pair.1) == Class::Lost { lost } else { most },
                        most,
                        free,
                        totals: names.totals_of(line),
                    }));
                }
            }
        }
        // By level: a claim of one queue takes pairs in this order.
        looks.sort_by_key(|look| (look.pair.1, look.pair.0));
        let suspects = i64::try_from(request.suspects).unwrap_or(i64::MAX);
        Plan { looks, queues, suspects }
    }

    /// The lines and levels.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = LineLevel> {
        self.looks.iter().map(|look| look.pair)
    }

    /// Leaves out all but some levels. `lost`: how many jobs whose nodes were lost.
    pub(crate) fn narrow(&mut self, lost: usize, levels: impl Fn(i16) -> bool) {
        self.looks.retain(|look| levels(look.pair.1));
        let lost = i32::try_from(lost).unwrap_or(i32::MAX);
        for look in self.looks.iter_mut().filter(|look| class(look.pair.1) == Class::Lost) {
            look.want = look.want.min(lost);
        }
    }

    /// The limit keys of totals.
    fn totals(&self) -> BTreeSet<i64> {
        self.looks.iter().flat_map(|look| [look.totals.0, look.totals.1]).flatten().collect()
    }

    /// Whether the limit over all is all that there is to decide.
    fn is_simple(&self) -> bool {
        let one_queue = self.looks.windows(2).all(|two| two[0].queue == two[1].queue);
        let one_line_each = self.looks.windows(2).all(|two| two[0].pair.1 != two[1].pair.1);
        one_queue && one_line_each && !self.looks.first().is_some_and(Look::is_limited)
    }

    /// Remembers what a claim took. `planned`: how many it meant to take, by the positions of the pairs. Returns whether
    /// others hold some of those, so that queues are not filled though there may be more; unless this is the `last` try.
    fn took(
        &self,
        shared: &Shared,
        jobs: &[(LineLevel, Position)],
        planned: &[(i64, i32)],
        last_try: bool,
    ) -> bool {
        let mut last: BTreeMap<LineLevel, Position> = BTreeMap::new();
        let mut taken: BTreeMap<i32, usize> = BTreeMap::new();
        let mut given: BTreeMap<LineLevel, i32> = BTreeMap::new();
        let queue_of: BTreeMap<LineLevel, i32> =
            self.looks.iter().map(|look| (look.pair, look.queue)).collect();
        for (pair, position) in jobs {
            let furthest = last.entry(*pair).or_insert(*position);
            *furthest = (*furthest).max(*position);
            *given.entry(*pair).or_default() += 1;
            if let Some(queue) = queue_of.get(pair) {
                *taken.entry(*queue).or_default() += 1;
            }
        }
        let held: BTreeMap<LineLevel, i32> = planned
            .iter()
            .filter_map(|(o, want)| Some((self.looks.get(usize::try_from(*o - 1).ok()?)?, *want)))
            .filter(|(look, want)| given.get(&look.pair).copied().unwrap_or(0) < *want)
            .map(|(look, _)| (look.pair, look.queue))
            .collect();
        let cut = |queue: i32| !last_try && held.values().any(|one| *one == queue);
        let mut more = false;
        let names = shared.names();
        let paused = |queue: i32| names.queue(queue).is_ok_and(|queue| queue.settings.paused);
        let mut scan_bounds = shared.scan_bounds();
        for look in &self.looks {
            let wanted = usize::try_from(look.most).unwrap_or(usize::MAX);
            let short = taken.get(&look.queue).copied().unwrap_or(0) < wanted;
            // So is everything in a paused queue.
            let open = look.is_limited() || paused(look.queue);
            // A pair of which others hold a part gave all the rest; those behind it may not have been looked at.
            let behind = cut(look.queue) && !held.contains_key(&look.pair);
            more |= short && behind;
            scan_bounds.took(look.pair, last.get(&look.pair).copied(), short && !open && !behind);
        }
        more
    }

    /// What is still to be claimed.
    fn rest(&self, taken: &Taken) -> Vec<(QueueName, usize)> {
        let rest = |limit: usize, no: i32| limit.saturating_sub(taken.count(no));
        self.queues.iter().map(|(no, queue, limit)| (queue.clone(), rest(*limit, *no))).collect()
    }

    /// The queues that gave less than was asked for, and those that did not.
    fn short(&self, taken: &Taken) -> Vec<(i32, bool)> {
        self.queues.iter().map(|(no, _, limit)| (*no, taken.count(*no) < *limit)).collect()
    }
}

/// Moves the jobs.
pub(crate) async fn take(
    conn: &mut Conn,
    shared: &Shared,
    plan: &Plan,
    node: i32,
    batch: i64,
    last_try: bool,
) -> Result<(Taken, bool)> {
    let at = shared.at();
    let class = shared.class();
    let settlements = shared.nodes().get(&node).map_or(0, |local| local.settlements);
    let lines: Vec<i32> = plan.looks.iter().map(|look| look.pair.0).collect();
    let levels: Vec<i16> = plan.looks.iter().map(|look| look.pair.1).collect();
    let (bound_at, bound_no): (Vec<At>, Vec<i64>) =
        plan.looks.iter().map(|look| bound_args(look.bound)).unzip();
    let queues: Vec<i32> = plan.looks.iter().map(|look| look.queue).collect();
    let wants: Vec<i32> = plan.looks.iter().map(|look| look.want).collect();
    let mosts: Vec<i32> = plan.looks.iter().map(|look| look.most).collect();
    let frees: Vec<i32> = plan.looks.iter().map(|look| look.free).collect();
    let order: Vec<i32> = plan.queues.iter().map(|(no, ..)| *no).collect();
    let total = i64::from(wants.first().copied().unwrap_or(0));
    let known = shared.names().settings().to_owned();
    let settings = known.as_str();
    let touch = LockAndTouch { at: &at, node: &node, class: &class }.call();
    macro_rules! claim_of {
        ($Statement:ident { $($more:tt)* }) => {
            $Statement {
                at: &at,
                node: &node,
                settlements: &settlements,
                batch: &batch,
                lines: &lines,
                levels: &levels,
                bound_at: &bound_at,
                bound_no: &bound_no,
                queues: &queues,
                wants: &wants,
                mosts: &mosts,
                frees: &frees,
                settings: &settings,
                $($more)*
            }
            .call()
        };
    }
    let queue_totals: Vec<Option<i64>> = plan.looks.iter().map(|look| look.totals.0).collect();
    let kind_totals: Vec<Option<i64>> = plan.looks.iter().map(|look| look.totals.1).collect();
    let totals: Vec<i64> = plan.totals().into_iter().collect();
    let call = if !totals.is_empty() {
        claim_of!(ClaimCapped { suspects: &plan.suspects, totals: &queue_totals, kind_totals: &kind_totals })
    } else if plan.is_simple() {
        claim_of!(ClaimOneQueue { total: &total })
    } else {
        claim_of!(ClaimMerged { suspects: &plan.suspects, order: &order })
    };
    let calls: Vec<Call<'_>> = if totals.is_empty() {
        vec![touch, call]
    } else {
        vec![touch, LockKeys { nos: &totals }.call(), call]
    };
    let rows = conn.commit(shared, &calls).await?.pop().unwrap_or_default();
    let mut found = ClaimMerged::rows(&rows)?;
    let Some(first) = found.first_mut() else { return Err(corrupt("a claim without an answer")) };
    if !first.live {
        return Err(Error::LeaseLost.into());
    }
    let (now, found_settings) = (first.now.0, first.settings.take().unwrap_or_default());
    let (pairs, planned) = (first.pairs.take().unwrap_or_default(), first.planned.take().unwrap_or_default());
    let planned: Vec<(i64, i32)> = pairs.into_iter().zip(planned).collect();
    let found: Vec<Job> = found.into_iter().filter_map(Found::job).collect();
    names::learn(conn, shared, found.iter().map(|job| job.line), &found_settings).await?;
    if settings != found_settings.as_str() {
        // It knew nothing of a change, and has claimed nothing.
        return Ok((Taken::nothing(now), true));
    }
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    let mut jobs: Vec<(usize, LineLevel, Position, Job)> = Vec::with_capacity(found.len());
    {
        let names = shared.names();
        for job in found {
            let queue = names.line(job.line)?.queue;
            *counts.entry(queue).or_default() += 1;
            let turn = order.iter().position(|one| *one == queue).unwrap_or(usize::MAX);
            jobs.push((turn, (job.line, job.level), (job.ready_at.0, job.no), job));
        }
    }
    let positions: Vec<(LineLevel, Position)> =
        jobs.iter().map(|(_, pair, position, _)| (*pair, *position)).collect();
    let held = plan.took(shared, &positions, &planned, last_try);
    if !jobs.is_empty() {
        shared.moved();
    }
    if !totals.is_empty() {
        shared.note_limited(jobs.iter().map(|(.., job)| job.no));
    }
    jobs.sort_by_key(|(turn, pair, position, _)| (*turn, pair.1, *position));
    let jobs: Vec<Job> = jobs.into_iter().map(|(.., job)| job).collect();
    // The claim is made: if what belongs to it cannot be read, it is asked for again and adopted.
    let journals = journals_of(conn, shared, &jobs).await;
    let journals = journals.map_err(|_| Error::OutcomeUnknown { source: None })?;
    Ok((Taken { now, jobs, journals, counts }, held))
}

/// Jobs that were claimed, with their journals.
pub(crate) async fn taken_of(
    conn: &mut Conn,
    shared: &Shared,
    jobs: Vec<Job>,
    now: Timestamp,
) -> Result<Taken> {
    let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
    {
        let names = shared.names();
        for job in &jobs {
            *counts.entry(names.line(job.line)?.queue).or_default() += 1;
        }
    }
    // The claim is made: if what belongs to it cannot be read, it is asked for again and adopted.
    let journals = journals_of(conn, shared, &jobs).await;
    let journals = journals.map_err(|_| Error::OutcomeUnknown { source: None })?;
    Ok(Taken { now, jobs, journals, counts })
}

pub(crate) fn class(level: i16) -> Class {
    u8::try_from(level).ok().and_then(Level::from_code).map_or(Class::Fresh, Level::class)
}

/// What a node gets of a job.
fn read(job: Job, names: &Names) -> Result<Claimed> {
    let line = names.line(job.line)?;
    let mut options: Options = match &job.options {
        None => Options::default(),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(format!("options: {error}")))?,
    };
    if options.backoff.is_none() {
        options.backoff = names.queue(line.queue)?.settings.backoff;
    }
    let small =
        |count: i16, name: &str| u16::try_from(count).map_err(|_| corrupt(format!("{name} below zero")));
    let level = u8::try_from(job.level)
        .ok()
        .and_then(Level::from_code)
        .ok_or_else(|| corrupt(format!("{} is not a level and no priority", job.level)))?;
    Ok(Claimed {
        ahead: job.flags & flags::AHEAD != 0,
        journal: None,
        claim: Claim {
            id: JobId::from_bytes(*job.id.as_bytes()),
            row: JobRow(job.no),
            number: u32::try_from(job.claim).map_err(|_| corrupt("a claim number below zero"))?,
        },
        kind: line.kind_name.clone(),
        queue: line.queue_name.clone(),
        priority: level.priority(),
        input: match job.input {
            Some(input) => Value::Here(input),
            None => Value::There(usize::try_from(job.input_bytes).unwrap_or(0)),
        },
        failures: small(job.failures, "failures")?,
        crashes: small(job.crashes, "crashes")?,
        crashed_micros: job.crashed,
        created_at: job.created_at.0,
        // A job that an operator ran again has no deadline any more.
        deadline: job.deadline.filter(|_| job.flags & flags::DEADLINE != 0).map(|at| at.0),
        options,
    })
}
