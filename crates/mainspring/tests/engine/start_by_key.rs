//! Starting a workflow by a key: it is started once, and whoever starts it again gets it.

use mainspring::{Context, Reason, State, Status};

use crate::support::{Ledger, Work, assert_sound, eventually, on_every_store, soon, status, work};

on_every_store! {
    /// Two callers at once, and one who comes when it has suspended: one job, one handle each, one result for all.
    async fn starts_with_one_key_are_one_workflow(engine: Engine) {
        let ledger = Ledger::default();
        let effects = ledger.clone();
        let handler = move |ctx: Context, job: Work| {
            let effects = effects.clone();
            async move {
                ctx.step("once", async || {
                    effects.add(job.n);
                    Ok(())
                })
                .await?;
                let said: u64 = ctx.signal("go").await?;
                mainspring::HandlerResult::Ok(job.n + said)
            }
        };
        let node = engine.node().handle(handler).queue("default", 4).start().await.expect("a node");
        let start = || soon("it starts", async { engine.enqueue(work(1)).unique("order 7").await });
        let (one, two) = tokio::join!(start(), start());
        let (one, two) = (one.expect("enqueued"), two.expect("enqueued"));
        assert_eq!(one.id, two.id);
        assert_ne!(one.existing, two.existing, "one has created it, the other is attached");
        let waits = Status::because(State::Suspended, Reason::Signal);
        eventually("it waits", async || status(&engine, one.id).await == waits).await;
        let late = start().await.expect("enqueued");
        assert_eq!((late.id, late.existing), (one.id, true));
        let results = async { tokio::join!(engine.result(&one), engine.result(&two), engine.result(&late)) };
        let say = async { engine.signal(late, "go", &41_u64).await };
        let (results, said) = soon("all hear of it", async { tokio::join!(results, say) }).await;
        said.expect("sent");
        for result in [results.0, results.1, results.2] {
            assert_eq!(result.expect("it succeeded"), 42);
        }
        assert_eq!(ledger.entries(), [1], "it ran once");
        let next = start().await.expect("enqueued");
        assert!(!next.existing && next.id != one.id, "the key is free when it has ended");
        eventually("it waits", async || status(&engine, next.id).await == waits).await;
        soon("it drains", node.shutdown()).await;
        assert_sound(&engine).await;
    }
}
