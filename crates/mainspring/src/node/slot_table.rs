//! The slot table: which queues have free slots, which claimed jobs wait for one, and how much more to claim.
//!
//! Each queue has its slots and a short line of claimed jobs behind them, so that a slot that becomes free need not wait
//! for the store. That line holds about [`PREFETCH`] of work, judged by how long jobs of the queue took lately: a node
//! must not sit on jobs that another could run. It holds no large inputs: the node reads them when their handlers start.
//!
//! # Invariants
//! - No more jobs of a queue run than it has slots.
//! - The table has at most one suspect: waiting, running, or ended with its outcome not stored yet.
//! - A job that was claimed for a free slot starts before all that were claimed ahead. While it waits, its queue asks for no
//!   more: the death of the node would count as its crash.
//! - A queue that a claim found empty is not asked again until something says that it may have jobs. A claim may leave behind
//!   jobs whose nodes were lost and jobs with limits, because they are for free slots only. Then the next free slot says so.
//! - While a claim is on its way, a queue is asked for more only if its last claim came back full.
//! - A queue whose slots are taken away takes in nothing more, and its entry is reused only when nothing of it is left: runners
//!   name queues by the places of their entries.
//! - With what it asks for, a node has at most its slots and the jobs that may wait behind them. Beside that it has as many
//!   unstored outcomes, or none if the store does not take them. So it never holds more than twice as many claims. After its slots
//!   were lowered, that holds as soon as running jobs have ended.

mod resize;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::journal::{Journal, Value};
use mainspring_core::name::QueueName;
use mainspring_core::planted::{self, Defect};
use mainspring_core::store::{LastClaim, QueueActivity};
use mainspring_core::time::Timestamp;
use tokio::sync::Notify;

use crate::job_run::JobRun;
use crate::sync::{Mutex, MutexGuard};

/// How much work may wait on this node: long enough to hide a round trip to the store, short enough to leave jobs to others.
const PREFETCH: Duration = Duration::from_millis(50);
/// Claims that may be on their way.
pub(super) const SENT_MAX: usize = 2;
/// The weight of the latest job in the moving average of durations: about the last sixteen count.
const WEIGHT: f64 = 1.0 / 16.0;

/// A claimed job with what is needed to start it.
#[derive(Debug)]
pub(super) struct UnstartedJob {
    pub(super) run: Arc<JobRun>,
    pub(super) input: Value,
    pub(super) journal: Option<Box<Journal>>,
    /// Whether it was claimed for a slot that was not free.
    pub(super) ahead: bool,
}

pub(super) struct SlotTable {
    /// Jobs that one claim takes at most. However short they are, two claims' worth may wait per queue.
    claim: usize,
    state: Mutex<QueueTable>,
    /// Notified when there may be something to claim.
    pub(super) wake: Notify,
}

struct QueueTable {
    queues: Vec<QueueSlots>,
    suspect: Option<JobId>,
    /// Whether a claim that may bring a suspect is on its way, and whether another went out meanwhile that may not.
    suspect_asked: bool,
    claimed_without_suspect: bool,
    /// Claims on their way.
    sent: usize,
    /// Which queue comes first in the next claim: it moves on with each one, so that none starves.
    first_queue: usize,
    /// When all queues are taken to have jobs again, by the monotonic clock.
    next_look: Duration,
    open: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
struct QueueSlots {
    name: QueueName,
    /// 0: the node does not serve it any more.
    slots: usize,
    running: usize,
    waiting: VecDeque<UnstartedJob>,
    /// Jobs that claims on their way ask for.
    asked: usize,
    /// The last claim that was answered.
    last_claim: Option<LastClaim>,
    /// Whether the last claim brought all that it had asked for.
    last_claim_full: bool,
    /// Moving average of how long a job takes, in seconds. Slow to begin with: one quick job says little about the next.
    mean_seconds: f64,
    /// Whether the store may have jobs for it.
    may_have_jobs: bool,
    /// Whether the last claim may have left jobs behind that are claimed for free slots only.
    left_behind: bool,
    /// Whether its line has moved since the last look at it.
    moved: bool,
}

impl QueueSlots {
    fn new(name: QueueName, slots: u32) -> Self {
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        QueueSlots {
            name,
            slots,
            running: 0,
            waiting: VecDeque::new(),
            asked: 0,
            last_claim: None,
            last_claim_full: false,
            mean_seconds: slow_mean(slots),
            may_have_jobs: true,
            left_behind: false,
            moved: false,
        }
    }

    /// How many jobs the queue should have on this node, running and waiting.
    fn target(&self, claim: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and capped right away"
        )]
        let ahead = (PREFETCH.as_secs_f64() / self.mean_seconds.max(1e-9) * self.slots as f64) as usize;
        self.slots + ahead.min(2 * claim)
    }

    /// How many jobs it has, or has asked for.
    fn present(&self) -> usize {
        self.running + self.waiting.len() + self.asked
    }

    /// Slots that nothing runs in, waits for or was asked for.
    fn free(&self) -> usize {
        self.slots.saturating_sub(self.present())
    }

    /// How many jobs to ask for now; none while one waits that is not ahead. Small refills wait until half of the line is gone; and one that goes out before the
    /// last claim is answered is to be worth its commit.
    fn want(&self, claim: usize) -> usize {
        // The loss of this node would count as its crash: it is to start before others of its kind come.
        if self.waiting.front().is_some_and(|work| !work.ahead) {
            return 0;
        }
        let target = self.target(claim);
        let want = target.saturating_sub(self.present());
        let (worth, least) = if self.asked > 0 {
            (self.last_claim_full, claim.div_ceil(2))
        } else {
            (self.may_have_jobs, if self.waiting.is_empty() { 0 } else { target / 2 })
        };
        if worth && want >= least { want } else { 0 }
    }
}

/// A mean duration at which nothing is claimed ahead.
fn slow_mean(slots: usize) -> f64 {
    2.0 * PREFETCH.as_secs_f64() * slots as f64
}

/// Outcomes that are not stored yet. Their claims are held.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backlog {
    pub(super) count: usize,
    /// Whether the store did not take the last that it was offered.
    pub(super) stuck: bool,
}

/// What to ask the store for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimPlan {
    pub(super) queues: Vec<(QueueName, usize)>,
    /// How many of them are for slots that are not free.
    pub(super) ahead: Vec<(QueueName, usize)>,
    pub(super) suspects: usize,
}

impl QueueTable {
    /// How many more claims the node may hold.
    fn free_claims(&self, claim: usize, backlog: Backlog) -> usize {
        // Nearly always.
        if backlog.count == 0 || planted::is(Defect::OutcomesPileUp) {
            return usize::MAX;
        }
        let most: usize = self.queues.iter().map(|queue| queue.target(claim)).sum();
        let present: usize = self.queues.iter().map(QueueSlots::present).sum();
        if backlog.stuck {
            most.saturating_sub(present + backlog.count)
        } else if backlog.count > most {
            0
        } else {
            usize::MAX
        }
    }

    /// What a plan asked for is not on its way any more.
    fn answered(&mut self, plan: &ClaimPlan) {
        for (name, want) in &plan.queues {
            if let Some(queue) = self.queues.iter_mut().find(|queue| queue.name == *name) {
                queue.asked = queue.asked.saturating_sub(*want);
            }
        }
        self.sent = self.sent.saturating_sub(1);
        if plan.suspects > 0 {
            self.suspect_asked = false;
            if std::mem::take(&mut self.claimed_without_suspect) {
                // What was asked meanwhile may have left a suspect where it is.
                self.queues.iter_mut().for_each(|queue| queue.may_have_jobs = true);
            }
        }
    }
}

impl SlotTable {
    pub(super) fn new(queues: &[(QueueName, u32)], claim: usize) -> Self {
        let queues = queues.iter().map(|(name, slots)| QueueSlots::new(name.clone(), *slots)).collect();
        let state = QueueTable {
            queues,
            suspect: None,
            suspect_asked: false,
            claimed_without_suspect: false,
            sent: 0,
            first_queue: 0,
            next_look: Duration::ZERO,
            open: true,
        };
        SlotTable { claim, state: Mutex::new(state), wake: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that all queues may have jobs, and when that is noted next if nothing says so before.
    pub(super) fn look(&self, next: Duration) {
        self.lock().next_look = next;
        self.expect_jobs(None);
    }

    /// What the node does for its queues, but for outcomes that wait to be stored: the table does not know them.
    pub(super) fn activity(&self, now: Duration) -> Vec<QueueActivity> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let state = self.lock();
        let next_look = state.next_look.saturating_sub(now);
        let activity = |queue: &QueueSlots| QueueActivity {
            queue: queue.name.clone(),
            slots: count(queue.slots),
            running: count(queue.running),
            waiting: count(queue.waiting.len()),
            unstored: 0,
            asking: count(queue.asked),
            last_claim: queue.last_claim,
            next_look,
        };
        state.queues.iter().filter(|queue| !queue.is_gone()).map(activity).collect()
    }

    /// Notes that queues may have jobs; `None`: all of them.
    pub(super) fn expect_jobs(&self, queues: Option<&[QueueName]>) {
        let mut concerned = false;
        for queue in &mut self.lock().queues {
            if queues.is_none_or(|queues| queues.contains(&queue.name)) {
                queue.may_have_jobs = true;
                concerned = true;
            }
        }
        if concerned {
            self.wake.notify_one();
        }
    }

    /// What to claim now, if anything. The queues asked for are taken to be empty until a claim or a hint says
    /// otherwise.
    pub(super) fn plan(&self, backlog: Backlog) -> Option<ClaimPlan> {
        let mut state = self.lock();
        if !state.open || state.sent >= SENT_MAX {
            return None;
        }
        let (count, first) = (state.queues.len(), state.first_queue);
        let mut room = self.claim.min(state.free_claims(self.claim, backlog));
        let (mut queues, mut ahead) = (Vec::new(), Vec::new());
        for offset in 0..count {
            let queue = &mut state.queues[(first + offset) % count];
            let want = queue.want(self.claim).min(room);
            if want > 0 {
                let free = queue.free();
                if want > free {
                    ahead.push((queue.name.clone(), want - free));
                }
                queue.may_have_jobs = false;
                queue.asked += want;
                room -= want;
                queues.push((queue.name.clone(), want));
            }
        }
        if queues.is_empty() {
            return None;
        }
        state.first_queue = (first + 1) % count;
        let suspects = if planted::is(Defect::SuspectsTogether) {
            usize::MAX
        } else {
            usize::from(state.suspect.is_none() && !state.suspect_asked)
        };
        state.claimed_without_suspect |= state.suspect_asked;
        state.suspect_asked |= suspects > 0;
        state.sent += 1;
        Some(ClaimPlan { queues, ahead, suspects })
    }

    /// Whether the node may hold more beside outcomes that are not stored yet.
    pub(super) fn has_room(&self, backlog: Backlog) -> bool {
        self.lock().free_claims(self.claim, backlog) > 0
    }

    /// A claim has no answer: what its plan asked for may be asked for again.
    pub(super) fn claim_failed(&self, plan: &ClaimPlan) {
        self.lock().answered(plan);
    }

    /// Takes claimed jobs in; returns those whose slot is free now, with the number of their queue. The second list has those that
    /// are given back: all if the table is closed, and those of queues that are not served any more. `at` is when the store claimed them.
    pub(super) fn admit(
        &self,
        plan: &ClaimPlan,
        works: Vec<UnstartedJob>,
        at: Timestamp,
    ) -> (Vec<(usize, UnstartedJob)>, Vec<UnstartedJob>) {
        let mut state = self.lock();
        state.answered(plan);
        if !state.open {
            return (Vec::new(), works);
        }
        let QueueTable { queues, suspect, .. } = &mut *state;
        let mut came = vec![0_usize; queues.len()];
        let mut for_free = vec![false; queues.len()];
        let mut refused = Vec::new();
        for work in works {
            // A store gives only what was asked for; a job of another queue would have no slot.
            let Some(number) = queues.iter().position(|queue| queue.name == work.run.info.queue) else {
                continue;
            };
            if queues[number].slots == 0 {
                refused.push(work);
                continue;
            }
            came[number] += 1;
            // As far as a claim tells: its node was lost.
            for_free[number] |= !work.ahead && work.run.claim.number > 1;
            // So are jobs with limits.
            for_free[number] |= !work.run.info.options().limits.is_empty();
            queues[number].moved = true;
            if work.run.suspect {
                *suspect = Some(work.run.info.id);
                queues[number].waiting.push_front(work);
            } else if work.ahead {
                queues[number].waiting.push_back(work);
            } else {
                // If this node is lost, that counts as its crash: so it is started before all that is ahead.
                let first = queues[number].waiting.iter().position(|waits| waits.ahead);
                let line = &mut queues[number].waiting;
                line.insert(first.unwrap_or(line.len()), work);
            }
        }
        let mut start = Vec::new();
        for (number, queue) in queues.iter_mut().enumerate() {
            let asked = plan.queues.iter().find(|(name, _)| *name == queue.name).map_or(0, |(_, want)| *want);
            if asked > 0 {
                let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                queue.last_claim = Some(LastClaim { asked: count(asked), got: count(came[number]), at });
                queue.last_claim_full = came[number] >= asked;
                queue.may_have_jobs |= queue.last_claim_full;
                let ahead = plan.ahead.iter().any(|(name, _)| *name == queue.name);
                queue.left_behind = for_free[number] && ahead && !queue.last_claim_full;
            }
            while queue.running < queue.slots {
                let Some(work) = queue.waiting.pop_front() else { break };
                queue.running += 1;
                start.push((number, work));
            }
        }
        (start, refused)
    }

    /// Gives a slot back after a job that took this long; returns the next job for it, if one waits.
    pub(super) fn next(&self, at: usize, took: Duration) -> Option<UnstartedJob> {
        let mut state = self.lock();
        let may = state.sent < SENT_MAX;
        let queue = &mut state.queues[at];
        let took = took.as_secs_f64();
        queue.mean_seconds += (took - queue.mean_seconds) * WEIGHT;
        // With fewer slots than before, this one may be gone.
        let next = if queue.running > queue.slots { None } else { queue.waiting.pop_front() };
        queue.moved = true;
        if next.is_none() {
            queue.running -= 1;
        }
        // There is a slot for one of them.
        queue.may_have_jobs |= std::mem::take(&mut queue.left_behind);
        if may && queue.want(self.claim) > 0 {
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
            self.expect_jobs(None);
        }
    }

    /// Removes jobs that wait behind others that take longer than expected, so that another node can run them: all of a
    /// queue in which nothing has moved since the last look.
    pub(super) fn overdue(&self) -> Vec<UnstartedJob> {
        let mut state = self.lock();
        let QueueTable { queues, suspect, .. } = &mut *state;
        let mut overdue = Vec::new();
        for queue in queues {
            if !std::mem::take(&mut queue.moved) && !queue.waiting.is_empty() {
                // Slow enough that nothing is claimed ahead until jobs have been quick again.
                queue.mean_seconds = slow_mean(queue.slots);
                overdue.extend(queue.waiting.drain(..));
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
        let QueueTable { queues, suspect, .. } = &mut *state;
        for queue in queues {
            queue.waiting.retain(|work| {
                let stale = work.run.node != node;
                if stale && *suspect == Some(work.run.info.id) {
                    *suspect = None;
                }
                !stale
            });
        }
    }

    /// Removes all jobs that wait.
    fn drain(&self) -> Vec<UnstartedJob> {
        let mut state = self.lock();
        state.suspect = None;
        state.queues.iter_mut().flat_map(|queue| queue.waiting.drain(..)).collect()
    }

    /// Takes no more jobs; returns those that wait.
    pub(super) fn close(&self) -> Vec<UnstartedJob> {
        self.lock().open = false;
        self.wake.notify_one();
        self.drain()
    }
}

#[cfg(test)]
mod tests;
