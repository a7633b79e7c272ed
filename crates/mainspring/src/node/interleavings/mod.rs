//! Parts of the node under thousands of interleavings.

mod keeper;
mod shutdown;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainspring_core::id::NodeId;
use mainspring_core::seam::Clock;
use mainspring_core::store::{self, Abilities, Nodes, Registration, Rescue};

use crate::interleavings::{CallOutcome, Rig, random_below, yield_point};

/// The lease of all nodes here: renewed every two seconds.
const LEASE: Duration = Duration::from_secs(6);

/// What calls meet by chance: of those that are named, so many fail or lose their answers, and some take their time.
struct FailurePlan {
    left: Mutex<Vec<(&'static str, usize)>>,
}

impl FailurePlan {
    /// At most so many calls of each of these names go wrong.
    fn new(names: &[(&'static str, usize)]) -> Self {
        FailurePlan { left: Mutex::new(names.to_vec()) }
    }

    fn next_outcome(&self, name: &'static str) -> CallOutcome {
        let mut left = self.left.lock().expect("nothing panics under this lock");
        let Some((_, left)) = left.iter_mut().find(|(known, _)| *known == name) else {
            return CallOutcome::Answered;
        };
        match random_below(4) {
            0 if *left > 0 => {
                *left -= 1;
                [CallOutcome::Failed, CallOutcome::Lost][random_below(2)]
            }
            1 => CallOutcome::Late(Duration::from_millis(10)),
            _ => CallOutcome::Answered,
        }
    }
}

/// What the node that finds another dead is called.
const OTHER: &str = "other";

/// All memberships of the node under test.
fn own(rig: &Rig) -> Vec<store::Node> {
    rig.members().into_iter().filter(|node| node.name != OTHER).collect()
}

/// Cuts the node off for longer than its lease, and has it expired by another if it holds anything.
fn expire(rig: &Rig, cut: Arc<AtomicBool>) -> impl Future<Output = ()> + use<> {
    let (memory, clock, rng) = (rig.memory.clone(), rig.clock.clone(), Arc::clone(&rig.engine.seams().rng));
    async move {
        clock.sleep(Duration::from_millis(1 + 250 * random_below(8) as u64)).await;
        cut.store(true, Ordering::SeqCst);
        // Longer by a renewal that was on the way.
        clock.sleep(LEASE + Duration::from_secs(1)).await;
        let registration = Registration {
            id: NodeId::mint(clock.now(), &*rng),
            name: OTHER.into(),
            version: "1".into(),
            pid: 1,
            queues: Vec::new(),
            abilities: Abilities::default(),
            lease: 10 * LEASE,
        };
        let by = memory.register(registration).await.expect("a node").no;
        if random_below(2) == 0 {
            // It may come back in the moment in which it is found dead.
            cut.store(false, Ordering::SeqCst);
            yield_point();
        }
        memory.rescue(Rescue { by, steady: LEASE, seen: clock.now() }).await.expect("a rescue");
        memory.retire(by).await.expect("gone");
        cut.store(false, Ordering::SeqCst);
    }
}
