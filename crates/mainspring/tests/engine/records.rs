//! Records on their way when their job ends: none is overtaken.

use std::time::Duration;

use mainspring::{Backoff, Context, Failure, NodeBuilder, State};

use crate::faults::faulty;
use crate::faulty_store::Fault::{Lose, Refuse};
use crate::support::{Ledger, Work, assert_sound, on_every_store, record, soon, state, work};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(15);

on_every_store! {
    /// Its record and its end are two calls: the second must not be the first to arrive.
    async fn a_step_that_is_done_when_another_fails_is_not_done_again(engine: Engine) {
        let ledger = Ledger::default();
        let node = keeping(engine.node(), &ledger).queue("default", 32).start().await.expect("a node");
        let jobs = (0..256).map(|n| work(2 * n));
        let now = Backoff::Fixed(Duration::ZERO);
        let jobs = engine.enqueue_many(jobs).backoff(now).await.expect("enqueued");
        for (job, n) in jobs.iter().zip(0..) {
            assert_eq!(soon("it ends", engine.result(job)).await.expect("it succeeded"), 2 * n);
        }
        soon("it drains", node.shutdown()).await;
        assert_eq!(ledger.sorted(), (0..256).map(|n| 2 * n).collect::<Vec<_>>(), "each once");
        assert_sound(&engine).await;
    }
}

/// Keeps the result of a step; a first attempt with an even number fails beside it.
fn keeping(node: NodeBuilder, ledger: &Ledger) -> NodeBuilder {
    let ledger = ledger.clone();
    let handler = move |ctx: Context, job: Work| {
        let ledger = ledger.clone();
        async move {
            let kept = ctx.step("kept", async || {
                ledger.add(job.n);
                Ok(job.n)
            });
            let fails = ctx.attempt() == 1 && job.n.is_multiple_of(2);
            let beside = async { if fails { Err(Failure::from("beside it")) } else { Ok(()) } };
            let (kept, ()) = tokio::try_join!(biased; async { Ok(kept.await?) }, beside)?;
            mainspring::HandlerResult::Ok(kept)
        }
    };
    node.handle(handler).queue("default", 1).drain(SECOND)
}

/// What is done is recorded before its job ends, however that ends: or the next run would do it again.
#[tokio::test]
async fn no_end_overtakes_a_record_on_its_way() {
    for way in ["fails", "time-out", "deadline", "cancel", "shutdown"] {
        let (test, store) = faulty(0);
        let ledger = Ledger::default();
        let node = test.node(|node| keeping(node, &ledger)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        store.hang("record", None, true);
        let job = test.enqueue(work(if way == "fails" { 2 } else { 1 }));
        let job = match way {
            "time-out" => job.timeout(SECOND),
            "deadline" => job.deadline(SECOND),
            _ => job,
        };
        let job = job.await.expect("enqueued");
        test.advance(SECOND / 2).await.expect("time passes");
        if way == "cancel" {
            test.jobs().cancel(job.id).await.expect("cancelled");
        }
        let goes = async || {
            if way == "shutdown" {
                node.shutdown().await;
            }
        };
        let time_passes = async || {
            test.advance(3 * SECOND).await.expect("time passes");
            assert_eq!((state(&test, job.id).await, store.calls("finish")), (State::Running, 0), "{way}");
            // It is stored and nobody is told, and then the store is away for a moment.
            store.plan("record", &[Lose, Refuse]);
            store.hang("record", None, false);
            test.advance(30 * SECOND).await.expect("time passes");
        };
        tokio::join!(goes(), time_passes());
        match way {
            "deadline" | "cancel" => drop(test.jobs().retry(job.id).await.expect("retried")),
            "shutdown" => drop(test.node(|node| keeping(node, &ledger)).await.expect("another node")),
            _ => {}
        }
        test.advance(30 * SECOND).await.expect("time passes");
        assert_eq!(state(&test, job.id).await, State::Succeeded, "{way}");
        assert_eq!(ledger.len(), 1, "{way}: done once");
        assert_sound(&test).await;
    }
}

/// An error that panics when somebody looks at it, or drops it.
#[derive(Debug)]
struct Evil {
    looked_at: bool,
}

impl std::fmt::Display for Evil {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("evil")
    }
}

impl std::error::Error for Evil {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        assert!(!self.looked_at, "looked at");
        None
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        assert!(self.looked_at || std::thread::panicking(), "dropped");
    }
}

#[tokio::test]
async fn no_panic_overtakes_a_record_on_its_way() {
    for looked_at in [true, false] {
        let (test, store) = faulty(0);
        let ledger = Ledger::default();
        let done = ledger.clone();
        let handler = move |ctx: Context, job: Work| {
            let done = done.clone();
            async move {
                let kept = ctx.step("kept", async || {
                    done.add(job.n);
                    Ok(job.n)
                });
                let fails = async {
                    match (ctx.attempt(), looked_at) {
                        (1, true) => return Err(Failure::from(Evil { looked_at })),
                        // Who fails when he is asked to stop has stopped, and his error is dropped.
                        (1, false) => ctx.cancelled().await,
                        _ => return Ok(()),
                    }
                    Err(Failure::from(Evil { looked_at }))
                };
                let (kept, ()) = tokio::try_join!(biased; async { Ok(kept.await?) }, fails)?;
                mainspring::HandlerResult::Ok(kept)
            }
        };
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        store.hang("record", None, true);
        let job = test.enqueue(work(1)).await.expect("enqueued");
        test.advance(SECOND).await.expect("time passes");
        if !looked_at {
            test.jobs().cancel(job.id).await.expect("cancelled");
        }
        test.advance(3 * SECOND).await.expect("time passes");
        assert_eq!((state(&test, job.id).await, store.calls("finish")), (State::Running, 0));
        store.hang("record", None, false);
        test.advance(30 * SECOND).await.expect("time passes");
        let end = if looked_at { State::Succeeded } else { State::Cancelled };
        assert_eq!((state(&test, job.id).await, ledger.len()), (end, 1));
    }
}

/// What an earlier attempt said is taken back before a handler is called: also if it then is not there.
#[tokio::test]
async fn what_is_void_is_told_although_the_handler_panics_at_once() {
    let (test, store) = faulty(0);
    let handler = |ctx: Context, job: Work| {
        assert_ne!(ctx.attempt(), 2, "no future");
        async move {
            ctx.emit("void").await?;
            if job.n > 0 { Err(Failure::from("first")) } else { mainspring::HandlerResult::Ok(job.n) }
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).max_attempts(2).await.expect("enqueued");
    test.advance(SECOND / 10).await.expect("time passes");
    assert_eq!(store.calls("finish"), 1);
    store.hang("record", None, true);
    test.advance(30 * SECOND).await.expect("time passes");
    assert_eq!((state(&test, job.id).await, store.calls("finish")), (State::Running, 1));
    store.hang("record", None, false);
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Failed);
    let mut frames = test.tail(job.id);
    let mut resets = 0;
    while let Some(frame) = frames.next().await.expect("a frame") {
        resets += usize::from(matches!(frame, mainspring::tail::TailEvent::Reset { .. }));
    }
    assert_eq!(resets, 1);
}

/// The handler is gone: what its job waits for is the store.
#[tokio::test]
async fn an_end_that_waits_for_a_record_is_not_stuck() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    test.node(|node| keeping(node, &ledger)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    store.hang("record", None, true);
    let job = test.enqueue(work(1)).timeout(SECOND).await.expect("enqueued");
    test.advance(10 * SECOND).await.expect("time passes");
    assert!(!record(&test, job.id).await.summary.stuck);
}

#[tokio::test]
async fn an_end_that_waits_for_records_costs_no_call_of_its_own() {
    // Nothing, three steps, a stream that breaks off, and a step that is done when another fails.
    for (n, records) in [(0, 0), (1, 3), (2, 5), (3, 1)] {
        let (test, store) = faulty(0);
        let handler = async |ctx: Context, job: Work| {
            match job.n {
                0 => {}
                1 => {
                    for step in ["one", "two", "three"] {
                        ctx.step(step, async || Ok(())).await?;
                    }
                }
                2 => {
                    let stream = ctx.step_with("stream", async |step| {
                        for frame in 0..5 {
                            step.emit(frame).await?;
                            ctx.engine().seams().clock.sleep(SECOND).await;
                        }
                        Err::<(), _>(Failure::from("it is meant to fail"))
                    });
                    stream.await?;
                }
                _ => {
                    let step = async { Ok(ctx.step("kept", async || Ok(())).await?) };
                    tokio::try_join!(biased; step, async { Err::<(), _>(Failure::from("beside it")) })?;
                }
            }
            mainspring::HandlerResult::Ok(job.n)
        };
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
        test.enqueue(work(n)).max_attempts(1).await.expect("enqueued");
        test.advance(10 * SECOND).await.expect("time passes");
        assert_eq!((store.calls("record"), store.calls("finish")), (records, 1), "{n}");
    }
}

/// What is nobody's business any more is not waited for.
#[tokio::test]
async fn a_record_that_hangs_keeps_no_slot_of_a_node_that_was_expired() {
    let (test, store) = faulty(0);
    let ledger = Ledger::default();
    let node = test.node(|node| keeping(node, &ledger)).await.expect("a node");
    let number = node.number();
    store.hang("record", Some(number), true);
    let job = test.enqueue(work(2)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    store.cut_off(number, true);
    let other = test.node(|node| keeping(node, &ledger)).await.expect("another node");
    test.advance(LEASE + 2 * SECOND).await.expect("time passes");
    assert_eq!((state(&test, job.id).await, ledger.len()), (State::Succeeded, 2), "it ran elsewhere");
    store.cut_off(number, false);
    test.advance(LEASE).await.expect("time passes");
    assert_ne!(node.number(), number, "it has joined anew");
    other.shutdown().await;
    // The next job, which records by the other way: this one is taken for as long as the call hangs.
    let next = test.enqueue(work(3)).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, next.id).await, State::Succeeded, "its slot is free");
}
