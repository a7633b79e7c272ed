//! Idle polls: one round trip a second that tells an idle process all it must know.
//!
//! It looks for jobs that nobody reported, for what becomes due next, and for nodes that may be dead. The answer is kept:
//! while it is fresh, questions that it has answered are not asked again, so an idle node costs one round trip a second.
//! A renewal carries an idle poll along, and counts for one.
//!
//! # Invariants
//! - Whoever carries a poll along and leaves out the look at all pairs though it is due leaves that to the notification
//!   loop, which makes up for it: however many renewals there are, what nobody reported is found.
//! - A kept answer only ever says that there is nothing to do. Whoever is told of something to do forgets it.
//! - What is said to be the store's last answer is when that answer came, never later.

use std::time::Duration;

use mainspring_core::fault;
use mainspring_core::id::NodeNo;
use mainspring_core::store::{Rescue, Rescued, Swept};
use mainspring_core::time::Timestamp;
use tokio_postgres::Row;

use crate::connection::Conn;
use crate::error::{Result, corrupt};
use crate::op::claim::{Scan, ScanTurns, read_scan};
use crate::op::rescue::{self, Living};
use crate::op::sweep::{NextDeadline, NextDue, Times, first_deadline, next_times};
use crate::options::Time;
use crate::shared::Shared;
use crate::sql::{Call, Present};

/// How often an idle process polls: with all that a node asks now and then, once a second.
const EVERY: Duration = Duration::from_millis(1_100);
/// How long an answer is fresh: a little longer than until the next one.
const FRESH: Duration = Duration::from_millis(1_600);
/// A scan that took longer than this is not taken along by a renewal, which has no time to lose.
const QUICK: Duration = Duration::from_millis(10);
/// Nor is a poll at all, if the last one took longer than this with its way there and back.
const SLOW: Duration = Duration::from_millis(200);

/// What the last poll answered.
#[derive(Debug, Clone)]
pub(crate) struct IdlePoll {
    /// When it was asked for, on the monotonic clock.
    asked: Duration,
    /// How long it took.
    took: Duration,
    /// Whether a look at all pairs was due and left out.
    partial: bool,
    /// The store's time of the answer.
    now: Timestamp,
    /// What becomes due next; `None`: not known any more.
    next: Option<Next>,
    living: Living,
}

/// What becomes due next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Next {
    /// The first job that waits for its time, end that is to be told of, or limit key that is to be looked at.
    job: Option<Timestamp>,
    /// The first schedule to be looked at.
    fire: Option<Timestamp>,
    /// The first deadline of a waiting job.
    deadline: Option<Timestamp>,
}

/// A poll in flight.
pub(crate) struct PollInFlight {
    asked: Duration,
    generation: u64,
    /// The same of turns.
    turns: u64,
    /// How often something was said to become due before.
    dues: u64,
    at: Present,
    scan: bool,
    /// A scan is due, and left out.
    partial: bool,
}

impl PollInFlight {
    /// Begins a poll. `hurry`: leave out what takes long.
    pub(crate) fn new(shared: &Shared, hurry: bool) -> Self {
        let asked = shared.monotonic();
        let scan_bounds = shared.scan_bounds();
        let due = scan_bounds.scan_is_due(Some(asked));
        let partial = due && hurry && scan_bounds.scan_took() > QUICK;
        let (generation, dues, at) = (scan_bounds.generation(), shared.dues(), shared.at());
        drop(scan_bounds);
        let turns = shared.turn_bounds().generation();
        PollInFlight { asked, generation, turns, dues, at, scan: due && !partial, partial }
    }

    /// Whether it looks at all pairs.
    pub(crate) fn scans(&self) -> bool {
        self.scan
    }

    /// The look at all pairs took longer than it may.
    pub(crate) fn gave_up(self, shared: &Shared) {
        shared.scan_bounds().gave_up((self.asked, shared.monotonic()));
    }

    /// Its statements.
    pub(crate) fn calls(&self) -> Vec<Call<'_>> {
        let mut calls = vec![rescue::Look { at: &self.at }.call(), NextDue.call(), NextDeadline.call()];
        if self.scan {
            calls.push(Scan.call());
            calls.push(ScanTurns.call());
        }
        calls
    }

    /// Takes in the answers and tells what is new.
    pub(crate) async fn apply(self, conn: &mut Conn, shared: &Shared, rows: &[Vec<Row>]) -> Result<()> {
        let [look, due, deadline, scanned @ ..] = rows else {
            return Err(corrupt("a poll without an answer"));
        };
        if !scanned.is_empty() {
            let generations = (self.generation, self.turns);
            read_scan(conn, shared, scanned, generations, self.asked).await?.send_here(shared);
        }
        fault::point!("postgres.heard");
        let Times { job, fire, keys } = next_times(due)?;
        let job = job.into_iter().chain(keys).min();
        let next = Next { job, fire, deadline: first_deadline(deadline)? };
        let living = Living::read(look)?;
        let took = shared.monotonic().saturating_sub(self.asked);
        let changed = {
            let mut poll = shared.idle_poll();
            let before = poll.as_ref().and_then(|poll| poll.next);
            *poll = Some(IdlePoll {
                asked: self.asked,
                took,
                partial: self.partial,
                now: living.now,
                next: (shared.dues() == self.dues).then_some(next),
                living,
            });
            before != Some(next)
        };
        if changed && let Some(first) = next.job.into_iter().chain(next.fire).chain(next.deadline).min() {
            shared.tell(&mainspring_core::store::Hint::Due(first));
        }
        Ok(())
    }
}

/// Something becomes due: what was heard of that is not true any more, nor what is being heard.
pub(crate) fn forget_due(shared: &Shared) {
    let mut poll = shared.idle_poll();
    shared.say_due();
    if let Some(poll) = poll.as_mut() {
        poll.next = None;
    }
}

impl IdlePoll {
    /// How long ago it was asked for.
    pub(crate) fn age(&self, shared: &Shared) -> Duration {
        shared.monotonic().saturating_sub(self.asked)
    }

    /// How long until the next one.
    pub(crate) fn next_in(&self, shared: &Shared) -> Duration {
        if self.partial { Duration::ZERO } else { EVERY.saturating_sub(self.age(shared)) }
    }

    /// What a sweep would answer, if it would find nothing.
    fn sweep(&self, next: impl FnOnce(Next) -> Option<Timestamp>, age: Duration) -> Option<Swept> {
        let (next, now) = (next(self.next?), self.now.after(age));
        next.is_none_or(|next| next > now).then_some(Swept { now, moved: 0, next, fire: None })
    }
}

/// The last answer, if it is fresh and this store lives in the database's time.
fn fresh(shared: &Shared) -> Option<(IdlePoll, Duration)> {
    if shared.options.time != Time::Server {
        return None;
    }
    let poll = shared.idle_poll().clone()?;
    let age = poll.age(shared);
    (age < FRESH).then_some((poll, age))
}

/// Whether a renewal can carry a poll along: one that fails, because a table is locked or full of dead rows, takes the
/// renewal with it.
pub(crate) fn is_quick(shared: &Shared) -> bool {
    shared.idle_poll().as_ref().is_some_and(|poll| poll.age(shared) < FRESH && poll.took < SLOW)
}

/// The store's time, if the last answer is fresh and others can report their jobs to us.
pub(crate) fn present(shared: &Shared) -> Option<Timestamp> {
    let (poll, age) = fresh(shared).filter(|_| shared.is_listening())?;
    Some(poll.now.after(age))
}

/// What a promotion would answer, if it would find nothing.
pub(crate) fn promote(shared: &Shared) -> Option<Swept> {
    let (poll, age) = fresh(shared)?;
    let fire = poll.next?.fire;
    poll.sweep(|next| next.job, age).map(|swept| Swept { fire, ..swept })
}

/// What an expiry would answer, if it would find nothing.
pub(crate) fn expire(shared: &Shared) -> Option<Swept> {
    let (poll, age) = fresh(shared)?;
    poll.sweep(|next| next.deadline, age)
}

/// What a rescue would answer, if it would find nobody.
pub(crate) fn rescue(shared: &Shared, rescue: Rescue) -> Option<Rescued> {
    let (poll, age) = fresh(shared)?;
    poll.living.all_well(NodeNo(rescue.by.0), poll.now.after(age)).then(|| poll.living.rescued(&[]))
}
