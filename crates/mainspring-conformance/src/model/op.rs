//! Abstract operations, and how they are made.
//!
//! Jobs, nodes, queues, kinds, keys and claims are small numbers here; what they stand for is decided when a life is
//! lived. That is what makes a sequence shrink: without one of its operations the others still mean something.

use std::ops::Range;
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::job::{OnConflict, Priority, Reason, Until, Verb};
use mainspring_core::store::{Mark, QueueChange};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::workflow::key;
use crate::harness::priority;

/// Jobs of the universe that are enqueued: few, so that much happens to each.
pub(super) const JOBS: usize = 12;
/// All jobs of the universe: behind those, some that only start as children.
pub(super) const ALL: usize = 20;
/// Nodes that live at the same time, at most.
pub(super) const NODES: usize = 3;
/// Queues, and kinds.
pub(super) const NAMES: usize = 3;
/// Limits: of a maximum, of another, and of a rate.
pub(super) const LIMITS: usize = 3;
/// Keys of limits.
pub(super) const LIMIT_KEYS: usize = 2;
/// Unique keys.
const KEYS: usize = 8;
/// Keys of a journal.
const STEPS: usize = 6;
/// Names of signals, and senders.
const SENDERS: usize = 3;

/// One operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// Enqueue a batch.
    Enqueue(Vec<JobDraft>),
    /// Start a node in a slot; whoever was there is forgotten, not retired.
    Start(usize),
    /// Register the node of a slot again.
    Register(usize),
    /// Renew, with marks on claims.
    Renew(usize, Vec<(ClaimRef, Mark)>),
    /// Retire.
    Retire(usize),
    /// Claim.
    Claim {
        /// The slot of the node.
        node: usize,
        /// Queues and limits.
        queues: Vec<(usize, usize)>,
        /// How many suspects at most.
        suspects: usize,
        /// Whether this is a repeat of the node's last batch.
        repeat: bool,
    },
    /// End claims.
    Finish(Vec<(ClaimRef, End)>),
    /// Disown all claims but some, up to a batch so far back.
    Disown(usize, u64, Vec<ClaimRef>),
    /// Tell of progress.
    Progress(ClaimRef, u64),
    /// Write into journals, and start children.
    Record(Vec<HandlerWork>),
    /// Send signals: the job, the name and the sender of each.
    Signal(Vec<(usize, usize, usize)>),
    /// Look at all that is known of a job.
    Look(usize),
    /// Rescue, by a slot's node that was steady for so long and last answered so long ago.
    Rescue(usize, Duration, Duration),
    /// Lose the slot's node that made a claim: its lease lapses, another is started and rescues. Chance alone would do
    /// this too rarely for a job to be lost twice.
    Lose(ClaimRef),
    /// Move due jobs.
    Promote,
    /// Fail late jobs.
    Expire,
    /// Remove old jobs.
    Prune,
    /// Apply a verb to jobs.
    Change(Vec<usize>, Verb, bool),
    /// Change a queue's settings.
    Configure(usize, QueueChange),
    /// Delete a queue.
    DeleteQueue(usize),
    /// Change a limit: its maximum, and whether it is paused.
    SetLimit(usize, Option<u32>, Option<bool>),
    /// Change a key of a limit: its own maximum, and whether it is paused.
    SetLimitKey(usize, usize, Option<u32>, bool),
    /// Forget a limit, or take a person's edit of it back.
    DropLimit(usize, bool),
    /// Set the total of a queue, or of a kind.
    SetTotal(usize, bool, Option<u32>),
    /// Let time pass.
    Advance(Duration),
    /// Set the wall clock back.
    Back(Duration),
}

/// A job to be enqueued.
#[derive(Debug, Clone)]
pub struct JobDraft {
    /// Which job of the universe.
    pub job: usize,
    /// Its kind.
    pub kind: usize,
    /// Its queue.
    pub queue: usize,
    /// Its priority.
    pub priority: Priority,
    /// Whether it needs the label that only some nodes have.
    pub labelled: bool,
    /// When it is due.
    pub run: Option<Duration>,
    /// Its deadline.
    pub deadline: Option<Duration>,
    /// Its key.
    pub unique: Option<(usize, Until, OnConflict)>,
    /// Which keys of a journal it has from the beginning.
    pub shares: Vec<usize>,
    /// Its limits: which, the key, and the units.
    pub limits: Vec<(usize, usize, u16)>,
}

/// A claim that was made before.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRef {
    /// Which, counted from the last.
    pub back: usize,
    /// Whether another node speaks of it than the one that made it.
    pub stranger: bool,
}

/// How a claim ends.
#[derive(Debug, Clone)]
pub enum End {
    /// Well.
    Succeed,
    /// Again, after a while.
    Retry(Duration),
    /// Badly.
    Fail,
    /// Later.
    Snooze(Duration),
    /// Not at all.
    Release,
    /// By its own wish.
    Cancel,
    /// As an operator wished.
    Stop,
    /// When something happens.
    Suspend(Pause),
}

/// What a handler does while it runs.
#[derive(Debug, Clone)]
pub struct HandlerWork {
    /// With which claim.
    pub who: ClaimRef,
    /// What it writes.
    pub note: JournalNote,
    /// Children that it starts, and whether each goes on when its parent ends.
    pub children: Vec<(JobDraft, bool)>,
}

/// What is written into a journal.
#[derive(Debug, Clone)]
pub struct JournalNote {
    /// Which keys, and whether their values are too large for many to come with a claim.
    pub entries: Vec<(usize, bool)>,
    /// Keys that are taken back.
    pub forget: Vec<usize>,
    /// Which of the unread messages are read.
    pub read: Vec<usize>,
    /// What is said: under which number, by which step, and whether it is a reset.
    pub said: Vec<(u32, usize, bool)>,
    /// Whether it is no progress.
    pub idle: bool,
}

/// What a claim is suspended for.
#[derive(Debug, Clone)]
pub struct Pause {
    /// Why.
    pub reason: Reason,
    /// What wakes it, and how many of those.
    pub waits: Vec<(MessageSubject, u32)>,
    /// What time wakes it, from now on.
    pub until: Option<Duration>,
    /// Whether it keeps its units of limits.
    pub keep: bool,
    /// What is written with it.
    pub note: JournalNote,
}

/// What a message is about.
#[derive(Debug, Clone, Copy)]
pub enum MessageSubject {
    /// A signal.
    Signal(usize),
    /// The end of a child, counted from the first, or of a job that is none if there are no children.
    Child(usize),
}

/// Lives of at most so many operations. All nodes are there from the beginning: few operations mean anything without.
pub(super) fn lives(length: usize, limits: bool) -> impl Strategy<Value = Vec<Op>> {
    let one = if limits { prop_oneof![8 => op(true), 1 => limit()].boxed() } else { op(false).boxed() };
    vec(one, 1..=length).prop_map(|ops| (0..NODES).map(Op::Start).chain(ops).collect())
}

/// What operators do to limits.
fn limit() -> impl Strategy<Value = Op> {
    let max = || option::weighted(0.8, 0..4_u32);
    prop_oneof![
        4 => (0..LIMITS, max(), option::weighted(0.3, any::<bool>()))
            .prop_map(|(limit, max, paused)| Op::SetLimit(limit, max, paused)),
        3 => (0..LIMITS, 0..LIMIT_KEYS, max(), proptest::bool::weighted(0.3))
            .prop_map(|(limit, key, max, paused)| Op::SetLimitKey(limit, key, max, paused)),
        1 => (0..LIMITS, any::<bool>()).prop_map(|(limit, reset)| Op::DropLimit(limit, reset)),
        3 => (0..NAMES, any::<bool>(), option::weighted(0.6, 0..4_u32))
            .prop_map(|(name, of_queue, max)| Op::SetTotal(name, of_queue, max)),
    ]
}

/// Limits of a job; often none.
fn uses(limits: bool) -> impl Strategy<Value = Vec<(usize, usize, u16)>> {
    let one = (0..LIMITS, 0..LIMIT_KEYS, prop_oneof![3 => Just(1_u16), 1 => Just(2)]);
    vec(one, if limits { 0..4 } else { 0..1 }).prop_map(|mut uses| {
        uses.sort_unstable();
        uses.dedup_by_key(|(limit, key, _)| (*limit, *key));
        uses
    })
}

fn op(limits: bool) -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => vec(draft(limits), 1..6).prop_map(Op::Enqueue),
        1 => (0..NODES).prop_map(Op::Start),
        1 => (0..NODES).prop_map(Op::Register),
        4 => (0..NODES, vec((who(), mark()), 0..3)).prop_map(|(node, marks)| Op::Renew(node, marks)),
        1 => (0..NODES).prop_map(Op::Retire),
        25 => claim(),
        20 => vec((who(), end()), 1..4).prop_map(Op::Finish),
        2 => (0..NODES, 0..3_u64, vec(who(), 0..3)).prop_map(|(node, back, keep)| Op::Disown(node, back, keep)),
        1 => (who(), any::<u64>()).prop_map(|(who, done)| Op::Progress(who, done)),
        16 => vec(deed(limits), 1..3).prop_map(Op::Record),
        10 => vec((0..ALL, 0..SENDERS, 0..SENDERS), 1..4).prop_map(Op::Signal),
        4 => (0..ALL).prop_map(Op::Look),
        6 => (0..NODES, steady(), silent()).prop_map(|(node, steady, ago)| Op::Rescue(node, steady, ago)),
        10 => who().prop_map(Op::Lose),
        10 => Just(Op::Promote),
        3 => Just(Op::Expire),
        2 => Just(Op::Prune),
        8 => (vec(0..ALL, 1..3), verb(), proptest::bool::weighted(0.2)).prop_map(|(jobs, verb, dry)| Op::Change(jobs, verb, dry)),
        2 => (0..NAMES, settings()).prop_map(|(queue, change)| Op::Configure(queue, change)),
        1 => (0..NAMES).prop_map(Op::DeleteQueue),
        12 => moment().prop_map(Op::Advance),
        1 => Just(Op::Back(Duration::from_secs(3))),
    ]
}

fn draft(limits: bool) -> impl Strategy<Value = JobDraft> {
    draft_of(0..JOBS, 0.5, limits)
}

/// Children, which may have no unique key; if one has, all is refused.
fn children(limits: bool) -> impl Strategy<Value = Vec<(JobDraft, bool)>> {
    vec((draft_of(JOBS..ALL, 0.02, limits), proptest::bool::weighted(0.2)), 0..3)
}

fn draft_of(jobs: Range<usize>, keyed: f64, limits: bool) -> impl Strategy<Value = JobDraft> {
    let place = (jobs, 0..NAMES, 0..NAMES, level(), proptest::bool::weighted(0.1));
    let times = (option::weighted(0.2, moment()), option::weighted(0.2, moment()));
    // Rarely for children, which may have none.
    let shares = option::weighted(keyed / 5.0, subsequence((0..STEPS).collect::<Vec<_>>(), 1..=STEPS));
    (place, times, option::weighted(keyed, unique()), shares, uses(limits)).prop_map(
        |((job, kind, queue, priority, labelled), (run, deadline), unique, shares, limits)| JobDraft {
            job,
            kind,
            queue,
            priority,
            labelled,
            run,
            deadline,
            unique,
            shares: shares.unwrap_or_default(),
            limits,
        },
    )
}

fn level() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(5), Just(0), Just(9)].prop_map(priority)
}

fn unique() -> impl Strategy<Value = (usize, Until, OnConflict)> {
    let until = prop_oneof![
        Just(Until::Finished),
        Just(Until::Started),
        Just(Until::after(Duration::from_secs(5))),
        Just(Until::after(Duration::from_hours(48))),
    ];
    let conflict = prop_oneof![Just(OnConflict::Keep), Just(OnConflict::Replace), Just(OnConflict::Reject)];
    (0..KEYS, until, conflict)
}

fn claim() -> impl Strategy<Value = Op> {
    let queues = subsequence(vec![0, 1, 2], 2..=NAMES).prop_shuffle();
    // Mostly all that there is.
    let limits = vec(prop_oneof![Just(1_usize), Just(5), Just(5), Just(5)], NAMES);
    let repeat = proptest::bool::weighted(0.1);
    let suspects = prop_oneof![Just(0_usize), Just(1), Just(5), Just(5)];
    (0..NODES, queues, limits, suspects, repeat).prop_map(|(node, queues, limits, suspects, repeat)| {
        let queues = queues.into_iter().zip(limits).collect();
        Op::Claim { node, queues, suspects, repeat }
    })
}

fn who() -> impl Strategy<Value = ClaimRef> {
    (0..6_usize, proptest::bool::weighted(0.1)).prop_map(|(back, stranger)| ClaimRef { back, stranger })
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![Just(Mark::Stuck), Just(Mark::Cleared), Just(Mark::Foreign), Just(Mark::GoesOn)]
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        3 => Just(End::Succeed),
        4 => moment().prop_map(End::Retry),
        2 => Just(End::Fail),
        2 => moment().prop_map(End::Snooze),
        3 => Just(End::Release),
        1 => Just(End::Cancel),
        1 => Just(End::Stop),
        6 => pause().prop_map(End::Suspend),
    ]
}

fn deed(limits: bool) -> impl Strategy<Value = HandlerWork> {
    (who(), note(), children(limits)).prop_map(|(who, note, children)| HandlerWork { who, note, children })
}

fn note() -> impl Strategy<Value = JournalNote> {
    let entries = vec((0..STEPS, proptest::bool::weighted(0.1)), 0..3);
    let said = vec((1..8_u32, 0..3_usize, proptest::bool::weighted(0.2)), 0..3);
    let rest = (said, proptest::bool::weighted(0.2));
    (entries, vec(0..STEPS, 0..2), vec(0..3_usize, 0..2), rest)
        .prop_map(|(entries, forget, read, (said, idle))| JournalNote { entries, forget, read, said, idle })
}

fn pause() -> impl Strategy<Value = Pause> {
    let reason = prop_oneof![
        3 => Just(Reason::Timer),
        3 => Just(Reason::Signal),
        3 => Just(Reason::Child),
        1 => Just(Reason::Approval),
        1 => Just(Reason::Budget),
        1 => Just(Reason::Drift),
    ];
    let about = prop_oneof![
        (0..SENDERS).prop_map(MessageSubject::Signal),
        (0..3_usize).prop_map(MessageSubject::Child)
    ];
    let waits = vec((about, prop_oneof![3 => Just(1_u32), 1 => Just(2)]), 0..3);
    let rest = (proptest::bool::weighted(0.3), note());
    (reason, waits, option::weighted(0.3, moment()), rest)
        .prop_map(|(reason, waits, until, (keep, note))| Pause { reason, waits, until, keep, note })
}

fn verb() -> impl Strategy<Value = Verb> {
    prop_oneof![
        4 => Just(Verb::Cancel { why: "enough".into() }),
        1 => Just(Verb::Cancel { why: String::new() }),
        2 => Just(Verb::Recall { why: "decided".into() }),
        4 => Just(Verb::Retry),
        6 => (0..STEPS, 0..6_u32).prop_map(|(step, claim)| Verb::Rewind { from: key(step), claim }),
        1 => Just(Verb::Hold { why: String::new() }),
        1 => Just(Verb::Hold { why: "for now".into() }),
        3 => Just(Verb::Resume),
        1 => Just(Verb::Fail { why: "broken".into() }),
        2 => Just(Verb::Delete),
        2 => level().prop_map(Verb::SetPriority),
    ]
}

fn settings() -> impl Strategy<Value = QueueChange> {
    let retention = || option::of(prop_oneof![Just(bounds::RETENTION_MIN), Just(Duration::from_hours(1))]);
    let paused = option::of(proptest::bool::weighted(0.3));
    (paused, retention(), retention()).prop_map(|(paused, good, bad)| QueueChange {
        paused,
        backoff: None,
        retain_succeeded: good,
        retain_failed: bad,
    })
}

fn steady() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(Duration::ZERO), Just(Duration::from_secs(5)), Just(Duration::from_hours(1))]
}

/// Half of each lease of the universe, a moment more, and nothing.
fn silent() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => Just(Duration::ZERO),
        1 => Just(Duration::from_millis(1_500)),
        1 => Just(Duration::from_millis(2_501)),
        1 => Just(Duration::from_hours(1)),
    ]
}

/// Times that meet the leases, periods and retentions of the universe, before, at and after.
fn moment() -> impl Strategy<Value = Duration> {
    prop_oneof![
        1 => Just(Duration::ZERO),
        4 => Just(Duration::from_millis(500)),
        4 => Just(Duration::from_secs(1)),
        4 => Just(Duration::from_secs(5)),
        2 => Just(Duration::from_mins(1)),
        1 => Just(Duration::from_hours(1)),
        1 => Just(Duration::from_hours(24)),
        1 => Just(Duration::from_hours(24 * 14)),
    ]
}
