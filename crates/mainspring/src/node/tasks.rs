//! The tasks of a node: each part that lives as long as the node is registered by its name before it runs.
//!
//! Nobody would notice a part that has stopped, until its work is missed. So the log names a task that panics, or that ends although
//! the node is not closing. A node that shuts down waits for all of them, and names those that stay.
//!
//! # Invariants
//! - A task is in the register from before its first poll until it has ended, or was dropped with its executor.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use mainspring_core::seam::Pending;
use tokio::sync::{Notify, watch};

use super::Phase;
use crate::sync::{Mutex, MutexGuard};

/// The tasks that a node has started, by their names.
pub(super) struct NodeTasks {
    running: Mutex<BTreeSet<&'static str>>,
    ended: Notify,
    phase: watch::Receiver<Phase>,
}

impl NodeTasks {
    pub(super) fn new(phase: watch::Receiver<Phase>) -> Self {
        NodeTasks { running: Mutex::default(), ended: Notify::new(), phase }
    }

    /// Registers a task. The caller starts the future that this returns.
    pub(super) fn register(
        self: &Arc<Self>,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Pending<'static, ()> {
        let is_new = self.running().insert(name);
        assert!(is_new, "a node has one task of each name");
        Box::pin(NodeTask { tasks: Arc::clone(self), name, task: Box::pin(task), is_polled: false })
    }

    /// Waits until no task is left but the one that asks.
    pub(super) async fn others_ended(&self, own: &str) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // Registered before the look, so that an end in between is not missed.
            ended.as_mut().enable();
            if self.others(own).is_empty() {
                return;
            }
            ended.await;
        }
    }

    /// The names of all tasks that have not ended but the one that asks.
    pub(super) fn others(&self, own: &str) -> Vec<&'static str> {
        self.running().iter().copied().filter(|name| *name != own).collect()
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered task, until this is dropped.
struct NodeTask {
    tasks: Arc<NodeTasks>,
    name: &'static str,
    task: Pending<'static, ()>,
    /// Whether a poll has begun and not returned.
    is_polled: bool,
}

impl Future for NodeTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.is_polled = true;
        let poll = self.task.as_mut().poll(context);
        self.is_polled = false;
        if poll.is_ready() && *self.tasks.phase.borrow() == Phase::Open {
            tracing::error!(task = self.name, "task of the node ended early");
        }
        poll
    }
}

impl Drop for NodeTask {
    fn drop(&mut self) {
        if self.is_polled {
            tracing::error!(task = self.name, "task of the node panicked; the node continues without it");
        }
        self.tasks.running().remove(self.name);
        self.tasks.ended.notify_waiters();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    use super::*;

    fn register() -> (watch::Sender<Phase>, Arc<NodeTasks>) {
        let phase = watch::Sender::new(Phase::Open);
        let tasks = Arc::new(NodeTasks::new(phase.subscribe()));
        (phase, tasks)
    }

    fn poll(future: &mut Pending<'_, ()>) -> Poll<()> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// What is logged meanwhile.
    fn logged(body: impl FnOnce()) -> String {
        let mut file = tempfile::tempfile().expect("a file");
        let writer: Arc<File> = Arc::new(file.try_clone().expect("a second handle"));
        let log = tracing_subscriber::fmt().with_writer(writer).with_ansi(false).without_time().finish();
        tracing::subscriber::with_default(log, body);
        let mut text = String::new();
        file.rewind().expect("its beginning");
        file.read_to_string(&mut text).expect("text");
        text
    }

    #[test]
    fn a_task_that_ends_early_is_named() {
        let (phase, tasks) = register();
        let mut early = tasks.register("claimer", async {});
        let log = logged(|| assert!(poll(&mut early).is_ready()));
        assert!(log.contains("ERROR") && log.contains("task=\"claimer\""), "{log}");

        phase.send_replace(Phase::Draining);
        let mut in_time = tasks.register("keeper", async {});
        assert_eq!(logged(|| assert!(poll(&mut in_time).is_ready())), "", "the node shuts down");
        drop(in_time);
    }

    #[test]
    fn a_task_that_panics_is_named_and_the_panic_goes_on() {
        let (_phase, tasks) = register();
        let task = tasks.register("finisher", async { std::panic::panic_any("not printed") });
        let log = logged(|| {
            let mut task = task;
            let poll = move || poll(&mut task);
            assert!(catch_unwind(AssertUnwindSafe(poll)).is_err(), "its executor sees the panic");
        });
        assert!(log.contains("panicked") && log.contains("task=\"finisher\""), "{log}");
        assert!(tasks.others("").is_empty());
    }

    #[test]
    fn all_others_are_waited_for_from_before_they_run() {
        let (_phase, tasks) = register();
        let own = tasks.register("supervisor", std::future::pending());
        let others = ["keeper", "claimer"].map(|name| tasks.register(name, std::future::pending()));
        let mut ended: Pending<'_, ()> = Box::pin(tasks.others_ended("supervisor"));
        assert_eq!(tasks.others("supervisor"), ["claimer", "keeper"], "none of them has been polled");
        let [keeper, claimer] = others;
        assert!(poll(&mut ended).is_pending());
        drop(keeper);
        assert!(poll(&mut ended).is_pending());
        assert_eq!(logged(|| drop(claimer)), "", "an executor that goes is no panic");
        assert!(poll(&mut ended).is_ready());
        drop(own);
    }
}
