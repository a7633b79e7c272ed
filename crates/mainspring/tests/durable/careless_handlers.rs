//! What a hostile or careless workflow may do.

use std::time::Duration;

use mainspring::testing::Trial;
use mainspring::{Context, Error as EngineError, Job, Reason, State, Status};
use mainspring_testkit::patience::PATIENCE;
use serde::{Deserialize, Serialize};

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, keys, status};

/// The time-out is asked first, and would win if it were asked again later.
#[tokio::test]
async fn a_wait_that_lost_does_not_win_when_the_handler_runs_again() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let first = tokio::select! {
                biased;
                slept = ctx.sleep("patience", HOUR) => { slept?; "too late".to_owned() }
                went = ctx.signal::<String>("go") => went?,
            };
            ctx.sleep("later", 2 * HOUR).await?;
            Ok(first)
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits");
        test.signal(job, "go", &"gone".to_owned()).await.expect("sent");
        test.advance(3 * HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "gone", "cached: {cached}");
    }
}

/// A signal that comes late is not taken by a wait that was over before.
#[tokio::test]
async fn reminders_are_counted_as_they_were_sent() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            for n in 0..10_u32 {
                tokio::select! {
                    biased;
                    went = ctx.signal::<String>("go").key(n) => return Ok(format!("{} after {n}", went?)),
                    slept = ctx.sleep("patience", HOUR).key(n) => slept?,
                }
                ctx.step("remind", async || Ok(())).key(n).await?;
            }
            Ok("never".to_owned())
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(3 * HOUR + SECOND).await.expect("it waits");
        test.signal(job, "go", &"gone".to_owned()).await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "gone after 3", "cached: {cached}");
    }
}

/// A step that was given up is not begun again.
#[tokio::test]
async fn a_step_that_was_given_up_is_not_run_again() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            tokio::select! {
                biased;
                done = ctx.step("call", async || { effects.add("call"); std::future::pending::<()>().await; Ok(()) }) => done?,
                slept = ctx.sleep("patience", SECOND) => slept?,
            }
            ctx.sleep("later", 2 * HOUR).await?;
            Ok("given up".to_owned())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(2 * SECOND).await.expect("it was given up");
    test.advance(3 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "given up");
    assert_eq!(ledger.count("call"), 1);
}

/// Who waits for a cancellation beside a durable wait, and is revived, waits again.
#[tokio::test]
async fn a_wait_that_lost_comes_back_if_there_is_nothing_else() {
    let handler = async |ctx: Context, _job: Flow| {
        tokio::select! {
            biased;
            () = ctx.cancelled() => { ctx.step("undo", async || Ok(())).await?; }
            slept = ctx.sleep("patience", HOUR) => { slept?; return Ok("rested".to_owned()); }
        }
        Err("stopped")?
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    // Held in its slot by nothing: cancelled while it is suspended, then revived.
    test.run_until_idle().await.expect("it waits");
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.run_until_idle().await.expect("idle");
    test.jobs().retry(job.id).await.expect("revived");
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "rested");
}

/// What is sent is not what the handler wants: it says so, and waits for the next.
#[tokio::test]
async fn a_signal_of_the_wrong_type_is_read_once() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                for _ in 0..100 {
                    match ctx.signal::<u32>("n").await {
                        Ok(n) => return Ok(n.to_string()),
                        Err(error) => effects.add(error.to_string()),
                    }
                }
                Ok("gave up".to_owned())
            }
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.signal(job, "n", &"seven".to_owned()).await.expect("sent");
        test.run_until_idle().await.expect("it waits for the next");
        assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
        test.signal(job, "n", &8_u32).await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "8", "{:?}", ledger.entries());
    }
}

/// A signal that is there is found, however short the time.
#[tokio::test]
async fn a_wait_of_no_time_takes_what_is_there() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.step("send", async || {
            ctx.engine().signal(ctx.id(), "go", &"on".to_owned()).await?;
            Ok(())
        })
        .await?;
        let went = ctx.signal::<String>("go").timeout(Duration::ZERO).await?;
        Ok(went.unwrap_or("nothing".to_owned()))
    };
    let test = engine(0, handler).await;
    assert_eq!(test.run(flow(0)).await.expect("it ended"), "on");
}

/// JSON knows no `NaN`, and `Some(())` is `null`: what the handler sees is what it will see again.
#[tokio::test]
async fn a_handler_sees_what_is_recorded() {
    let handler = async |ctx: Context, _job: Flow| {
        let unit = ctx.step("unit", async || Ok(Some(()))).await?;
        let number = ctx.step("number", async || Ok(f64::NAN)).await;
        ctx.sleep("nap", HOUR).await?;
        let error = std::error::Error::source(&number.expect_err("not a number")).map(ToString::to_string);
        Ok(format!("{unit:?} {}", error.unwrap_or_default()))
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(2 * HOUR).await.expect("idle");
    let text = test.outcome(&job).expect("it ended");
    assert!(text.starts_with("None discarded: its result cannot be written as JSON: value is NaN"), "{text}");
}

/// Keyed operations beside each other do not make plain ones in a row ambiguous.
#[tokio::test]
async fn keyed_operations_leave_plain_ones_alone() {
    let handler = async |ctx: Context, _job: Flow| {
        let one = |n: u32| async move { Ok(n) };
        ctx.step("charge", async || Ok(1)).await?;
        let (a, b) = tokio::join!(
            ctx.step("charge", move || one(2)).key("a"),
            ctx.step("charge", move || one(3)).key("b")
        );
        let last = ctx.step("charge", async || Ok(4)).await?;
        Ok(format!("{} {} {last}", a?, b?))
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "2 3 4");
    assert_eq!(keys(&test, &job).await, ["charge", "charge#=a", "charge#=b", "charge#2"]);
}

#[tokio::test]
async fn hostile_names_are_refused() {
    let handler = async |ctx: Context, _job: Flow| {
        for name in ["a#=b", "a/b", "", "#2", "a#until", "a\0", "a\n"] {
            let refused = ctx.step(name, async || Ok(())).await;
            assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{name:?}: {refused:?}");
            let refused = ctx.step("fine", async || Ok(())).key(name).await;
            assert!(matches!(refused, Err(EngineError::Invalid { .. })), "{name:?}: {refused:?}");
        }
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    test.run(flow(0)).await.expect("it ended");
}

/// A body that may have seen a drawn number begins after it is recorded, whoever records it.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn what_a_body_may_have_seen_is_recorded_by_then() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("flow.db");
    let engine = mainspring::Engine::open(&format!("sqlite:{}", file.display())).await.expect("open");
    let handler = move |ctx: Context, _job: Flow| {
        let file = file.clone();
        async move {
            let recorded = || {
                let conn = mainspring::rusqlite::Connection::open(&file).expect("open");
                let count = "SELECT count(*) FROM mainspring_steps WHERE key = 'number'";
                conn.query_row(count, [], |row| row.get::<_, i64>(0))
            };
            let number = ctx.random("number").await?;
            let (one, two) = tokio::join!(
                ctx.step("one", async || Ok((number, recorded()?))),
                ctx.step("two", async || Ok((number, recorded()?)))
            );
            mainspring::HandlerResult::Ok(format!("{} {}", one?.1, two?.1))
        }
    };
    let node = engine.node().handle(handler).queue("default", 1).start().await.expect("a node");
    let job = engine.enqueue(flow(0)).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), "1 1");
    node.shutdown().await;
}

/// An engine outlives the executor on which somebody waited.
#[cfg(feature = "sqlite")]
#[test]
fn nobody_waits_for_an_executor_that_is_gone() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite:{}", directory.path().join("flow.db").display());
    let first = runtime();
    let engine = first.block_on(mainspring::Engine::open(&url)).expect("open");
    let job = first.block_on(async { engine.enqueue(flow(0)).await }).expect("enqueued");
    drop(first);
    for _ in 0..2 {
        let waited = runtime().block_on(async {
            tokio::time::timeout(PATIENCE, engine.result(&job)).await.expect("an answer")
        });
        assert!(matches!(waited, Err(EngineError::Closed)), "{waited:?}");
    }
}

/// A step that was given up while it was being recorded had an error with it, which is taken back all the same.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn an_error_that_was_recorded_for_another_step_is_taken_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("flow.db");
    let engine = mainspring::Engine::open(&format!("sqlite:{}", file.display())).await.expect("open");
    let handler = async |ctx: Context, _job: Flow| {
        let attempt = ctx.attempt();
        let first =
            ctx.step("first", async || if attempt == 1 { Err("not yet")? } else { Ok(attempt) }).await;
        if first.is_err() {
            tokio::select! {
                biased;
                second = ctx.step("second", async || Ok(())) => second?,
                () = tokio::task::yield_now() => {}
            }
        }
        match first {
            Ok(first) => mainspring::HandlerResult::Ok(first.to_string()),
            Err(error) => Err(error.into()),
        }
    };
    let node = engine.node().handle(handler).queue("default", 1).start().await.expect("a node");
    let backoff = mainspring::Backoff::Fixed(Duration::from_millis(10));
    let job = engine.enqueue(flow(0)).max_attempts(2).backoff(backoff).await.expect("enqueued");
    assert_eq!(engine.result(&job).await.expect("it ended"), "2");
    node.shutdown().await;
}

#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "part", result = u64)]
struct Part {}

/// A trial of a workflow that waits for signals, for time to pass and for a child that sleeps.
#[tokio::test]
async fn a_trial_waits_for_whatever_there_is() {
    let part = async |ctx: Context, _job: Part| {
        ctx.sleep("work", HOUR).await?;
        mainspring::HandlerResult::Ok(7)
    };
    let handler = async |ctx: Context, _job: Flow| {
        let went = ctx.signal::<String>("go").await?;
        let none = ctx.signal::<String>("never").timeout(HOUR).await?;
        let part = ctx.spawn("part", Part {}).await?.result().await?;
        let last = ctx.step("last", async || Ok(part + 1)).await?;
        mainspring::HandlerResult::Ok(format!("{went} {none:?} {last}"))
    };
    let trial = Trial::new(flow(0), |node| node.handle(handler).handle(part).queue("default", 2)).on_wait(
        |test, job| {
            Box::pin(async move {
                test.signal(job, "go", &"gone".to_owned()).sender("test").await.expect("sent");
            })
        },
    );
    assert_eq!(trial.crash_after_every_step().await.expect("it bears that"), "gone None 8");
}
