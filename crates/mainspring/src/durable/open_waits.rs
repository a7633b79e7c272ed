//! Open waits: what a handler waits for, as a suspension will say it.
//!
//! A wait is open from its first poll until it has ended or is dropped. Beside them stand *shelved* operations: they were dropped in an
//! earlier run, the handler awaits them again, and they stay pending until nothing else is left to wait for.

use std::collections::BTreeMap;
use std::task::Waker;

use mainspring_core::job::Reason;
use mainspring_core::journal::{Subject, Wait};
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;

/// A durable wait that is open.
pub(crate) struct OpenWait {
    pub(crate) key: Key,
    pub(crate) subject: Option<(Subject, u32)>,
    pub(crate) until: Option<Timestamp>,
    /// Until when the job keeps the units of its limits while it waits for this.
    pub(crate) keeps_until: Option<Timestamp>,
    /// Set if something between the wait and the handler polls it, which must be woken too.
    pub(crate) waker: Option<Waker>,
}

impl OpenWait {
    fn reason(&self) -> Reason {
        match self.subject {
            None => Reason::Timer,
            Some((Subject::Signal(_), _)) => Reason::Signal,
            Some((Subject::Child(_), _)) => Reason::Child,
        }
    }
}

/// The waits of a handler, in the order in which they began.
#[derive(Default)]
pub(crate) struct OpenWaits {
    /// In boxes, as scopes are: a map has room for eleven at once, and most handlers have one.
    open: BTreeMap<u64, Box<OpenWait>>,
    shelved: BTreeMap<u64, Option<Waker>>,
    last: u64,
}

impl OpenWaits {
    /// Opens a wait, or keeps it open. `at` is its number, which it gets here.
    pub(super) fn open(&mut self, at: &mut Option<u64>, wait: OpenWait) {
        let at = self.number(at);
        self.open.insert(at, Box::new(wait));
    }

    pub(super) fn close(&mut self, at: u64) {
        self.open.remove(&at);
    }

    /// Keeps an operation pending until it is revived.
    pub(super) fn shelve(&mut self, at: &mut Option<u64>, waker: Option<Waker>) {
        let at = self.number(at);
        self.shelved.insert(at, waker);
    }

    /// A shelved operation is gone.
    pub(super) fn unshelve(&mut self, at: u64) {
        self.shelved.remove(&at);
    }

    fn number(&mut self, at: &mut Option<u64>) -> u64 {
        *at.get_or_insert_with(|| {
            self.last += 1;
            self.last
        })
    }

    /// Takes the wakers of all that must be woken beside the handler itself.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        let open = self.open.values_mut().filter_map(|wait| wait.waker.take());
        open.chain(self.shelved.values_mut().filter_map(Option::take))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// How many operations are shelved.
    pub(super) fn shelved(&self) -> usize {
        self.shelved.len()
    }

    /// Whether a message could end one of them.
    pub(super) fn listens(&self) -> bool {
        self.open.values().any(|wait| wait.subject.is_some())
    }

    /// When the first of them ends by time.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.open.values().filter_map(|wait| wait.until).min()
    }

    /// Until when the job keeps the units of its limits: as long as any of them says.
    pub(super) fn keeps_until(&self) -> Option<Timestamp> {
        self.open.values().filter_map(|wait| wait.keeps_until).max()
    }

    /// Why the job is suspended: as the oldest of them says.
    pub(super) fn reason(&self) -> Reason {
        self.open.values().next().map_or(Reason::Timer, |wait| wait.reason())
    }

    /// What they wait for, each subject once with the fewest messages that help anybody.
    pub(super) fn subjects(&self) -> Vec<Wait> {
        let mut waits: Vec<Wait> = Vec::new();
        for (subject, need) in self.open.values().filter_map(|wait| wait.subject.as_ref()) {
            match waits.iter_mut().find(|wait| wait.subject == *subject) {
                Some(wait) => wait.need = wait.need.min(*need),
                None => waits.push(Wait { subject: subject.clone(), need: *need }),
            }
        }
        waits
    }

    /// The keys of all that are open.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.open.values().map(|wait| wait.key.clone()).collect()
    }
}
