//! Scopes: branches, races, maps and loops, and what they leave when they end.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring::workflow::Mapped;
use mainspring::{Context, Error, Job, Reason, State, Status, join_all};
use serde::{Deserialize, Serialize};

use crate::support::{Flow, HOUR, Ledger, SECOND, flow, keys, on_every_store, on_memory_and_sqlite, status};

/// A child that takes a day.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "slow")]
struct Slow;

async fn slow(ctx: Context, _job: Slow) -> mainspring::HandlerResult<()> {
    ctx.sleep("day", HOUR * 24).await?;
    Ok(())
}

on_every_store! {
    async fn a_branch_gives_way_to_its_result(on: &On) {
        for &cached in on.cache_sizes() {
            let handler = async |ctx: Context, _job: Flow| {
                let sum: u64 = ctx
                    .branch("sum", async |ctx| {
                        let one = ctx.step("one", async || Ok(1_u64)).await?;
                        let two = ctx.branch("deep", async |ctx| Ok(ctx.step("two", async || Ok(2_u64)).await?));
                        Ok(one + two.await?)
                    })
                    .await?;
                ctx.sleep("nap", HOUR).await?;
                ctx.step("end", async || Ok(())).await?;
                Ok(sum.to_string())
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("idle");
            assert_eq!(keys(&test, &job).await, ["sum", "nap#until"]);
            test.advance(HOUR).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "3");
            assert_eq!(keys(&test, &job).await, ["sum", "nap#until", "nap", "end"]);
        }
    }

    async fn a_race_is_decided_once_and_its_losers_leave_nothing(on: &On) {
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let effects = ledger.clone();
            let handler = move |ctx: Context, _job: Flow| {
                let effects = effects.clone();
                async move {
                    let (left, right) = (effects.clone(), effects.clone());
                    let first: String = ctx
                        .race("first")
                        .arm("signal", move |ctx| async move {
                            ctx.step("ask", async || {
                                left.add("ask");
                                Ok(())
                            })
                            .await?;
                            Ok(ctx.signal::<String>("answer").await?)
                        })
                        .arm("late", move |ctx| async move {
                            ctx.sleep("hour", HOUR).await?;
                            ctx.step("remind", async || {
                                right.add("remind");
                                Ok(())
                            })
                            .await?;
                            ctx.sleep("hour", HOUR * 10).await?;
                            Ok("late".to_owned())
                        })
                        .await?;
                    ctx.sleep("long", HOUR * 100).await?;
                    Ok(first)
                }
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.advance(HOUR + SECOND).await.expect("idle");
            test.signal(job.id, "answer", &"yes".to_owned()).await.expect("sent");
            test.run_until_idle().await.expect("idle");
            assert_eq!(keys(&test, &job).await, ["first/signal/answer", "first", "long#until"]);
            // The other arm would have ended long before.
            test.advance(HOUR * 110).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "yes");
            assert_eq!(ledger.entries(), ["ask", "remind"]);
        }
    }

    async fn the_children_of_losers_are_cancelled_unless_they_are_abandoned(on: &On) {
        for &cached in on.cache_sizes() {
            let handler = async |ctx: Context, _job: Flow| {
                ctx.race("first")
                    .arm("work", async |ctx| {
                        let kept = ctx.spawn("kept", Slow).on_close(mainspring::workflow::OnClose::Abandon).await?;
                        // In scopes that have ended by then, too.
                        let inner = async |ctx: Context| Ok(ctx.spawn("child", Slow).await.map(drop)?);
                        ctx.branch("inner", inner).await?;
                        ctx.iterate("loop", 0, async |ctx, turn| {
                            ctx.spawn("child", Slow).await?;
                            Ok(if turn < 1 { ControlFlow::Continue(turn + 1) } else { ControlFlow::Break(()) })
                        })
                        .await?;
                        let child = ctx.spawn("child", Slow).await?;
                        child.result().await?;
                        let _ = kept;
                        Ok(())
                    })
                    .arm("late", async |ctx| Ok(ctx.sleep("hour", HOUR).await?))
                    .await?;
                ctx.sleep("rest", HOUR).await?;
                Ok(String::new())
            };
            let test = on.engine(cached, handler).await;
            test.node(|node| node.handle(slow).queue("default", 4)).await.expect("another node");
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("idle");
            let timeline = test.store().timeline(job.id).await.expect("a timeline").expect("there");
            let children: Vec<_> = timeline.children.iter().map(|kin| kin.id).collect();
            assert_eq!(children.len(), 5);
            test.advance(HOUR).await.expect("idle");
            let mut states = Vec::new();
            for child in children {
                states.push(status(&test, child).await);
            }
            let recalled = Status::because(State::Cancelled, Reason::Parent);
            assert_eq!(states[0].state, State::Suspended);
            assert_eq!(states[1..], [recalled; 4]);
            assert_eq!(keys(&test, &job).await, ["first", "rest#until"], "nothing is kept of losers");
            test.advance(HOUR).await.expect("idle");
            assert_eq!(status(&test, job.id).await.state, State::Succeeded);
        }
    }

    async fn an_arm_that_fails_decides_the_race_and_a_retry_goes_on_where_it_was(on: &On) {
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let effects = ledger.clone();
            let handler = move |ctx: Context, job: Flow| {
                let effects = effects.clone();
                async move {
                    let (left, right, attempt) = (effects.clone(), effects.clone(), ctx.attempt());
                    let race = ctx
                        .race("first")
                        .arm("slow", move |ctx| async move {
                            ctx.step("slow", async || {
                                left.add("slow");
                                Ok(())
                            })
                            .await?;
                            ctx.sleep("nap", HOUR * 5).await?;
                            Ok("slow".to_owned())
                        })
                        .arm("bad", move |ctx| async move {
                            ctx.sleep("nap", HOUR).await?;
                            ctx.step("bad", async || {
                                right.add("bad");
                                if attempt < 2 {
                                    Err("no")?;
                                }
                                Ok(())
                            })
                            .await?;
                            Ok("bad".to_owned())
                        })
                        .await;
                    // One way it is returned, the other it is survived.
                    match (race, job.n) {
                        (Ok(arm), _) => Ok(arm),
                        (Err(failure), 0) => Err(failure),
                        (Err(_), _) => {
                            ctx.sleep("after", HOUR).await?;
                            Ok("survived".to_owned())
                        }
                    }
                }
            };
            let test = on.engine(cached, handler).await;
            let returned = test.enqueue(flow(0)).await.expect("enqueued");
            test.advance(HOUR * 3).await.expect("idle");
            assert_eq!(test.outcome(&returned).expect("it ended"), "bad");
            assert_eq!(ledger.entries(), ["slow", "bad", "bad"]);
            let survived = test.enqueue(flow(1)).await.expect("enqueued");
            test.advance(HOUR * 3).await.expect("idle");
            assert_eq!(test.outcome(&survived).expect("it ended"), "survived");
            assert_eq!(ledger.entries(), ["slow", "bad", "bad", "slow", "bad"]);
        }
    }
}

on_memory_and_sqlite! {
    async fn a_map_does_each_item_once_and_some_at_a_time(on: &On) {
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let most = Arc::new(AtomicUsize::new(0));
            let (effects, highest) = (ledger.clone(), Arc::clone(&most));
            let handler = move |ctx: Context, job: Flow| {
                let (effects, highest) = (effects.clone(), Arc::clone(&highest));
                async move {
                    let open = Arc::new(AtomicUsize::new(0));
                    let tens: Vec<u64> = ctx
                        .map(
                            "item",
                            0..job.n,
                            |n| *n,
                            move |ctx, n| {
                                let (effects, highest, open) =
                                    (effects.clone(), Arc::clone(&highest), Arc::clone(&open));
                                async move {
                                    highest
                                        .fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                                    let ten = ctx.step("ten", async || {
                                        effects.add(n.to_string());
                                        Ok(n * 10)
                                    });
                                    let ten = ten.await?;
                                    ctx.sleep("nap", SECOND * u32::try_from(n % 3).expect("small")).await?;
                                    open.fetch_sub(1, Ordering::Relaxed);
                                    Ok(ten)
                                }
                            },
                        )
                        .concurrency(3)
                        .await?;
                    ctx.sleep("long", HOUR).await?;
                    Ok(format!("{tens:?}"))
                }
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(10)).await.expect("enqueued");
            test.advance(HOUR / 2).await.expect("idle");
            assert_eq!(keys(&test, &job).await, ["item", "long#until"]);
            test.advance(HOUR).await.expect("idle");
            let tens: Vec<u64> = (0..10).map(|n| n * 10).collect();
            assert_eq!(test.outcome(&job).expect("it ended"), format!("{tens:?}"));
            let mut done = ledger.entries();
            done.sort_by_key(|n| n.parse::<u64>().expect("a number"));
            assert_eq!(done, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
            assert_eq!(most.load(Ordering::Relaxed), 3);
        }
    }
}

on_every_store! {
    async fn a_map_of_a_key_twice_is_refused(on: &On) {
        let handler = async |ctx: Context, _job: Flow| {
            let twice = ctx.map("item", [1, 2, 1], |n| *n, async |_ctx, n| Ok(n)).await;
            let refused = twice.expect_err("two of one key");
            assert!(matches!(refused.error().downcast_ref(), Some(Error::DuplicateKey { .. })), "{refused:?}");
            Ok("refused".to_owned())
        };
        let test = on.engine(0, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "refused");
    }
}

/// Items of which the odd ones fail in the first attempt.
async fn odd(ctx: Context, effects: &Ledger, attempt: u16, n: u64) -> mainspring::HandlerResult<u64> {
    ctx.step("work", async || {
        effects.add(n.to_string());
        if n % 2 == 1 && attempt < 2 {
            Err(format!("{n} is odd"))?;
        }
        Ok(n)
    })
    .await
    .map_err(Into::into)
}

on_memory_and_sqlite! {
    async fn a_map_that_fails_is_gone_on_with(on: &On) {
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let effects = ledger.clone();
            let handler = move |ctx: Context, job: Flow| {
                let effects = effects.clone();
                async move {
                    let attempt = ctx.attempt();
                    let item = |ctx, n| odd(ctx, &effects, attempt, n);
                    if job.n == 0 {
                        let all = ctx.map("item", 0..4, |n| *n, item).concurrency(1).await?;
                        return Ok(format!("{all:?}"));
                    }
                    let some = ctx.map("item", 0..4, |n| *n, item).concurrency(1).tolerate(1).await?;
                    Ok(format!("{some:?}"))
                }
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.advance(HOUR).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "[0, 1, 2, 3]");
            assert_eq!(ledger.entries(), ["0", "1", "1", "2", "3"]);
            let job = test.enqueue(flow(1)).await.expect("enqueued");
            test.advance(HOUR).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "[Done(0), Done(1), Done(2), Done(3)]");
            assert_eq!(ledger.entries()[5..], ["0", "1", "2", "3", "1", "3"], "all that failed are tried again");
        }
    }

    async fn a_map_does_without_some_of_its_items(on: &On) {
        for &cached in on.cache_sizes() {
            let handler = async |ctx: Context, job: Flow| {
                if job.n == 0 {
                    let two = ctx.map(
                        "item",
                        1..=4_u64,
                        |n| *n,
                        async |ctx, n| {
                            let child = ctx.spawn("child", Slow).await?;
                            ctx.sleep("nap", HOUR * u32::try_from(n).expect("small")).await?;
                            let _ = child;
                            if n == 2 {
                                Err("two")?;
                            }
                            Ok(n)
                        },
                    );
                    let two: Vec<Mapped<u64>> = two.at_least(2).await?;
                    ctx.sleep("rest", HOUR).await?;
                    return Ok(format!("{two:?}"));
                }
                let most = ctx.map(
                    "item",
                    0..4_u64,
                    |n| *n,
                    async |ctx, n| {
                        ctx.step("work", async || if n == 1 { Err("no")? } else { Ok(n) })
                            .await
                            .map_err(Into::into)
                    },
                );
                let most: Vec<Mapped<u64>> = most.tolerate(1).await?;
                ctx.sleep("rest", HOUR).await?;
                Ok(format!("{most:?}"))
            };
            let test = on.engine(cached, handler).await;
            test.node(|node| node.handle(slow).queue("default", 4)).await.expect("another node");
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("idle");
            let timeline = test.store().timeline(job.id).await.expect("a timeline").expect("there");
            test.advance(HOUR * 3).await.expect("idle");
            let children = ["item/1/child", "item/2/child", "item/3/child"];
            assert_eq!(keys(&test, &job).await, [&children[..], &["item", "rest#until"]].concat());
            let mut cancelled = 0;
            for kin in &timeline.children {
                cancelled += usize::from(status(&test, kin.id).await.state == State::Cancelled);
            }
            assert_eq!((timeline.children.len(), cancelled), (4, 1), "that of the fourth, which was dropped");
            test.advance(HOUR).await.expect("idle");
            let failed = "Failed(\"two\")";
            assert_eq!(test.outcome(&job).expect("it ended"), format!("[Done(1), {failed}, Done(3), Dropped]"));
            let job = test.enqueue(flow(1)).await.expect("enqueued");
            test.advance(HOUR).await.expect("idle");
            let failed = "Failed(\"step `item/1/work` failed: no\")";
            assert_eq!(test.outcome(&job).expect("it ended"), format!("[Done(0), {failed}, Done(2), Done(3)]"));
        }
    }

    async fn a_loop_keeps_its_last_state_alone(on: &On) {
        const TURNS: u64 = 300;
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let effects = ledger.clone();
            let handler = move |ctx: Context, _job: Flow| {
                let effects = effects.clone();
                async move {
                    let sum = ctx
                        .iterate("turns", (0_u64, 0_u64), |ctx, (turn, sum)| {
                            let effects = effects.clone();
                            async move {
                                let n = ctx.step("n", async || {
                                    effects.add(turn.to_string());
                                    Ok(turn)
                                });
                                let n = n.await?;
                                if turn % 100 == 50 {
                                    ctx.sleep("nap", HOUR).await?;
                                }
                                let next = (turn + 1, sum + n);
                                Ok(if turn + 1 < TURNS {
                                    ControlFlow::Continue(next)
                                } else {
                                    ControlFlow::Break(next.1)
                                })
                            }
                        })
                        .await?;
                    ctx.sleep("rest", HOUR).await?;
                    Ok(sum.to_string())
                }
            };
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.run_until_idle().await.expect("idle");
            assert_eq!(keys(&test, &job).await, ["turns#turn=50", "turns/51/n", "turns/51/nap#until"]);
            test.advance(HOUR * 3).await.expect("idle");
            assert_eq!(keys(&test, &job).await, ["turns", "rest#until"]);
            test.advance(HOUR).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), (TURNS * (TURNS - 1) / 2).to_string());
            assert_eq!(ledger.entries(), (0..TURNS).map(|n| n.to_string()).collect::<Vec<_>>());
        }
    }
}

on_every_store! {
    async fn a_turn_that_fails_is_taken_again_from_its_records(on: &On) {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                let attempt = ctx.attempt();
                let end = ctx.iterate("turns", 0_u16, |ctx, turn| {
                    let effects = effects.clone();
                    async move {
                        ctx.step("work", async || {
                            effects.add(turn.to_string());
                            Ok(())
                        })
                        .await?;
                        if turn == 2 && attempt < 3 {
                            Err("not yet")?;
                        }
                        Ok(if turn < 3 { ControlFlow::Continue(turn + 1) } else { ControlFlow::Break(turn) })
                    }
                });
                Ok(end.await?.to_string())
            }
        };
        let test = on.engine(0, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "3");
        assert_eq!(ledger.entries(), ["0", "1", "2", "3"]);
    }
}

on_memory_and_sqlite! {
    async fn many_waits_beside_each_other_are_seen_through(on: &On) {
        let handler = async |ctx: Context, job: Flow| {
            let naps =
                join_all((0..job.n).map(|n| ctx.sleep("nap", HOUR * u32::try_from(n).expect("small")).key(n)));
            let naps: Result<Vec<()>, Error> = naps.await.into_iter().collect();
            Ok(naps?.len().to_string())
        };
        for &cached in on.cache_sizes() {
            let test = on.engine(cached, handler).await;
            let job = test.enqueue(flow(100)).await.expect("enqueued");
            test.advance(SECOND).await.expect("idle");
            assert_eq!(status(&test, job.id).await.state, State::Suspended);
            test.advance(HOUR * 100).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "100");
        }
    }
}
