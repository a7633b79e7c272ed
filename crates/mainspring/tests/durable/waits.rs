//! Waits: sleeps and signals, and that they cost nothing meanwhile.

use std::sync::Arc;
use std::time::Duration;

use mainspring::admin::Why;
use mainspring::bounds;
use mainspring::testing::TestEngine;
use mainspring::workflow::{SignalReceipt, Subject};
use mainspring::{Context, Error as EngineError, Job, Reason, SignalType, State, Status};

use crate::support::{
    CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, keys, on_memory_and_sqlite, status,
};

const APPROVED: SignalType<bool> = SignalType::new("approved");

async fn approval(ctx: Context, _job: Flow) -> mainspring::HandlerResult<String> {
    Ok(match ctx.signal(APPROVED).timeout(24 * HOUR).await? {
        Some(true) => "approved",
        Some(false) => "refused",
        None => "forgotten",
    }
    .to_owned())
}

#[tokio::test]
async fn a_sleep_holds_no_slot_and_ends_in_time() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, job: Flow| {
            let effects = effects.clone();
            async move {
                ctx.step("before", async || {
                    effects.add("before");
                    Ok(())
                })
                .await?;
                ctx.sleep("nap", Duration::from_secs(job.n)).await?;
                ctx.step("after", async || Ok(())).await?;
                Ok("rested".to_owned())
            }
        };
        let test = engine(cached, handler).await;
        // Far more than there are slots.
        let mut jobs = Vec::new();
        for _ in 0..50 {
            jobs.push(test.enqueue(flow(8)).await.expect("enqueued"));
        }
        test.run_until_idle().await.expect("all are suspended");
        let record = test.jobs().get(jobs[0].id).await.expect("there");
        assert_eq!(record.summary.status, Status::because(State::Suspended, Reason::Timer));
        assert_eq!(record.summary.run_at, Some(test.now().after(8 * SECOND)));
        test.advance(7 * SECOND).await.expect("idle");
        assert_eq!(status(&test, jobs[0].id).await.state, State::Suspended);
        test.advance(SECOND).await.expect("idle");
        for job in &jobs {
            assert_eq!(test.outcome(job).expect("it ended"), "rested");
        }
        assert_eq!(ledger.count("before"), 50);
        assert_eq!(keys(&test, &jobs[0]).await, ["before", "nap#until", "nap", "after"]);
    }
}

#[tokio::test]
async fn a_crash_does_not_make_a_sleep_longer() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.sleep("night", 10 * HOUR).await?;
        Ok("morning".to_owned())
    };
    let test = engine(1_000, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(9 * HOUR).await.expect("asleep");
    test.crash().await.expect("dead");
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    test.advance(HOUR + SECOND).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "morning");
}

#[tokio::test]
async fn a_signal_wakes_the_job_that_waits_for_it() {
    for cached in CACHE_SIZES {
        let test = engine(cached, approval).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits");
        let record = test.jobs().get(job.id).await.expect("there");
        assert_eq!(record.summary.status, Status::because(State::Suspended, Reason::Signal));
        assert!(matches!(&record.waits[0].subject, Subject::Signal(name) if name.as_str() == "approved"));
        assert_eq!(test.signal(job, APPROVED, &true).await.expect("sent"), SignalReceipt::Stored);
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "approved");
    }
}

#[tokio::test]
async fn a_signal_that_comes_early_is_kept() {
    let test = TestEngine::new();
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.signal(job, "approved", &false).await.expect("sent before there is a node");
    test.node(|node| node.handle(approval).queue("default", 1)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "refused");
}

#[tokio::test]
async fn a_wait_ends_when_its_time_is_up() {
    for cached in CACHE_SIZES {
        let test = engine(cached, approval).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(23 * HOUR).await.expect("it waits");
        assert_eq!(status(&test, job.id).await.state, State::Suspended);
        test.advance(HOUR + SECOND).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "forgotten");
    }
}

/// Sends so many signals that nobody waits for, and one that is waited for.
async fn send_behind(noise: usize, test: &TestEngine, job: mainspring::JobId) {
    for n in 0..noise {
        test.signal(job, "noise", &n).await.expect("sent");
    }
    test.signal(job, APPROVED, &true).await.expect("sent");
}

on_memory_and_sqlite! {
    /// More came in time than comes with a claim, and the node was down when the time was up.
    async fn a_signal_that_came_in_time_is_found_behind_a_page_of_others(on: &On) {
        let test = on.engine(0, approval).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits");
        test.crash().await.expect("dead");
        send_behind(bounds::INBOX_PAGE, &test, job.id).await;
        test.advance(25 * HOUR).await.expect("nothing runs");
        test.node(|node| node.handle(approval).queue("default", 1)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "approved");
    }

    /// One look gives a page, and what is behind it has come in time as well.
    async fn a_wait_whose_time_is_up_looks_behind_every_page(on: &On) {
        let handler = async |ctx: Context, _job: Flow| {
            let approved = ctx.signal(APPROVED).timeout(Duration::ZERO).await?;
            mainspring::HandlerResult::Ok(format!("{approved:?}"))
        };
        let test = on.test(0);
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        send_behind(2 * bounds::INBOX_PAGE, &test, job.id).await;
        test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "Some(true)");
    }
}

#[tokio::test]
async fn a_sender_counts_once() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let votes = ctx.signal::<u32>("vote").count(3).await?;
            let text: Vec<_> = votes.iter().map(|vote| format!("{}:{}", vote.sender, vote.value)).collect();
            Ok(text.join(" "))
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits");
        for (sender, value, expected) in [
            ("ann", 1_u32, SignalReceipt::Stored),
            ("bob", 2, SignalReceipt::Stored),
            ("ann", 3, SignalReceipt::Repeated),
            ("cleo", 4, SignalReceipt::Stored),
            ("dan", 5, SignalReceipt::Stored),
        ] {
            assert_eq!(status(&test, job.id).await.state, State::Suspended, "before {sender}");
            assert_eq!(test.signal(job, "vote", &value).sender(sender).await.expect("sent"), expected);
            if sender == "cleo" {
                break;
            }
            test.run_until_idle().await.expect("idle");
        }
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "ann:1 bob:2 cleo:4");
    }
}

#[tokio::test]
async fn several_signals_come_in_order_and_each_is_read_once() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let mut text = String::new();
            for _ in 0..3 {
                text.push_str(&ctx.signal::<String>("letter").await?);
                ctx.step("note", async || Ok(())).await?;
            }
            Ok(text)
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        for letter in ["a", "b"] {
            test.signal(job, "letter", &letter.to_owned()).await.expect("sent");
        }
        test.run_until_idle().await.expect("it waits for the third");
        assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
        test.signal(job, "letter", &"c".to_owned()).await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "abc");
    }
}

#[derive(Debug, serde::Serialize, serde::Deserialize, Job)]
#[job(kind = "order", result = String, signals(approved = bool, note = String))]
struct Order {}

#[tokio::test]
async fn a_kind_declares_its_signals_and_takes_no_others() {
    let handler = async |ctx: Context, _job: Order| {
        let approved = ctx.signal(Order::APPROVED).await?;
        let note = ctx.signal(Order::NOTE).await?;
        mainspring::HandlerResult::Ok(format!("{approved}: {note}"))
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(Order {}).await.expect("enqueued");
    let error = test.signal(job, "aproved", &true).await.expect_err("a slip of the pen").to_string();
    assert_eq!(error, "invalid signal: kind `order` declares no signal `aproved`, only: approved, note");
    // By its constant, a signal of another type does not compile; by text, it is refused.
    let error = test.signal(job, "approved", &"yes").await.expect_err("no bool").to_string();
    assert!(
        error.starts_with("invalid signal: `approved` is declared as `bool`: invalid type: string"),
        "{error}"
    );
    assert!(test.jobs().timeline(job.id).await.expect("a timeline").inbox.messages.is_empty());
    test.signal(job, Order::APPROVED, &true).await.expect("sent");
    test.signal(job.id, "note", &"fine".to_owned()).await.expect("sent");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "true: fine");
}

#[tokio::test]
async fn a_full_inbox_takes_no_more() {
    let test = TestEngine::new();
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    for n in 0..bounds::INBOX {
        test.signal(job, "n", &n).await.expect("sent");
    }
    let full = test.signal(job, "n", &1).await;
    assert!(matches!(full, Err(EngineError::TooLarge { what: "inbox", .. })), "{full:?}");
}

#[tokio::test]
async fn a_signal_to_nobody_is_refused() {
    let test = engine(0, async |_ctx: Context, _job: Flow| Ok(String::new())).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let error = test.signal(job, APPROVED, &true).await.expect_err("it has ended");
    assert_eq!(error.to_string(), format!("cannot signal job {}: it has succeeded", job.id));
    let nobody = mainspring::JobId::from_bytes([9; 16]);
    assert!(matches!(test.signal(nobody, APPROVED, &true).await, Err(EngineError::NotFound(_))));
    let large = "x".repeat(bounds::SIGNAL_BYTES);
    assert!(matches!(test.signal(job, "text", &large).await, Err(EngineError::TooLarge { .. })));
}

#[tokio::test]
async fn whichever_of_several_waits_ends_first_wakes_the_handler() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let first = tokio::select! {
                biased;
                went = ctx.signal::<String>("go") => went?,
                slept = ctx.sleep("patience", HOUR) => { slept?; "too late".to_owned() }
            };
            Ok(first)
        };
        let test = engine(cached, handler).await;
        let quick = test.enqueue(flow(0)).await.expect("enqueued");
        let slow = test.enqueue(flow(1)).await.expect("enqueued");
        test.run_until_idle().await.expect("both wait");
        test.signal(quick, "go", &"gone".to_owned()).await.expect("sent");
        test.advance(2 * HOUR).await.expect("idle");
        assert_eq!(test.outcome(&quick).expect("it ended"), "gone");
        assert_eq!(test.outcome(&slow).expect("it ended"), "too late");
    }
}

#[tokio::test]
async fn a_foreign_await_keeps_the_slot_and_is_not_dropped() {
    let handler = async |ctx: Context, _job: Flow| {
        let (foreign, slept) = tokio::join!(
            async {
                let mut outside = tokio::task::JoinSet::new();
                outside.spawn_blocking(|| 7);
                outside.join_next().await.expect("a task").expect("no panic")
            },
            ctx.sleep("nap", HOUR)
        );
        slept?;
        Ok(foreign.to_string())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("it is suspended once the foreign await has ended");
    assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Timer));
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "7");
}

#[tokio::test]
async fn why_names_a_foreign_await_until_the_handler_goes_on() {
    use tokio::sync::Semaphore;

    let gates = Arc::new([const { Semaphore::const_new(0) }; 3]);
    let there = Arc::clone(&gates);
    let handler = move |ctx: Context, job: Flow| {
        let gates = Arc::clone(&there);
        async move {
            let pass = async |at: usize| gates[at].acquire().await.expect("it is never closed").forget();
            if job.n == 1 {
                // A plain job may await what it likes.
                pass(0).await;
                return Ok("plain".to_owned());
            }
            ctx.step("first", async || Ok(1)).await?;
            pass(0).await;
            ctx.step("second", async || {
                pass(1).await;
                Ok(2)
            })
            .await?;
            // A durable wait beside it changes nothing.
            tokio::select! {
                biased;
                () = pass(2) => {}
                slept = ctx.sleep("nap", HOUR) => slept?,
            }
            Ok("done".to_owned())
        }
    };
    let test = engine(0, handler).await;
    let (job, plain) =
        (test.enqueue(flow(0)).await.expect("enqueued"), test.enqueue(flow(1)).await.expect("enqueued"));
    let why = async |id| test.jobs().why(id).await.expect("a reason");
    test.advance(9 * SECOND).await.expect("it runs");
    assert!(matches!(why(job.id).await, Why::Running { .. }));
    test.advance(3 * SECOND).await.expect("it runs");
    let text = why(job.id).await.to_string();
    assert!(text.contains("awaits something that is not durable, so it keeps its slot"), "{text}");
    assert!(text.contains("it last recorded `first`"), "{text}");
    assert!(matches!(why(plain.id).await, Why::Running { .. }));
    gates[0].add_permits(2);
    test.advance(30 * SECOND).await.expect("its step takes its time");
    assert!(matches!(why(job.id).await, Why::Running { .. }), "a body is none of that");
    assert_eq!(test.outcome(&plain).expect("it ended"), "plain");
    gates[1].add_permits(1);
    test.advance(12 * SECOND).await.expect("it runs");
    assert!(matches!(why(job.id).await, Why::Foreign { last: Some(_), .. }));
    gates[2].add_permits(1);
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "done");
}

#[tokio::test]
async fn a_signal_reaches_a_handler_that_keeps_its_slot() {
    let handler = async |ctx: Context, _job: Flow| {
        let (never, heard) = tokio::sync::oneshot::channel::<()>();
        let heard = async {
            drop(heard.await);
        };
        let text = tokio::select! {
            biased;
            () = heard => unreachable!("the other end is held"),
            text = ctx.signal::<String>("go") => text?,
        };
        drop(never);
        Ok(text)
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(SECOND).await.expect("it runs");
    assert_eq!(status(&test, job.id).await.state, State::Running);
    test.signal(job, "go", &"on".to_owned()).await.expect("sent");
    test.advance(Duration::from_millis(1)).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "on");
}

#[tokio::test]
async fn operators_hold_resume_cancel_and_fail_what_waits() {
    let test = engine(1_000, approval).await;
    let mut jobs = Vec::new();
    for n in 0..4 {
        jobs.push(test.enqueue(flow(n)).await.expect("enqueued"));
    }
    test.run_until_idle().await.expect("all wait");
    test.jobs().hold(jobs[0].id).await.expect("held");
    test.signal(jobs[0], APPROVED, &true).await.expect("sent");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, jobs[0].id).await, Status::because(State::Suspended, Reason::Hold));
    test.jobs().resume(jobs[0].id).await.expect("resumed");
    test.jobs().resume(jobs[1].id).await.expect("it looks again for what it waits for");
    test.jobs().cancel(jobs[2].id).await.expect("cancelled");
    test.jobs().fail(jobs[3].id).await.expect("failed");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&jobs[0]).expect("it ended"), "approved");
    assert_eq!(status(&test, jobs[1].id).await, Status::because(State::Suspended, Reason::Signal));
    assert_eq!(status(&test, jobs[2].id).await, Status::because(State::Cancelled, Reason::Operator));
    assert_eq!(status(&test, jobs[3].id).await, Status::because(State::Failed, Reason::Operator));
}

#[tokio::test]
async fn a_deadline_ends_a_wait() {
    let test = engine(0, approval).await;
    let job = test.enqueue(flow(0)).deadline(HOUR).await.expect("enqueued");
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await, Status::because(State::Failed, Reason::Expired));
}

#[tokio::test]
async fn ten_thousand_signals_are_taken_in_their_order() {
    let handler = async |ctx: Context, job: Flow| {
        let count = u32::try_from(job.n)?;
        let all = ctx.signal::<u32>("n").count(count).await?;
        let sorted = all.is_sorted_by_key(|one| one.value);
        Ok(format!("{} {sorted}", all.len()))
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(10_000)).await.expect("enqueued");
    test.run_until_idle().await.expect("it waits");
    for n in 0..10_000_u32 {
        test.signal(job, "n", &n).await.expect("sent");
    }
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "10000 true");
}

/// They are one wait to the store, and each of them gets a signal of its own.
#[tokio::test]
async fn a_thousand_waits_for_one_signal_are_one() {
    let handler = async |ctx: Context, job: Flow| {
        let waits = (0..job.n)
            .map(|n| ctx.branch(&n.to_string(), async |ctx: Context| Ok(ctx.signal::<u64>("go").await?)));
        let mut sum = 0;
        for heard in mainspring::join_all(waits).await {
            sum += heard?;
        }
        Ok(sum.to_string())
    };
    // A handler that is not kept goes through all of them for each signal.
    for (cached, count) in [(1_000, 1_000), (0, 100)] {
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(count)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits");
        assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Signal));
        for n in 1..=count {
            test.signal(job, "go", &n).await.expect("sent");
        }
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), (count * (count + 1) / 2).to_string());
    }
}

#[tokio::test]
async fn messages_that_were_left_unread_are_there_after_a_wake() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let first = ctx.signal::<u32>("b").await?;
            let second = ctx.signal::<u32>("c").await?;
            let mut rest = Vec::new();
            for _ in 0..3 {
                rest.push(ctx.signal::<u32>("a").await?);
            }
            Ok(format!("{first} {second} {rest:?}"))
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        for n in 1..=3_u32 {
            test.signal(job, "a", &n).await.expect("sent");
        }
        test.run_until_idle().await.expect("it waits for b");
        test.signal(job, "b", &4_u32).await.expect("sent");
        test.run_until_idle().await.expect("it waits for c");
        test.signal(job, "c", &5_u32).await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "4 5 [1, 2, 3]");
    }
}

#[tokio::test]
async fn a_handler_that_listens_for_its_cancellation_is_suspended_all_the_same() {
    let handler = async |ctx: Context, _job: Flow| {
        tokio::select! {
            biased;
            () = ctx.cancelled() => Ok("stopped".to_owned()),
            slept = ctx.sleep("night", HOUR) => { slept?; Ok("slept".to_owned()) }
        }
    };
    let test = engine(1_000, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("it is suspended");
    assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Timer));
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "slept");
}

#[tokio::test]
async fn steps_are_recorded_during_the_grace_after_a_cancellation() {
    let handler = async |ctx: Context, _job: Flow| {
        let (never, heard) = tokio::sync::oneshot::channel::<()>();
        tokio::select! {
            biased;
            () = ctx.cancelled() => {}
            _ = heard => {}
        }
        drop(never);
        ctx.step("cleanup", async || Ok(())).await?;
        Ok("cleaned up".to_owned())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(SECOND).await.expect("it runs");
    test.jobs().cancel(job.id).await.expect("flagged");
    test.advance(SECOND).await.expect("idle");
    assert_eq!(keys(&test, &job).await, ["cleanup"]);
    assert_eq!(test.outcome(&job).expect("a success counts"), "cleaned up");
}

#[tokio::test]
async fn signals_that_are_too_large_together_are_a_clear_error() {
    let handler =
        async |ctx: Context, _job: Flow| Ok(ctx.signal::<String>("part").count(20).await?.len().to_string());
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    let part = "x".repeat(bounds::SIGNAL_BYTES - 2);
    for n in 0..20 {
        test.signal(job, "part", &part).sender(format!("sender {n}")).await.expect("sent");
    }
    test.run_until_idle().await.expect("idle");
    let record = test.jobs().get(job.id).await.expect("the job");
    assert_eq!(record.summary.status, Status::because(State::Failed, Reason::Discarded));
    let error = &record.errors[0].message;
    assert!(
        error.contains("step `part` failed") && error.contains("bytes together, more than the bound of"),
        "{error}"
    );
}
