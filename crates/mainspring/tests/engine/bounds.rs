//! Every bound: N is taken, N + 1 is refused before anything is stored.

use std::time::Duration;

use mainspring::enqueue::Enqueue;
use mainspring::handler::FaultKind;
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Error, Job, State, bounds};
use serde::{Deserialize, Serialize};

use crate::support::{Work, on_every_store, record, total, work};

#[derive(Serialize, Deserialize)]
struct Text(String);

impl Job for Text {
    type Result = String;
    const KIND: &'static str = "text";
}

/// A text that is `bytes` long as JSON.
fn text(bytes: usize) -> Text {
    Text("x".repeat(bytes - 2))
}

/// Enqueues one job as `change` says; whatever is refused leaves nothing behind.
async fn attempt(
    engine: &Engine,
    change: impl FnOnce(Enqueue<'_, Work>) -> Enqueue<'_, Work>,
) -> Result<(), Error> {
    let before = total(engine, State::Ready).await + total(engine, State::Scheduled).await;
    let result = change(engine.enqueue(work(1))).await;
    let after = total(engine, State::Ready).await + total(engine, State::Scheduled).await;
    assert_eq!(after - before, u64::from(result.is_ok()));
    result.map(drop)
}

on_every_store! {
    async fn inputs_beyond_the_bound_are_refused(engine: Engine) {
        engine.enqueue(text(bounds::INPUT_BYTES)).await.expect("at the bound");
        let error = engine.enqueue(text(bounds::INPUT_BYTES + 1)).await.expect_err("beyond it");
        assert!(matches!(error, Error::TooLarge { what: "input", size, limit }
            if size == bounds::INPUT_BYTES + 1 && limit == bounds::INPUT_BYTES), "{error}");
        assert_eq!(total(&engine, State::Ready).await, 1);
    }

    async fn names_and_numbers_beyond_their_bounds_are_refused(engine: Engine) {
        let name = |bytes| "q".repeat(bytes);
        attempt(&engine, |job| job.queue(name(bounds::NAME_BYTES))).await.expect("at the bound");
        for bad in ["", &name(bounds::NAME_BYTES + 1), "a b", "'; drop table jobs", "a\0b", "ä", "a/b"] {
            attempt(&engine, |job| job.queue(bad)).await.expect_err(bad);
            let kind = engine.enqueue_json(bad, &serde_json::json!(null)).await;
            assert!(matches!(kind, Err(Error::Invalid { .. } | Error::TooLarge { .. })), "{bad}");
        }
        attempt(&engine, |job| job.priority(9)).await.expect("at the bound");
        attempt(&engine, |job| job.priority(10)).await.expect_err("beyond it");
        attempt(&engine, |job| job.delay(bounds::DELAY)).await.expect("at the bound");
        attempt(&engine, |job| job.delay(bounds::DELAY + Duration::from_secs(1))).await.expect_err("beyond it");
        attempt(&engine, |job| job.deadline(Duration::MAX)).await.expect_err("beyond it");
        attempt(&engine, |job| job.max_attempts(bounds::ATTEMPTS_MAX)).await.expect("at the bound");
        attempt(&engine, |job| job.max_attempts(bounds::ATTEMPTS_MAX + 1)).await.expect_err("beyond it");
        attempt(&engine, |job| job.max_attempts(0)).await.expect_err("none is too few");
        attempt(&engine, |job| job.timeout(Duration::ZERO)).await.expect_err("no time at all");
    }

    async fn tags_labels_headers_and_keys_beyond_their_bounds_are_refused(engine: Engine) {
        for (count, taken) in [(bounds::TAGS, true), (bounds::TAGS + 1, false)] {
            let tags = attempt(&engine, |job| (0..count).fold(job, |job, n| job.tag(format!("t{n}")))).await;
            assert_eq!(tags.is_ok(), taken, "{count} tags");
            let labels = attempt(&engine, |job| (0..count).fold(job, |job, n| job.label(format!("l{n}")))).await;
            assert_eq!(labels.is_ok(), taken, "{count} labels");
            let headers = attempt(&engine, |job| (0..count).fold(job, |job, n| job.header(format!("h{n}"), "v"))).await;
            assert_eq!(headers.is_ok(), taken, "{count} headers");
        }
        for (bytes, taken) in [(bounds::TAG_BYTES, true), (bounds::TAG_BYTES + 1, false)] {
            assert_eq!(attempt(&engine, |job| job.tag("t".repeat(bytes))).await.is_ok(), taken);
        }
        for (bytes, taken) in [(bounds::KEY_BYTES, true), (bounds::KEY_BYTES + 1, false)] {
            assert_eq!(attempt(&engine, |job| job.unique("k".repeat(bytes))).await.is_ok(), taken);
        }
        for bad in ["", "a\0b", "a\nb"] {
            attempt(&engine, |job| job.tag(bad)).await.expect_err("a bad tag");
        }
        attempt(&engine, |job| job.unique("a\0b")).await.expect_err("NUL in a key");
        attempt(&engine, |job| job.header("h", "a\0b")).await.expect_err("NUL in a header");
        for hostile in ["'; drop table jobs; --", "\"", "%_\\", "\u{202E}abc", "😀"] {
            attempt(&engine, |job| job.tag(hostile).label(hostile).header(hostile, hostile).unique(hostile))
                .await
                .expect("stored as data");
        }
    }
}

#[tokio::test]
async fn a_result_beyond_the_bound_is_a_failure_that_says_so() {
    let test = TestEngine::new();
    let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    let long =
        async |_ctx: Context, _job: Text| mainspring::HandlerResult::Ok(text(bounds::RESULT_BYTES + 1).0);
    test.node(|node| node.handle(handler).handle(long).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(text(10)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let error = &record(&test, job.id).await.errors[0];
    assert_eq!(error.kind, FaultKind::Convert);
    assert_eq!(
        error.message,
        format!(
            "the result has {} bytes, more than the bound of {}",
            bounds::RESULT_BYTES + 1,
            bounds::RESULT_BYTES
        )
    );
}

#[tokio::test]
async fn a_result_at_the_bound_is_kept() {
    let test = TestEngine::new();
    let long = async |_ctx: Context, _job: Text| mainspring::HandlerResult::Ok(text(bounds::RESULT_BYTES).0);
    test.node(|node| node.handle(long).queue("default", 1)).await.expect("a node");
    assert_eq!(test.run(text(10)).await.expect("kept").len(), bounds::RESULT_BYTES - 2);
}

#[tokio::test]
async fn long_errors_are_cut_and_say_so() {
    let test = TestEngine::new();
    let fails = async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
        Err("ä\0".repeat(bounds::ERROR_BYTES))?
    };
    test.node(|node| node.handle(fails).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let message = &record(&test, job.id).await.errors[0].message;
    assert!(message.len() <= bounds::ERROR_BYTES && message.ends_with("(cut)") && !message.contains('\0'));
}

#[tokio::test]
async fn only_the_latest_errors_are_kept() {
    let test = TestEngine::new();
    let fails = async |ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
        Err(ctx.attempt().to_string())?
    };
    test.node(|node| node.handle(fails).queue("default", 1)).await.expect("a node");
    let job = test
        .enqueue(work(1))
        .max_attempts(40)
        .backoff(mainspring::Backoff::Fixed(Duration::ZERO))
        .await
        .expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let record = record(&test, job.id).await;
    assert_eq!((record.summary.failures, record.errors.len()), (40, bounds::ERRORS_KEPT));
    assert_eq!(record.errors.last().expect("an error").message, "40");
}

#[tokio::test]
async fn configured_bounds_hold_and_have_a_bound_themselves() {
    let engine = Engine::options().input_bytes(10).open("memory:").await.expect("a store");
    engine.enqueue(text(10)).await.expect("at the bound");
    engine.enqueue(text(11)).await.expect_err("beyond it");
    let most = bounds::PAYLOAD_BYTES_MAX;
    Engine::options().input_bytes(most).result_bytes(most).open("memory:").await.expect("the most");
    let error = Engine::options().result_bytes(most + 1).open("memory:").await.expect_err("more");
    assert!(matches!(error, Error::TooLarge { what: "result bound", .. }), "{error}");
}

#[tokio::test]
async fn a_bulk_enqueue_takes_as_many_as_the_bound_and_refuses_one_more() {
    let engine = Engine::open("memory:").await.expect("a store");
    let jobs = |count: usize| (0..count as u64).map(work);
    let error = engine.enqueue_many(jobs(bounds::BULK + 1)).await.expect_err("one too many");
    assert!(matches!(error, Error::TooLarge { what: "bulk enqueue", .. }), "{error}");
    assert_eq!(total(&engine, State::Ready).await, 0, "nothing was stored");
    let stored = engine.enqueue_many(jobs(bounds::BULK)).await.expect("at the bound");
    assert_eq!(stored.len(), bounds::BULK);
    assert_eq!(total(&engine, State::Ready).await, bounds::BULK as u64);
}

#[tokio::test]
async fn one_bad_job_of_a_bulk_refuses_all_of_it_before_anything_is_stored() {
    let engine = Engine::options().input_bytes(12).open("memory:").await.expect("a store");
    let jobs = (0..5_000).map(|n| work(if n == 4_999 { u64::MAX } else { 1 }));
    let error = engine.enqueue_many(jobs).await.expect_err("the last is too large");
    assert!(matches!(error, Error::TooLarge { what: "input", .. }), "{error}");
    assert_eq!(total(&engine, State::Ready).await, 0);
}
