//! Forks: a new job shares what another has recorded before a step.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainspring::testing::TestEngine;
use mainspring::{Context, Error, Failure, Job, JobId, Reason, State, Status};
use serde::{Deserialize, Serialize};

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, engine, flow, keys, on_every_store, status};

/// A child that takes so many hours.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "part", result = u64)]
struct Part {
    hours: u32,
}

async fn part(ctx: Context, job: Part) -> mainspring::HandlerResult<u64> {
    ctx.sleep("work", HOUR * job.hours).await?;
    Ok(job.hours.into())
}

/// Runs a step that is noted.
async fn step(ctx: &Context, ledger: &Ledger, name: &str, value: impl Into<String>) -> Result<String, Error> {
    let (value, noted) = (value.into(), name.to_owned());
    ctx.step(name, || {
        let (value, noted) = (value.clone(), noted.clone());
        async move {
            ledger.add(noted);
            Ok(value)
        }
    })
    .await
}

async fn result(test: &TestEngine, id: JobId) -> String {
    let job = test.jobs().get(id).await.expect("the job is there");
    assert_eq!(job.summary.status, Status::plain(State::Succeeded), "{:?}", job.errors);
    serde_json::from_slice(&job.result.expect("a result")).expect("text")
}

/// Three steps and two waits in a row; each step adds to what it got.
async fn row(ledger: Ledger) -> TestEngine {
    let handler = move |ctx: Context, job: Flow| {
        let ledger = ledger.clone();
        async move {
            let one = step(&ctx, &ledger, "one", format!("{}1", job.n)).await?;
            ctx.sleep("nap", HOUR).await?;
            let two = step(&ctx, &ledger, "two", format!("{one}2")).await?;
            let said: String = ctx.signal("said").await?;
            Ok(step(&ctx, &ledger, "three", format!("{two}{said}3")).await?)
        }
    };
    engine(0, handler).await
}

/// The row, run to its end.
async fn ended(ledger: &Ledger) -> (TestEngine, JobId) {
    let test = row(ledger.clone()).await;
    let job = test.enqueue(flow(7)).await.expect("enqueued");
    test.signal(job.id, "said", &"x").await.expect("sent");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(result(&test, job.id).await, "712x3");
    (test, job.id)
}

#[tokio::test]
async fn a_fork_at_any_step_ends_the_same_way_and_runs_nothing_before_it() {
    for (from, ran) in [
        ("one", vec!["one", "two", "three"]),
        ("nap", vec!["two", "three"]),
        ("two", vec!["two", "three"]),
        ("said", vec!["three"]),
        ("three", vec!["three"]),
    ] {
        let ledger = Ledger::default();
        let (test, id) = ended(&ledger).await;
        let before = test.store().timeline(id).await.expect("a timeline");
        let fork = test.jobs().fork(id).from(from).await.expect("forked");
        if from != "three" {
            // What was sent to the other job is the other's.
            test.advance(HOUR).await.expect("idle");
            assert_eq!(status(&test, fork.id).await.reason, Some(Reason::Signal), "{from}");
            test.signal(fork.id, "said", &"x").await.expect("sent");
        }
        test.advance(HOUR).await.expect("idle");
        assert_eq!(result(&test, fork.id).await, "712x3", "{from}");
        assert_eq!(ledger.entries()[3..], ran, "{from}");
        assert_eq!(test.store().timeline(id).await.expect("a timeline"), before, "{from}");
        let origin = test.jobs().get(fork.id).await.expect("there").summary.options.forked.expect("a fork");
        assert_eq!((origin.job, origin.step.map(|step| step.to_string())), (id, Some(from.to_owned())));
    }
}

#[tokio::test]
async fn input_and_results_can_be_others() {
    let ledger = Ledger::default();
    let (test, id) = ended(&ledger).await;
    let jobs = test.jobs();
    let input = jobs.fork(id).from("one").input(&flow(8)).await.expect("forked");
    let shared = jobs.fork(id).from("two").result("one", &"edited").await.expect("forked");
    let itself = jobs.fork(id).from("two").result("two", &"given").await.expect("forked");
    let signal = jobs.fork(id).from("three").result("said", &"other").await.expect("forked");
    test.advance(HOUR).await.expect("idle");
    for fork in [&input, &shared, &itself] {
        test.signal(fork.id, "said", &"y").await.expect("sent");
    }
    test.run_until_idle().await.expect("idle");
    assert_eq!(result(&test, input.id).await, "812y3");
    assert_eq!(result(&test, shared.id).await, "edited2y3");
    assert_eq!(result(&test, itself.id).await, "giveny3");
    assert_eq!(result(&test, signal.id).await, "712other3");
    assert_eq!(ledger.count("two"), 3, "a step that was given a result is not run");
    for (step, from) in [("three", "two"), ("nothing", "three")] {
        let refused = jobs.fork(id).from(from).result(step, &1).await;
        assert!(matches!(refused, Err(Error::Invalid { what: "result", .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn a_step_that_is_not_recorded_is_told_with_those_that_are() {
    let (test, id) = ended(&Ledger::default()).await;
    let refused = test.jobs().fork(id).from("four").await.expect_err("no such step").to_string();
    assert_eq!(
        refused,
        "invalid step: `four` is not recorded; the job has `one`, `nap`, `two`, `said`, `three`"
    );
    let nobody = JobId::from_bytes([7; 16]);
    assert!(matches!(test.jobs().fork(nobody).from("one").await, Err(Error::NotFound(_))));
    let id_twice = JobId::from_bytes([8; 16]);
    for _ in 0..2 {
        let fork = test.jobs().fork(id).from("two").id(id_twice).await.expect("forked");
        assert_eq!(fork.shared.len(), 3, "{:?}", fork.shared);
    }
    let dry = test.jobs().fork(id).from("two").dry_run().await.expect("counted");
    assert!(test.jobs().get(dry.id).await.is_err(), "a dry run stores nothing");
}

/// Scopes that are under way: a branch, a map, a loop and a race beside each other, each with steps and a long sleep.
async fn scopes(ledger: Ledger) -> TestEngine {
    let handler = move |ctx: Context, _job: Flow| {
        let ledger = ledger.clone();
        async move {
            let ledger = &ledger;
            step(&ctx, ledger, "first", "").await?;
            let branch = ctx.branch("branch", async |ctx| {
                step(&ctx, ledger, "a", "").await?;
                step(&ctx, ledger, "b", "").await?;
                ctx.sleep("day", HOUR * 24).await?;
                Ok(step(&ctx, ledger, "c", "branch").await?)
            });
            branch.await?;
            let items = ["x", "y"];
            let map = ctx.map(
                "map",
                items,
                |item| *item,
                async |ctx, item| {
                    step(&ctx, ledger, "a", "").await?;
                    if item == "y" {
                        ctx.sleep("day", HOUR * 24).await?;
                    }
                    Ok(step(&ctx, ledger, "b", item).await?)
                },
            );
            let mapped: Vec<String> = map.await?;
            let turns = ctx.iterate("turns", 0_u32, async |ctx, turn| {
                step(&ctx, ledger, "a", "").await?;
                ctx.sleep("day", HOUR * 24).await?;
                step(&ctx, ledger, "b", "").await?;
                Ok(if turn == 2 { ControlFlow::Break(turn) } else { ControlFlow::Continue(turn + 1) })
            });
            let turns = turns.await?;
            let race = ctx.race("race").arm("long", async |ctx| {
                step(&ctx, ledger, "a", "").await?;
                ctx.sleep("week", HOUR * 168).await?;
                Ok("long".to_owned())
            });
            let race = race.arm("short", async |ctx| {
                ctx.sleep("day", HOUR * 24).await?;
                Ok(step(&ctx, ledger, "b", "short").await?)
            });
            Ok(format!("{mapped:?} {turns} {}", race.await?))
        }
    };
    engine(0, handler).await
}

#[tokio::test]
async fn forks_within_scopes_share_what_is_inside_before_the_step() {
    // The day on which it is forked, the step, what is shared, and the steps that are run after it.
    let cases: [(u32, &str, &[&str], &[&str]); 8] = [
        (
            0,
            "branch/b",
            &["first", "branch/a"],
            &["b", "c", "a", "a", "b", "b", "a", "b", "a", "b", "a", "b", "a", "b"],
        ),
        (
            0,
            "branch",
            &["first"],
            &["a", "b", "c", "a", "a", "b", "b", "a", "b", "a", "b", "a", "b", "a", "b"],
        ),
        // What ran beside it and has ended since is done again as a whole.
        (1, "map/y/a", &["first", "branch"], &["a", "a", "b", "b", "a", "b", "a", "b", "a", "b", "a", "b"]),
        (1, "map", &["first", "branch"], &["a", "a", "b", "b", "a", "b", "a", "b", "a", "b", "a", "b"]),
        (3, "turns/2/a", &["first", "branch", "map", "turns#turn=1"], &["a", "b", "a", "b", "a", "b"]),
        (3, "turns", &["first", "branch", "map"], &["a", "b", "a", "b", "a", "b", "a", "b"]),
        (5, "race/long/a", &["first", "branch", "map", "turns"], &["a", "b"]),
        (6, "race", &["first", "branch", "map", "turns"], &["a", "b"]),
    ];
    for (day, from, shared, ran) in cases {
        let ledger = Ledger::default();
        let test = scopes(ledger.clone()).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.advance(HOUR * 24 * day + SECOND).await.expect("idle");
        let before = keys(&test, &job).await;
        let fork =
            test.jobs().fork(job.id).from(from).await.unwrap_or_else(|error| panic!("{from}: {error}"));
        assert_eq!(keys(&test, &job).await, before);
        let told: Vec<String> = fork.shared.iter().map(ToString::to_string).collect();
        assert_eq!(told, shared, "{from} of {before:?}");
        // The other one is in nobody's way.
        test.jobs()
            .cancel(job.id)
            .await
            .map(drop)
            .or_else(|error| match error {
                Error::Illegal { .. } => Ok(()),
                error => Err(error),
            })
            .expect("cancelled, or it has ended");
        let done = ledger.entries().len();
        let mut days = 0;
        while !status(&test, fork.id).await.state.is_terminal() {
            days += 1;
            assert!(days < 10, "{from} does not end");
            test.advance(HOUR * 24).await.expect("idle");
        }
        assert_eq!(result(&test, fork.id).await, r#"["x", "y"] 2 short"#, "{from}");
        assert_eq!(ledger.entries()[done..], *ran, "{from}");
    }
}

#[tokio::test]
async fn ended_children_are_shared_and_others_are_started_again() {
    let handler = async |ctx: Context, _job: Flow| {
        let short = ctx.spawn("short", Part { hours: 1 }).await?;
        let long = ctx.branch("in", async |ctx| {
            let unread = ctx.spawn("unread", Part { hours: 2 }).await?;
            let long = ctx.spawn("long", Part { hours: 9 }).await?;
            ctx.step("here", async || Ok(())).await?;
            Ok(long.result().await? + unread.result().await?)
        });
        let (short, long) = tokio::join!(short.result(), long);
        Ok::<_, Failure>(format!("{} {}", short?, long?))
    };
    let test = TestEngine::new();
    let setup = |node: mainspring::NodeBuilder| node.handle(handler).handle(part).queue("default", 4);
    test.node(setup).await.expect("a node");
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(HOUR * 4).await.expect("idle");
    let fork = test.jobs().fork(job.id).await.expect("forked");
    let told: Vec<String> = fork.shared.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "short",
            "in/unread",
            "in/unread#result",
            "in/unread#abandoned",
            "in/long#accepted",
            "in/here",
            "short#result",
        ]
    );
    assert_eq!(fork.restarted.iter().map(ToString::to_string).collect::<Vec<_>>(), ["in/long"]);
    test.advance(HOUR * 10).await.expect("idle");
    assert_eq!((result(&test, job.id).await, result(&test, fork.id).await), ("1 11".into(), "1 11".into()));
    assert_eq!(test.enqueued::<Part>().len(), 4, "one child is started again");
}

#[tokio::test]
async fn a_job_that_is_held_for_drift_can_be_forked_before_it() {
    let changed = Arc::new(AtomicBool::new(false));
    let (ledger, code) = (Ledger::default(), Arc::clone(&changed));
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let (effects, changed) = (effects.clone(), code.load(Ordering::SeqCst));
        async move {
            step(&ctx, &effects, "one", "").await?;
            if changed {
                step(&ctx, &effects, "new", "").await?;
            }
            step(&ctx, &effects, "two", "").await?;
            ctx.sleep("nap", HOUR).await?;
            Ok(String::new())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    changed.store(true, Ordering::SeqCst);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
    // A fork is guarded as the job itself is.
    let same = test.jobs().fork(job.id).await.expect("forked");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, same.id).await.reason, Some(Reason::Drift));
    let fork = test.jobs().fork(job.id).from("two").await.expect("forked");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(result(&test, fork.id).await, "");
    assert_eq!(ledger.entries(), ["one", "two", "new", "two"]);
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
}

#[tokio::test]
async fn a_long_value_is_shared_while_its_job_goes_on() {
    let handler = async |ctx: Context, job: Flow| {
        let long: String = ctx.step("long", async || Ok("x".repeat(100_000))).await?;
        for _ in 0..job.n {
            ctx.step("more", async || Ok(())).await?;
        }
        ctx.sleep("nap", HOUR).await?;
        Ok(long.len().to_string())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(3)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let fork = test.jobs().fork(job.id).from("more#2").await.expect("forked");
    assert_eq!(fork.shared.iter().map(ToString::to_string).collect::<Vec<_>>(), ["long", "more"]);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(result(&test, fork.id).await, "100000");
}

#[tokio::test]
async fn a_retry_from_a_step_does_it_again_and_nothing_before_it() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let broken = Arc::new(AtomicBool::new(true));
        let (effects, fails) = (ledger.clone(), Arc::clone(&broken));
        let handler = move |ctx: Context, _job: Flow| {
            let (effects, fails) = (effects.clone(), fails.load(Ordering::SeqCst));
            async move {
                step(&ctx, &effects, "one", "").await?;
                let two = step(&ctx, &effects, "two", if fails { "bad" } else { "good" }).await?;
                let said: String = ctx.signal("said").await?;
                let child = ctx.spawn("child", Part { hours: 9 }).await?;
                step(&ctx, &effects, "three", "").await?;
                let part = child.result().await?;
                Ok::<_, Failure>(format!("{two} {said} {part}"))
            }
        };
        let test = TestEngine::new();
        let setup = |node: mainspring::NodeBuilder| {
            node.handle(handler).handle(part).queue("default", 4).cached_handlers(cached)
        };
        test.node(setup).await.expect("a node");
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.signal(job.id, "said", &"yes").sender("ada").await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Child));
        broken.store(false, Ordering::SeqCst);
        let jobs = test.jobs();
        let dry = jobs.retry_from(job.id, "two").dry_run().await.expect("counted");
        let retried = jobs.retry_from(job.id, "two").await.expect("retried");
        assert_eq!(dry, retried);
        let removed: Vec<String> = retried.removed.iter().map(ToString::to_string).collect();
        assert_eq!(removed, ["two", "said", "child", "three"]);
        let child = test.assert_enqueued::<Part>(|_| true).id;
        let lost = test.jobs().get(child).await.expect("there").summary.status;
        assert_eq!(lost, Status::because(State::Cancelled, Reason::Parent));
        // The signal counts once more.
        test.advance(HOUR * 9).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "good yes 9", "{cached}");
        assert_eq!(ledger.entries(), ["one", "two", "three", "two", "three"], "{cached}");
        let refused = test.jobs().retry_from(job.id, "two").await.expect_err("it has succeeded").to_string();
        assert!(refused.ends_with("it has succeeded"), "{refused}");
    }
}

#[tokio::test]
async fn a_retry_from_a_step_is_for_jobs_that_do_not_run_and_for_steps_that_are_recorded() {
    let ledger = Ledger::default();
    let test = row(ledger.clone()).await;
    let job = test.enqueue(flow(7)).await.expect("enqueued");
    test.advance(HOUR).await.expect("idle");
    let refused = test.jobs().retry_from(job.id, "three").await.expect_err("it is not recorded").to_string();
    assert!(refused.ends_with("the job has `one`, `nap`, `two`"), "{refused}");
    for verb in ["hold", "cancel"] {
        match verb {
            "hold" => test.jobs().hold(job.id).await,
            _ => test.jobs().cancel(job.id).await,
        }
        .expect("changed");
        test.jobs().retry_from(job.id, "two").await.expect("retried");
        test.run_until_idle().await.expect("idle");
        assert_eq!(status(&test, job.id).await.reason, Some(Reason::Signal), "{verb}");
    }
    test.signal(job.id, "said", &"x").await.expect("sent");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "712x3");
    assert_eq!(ledger.entries(), ["one", "two", "two", "two", "three"]);
}

on_every_store! {
    async fn what_a_scope_that_has_ended_did_is_taken_back_too(on: &On) {
        for &cached in on.cache_sizes() {
            let ledger = Ledger::default();
            let effects = ledger.clone();
            let handler = move |ctx: Context, _job: Flow| {
                let effects = effects.clone();
                async move {
                    step(&ctx, &effects, "one", "").await?;
                    let said = ctx
                        .branch("talk", async |ctx| {
                            let said = ctx.race("first");
                            let said = said.arm("said", async |ctx| Ok(ctx.signal::<String>("said").await?));
                            let said = said.arm("never", async |ctx| {
                                ctx.sleep("hour", HOUR).await?;
                                Ok(String::new())
                            });
                            let said = said.await?;
                            ctx.spawn("part", Part { hours: 9 }).await?;
                            Ok(said)
                        })
                        .await?;
                    step(&ctx, &effects, "two", "").await?;
                    ctx.sleep("rest", HOUR * 20).await?;
                    Ok::<_, Failure>(said)
                }
            };
            let test = on.test(0);
            let setup = |node: mainspring::NodeBuilder| {
                node.handle(handler).handle(part).queue("default", 4).cached_handlers(cached)
            };
            test.node(setup).await.expect("a node");
            let job = test.enqueue(flow(0)).await.expect("enqueued");
            test.signal(job.id, "said", &"yes").sender("ada").await.expect("sent");
            test.run_until_idle().await.expect("idle");
            let kept = ["one", "talk/first/said/said", "talk/part", "talk", "two", "rest#until"];
            assert_eq!(keys(&test, &job).await, kept);
            let fork = test.jobs().fork(job.id).from("two").await.expect("forked");
            assert_eq!(fork.shared.iter().map(ToString::to_string).collect::<Vec<_>>(), ["one", "talk"]);
            let child = test.assert_enqueued::<Part>(|_| true).id;
            test.jobs().retry_from(job.id, "talk").await.expect("retried");
            test.run_until_idle().await.expect("idle");
            let lost = test.jobs().get(child).await.expect("there").summary.status;
            assert_eq!(lost, Status::because(State::Cancelled, Reason::Parent));
            // The signal counts once more.
            assert_eq!(keys(&test, &job).await, kept);
            assert_eq!(ledger.entries(), ["one", "two", "two", "two"], "of the fork and of the retry");
            test.advance(HOUR * 20).await.expect("idle");
            assert_eq!(test.outcome(&job).expect("it ended"), "yes");
            assert_eq!(result(&test, fork.id).await, "yes");
        }
    }
}

/// What a scope had done when the step was, it does again if it has ended since: nothing of it is left to be met again.
#[tokio::test]
async fn a_scope_that_ended_after_the_step_is_done_again_as_a_whole() {
    for cached in CACHE_SIZES {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                let talk = ctx.branch("talk", async |ctx| {
                    step(&ctx, &effects, "ask", "").await?;
                    let said = ctx.signal::<String>("said").await?;
                    ctx.spawn("part", Part { hours: 9 }).await?;
                    ctx.sleep("nap", HOUR * 2).await?;
                    Ok(said)
                });
                let beside = async {
                    ctx.sleep("hour", HOUR).await?;
                    step(&ctx, &effects, "beside", "").await
                };
                let (said, beside) = tokio::join!(talk, beside);
                beside?;
                let more: String = ctx.signal("more").await?;
                Ok::<_, Failure>(said? + &more)
            }
        };
        let test = TestEngine::new();
        let setup = |node: mainspring::NodeBuilder| {
            node.handle(handler).handle(part).queue("default", 4).cached_handlers(cached)
        };
        test.node(setup).await.expect("a node");
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.signal(job.id, "said", &"yes").await.expect("sent");
        test.advance(HOUR * 3).await.expect("idle");
        let recorded = ["hour#until", "talk/said", "talk/part", "hour", "beside", "talk"];
        let mut keys = keys(&test, &job).await;
        keys.sort_unstable();
        let mut expected = recorded.to_vec();
        expected.sort_unstable();
        assert_eq!(keys, expected);
        let refused =
            test.jobs().retry_from(job.id, "talk/said").await.expect_err("it has ended").to_string();
        assert!(
            refused.contains("`talk/said` is not recorded") && !refused.contains("talk/part"),
            "{refused}"
        );
        let fork = test.jobs().fork(job.id).from("beside").await.expect("forked");
        test.jobs().retry_from(job.id, "beside").await.expect("retried");
        test.signal(fork.id, "said", &"no").await.expect("sent");
        test.advance(HOUR * 3).await.expect("idle");
        for id in [job.id, fork.id] {
            test.signal(id, "more", &"!").await.expect("sent");
        }
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "yes!");
        assert_eq!(result(&test, fork.id).await, "no!");
        assert_eq!((ledger.count("ask"), ledger.count("beside")), (3, 3));
    }
}

#[tokio::test]
async fn a_loop_keeps_children_that_run_and_no_others() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let turns = ctx.iterate("loop", 0_u32, async |ctx, turn| {
                ctx.spawn("part", Part { hours: turn % 50 / 49 }).await?;
                ctx.sleep("nap", SECOND).await?;
                Ok(if turn < 600 { ControlFlow::Continue(turn + 1) } else { ControlFlow::Break(turn) })
            });
            let turns = turns.await?;
            ctx.signal::<()>("go").await?;
            mainspring::HandlerResult::Ok(turns.to_string())
        };
        let test = TestEngine::new();
        let setup = |node: mainspring::NodeBuilder| {
            node.handle(handler).handle(part).queue("default", 4).cached_handlers(cached)
        };
        test.node(setup).await.expect("a node");
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        let mut most = 0;
        for _ in 0..61 {
            test.advance(SECOND * 10).await.expect("idle");
            most = most.max(keys(&test, &job).await.len());
        }
        assert!((50..350).contains(&most), "{most}");
        let running = keys(&test, &job).await;
        assert!(running.contains(&"loop/550/part".to_owned()), "{running:?}");
        let fork = test.jobs().fork(job.id).await.expect("forked");
        assert_eq!(fork.shared.iter().map(ToString::to_string).collect::<Vec<_>>(), ["loop"]);
        test.signal(job.id, "go", &()).await.expect("sent");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "600");
    }
}
