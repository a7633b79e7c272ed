//! Trials: workflows that bear mishaps, and those that do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainspring::testing::{Error, Trial};
use mainspring::{Context, NodeBuilder};

use crate::support::{Flow, HOUR, Ledger, flow};

async fn sound(ctx: Context, job: Flow) -> mainspring::HandlerResult<String> {
    let one = ctx.step("one", async || Ok(job.n + 1)).await?;
    ctx.sleep("night", HOUR).await?;
    let went: u64 = ctx.signal("go").await?;
    let two = ctx.step("two", async || Ok(one + went)).await?;
    Ok(two.to_string())
}

fn setup(node: NodeBuilder) -> NodeBuilder {
    node.handle(sound).queue("default", 1)
}

#[tokio::test]
async fn a_sound_workflow_bears_everything() {
    let trial = Trial::new(flow(1), setup).on_wait(|test, job| {
        Box::pin(async move {
            test.signal(job, "go", &40_u64).await.expect("sent");
        })
    });
    assert_eq!(trial.crash_after_every_step().await.expect("it bears it"), "42");
    assert_eq!(trial.run_every_step_twice().await.expect("it bears it"), "42");
    assert_eq!(trial.fail_every_step_once().await.expect("it bears it"), "42");
}

#[tokio::test]
async fn the_step_that_broke_is_named() {
    // A count that is kept outside, and not by the outside's own key.
    let setup = |node: NodeBuilder| {
        let count = Arc::new(AtomicU64::new(0));
        let handler = move |ctx: Context, _job: Flow| {
            let count = Arc::clone(&count);
            async move {
                ctx.step("harmless", async || Ok(())).await?;
                let total = ctx.step("count", async || Ok(count.fetch_add(1, Ordering::Relaxed) + 1)).await?;
                mainspring::HandlerResult::Ok(total.to_string())
            }
        };
        node.handle(handler).queue("default", 1)
    };
    let trial = Trial::new(flow(0), setup);
    let error = trial.fail_every_step_once().await.expect_err("it counts twice");
    assert!(matches!(&error, Error::Broke { key, .. } if key.as_str() == "count"), "{error}");
    let text = error.to_string();
    assert_eq!(
        text,
        "step `count` broke the workflow when it failed once: the result is \"2\" instead of \"1\""
    );
    assert!(trial.run_every_step_twice().await.is_err());
}

#[tokio::test]
async fn a_step_that_fails_may_lead_elsewhere() {
    let ledger = Ledger::default();
    let effects = ledger.clone();
    let setup = move |node: NodeBuilder| {
        let effects = effects.clone();
        let handler = move |ctx: Context, _job: Flow| {
            let effects = effects.clone();
            async move {
                if ctx.step("charge", async || Ok(())).await.is_err() {
                    ctx.step("refund", async || {
                        effects.add("refund");
                        Ok(())
                    })
                    .await?;
                    return Ok("refunded".to_owned());
                }
                mainspring::HandlerResult::Ok("charged".to_owned())
            }
        };
        node.handle(handler).queue("default", 1)
    };
    let trial = Trial::new(flow(0), setup);
    assert_eq!(trial.fail_step("charge").await.expect("it ends"), "refunded");
    assert_eq!(ledger.count("refund"), 1);
    assert!(trial.fail_every_step_once().await.is_err());
}

#[tokio::test]
async fn a_trial_without_a_step_is_none() {
    let handler = async |_ctx: Context, _job: Flow| mainspring::HandlerResult::Ok(String::new());
    let trial = Trial::new(flow(0), move |node: NodeBuilder| node.handle(handler).queue("default", 1));
    for outcome in [
        trial.crash_after_every_step().await,
        trial.fail_every_step_once().await,
        trial.run_every_step_twice().await,
    ] {
        assert!(matches!(outcome, Err(Error::NoSteps)), "{outcome:?}");
    }
}
