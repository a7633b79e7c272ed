//! Shutting down: it drains, it gives back, it never hangs, and it burns nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, NodeBuilder, State};

use crate::support::{Gate, Ledger, Work, assert_sound, on_every_store, record, soon, state, total, work};

const SECOND: Duration = Duration::from_secs(1);

/// A node whose jobs wait at a gate.
fn gated(node: NodeBuilder, gate: &Gate, ledger: &Ledger) -> NodeBuilder {
    let (gate, ledger) = (gate.clone(), ledger.clone());
    let handler = move |_ctx: Context, job: Work| {
        let (gate, ledger) = (gate.clone(), ledger.clone());
        async move {
            gate.pass().await;
            ledger.add(job.n);
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    node.handle(handler)
}

on_every_store! {
    async fn running_jobs_may_end_and_nothing_more_is_claimed(engine: Engine) {
        let (gate, ledger) = (Gate::default(), Ledger::default());
        let node = gated(engine.node(), &gate, &ledger).queue("default", 2).start().await.expect("a node");
        let jobs = engine.enqueue_many((0..10).map(work)).await.expect("enqueued");
        gate.reached(2).await;
        let opening = async {
            node.shutting_down().await;
            assert!(node.is_shutting_down());
            gate.open();
        };
        soon("it drains", async { tokio::join!(node.shutdown(), opening) }).await;
        assert_eq!(ledger.len(), 2, "lesson A2: those not reached went on claiming");
        assert_eq!(total(&engine, State::Running).await, 0);
        assert_eq!(total(&engine, State::Ready).await, 8);
        for job in &jobs {
            assert_eq!(record(&engine, job.id).await.summary.failures, 0);
        }
        let next = gated(engine.node(), &gate, &ledger).queue("default", 2).start().await.expect("a node");
        for job in &jobs {
            soon("the next takes over", engine.result(job)).await.expect("it succeeded");
        }
        assert_eq!(ledger.sorted(), (0..10).collect::<Vec<_>>());
        next.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn aborting_gives_running_jobs_back_without_counting_anything(engine: Engine) {
        let (gate, ledger) = (Gate::default(), Ledger::default());
        let node = gated(engine.node(), &gate, &ledger).queue("default", 3).start().await.expect("a node");
        let jobs = engine.enqueue_many((0..5).map(work)).max_attempts(1).await.expect("enqueued");
        gate.reached(3).await;
        soon("it aborts", node.abort()).await;
        for job in &jobs {
            let summary = record(&engine, job.id).await.summary;
            assert_eq!(summary.status.state, State::Ready);
            assert_eq!((summary.failures, summary.crashes), (0, 0), "deploys burn no attempts");
        }
        assert_eq!(node.claims(), 0);
        let nodes = engine.nodes().await.expect("nodes");
        assert_eq!(nodes[0].claims, 0);
        gate.open();
        let next = gated(engine.node(), &gate, &ledger).queue("default", 3).start().await.expect("a node");
        for job in &jobs {
            soon("the next takes over", engine.result(job)).await.expect("its one attempt is left");
        }
        assert_eq!(ledger.sorted(), [0, 1, 2, 3, 4]);
        next.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn shutting_down_twice_and_at_once_waits_for_the_same_end(engine: Engine) {
        let (gate, ledger) = (Gate::default(), Ledger::default());
        let node = gated(engine.node(), &gate, &ledger).queue("default", 1).start().await.expect("a node");
        gate.open();
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        soon("its end", engine.result(&job)).await.expect("it succeeded");
        soon("all return", async {
            tokio::join!(node.shutdown(), node.shutdown(), node.abort(), node.shutdown());
            node.shutdown().await;
            node.abort().await;
        })
        .await;
        assert!(node.is_shutting_down());
    }
}

#[tokio::test]
async fn draining_ends_after_its_time_and_gives_the_rest_back() {
    let (test, gate, ledger) = (TestEngine::new(), Gate::default(), Ledger::default());
    let node = test
        .node(|node| gated(node, &gate, &ledger).queue("default", 2).drain(10 * SECOND))
        .await
        .expect("a node");
    let jobs = test.enqueue_many((0..4).map(work)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    let began = test.now();
    let ((), advanced) = tokio::join!(node.shutdown(), test.advance(10 * SECOND));
    advanced.expect("time passes");
    assert_eq!(test.now().since(began), 10 * SECOND);
    for job in &jobs {
        assert_eq!(state(&test, job.id).await, State::Ready);
    }
    assert_sound(&test).await;
}

/// Polls a future as sets of futures do: under a waker of its own.
async fn under_another_waker(future: impl Future<Output = ()>) {
    struct Other(Waker);
    impl Wake for Other {
        fn wake(self: Arc<Self>) {
            self.0.wake_by_ref();
        }
    }
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        let other = Waker::from(Arc::new(Other(context.waker().clone())));
        future.as_mut().poll(&mut std::task::Context::from_waker(&other))
    })
    .await;
}

/// Handlers hear of the drain under their own waker and under another one, and only then.
#[tokio::test]
async fn a_handler_is_told_that_its_node_drains() {
    let test = TestEngine::new();
    let handler = async |ctx: Context, job: Work| {
        assert!(!ctx.is_draining());
        if job.n == 0 {
            ctx.draining().await;
        } else {
            under_another_waker(ctx.draining()).await;
        }
        assert!(ctx.is_draining());
        // The node lets it do more than one thing before it ends.
        ctx.engine().seams().clock.sleep(SECOND).await;
        mainspring::HandlerResult::Ok(job.n)
    };
    let node = test.node(|node| node.handle(handler).queue("default", 2)).await.expect("a node");
    let jobs = test.enqueue_many((0..2).map(work)).await.expect("enqueued");
    test.advance(10 * SECOND).await.expect("time passes");
    let began = test.now();
    let ((), advanced) = tokio::join!(node.shutdown(), test.advance(5 * SECOND));
    advanced.expect("time passes");
    for job in &jobs {
        let record = record(&test, job.id).await;
        assert_eq!((record.summary.status.state, record.summary.claim), (State::Succeeded, 1));
        assert_eq!(
            record.summary.finished_at.expect("it ended").since(began),
            SECOND,
            "it needed no drain time"
        );
    }
}

#[tokio::test]
async fn a_job_that_is_snoozed_because_its_node_drains_runs_on_another_and_counts_nothing() {
    let test = TestEngine::new();
    let handler = async |ctx: Context, job: Work| {
        if ctx.info().claim == 1 {
            ctx.draining().await;
            Err(mainspring::snooze(Duration::ZERO))?;
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(7)).max_attempts(1).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    node.shutdown().await;
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("another");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 7);
    let summary = record(&test, job.id).await.summary;
    assert_eq!((summary.claim, summary.failures, summary.crashes), (2, 0, 0));
}

/// It waits for nothing but durable operations and the drain: that costs no slot.
#[tokio::test]
async fn a_workflow_that_watches_for_the_drain_is_suspended_all_the_same() {
    let test = TestEngine::new();
    let handler = async |ctx: Context, job: Work| {
        tokio::select! {
            slept = ctx.sleep("nap", 60 * SECOND) => slept?,
            () = ctx.draining() => Err(mainspring::snooze(Duration::ZERO))?,
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Suspended);
    node.shutdown().await;
    assert_eq!(state(&test, job.id).await, State::Suspended, "it holds up nobody");
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("another");
    test.advance(60 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 1);
}

#[tokio::test]
async fn a_job_that_was_enqueued_by_a_draining_node_runs_on_the_next() {
    let test = TestEngine::new();
    let gate = Gate::default();
    let door = gate.clone();
    let handler = move |ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            if job.n == 0 {
                gate.pass().await;
                ctx.engine().enqueue(work(1)).await?;
            }
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let next = handler.clone();
    let node = test.node(|node| node.handle(handler).queue("default", 5)).await.expect("a node");
    test.enqueue(work(0)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    let opening = async {
        node.shutting_down().await;
        gate.open();
    };
    tokio::join!(node.shutdown(), opening);
    let child = test.assert_enqueued::<Work>(|job| job.n == 1);
    assert_eq!(state(&test, child.id).await, State::Ready);
    test.node(|node| node.handle(next).queue("default", 5)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&child).expect("it ran"), 1);
}

/// Lesson B: a shutdown time-out did not abort although it said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shutting_down_is_bounded_even_if_a_handler_never_yields() {
    struct Release(Arc<AtomicBool>);
    impl Drop for Release {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let engine = Engine::open("memory:").await.expect("a store");
    let (release, came) = (Release(Arc::default()), Gate::default());
    let (released, coming) = (Arc::clone(&release.0), came.clone());
    came.open();
    let handler = move |_ctx: Context, job: Work| {
        let (released, coming) = (Arc::clone(&released), coming.clone());
        async move {
            coming.pass().await;
            while !released.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let node = engine
        .node()
        .handle(handler)
        .queue("default", 1)
        .drain(Duration::from_millis(10))
        .start()
        .await
        .expect("a node");
    let job = engine.enqueue(work(1)).await.expect("enqueued");
    came.reached(1).await;
    soon("it gives up on the handler", node.shutdown()).await;
    let summary = record(&engine, job.id).await.summary;
    assert_eq!((summary.status.state, summary.failures), (State::Ready, 0), "it was given back");
    drop(release);
    // The handler ends now, and nothing that it says is accepted.
    let next = engine
        .node()
        .handle(async |_ctx: Context, _job: Work| mainspring::HandlerResult::Ok(42))
        .queue("default", 1)
        .start()
        .await
        .expect("a node");
    assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 42);
    next.shutdown().await;
    assert_sound(&engine).await;
}

/// Lesson A1: a detached heartbeat kept the row of a dead worker fresh.
#[test]
fn a_node_whose_runtime_is_gone_is_rescued() {
    let (address, _dir) = crate::support::sqlite();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let (first, second) = (runtime().expect("a runtime"), runtime().expect("a runtime"));
    let lease = 2 * SECOND;
    let (node, job) = first.block_on(async {
        let engine = Engine::open(&address).await.expect("a store");
        let (gate, ledger) = (Gate::default(), Ledger::default());
        let node = gated(engine.node(), &gate, &ledger).queue("default", 1).lease(lease).start().await;
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        gate.reached(1).await;
        (node.expect("a node"), job)
    });
    // No shutdown: the application forgets the node and drops its runtime.
    first.shutdown_timeout(5 * SECOND);
    second.block_on(async {
        soon("not even a shutdown hangs", node.shutdown()).await;
        let engine = Engine::open(&address).await.expect("a store");
        let (gate, ledger) = (Gate::default(), Ledger::default());
        gate.open();
        let other = gated(engine.node(), &gate, &ledger).queue("default", 1).lease(lease).start().await;
        assert_eq!(soon("it is rescued", engine.result(&job)).await.expect("it succeeded"), 1);
        let summary = record(&engine, job.id).await.summary;
        assert_eq!((summary.claim, summary.failures), (2, 0), "a crash burns no attempt");
        other.expect("a node").shutdown().await;
    });
}

#[tokio::test]
async fn run_until_ends_with_its_signal() {
    let engine = Engine::open("memory:").await.expect("a store");
    let (gate, ledger) = (Gate::default(), Ledger::default());
    gate.open();
    let node = gated(engine.node(), &gate, &ledger).queue("default", 1).start().await.expect("a node");
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    let running = node.run_until(async { drop(gone.await) });
    let stopping = async {
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        engine.result(&job).await.expect("it succeeded");
        drop(go);
    };
    soon("it ends", async { tokio::join!(running, stopping) }).await;
    assert!(node.is_shutting_down());
}
