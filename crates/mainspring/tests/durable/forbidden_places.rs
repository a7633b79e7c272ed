//! Where durable operations may be called, and where they are refused before any effect.

use mainspring::{Context, Error as EngineError, Failure};

use crate::support::{Flow, Ledger, engine, flow, keys};

#[tokio::test]
async fn an_operation_inside_the_body_of_a_step_is_refused() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            let nested = ctx.step("outer", async || {
                ctx.step("inner", async || {
                    effects.add("inner");
                    Ok(())
                })
                .await?;
                Ok(())
            });
            let error = Failure::from(nested.await.expect_err("nested"));
            let slept = ctx.step("sleeper", async || Ok(ctx.sleep("nap", std::time::Duration::ZERO).await?));
            let slept = Failure::from(slept.await.expect_err("nested"));
            Ok(format!("{error}; {slept}"))
        }
    };
    let test = engine(0, handler).await;
    let text = test.run(flow(0)).await.expect("it ended");
    assert!(text.contains("`inner` was called inside the body of a step"), "{text}");
    assert!(text.contains("`nap` was called inside the body of a step"), "{text}");
    assert_eq!(ledger.count("inner"), 0);
}

#[tokio::test]
async fn an_operation_from_another_task_is_refused() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let handler = move |ctx: Context, _job: Flow| {
        let effects = effects.clone();
        async move {
            let mut task = tokio::task::JoinSet::new();
            task.spawn(async move {
                let body = async || {
                    effects.add("ran");
                    Ok(())
                };
                ctx.step("away", body).await
            });
            let refused = task.join_next().await.expect("a task").expect("no panic");
            assert!(matches!(refused, Err(EngineError::Detached { .. })), "{refused:?}");
            Ok(refused.expect_err("refused").to_string())
        }
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let text = test.outcome(&job).expect("it ended");
    assert!(text.contains("`away` was called from another task"), "{text}");
    assert_eq!(ledger.count("ran"), 0);
    assert!(keys(&test, &job).await.is_empty());
}

#[tokio::test]
async fn hostile_names_are_refused() {
    let handler = async |ctx: Context, _job: Flow| {
        for name in ["", "a/b", "a#b", "a\nb", &"x".repeat(129)] {
            assert!(ctx.step(name, async || Ok(1)).await.is_err(), "{name:?}");
            assert!(ctx.step("fine", async || Ok(1)).key(name).await.is_err(), "{name:?}");
        }
        ctx.step("'; drop table jobs; -- größe", async || Ok(1)).await?;
        Ok("done".to_owned())
    };
    let test = engine(0, handler).await;
    assert_eq!(test.run(flow(0)).await.expect("it ended"), "done");
}
