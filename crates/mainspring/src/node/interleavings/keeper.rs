//! The lease keeper: renews in time whatever the store and the handlers do, and abandons everything when it did not.
//!
//! It runs beside claimer and finisher alone. In the first test, no claim but the first reaches the store: claims renew
//! the lease too and would hide what the keeper fails to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainspring_core::job::{State, Verb};
use mainspring_core::seam::{Clock, Spawn};
use mainspring_core::store::{NodeState, Operators};
use shuttle::future::block_on;

use super::{FailurePlan, LEASE, expire, own};
use crate::interleavings::{CallOutcome, INTERLEAVINGS, Rig, explore, random_below};
use crate::node::{NodeShared, Phase, claimer, finisher, keeper};

/// Starts a node that has no supervisor and tends nothing.
fn start(rig: &Rig) -> Arc<NodeShared> {
    let (shared, entries) = block_on(rig.node(LEASE).join()).expect("a node");
    shared.spawn(finisher::run(Arc::clone(&shared), entries));
    shared.spawn(claimer::run(Arc::clone(&shared)));
    rig.tasks.spawn_dedicated("keeper", Box::pin(keeper::run(Arc::clone(&shared))));
    shared
}

#[test]
fn the_lease_is_renewed_in_time_and_cancellations_are_heard() {
    explore(INTERLEAVINGS, || {
        let (claims, renewals) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let rig = Rig::new(move |call| match call {
            "claim" if claims.fetch_add(1, Ordering::SeqCst) > 0 => CallOutcome::Failed,
            // Every other one at most: a second look comes before the lease lapses, a third might not.
            "renew" if renewals.fetch_add(1, Ordering::SeqCst) % 2 == 1 => {
                [CallOutcome::Failed, CallOutcome::Lost, CallOutcome::Answered][random_below(3)]
            }
            "renew" if random_below(3) == 0 => CallOutcome::Late(Duration::from_millis(900)),
            "progress" => {
                [CallOutcome::Late(Duration::from_secs(3)), CallOutcome::Failed, CallOutcome::Answered]
                    [random_below(3)]
            }
            _ => CallOutcome::Answered,
        });
        let id = block_on(Rig::enqueue(&rig.engine, 13));
        let shared = start(&rig);
        let cancelled = (random_below(2) == 0).then(|| Duration::from_millis(250 * random_below(32) as u64));
        let (memory, clock) = (rig.memory.clone(), rig.clock.clone());
        rig.task(async move {
            if let Some(after) = cancelled {
                clock.sleep(after).await;
                let cancel = Verb::Cancel { why: "enough".into() };
                memory.change(vec![id], cancel, false).await.expect("a change");
            }
        });
        rig.live(|| {
            let node = &rig.members()[0];
            assert!(node.lease_until > rig.clock.now(), "the lease has lapsed");
            if rig.clock.monotonic() >= 3 * LEASE {
                shared.advance(Phase::Stopped);
            }
        });
        let (jobs, members) = (rig.jobs(), rig.members());
        assert_eq!((members.len(), members[0].no), (1, shared.held.node()), "it never left");
        let end = if cancelled.is_some() { State::Cancelled } else { State::Succeeded };
        assert_eq!((jobs[0].status.state, jobs[0].claim), (end, 1));
        assert_eq!((rig.log.live(), shared.held.is_empty()), (0, true));
    });
}

#[test]
fn a_lost_lease_abandons_everything_and_the_node_joins_anew_once() {
    explore(INTERLEAVINGS / 5, || {
        let cut = Arc::new(AtomicBool::new(false));
        let failures = FailurePlan::new(&[("register", 2), ("renew", 2), ("claim", 2), ("finish", 2)]);
        let (is_cut, joined) = (Arc::clone(&cut), AtomicBool::new(false));
        let rig = Rig::new(move |call| match call {
            "register" if !joined.swap(true, Ordering::SeqCst) => CallOutcome::Answered,
            _ if is_cut.load(Ordering::SeqCst) => CallOutcome::Failed,
            call => failures.next_outcome(call),
        });
        let ids = [1, 8].map(|seconds| block_on(Rig::enqueue(&rig.engine, seconds)));
        let shared = start(&rig);
        rig.task(expire(&rig, cut));
        rig.live(|| {
            let own = own(&rig);
            let expired = own.iter().filter(|node| node.state == NodeState::Expired).count();
            assert!(own.len() <= expired + 1, "it joined anew more than once");
            let node = shared.held.node();
            assert!(shared.held.all().iter().all(|run| run.node == node), "a claim of a lost membership");
            if rig.jobs().iter().all(|job| job.status.state == State::Succeeded) {
                shared.advance(Phase::Stopped);
            }
        });
        let jobs = rig.jobs();
        assert_eq!(jobs.len(), ids.len());
        for id in ids {
            assert!(rig.log.ends(id) >= 1, "it succeeded without having run to its end");
        }
        assert_eq!((rig.log.live(), shared.held.is_empty()), (0, true));
        let live: Vec<_> =
            own(&rig).iter().filter(|node| node.state == NodeState::Live).map(|node| node.no).collect();
        assert_eq!(live, [shared.held.node()]);
    });
}
