//! One thread, many nodes: an executor whose every choice comes from a seed.
//!
//! Of the tasks that could go on, a random one does: every interleaving that real threads could produce at awaits comes up
//! sooner or later. Tasks belong to groups, one per life of a node. A group can be paused, which is a process that is
//! stopped, and killed, between any two polls of its tasks, which is a process that dies.
//!
//! # Invariants
//! - Nothing depends on addresses, time of day or threads: the same seed gives the same polls in the same order.
//! - A killed group never runs again, nor does anything that it would still start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use mainspring_core::seam::{Pending, Rng, Spawn, Task};

use crate::history::Actor;
use crate::rng::SeededRng;

/// Polls at one moment of simulated time beyond which somebody runs in circles.
const SPINNING: usize = 2_000_000;

/// The executor. Clones are the same one.
#[derive(Clone)]
pub(super) struct Executor(Arc<Shared>);

struct Shared {
    rng: SeededRng,
    state: Mutex<State>,
    /// Tasks that were woken, each once, sorted. Apart from the rest: wakers run wherever they like.
    ready: Arc<Mutex<Vec<u64>>>,
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<u64, Entry>,
    last: u64,
    /// Groups that are stopped, with their tasks that were woken meanwhile.
    paused: BTreeMap<Actor, Vec<u64>>,
    dead: BTreeSet<Actor>,
    /// Groups that die after so many more polls.
    doomed: BTreeMap<Actor, usize>,
    /// The group of the task that is being polled.
    current: Option<Actor>,
}

struct Entry {
    group: Actor,
    /// Away while it is being polled.
    future: Option<Pending<'static, ()>>,
    waker: Arc<Wakes>,
}

struct Wakes {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            enter(&mut lock(&self.ready), self.id);
        }
    }
}

/// Puts a task among those that were woken, which are kept in the order of their numbers: in which order they were woken
/// may depend on anything. (Tokio's `watch` spreads those who wait at random.)
fn enter(ready: &mut Vec<u64>, id: u64) {
    if let Err(place) = ready.binary_search(&id) {
        ready.insert(place, id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    pub(super) fn new(seed: u64) -> Self {
        let shared = Shared { rng: SeededRng::new(seed), state: Mutex::default(), ready: Arc::default() };
        Executor(Arc::new(shared))
    }

    /// The way to start tasks in a group.
    pub(super) fn group(&self, group: Actor) -> Arc<dyn Spawn> {
        Arc::new(Group { executor: self.clone(), group })
    }

    /// Starts a task in a group; its number, unless the group is dead.
    pub(super) fn spawn(&self, group: Actor, future: Pending<'static, ()>) -> Option<u64> {
        let mut state = lock(&self.0.state);
        if state.dead.contains(&group) {
            // Dropped outside of the lock: it may hold anything.
            drop(state);
            drop(future);
            return None;
        }
        state.last += 1;
        let id = state.last;
        let waker = Arc::new(Wakes { id, queued: AtomicBool::new(true), ready: Arc::clone(&self.0.ready) });
        state.tasks.insert(id, Entry { group, future: Some(future), waker });
        enter(&mut lock(&self.0.ready), id);
        Some(id)
    }

    fn abort(&self, id: u64) {
        let entry = lock(&self.0.state).tasks.remove(&id);
        drop(entry);
    }

    /// Stops a group where it is.
    pub(super) fn pause(&self, group: Actor) {
        lock(&self.0.state).paused.entry(group).or_default();
    }

    /// Lets a stopped group go on.
    pub(super) fn resume(&self, group: Actor) {
        let woken = lock(&self.0.state).paused.remove(&group).unwrap_or_default();
        let mut ready = lock(&self.0.ready);
        for id in woken {
            enter(&mut ready, id);
        }
    }

    /// Ends a group at once: its tasks are dropped where they stand.
    pub(super) fn kill(&self, group: Actor) {
        let dropped: Vec<Entry> = {
            let mut state = lock(&self.0.state);
            state.dead.insert(group);
            state.paused.remove(&group);
            state.doomed.remove(&group);
            let ids: Vec<u64> =
                state.tasks.iter().filter(|(_, task)| task.group == group).map(|(id, _)| *id).collect();
            ids.into_iter().filter_map(|id| state.tasks.remove(&id)).collect()
        };
        drop(dropped);
    }

    /// Whether a group has been killed.
    pub(super) fn is_dead(&self, group: Actor) -> bool {
        lock(&self.0.state).dead.contains(&group)
    }

    /// Has a group killed after so many more polls of its tasks: in the middle of a moment.
    pub(super) fn doom(&self, group: Actor, polls: usize) {
        lock(&self.0.state).doomed.insert(group, polls);
    }

    /// Whether a group is dead, or will not see another poll: it does nothing that anybody could see.
    pub(super) fn is_gone(&self, group: Actor) -> bool {
        let state = lock(&self.0.state);
        state.dead.contains(&group) || state.doomed.get(&group) == Some(&0)
    }

    /// The group whose task is being polled.
    pub(super) fn current(&self) -> Option<Actor> {
        lock(&self.0.state).current
    }

    /// Polls until nothing can go on before time passes. Groups whose end has come are handed to `killed`.
    ///
    /// # Errors
    /// If that never happens.
    pub(super) fn run(&self, mut killed: impl FnMut(Actor)) -> Result<usize, String> {
        let mut polls = 0;
        while let Some(id) = self.next() {
            if let Some(doomed) = self.poll(id) {
                killed(doomed);
            }
            polls += 1;
            if polls > SPINNING {
                return Err(format!("{SPINNING} polls and no end at one moment: somebody runs in circles"));
            }
        }
        Ok(polls)
    }

    /// A random one of those that were woken.
    fn next(&self) -> Option<u64> {
        let mut state = lock(&self.0.state);
        let mut ready = lock(&self.0.ready);
        loop {
            if ready.is_empty() {
                return None;
            }
            let index = usize::try_from(self.0.rng.next_u64() >> 33).unwrap_or(0) % ready.len();
            let id = ready.remove(index);
            let Some(group) = state.tasks.get(&id).map(|task| task.group) else { continue };
            match state.paused.get_mut(&group) {
                Some(woken) => woken.push(id),
                None => return Some(id),
            }
        }
    }

    /// Polls a task. The group that is to die now, if its last poll this was.
    fn poll(&self, id: u64) -> Option<Actor> {
        let (mut future, waker, group) = {
            let mut state = lock(&self.0.state);
            let task = state.tasks.get_mut(&id)?;
            let (future, waker, group) = (task.future.take()?, Arc::clone(&task.waker), task.group);
            state.current = Some(group);
            (future, waker, group)
        };
        waker.queued.store(false, Ordering::SeqCst);
        let poll = future.as_mut().poll(&mut Context::from_waker(&Waker::from(waker)));
        let (over, doomed) = {
            let mut state = lock(&self.0.state);
            state.current = None;
            let doomed = match state.doomed.get_mut(&group) {
                Some(0) => true,
                Some(polls) => {
                    *polls -= 1;
                    false
                }
                None => false,
            };
            let over = match (poll, state.tasks.get_mut(&id)) {
                (Poll::Pending, Some(task)) => {
                    task.future = Some(future);
                    None
                }
                (Poll::Ready(()), _) => {
                    state.tasks.remove(&id);
                    Some(future)
                }
                // Aborted or killed while it was polled.
                (Poll::Pending, None) => Some(future),
            };
            (over, doomed)
        };
        drop(over);
        doomed.then_some(group)
    }
}

/// Starts tasks in one group.
struct Group {
    executor: Executor,
    group: Actor,
}

impl Spawn for Group {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        let (id, executor) = (self.executor.spawn(self.group, task), self.executor.clone());
        Task::new(move || {
            if let Some(id) = id {
                executor.abort(id);
            }
        })
    }

    fn spawn_dedicated(&self, _name: &str, task: Pending<'static, ()>) -> Task {
        // Nothing in a simulation keeps the executor busy while time passes.
        self.spawn(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks that each note their number, in the order in which they come.
    fn order(seed: u64, tweak: impl FnOnce(&Executor)) -> Vec<u32> {
        let executor = Executor::new(seed);
        let noted = Arc::new(Mutex::new(Vec::new()));
        for number in 0..8 {
            let noted = Arc::clone(&noted);
            let task = async move {
                lock(&noted).push(number);
                tokio::task::yield_now().await;
                lock(&noted).push(number);
            };
            executor.spawn(number % 2, Box::pin(task));
        }
        tweak(&executor);
        executor.run(|group| executor.kill(group)).expect("an end");
        lock(&noted).clone()
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(order(1, |_| ()), order(1, |_| ()));
        assert_ne!(order(1, |_| ()), order(2, |_| ()));
        assert_eq!(order(1, |_| ()).len(), 16);
    }

    #[test]
    fn paused_and_dead_groups_do_not_run() {
        let odd = order(3, |executor| executor.pause(0));
        assert!(odd.iter().all(|number| number % 2 == 1), "{odd:?}");
        let even = order(3, |executor| executor.kill(1));
        assert!(even.iter().all(|number| number % 2 == 0), "{even:?}");
    }

    #[test]
    fn a_doomed_group_dies_in_the_middle() {
        let noted = order(4, |executor| executor.doom(0, 2));
        let (even, odd): (Vec<u32>, Vec<u32>) = noted.iter().partition(|number| *number % 2 == 0);
        assert_eq!((even.len(), odd.len()), (3, 8));
    }
}
