//! Tasks whose rest can be waited for, and which can die together.
//!
//! Every task of an engine under test is wrapped. The wrapper's waker knows when the task has been woken, its poll knows
//! when it has been polled: a task is *busy* in between. When no task is busy, nothing more happens until time passes,
//! the test does something, or something from outside (a socket, another task, a thread) wakes one of them.
//!
//! A task belongs to the group of whoever started it. Killing a group drops its tasks where they stand, as a crash
//! would.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use mainspring_core::seam::{Pending, Spawn, Task};
use tokio::sync::Notify;

thread_local! {
    /// The group of the task that is being polled on this thread.
    static CURRENT: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
}

/// How many tasks are busy.
#[derive(Default)]
pub(super) struct BusyTasks {
    tasks: AtomicUsize,
    polls: AtomicU64,
    changed: Notify,
}

impl BusyTasks {
    fn begin(&self) {
        if self.tasks.fetch_add(1, Ordering::SeqCst) == 0 {
            self.changed.notify_waiters();
        }
    }

    fn end(&self) {
        if self.tasks.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.changed.notify_waiters();
        }
    }

    /// How often tasks have been polled so far.
    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::SeqCst)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.tasks.load(Ordering::SeqCst) == 0
    }

    /// Waits until no task is busy.
    pub(super) async fn quiet(&self) {
        self.changes(|| self.is_quiet()).await;
    }

    /// Waits until a task is busy, or was since there were so many polls. An executor may poll all busy tasks before it polls the test
    /// that waits here: then they rest again when the test looks.
    pub(super) async fn since(&self, polls: u64) {
        self.changes(|| !self.is_quiet() || self.polls() != polls).await;
    }

    async fn changes(&self, enough: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if enough() {
                return;
            }
            changed.await;
        }
    }
}

/// Tasks that live and die together.
#[derive(Default)]
pub(super) struct Group {
    dead: AtomicBool,
    tasks: Mutex<Vec<Weak<Tracked>>>,
}

impl Group {
    /// Drops all its tasks at their next poll, which is at once, and all that they would still start.
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks.iter().filter_map(Weak::upgrade) {
            task.wake();
        }
    }

    fn add(&self, task: &Arc<Tracked>) {
        let mut tasks = lock(&self.tasks);
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| task.strong_count() > 0);
        }
        tasks.push(Arc::downgrade(task));
    }

    /// Polls a future as a member of this group: what it starts belongs to the group.
    pub(super) async fn scope<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| within(self, || future.as_mut().poll(cx))).await
    }
}

fn within<T>(group: &Arc<Group>, body: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<Group>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.replace(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(Arc::clone(group))));
    body()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts wrapped tasks on another executor.
pub(super) struct Tasks {
    executor: Arc<dyn Spawn>,
    busy: Arc<BusyTasks>,
    /// The group of tasks that no other task starts.
    root: Arc<Group>,
}

impl Tasks {
    pub(super) fn new(executor: Arc<dyn Spawn>, busy: Arc<BusyTasks>) -> Self {
        Tasks { executor, busy, root: Arc::default() }
    }
}

impl Spawn for Tasks {
    fn spawn(&self, task: Pending<'static, ()>) -> Task {
        let group =
            CURRENT.with_borrow(|group| group.as_ref().map_or_else(|| Arc::clone(&self.root), Arc::clone));
        self.busy.begin();
        let tracked = Arc::new(Tracked {
            busy_tasks: Arc::clone(&self.busy),
            aborted: AtomicBool::new(false),
            state: Mutex::new(TaskState { stage: Stage::Woken, executor: None }),
        });
        group.add(&tracked);
        let handle = Arc::downgrade(&tracked);
        self.executor.spawn(Box::pin(Wrapper { task: Some(task), tracked, group }));
        Task::new(move || {
            if let Some(tracked) = handle.upgrade() {
                tracked.aborted.store(true, Ordering::SeqCst);
                tracked.wake();
            }
        })
    }

    fn spawn_dedicated(&self, _name: &str, task: Pending<'static, ()>) -> Task {
        // Nothing keeps the executor of a test busy for as long as a lease of its clock.
        self.spawn(task)
    }
}

/// Where a task is between being woken and being polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Resting,
    Woken,
    Polled,
    /// Woken while it was polled.
    PolledAgain,
    Ended,
}

struct Tracked {
    busy_tasks: Arc<BusyTasks>,
    aborted: AtomicBool,
    state: Mutex<TaskState>,
}

struct TaskState {
    stage: Stage,
    /// Wakes the wrapper in its executor.
    executor: Option<Waker>,
}

impl Tracked {
    /// Moves on from one stage to another; counts the task while it is busy.
    fn go(&self, next: impl FnOnce(Stage) -> Stage) -> Option<Waker> {
        let mut state = lock(&self.state);
        let was = state.stage;
        state.stage = next(was);
        let is_busy = |stage| matches!(stage, Stage::Woken | Stage::Polled | Stage::PolledAgain);
        match (is_busy(was), is_busy(state.stage)) {
            (false, true) => self.busy_tasks.begin(),
            (true, false) => self.busy_tasks.end(),
            (true, true) | (false, false) => {}
        }
        state.executor.clone()
    }
}

impl Wake for Tracked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let executor = self.go(|stage| match stage {
            Stage::Resting => Stage::Woken,
            Stage::Polled => Stage::PolledAgain,
            Stage::Woken | Stage::PolledAgain | Stage::Ended => stage,
        });
        if let Some(executor) = executor {
            executor.wake();
        }
    }
}

/// What the executor polls.
struct Wrapper {
    task: Option<Pending<'static, ()>>,
    tracked: Arc<Tracked>,
    group: Arc<Group>,
}

impl Future for Wrapper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        lock(&self.tracked.state).executor = Some(cx.waker().clone());
        self.tracked.go(|_| Stage::Polled);
        self.tracked.busy_tasks.polls.fetch_add(1, Ordering::SeqCst);
        let doomed = self.group.dead.load(Ordering::SeqCst) || self.tracked.aborted.load(Ordering::SeqCst);
        if doomed {
            let task = self.task.take();
            within(&self.group, || drop(task));
        }
        let Wrapper { task, tracked, group } = &mut *self;
        let Some(running) = task else {
            tracked.go(|_| Stage::Ended);
            return Poll::Ready(());
        };
        let waker = Waker::from(Arc::clone(tracked));
        let poll = within(group, || running.as_mut().poll(&mut Context::from_waker(&waker)));
        tracked.go(|stage| match (poll, stage) {
            (Poll::Ready(()), _) => Stage::Ended,
            (Poll::Pending, Stage::PolledAgain) => Stage::Woken,
            (Poll::Pending, _) => Stage::Resting,
        });
        poll
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        // Also when the executor itself goes, or when the task panicked.
        let task = self.task.take();
        within(&self.group, || drop(task));
        self.tracked.go(|_| Stage::Ended);
    }
}
