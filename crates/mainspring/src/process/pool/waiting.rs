//! Jobs that wait for a child, and who has a job.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::context::Context;
use crate::handler::{Broken, Payload};
use crate::process::guarded::KillSwitch;
use crate::sync::{AtomicBool, Mutex, MutexGuard};

/// A job for a child.
pub(super) struct Request {
    pub(super) ctx: Arc<Context>,
    /// What the child is to read.
    pub(super) line: Vec<u8>,
    pub(super) hold: Arc<Hold>,
    /// Closed when its handler is gone.
    pub(super) reply: oneshot::Sender<Result<Payload, Broken>>,
}

/// Jobs in their order. The first idle child takes the first of them.
#[derive(Default)]
pub(super) struct Waiting {
    jobs: Mutex<VecDeque<Request>>,
    arrived: Notify,
}

impl Waiting {
    /// Adds a job; forgets those whose handlers are gone.
    pub(super) fn push(&self, request: Request) {
        let mut jobs = self.jobs();
        jobs.retain(|request| !request.reply.is_closed());
        jobs.push_back(request);
        drop(jobs);
        self.arrived.notify_one();
    }

    /// Puts back a job that its child has not begun.
    pub(super) fn put_back(&self, request: Request) {
        request.hold.give_back();
        self.jobs().push_front(request);
        self.arrived.notify_one();
    }

    /// Waits for a job. May be given up: then the job is left to others.
    pub(super) async fn next(&self) -> Request {
        loop {
            let arrived = self.arrived.notified();
            let (next, more) = {
                let mut jobs = self.jobs();
                (jobs.pop_front(), !jobs.is_empty())
            };
            match next {
                Some(request) => {
                    if more {
                        self.arrived.notify_one();
                    }
                    return request;
                }
                None => arrived.await,
            }
        }
    }

    fn jobs(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who has a job: decided once, however a handler and a child meet.
#[derive(Default)]
pub(super) struct Hold {
    holder: Mutex<Holder>,
    /// Whether the handler has left a note that no child is there.
    noted: AtomicBool,
}

#[derive(Default)]
enum Holder {
    /// No child has it.
    #[default]
    Nobody,
    /// A child has it, which this ends.
    Child(KillSwitch),
    /// The handler has given it up, or it has its answer.
    Over,
}

impl Hold {
    /// A child wants it; `false` if it is too late.
    pub(super) fn take(&self, switch: KillSwitch) -> bool {
        let mut holder = self.holder();
        let is_free = matches!(*holder, Holder::Nobody);
        if is_free {
            *holder = Holder::Child(switch);
        }
        is_free
    }

    /// The child did not begin it.
    fn give_back(&self) {
        let mut holder = self.holder();
        if matches!(*holder, Holder::Child(_)) {
            *holder = Holder::Nobody;
        }
    }

    /// The child has answered, or is gone.
    pub(super) fn answered(&self) {
        *self.holder() = Holder::Over;
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(*self.holder(), Holder::Nobody)
    }

    /// The handler wants it back; `false` if a child has it.
    pub(super) fn withdraw(&self) -> bool {
        let mut holder = self.holder();
        let is_free = matches!(*holder, Holder::Nobody);
        if is_free {
            *holder = Holder::Over;
        }
        is_free
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler leaves a note that no child is there.
    pub(super) fn note(&self) {
        self.noted.store(true, Ordering::Relaxed);
    }

    /// Whether it has left one since this was asked.
    pub(super) fn take_note(&self) -> bool {
        self.noted.swap(false, Ordering::Relaxed)
    }
}

/// Kills the child that has the job when this is dropped.
pub(super) struct Abandon(pub(super) Arc<Hold>);

impl Drop for Abandon {
    fn drop(&mut self) {
        if let Holder::Child(switch) = std::mem::replace(&mut *self.0.holder(), Holder::Over) {
            switch.pull();
        }
    }
}
