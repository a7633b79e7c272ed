//! The desk: which queues have free slots, what waits for them on this node, and how much more to claim.
//!
//! Each queue has its slots and a short line of claimed jobs behind them, so that a slot that becomes free need not wait
//! for the store. That line holds about [`PREFETCH`] of work, judged by how long jobs of the queue took lately: a node
//! must not sit on jobs that another could run.
//!
//! # Invariants
//! - No more jobs of a queue run than it has slots.
//! - At most one suspect is on the desk, or ended with its outcome not stored yet.
//! - A queue that a claim found empty is not asked again until something says that it may have jobs.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::bounds;
use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::journal::Journal;
use mainspring_core::name::QueueName;
use mainspring_core::planted::{self, Defect};
use tokio::sync::Notify;

use crate::context::Run;
use crate::sync::{Mutex, MutexGuard};

/// How much work may wait on this node: long enough to hide the way to the store, short enough that nobody minds.
const PREFETCH: Duration = Duration::from_millis(50);
/// Jobs that may wait per queue, however short they are: two claims' worth.
const PREFETCH_MAX: usize = 2 * bounds::BATCH;
/// The weight of the latest job in the moving average of durations: about the last sixteen count.
const WEIGHT: f64 = 1.0 / 16.0;

/// A claimed job with what is needed to start it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) run: Arc<Run>,
    pub(super) input: Vec<u8>,
    pub(super) journal: Option<Box<Journal>>,
}

pub(super) struct Desk {
    state: Mutex<State>,
    /// Told when there may be something to claim.
    pub(super) wake: Notify,
}

struct State {
    queues: Vec<Served>,
    suspect: Option<JobId>,
    /// Which queue comes first in the next claim: all get their turn.
    turn: usize,
    open: bool,
}

struct Served {
    name: QueueName,
    slots: usize,
    running: usize,
    waiting: VecDeque<Work>,
    /// Moving average of how long a job takes, in seconds. Slow to begin with: one quick job says little about the next.
    pace: f64,
    /// Whether the store may have jobs for it.
    hopeful: bool,
    /// Whether its line has moved since the last look at it.
    moved: bool,
}

impl Served {
    /// How many jobs should be on the desk.
    fn target(&self) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and capped right away"
        )]
        let ahead = (PREFETCH.as_secs_f64() / self.pace.max(1e-9) * self.slots as f64) as usize;
        self.slots + ahead.min(PREFETCH_MAX)
    }

    /// How many jobs to ask for now. Small refills wait until half of the line is gone.
    fn want(&self) -> usize {
        let target = self.target();
        let want = target.saturating_sub(self.running + self.waiting.len());
        if self.waiting.is_empty() || want >= target / 2 { want } else { 0 }
    }
}

/// A pace at which nothing is claimed ahead.
fn slow(slots: usize) -> f64 {
    2.0 * PREFETCH.as_secs_f64() * slots as f64
}

/// What to ask the store for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) queues: Vec<(QueueName, usize)>,
    pub(super) suspects: usize,
}

impl Desk {
    pub(super) fn new(queues: &[(QueueName, u32)]) -> Self {
        let served = |(name, slots): &(QueueName, u32)| Served {
            name: name.clone(),
            slots: usize::try_from(*slots).unwrap_or(usize::MAX),
            running: 0,
            waiting: VecDeque::new(),
            pace: slow(usize::try_from(*slots).unwrap_or(usize::MAX)),
            hopeful: true,
            moved: false,
        };
        let queues = queues.iter().map(served).collect();
        Desk { state: Mutex::new(State { queues, suspect: None, turn: 0, open: true }), wake: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that queues may have jobs; `None`: all of them.
    pub(super) fn hope(&self, queues: Option<&[QueueName]>) {
        let mut concerned = false;
        for served in &mut self.lock().queues {
            if queues.is_none_or(|queues| queues.contains(&served.name)) {
                served.hopeful = true;
                concerned = true;
            }
        }
        if concerned {
            self.wake.notify_one();
        }
    }

    /// What to claim now, if anything. The queues asked for are taken to be empty until a claim or a hint says
    /// otherwise.
    pub(super) fn plan(&self) -> Option<Plan> {
        let mut state = self.lock();
        if !state.open {
            return None;
        }
        let (count, turn) = (state.queues.len(), state.turn);
        let mut room = bounds::BATCH;
        let mut queues = Vec::new();
        for offset in 0..count {
            let served = &mut state.queues[(turn + offset) % count];
            let want = served.want().min(room);
            if served.hopeful && want > 0 {
                served.hopeful = false;
                room -= want;
                queues.push((served.name.clone(), want));
            }
        }
        if queues.is_empty() {
            return None;
        }
        state.turn = (turn + 1) % count;
        let suspects = if planted::is(Defect::SuspectsTogether) {
            usize::MAX
        } else {
            usize::from(state.suspect.is_none())
        };
        Some(Plan { queues, suspects })
    }

    /// Puts claimed jobs on the desk; returns those whose slot is free now, with the number of their queue. Jobs that
    /// come when the desk is closed come back unstarted in the second list.
    pub(super) fn put(&self, plan: &Plan, works: Vec<Work>) -> (Vec<(usize, Work)>, Vec<Work>) {
        let mut state = self.lock();
        if !state.open {
            return (Vec::new(), works);
        }
        let State { queues, suspect, .. } = &mut *state;
        let mut came = vec![0_usize; queues.len()];
        for work in works {
            // A store gives only what was asked for; a job of another queue would have no slot.
            let Some(at) = queues.iter().position(|served| served.name == work.run.info.queue) else {
                continue;
            };
            came[at] += 1;
            queues[at].moved = true;
            if work.run.suspect {
                *suspect = Some(work.run.info.id);
                queues[at].waiting.push_front(work);
            } else {
                queues[at].waiting.push_back(work);
            }
        }
        let mut start = Vec::new();
        for (at, served) in queues.iter_mut().enumerate() {
            let asked =
                plan.queues.iter().find(|(name, _)| *name == served.name).map_or(0, |(_, want)| *want);
            if asked > 0 && came[at] >= asked {
                served.hopeful = true;
            }
            while served.running < served.slots {
                let Some(work) = served.waiting.pop_front() else { break };
                served.running += 1;
                start.push((at, work));
            }
        }
        (start, Vec::new())
    }

    /// Gives a slot back after a job that took this long; returns the next job for it, if one waits.
    pub(super) fn next(&self, at: usize, took: Duration) -> Option<Work> {
        let mut state = self.lock();
        let served = &mut state.queues[at];
        let took = took.as_secs_f64();
        served.pace += (took - served.pace) * WEIGHT;
        let next = served.waiting.pop_front();
        served.moved = true;
        if next.is_none() {
            served.running -= 1;
        }
        if served.hopeful && served.want() > 0 {
            self.wake.notify_one();
        }
        next
    }

    /// A suspect has proven itself, or its outcome is stored: another may take its place. Until then it could die with the
    /// other, though it has done nothing but end.
    pub(super) fn cleared(&self, claim: &Claim) {
        let mut state = self.lock();
        if state.suspect == Some(claim.id) {
            state.suspect = None;
            drop(state);
            self.hope(None);
        }
    }

    /// Takes off the desk what waits behind jobs that take longer than was thought, so that another node can have it:
    /// whole lines in which nothing has moved since the last look.
    pub(super) fn overdue(&self) -> Vec<Work> {
        let mut state = self.lock();
        let State { queues, suspect, .. } = &mut *state;
        let mut overdue = Vec::new();
        for served in queues {
            if !std::mem::take(&mut served.moved) && !served.waiting.is_empty() {
                // Slow enough that nothing is claimed ahead until jobs have been quick again.
                served.pace = slow(served.slots);
                overdue.extend(served.waiting.drain(..));
            }
        }
        if overdue.iter().any(|work| *suspect == Some(work.run.info.id)) {
            *suspect = None;
        }
        overdue
    }

    /// Forgets what waits under another number than the node has now.
    pub(super) fn forget_all_but(&self, node: NodeNo) {
        let mut state = self.lock();
        let State { queues, suspect, .. } = &mut *state;
        for served in queues {
            served.waiting.retain(|work| {
                let stale = work.run.node != node;
                if stale && *suspect == Some(work.run.info.id) {
                    *suspect = None;
                }
                !stale
            });
        }
    }

    /// Takes everything that waits off the desk.
    fn drain(&self) -> Vec<Work> {
        let mut state = self.lock();
        state.suspect = None;
        state.queues.iter_mut().flat_map(|served| served.waiting.drain(..)).collect()
    }

    /// Takes no more jobs; returns those that wait.
    pub(super) fn close(&self) -> Vec<Work> {
        self.lock().open = false;
        self.wake.notify_one();
        self.drain()
    }
}
