//! Steps: done once, recorded, and what becomes of their errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::testing::{Error, TestEngine};
use mainspring::{Context, Error as EngineError, Reason, State, Status, discard};

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, keys, status};

#[tokio::test]
async fn a_recorded_step_is_not_run_again() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, job: Flow| {
            let effects = effects.clone();
            async move {
                let first = ctx
                    .step("first", async || {
                        effects.add("first");
                        Ok(job.n * 2)
                    })
                    .await?;
                if ctx.attempt() < 3 {
                    Err("not yet")?;
                }
                let second = ctx.step("second", async || Ok(format!("{first}!"))).await?;
                Ok(second)
            }
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(21)).await.expect("enqueued");
        test.advance(HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "42!");
        assert_eq!(ledger.entries(), ["first"]);
        assert_eq!(keys(&test, &job).await, ["first", "second"]);
    }
}

#[tokio::test]
async fn repeats_in_a_row_have_records_of_their_own() {
    let handler = async |ctx: Context, _job: Flow| {
        let mut sum = 0;
        for n in 0..4_u64 {
            sum += ctx.step("add", async || Ok(n)).await?;
        }
        for n in 0..2_u64 {
            sum += ctx.step("keyed", async || Ok(n)).key(n).await?;
        }
        Ok(sum.to_string())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "7");
    assert_eq!(keys(&test, &job).await, ["add", "add#2", "add#3", "add#4", "keyed#=0", "keyed#=1"]);
}

#[tokio::test]
async fn steps_run_beside_each_other_under_join() {
    let handler = async |ctx: Context, _job: Flow| {
        let (one, two) = tokio::join!(ctx.step("one", async || Ok(1)), ctx.step("two", async || Ok(2)));
        let branches = (
            ctx.branch("left", async |ctx| Ok(ctx.step("same", async || Ok(3)).await?)),
            ctx.branch("right", async |ctx| Ok(ctx.step("same", async || Ok(4)).await?)),
        );
        let (three, four) = tokio::join!(branches.0, branches.1);
        Ok(format!("{}{}{}{}", one?, two?, three?, four?))
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "1234");
    let mut keys = keys(&test, &job).await;
    keys.sort();
    assert_eq!(keys, ["left/same", "one", "right/same", "two"]);
}

#[tokio::test]
async fn an_ambiguous_key_is_refused_before_any_effect() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, job: Flow| {
        let effects = effects.clone();
        async move {
            let body = async || {
                effects.add("ran");
                Ok(1)
            };
            if job.n == 0 {
                let (one, two) = tokio::join!(ctx.step("same", body), ctx.step("same", body));
                one?;
                two?;
            } else {
                let (one, two) = tokio::join!(ctx.step("a", async || Ok(1)), ctx.step("b", async || Ok(1)));
                one?;
                two?;
                ctx.step("a", body).await?;
            }
            Ok(String::new())
        }
    };
    let test = engine(0, handler).await;
    for (n, ran) in [(0, 1), (1, 0)] {
        let before = ledger.count("ran");
        let error = test.run(flow(n)).await.expect_err("ambiguous").to_string();
        assert!(error.contains("it was used concurrently"), "{error}");
        assert_eq!(ledger.count("ran") - before, ran);
    }
}

#[tokio::test]
async fn an_unpolled_operation_leaves_its_key_free() {
    let handler = async |ctx: Context, _job: Flow| {
        drop(ctx.step("a", async || Ok(1)));
        ctx.step("a", async || Ok(1)).await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(keys(&test, &job).await, ["a"]);
}

/// An error that is its own source, as a careless `source` makes it.
#[derive(Debug)]
struct Loop;

impl std::fmt::Display for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("round and round")
    }
}

impl std::error::Error for Loop {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self)
    }
}

#[tokio::test]
async fn an_error_whose_sources_lead_back_to_it_ends_the_step_and_the_job() {
    let handler = async |ctx: Context, job: Flow| {
        let failed = ctx.step("a", async || Err::<(), _>(Loop.into())).await;
        let failure = mainspring::Failure::from(failed.expect_err("it failed"));
        if job.n == 0 { Err(failure) } else { Ok(failure.message()) }
    };
    let test = engine(0, handler).await;
    let survived = test.run(flow(1)).await.expect("the handler survives it");
    assert!(survived.starts_with("step `a` failed: round and round: …"), "{survived}");
    let error = test.run(flow(0)).await.expect_err("it fails").to_string();
    assert!(error.contains("cut after 64 sources"), "{error}");
}

#[tokio::test]
async fn an_error_that_the_handler_returns_is_not_recorded() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            ctx.step("before", async || Ok(())).await?;
            let said = ctx
                .step("flaky", async || {
                    effects.add("flaky");
                    if effects.count("flaky") < 3 { Err("no luck")? } else { Ok("luck".to_owned()) }
                })
                .await?;
            Ok(said)
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "luck");
    assert_eq!(ledger.count("flaky"), 3);
    let record = test.jobs().get(job.id).await.expect("there");
    assert_eq!(record.errors[0].message, "step `flaky` failed: no luck");
}

#[tokio::test]
async fn an_error_that_the_handler_survives_is_recorded_and_met_again() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                let charged = ctx
                    .step("charge", async || -> mainspring::HandlerResult<()> {
                        effects.add("charge");
                        Err("declined")?
                    })
                    .await;
                let why = charged.expect_err("declined");
                ctx.step("refund", async || {
                    effects.add("refund");
                    Ok(())
                })
                .await?;
                ctx.sleep("cool-off", HOUR).await?;
                if ctx.attempt() == 1 {
                    Err("once more")?;
                }
                let failure = mainspring::Failure::from(why);
                Ok(failure.message())
            }
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(2 * HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "step `charge` failed: declined");
        assert_eq!(ledger.entries(), ["charge", "refund"]);
    }
}

#[tokio::test]
async fn a_recorded_error_is_taken_back_when_the_handler_returns_it_after_all() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            let charged = ctx
                .step("charge", async || {
                    effects.add("charge");
                    if effects.count("charge") == 1 { Err("declined")? } else { Ok("paid".to_owned()) }
                })
                .await;
            ctx.step("between", async || Ok(())).await?;
            Ok(charged?)
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "paid");
    assert_eq!(ledger.count("charge"), 2);
}

#[tokio::test]
async fn an_error_that_was_recorded_with_a_suspension_is_taken_back_too() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                let charged = ctx
                    .step("charge", async || {
                        effects.add("charge");
                        if effects.count("charge") == 1 { Err("declined")? } else { Ok("paid".to_owned()) }
                    })
                    .await;
                // Not longer than a suspended handler is kept in memory.
                ctx.sleep("pause", SECOND).await?;
                Ok(charged?)
            }
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).max_attempts(2).await.expect("enqueued");
        test.advance(HOUR).await.expect("idle");
        let paid = test.outcome(&job).expect("the second attempt charges again");
        assert_eq!(paid, "paid", "with {cached} cached handlers");
        assert_eq!(ledger.count("charge"), 2);
    }
}

#[tokio::test]
async fn a_step_is_retried_and_timed_out_by_itself() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, job: Flow| {
        let effects = effects.clone();
        async move {
            if job.n == 0 {
                ctx.step("flaky", async || {
                    effects.add("flaky");
                    if effects.count("flaky") < 4 { Err("no luck")? } else { Ok(()) }
                })
                .retry(3)
                .await?;
            } else {
                let slow = ctx.step("slow", async || {
                    std::future::pending::<()>().await;
                    Ok(())
                });
                slow.timeout(5 * SECOND).await?;
            }
            Ok("done".to_owned())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "done");
    assert_eq!(
        (ledger.count("flaky"), test.jobs().get(job.id).await.expect("there").summary.failures),
        (4, 0)
    );

    let job = test.enqueue(flow(1)).max_attempts(1).await.expect("enqueued");
    test.advance(6 * SECOND).await.expect("idle");
    let error = test.outcome(&job).expect_err("it timed out").to_string();
    assert!(error.contains("step `slow` failed: timed out after 5s"), "{error}");
}

#[tokio::test]
async fn what_is_done_once_is_not_done_again_after_a_crash() {
    let ledger = Ledger::default();
    let handler = |ledger: Ledger| {
        move |ctx: Context, _job: Flow| {
            let effects = ledger.clone();
            async move {
                let sent = ctx.once("send", async || {
                    effects.add("send");
                    if effects.count("send") == 1 {
                        std::future::pending::<()>().await;
                    }
                    Ok(())
                });
                match sent.await {
                    Err(EngineError::Interrupted { key }) => Ok(format!("{key} was interrupted")),
                    other => Ok(format!("{other:?}")),
                }
            }
        }
    };
    let test = engine(0, handler(ledger.clone())).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(SECOND).await.expect("it runs");
    test.crash().await.expect("dead");
    let again = handler(ledger.clone());
    test.node(|node| node.handle(again).queue("default", 1)).await.expect("a node");
    test.advance(20 * SECOND).await.expect("rescued");
    assert_eq!(test.outcome(&job).expect("it ended"), "send was interrupted");
    assert_eq!(ledger.count("send"), 1);
}

#[tokio::test]
async fn a_result_that_is_too_large_fails_the_job_for_good_with_a_clear_word() {
    let handler = async |ctx: Context, job: Flow| {
        let bytes = usize::try_from(job.n).expect("a size");
        ctx.step("large", async || Ok("x".repeat(bytes))).await?;
        Ok(String::new())
    };
    let test = engine(0, handler).await;
    test.run(flow(mainspring::bounds::STEP_BYTES as u64 - 2)).await.expect("it fits");
    let job = test.enqueue(flow(mainspring::bounds::STEP_BYTES as u64 - 1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, job.id).await, Status::because(State::Failed, Reason::Discarded));
    let error = test.outcome(&job).expect_err("too large").to_string();
    assert!(error.contains("its result has 1048577 bytes, more than the bound of 1048576"), "{error}");
}

#[tokio::test]
async fn a_record_that_does_not_decode_holds_the_job_and_runs_nothing() {
    let ledger = Ledger::default();
    let first = async |ctx: Context, _job: Flow| {
        ctx.step("count", async || Ok(7_u64)).await?;
        ctx.sleep("night", HOUR).await?;
        Ok(String::new())
    };
    let test = engine(0, first).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.crash().await.expect("dead");

    let effects = ledger.clone();
    let second = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            let counted: Vec<String> = ctx
                .step("count", async || {
                    effects.add("count");
                    Ok(Vec::new())
                })
                .await?;
            ctx.sleep("night", HOUR).await?;
            mainspring::HandlerResult::Ok(format!("{counted:?}"))
        }
    };
    test.node(|node| node.handle(second).queue("default", 1)).await.expect("a node");
    test.advance(2 * HOUR).await.expect("idle");
    let record = test.jobs().get(job.id).await.expect("there");
    assert_eq!(record.summary.status, Status::because(State::Suspended, Reason::Drift));
    let note = record.note.expect("a note");
    assert!(note.starts_with("the record of `count` is not a `alloc::vec::Vec<"), "{note}");
    assert_eq!(ledger.count("count"), 0);
    // Resumed at once, it is not taken up where it stood still, but looks at its records again.
    test.jobs().resume(job.id).await.expect("resumed");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Drift));
}

#[tokio::test]
async fn drawn_values_are_the_same_in_every_run() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                let (now, random) = (ctx.now("now").await?, ctx.random("dice").await?);
                let id = ctx.uuid("id").await?;
                ctx.step("use", async || Ok(())).await?;
                effects.add(format!("{now} {random} {id}"));
                ctx.sleep("night", HOUR).await?;
                if ctx.attempt() < 3 {
                    Err("again")?;
                }
                Ok(String::new())
            }
        };
        let test = engine(cached, handler).await;
        test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(2 * HOUR).await.expect("idle");
        let entries = ledger.entries();
        assert!(entries.len() >= 3 && entries.iter().all(|entry| *entry == entries[0]), "{entries:?}");
    }
}

#[tokio::test]
async fn the_outside_can_tell_a_repeat_by_its_key() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            ctx.step_with("charge", |step| {
                effects.add(step.idempotency_key());
                async move { if step.attempt() < 3 { Err("no luck")? } else { Ok(step.claim()) } }
            })
            .retry(5)
            .await?;
            Ok(String::new())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    test.outcome(&job).expect("it ended");
    assert_eq!(ledger.entries(), vec![format!("{}/charge", job.id); 3]);
}

#[tokio::test]
async fn a_failed_workflow_goes_on_from_its_last_record_when_it_is_retried() {
    let (ledger, works) = (Ledger::default(), Arc::new(AtomicU32::new(0)));
    let (effects, mended) = (ledger.clone(), Arc::clone(&works));
    let handler = move |ctx: Context, _job: Flow| {
        let (effects, mended) = (effects.clone(), Arc::clone(&mended));
        async move {
            ctx.step("one", async || {
                effects.add("one");
                Ok(())
            })
            .await?;
            ctx.step("two", async || {
                effects.add("two");
                if mended.load(Ordering::Relaxed) == 0 { Err(discard("broken"))? } else { Ok(()) }
            })
            .await?;
            Ok("whole".to_owned())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert!(matches!(test.outcome(&job), Err(Error::Engine(EngineError::Ended { .. }))));
    works.store(1, Ordering::Relaxed);
    test.jobs().retry(job.id).await.expect("retried");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "whole");
    assert_eq!(ledger.entries(), ["one", "two", "two"]);
}

#[tokio::test]
async fn a_thousand_records_are_replayed() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            let mut sum = 0;
            for n in 0..1_000_u64 {
                sum += ctx
                    .step("add", async || {
                        effects.add("add");
                        Ok(n)
                    })
                    .await?;
            }
            ctx.sleep("night", HOUR).await?;
            Ok(sum.to_string())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "499500");
    assert_eq!(ledger.count("add"), 1_000);
}

#[tokio::test]
async fn a_panic_in_a_body_is_a_failure_of_the_job_and_leaves_no_record() {
    let handler = async |ctx: Context, _job: Flow| {
        let panics = ctx.attempt() == 1;
        ctx.step("panics", async || {
            assert!(!panics, "ouch");
            Ok(())
        })
        .await?;
        Ok("calm".to_owned())
    };
    let test: TestEngine = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(Duration::from_mins(1)).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "calm");
    assert_eq!(test.jobs().get(job.id).await.expect("there").errors[0].message, "ouch");
}

#[tokio::test]
async fn a_record_says_how_long_its_step_took() {
    let test = TestEngine::new();
    let clock = Arc::clone(&test.seams().clock);
    let handler = move |ctx: Context, _job: Flow| {
        let clock = Arc::clone(&clock);
        async move {
            ctx.step("slow", async || {
                clock.sleep(3 * SECOND).await;
                Ok(1)
            })
            .await?;
            ctx.now("at").await?;
            ctx.step("fast", async || Ok(2)).await?;
            mainspring::HandlerResult::Ok(String::new())
        }
    };
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    let entries = test.jobs().timeline(job.id).await.expect("a timeline").entries;
    let took: Vec<_> = entries.iter().map(|entry| (entry.key.as_str(), entry.took)).collect();
    assert_eq!(took, [("slow", Some(3 * SECOND)), ("at", None), ("fast", Some(Duration::ZERO))]);
}
