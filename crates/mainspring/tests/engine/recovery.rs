//! Dead nodes, expired nodes, crash counting and quarantine.

use std::sync::Arc;
use std::time::Duration;

use mainspring::admin::{Filter, Why};
use mainspring::testing::TestEngine;
use mainspring::{Context, NodeBuilder, Reason, State, Status};
use mainspring_core::memory::Memory;
use mainspring_core::store::NodeState;

use crate::faulty_store::Fault::Refuse;
use crate::faulty_store::Faulty;
use crate::support::{Gate, Ledger, Work, assert_sound, record, state, total, work};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(15);

/// Jobs that take for ever the first `claims` times.
fn hangs(node: NodeBuilder, claims: u32) -> NodeBuilder {
    let handler = move |ctx: Context, job: Work| async move {
        if ctx.info().claim <= claims {
            std::future::pending::<()>().await;
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    node.handle(handler)
}

async fn settle(test: &TestEngine) {
    test.advance(Duration::ZERO).await.expect("it settles");
}

#[tokio::test]
async fn a_dead_nodes_jobs_run_elsewhere_within_a_lease_and_a_second() {
    let test = TestEngine::new();
    let dies = test.node(|node| hangs(node, 1).queue("default", 5)).await.expect("a node");
    let jobs = test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    settle(&test).await;
    assert_eq!(total(&test, State::Running).await, 5);
    // The other has been live for a lease when the first dies.
    test.node(|node| hangs(node, 1).queue("default", 5)).await.expect("another node");
    test.advance(2 * LEASE).await.expect("time passes");
    assert_eq!(total(&test, State::Running).await, 5, "a live node keeps its jobs, however long they take");
    test.crash_node(&dies).await.expect("it dies");
    test.advance(SECOND * 9).await.expect("time passes");
    assert_eq!(total(&test, State::Running).await, 5, "its lease has not lapsed");
    test.advance(SECOND * 7).await.expect("time passes");
    for job in &jobs {
        assert_eq!(test.outcome(job).expect("it ran elsewhere"), test.outcome(job).expect("the same"));
        let summary = record(&test, job.id).await.summary;
        assert_eq!((summary.claim, summary.failures), (2, 0), "a crash burns no attempt");
    }
    assert_sound(&test).await;
}

#[tokio::test]
async fn the_first_node_after_a_crash_of_all_rescues_within_a_lease_and_a_second_of_its_start() {
    let test = TestEngine::new();
    test.node(|node| hangs(node, 1).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(7)).await.expect("enqueued");
    settle(&test).await;
    test.crash().await.expect("it dies");
    // For a day nobody is there.
    test.advance(Duration::from_hours(24)).await.expect("time passes");
    assert!(matches!(test.jobs().why(job.id).await.expect("a reason"), Why::NodeSilent { .. }));
    test.node(|node| hangs(node, 1).queue("default", 1)).await.expect("another node");
    test.advance(SECOND * 14).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Running, "it may not judge yet");
    test.advance(2 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it was rescued"), 7);
}

/// A job longer than its lease does not run twice: lesson B.
#[tokio::test]
async fn a_job_longer_than_the_lease_runs_once() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    for _ in 0..2 {
        let handler = handler.clone();
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    }
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(10 * LEASE).await.expect("time passes");
    assert_eq!(gate.came(), 1);
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.summary.claim, 1);
}

/// The machine slept: all leases lapsed while nobody could renew. That is nobody's death.
#[tokio::test]
async fn a_machine_that_slept_expires_nobody() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let mut nodes = Vec::new();
    for _ in 0..4 {
        let handler = handler.clone();
        nodes.push(test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node"));
    }
    let before: Vec<_> = nodes.iter().map(mainspring::Node::number).collect();
    let jobs = test.enqueue_many((0..4).map(work)).await.expect("enqueued");
    test.advance(4 * LEASE).await.expect("time passes");
    assert_eq!(gate.came(), 4);
    for _ in 0..5 {
        test.leap(10 * LEASE).await.expect("the machine sleeps");
        test.advance(SECOND * 3).await.expect("time passes");
    }
    let after: Vec<_> = nodes.iter().map(mainspring::Node::number).collect();
    assert_eq!(before, after, "nobody was expired");
    gate.open();
    test.run_until_idle().await.expect("idle");
    for job in &jobs {
        assert_eq!(record(&test, job.id).await.summary.claim, 1, "nothing ran twice");
    }
}

/// On a full disk nobody can renew, but a rescue that finds nobody writes nothing and goes well.
#[tokio::test]
async fn a_store_that_only_cannot_be_written_expires_nobody() {
    let mut store = None;
    let test = TestEngine::on(0, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    let store = store.expect("the store was made");
    for _ in 0..2 {
        test.node(|node| hangs(node, u32::MAX).queue("default", 1)).await.expect("a node");
    }
    test.enqueue_many((0..2).map(work)).await.expect("enqueued");
    test.advance(LEASE).await.expect("time passes");
    assert_eq!(total(&test, State::Running).await, 2);
    // Tried again each second, by both: for twice a lease.
    store.plan("renew", &[Refuse; 60]);
    test.advance(3 * LEASE).await.expect("time passes");
    assert!(store.calls("renew") > 60, "it is over");
    let nodes = test.nodes().await.expect("nodes");
    assert!(nodes.iter().all(|node| node.state == NodeState::Live && node.claims == 1), "{nodes:?}");
}

#[tokio::test]
async fn crashes_are_counted_and_the_third_quarantines() {
    let test = TestEngine::new();
    let job = test.enqueue(work(1)).max_attempts(1).await.expect("enqueued");
    for crashes in 1..=3 {
        test.node(|node| hangs(node, 3).queue("default", 1)).await.expect("a node");
        test.advance(SECOND).await.expect("time passes");
        assert_eq!(state(&test, job.id).await, State::Running);
        test.crash().await.expect("it dies");
        let rescuer = test.node(|node| hangs(node, 0).queue("other", 1)).await.expect("a rescuer");
        test.advance(LEASE + 2 * SECOND).await.expect("time passes");
        let summary = record(&test, job.id).await.summary;
        assert_eq!((summary.crashes, summary.failures), (crashes, 0));
        rescuer.shutdown().await;
    }
    assert_eq!(
        record(&test, job.id).await.summary.status,
        Status::because(State::Suspended, Reason::Quarantine)
    );
    assert_eq!(test.jobs().why(job.id).await.expect("a reason"), Why::Quarantined { crashes: 3 });
    test.node(|node| hangs(node, 3).queue("default", 1)).await.expect("a node");
    test.advance(LEASE).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Suspended, "nobody touches it");
    test.jobs().resume(job.id).await.expect("resumed");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it was innocent"), 1);
    assert_sound(&test).await;
}

/// A job that kills its node takes neighbours with it twice. From then on suspects run alone, so that they clear
/// themselves, and only the guilty one is quarantined.
#[tokio::test]
async fn bystanders_of_a_killer_are_not_quarantined() {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    let notes = ledger.clone();
    // The killer is the job with number 0: whoever runs it dies. It is the test that does the killing.
    let handler = move |_ctx: Context, job: Work| {
        let ledger = notes.clone();
        async move {
            ledger.add(job.n);
            if job.n == 0 || ledger.entries().iter().filter(|n| **n == job.n).count() <= 2 {
                std::future::pending::<()>().await;
            }
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let jobs = test.enqueue_many((0..6).map(work)).await.expect("enqueued");
    let mut quarantined = false;
    for _ in 0..12 {
        let handler = handler.clone();
        test.node(|node| node.handle(handler).queue("default", 6)).await.expect("a node");
        let kills = ledger.entries().iter().filter(|n| **n == 0).count();
        for _ in 0..200 {
            test.advance(SECOND / 2).await.expect("time passes");
            if ledger.entries().iter().filter(|n| **n == 0).count() > kills {
                test.crash().await.expect("it kills its node");
                break;
            }
        }
        if record(&test, jobs[0].id).await.summary.status.state == State::Suspended {
            quarantined = true;
            break;
        }
    }
    assert!(quarantined, "the killer is caught");
    let handler = handler.clone();
    test.node(|node| node.handle(handler).queue("default", 6)).await.expect("a node");
    test.advance(5 * LEASE).await.expect("time passes");
    for job in &jobs[1..] {
        let summary = record(&test, job.id).await.summary;
        assert_eq!(summary.status.state, State::Succeeded, "a bystander: {summary:?}");
    }
    assert_sound(&test).await;
}

#[tokio::test]
async fn a_node_runs_one_suspect_at_a_time() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.enqueue_many((0..4).map(work)).await.expect("enqueued");
    for _ in 0..2 {
        let handler = handler.clone();
        test.node(|node| node.handle(handler).queue("default", 4)).await.expect("a node");
        test.advance(LEASE + 2 * SECOND).await.expect("time passes");
        test.crash().await.expect("it dies");
    }
    // A rescuer that cannot run them.
    let rescuer = test.node(|node| hangs(node, 0).queue("other", 1)).await.expect("a rescuer");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    rescuer.shutdown().await;
    assert_eq!(total(&test, State::Ready).await, 4);
    let before = gate.came();
    test.node(|node| node.handle(handler).queue("default", 4)).await.expect("a node");
    settle(&test).await;
    assert_eq!(gate.came() - before, 1, "one of four slots");
    let ready = Filter { states: vec![State::Ready], ..Filter::default() };
    for job in test.jobs().list(ready).limit(9).await.expect("a page").jobs {
        let why = test.jobs().why(job.id).await.expect("a reason");
        assert!(matches!(why, Why::Suspect { crashes: 2, .. }), "{why:?}");
    }
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(total(&test, State::Succeeded).await, 4);
}

/// A suspect that has ended, and whose outcome is not stored yet, would die a third time with the next one.
#[tokio::test]
async fn the_next_suspect_waits_until_the_outcome_of_the_last_is_stored() {
    let mut store = None;
    let test = TestEngine::on(0, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    let store = store.expect("the store was made");
    test.enqueue_many((0..2).map(work)).await.expect("enqueued");
    for _ in 0..2 {
        test.node(|node| hangs(node, 2).queue("default", 2)).await.expect("a node");
        test.advance(LEASE + 2 * SECOND).await.expect("time passes");
        test.crash().await.expect("it dies");
    }
    store.hang("finish", None, true);
    test.node(|node| hangs(node, 2).queue("default", 2)).await.expect("a node");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    assert_eq!((total(&test, State::Running).await, total(&test, State::Ready).await), (1, 1));
    store.hang("finish", None, false);
    test.run_until_idle().await.expect("idle");
    assert_eq!(total(&test, State::Succeeded).await, 2);
}

/// A suspect that outlives its longest crashed claim is no suspect any more: the next one may run beside it.
#[tokio::test]
async fn a_suspect_that_outlives_its_crashes_is_cleared() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.enqueue_many((0..3).map(work)).await.expect("enqueued");
    for _ in 0..2 {
        let handler = handler.clone();
        test.node(|node| node.handle(handler).queue("default", 3)).await.expect("a node");
        test.advance(LEASE + 2 * SECOND).await.expect("time passes");
        test.crash().await.expect("it dies");
    }
    let before = gate.came();
    test.node(|node| node.handle(handler).queue("default", 3)).await.expect("a node");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    assert_eq!(gate.came() - before, 1, "one at a time");
    // Crashed claims count up to their rescue: two leases and some at the most.
    for side_by_side in 2..=3 {
        test.advance(3 * LEASE).await.expect("time passes");
        assert_eq!(gate.came() - before, side_by_side);
    }
    gate.open();
    test.run_until_idle().await.expect("idle");
}
