//! The testing module itself: what users' tests rely on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::testing::{Error, TestEngine};
use mainspring::{Context, Job, JobId, Reason, State, Status, discard};
use serde::{Deserialize, Serialize};

use crate::support::{Gate, Ledger, Work, record, soon, state, work};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(kind = "child", result = u64, aliases = ["kid"])]
struct Child {
    of: u64,
}

/// Each job of this kind enqueues a child.
async fn parent(ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    ctx.engine().enqueue(Child { of: job.n }).await?;
    Ok(job.n)
}

async fn child(_ctx: Context, job: Child) -> mainspring::HandlerResult<u64> {
    Ok(job.of * 10)
}

#[tokio::test]
async fn idle_means_that_what_handlers_enqueue_has_run_too() {
    let test = TestEngine::new();
    test.node(|node| node.handle(parent).handle(child).queue("default", 3)).await.expect("a node");
    test.enqueue_many((0..50).map(work)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.enqueued::<Child>().len(), 50);
    for n in 0..50 {
        let job = test.assert_enqueued::<Child>(|job| job.of == n);
        assert_eq!(test.outcome(&job).expect("it ran"), n * 10);
    }
}

#[tokio::test]
async fn idle_does_not_move_the_clock() {
    let test = TestEngine::new();
    let fails = async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> { Err("no")? };
    test.node(|node| node.handle(fails).queue("default", 1)).await.expect("a node");
    let before = test.now();
    let error = test.run(work(1)).await.expect_err("it waits for its next attempt");
    assert!(matches!(error, Error::NotEnded { .. }), "{error}");
    assert!(error.to_string().ends_with("it is scheduled, after: no"), "{error}");
    assert_eq!(test.now(), before);
    assert_eq!(before.to_string(), "2026-01-01T00:00:00.000Z");
}

#[tokio::test]
async fn idle_waits_for_things_outside_of_the_engine() {
    let test = TestEngine::new();
    // A thread of the runtime, not of the engine.
    let handler = async |_ctx: Context, job: Work| {
        tokio::task::yield_now().await;
        let mut outside = tokio::task::JoinSet::new();
        outside.spawn_blocking(move || job.n);
        mainspring::HandlerResult::Ok(outside.join_all().await[0])
    };
    test.node(|node| node.handle(handler).queue("default", 2)).await.expect("a node");
    for n in 0..10 {
        assert_eq!(test.run(work(n)).await.expect("it ends"), n);
    }
}

/// On one thread all of this happens before the test itself is polled again.
#[tokio::test]
async fn a_handler_that_ends_at_one_go_after_it_was_woken_is_noticed() {
    const YIELDS: usize = 20_000;
    let test = TestEngine::new();
    let handler = async |_ctx: Context, job: Work| {
        let mut outside = tokio::task::JoinSet::new();
        outside.spawn(async move {
            for _ in 0..YIELDS {
                tokio::task::yield_now().await;
            }
            job.n
        });
        mainspring::HandlerResult::Ok(outside.join_all().await[0])
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    assert_eq!(test.run(work(7)).await.expect("it ends"), 7);
}

#[tokio::test]
async fn a_handler_that_waits_for_ever_is_named() {
    let test = TestEngine::new().patience(SECOND);
    let handler =
        async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> { std::future::pending().await };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    let error = test.run_until_idle().await.expect_err("it never ends").to_string();
    assert!(error.contains(&job.id.to_string()) && error.contains("`work`"), "{error}");
}

#[tokio::test]
async fn jobs_without_end_are_named() {
    let test = TestEngine::new().patience(Duration::from_millis(200));
    let again = async |ctx: Context, job: Work| {
        ctx.engine().enqueue(work(job.n + 1)).await?;
        mainspring::HandlerResult::Ok(job.n)
    };
    test.node(|node| node.handle(again).queue("default", 1)).await.expect("a node");
    let error = soon("an end", test.run(work(0))).await.expect_err("no end");
    assert!(matches!(error, Error::Endless { .. }), "{error}");
}

#[tokio::test]
async fn jobs_that_nobody_can_run_do_not_keep_a_test_from_being_idle() {
    let test = TestEngine::new();
    test.run_until_idle().await.expect("idle without a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.node(|node| node.handle(child).queue("default", 1)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, job.id).await, State::Ready);
    test.assert_enqueued::<Work>(|job| job.n == 1);
    test.assert_not_enqueued::<Work>(|job| job.n == 2);
    test.assert_not_enqueued::<Child>(|_| true);
}

#[tokio::test]
async fn enqueued_jobs_come_first_to_last_and_under_all_their_names() {
    let test = TestEngine::new();
    for of in 0..2_500 {
        let kind = if of % 2 == 0 { "child" } else { "kid" };
        test.enqueue_json(kind, &serde_json::json!({ "of": of })).await.expect("enqueued");
    }
    let all: Vec<_> = test.enqueued::<Child>().into_iter().map(|job| job.of).collect();
    assert_eq!(all, (0..2_500).collect::<Vec<_>>());
}

#[test]
fn a_missing_job_is_told_with_what_there_is() {
    let message = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let test = TestEngine::new();
            test.enqueue(Child { of: 1 }).await.expect("enqueued");
            test.assert_enqueued::<Child>(|job| job.of == 2);
        });
    });
    let message = message.expect_err("there is none");
    let message = message.downcast_ref::<String>().expect("a text");
    assert_eq!(message, "no job of kind `child` fits the condition; enqueued: {\"of\":1}");
}

#[tokio::test]
async fn what_was_enqueued_stays_known_when_it_is_removed() {
    let test = TestEngine::new();
    test.node(|node| node.handle(parent).handle(child).queue("default", 3)).await.expect("a node");
    test.run(work(7)).await.expect("it ran");
    let job = test.assert_enqueued::<Child>(|child| child.of == 7);
    test.advance(Duration::from_hours(24 * 30)).await.expect("time passes");
    assert!(test.jobs().get(job.id).await.is_err(), "its retention is over");
    assert_eq!(test.assert_enqueued::<Child>(|child| child.of == 7).id, job.id);
    test.expect_enqueued::<Child>().at(test.now()).assert_none();
    test.run(work(8)).await.expect("it ran");
    let deleted = test.enqueue(Child { of: 9 }).delay(SECOND).await.expect("enqueued");
    test.jobs().delete(deleted.id).await.expect("deleted");
    let all: Vec<u64> = test.enqueued::<Child>().into_iter().map(|child| child.of).collect();
    assert_eq!(all, [7, 8, 9]);
}

#[tokio::test]
async fn what_is_expected_has_conditions() {
    let test = TestEngine::new();
    test.node(|node| node.handle(child).queue("default", 3)).await.expect("a node");
    let (now, hour) = (test.now(), Duration::from_hours(1));
    let special =
        test.enqueue(Child { of: 1 }).queue("mail").priority(2).tag("x").delay(hour).max_attempts(3);
    let special =
        special.unique("k").label("gpu").header("trace", "1").timeout(SECOND).await.expect("enqueued");
    test.enqueue(Child { of: 2 }).await.expect("enqueued");
    let expected = || test.expect_enqueued::<Child>();
    let found = expected().queue("mail").priority(2).tag("x").at(now.after(hour)).max_attempts(3).unique("k");
    let found = found.label("gpu").header("trace", "1").timeout(SECOND).matching(|child| child.of == 1);
    assert_eq!(found.assert().id, special.id);
    test.run_until_idle().await.expect("idle");
    expected().at(now).queue("default").assert_count(1);
    expected().at(hour).assert_count(1);
    expected().assert_count(2);
    for none in [
        expected().queue("default").tag("x"),
        expected().priority(3),
        expected().at(now.after(SECOND)),
        expected().tag("y"),
        expected().label("cpu"),
        expected().unique("l"),
        expected().header("trace", "2"),
        expected().max_attempts(4),
        expected().timeout(2 * SECOND),
        expected().queue("mail").matching(|child| child.of == 2),
    ] {
        none.assert_none();
    }
}

#[test]
fn what_was_expected_is_told_with_what_there_is() {
    let message = std::panic::catch_unwind(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let test = TestEngine::new();
            test.enqueue(Child { of: 1 }).queue("mail").tag("x").await.expect("enqueued");
            test.expect_enqueued::<Child>().queue("post").tag("x").matching(|child| child.of == 1).assert();
        });
    });
    let message = message.expect_err("there is none");
    let message = message.downcast_ref::<String>().expect("a text");
    let expected = "no job of kind `child` in queue `post`, with tag `x`, that match; enqueued: \n  {\"of\":1} in queue `mail`, \
                    priority 5, to run at 2026-01-01T00:00:00.000Z, {\"tags\":[\"x\"]}";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn time_passes_step_by_step_and_far() {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    let (notes, begin) = (ledger.clone(), test.now());
    let handler = move |ctx: Context, job: Work| {
        notes.add(ctx.engine().seams().clock.now().since(begin).as_secs());
        async move {
            if job.n > 0 {
                ctx.engine().enqueue(work(job.n - 1)).delay(Duration::from_hours(24)).await?;
            }
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.enqueue(work(60)).delay(90 * SECOND).await.expect("enqueued");
    test.advance(Duration::from_hours(24 * 365)).await.expect("a year passes");
    // Each at its very second, although nobody stopped for the seconds between.
    let expected: Vec<_> = (0..=60).map(|day| 90 + day * 86_400).collect();
    assert_eq!(ledger.entries(), expected);
    assert_eq!(test.now().since(begin), Duration::from_hours(24 * 365));
}

#[tokio::test]
async fn the_first_attempt_of_each_job_can_be_made_to_fail() {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    let notes = ledger.clone();
    let handler = move |_ctx: Context, job: Work| {
        notes.add(job.n);
        async move { mainspring::HandlerResult::Ok(job.n) }
    };
    test.node(|node| node.handle(handler).handle(child).queue("default", 1)).await.expect("a node");
    test.fail_once::<Work>();
    let jobs = test.enqueue_many((1..=2).map(work)).await.expect("enqueued");
    assert_eq!(test.run(Child { of: 1 }).await.expect("another kind"), 10);
    assert_eq!(ledger.entries(), [1, 2]);
    assert_eq!(record(&test, jobs[0].id).await.summary.failures, 1);
    test.advance(2 * SECOND).await.expect("time passes");
    assert_eq!(ledger.sorted(), [1, 1, 2, 2]);
    assert_eq!(test.outcome(&jobs[0]).expect("the second attempt"), 1);
}

#[tokio::test]
async fn each_job_can_be_made_to_run_twice() {
    let (test, runs) = (TestEngine::new(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&runs);
    let handler = move |_ctx: Context, job: Child| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { if job.of == 0 { Err(discard("no"))? } else { mainspring::HandlerResult::Ok(job.of) } }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.run_twice::<Child>();
    let job = test.enqueue_json("kid", &serde_json::json!({ "of": 4 })).await.expect("enqueued");
    test.run_until_idle().await.expect("idle, at once");
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    let summary = record(&test, job.id).await.summary;
    assert_eq!((summary.status.state, summary.failures), (State::Succeeded, 0));
    // What fails by itself is left as it is.
    let failed = test.enqueue(Child { of: 0 }).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(
        record(&test, failed.id).await.summary.status,
        Status::because(State::Failed, Reason::Discarded)
    );
    assert_eq!(runs.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_crash_releases_nothing_and_a_later_shutdown_returns() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    test.crash().await.expect("it dies");
    gate.open();
    test.advance(100 * SECOND).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Running, "nobody is there to rescue it");
    soon("it is gone", node.shutdown()).await;
    test.run_until_idle().await.expect("idle: nothing of a dead node counts");
}

/// The same seed gives the same run: the same ids, the same jitter, the same order.
#[tokio::test]
async fn runs_are_the_same_for_the_same_seed() {
    async fn run(seed: u64) -> (Vec<JobId>, Vec<u64>, Vec<i64>) {
        let (test, ledger) = (TestEngine::seeded(seed), Ledger::default());
        let handler = {
            let ledger = ledger.clone();
            move |ctx: Context, job: Work| {
                let ledger = ledger.clone();
                async move {
                    tokio::task::yield_now().await;
                    ledger.add(job.n);
                    if ctx.attempt() < 3 { Err("not yet")? } else { mainspring::HandlerResult::Ok(job.n) }
                }
            }
        };
        for _ in 0..3 {
            let handler = handler.clone();
            test.node(|node| node.handle(handler).queue("default", 2)).await.expect("a node");
        }
        let jobs = test.enqueue_many((0..50).map(work)).await.expect("enqueued");
        test.advance(60 * SECOND).await.expect("time passes");
        let mut ends = Vec::new();
        for job in &jobs {
            ends.push(record(&test, job.id).await.summary.finished_at.expect("an end").as_micros());
        }
        (jobs.iter().map(|job| job.id).collect(), ledger.entries(), ends)
    }
    let (first, again, other) = (run(1).await, run(1).await, run(2).await);
    assert_eq!(first, again);
    assert_ne!(first, other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn it_works_on_a_runtime_with_threads_too() {
    let test = TestEngine::new();
    test.node(|node| node.handle(parent).handle(child).queue("default", 8)).await.expect("a node");
    for round in 0..20 {
        test.enqueue_many((0..50).map(|n| work(round * 50 + n))).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let ended = test.jobs().counts().await.expect("counts").total(State::Succeeded);
        assert_eq!(ended, (round + 1) * 100);
    }
}

#[tokio::test]
async fn a_result_can_be_awaited_while_the_clock_stands_still() {
    let test = TestEngine::new();
    test.node(|node| node.handle(child).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Child { of: 3 }).await.expect("enqueued");
    assert_eq!(soon("a result", test.result(&job)).await.expect("it ran"), 30);
}
