//! Enqueuing: unique keys, many at once, repeats.

use std::time::Duration;

use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Error, JobId, Reason, State, Status, Unique, Until, bounds};

use crate::support::{
    Ledger, Work, assert_sound, eventually, on_every_store, record, soon, state, status, total, work,
};

const SECOND: Duration = Duration::from_secs(1);

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

on_every_store! {
    async fn a_held_key_keeps_the_job_that_has_it(engine: Engine) {
        let first = engine.enqueue(work(1)).unique("user 7").await.expect("enqueued");
        assert!(!first.existing);
        let second = engine.enqueue(work(2)).unique("user 7").await.expect("kept");
        assert!(second.existing);
        assert_eq!(second.id, first.id);
        let other = engine.enqueue(work(3)).unique("user 8").await.expect("enqueued");
        assert!(!other.existing);
        assert_eq!(total(&engine, State::Ready).await, 2);
        let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
        assert_eq!(soon("its end", engine.result(&second)).await.expect("it succeeded"), 1);
        let third = engine.enqueue(work(4)).unique("user 7").await.expect("enqueued");
        assert!(!third.existing, "the key is free once its job has ended");
        node.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn a_held_key_can_replace_the_job_that_has_it(engine: Engine) {
        let key = || Unique::new("report").replace();
        let first = engine.enqueue(work(1)).delay(Duration::from_hours(1)).unique(key()).await.expect("enqueued");
        let second = engine.enqueue(work(2)).unique(key()).await.expect("replaced");
        assert!(!second.existing);
        assert_eq!(status(&engine, first.id).await, Status::because(State::Cancelled, Reason::Replaced));
        let error = engine.result(&first).await.expect_err("it was replaced");
        assert!(matches!(error, Error::Ended { .. }), "{error}");
        assert_eq!(state(&engine, second.id).await, State::Ready);
        assert_sound(&engine).await;
    }

    async fn a_held_key_can_refuse_the_new_job(engine: Engine) {
        let first = engine.enqueue(work(1)).unique("once").await.expect("enqueued");
        let error = engine.enqueue(work(2)).unique(Unique::new("once").reject()).await.expect_err("refused");
        assert!(matches!(error, Error::Conflict { existing } if existing == first.id), "{error}");
        assert_eq!(total(&engine, State::Ready).await, 1);
    }

    async fn a_key_belongs_to_a_kind(engine: Engine) {
        engine.enqueue(work(1)).unique("k").await.expect("enqueued");
        let other = engine.enqueue_json("other", &serde_json::json!(1)).unique("k").await.expect("enqueued");
        assert!(!other.existing);
    }

    async fn the_same_id_twice_is_the_same_job(engine: Engine) {
        let id = JobId::from_bytes([9; 16]);
        let first = engine.enqueue(work(1)).id(id).await.expect("enqueued");
        let again = engine.enqueue(work(1)).id(id).await.expect("the same");
        assert_eq!((first.id, again.id), (id, id));
        assert_eq!(total(&engine, State::Ready).await, 1);
        assert_eq!(record(&engine, id).await.input, br#"{"n":1}"#);
    }

    async fn ten_thousand_jobs_go_in_with_one_call_and_all_run_once(engine: Engine) {
        let ledger = Ledger::default();
        let notes = ledger.clone();
        let handler = move |_ctx: Context, job: Work| {
            notes.add(job.n);
            async move { mainspring::HandlerResult::Ok(job.n) }
        };
        let jobs = engine.enqueue_many((0..10_000).map(work)).tag("bulk").await.expect("enqueued");
        assert_eq!(jobs.len(), 10_000);
        assert!(jobs.iter().all(|job| !job.existing));
        assert_eq!(record(&engine, jobs[9_999].id).await.input, br#"{"n":9999}"#, "ids are in order");
        let node = engine.node().handle(handler).queue("default", 8).start().await.expect("a node");
        eventually("all end", async || total(&engine, State::Succeeded).await == 10_000).await;
        for job in jobs.iter().step_by(99) {
            soon("its end", engine.result(job)).await.expect("it succeeded");
        }
        node.shutdown().await;
        assert_eq!(ledger.sorted(), (0..10_000).collect::<Vec<_>>());
        assert_eq!(total(&engine, State::Succeeded).await, 10_000);
        assert_sound(&engine).await;
    }

    async fn many_callers_at_once_get_their_own_answers(engine: Engine) {
        let enqueues = (0..500).map(async |n| engine.enqueue(work(n)).await.expect("enqueued").id);
        let mut ids = Vec::new();
        let mut enqueues: Vec<_> = enqueues.map(Box::pin).collect();
        // All are polled before any is awaited, so that they share batches.
        let all = std::future::poll_fn(|cx| {
            enqueues.retain_mut(|enqueue| match enqueue.as_mut().poll(cx) {
                std::task::Poll::Ready(id) => { ids.push(id); false }
                std::task::Poll::Pending => true,
            });
            if enqueues.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        soon("all are in", all).await;
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 500);
        assert_eq!(total(&engine, State::Ready).await, 500);
    }
}

/// Lesson A6: dedupe had a hole during retry back-off.
#[tokio::test]
async fn a_key_is_held_while_its_job_waits_for_another_attempt() {
    let test = TestEngine::new();
    let handler = async |ctx: Context, job: Work| {
        if ctx.attempt() == 1 { Err("not yet")? } else { mainspring::HandlerResult::Ok(job.n) }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let first = test.enqueue(work(1)).unique("k").await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, first.id).await, State::Scheduled);
    assert!(test.enqueue(work(2)).unique("k").await.expect("kept").existing);
    test.advance(10 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&first).expect("it succeeded"), 1);
    assert!(!test.enqueue(work(3)).unique("k").await.expect("enqueued").existing);
}

#[tokio::test]
async fn a_key_held_until_the_start_is_free_while_its_job_runs() {
    let test = TestEngine::new();
    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 {
            std::future::pending::<()>().await;
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    let key = || Unique::new("k").until(Until::Started);
    let first = test.enqueue(work(0)).unique(key()).await.expect("enqueued");
    assert!(test.enqueue(work(1)).unique(key()).await.expect("kept").existing);
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, first.id).await, State::Running);
    assert!(!test.enqueue(work(1)).unique(key()).await.expect("enqueued").existing);
}

#[tokio::test]
async fn a_key_can_be_held_for_a_while_after_the_end() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let key = || Unique::new("k").until(Until::after(60 * SECOND));
    let first = test.enqueue(work(1)).unique(key()).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&first).expect("it succeeded"), 1);
    test.advance(59 * SECOND).await.expect("time passes");
    let kept = test.enqueue(work(2)).unique(key()).await.expect("kept");
    assert_eq!((kept.existing, kept.id), (true, first.id));
    test.advance(SECOND).await.expect("time passes");
    assert!(!test.enqueue(work(3)).unique(key()).await.expect("enqueued").existing);
}

/// One bad row never fails its batch: callers that share a commit do not share its mistakes.
#[tokio::test]
async fn a_job_that_the_store_refuses_does_not_harm_its_neighbours() {
    let engine = Engine::open("memory:").await.expect("a store");
    engine.enqueue(work(0)).await.expect("enqueued");
    // One line is taken; these take all others.
    for n in 1..bounds::LINES {
        engine.enqueue_json(&format!("kind-{n}"), &serde_json::json!(null)).await.expect("enqueued");
    }
    let null = serde_json::json!(null);
    let (good, bad, fine) = tokio::join!(
        async { engine.enqueue(work(1)).await },
        async { engine.enqueue_json("one-too-many", &null).await },
        async { engine.enqueue(work(2)).await },
    );
    assert!(matches!(bad, Err(Error::TooLarge { what: "number of lines", .. })), "{bad:?}");
    good.expect("not its fault");
    fine.expect("not its fault");
}

#[tokio::test]
async fn an_enqueue_that_is_dropped_unawaited_stores_nothing() {
    let test = TestEngine::new();
    drop(test.enqueue(work(1)));
    drop(test.enqueue_many((0..10).map(work)));
    test.run_until_idle().await.expect("idle");
    assert_eq!(total(&test, State::Ready).await, 0);
}

on_every_store! {
    async fn an_id_that_another_job_has_is_refused(engine: Engine) {
        let id = JobId::from_bytes([7; 16]);
        let first = engine.enqueue(work(1)).id(id).await.expect("enqueued");
        assert_eq!((first.id, first.existing), (id, false));
        let again = engine.enqueue(work(1)).id(id).queue("other").await.expect("the same");
        assert_eq!((again.id, again.existing), (id, true));
        for error in [
            engine.enqueue(work(2)).id(id).await.expect_err("another input"),
            engine.enqueue(work(2)).id(id).unique("k").await.expect_err("another input, and a key"),
            engine.enqueue_json("other", &serde_json::json!({ "n": 1 })).id(id).await.expect_err("another kind"),
        ] {
            assert!(matches!(error, Error::IdTaken { id: holder, .. } if holder == id), "{error}");
        }
        assert!(!engine.enqueue(work(3)).unique("k").await.expect("its key is free").existing);

        let source = engine.enqueue(work(4)).await.expect("enqueued").id;
        let error = engine.jobs().fork(source).id(id).await.expect_err("no fork");
        assert!(matches!(error, Error::IdTaken { id: holder, .. } if holder == id), "{error}");
        let other = JobId::from_bytes([8; 16]);
        let fork = engine.jobs().fork(source).id(other).await.expect("forked");
        assert_eq!(engine.jobs().fork(source).id(other).await.expect("the same fork"), fork);
        let error = engine.jobs().fork(source).id(other).input(&work(9)).await.expect_err("another input");
        assert!(matches!(error, Error::IdTaken { .. }), "{error}");
        assert_eq!(total(&engine, State::Ready).await, 4);
        assert_sound(&engine).await;
    }
}
