//! The desk: which queues have free slots, what waits for them on this node, and how much more to claim.
//!
//! Each queue has its slots and a short line of claimed jobs behind them, so that a slot that becomes free need not wait
//! for the store. That line holds about [`PREFETCH`] of work, judged by how long jobs of the queue took lately: a node
//! must not sit on jobs that another could run. Large inputs are not in it: they are read when their handlers start.
//!
//! # Invariants
//! - No more jobs of a queue run than it has slots.
//! - At most one suspect is on the desk, or ended with its outcome not stored yet.
//! - What was claimed for a free slot starts before what was claimed ahead, and no more is asked for while it waits: the death of
//!   the node would count as its crash.
//! - A queue that a claim found empty is not asked again until something says that it may have jobs. A claim may leave jobs behind
//!   whose nodes were lost, because they are for free slots only: then a slot that becomes free says so.
//! - While a claim is on its way a queue is asked for more only if the last answer was all that had been asked for.
//! - With what it asks for, a node has at most its slots and what may wait behind them; and beside that as many outcomes that
//!   are not stored yet, or none if the store does not take them. So it never holds more than twice as many claims.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::id::{Claim, JobId, NodeNo};
use mainspring_core::journal::{Journal, Value};
use mainspring_core::name::QueueName;
use mainspring_core::planted::{self, Defect};
use tokio::sync::Notify;

use crate::context::Run;
use crate::sync::{Mutex, MutexGuard};

/// How much work may wait on this node: long enough to hide the way to the store, short enough that nobody minds.
const PREFETCH: Duration = Duration::from_millis(50);
/// Claims that may be on their way.
pub(super) const SENT_MAX: usize = 2;
/// The weight of the latest job in the moving average of durations: about the last sixteen count.
const WEIGHT: f64 = 1.0 / 16.0;

/// A claimed job with what is needed to start it.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) run: Arc<Run>,
    pub(super) input: Value,
    pub(super) journal: Option<Box<Journal>>,
    /// Whether it was claimed for a slot that was not free.
    pub(super) ahead: bool,
}

pub(super) struct Desk {
    /// Jobs that one claim takes at most. However short they are, two claims' worth may wait per queue.
    claim: usize,
    state: Mutex<State>,
    /// Told when there may be something to claim.
    pub(super) wake: Notify,
}

struct State {
    queues: Vec<Served>,
    suspect: Option<JobId>,
    /// Whether a claim that may bring one is on its way, and whether another went out meanwhile that may not.
    awaited: bool,
    passed_over: bool,
    /// Claims on their way.
    sent: usize,
    /// Which queue comes first in the next claim: all get their turn.
    turn: usize,
    open: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all combinations occur")]
struct Served {
    name: QueueName,
    slots: usize,
    running: usize,
    waiting: VecDeque<Work>,
    /// Jobs that claims on their way ask for.
    asked: usize,
    /// Whether the last answer was all that had been asked for.
    plenty: bool,
    /// Moving average of how long a job takes, in seconds. Slow to begin with: one quick job says little about the next.
    pace: f64,
    /// Whether the store may have jobs for it.
    hopeful: bool,
    /// Whether the last answer may have left jobs behind that are claimed for free slots only.
    left_behind: bool,
    /// Whether its line has moved since the last look at it.
    moved: bool,
}

impl Served {
    /// How many jobs should be on the desk.
    fn target(&self, claim: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and capped right away"
        )]
        let ahead = (PREFETCH.as_secs_f64() / self.pace.max(1e-9) * self.slots as f64) as usize;
        self.slots + ahead.min(2 * claim)
    }

    /// How many jobs it has, or has asked for.
    fn here(&self) -> usize {
        self.running + self.waiting.len() + self.asked
    }

    /// Slots that nothing runs in, waits for or was asked for.
    fn free(&self) -> usize {
        self.slots.saturating_sub(self.here())
    }

    /// How many jobs to ask for now; none while one waits that is not ahead. Small refills wait until half of the line is gone; and one that goes out before the
    /// last claim is answered is to be worth its commit.
    fn want(&self, claim: usize) -> usize {
        // The loss of this node would count as its crash: it is to start before others of its kind come.
        if self.waiting.front().is_some_and(|work| !work.ahead) {
            return 0;
        }
        let target = self.target(claim);
        let want = target.saturating_sub(self.here());
        let (worth, least) = if self.asked > 0 {
            (self.plenty, claim.div_ceil(2))
        } else {
            (self.hopeful, if self.waiting.is_empty() { 0 } else { target / 2 })
        };
        if worth && want >= least { want } else { 0 }
    }
}

/// A pace at which nothing is claimed ahead.
fn slow(slots: usize) -> f64 {
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
pub(super) struct Plan {
    pub(super) queues: Vec<(QueueName, usize)>,
    /// How many of them are for slots that are not free.
    pub(super) ahead: Vec<(QueueName, usize)>,
    pub(super) suspects: usize,
}

impl State {
    /// How many more claims the node may hold.
    fn room(&self, claim: usize, backlog: Backlog) -> usize {
        // Nearly always.
        if backlog.count == 0 {
            return usize::MAX;
        }
        let most: usize = self.queues.iter().map(|served| served.target(claim)).sum();
        let here: usize = self.queues.iter().map(Served::here).sum();
        if backlog.stuck {
            most.saturating_sub(here + backlog.count)
        } else if backlog.count > most {
            0
        } else {
            usize::MAX
        }
    }

    /// What a plan asked for is not on its way any more.
    fn answered(&mut self, plan: &Plan) {
        for (queue, want) in &plan.queues {
            if let Some(served) = self.queues.iter_mut().find(|served| served.name == *queue) {
                served.asked = served.asked.saturating_sub(*want);
            }
        }
        self.sent = self.sent.saturating_sub(1);
        if plan.suspects > 0 {
            self.awaited = false;
            if std::mem::take(&mut self.passed_over) {
                // What was asked meanwhile may have left a suspect where it is.
                self.queues.iter_mut().for_each(|served| served.hopeful = true);
            }
        }
    }
}

impl Desk {
    pub(super) fn new(queues: &[(QueueName, u32)], claim: usize) -> Self {
        let served = |(name, slots): &(QueueName, u32)| Served {
            name: name.clone(),
            slots: usize::try_from(*slots).unwrap_or(usize::MAX),
            running: 0,
            waiting: VecDeque::new(),
            asked: 0,
            plenty: false,
            pace: slow(usize::try_from(*slots).unwrap_or(usize::MAX)),
            hopeful: true,
            left_behind: false,
            moved: false,
        };
        let queues = queues.iter().map(served).collect();
        let state =
            State { queues, suspect: None, awaited: false, passed_over: false, sent: 0, turn: 0, open: true };
        Desk { claim, state: Mutex::new(state), wake: Notify::new() }
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
    pub(super) fn plan(&self, backlog: Backlog) -> Option<Plan> {
        let mut state = self.lock();
        if !state.open || state.sent >= SENT_MAX {
            return None;
        }
        let (count, turn) = (state.queues.len(), state.turn);
        let mut room = self.claim.min(state.room(self.claim, backlog));
        let (mut queues, mut ahead) = (Vec::new(), Vec::new());
        for offset in 0..count {
            let served = &mut state.queues[(turn + offset) % count];
            let want = served.want(self.claim).min(room);
            if want > 0 {
                let free = served.free();
                if want > free {
                    ahead.push((served.name.clone(), want - free));
                }
                served.hopeful = false;
                served.asked += want;
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
            usize::from(state.suspect.is_none() && !state.awaited)
        };
        state.passed_over |= state.awaited;
        state.awaited |= suspects > 0;
        state.sent += 1;
        Some(Plan { queues, ahead, suspects })
    }

    /// A plan to which there is no answer.
    pub(super) fn missed(&self, plan: &Plan) {
        self.lock().answered(plan);
    }

    /// Puts claimed jobs on the desk; returns those whose slot is free now, with the number of their queue. Jobs that
    /// come when the desk is closed come back unstarted in the second list.
    pub(super) fn put(&self, plan: &Plan, works: Vec<Work>) -> (Vec<(usize, Work)>, Vec<Work>) {
        let mut state = self.lock();
        state.answered(plan);
        if !state.open {
            return (Vec::new(), works);
        }
        let State { queues, suspect, .. } = &mut *state;
        let mut came = vec![0_usize; queues.len()];
        let mut lost = vec![false; queues.len()];
        for work in works {
            // A store gives only what was asked for; a job of another queue would have no slot.
            let Some(at) = queues.iter().position(|served| served.name == work.run.info.queue) else {
                continue;
            };
            came[at] += 1;
            // As far as a claim tells: its node was lost.
            lost[at] |= !work.ahead && work.run.claim.number > 1;
            queues[at].moved = true;
            if work.run.suspect {
                *suspect = Some(work.run.info.id);
                queues[at].waiting.push_front(work);
            } else if work.ahead {
                queues[at].waiting.push_back(work);
            } else {
                // If this node is lost, that counts as its crash: so it is started before all that is ahead.
                let first = queues[at].waiting.iter().position(|waits| waits.ahead);
                let line = &mut queues[at].waiting;
                line.insert(first.unwrap_or(line.len()), work);
            }
        }
        let mut start = Vec::new();
        for (at, served) in queues.iter_mut().enumerate() {
            let asked =
                plan.queues.iter().find(|(name, _)| *name == served.name).map_or(0, |(_, want)| *want);
            if asked > 0 {
                served.plenty = came[at] >= asked;
                served.hopeful |= served.plenty;
                let ahead = plan.ahead.iter().any(|(name, _)| *name == served.name);
                served.left_behind = lost[at] && ahead && !served.plenty;
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
        let may = state.sent < SENT_MAX;
        let served = &mut state.queues[at];
        let took = took.as_secs_f64();
        served.pace += (took - served.pace) * WEIGHT;
        let next = served.waiting.pop_front();
        served.moved = true;
        if next.is_none() {
            served.running -= 1;
        }
        // There is a slot for one of them.
        served.hopeful |= std::mem::take(&mut served.left_behind);
        if may && served.want(self.claim) > 0 {
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

#[cfg(test)]
mod tests {
    use mainspring_core::id::Row;
    use mainspring_core::job::{Options, Priority};
    use mainspring_core::name::Kind;
    use mainspring_core::store::Claimed;
    use mainspring_core::time::Timestamp;

    use super::*;

    const CLAIM: usize = 4;

    fn desk() -> Desk {
        Desk::new(&[(QueueName::new("q").expect("a name"), 10)], CLAIM)
    }

    fn works(count: usize) -> Vec<Work> {
        let claimed = |n: usize| Claimed {
            ahead: false,
            claim: Claim {
                id: JobId::from_bytes([u8::try_from(n).unwrap_or(0); 16]),
                row: Row(0),
                number: 1,
            },
            kind: Kind::new("k").expect("a kind"),
            queue: QueueName::new("q").expect("a name"),
            priority: Priority::default(),
            input: Value::Here(Vec::new()),
            failures: 0,
            crashes: 0,
            crashed_micros: 0,
            created_at: Timestamp::EPOCH,
            deadline: None,
            options: Options::default(),
            journal: None,
        };
        let work = |n| Work {
            run: Arc::new(Run::new(
                &mut claimed(n),
                NodeNo(1),
                Arc::default(),
                Timestamp::EPOCH,
                Duration::ZERO,
            )),
            input: Value::Here(Vec::new()),
            journal: None,
            ahead: false,
        };
        (0..count).map(work).collect()
    }

    /// What a plan asks for: jobs and suspects.
    fn asked(plan: Option<&Plan>) -> Option<(usize, usize)> {
        plan.map(|plan| (plan.queues[0].1, plan.suspects))
    }

    #[test]
    fn a_claim_goes_ahead_of_an_answer_only_where_there_is_plenty() {
        let desk = desk();
        let first = desk.plan(Backlog::default());
        assert_eq!(asked(first.as_ref()), Some((4, 1)));
        assert_eq!(
            asked(desk.plan(Backlog::default()).as_ref()),
            None,
            "nobody knows yet whether there is more"
        );
        desk.put(&first.expect("a plan"), works(4));
        let second = desk.plan(Backlog::default());
        assert_eq!(asked(second.as_ref()), Some((4, 1)));
        let third = desk.plan(Backlog::default());
        assert_eq!(asked(third.as_ref()), Some((2, 0)), "no second suspect while one may be on its way");
        desk.put(&second.expect("a plan"), works(4));
        desk.put(&third.expect("a plan"), works(1));
        let fourth = desk.plan(Backlog::default());
        assert_eq!(
            asked(fourth.as_ref()),
            Some((1, 1)),
            "the second was full, and a suspect may have been passed over"
        );
        desk.put(&fourth.expect("a plan"), works(0));
        assert_eq!(
            asked(desk.plan(Backlog::default()).as_ref()),
            None,
            "it is empty, until something says otherwise"
        );
        desk.hope(None);
        assert_eq!(asked(desk.plan(Backlog::default()).as_ref()), Some((1, 1)));
    }

    #[test]
    fn what_exceeds_the_free_slots_is_asked_for_ahead() {
        let desk = Desk::new(&[(QueueName::new("q").expect("a name"), 2)], 4);
        let ahead = |plan: &Plan| plan.ahead.first().map_or(0, |ahead| ahead.1);
        let first = desk.plan(Backlog::default()).expect("a plan");
        assert_eq!((asked(Some(&first)), ahead(&first)), (Some((2, 1)), 0));
        let (started, _) = desk.put(&first, works(2));
        for _ in 0..200 {
            desk.lock().queues[0].pace *= 0.9;
        }
        let second = desk.plan(Backlog::default()).expect("a plan");
        assert_eq!((asked(Some(&second)), ahead(&second)), (Some((4, 1)), 4), "no slot is free");
        let mut works = works(3);
        works[0].ahead = true;
        works[1].ahead = true;
        desk.put(&second, works);
        desk.hope(None);
        assert_eq!(desk.plan(Backlog::default()), None, "one waits whose crash would count");
        let next = desk.next(0, Duration::from_millis(1)).expect("one waits");
        assert!(!next.ahead, "it starts before what was claimed ahead");
        let third = desk.plan(Backlog::default()).expect("a plan");
        assert_eq!((asked(Some(&third)).map(|asked| asked.0), ahead(&third)), (Some(4), 4));
        assert_eq!(started.len(), 2);
    }

    #[test]
    fn what_is_not_answered_is_asked_for_again() {
        let desk = desk();
        let missed = desk.plan(Backlog::default()).expect("a plan");
        desk.missed(&missed);
        assert_eq!(asked(desk.plan(Backlog::default()).as_ref()), None, "it waits for a hint");
        desk.hope(None);
        assert_eq!(asked(desk.plan(Backlog::default()).as_ref()), Some((4, 1)));
    }
}
