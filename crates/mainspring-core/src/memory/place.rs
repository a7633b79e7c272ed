//! Places: where a job is, and what is known of it there.

use crate::bounds;
use crate::id::{ClaimBatchNo, NodeNo};
use crate::job::{Reason, State, Status};
use crate::journal::Wait;
use crate::store::{Cancellation, Class};
use crate::time::Timestamp;

use super::model::Job;

/// Where a job is.
#[derive(Clone)]
pub(super) enum Place {
    /// It waits for a node.
    Ready {
        class: Class,
        /// When it entered: the order of claims.
        since: Timestamp,
    },
    /// It waits for a time.
    Timers { due: Timestamp },
    /// It waits for something else.
    Suspended {
        reason: Reason,
        /// The time that wakes it, or that it would wait for if it were not held.
        due: Option<Timestamp>,
        /// The messages that wake it.
        waits: Vec<Wait>,
        note: Option<String>,
    },
    /// A node runs it.
    Lease {
        node: NodeNo,
        /// The claim batch that brought it there.
        batch: ClaimBatchNo,
        since: Timestamp,
        /// Whether it was claimed for a slot that was not free.
        ahead: bool,
        /// Why it is to be cancelled, if it is.
        cancel: Option<Cancellation>,
        stuck: bool,
        foreign: bool,
    },
    /// It has ended.
    Done {
        status: Status,
        at: Timestamp,
        /// The claim that ended it, if one did.
        began: Option<Began>,
        result: Option<Vec<u8>>,
        note: Option<String>,
    },
}

/// When a claim began, and whose it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    pub(super) at: Timestamp,
    pub(super) node: NodeNo,
}

impl Place {
    /// The end of a job that has no result. An empty note is none.
    pub(super) fn done(status: Status, at: Timestamp, note: &str) -> Self {
        let note = (!note.is_empty()).then(|| note.to_owned());
        Place::Done { status, at, began: None, result: None, note }
    }

    /// The place of a job that a node has just claimed.
    pub(super) fn lease(node: NodeNo, batch: ClaimBatchNo, since: Timestamp) -> Self {
        Place::Lease { node, batch, since, ahead: false, cancel: None, stuck: false, foreign: false }
    }

    /// The place of a job whose nodes kept dying.
    pub(super) fn quarantine() -> Self {
        Place::Suspended { reason: Reason::Quarantine, due: None, waits: Vec::new(), note: None }
    }

    /// The place of a job that cannot be read.
    pub(super) fn unreadable(why: String) -> Self {
        Place::Suspended { reason: Reason::Unreadable, due: None, waits: Vec::new(), note: Some(why) }
    }

    /// The status of a job in this place.
    pub(super) fn status(&self) -> Status {
        match self {
            Place::Ready { .. } => Status::plain(State::Ready),
            Place::Timers { .. } => Status::plain(State::Scheduled),
            Place::Suspended { reason, .. } => Status::because(State::Suspended, *reason),
            Place::Lease { .. } => Status::plain(State::Running),
            Place::Done { status, .. } => *status,
        }
    }

    /// Whether the job waits: neither runs nor has ended.
    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } => true,
            Place::Lease { .. } | Place::Done { .. } => false,
        }
    }

    /// The time that the job waits for, or would wait for if it were not held.
    pub(super) fn due(&self) -> Option<Timestamp> {
        match self {
            Place::Timers { due } => Some(*due),
            Place::Suspended { reason: Reason::Hold, due, .. } => *due,
            Place::Suspended { .. } | Place::Ready { .. } | Place::Lease { .. } | Place::Done { .. } => None,
        }
    }

    /// The time that ends the job's wait, whoever else may.
    pub(super) fn wakes(&self) -> Option<Timestamp> {
        match self {
            Place::Timers { due } => Some(*due),
            Place::Suspended { reason, due, .. } if reason.awaits() => *due,
            Place::Suspended { .. } | Place::Ready { .. } | Place::Lease { .. } | Place::Done { .. } => None,
        }
    }

    /// The claim of a job that runs.
    pub(super) fn claim(&self) -> Option<Began> {
        match self {
            Place::Lease { node, since, .. } => Some(Began { at: *since, node: *node }),
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } | Place::Done { .. } => None,
        }
    }

    /// Why the job is to be cancelled, if its node was asked to.
    pub(super) fn cancel(&self) -> Option<&Cancellation> {
        match self {
            Place::Lease { cancel, .. } => cancel.as_ref(),
            Place::Ready { .. } | Place::Timers { .. } | Place::Suspended { .. } | Place::Done { .. } => None,
        }
    }
}

impl Job {
    /// The place in `ready` of a job that was claimed before and comes back.
    pub(super) fn returned(&self, now: Timestamp) -> Place {
        let suspect = self.crashes >= bounds::SUSPECT_CRASHES;
        Place::Ready { class: if suspect { Class::Suspect } else { Class::Returned }, since: now }
    }

    /// The place in `ready` of a job whose node was lost.
    pub(super) fn lost(&self, now: Timestamp) -> Place {
        let suspect = self.crashes >= bounds::SUSPECT_CRASHES;
        Place::Ready { class: if suspect { Class::Suspect } else { Class::Lost }, since: now }
    }

    /// Forgets crashes: the job came through, or an operator answers for it.
    pub(super) fn clear_crashes(&mut self) {
        self.crashes = 0;
        self.crashed_micros = 0;
    }
}
