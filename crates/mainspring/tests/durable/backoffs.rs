//! Backoffs of steps on the test's clock: who waits for them, and what happens on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainspring::testing::{Error, TestEngine, Trial};
use mainspring::{Backoff, Context, Job, NodeBuilder, State};
use serde::{Deserialize, Serialize};

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, status};

const MINUTE: Duration = Duration::from_mins(1);
const TEN_SECONDS: Backoff = Backoff::Fixed(Duration::from_secs(10));
/// What two of them may take, with their jitter.
const TWO_BACKOFFS: std::ops::Range<Duration> = Duration::from_secs(10)..Duration::from_secs(30);

/// A body that fails twice, and then gives its number.
struct Flaky(AtomicU64);

impl Flaky {
    fn new() -> Arc<Self> {
        Arc::new(Flaky(AtomicU64::new(0)))
    }

    fn call(&self) -> mainspring::HandlerResult<u64> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err("the bank says 503".into()),
            tries => Ok(tries),
        }
    }
}

#[tokio::test]
async fn a_step_in_its_backoff_is_idle_at_once_and_named() {
    for cached in CACHE_SIZES {
        let flaky = Flaky::new();
        let handler = move |ctx: Context, _job: Flow| {
            let flaky = Arc::clone(&flaky);
            async move {
                let charged = ctx.step("charge", async || flaky.call()).retry(3).backoff(TEN_SECONDS).await?;
                mainspring::HandlerResult::Ok(charged.to_string())
            }
        };
        // Were it waited for, the test would not end.
        let test = engine(cached, handler).await.patience(HOUR);
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        let before = test.now();
        test.run_until_idle().await.expect("nothing is due");
        assert_eq!(test.now(), before);
        assert_eq!(status(&test, job.id).await.state, State::Running);
        let error = test.outcome(&job).expect_err("it has not ended");
        let text = error.to_string();
        let (told, at) = text.split_once("; ").expect("two parts");
        assert_eq!(told, format!("job {} has not ended: it is running", job.id));
        assert!(at.starts_with("step `charge` is in its backoff until 2026-01-01T00:00:"), "{at}");
        assert_eq!(format!("{error:?}"), text, "what a test prints that ends in it");
        test.advance(30 * SECOND).await.expect("time passes");
        assert_eq!(test.outcome(&job).expect("the third try"), "2");
    }
}

#[tokio::test]
async fn a_run_ends_the_backoffs_of_its_steps_and_no_other_wait() {
    let flaky = Flaky::new();
    let handler = move |ctx: Context, job: Flow| {
        let flaky = Arc::clone(&flaky);
        async move {
            let charged = ctx.step("charge", async || flaky.call()).retry(3).backoff(TEN_SECONDS).await?;
            if job.n > 0 {
                ctx.sleep("night", HOUR).await?;
            }
            mainspring::HandlerResult::Ok(charged.to_string())
        }
    };
    let test = engine(0, handler).await.patience(HOUR);
    let before = test.now();
    assert_eq!(test.run(flow(0)).await.expect("the third try"), "2");
    let backoffs = test.now().since(before);
    assert!(TWO_BACKOFFS.contains(&backoffs), "{backoffs:?}");
    let error = test.run(flow(1)).await.expect_err("it sleeps");
    assert!(matches!(&error, Error::NotEnded { status, .. } if status.state == State::Suspended), "{error}");
    assert_eq!(test.now().since(before), backoffs);
}

#[tokio::test]
async fn what_waits_for_the_outside_beside_a_backoff_is_not_idle() {
    let handler = async |ctx: Context, _job: Flow| -> mainspring::HandlerResult<String> {
        let fails = ctx.step("fails", async || -> mainspring::HandlerResult<()> { Err("no")? }).retry(1);
        let hangs =
            ctx.step("hangs", async || -> mainspring::HandlerResult<()> { std::future::pending().await });
        let (fails, hangs) = tokio::join!(fails, hangs);
        fails.and(hangs).map(|()| String::new()).map_err(Into::into)
    };
    let test = engine(0, handler).await.patience(Duration::from_millis(50));
    test.enqueue(flow(0)).await.expect("enqueued");
    let error = test.run_until_idle().await.expect_err("it may come");
    assert!(matches!(error, Error::StillRunning { .. }), "{error}");
}

#[tokio::test]
async fn a_job_that_waits_for_the_slot_of_a_backoff_is_idle_too() {
    let handler = async |ctx: Context, job: Flow| {
        let first = async || if job.n == 0 { Err("no".into()) } else { Ok(()) };
        let done = ctx.step("a", first).retry(1).backoff(TEN_SECONDS).await;
        mainspring::HandlerResult::Ok(done.is_ok().to_string())
    };
    let test = TestEngine::new().patience(HOUR);
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    for n in 1..=20 {
        test.run(flow(n)).await.expect("quick ones, so that the node claims ahead");
    }
    let slow = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let behind = test.enqueue(flow(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.advance(15 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&slow).expect("it ended"), "false");
    assert_eq!(test.outcome(&behind).expect("it ended"), "true");
}

/// The workflow of the README, with a bank that says 503 now and then.
#[tokio::test]
async fn a_workflow_whose_steps_are_retried_can_be_tried() {
    let setup = |node: NodeBuilder| {
        let flaky = Flaky::new();
        let handler = move |ctx: Context, job: Flow| {
            let flaky = Arc::clone(&flaky);
            async move {
                ctx.step("charge", async || flaky.call().map(drop)).retry(3).await?;
                ctx.sleep("cool-off", 24 * HOUR).await?;
                let shipped = ctx.step("ship", async || Ok(job.n + 1)).retry(3).await?;
                mainspring::HandlerResult::Ok(shipped.to_string())
            }
        };
        node.handle(handler).queue("default", 1)
    };
    let trial = Trial::new(flow(1), setup);
    assert_eq!(trial.crash_after_every_step().await.expect("it bears it"), "2");
    assert_eq!(trial.fail_every_step_once().await.expect("it bears it"), "2");
    assert_eq!(trial.run_every_step_twice().await.expect("it bears it"), "2");
}

/// A step that fails for good after its retries, and what was done before is undone, with retries too.
#[tokio::test]
async fn a_saga_whose_steps_are_retried_can_be_tried() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let setup = move |node: NodeBuilder| {
        let (effects, flaky) = (effects.clone(), Flaky::new());
        let handler = move |ctx: Context, _job: Flow| {
            let (effects, flaky) = (effects.clone(), Arc::clone(&flaky));
            async move {
                ctx.step("reserve", async || Ok(())).retry(2).await?;
                let charged = ctx
                    .step("charge", async || -> mainspring::HandlerResult<()> { Err("expired")? })
                    .retry(2);
                if charged.await.is_err() {
                    ctx.step("release", async || flaky.call().map(drop)).retry(5).await?;
                    effects.add("released");
                    return mainspring::HandlerResult::Ok("undone".to_owned());
                }
                Ok("done".to_owned())
            }
        };
        node.handle(handler).queue("default", 1)
    };
    let trial = Trial::new(flow(1), setup);
    assert_eq!(trial.crash_after_every_step().await.expect("it bears it"), "undone");
    assert_eq!(trial.fail_every_step_once().await.expect("it bears it"), "undone");
    assert_eq!(trial.run_every_step_twice().await.expect("it bears it"), "undone");
    assert_eq!(trial.fail_step("release").await.expect("it bears it"), "undone");
    assert!(ledger.count("released") > 6);
}

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "slow", result = u64)]
struct Slow {}

/// What a day looks like that has everything: when what happened, in seconds.
async fn day(parts: u32) -> Vec<(u64, String)> {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    let begin = test.now();
    let effects = ledger.clone();
    let handler = move |ctx: Context, job: Flow| {
        let effects = effects.clone();
        async move {
            let now = || ctx.engine().seams().clock.now().since(begin).as_millis();
            let name = job.n;
            let tries = ctx.step_with("tries", async |step| {
                effects.add(format!("{} {name} tries {}", now(), step.attempt()));
                if step.attempt() < 3 { Err("no".into()) } else { Ok(()) }
            });
            tries.retry(3).backoff(TEN_SECONDS).await?;
            ctx.sleep("rest", 10 * MINUTE).await?;
            let hangs =
                ctx.step("hangs", async || -> mainspring::HandlerResult<()> { std::future::pending().await });
            let hung = hangs.timeout(90 * SECOND).retry(1).backoff(TEN_SECONDS).await;
            effects.add(format!("{} {name} hung {}", now(), hung.is_err()));
            mainspring::HandlerResult::Ok(String::new())
        }
    };
    let effects = ledger.clone();
    let slow = move |ctx: Context, _job: Slow| {
        let effects = effects.clone();
        async move {
            let at = ctx.engine().seams().clock.now().since(begin).as_millis();
            effects.add(format!("{at} slow, claim {}", ctx.info().claim));
            std::future::pending::<mainspring::HandlerResult<u64>>().await
        }
    };
    for round in 0..2 {
        let (handler, slow) = (handler.clone(), slow.clone());
        test.node(|node| node.handle(handler).handle(slow).queue("default", 2)).await.expect("a node");
        if round == 0 {
            // Its jobs come back when its lease has lapsed.
            test.enqueue(Slow {})
                .timeout(MINUTE)
                .backoff(Backoff::Fixed(SECOND))
                .max_attempts(10)
                .await
                .expect("enqueued");
            test.enqueue(flow(0)).await.expect("enqueued");
            test.advance(2 * SECOND).await.expect("time passes");
            test.crash().await.expect("it dies");
        }
    }
    test.enqueue(flow(1)).delay(20 * MINUTE + 7 * SECOND).await.expect("enqueued");
    for _ in 0..parts {
        test.advance(HOUR / parts).await.expect("time passes");
    }
    let entries = ledger.entries().into_iter();
    let split = entries
        .map(|entry| entry.split_once(' ').map(|(at, what)| (at.parse().expect("a time"), what.to_owned())));
    split.map(|entry| entry.expect("a time and an event")).collect()
}

#[tokio::test]
async fn an_hour_at_once_is_the_same_as_sixty_minutes() {
    let (at_once, minutes) = (day(1).await, day(60).await);
    assert_eq!(at_once, minutes);
    assert_eq!(minutes.iter().filter(|(_, what)| what.starts_with("slow")).count(), 11, "{minutes:?}");
    assert_eq!(minutes.iter().filter(|(_, what)| what.ends_with("hung true")).count(), 2, "{minutes:?}");
}

#[tokio::test]
async fn short_waits_end_in_time_on_a_long_way() {
    let handler = async |ctx: Context, _job: Flow| {
        let tries =
            ctx.step_with("tries", async |step| if step.attempt() < 3 { Err("no".into()) } else { Ok(()) });
        tries.retry(3).backoff(TEN_SECONDS).await?;
        ctx.sleep("rest", 10 * MINUTE).await?;
        mainspring::HandlerResult::Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("time passes");
    let record = test.jobs().get(job.id).await.expect("it is there");
    let took = record.summary.finished_at.expect("it ended").since(record.summary.created_at);
    assert!(TWO_BACKOFFS.contains(&took.saturating_sub(10 * MINUTE)), "{took:?}");
}

#[tokio::test]
async fn a_clock_that_stops_too_often_says_so() {
    let handler = async |ctx: Context, _job: Flow| -> mainspring::HandlerResult<String> {
        for _ in 0..100 {
            let sleep = ctx.engine().seams().clock.sleep(SECOND);
            sleep.await;
        }
        Ok(String::new())
    };
    for (stops, far) in [(49, false), (50, true)] {
        let test = engine(0, handler).await.stops(stops);
        test.enqueue(flow(0)).await.expect("enqueued");
        // Twice a second: somebody looks for the dead.
        let advanced = test.advance(25 * SECOND).await;
        assert_eq!(advanced.is_ok(), far, "{advanced:?}");
        if let Err(error) = advanced {
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "the clock stopped 49 times on its way and has come to 2026-01-01T00:00:24.500Z"
                ),
                "{text}"
            );
            assert!(text.contains("runs (attempt 1)"), "{text}");
        }
    }
}
