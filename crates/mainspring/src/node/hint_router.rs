//! What a node does with the store's hints: it wakes the part that they concern.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainspring_core::id::NodeNo;
use mainspring_core::store::{Hint, Listener};
use tokio::sync::Notify;

use super::held::Held;
use super::slot_table::SlotTable;
use crate::sync::{AtomicBool, AtomicI64};

pub(super) struct HintRouter {
    slot_table: Arc<SlotTable>,
    held: Arc<Held>,
    renew_now: Arc<Notify>,
    node: AtomicI64,
    /// Told when something may be due earlier than was known.
    pub(super) promote: Notify,
    pub(super) expire: Notify,
    /// Told when a schedule is to be looked at.
    pub(super) fire: Notify,
    /// Whether all of them are, because the store's clock has gone back or this node has just come.
    pub(super) all_schedules: AtomicBool,
}

impl HintRouter {
    pub(super) fn new(
        slot_table: Arc<SlotTable>,
        held: Arc<Held>,
        renew_now: Arc<Notify>,
        node: NodeNo,
    ) -> Self {
        let node = AtomicI64::new(node.0);
        let (promote, expire, fire) = (Notify::new(), Notify::new(), Notify::new());
        let all_schedules = AtomicBool::new(false);
        HintRouter { slot_table, held, renew_now, node, promote, expire, fire, all_schedules }
    }

    pub(super) fn rejoin(&self, node: NodeNo) {
        self.node.store(node.0, Ordering::Relaxed);
    }

    fn due(&self) {
        self.promote.notify_one();
        self.expire.notify_one();
    }
}

impl Listener for HintRouter {
    fn hint(&self, hint: &Hint) {
        match hint {
            Hint::Ready(queues) => self.slot_table.expect_jobs(Some(queues)),
            Hint::Due(_) => self.due(),
            Hint::Cancel(node) if node.0 == self.node.load(Ordering::Relaxed) => self.renew_now.notify_one(),
            Hint::Cancel(_) => {}
            Hint::Message(id) => {
                if let Some(run) = self.held.of(*id) {
                    run.notify_mail();
                }
            }
            Hint::Foreign => {
                self.slot_table.expect_jobs(None);
                self.due();
            }
        }
    }
}
