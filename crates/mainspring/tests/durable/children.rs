//! Children: started once, waited for, and cancelled with their parent.

use mainspring::testing::TestEngine;
use mainspring::workflow::OnClose;
use mainspring::{Context, Error as EngineError, Job, JobId, Reason, State, Status, discard};
use serde::{Deserialize, Serialize};

use crate::support::{CACHE_SIZES, Flow, HOUR, Ledger, SECOND, flow, status};

#[derive(Debug, PartialEq, Serialize, Deserialize, Job)]
#[job(kind = "part", result = u64)]
struct Part {
    n: u64,
}

async fn part(ctx: Context, job: Part) -> mainspring::HandlerResult<u64> {
    if job.n == 13 {
        Err(discard("bad luck"))?;
    }
    ctx.sleep("work", HOUR).await?;
    Ok(job.n * 10)
}

async fn engine<F, Fut>(cached: usize, handler: F) -> TestEngine
where
    F: Fn(Context, Flow) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = mainspring::HandlerResult<String>> + Send + 'static,
{
    let test = TestEngine::new();
    let setup = |node: mainspring::NodeBuilder| {
        node.handle(handler).handle(part).queue("default", 4).cached_handlers(cached)
    };
    test.node(setup).await.expect("a node");
    test
}

#[tokio::test]
async fn a_parent_waits_for_its_children() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, job: Flow| {
            let one = ctx.spawn("one", Part { n: job.n }).await?;
            let two = ctx.spawn("two", Part { n: job.n + 1 }).options(|part| part.priority(1)).await?;
            let (one, two) = tokio::join!(one.result(), two.result());
            Ok(format!("{} {}", one?, two?))
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(4)).await.expect("enqueued");
        test.run_until_idle().await.expect("all wait");
        assert_eq!(status(&test, job.id).await, Status::because(State::Suspended, Reason::Child));
        test.advance(2 * HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "40 50");
        assert_eq!(test.enqueued::<Part>(), [Part { n: 4 }, Part { n: 5 }]);
        let child = test.assert_enqueued::<Part>(|part| part.n == 5);
        let child = test.jobs().get(child.id).await.expect("there").summary;
        assert_eq!((child.options.parent, child.priority.get()), (Some(job.id), 1));
    }
}

#[tokio::test]
async fn a_child_is_pinned_as_its_parent_is_unless_it_says_otherwise() {
    let handler = async |ctx: Context, _job: Flow| {
        ctx.spawn("same", Part { n: 1 }).await?;
        ctx.spawn("other", Part { n: 2 }).options(|part| part.pin("2")).await?;
        ctx.spawn("any", Part { n: 3 }).options(mainspring::enqueue::Enqueue::any_build).await?;
        mainspring::HandlerResult::Ok(String::new())
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).version("1").queue("default", 4)).await.expect("a node");
    let job = test.enqueue(flow(4)).pin("1").await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.outcome(&job).expect("it ended");
    let builds = [1, 2, 3].map(|n| test.assert_enqueued::<Part>(|part| part.n == n).id);
    let mut found = Vec::new();
    for id in builds {
        let labels = test.jobs().get(id).await.expect("there").summary.options.labels;
        found.push(labels.first().and_then(|label| label.build()).map(str::to_owned));
    }
    assert_eq!(found, [Some("1".to_owned()), Some("2".to_owned()), None]);
}

#[tokio::test]
async fn a_child_is_started_once_however_often_its_parent_runs() {
    let handler = async |ctx: Context, _job: Flow| {
        let child = ctx.spawn("part", Part { n: 1 }).await?;
        if ctx.attempt() < 4 {
            Err("again")?;
        }
        Ok(child.result().await?.to_string())
    };
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(3 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ended"), "10");
    assert_eq!(test.enqueued::<Part>().len(), 1);
}

#[tokio::test]
async fn the_failure_of_a_child_is_told_to_its_parent() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let child = ctx.spawn("part", Part { n: 13 }).await?;
            match child.result().await {
                Err(EngineError::Ended { status, message, .. }) => Ok(format!("{status}: {message}")),
                other => Ok(format!("{other:?}")),
            }
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(0)).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let text = test.outcome(&job).expect("it ended");
        assert_eq!(text, "failed (discarded): discarded: bad luck");
    }
}

#[tokio::test]
async fn children_end_with_their_parent_unless_they_are_abandoned() {
    let ledger = Ledger::default();
    let handler = async |ctx: Context, _job: Flow| {
        ctx.spawn("kept", Part { n: 1 }).on_close(OnClose::Abandon).await?;
        ctx.spawn("cancelled", Part { n: 2 }).await?;
        ctx.spawn("delayed", Part { n: 3 }).options(|part| part.delay(HOUR)).await?;
        ctx.signal::<()>("never").await?;
        Ok(String::new())
    };
    drop(ledger);
    let test = engine(0, handler).await;
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.run_until_idle().await.expect("all wait");
    test.jobs().cancel(job.id).await.expect("cancelled");
    let child = |n| test.assert_enqueued::<Part>(move |part: &Part| part.n == n);
    for n in [2, 3] {
        assert_eq!(status(&test, child(n).id).await, Status::because(State::Cancelled, Reason::Parent));
    }
    test.advance(2 * HOUR).await.expect("idle");
    assert_eq!(test.outcome(&child(1)).expect("it went on"), 10);
}

#[tokio::test]
async fn a_running_child_is_stopped_when_its_parent_is_cancelled() {
    #[derive(Debug, Serialize, Deserialize, Job)]
    #[job(kind = "endless")]
    struct Endless {}
    let endless = async |_ctx: Context, _job: Endless| -> mainspring::HandlerResult<()> {
        std::future::pending().await
    };
    let handler = async |ctx: Context, _job: Flow| {
        ctx.spawn("endless", Endless {}).await?.result().await?;
        mainspring::HandlerResult::Ok(String::new())
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).handle(endless).queue("default", 4)).await.expect("a node");
    let job = test.enqueue(flow(0)).await.expect("enqueued");
    test.advance(SECOND).await.expect("it runs");
    let child = test.assert_enqueued::<Endless>(|_| true);
    assert_eq!(status(&test, child.id).await.state, State::Running);
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.advance(SECOND).await.expect("idle");
    let record = test.jobs().get(child.id).await.expect("the child");
    assert_eq!(record.summary.status, Status::because(State::Cancelled, Reason::Parent));
    assert_eq!(record.note.as_deref(), Some("its parent ended"));
}

#[tokio::test]
async fn a_child_with_a_unique_key_is_refused() {
    let handler = async |ctx: Context, _job: Flow| {
        let refused = ctx.spawn("part", Part { n: 1 }).options(|part| part.unique("key")).await;
        Ok(refused.expect_err("refused").to_string())
    };
    let test = engine(0, handler).await;
    let text = test.run(flow(0)).await.expect("it ended");
    assert_eq!(text, "invalid child: it has a unique key; its step makes it unique");
    assert!(test.enqueued::<Part>().is_empty());
}

#[tokio::test]
async fn a_child_whose_id_is_taken_fails_at_its_start_and_every_run_sees_that() {
    const TAKEN: JobId = JobId::from_bytes([9; 16]);
    const OWN: JobId = JobId::from_bytes([10; 16]);
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, _job: Flow| {
            let one = ctx.spawn("one", Part { n: 1 }).options(|part| part.id(TAKEN)).await;
            let error = one.expect_err("it belongs to another job");
            let EngineError::Step { key, source } = &error else { panic!("{error}") };
            let told = format!("{key}: {source}");
            // The next run meets what was recorded, whatever has become of the id.
            ctx.sleep("night", HOUR).await?;
            let two = ctx.spawn("two", Part { n: 2 }).options(|part| part.id(OWN)).await?;
            let again = ctx.spawn("again", Part { n: 2 }).options(|part| part.id(OWN)).await;
            let again = again.expect_err("another step has started it");
            let again = std::error::Error::source(&again).map(ToString::to_string).unwrap_or_default();
            let end = two.result().await?;
            Ok(format!("{told}; {again}; {end}"))
        };
        let test = engine(cached, handler).await;
        let stranger = test.enqueue(Part { n: 13 }).id(TAKEN).await.expect("enqueued");
        test.run_until_idle().await.expect("idle");
        let job = test.enqueue(flow(4)).await.expect("enqueued");
        test.run_until_idle().await.expect("it sleeps");
        test.jobs().delete(stranger.id).await.expect("its id is free");
        test.advance(3 * HOUR).await.expect("idle");
        let said = test.outcome(&job).expect("it ended");
        let one = format!("one: job id {TAKEN} is taken: the stored job has another parent");
        let two = format!("job id {OWN} is taken: the stored job was started by another step; 20");
        assert_eq!(said, format!("{one}; {two}"));
    }
}

#[tokio::test]
async fn children_that_were_cancelled_with_their_parent_are_named_with_their_steps() {
    for cached in CACHE_SIZES {
        let handler = async |ctx: Context, job: Flow| {
            let one = ctx.spawn("one", Part { n: job.n }).await?;
            Ok(one.result().await?.to_string())
        };
        let test = engine(cached, handler).await;
        let job = test.enqueue(flow(4)).await.expect("enqueued");
        test.run_until_idle().await.expect("it waits for its child");
        let child = test.jobs().timeline(job.id).await.expect("a timeline").children[0].id;
        assert!(test.jobs().lost_children(job.id).await.expect("none").is_empty());
        test.jobs().cancel(job.id).await.expect("cancelled");
        test.run_until_idle().await.expect("idle");
        let lost = test.jobs().lost_children(job.id).await.expect("one");
        assert_eq!(
            lost.iter().map(|lost| (lost.step.as_str(), lost.id)).collect::<Vec<_>>(),
            [("one", child)]
        );
        // A retry meets its end again; a retry from its step starts another one.
        test.jobs().retry(job.id).await.expect("retried");
        test.run_until_idle().await.expect("idle");
        assert_eq!(test.jobs().get(job.id).await.expect("there").summary.failures, 1);
        test.jobs().retry_from(job.id, lost[0].step.as_str()).await.expect("retried from its step");
        test.advance(2 * HOUR).await.expect("idle");
        assert_eq!(test.outcome(&job).expect("it ended"), "40");
    }
}
