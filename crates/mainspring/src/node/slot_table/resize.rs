//! Slots that change while the node runs: queues that are added and removed, and given more slots or fewer.

use mainspring_core::name::QueueName;
use mainspring_core::{Error, Result, bounds};

use super::{QueueSlots, QueueTable, SlotTable, UnstartedJob, slow_mean};

/// What a change of slots leads to.
#[derive(Debug, Default)]
pub(in crate::node) struct Resized {
    /// Jobs for which there is a slot now, with the places of their queues.
    pub(in crate::node) start: Vec<(usize, UnstartedJob)>,
    /// Jobs that waited for slots that are gone: another node may run them.
    pub(in crate::node) release: Vec<UnstartedJob>,
}

impl QueueSlots {
    /// Whether it is not served any more and nothing of it is left.
    pub(super) fn is_gone(&self) -> bool {
        self.slots == 0 && self.present() == 0
    }
}

impl SlotTable {
    /// The queues that the node serves, and its slots for each.
    pub(in crate::node) fn serving(&self) -> Vec<(QueueName, u32)> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let state = self.lock();
        let served = state.queues.iter().filter(|queue| queue.slots > 0);
        served.map(|queue| (queue.name.clone(), count(queue.slots))).collect()
    }

    /// Serves a queue with this many slots from now on; with 0, not any more. Running jobs keep their slots until they end.
    ///
    /// # Errors
    /// One queue more than a node may serve, or the last one is taken away: nothing has changed.
    pub(in crate::node) fn set_slots(&self, name: &QueueName, slots: u32) -> Result<Resized> {
        let mut state = self.lock();
        if !state.open {
            return Ok(Resized::default());
        }
        let served = state.queues.iter().filter(|queue| queue.slots > 0 && queue.name != *name).count();
        if slots == 0 && served == 0 {
            let why = format!("`{name}` is the last that the node serves; shut the node down instead");
            return Err(Error::Invalid { what: "queue", why });
        }
        if slots > 0 && served >= bounds::NODE_QUEUES {
            let (size, limit) = (served + 1, bounds::NODE_QUEUES);
            return Err(Error::TooLarge { what: "queues of a node", size, limit });
        }
        let claim = self.claim;
        let QueueTable { queues, suspect, .. } = &mut *state;
        let at = queues.iter().position(|queue| queue.name == *name);
        let Some(at) = at.or_else(|| queues.iter().position(QueueSlots::is_gone)) else {
            queues.push(QueueSlots::new(name.clone(), slots));
            self.wake.notify_one();
            return Ok(Resized::default());
        };
        let queue = &mut queues[at];
        if queue.name != *name {
            *queue = QueueSlots::new(name.clone(), slots);
        }
        let before = std::mem::replace(&mut queue.slots, usize::try_from(slots).unwrap_or(usize::MAX));
        let mut resized = Resized::default();
        if queue.slots > before {
            // How quick jobs are says how many wait for a slot: nothing says it of this many slots yet.
            queue.mean_seconds = queue.mean_seconds.max(slow_mean(queue.slots));
            queue.may_have_jobs = true;
        }
        while queue.running < queue.slots {
            let Some(work) = queue.waiting.pop_front() else { break };
            queue.running += 1;
            resized.start.push((at, work));
        }
        // Those that were claimed for a free slot are to begin here, unless no slot is left at all.
        let spare = |queue: &QueueSlots| {
            let excess = queue.running + queue.waiting.len() > queue.target(claim);
            excess && (queue.slots == 0 || queue.waiting.back().is_some_and(|work| work.ahead))
        };
        while spare(queue) {
            let Some(work) = queue.waiting.pop_back() else { break };
            if *suspect == Some(work.run.info.id) {
                *suspect = None;
            }
            resized.release.push(work);
        }
        self.wake.notify_one();
        Ok(resized)
    }
}
