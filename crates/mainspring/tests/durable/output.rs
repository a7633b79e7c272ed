//! What handlers and the bodies of their steps say: once, or behind a reset.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use mainspring::tail::TailEvent;
use mainspring::testing::TestEngine;
use mainspring::{Context, Error, JobId, Reason, State, Status, StepContext};
use mainspring_core::seam::Pending;

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, keys, status};

/// All that is there to be read of a job.
async fn read(test: &TestEngine, id: JobId, after: u64) -> Vec<String> {
    let mut tail = test.tail(id).after(after).follow(false);
    let mut read = Vec::new();
    while let Some(told) = tail.next().await.expect("the job is there") {
        read.push(shown(&told));
    }
    read
}

fn shown(told: &TailEvent) -> String {
    let by = |step: &Option<mainspring::name::Key>| {
        step.as_ref().map_or(String::new(), |step| format!("{step}: "))
    };
    match told {
        TailEvent::Frame(frame) => format!("{}{}", by(&frame.step), frame.text()),
        TailEvent::Reset { step, from, .. } => format!("{}<{from}", by(step)),
        TailEvent::Gap { from, to } => format!("{from}..{to}"),
        TailEvent::Progress(progress) => format!("{}/{} {}", progress.done, progress.total, progress.note),
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn what_the_handler_says_is_not_said_again_when_it_runs_again() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            ctx.emit("one").await?;
            ctx.step("first", async || Ok(())).await?;
            ctx.emit(serde_json::json!({ "n": 2 })).await?;
            ctx.sleep("night", HOUR).await?;
            ctx.branch("left", async |ctx| Ok(ctx.emit("three").await?)).await?;
            ctx.sleep("day", HOUR).await?;
            ctx.emit("four").await?;
            Ok(String::new())
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        assert_eq!(read(&test, job.id, 0).await, ["one", r#"{"n":2}"#]);
        test.advance(HOUR).await.expect("awake");
        test.advance(HOUR).await.expect("awake");
        test.outcome(&job).expect("it ended");
        assert_eq!(read(&test, job.id, 0).await, ["one", r#"{"n":2}"#, "three", "four"]);
        assert_eq!(read(&test, job.id, 3).await, ["four"], "behind a position");
    }
}

#[tokio::test]
async fn what_was_said_before_a_wait_without_records_is_not_said_again() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            ctx.emit("asked").await?;
            let go: String = ctx.signal("go").await?;
            ctx.emit(go).await?;
            Ok(String::new())
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        test.signal(job, "go", &"yes").await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(read(&test, job.id, 0).await, ["asked", "yes"]);
    }
}

#[tokio::test]
async fn a_job_that_records_nothing_else_begins_anew_behind_a_reset() {
    let ledger = Ledger::default();
    let runs = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let runs = runs.clone();
        async move {
            runs.add("run");
            let run = runs.count("run");
            ctx.emit(format!("begin {run}")).await?;
            if run < 3 {
                ctx.emit("this goes wrong").await?;
                Err("wrong")?;
            }
            ctx.emit("done").await?;
            Ok(String::new())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.advance(HOUR).await.expect("retried");
    test.advance(HOUR).await.expect("retried");
    test.outcome(&job).expect("it ended");
    let wrong = "this goes wrong";
    let expected = ["begin 1", wrong, "<1", "begin 2", wrong, "<1", "begin 3", "done"];
    assert_eq!(read(&test, job.id, 0).await, expected);
    assert_eq!(keys(&test, &job).await, ["#output=2"]);
}

/// A body that says how often it was tried and some tokens, and fails the first times.
async fn tokens(step: StepContext, fail: bool) -> mainspring::HandlerResult<u32> {
    let tries = step.attempt();
    for token in ["a", "b"] {
        step.emit(format!("{token}{tries}")).await?;
    }
    if fail {
        Err("the line is dead")?;
    }
    Ok(tries)
}

#[tokio::test]
async fn a_body_that_runs_again_speaks_behind_a_reset() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.emit("ask").await?;
        let model = ctx.step_with("model", async |step| {
            let fail = step.attempt() < 3;
            tokens(step, fail).await
        });
        model.retry(2).await?;
        ctx.emit("thanks").await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("tried again");
    test.advance(HOUR).await.expect("tried again");
    test.outcome(&job).expect("it ended");
    let said = ["model: a1", "model: b1", "model: <2", "model: a2", "model: b2", "model: <2"];
    let expected = [&["ask"], &said[..], &["model: a3", "model: b3", "thanks"]].concat();
    assert_eq!(read(&test, job.id, 0).await, expected);
    assert_eq!(keys(&test, &job).await, ["model", "#output=2"], "no mark is left");
}

#[tokio::test]
async fn a_body_that_was_cut_off_by_a_crash_speaks_behind_a_reset() {
    let ledger = Ledger::default();
    let handler = |ledger: Ledger| {
        move |ctx: Context, _job: Flow| {
            let runs = ledger.clone();
            async move {
                ctx.step_with("before", async |step| tokens(step, false).await).await?;
                ctx.step_with("model", async |step| {
                    runs.add("model");
                    step.emit(format!("run {}", runs.count("model"))).await?;
                    if runs.count("model") == 1 {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                })
                .await?;
                Ok(String::new())
            }
        }
    };
    let test = engine(0, handler(ledger.clone())).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(SECOND).await.expect("it runs");
    assert_eq!(read(&test, job.id, 2).await, ["model: run 1"], "live, although the step has no result");
    test.crash().await.expect("dead");
    let again = handler(ledger.clone());
    test.node(|node| node.handle(again).queue("default", 1)).await.expect("a node");
    test.advance(20 * SECOND).await.expect("rescued");
    test.outcome(&job).expect("it ended");
    let expected = ["before: a1", "before: b1", "model: run 1", "model: <3", "model: run 2"];
    assert_eq!(read(&test, job.id, 0).await, expected);
    assert_eq!(keys(&test, &job).await, ["before", "model"]);
}

#[tokio::test]
async fn a_stream_is_no_progress() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.step_with("model", async |step| {
            step.emit("one more").await?;
            std::future::pending::<()>().await;
            Ok(())
        })
        .await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    for _ in 0..3 {
        test.advance(SECOND).await.expect("it runs");
        test.crash().await.expect("dead");
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
        test.advance(20 * SECOND).await.expect("rescued");
    }
    assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Quarantine));
    let said = read(&test, job.id, 0).await;
    assert_eq!(said, ["model: one more", "model: <1", "model: one more", "model: <1", "model: one more"]);
}

#[tokio::test]
async fn a_loop_that_speaks_keeps_nothing_but_its_state() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let last = ctx.iterate("turns", 0_u64, async |ctx, turn| {
                ctx.emit(turn).await?;
                ctx.step_with("model", async |step| tokens(step, false).await).await?;
                if turn % 40 == 39 {
                    ctx.sleep("rest", SECOND).await?;
                }
                Ok(if turn == 199 { ControlFlow::Break(turn) } else { ControlFlow::Continue(turn + 1) })
            });
            Ok(last.await?.to_string())
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let records = keys(&test, &job).await.len();
        assert!(records < 10, "{records} records");
        for _ in 0..5 {
            test.advance(SECOND).await.expect("rested");
        }
        assert_eq!(test.outcome(&job).expect("it ended"), "199");
        let said = read(&test, job.id, 0).await;
        let turn = |turn: u64| {
            let step = format!("turns/{}/model", turn + 1);
            [turn.to_string(), format!("{step}: a1"), format!("{step}: b1")]
        };
        assert_eq!(said, (0..200).flat_map(turn).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn what_cannot_be_said_is_refused() {
    let handler = async |ctx: Context, _job: Flow| {
        let large = "x".repeat(mainspring::bounds::FRAME_BYTES - 1);
        let error = ctx.emit(&large).await.expect_err("too large");
        assert!(matches!(error, Error::TooLarge { what: "frame", .. }), "{error:?}");
        ctx.emit(&large[1..]).await?;
        let two = tokio::join!(ctx.emit(1), ctx.emit(2));
        assert!(matches!(two, (Ok(()), Err(Error::DuplicateKey { .. }))), "{two:?}");
        let nested = ctx.step("s", async || Ok(ctx.emit(3).await?)).await.expect_err("nested");
        assert!(format!("{:?}", mainspring::Failure::from(nested)).contains("Nested"));
        let kept = Arc::new(Mutex::new(None));
        ctx.step_with("t", async |step| {
            *kept.lock().expect("it") = Some(step);
            Ok(())
        })
        .await?;
        let step = kept.lock().expect("it").take().expect("a step");
        let late: Pending<'_, _> = step.emit("late");
        assert!(matches!(late.await, Err(Error::Detached { .. })), "its body has ended");
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.outcome(&job).expect("it ended");
    let said = read(&test, job.id, 0).await;
    assert_eq!((said.len(), said[1].as_str()), (2, "1"));
}

#[tokio::test]
async fn old_frames_are_a_gap_to_who_comes_late() {
    let frames = mainspring::bounds::FRAMES as u64;
    let handler = move |ctx: Context, _job: Flow| async move {
        ctx.step_with("many", async |step| {
            for frame in 1..=frames + 10 {
                step.emit(frame).await?;
            }
            Ok(())
        })
        .await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let late = read(&test, job.id, 5).await;
    assert_eq!((late[0].as_str(), late[1].as_str()), ("6..10", "many: 11"));
    assert_eq!(late.len(), mainspring::bounds::FRAMES + 1);
    assert_eq!(read(&test, job.id, frames + 8).await.len(), 2);
}

#[tokio::test]
async fn a_tail_follows_until_the_job_has_ended() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.emit("hello").await?;
        ctx.progress(1, 2, "half");
        let word: String = ctx.signal("go").await?;
        ctx.emit(word).await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let unknown = test.tail(JobId::from_bytes([7; 16])).next().await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    let mut tail = test.tail(job.id);
    let (first, idle) = tokio::join!(tail.next(), test.run_until_idle());
    idle.expect("idle");
    assert_eq!(shown(&first.expect("it is there").expect("something")), "hello");
    assert_eq!((tail.position(), tail.ended()), (1, None));
    test.signal(job, "go", &"bye").await.expect("sent");
    test.run_until_idle().await.expect("idle");
    let mut rest = Vec::new();
    while let Some(told) = tail.next().await.expect("it is there") {
        rest.push(shown(&told));
    }
    assert_eq!(rest, ["bye", "1/2 half"]);
    assert_eq!(tail.ended(), Some(Status::plain(State::Succeeded)));
    assert!(tail.next().await.expect("it is there").is_none(), "and stays there");
}
