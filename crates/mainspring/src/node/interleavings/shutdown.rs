//! Shutting down: it always ends, in its time, and whatever the node held is finished or given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainspring_core::job::State;
use mainspring_core::seam::Clock;
use mainspring_core::store::NodeState;
use shuttle::future::block_on;

use super::{FailurePlan, LEASE, expire, own};
use crate::interleavings::{CallOutcome, INTERLEAVINGS, Rig, explore, random_below, yield_point};
use crate::node::Node;

/// How long running jobs may take to end.
const DRAIN: Duration = Duration::from_secs(2);
/// The supervisor's two waits beyond that, each of five seconds, and what calls on the way may take.
const AT_MOST: Duration = Duration::from_secs(13);

#[test]
fn shutdown_ends_and_finishes_or_gives_back_everything() {
    explore(INTERLEAVINGS, || {
        let failures = FailurePlan::new(&[("renew", 1), ("claim", 2), ("finish", 3), ("progress", 1)]);
        // A store that does not answer when the node leaves leaves its claims to be rescued.
        let leaves = random_below(4) != 0;
        let rig = Rig::new(move |call| match call {
            "retire" if !leaves => [CallOutcome::Failed, CallOutcome::Silent][random_below(2)],
            "retire" => [CallOutcome::Answered, CallOutcome::Lost][random_below(2)],
            call => failures.next_outcome(call),
        });
        let node = block_on(rig.node(LEASE).drain(DRAIN).start()).expect("a node");
        for seconds in [0, 1, 30] {
            let engine = rig.engine.clone();
            rig.task(async move {
                Rig::enqueue(&engine, seconds).await;
            });
        }
        for _ in 0..=random_below(2) {
            rig.task(stop(&rig, &node));
        }
        rig.live(|| {});
        assert_eq!((rig.log.live(), rig.jobs().len()), (0, 3));
        for job in rig.jobs() {
            let state = job.status.state;
            if rig.log.ends(job.id) > 0 {
                assert_eq!(state, State::Succeeded, "the outcome of a handler that ended is stored");
            } else {
                assert!(state == State::Ready || !leaves, "a job was left {}", state.as_str());
            }
            assert_eq!((job.failures, job.crashes), (0, 0), "giving back counts nothing");
        }
        let retired = own(&rig).iter().all(|node| node.state == NodeState::Retired);
        assert!(retired || !leaves, "it did not leave");
    });
}

#[test]
fn shutdown_and_the_loss_of_the_lease_leave_no_membership_behind() {
    explore(INTERLEAVINGS / 5, || {
        let cut = Arc::new(AtomicBool::new(false));
        let (is_cut, joined) = (Arc::clone(&cut), AtomicBool::new(false));
        let failures = FailurePlan::new(&[("register", 1), ("renew", 1)]);
        let rig = Rig::new(move |call| match call {
            "register" if !joined.swap(true, Ordering::SeqCst) => CallOutcome::Answered,
            "renew" | "claim" | "finish" | "rescue" if is_cut.load(Ordering::SeqCst) => CallOutcome::Failed,
            call => failures.next_outcome(call),
        });
        block_on(Rig::enqueue(&rig.engine, 30));
        let node = block_on(rig.node(LEASE).drain(DRAIN).start()).expect("a node");
        rig.task(expire(&rig, cut));
        let (stop, clock) = (stop(&rig, &node), rig.clock.clone());
        rig.task(async move {
            // About when the node finds that it was expired.
            clock.sleep(LEASE + Duration::from_millis(250 * random_below(20) as u64)).await;
            stop.await;
        });
        rig.live(|| {});
        let members = own(&rig);
        let all_gone = members.iter().all(|node| node.state != NodeState::Live);
        assert!(all_gone, "a membership was left behind: {members:?}");
        assert_eq!(rig.log.live(), 0);
        let jobs = rig.jobs();
        assert_eq!((jobs.len(), jobs[0].status.state, jobs[0].failures), (1, State::Ready, 0));
    });
}

#[test]
fn an_executor_that_goes_takes_the_keeper_along_and_ends_every_shutdown() {
    explore(INTERLEAVINGS / 5, || {
        let rig = Rig::new(|_| CallOutcome::Answered);
        let node = block_on(rig.node(LEASE).drain(DRAIN).start()).expect("a node");
        let engine = rig.engine.clone();
        let (tasks, clock) = (Arc::clone(&rig.tasks), rig.clock.clone());
        rig.task(async move {
            Rig::enqueue(&engine, 30).await;
            clock.sleep(Duration::from_millis(500 * random_below(4) as u64)).await;
            for _ in 0..random_below(8) {
                yield_point();
            }
            tasks.kill();
        });
        rig.task(stop(&rig, &node));
        rig.live(|| {});
        assert_eq!(rig.log.live(), 0);
    });
}

/// Shuts a node down at some time, in one way or the other.
fn stop(rig: &Rig, node: &Node) -> impl Future<Output = ()> + use<> {
    let (node, clock, log) = (node.clone(), rig.clock.clone(), Arc::clone(&rig.log));
    async move {
        clock.sleep(Duration::from_millis(500 * random_below(4) as u64)).await;
        let begin = clock.monotonic();
        if random_below(3) == 0 {
            node.abort().await;
        } else {
            node.shutdown().await;
        }
        assert!(clock.monotonic() <= begin + AT_MOST, "it took too long");
        let starts = log.starts();
        clock.sleep(Duration::from_secs(1)).await;
        assert_eq!(log.starts(), starts, "a job was started after the end");
    }
}
