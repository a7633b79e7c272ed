//! Hints: who hears them, and what a transaction has to tell.

use std::collections::BTreeSet;
use std::sync::{PoisonError, Weak};

use mainspring_core::id::{JobId, NodeNo};
use mainspring_core::name::QueueName;
use mainspring_core::store::{self, Hint, Listener, LiveListeners};
use mainspring_core::time::Timestamp;

use crate::sync::{Mutex, MutexGuard};

/// Who wants to hear hints.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<store::Listeners>);

impl Listeners {
    /// Adds one.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) {
        self.lock().add(listener);
    }

    /// Whether anybody listens.
    pub(crate) fn any(&self) -> bool {
        !self.live().is_empty()
    }

    /// Tells everybody.
    pub(crate) fn tell(&self, hint: &Hint) {
        self.live().tell(hint);
    }

    fn live(&self) -> LiveListeners {
        self.lock().live()
    }

    fn lock(&self) -> MutexGuard<'_, store::Listeners> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one transaction has to tell once it is committed.
#[derive(Default)]
pub(crate) struct Hints {
    ready: BTreeSet<QueueName>,
    due: Option<Timestamp>,
    cancel: BTreeSet<NodeNo>,
    messages: BTreeSet<JobId>,
}

impl Hints {
    /// A job became ready in this queue.
    pub(crate) fn ready(&mut self, queue: &QueueName) {
        if !self.ready.contains(queue) {
            self.ready.insert(queue.clone());
        }
    }

    /// A job becomes due, or meets its deadline, at this time.
    pub(crate) fn due(&mut self, at: Timestamp) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// A claim of this node was flagged.
    pub(crate) fn cancel(&mut self, node: NodeNo) {
        self.cancel.insert(node);
    }

    /// A job that is claimed got a message.
    pub(crate) fn message(&mut self, id: JobId) {
        self.messages.insert(id);
    }

    /// Tells all of it.
    pub(crate) fn tell(self, listeners: &Listeners) {
        if !self.ready.is_empty() {
            listeners.tell(&Hint::Ready(self.ready.into_iter().collect()));
        }
        if let Some(due) = self.due {
            listeners.tell(&Hint::Due(due));
        }
        for node in self.cancel {
            listeners.tell(&Hint::Cancel(node));
        }
        for id in self.messages {
            listeners.tell(&Hint::Message(id));
        }
    }
}
