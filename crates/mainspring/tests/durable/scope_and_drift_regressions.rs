//! What went wrong once with scopes, drift and what operators say of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainspring::testing::{TestEngine, verify_journal};
use mainspring::workflow::Mapped;
use mainspring::{Context, Enqueued, Reason, State};
use mainspring_core::bounds;

use crate::support::{Flow, HOUR, Ledger, engine, flow, status};

/// Versions of a handler: which one runs.
#[derive(Clone, Default)]
struct Version(Arc<AtomicUsize>);

impl Version {
    fn deploy(&self, version: usize) {
        self.0.store(version, Ordering::Relaxed);
    }

    fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A workflow of two naps whose first step is called `a` at first, `b` from version 1 on, and is behind a new one in
/// version 2.
async fn renamed(version: &Version, ledger: &Ledger) -> (TestEngine, Enqueued<Flow>) {
    let (ours, effects) = (version.clone(), ledger.clone());
    let handler = move |ctx: Context, _job: Flow| {
        let (version, ledger) = (ours.now(), effects.clone());
        async move {
            if version == 2 {
                ctx.step("new", async || {
                    ledger.add("new");
                    Ok(())
                })
                .await?;
            }
            let first = if version == 1 { "b" } else { "a" };
            ctx.step(first, async || {
                ledger.add(first);
                Ok(())
            })
            .await?;
            ctx.sleep("nap", HOUR).await?;
            ctx.sleep("another", HOUR).await?;
            Ok(String::new())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    (test, job)
}

#[tokio::test]
async fn what_an_operator_says_is_heard_behind_any_number_of_signals() {
    let (version, ledger) = (Version::default(), Ledger::default());
    let (test, job) = renamed(&version, &ledger).await;
    for n in 0..=bounds::INBOX_PAGE {
        test.signal(job.id, "noise", &n).await.expect("sent");
    }
    version.deploy(2);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
    test.jobs().accept_drift(job.id).await.expect("accepted");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.state, State::Succeeded);
    assert_eq!(ledger.entries(), ["a", "new"]);
}

#[tokio::test]
async fn what_an_operator_says_of_one_drift_is_not_kept_for_another() {
    let (version, ledger) = (Version::default(), Ledger::default());
    let (test, job) = renamed(&version, &ledger).await;
    version.deploy(1);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
    // Accepted, and at the same time the old code is there again.
    version.deploy(0);
    test.jobs().accept_drift(job.id).await.expect("accepted");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Timer));
    version.deploy(2);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift), "nobody has said anything of this");
    assert_eq!(ledger.entries(), ["a"]);
}

#[tokio::test]
async fn a_slip_of_the_pen_does_nothing_twice() {
    let (version, ledger) = (Version::default(), Ledger::default());
    let (test, job) = renamed(&version, &ledger).await;
    version.deploy(1);
    test.advance(HOUR).await.expect("idle");
    test.jobs().rename_step(job.id, "aa", "b").await.expect("said, and of no use");
    test.run_until_idle().await.expect("idle");
    assert_eq!(status(&test, job.id).await.reason, Some(Reason::Drift));
    test.jobs().rename_step(job.id, "a", "b").await.expect("said");
    test.advance(HOUR).await.expect("idle");
    assert_eq!(status(&test, job.id).await.state, State::Succeeded);
    assert_eq!(ledger.entries(), ["a"]);
}

#[tokio::test]
async fn the_next_attempt_tries_again_what_led_to_the_recorded_error_of_a_scope() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, job: Flow| {
        let effects = effects.clone();
        async move {
            let work = async |ctx: Context| {
                let work = ctx.step("work", async || {
                    effects.add(job.n.to_string());
                    if effects.count(&job.n.to_string()) == 1 { Err("down")? } else { Ok(7) }
                });
                Ok(work.await?)
            };
            let result: Result<u64, _> = if job.n == 0 {
                ctx.race("race").arm("one", work).await
            } else {
                ctx.map("map", [1], |n| *n, async |ctx, _| work(ctx).await).await.map(|all| all.iter().sum())
            };
            ctx.sleep("before it is told", HOUR).await?;
            Ok(result?.to_string())
        }
    };
    for n in [0, 1] {
        let test = engine(0, handler.clone()).await;
        let job = test.enqueue(flow(n)).await.expect("enqueued");
        test.advance(HOUR * 3).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "7");
        let record = test.jobs().get(job.id).await.expect("there");
        assert_eq!(record.errors.len(), 1, "{:?}", record.errors);
    }
}

#[tokio::test]
async fn results_of_a_map_belong_to_their_items_in_any_order() {
    let version = Version::default();
    let ours = version.clone();
    let handler = move |ctx: Context, job: Flow| {
        let backwards = ours.now() == 1;
        async move {
            let mut items = vec![1_u64, 2, 3];
            if backwards {
                items.reverse();
            }
            let map = ctx.map(
                "map",
                items.clone(),
                |n| *n,
                async |ctx, n| {
                    Ok(ctx
                        .step("square", async || if n == 2 && job.n == 1 { Err("two")? } else { Ok(n * n) })
                        .await?)
                },
            );
            let squares: Vec<Option<u64>> = if job.n == 0 {
                map.await?.into_iter().map(Some).collect()
            } else {
                map.tolerate(1).await?.into_iter().map(Mapped::done).collect()
            };
            ctx.sleep("nap", HOUR).await?;
            let squares: Vec<_> =
                items.iter().zip(squares).map(|(n, square)| format!("{n}:{square:?}")).collect();
            Ok(squares.join(" "))
        }
    };
    let test = engine(0, handler).await;
    let all = test.enqueue(flow(0)).await.expect("enqueued");
    let some = test.enqueue(flow(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    version.deploy(1);
    test.advance(HOUR).await.expect("idle");
    assert_eq!(test.outcome(&all).expect("it ended"), "3:Some(9) 2:Some(4) 1:Some(1)");
    assert_eq!(test.outcome(&some).expect("it ended"), "3:Some(9) 2:None 1:Some(1)");
}

#[tokio::test]
async fn a_map_that_cannot_come_to_its_end_does_not_begin() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, job: Flow| {
        let effects = effects.clone();
        async move {
            let items = if job.n == 0 { ["a", "b"] } else { ["a", "b/c"] };
            let map = ctx.map(
                "map",
                items,
                |item| *item,
                async |ctx, item| {
                    Ok(ctx
                        .step("do", async || {
                            effects.add(item);
                            Ok(())
                        })
                        .await?)
                },
            );
            let done =
                if job.n == 0 { map.at_least(3).await?.len() } else { map.concurrency(1).await?.len() };
            Ok(done.to_string())
        }
    };
    let test = engine(0, handler).await;
    for (n, words) in [(0, "at least 3 items are to be done, and there are 2"), (1, "step name")] {
        let job = test.enqueue(flow(n)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let record = test.jobs().get(job.id).await.expect("there");
        let told = record.errors.first().map(|error| error.message.clone()).unwrap_or_default();
        assert!(told.contains(words), "{told}");
    }
    assert!(ledger.entries().is_empty(), "{:?}", ledger.entries());
}

#[tokio::test]
async fn a_journal_is_verified_up_to_a_child_whatever_was_said() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.emit("hello").await?;
        let child = ctx.spawn("child", flow(1)).await?;
        child.result().await
    };
    let next = async |lines: &str| {
        let json = format!(
            r#"{{"id":"01a1de98-55b8-78d4-8fb5-ccc5f0d5c11c","kind":"flow","queue":"default","input":{{"n":1}},"journal_more":false,"journal":[{lines}]}}"#
        );
        let setup = |node: mainspring::NodeBuilder| node.handle(handler).queue("default", 1);
        verify_journal(json.as_bytes(), setup).await.expect("it fits").next
    };
    assert_eq!(next("").await, ["child"]);
    let child = r#"{"key":"child","kind":"child","claim":1,"overlapped":false,"value":"01a1de98-55b8-78d4-8fb5-ccc5f0d5c11d"}"#;
    assert_eq!(next(child).await, ["child#result"]);
}
