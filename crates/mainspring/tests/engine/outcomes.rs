//! What handlers return, and what becomes of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::handler::{Control, FaultKind, Info, Inner, Outcome};
use mainspring::testing::TestEngine;
use mainspring::{
    Backoff, Context, Error, Job, Reason, State, Status, cancel, discard, retry_in, snooze, throttled,
};
use mainspring_core::memory::Memory;
use serde::{Deserialize, Serialize};

use crate::faulty_store::Faulty;
use crate::support::{Ledger, Work, assert_sound, ended, on_every_store, record, soon, status, work};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Report {
    lines: Vec<String>,
    total: f64,
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "report", result = Report)]
struct MakeReport {
    title: String,
}

#[derive(Serialize, Deserialize, Job)]
struct Plain {}

#[derive(Serialize, Deserialize, Job)]
#[job(result = Option<u8>)]
struct Maybe {
    value: Option<u8>,
}

struct ByHand(u64);

impl Serialize for ByHand {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByHand {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(ByHand)
    }
}

impl Job for ByHand {
    type Result = u64;
    const KIND: &'static str = "by-hand";
    const QUEUE: &'static str = "hands";
}

async fn plain(_ctx: Context, _job: Plain) -> mainspring::HandlerResult<()> {
    Ok(())
}

on_every_store! {
    async fn results_come_back_as_the_type_of_their_job(engine: Engine) {
        let report = async |_ctx: Context, job: MakeReport| {
            mainspring::HandlerResult::Ok(Report { lines: vec![job.title, "'; --\u{1F600}".into()], total: 0.1 })
        };
        let node = engine
            .node()
            .handle(plain)
            .handle(report)
            .handle(async |_ctx: Context, job: Maybe| mainspring::HandlerResult::Ok(job.value))
            .handle(async |_ctx: Context, job: ByHand| mainspring::HandlerResult::Ok(job.0 * 2))
            .queue("default", 2)
            .queue("hands", 1)
            .start()
            .await
            .expect("a node");
        let report = engine.enqueue(MakeReport { title: "\"q\"".into() }).await.expect("enqueued");
        let expected = Report { lines: vec!["\"q\"".into(), "'; --\u{1F600}".into()], total: 0.1 };
        assert_eq!(soon("a report", engine.result(&report)).await.expect("a report"), expected);
        let unit = engine.enqueue(Plain {}).await.expect("enqueued");
        soon("nothing", engine.result(&unit)).await.expect("nothing");
        for value in [None, Some(3)] {
            let maybe = engine.enqueue(Maybe { value }).await.expect("enqueued");
            assert_eq!(soon("a value", engine.result(&maybe)).await.expect("a value"), value);
        }
        let by_hand = engine.enqueue(ByHand(21)).await.expect("enqueued");
        assert_eq!(soon("a number", engine.result(&by_hand)).await.expect("a number"), 42);
        assert_eq!(engine.result_json(by_hand.id).await.expect("json"), serde_json::json!(42));
        node.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn jobs_stored_under_an_earlier_name_still_run(engine: Engine) {
        #[derive(Serialize, Deserialize, Job)]
        #[job(kind = "hello", aliases = ["greet", "welcome-v0"], result = String)]
        struct Hello { name: String }

        let hello = async |ctx: Context, job: Hello| {
            mainspring::HandlerResult::Ok(format!("{} as {}", job.name, ctx.info().kind))
        };
        let node = engine.node().handle(hello).queue("default", 1).start().await.expect("a node");
        for kind in ["hello", "greet", "welcome-v0"] {
            let job = engine.enqueue_json(kind, &serde_json::json!({ "name": "Ada" })).await.expect("enqueued");
            let result = soon("a greeting", engine.result_json(job.id)).await.expect("a greeting");
            assert_eq!(result, format!("Ada as {kind}"));
        }
        node.shutdown().await;
    }

    async fn each_attempt_leaves_its_error_and_the_last_one_ends_the_job(engine: Engine) {
        let fails = async |ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
            Err(format!("no route (attempt {})", ctx.attempt()))?
        };
        let node = engine.node().handle(fails).queue("default", 1).start().await.expect("a node");
        let job = engine
            .enqueue(work(1))
            .max_attempts(3)
            .backoff(Backoff::Fixed(Duration::from_millis(1)))
            .await
            .expect("enqueued");
        let record = ended(&engine, job.id).await;
        assert_eq!(record.summary.status, Status::because(State::Failed, Reason::Exhausted));
        assert_eq!(record.summary.failures, 3);
        let messages: Vec<_> = record.errors.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(messages, ["no route (attempt 1)", "no route (attempt 2)", "no route (attempt 3)"]);
        assert!(record.errors.is_sorted_by_key(|error| error.claim));
        let error = engine.result(&job).await.expect_err("it failed");
        assert_eq!(error.to_string(), format!("job {} failed: no route (attempt 3)", job.id));
        node.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn tags_headers_and_facts_reach_the_handler(engine: Engine) {
        #[derive(Serialize, Deserialize, Job)]
        #[job(result = BTreeMap<String, String>)]
        struct Facts {}

        let facts = async |ctx: Context, _job: Facts| {
            let info = ctx.info();
            let mut facts: BTreeMap<_, _> = info.headers().clone();
            facts.insert("tags".into(), format!("{:?}", info.tags()));
            facts.insert("priority".into(), info.priority.to_string());
            facts.insert("queue".into(), info.queue.to_string());
            facts.insert("attempts".into(), format!("{} of {}", info.attempt, info.max_attempts()));
            facts.insert("same id".into(), (ctx.id() == info.id).to_string());
            mainspring::HandlerResult::Ok(facts)
        };
        let node = engine.node().handle(facts).queue("mail", 1).start().await.expect("a node");
        let job = engine
            .enqueue(Facts {})
            .queue("mail")
            .priority(3)
            .max_attempts(4)
            .tag("eu")
            .tag("eu")
            .tag("o'brien; drop table jobs")
            .header("traceparent", "00-\"4bf9\"-01")
            .await
            .expect("enqueued");
        let facts = soon("facts", engine.result(&job)).await.expect("facts");
        let expected = [
            ("attempts", "1 of 4"),
            ("priority", "3"),
            ("queue", "mail"),
            ("same id", "true"),
            ("tags", "[\"eu\", \"o'brien; drop table jobs\"]"),
            ("traceparent", "00-\"4bf9\"-01"),
        ];
        assert_eq!(facts, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let summary = record(&engine, job.id).await.summary;
        assert_eq!(summary.options.tags.len(), 2);
        assert_eq!(summary.options.headers["traceparent"], "00-\"4bf9\"-01");
        node.shutdown().await;
    }

    async fn the_last_progress_is_kept(engine: Engine) {
        let talks = async |ctx: Context, job: Work| {
            for done in 0..=job.n {
                ctx.progress(done, job.n, format!("line {done}"));
            }
            mainspring::HandlerResult::Ok(job.n)
        };
        let node = engine.node().handle(talks).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(work(7)).await.expect("enqueued");
        let progress = ended(&engine, job.id).await.progress.expect("progress");
        assert_eq!((progress.done, progress.total, progress.note.as_str()), (7, 7, "line 7"));
        node.shutdown().await;
    }
}

#[tokio::test]
async fn progress_is_stored_while_the_handler_runs() {
    let test = TestEngine::new();
    let talks = async |ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
        ctx.progress(1, 3, "waiting");
        std::future::pending().await
    };
    test.node(|node| node.handle(talks).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.advance(Duration::from_secs(2)).await.expect("time passes");
    let progress = record(&test, job.id).await.progress.expect("progress");
    assert_eq!((progress.done, progress.total), (1, 3));
}

#[derive(Debug, thiserror::Error)]
#[error("while calling the shop")]
struct Outer(#[source] Inside);

#[derive(Debug, thiserror::Error)]
#[error("the connection said")]
struct Inside(#[source] Control);

/// Runs a job once that returns a control under two layers of context.
async fn returns(control: Control) -> (TestEngine, mainspring::JobId) {
    let test = TestEngine::new();
    let handler = move |ctx: Context, job: Work| {
        let control = control.clone();
        async move {
            if ctx.info().claim == 1 {
                Err(Outer(Inside(control)))?
            } else {
                mainspring::HandlerResult::Ok(job.n)
            }
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(5)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    (test, job.id)
}

#[tokio::test]
async fn a_snooze_waits_and_counts_nothing() {
    let (test, id) = returns(snooze(60 * SECOND)).await;
    let waiting = record(&test, id).await;
    assert_eq!(waiting.summary.status, Status::plain(State::Scheduled));
    assert_eq!(waiting.summary.run_at, Some(test.now().after(60 * SECOND)));
    assert_eq!((waiting.summary.failures, waiting.errors.len()), (0, 0));
    test.advance(59 * SECOND).await.expect("time passes");
    assert_eq!(status(&test, id).await.state, State::Scheduled);
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(status(&test, id).await.state, State::Succeeded);
}

#[tokio::test]
async fn retry_in_counts_a_failure_and_overrules_the_backoff() {
    let (test, id) = returns(retry_in(3 * SECOND)).await;
    let waiting = record(&test, id).await;
    assert_eq!(waiting.summary.run_at, Some(test.now().after(3 * SECOND)));
    assert_eq!(waiting.summary.failures, 1);
    assert_eq!(waiting.errors[0].message, "while calling the shop: the connection said: retry in 3s");
    test.advance(3 * SECOND).await.expect("time passes");
    assert_eq!(status(&test, id).await.state, State::Succeeded);
}

#[tokio::test]
async fn a_discard_fails_for_good_whatever_attempts_are_left() {
    let (test, id) = returns(discard("no such user")).await;
    let ended = record(&test, id).await;
    assert_eq!(ended.summary.status, Status::because(State::Failed, Reason::Discarded));
    assert_eq!(
        ended.errors[0].message,
        "while calling the shop: the connection said: discarded: no such user"
    );
}

#[tokio::test]
async fn a_handler_can_cancel_its_job() {
    let (test, id) = returns(cancel("the order was withdrawn")).await;
    let ended = record(&test, id).await;
    assert_eq!(ended.summary.status, Status::because(State::Cancelled, Reason::Handler));
    assert_eq!(ended.note.as_deref(), Some("the order was withdrawn"));
    assert_eq!(ended.summary.failures, 0);
}

/// Lesson A5: a rate-limit miss waits for as long as the other side says, and for that job only.
#[tokio::test]
async fn throttled_waits_for_as_long_as_it_was_told() {
    let (test, id) = returns(throttled(90 * SECOND)).await;
    let waiting = record(&test, id).await.summary;
    assert_eq!((waiting.run_at, waiting.failures), (Some(test.now().after(90 * SECOND)), 0));
    let other = test.enqueue(work(6)).await.expect("enqueued");
    test.advance(90 * SECOND).await.expect("time passes");
    assert_eq!(status(&test, id).await.state, State::Succeeded);
    assert_eq!(record(&test, other.id).await.summary.claim, 2, "it was not held up, only throttled itself");
}

#[tokio::test]
async fn throttled_without_a_time_waits_for_the_backoff_and_counts_nothing() {
    let (test, id) = returns(throttled(None)).await;
    let waiting = record(&test, id).await.summary;
    let wait = waiting.run_at.expect("a time").since(test.now());
    assert!(wait >= SECOND * 3 / 4 && wait <= SECOND * 5 / 4, "{wait:?}");
    assert_eq!(waiting.failures, 0);
}

/// Lesson A7: backoff is on by default, grows, and is spread.
#[tokio::test]
async fn retries_wait_longer_each_time() {
    let test = TestEngine::new();
    let fails = async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> { Err("no")? };
    test.node(|node| node.handle(fails).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    for doubling in 0..8 {
        let wait = record(&test, job.id).await.summary.run_at.expect("a time").since(test.now());
        let plain = SECOND * (1 << doubling);
        assert!(wait >= plain * 3 / 4 && wait <= plain * 5 / 4, "after {doubling} failures: {wait:?}");
        test.advance(wait).await.expect("time passes");
    }
    assert_eq!(record(&test, job.id).await.summary.failures, 9);
}

#[tokio::test]
async fn a_queue_sets_the_backoff_of_jobs_that_set_none() {
    let test = TestEngine::new();
    let fails = async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> { Err("no")? };
    test.node(|node| node.handle(fails).queue("default", 1)).await.expect("a node");
    let minute = Duration::from_mins(1);
    test.queues().set_backoff("default", Some(Backoff::Fixed(minute))).await.expect("set");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    let own = test.enqueue(work(2)).backoff(Backoff::Fixed(SECOND)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let wait = async |id| record(&test, id).await.summary.run_at.expect("a time").since(test.now());
    assert!(wait(job.id).await >= minute * 3 / 4);
    assert!(wait(own.id).await <= SECOND * 5 / 4);
}

#[tokio::test]
async fn undecodable_input_is_an_ordinary_failure() {
    let test = TestEngine::new();
    test.node(|node| {
        node.handle(async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n)).queue("default", 1)
    })
    .await
    .expect("a node");
    let job = test.enqueue_json("work", &serde_json::json!({ "m": 1 })).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let waiting = record(&test, job.id).await;
    assert_eq!(waiting.summary.status.state, State::Scheduled);
    assert_eq!(waiting.errors[0].kind, FaultKind::Convert);
    assert!(waiting.errors[0].message.contains("missing field `n`"), "{}", waiting.errors[0].message);
}

/// A rolling deploy: the old version cannot read what the new one enqueues. Nothing is lost.
#[tokio::test]
async fn an_old_and_a_new_node_on_one_queue_lose_nothing() {
    #[derive(Serialize, Deserialize)]
    struct New {
        n: u64,
        to: String,
    }
    impl Job for New {
        type Result = u64;
        const KIND: &'static str = "work";
    }
    #[derive(Serialize, Deserialize)]
    struct Old {
        n: u64,
        from: String,
    }
    impl Job for Old {
        type Result = u64;
        const KIND: &'static str = "work";
    }
    let test = TestEngine::new();
    let old = test
        .node(|node| {
            node.handle(async |_ctx: Context, job: Old| mainspring::HandlerResult::Ok(job.n))
                .queue("default", 1)
        })
        .await
        .expect("a node");
    let job = test.enqueue(New { n: 3, to: "you".into() }).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.summary.failures, 1, "the old node tried");
    test.node(|node| {
        node.handle(async |_ctx: Context, job: New| mainspring::HandlerResult::Ok(job.n)).queue("default", 1)
    })
    .await
    .expect("a node");
    // Both nodes live for a while: whoever gets the job, attempts are left when the old one goes.
    test.advance(Duration::from_secs(5)).await.expect("time passes");
    old.shutdown().await;
    test.advance(Duration::from_mins(5)).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 3);
}

#[tokio::test]
async fn layers_wrap_from_the_first_to_the_last_and_see_failures() {
    let ledger = Ledger::default();
    let around = |before: u64, after: u64| {
        let ledger = ledger.clone();
        move |_job: Arc<Info>, inner: Inner| {
            let ledger = ledger.clone();
            async move {
                ledger.add(before);
                let result = inner.await;
                ledger.add(after + u64::from(result.is_err()));
                result
            }
        }
    };
    let handler = {
        let ledger = ledger.clone();
        move |_ctx: Context, job: Work| {
            let ledger = ledger.clone();
            async move {
                ledger.add(0);
                if job.n == 0 { Err(discard("no"))? } else { mainspring::HandlerResult::Ok(job.n) }
            }
        }
    };
    let test = TestEngine::new();
    let (outer, inner) = (around(1, 10), around(2, 20));
    test.node(|node| node.handle(handler).layer(outer).layer(inner).queue("default", 1))
        .await
        .expect("a node");
    test.run(work(1)).await.expect("it succeeds");
    assert_eq!(ledger.entries(), [1, 2, 0, 20, 10]);
    test.run(work(0)).await.expect_err("it is discarded");
    assert_eq!(ledger.entries()[5..], [1, 2, 0, 21, 11]);
}

/// A failure to decode is told apart from an error of the handler, layers or not.
#[tokio::test]
async fn faults_keep_their_kind_behind_layers() {
    let test = TestEngine::new();
    let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node with the test's layer");
    let job = test.enqueue_json("work", &serde_json::json!(null)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(record(&test, job.id).await.errors[0].kind, FaultKind::Convert);
}

#[tokio::test]
async fn hooks_hear_of_each_start_and_each_stored_outcome_once() {
    let (starts, ends) = (Ledger::default(), Ledger::default());
    let test = TestEngine::new();
    let handler = async |ctx: Context, job: Work| {
        if ctx.attempt() <= 2 { Err("not yet")? } else { mainspring::HandlerResult::Ok(job.n) }
    };
    let (hear_start, hear_end) = (starts.clone(), ends.clone());
    test.node(|node| {
        node.handle(handler)
            .on_start(move |info| hear_start.add(u64::from(info.attempt)))
            .on_outcome(move |info, outcome| {
                let retry = matches!(outcome, Outcome::Retry { .. });
                hear_end.add(u64::from(info.attempt) + if retry { 100 } else { 0 });
            })
            .queue("default", 1)
    })
    .await
    .expect("a node");
    let job = test.enqueue(work(4)).await.expect("enqueued");
    test.advance(Duration::from_mins(1)).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 4);
    assert_eq!(starts.entries(), [1, 2, 3]);
    assert_eq!(ends.entries(), [101, 102, 3]);
}

#[tokio::test]
async fn state_is_found_by_its_type_and_a_missing_one_is_named() {
    struct Mailer(&'static str);
    #[derive(Debug)]
    struct Payments;

    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = async |ctx: Context, job: Work| {
        ctx.state::<Arc<AtomicU32>>()?.fetch_add(1, Ordering::Relaxed);
        assert_eq!(ctx.state::<Mailer>()?.0, "smtp");
        if job.n == 0 {
            ctx.state::<Payments>()?;
        }
        mainspring::HandlerResult::Ok(job.n)
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).state(Mailer("smtp")).state(counted).queue("default", 1))
        .await
        .expect("a node");
    assert_eq!(test.run(work(1)).await.expect("it succeeds"), 1);
    let error = test.run(work(0)).await.expect_err("no payments").to_string();
    assert!(error.contains("Payments") && error.contains(".state("), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_result_of_a_job_that_does_not_succeed_is_an_error_that_says_why() {
    let test = TestEngine::new();
    let failed = test.enqueue(work(1)).await.expect("enqueued");
    test.jobs().hold(failed.id).await.expect("held");
    test.jobs().fail(failed.id).because("bad data").await.expect("failed");
    let error = test.result(&failed).await.expect_err("it failed");
    assert_eq!(error.to_string(), format!("job {} failed (operator): bad data", failed.id));

    let cancelled = test.enqueue(work(2)).await.expect("enqueued");
    test.jobs().cancel(cancelled.id).because("not needed").await.expect("cancelled");
    let error = test.result(&cancelled).await.expect_err("it was cancelled");
    assert!(matches!(error, Error::Ended { status, .. } if status.state == State::Cancelled), "{error}");

    let deleted = test.enqueue(work(3)).await.expect("enqueued");
    let waiting = async { test.result(&deleted).await };
    let deleting = async { test.jobs().delete(deleted.id).await };
    let (result, changed) = tokio::join!(waiting, deleting);
    assert_eq!(changed.expect("deleted").changed, 1);
    assert!(matches!(result, Err(Error::NotFound(id)) if id == deleted.id));
}

#[tokio::test]
async fn a_result_of_another_type_is_a_typed_error() {
    let test = TestEngine::new();
    test.node(|node| {
        node.handle(async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n)).queue("default", 1)
    })
    .await
    .expect("a node");
    let job = test.enqueue(work(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let error = test.result_of::<MakeReport>(job.id).await.expect_err("another type");
    assert!(matches!(error, Error::Convert { what: "result", .. }));
}

#[tokio::test]
async fn a_thousand_who_wait_for_results_cost_one_look_at_a_time() {
    let mut store = None;
    let test = TestEngine::on(0, |seams| {
        let faulty = Faulty::new(Memory::new(Arc::clone(&seams.clock)));
        store = Some(faulty.clone());
        Arc::new(faulty)
    });
    let store = store.expect("the store was made");
    let mut jobs = Vec::new();
    for n in 0..1_000 {
        jobs.push(test.enqueue(work(n)).await.expect("enqueued"));
    }
    let (engine, waited) = ((*test).clone(), jobs.clone());
    let results = async move {
        let mut waiting: Vec<_> = waited.iter().map(|job| Box::pin(engine.result(job))).collect();
        let mut sum = 0;
        // All are polled before the first is waited for.
        for result in &mut waiting {
            assert!(polled_once(result.as_mut()).await.is_none(), "nothing runs yet");
        }
        for result in waiting {
            sum += result.await.expect("it succeeded");
        }
        sum
    };
    let rest = async {
        test.advance(Duration::from_secs(10)).await.expect("all wait");
        let looks = store.calls("job_ends");
        assert!((2..=30).contains(&looks), "{looks} looks in ten seconds for a thousand who wait");
        test.node(|node| {
            node.handle(async |_: Context, job: Work| mainspring::HandlerResult::Ok(job.n))
                .queue("default", 64)
        })
        .await
        .expect("a node");
        test.run_until_idle().await.expect("idle");
        test.advance(Duration::from_secs(2)).await.expect("all are told");
    };
    let (sum, ()) = tokio::join!(results, rest);
    assert_eq!(sum, 499_500);
}

/// Polls a future once.
async fn polled_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut future).poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}
