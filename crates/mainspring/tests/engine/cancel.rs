//! Cancelling: waiting jobs, running ones, here and on another node.

use std::time::Duration;

use mainspring::admin::Why;
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Error, Job, Reason, State, Status};
use mainspring_core::bounds;
use serde::{Deserialize, Serialize};

use crate::support::{Gate, Ledger, Work, ended, on_every_store, record, soon, sqlite, state, work};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "polite", result = u64)]
struct Polite {
    /// How long it takes to tidy up, in seconds; more than there is means for ever.
    tidy: u64,
}

/// Ends in its own way when it is cancelled.
async fn polite(ctx: Context, job: Polite) -> mainspring::HandlerResult<u64> {
    ctx.cancelled().await;
    ctx.engine().seams().clock.sleep(Duration::from_secs(job.tidy)).await;
    Ok(job.tidy)
}

async fn endless(_ctx: Context, _job: Work) -> mainspring::HandlerResult<u64> {
    std::future::pending().await
}

on_every_store! {
    async fn a_waiting_job_is_cancelled_at_once(engine: Engine) {
        for delay in [Duration::ZERO, Duration::from_hours(1)] {
            let job = engine.enqueue(work(1)).delay(delay).await.expect("enqueued");
            let tally = engine.jobs().cancel(job.id).because("not needed; '").await.expect("cancelled");
            assert_eq!(tally.changed, 1);
            let after = record(&engine, job.id).await;
            assert_eq!(after.summary.status, Status::because(State::Cancelled, Reason::Operator));
            assert_eq!(after.note.as_deref(), Some("not needed; '"));
        }
    }

    async fn a_running_job_is_dropped_at_its_next_await_when_it_is_cancelled(engine: Engine) {
        let gate = Gate::default();
        let door = gate.clone();
        let handler = move |_ctx: Context, job: Work| {
            let gate = door.clone();
            async move {
                gate.pass().await;
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        // Whoever is not told finds out with the next renewal, later than anybody waits here.
        let node = engine.node().handle(handler).queue("default", 1).lease(bounds::LEASE_MAX);
        let node = node.start().await.expect("a node");
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        gate.reached(1).await;
        engine.jobs().cancel(job.id).because("wrong user").await.expect("cancelled");
        let after = ended(&engine, job.id).await;
        assert_eq!(after.summary.status, Status::because(State::Cancelled, Reason::Operator));
        assert_eq!(after.note.as_deref(), Some("wrong user"));
        node.shutdown().await;
    }

    async fn an_ended_job_cannot_be_cancelled(engine: Engine) {
        let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
        let node = engine.node().handle(handler).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        soon("its end", engine.result(&job)).await.expect("it succeeded");
        let error = engine.jobs().cancel(job.id).await.expect_err("too late");
        assert!(matches!(error, Error::Illegal { verb: "cancel", .. }), "{error}");
        assert_eq!(state(&engine, job.id).await, State::Succeeded);
        node.shutdown().await;
    }
}

#[tokio::test]
async fn a_handler_that_watches_for_it_may_end_in_its_own_way() {
    let test = TestEngine::new();
    test.node(|node| node.handle(polite).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Polite { tidy: 3 }).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.advance(2 * SECOND).await.expect("time passes");
    assert!(matches!(test.jobs().why(job.id).await.expect("a reason"), Why::Cancelling { .. }));
    test.advance(SECOND).await.expect("time passes");
    // It came to a good end all the same: that wins.
    assert_eq!(test.outcome(&job).expect("it succeeded"), 3);
}

#[tokio::test]
async fn a_handler_that_takes_too_long_to_end_is_dropped() {
    let test = TestEngine::new();
    test.node(|node| node.handle(polite).queue("default", 1).cancel_grace(4 * SECOND)).await.expect("a node");
    let job = test.enqueue(Polite { tidy: 1_000_000 }).await.expect("enqueued");
    test.run_until_idle_or_running().await;
    test.jobs().cancel(job.id).because("enough").await.expect("cancelled");
    test.advance(Duration::from_millis(3_900)).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Running);
    test.advance(Duration::from_millis(100)).await.expect("time passes");
    let after = record(&test, job.id).await;
    assert_eq!(after.summary.status, Status::because(State::Cancelled, Reason::Operator));
    assert_eq!(after.note.as_deref(), Some("enough"));
}

#[tokio::test]
async fn a_failure_of_a_cancelled_job_is_how_it_stopped() {
    #[derive(Serialize, Deserialize, Job)]
    struct Sulks {}
    let handler = async |ctx: Context, _job: Sulks| -> mainspring::HandlerResult<()> {
        ctx.cancelled().await;
        Err("interrupted")?
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Sulks {}).await.expect("enqueued");
    test.run_until_idle_or_running().await;
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.summary.status.state, State::Cancelled);
}

#[tokio::test]
async fn is_cancelled_tells_and_asks_for_grace() {
    #[derive(Serialize, Deserialize, Job)]
    #[job(result = u64)]
    struct Looks {}
    let handler = async |ctx: Context, _job: Looks| {
        let mut looks = 0;
        while !ctx.is_cancelled() {
            looks += 1;
            ctx.engine().seams().clock.sleep(SECOND).await;
        }
        mainspring::HandlerResult::Ok(looks)
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Looks {}).await.expect("enqueued");
    test.advance(Duration::from_millis(2_500)).await.expect("time passes");
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it ended well"), 3);
}

/// The job is claimed ahead of its turn and waits on its node.
#[tokio::test]
async fn a_job_that_waits_on_its_node_is_cancelled_without_running() {
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
    for n in 1..=20 {
        test.run(work(n)).await.expect("it succeeds");
    }
    test.enqueue(work(0)).await.expect("enqueued");
    let next = test.enqueue(work(100)).await.expect("enqueued");
    test.run_until_idle_or_running().await;
    test.jobs().cancel(next.id).await.expect("cancelled");
    test.run_until_idle_or_running().await;
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, next.id).await, State::Cancelled);
    assert!(!ledger.entries().contains(&100));
}

/// Two nodes of one store: the one that is asked is not the one that runs.
#[tokio::test]
async fn a_cancel_reaches_another_node_within_a_renewal() {
    let (address, _dir) = sqlite();
    let (here, there) =
        (Engine::open(&address).await.expect("a store"), Engine::open(&address).await.expect("again"));
    let gate = Gate::default();
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let node = there
        .node()
        .handle(handler)
        .queue("default", 1)
        .lease(Duration::from_secs(3))
        .start()
        .await
        .expect("a node");
    let job = here.enqueue(work(1)).await.expect("enqueued");
    gate.reached(1).await;
    here.jobs().cancel(job.id).because("from afar").await.expect("cancelled");
    let error = soon("its end", here.result(&job)).await.expect_err("it was cancelled");
    assert_eq!(error.to_string(), format!("job {} cancelled (operator): from afar", job.id));
    node.shutdown().await;
}

#[tokio::test]
async fn a_cancel_is_not_lost_when_the_node_shuts_down_or_dies() {
    for dies in [false, true] {
        let test = TestEngine::new();
        let node = test.node(|node| node.handle(polite).queue("default", 1)).await.expect("a node");
        let job = test.enqueue(Polite { tidy: 1_000_000 }).await.expect("enqueued");
        test.run_until_idle_or_running().await;
        test.jobs().cancel(job.id).because("stop it").await.expect("cancelled");
        if dies {
            test.crash().await.expect("the node dies");
            test.node(|node| node.handle(polite).queue("default", 1)).await.expect("another");
            test.advance(20 * SECOND).await.expect("time passes");
        } else {
            let (aborted, ()) = tokio::join!(test.advance(SECOND), node.abort());
            aborted.expect("time passes");
        }
        let after = record(&test, job.id).await;
        assert_eq!(after.summary.status, Status::because(State::Cancelled, Reason::Operator), "dies: {dies}");
        assert_eq!(after.note.as_deref(), Some("stop it"));
    }
}

#[tokio::test]
async fn a_cancelled_job_is_not_tried_again() {
    let test = TestEngine::new();
    test.node(|node| node.handle(endless).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).timeout(2 * SECOND).await.expect("enqueued");
    test.run_until_idle_or_running().await;
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.advance(Duration::from_mins(5)).await.expect("time passes");
    let after = record(&test, job.id).await.summary;
    assert_eq!((after.status.state, after.claim), (State::Cancelled, 1));
}

/// Not idle, because a handler waits; that is what these tests want.
trait OrRunning {
    async fn run_until_idle_or_running(&self);
}

impl OrRunning for TestEngine {
    async fn run_until_idle_or_running(&self) {
        self.advance(Duration::ZERO).await.expect("it settles");
    }
}
