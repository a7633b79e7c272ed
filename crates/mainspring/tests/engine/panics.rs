//! Panics anywhere in user code: one attempt is burned, and neither the job nor its slot is lost.
//!
//! Lesson A1: a panicking handler left its job running for ever.

use std::fmt;
use std::panic::panic_any;
use std::sync::Arc;
use std::time::Duration;

use mainspring::handler::{FaultKind, Info, Inner, Layer};
use mainspring::testing::TestEngine;
use mainspring::{Context, Failure, Job, NodeBuilder, State};
use serde::{Deserialize, Serialize};

use crate::support::{Work, assert_sound, record, total, work};

/// Runs a job that panics and then one that does not, on a single slot. Returns the message that was kept.
async fn survives(setup: impl FnOnce(NodeBuilder) -> NodeBuilder) -> String {
    let test = TestEngine::new();
    let node = test.node(|node| setup(node).queue("default", 1)).await.expect("a node");
    let bad = test.enqueue(work(0)).await.expect("enqueued");
    let good = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let after = record(&test, bad.id).await;
    assert_eq!(after.summary.status.state, State::Scheduled, "it is tried again");
    assert_eq!((after.summary.failures, after.errors.len()), (1, 1), "one attempt is burned");
    assert_eq!(after.errors[0].kind, FaultKind::Panic);
    assert_eq!(test.outcome(&good).expect("the slot is free"), 1);
    assert_eq!(total(&test, State::Running).await, 0);
    assert_eq!(node.claims(), 0);
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    assert!(record(&test, bad.id).await.summary.failures > 3, "it is tried again and again");
    assert_sound(&test).await;
    after.errors[0].message.clone()
}

async fn well(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

#[tokio::test]
async fn a_panic_before_the_first_await_burns_one_attempt() {
    let handler = async |_ctx: Context, job: Work| {
        assert!(job.n > 0, "zero is {}", "not allowed");
        mainspring::HandlerResult::Ok(job.n)
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "zero is not allowed");
}

#[tokio::test]
async fn a_panic_after_an_await_burns_one_attempt() {
    let handler = async |_ctx: Context, job: Work| {
        tokio::task::yield_now().await;
        assert!(job.n > 0, "boom");
        mainspring::HandlerResult::Ok(job.n)
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "boom");
}

#[tokio::test]
async fn a_panic_before_the_future_exists_burns_one_attempt() {
    let handler = |ctx: Context, job: Work| {
        assert!(job.n > 0, "no future");
        well(ctx, job)
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "no future");
}

#[tokio::test]
async fn a_panic_without_a_text_burns_one_attempt() {
    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 {
            panic_any(17_u8);
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "a panic without a message");
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped badly");
    }
}

#[tokio::test]
async fn a_panic_whose_payload_panics_in_turn_burns_one_attempt() {
    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 {
            panic_any(PanicsInDrop);
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    survives(|node| node.handle(handler)).await;
}

#[tokio::test]
async fn a_panic_in_the_drop_of_a_local_burns_one_attempt() {
    let handler = async |_ctx: Context, job: Work| {
        let _local = (job.n == 0).then(|| PanicsInDrop);
        mainspring::HandlerResult::Ok(job.n)
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "dropped badly");
}

#[tokio::test]
async fn a_handler_that_panics_while_it_is_dropped_times_out_like_any_other() {
    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 {
            let _local = PanicsInDrop;
            std::future::pending::<()>().await;
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    let test = TestEngine::new();
    let node = test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let bad = test.enqueue(work(0)).timeout(Duration::from_secs(5)).await.expect("enqueued");
    let good = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(Duration::from_secs(5)).await.expect("time passes");
    assert_eq!(record(&test, bad.id).await.errors[0].kind, FaultKind::Timeout);
    assert_eq!(test.outcome(&good).expect("the slot is free"), 1);
    assert_eq!(node.claims(), 0);
}

#[tokio::test]
async fn an_error_that_panics_when_it_is_printed_burns_one_attempt() {
    #[derive(Debug)]
    struct Unspeakable;
    impl fmt::Display for Unspeakable {
        fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("cannot be said")
        }
    }
    impl std::error::Error for Unspeakable {}

    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 { Err(Unspeakable)? } else { mainspring::HandlerResult::Ok(job.n) }
    };
    assert_eq!(survives(|node| node.handle(handler)).await, "cannot be said");
}

#[tokio::test]
async fn an_error_that_panics_when_it_is_dropped_burns_one_attempt() {
    #[derive(Debug)]
    struct Sticky;
    impl fmt::Display for Sticky {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("sticky")
        }
    }
    impl std::error::Error for Sticky {}
    impl Drop for Sticky {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "still stuck");
        }
    }

    let handler = async |_ctx: Context, job: Work| {
        if job.n == 0 { Err(Sticky)? } else { mainspring::HandlerResult::Ok(job.n) }
    };
    survives(|node| node.handle(handler)).await;
}

#[tokio::test]
async fn a_result_that_panics_when_it_is_written_burns_one_attempt() {
    #[derive(Deserialize)]
    struct Unwritable;
    impl Serialize for Unwritable {
        fn serialize<S: serde::Serializer>(&self, _serializer: S) -> Result<S::Ok, S::Error> {
            panic!("cannot be written")
        }
    }
    #[derive(Serialize, Deserialize)]
    struct Writes;
    impl Job for Writes {
        type Result = Unwritable;
        const KIND: &'static str = "writes";
    }
    let test = TestEngine::new();
    let handler = async |_ctx: Context, _job: Writes| mainspring::HandlerResult::Ok(Unwritable);
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Writes).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let after = record(&test, job.id).await;
    assert_eq!((after.errors[0].kind, after.summary.failures), (FaultKind::Panic, 1));
}

#[tokio::test]
async fn an_input_that_panics_when_it_is_read_burns_one_attempt() {
    #[derive(Serialize)]
    struct Unreadable;
    impl<'de> Deserialize<'de> for Unreadable {
        fn deserialize<D: serde::Deserializer<'de>>(_deserializer: D) -> Result<Self, D::Error> {
            panic!("cannot be read")
        }
    }
    impl Job for Unreadable {
        type Result = ();
        const KIND: &'static str = "unreadable";
    }
    let test = TestEngine::new();
    let handler = async |_ctx: Context, _job: Unreadable| mainspring::HandlerResult::Ok(());
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    // As JSON, since a test engine would read a typed input itself.
    let job = test.enqueue_json("unreadable", &serde_json::json!(null)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.errors[0].message, "cannot be read");
}

#[tokio::test]
async fn a_panic_in_a_layer_burns_one_attempt() {
    let layer = |job: Arc<Info>, inner: Inner| async move {
        let result = inner.await;
        assert!(job.attempt > 100 || result.as_ref().is_ok_and(|out| out.as_deref() != Some(b"0")), "layer");
        result
    };
    assert_eq!(survives(|node| node.handle(well).layer(layer)).await, "layer");
}

#[tokio::test]
async fn a_panic_in_a_layer_before_it_returns_its_future_burns_one_attempt() {
    struct Hasty;
    impl Layer for Hasty {
        fn wrap(&self, job: Arc<Info>, inner: Inner) -> Inner {
            assert!(!job.tags().iter().any(|tag| tag.as_str() == "bad"), "hasty layer");
            inner
        }
    }
    let test = TestEngine::new();
    let node = test.node(|node| node.handle(well).layer(Hasty).queue("default", 1)).await.expect("a node");
    let bad = test.enqueue(work(0)).tag("bad").await.expect("enqueued");
    let good = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, bad.id).await.errors[0].message, "hasty layer");
    assert_eq!(test.outcome(&good).expect("the slot is free"), 1);
    assert_eq!(node.claims(), 0);
}

#[tokio::test]
async fn a_panic_in_a_hook_harms_nobody() {
    let test = TestEngine::new();
    test.node(|node| {
        node.handle(well)
            .on_start(|_| panic!("at the start"))
            .on_outcome(|_, _| panic!("at the end"))
            .queue("default", 1)
    })
    .await
    .expect("a node");
    for n in 0..3 {
        assert_eq!(test.run(work(n)).await.expect("it succeeds"), n);
    }
}

/// The handler's error converts into a failure by the user's own code, which may panic too.
#[tokio::test]
async fn a_conversion_that_panics_burns_one_attempt() {
    struct Odd;
    impl From<Odd> for Failure {
        fn from(_: Odd) -> Self {
            panic!("cannot convert")
        }
    }
    let handler = async |_ctx: Context, job: Work| if job.n == 0 { Err(Odd) } else { Ok::<u64, Odd>(job.n) };
    assert_eq!(survives(|node| node.handle(handler)).await, "cannot convert");
}
