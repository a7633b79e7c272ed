//! Delays, time-outs, deadlines, and handlers that never yield.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mainspring::admin::Why;
use mainspring::enqueue::When;
use mainspring::handler::FaultKind;
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Reason, State, Status};
use mainspring_core::bounds;

use crate::support::{Gate, Ledger, Work, ended, eventually, on_every_store, record, soon, state, work};

const SECOND: Duration = Duration::from_secs(1);

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

async fn endless(_ctx: Context, _job: Work) -> mainspring::HandlerResult<u64> {
    std::future::pending().await
}

/// Lesson A8: nothing woke workers for what became due.
#[tokio::test]
async fn a_delayed_job_starts_when_it_is_due_and_not_before() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).delay(Duration::from_millis(7_300)).await.expect("enqueued");
    test.advance(Duration::from_millis(7_299)).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Scheduled);
    test.advance(Duration::from_millis(1)).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Succeeded);
}

#[tokio::test]
async fn a_job_can_be_told_the_time_at_which_to_run() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let past = test.enqueue(work(1)).run_at(When::At(test.now().before(SECOND))).await.expect("enqueued");
    let later = test.enqueue(work(2)).run_at(test.now().after(5 * SECOND)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, past.id).await, State::Succeeded);
    assert_eq!(
        test.jobs().why(later.id).await.expect("a reason"),
        Why::Scheduled {
            until: Some(test.now().after(5 * SECOND)),
            failures: 0,
            max_attempts: 10,
            note: None
        }
    );
    test.advance(5 * SECOND).await.expect("time passes");
    assert_eq!(state(&test, later.id).await, State::Succeeded);
}

#[tokio::test]
async fn a_sooner_job_is_not_kept_waiting_by_a_later_one() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let late = test.enqueue(work(1)).delay(Duration::from_hours(1)).await.expect("enqueued");
    test.advance(3 * SECOND).await.expect("time passes");
    let soon = test.enqueue(work(2)).delay(Duration::from_millis(10)).await.expect("enqueued");
    test.advance(Duration::from_millis(10)).await.expect("time passes");
    assert_eq!(state(&test, soon.id).await, State::Succeeded);
    assert_eq!(state(&test, late.id).await, State::Scheduled);
}

#[tokio::test]
async fn a_timeout_counts_as_a_failure_and_frees_the_slot() {
    let test = TestEngine::new();
    test.node(|node| node.handle(endless).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).timeout(4 * SECOND).max_attempts(2).await.expect("enqueued");
    test.advance(Duration::from_millis(3_999)).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Running);
    test.advance(Duration::from_millis(1)).await.expect("time passes");
    let after = record(&test, job.id).await;
    assert_eq!(after.summary.status.state, State::Scheduled);
    assert_eq!(
        (after.errors[0].kind, after.errors[0].message.as_str()),
        (FaultKind::Timeout, "timed out after 4s")
    );
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(record(&test, job.id).await.summary.status, Status::because(State::Failed, Reason::Exhausted));
}

#[tokio::test]
async fn a_deadline_that_passes_while_a_job_waits_fails_it() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let delayed = test.enqueue(work(1)).delay(10 * SECOND).deadline(5 * SECOND).await.expect("enqueued");
    let unserved = test.enqueue(work(2)).queue("other").deadline(5 * SECOND).await.expect("enqueued");
    test.advance(Duration::from_millis(4_999)).await.expect("time passes");
    assert_eq!(state(&test, delayed.id).await, State::Scheduled);
    assert_eq!(state(&test, unserved.id).await, State::Ready);
    test.advance(Duration::from_millis(1)).await.expect("time passes");
    for id in [delayed.id, unserved.id] {
        let status = record(&test, id).await.summary.status;
        assert_eq!(status, Status::because(State::Failed, Reason::Expired));
    }
}

#[tokio::test]
async fn a_deadline_that_passes_while_a_job_runs_fails_it_for_good() {
    let test = TestEngine::new();
    test.node(|node| node.handle(endless).queue("default", 1)).await.expect("a node");
    let job = test
        .enqueue(work(1))
        .timeout(Duration::from_mins(1))
        .deadline(6 * SECOND)
        .max_attempts(5)
        .await
        .expect("enqueued");
    test.advance(6 * SECOND).await.expect("time passes");
    let after = record(&test, job.id).await;
    assert_eq!(after.summary.status, Status::because(State::Failed, Reason::Expired));
    assert_eq!(after.errors[0].kind, FaultKind::Deadline);
}

#[tokio::test]
async fn a_job_is_not_started_after_its_deadline() {
    let (test, gate, ledger) = (TestEngine::new(), Gate::default(), Ledger::default());
    let (door, notes) = (gate.clone(), ledger.clone());
    let handler = move |_ctx: Context, job: Work| {
        let (gate, ledger) = (door.clone(), notes.clone());
        async move {
            if job.n == 0 {
                gate.pass().await;
            }
            ledger.add(job.n);
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    // Quick jobs first, so that the node takes to claiming ahead.
    for n in 1..=20 {
        test.run(work(n)).await.expect("it succeeds");
    }
    let first = test.enqueue(work(0)).await.expect("enqueued");
    let second = test.enqueue(work(100)).deadline(2 * SECOND).await.expect("enqueued");
    test.leap(3 * SECOND).await.expect("time passes");
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, first.id).await, State::Succeeded);
    assert_eq!(
        record(&test, second.id).await.summary.status,
        Status::because(State::Failed, Reason::Expired)
    );
    assert!(!ledger.entries().contains(&100), "it was started after its deadline");
}

on_every_store! {
    async fn delays_pass_in_real_time(engine: Engine) {
        // Whoever is not woken for it finds it by chance, later than anybody waits here.
        let node = engine.node().handle(quick).queue("default", 1).lease(bounds::LEASE_MAX);
        let node = node.start().await.expect("a node");
        let job = engine.enqueue(work(1)).delay(Duration::from_millis(50)).await.expect("enqueued");
        let record = ended(&engine, job.id).await;
        let waited = record.summary.finished_at.expect("an end").since(record.summary.created_at);
        assert!(waited >= Duration::from_millis(50), "{waited:?}");
        node.shutdown().await;
    }
}

/// A handler that blocks its thread cannot be stopped: it keeps its slot, `why` says so, and no copy runs beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_never_yields_is_called_stuck_and_keeps_its_slot() {
    /// Whatever happens, the handler must end, or the test would hang with it.
    struct Release(Arc<AtomicBool>);
    impl Drop for Release {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let engine = Engine::open("memory:").await.expect("a store");
    let (release, copies) = (Release(Arc::default()), Arc::new(AtomicUsize::new(0)));
    let (released, counted) = (Arc::clone(&release.0), Arc::clone(&copies));
    let handler = move |_ctx: Context, job: Work| {
        let (released, counted) = (Arc::clone(&released), Arc::clone(&counted));
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            while !released.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    // Two slots: a second copy would have room.
    let node = engine
        .node()
        .handle(handler)
        .queue("default", 2)
        .lease(Duration::from_secs(5))
        .start()
        .await
        .expect("a node");
    let other = engine
        .node()
        .handle(quick)
        .queue("other", 1)
        .lease(Duration::from_secs(5))
        .start()
        .await
        .expect("a node that would rescue");
    let job = engine.enqueue(work(1)).timeout(Duration::from_millis(50)).await.expect("enqueued");
    eventually("it is called stuck", async || {
        matches!(engine.jobs().why(job.id).await.expect("a reason"), Why::Stuck { .. })
    })
    .await;
    let stuck = record(&engine, job.id).await.summary;
    assert!(stuck.stuck);
    assert_eq!((stuck.status.state, stuck.claim), (State::Running, 1), "its lease is kept");
    assert_eq!(copies.load(Ordering::SeqCst), 1);
    drop(release);
    // It succeeded, however late.
    assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
    assert_eq!(copies.load(Ordering::SeqCst), 1);
    tokio::join!(node.shutdown(), other.shutdown());
}
