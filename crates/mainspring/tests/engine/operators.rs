//! What operators see and do.

use std::time::Duration;

use mainspring::admin::{ChangeReport, CheckProgress, Filter, Target, Why};
use mainspring::name::{Kind, QueueName, Tag};
use mainspring::testing::TestEngine;
use mainspring::{Context, Error, Reason, State, Status, discard};

use crate::support::{Work, assert_sound, on_every_store, record, soon, state, total, work};

const SECOND: Duration = Duration::from_secs(1);

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

async fn hopeless(_ctx: Context, _job: Work) -> mainspring::HandlerResult<u64> {
    Err(discard("it never works"))?
}

fn in_state(state: State) -> Filter {
    Filter { states: vec![state], ..Filter::default() }
}

on_every_store! {
    async fn verbs_apply_to_all_that_match(engine: Engine) {
        let tag = Tag::new("old").expect("a tag");
        engine.enqueue_many((0..2_500).map(work)).tag("old").await.expect("enqueued");
        engine.enqueue_many((0..10).map(work)).tag("new").await.expect("enqueued");
        let old = Filter { tag: Some(tag), ..Filter::default() };
        let dry = engine.jobs().cancel(old.clone()).dry_run().await.expect("counted");
        assert_eq!(dry, ChangeReport { changed: 2_500, refused: 0, missing: 0 });
        assert_eq!(total(&engine, State::Ready).await, 2_510, "a dry run changes nothing");
        let mut steps = Vec::new();
        let done = engine.jobs().cancel(old.clone()).watched(|so_far| steps.push(so_far.changed)).await;
        let done = done.expect("cancelled");
        assert_eq!(done.changed, 2_500);
        assert_eq!(steps.last(), Some(&2_500), "{steps:?}");
        assert!(steps.len() >= 3 && steps.is_sorted(), "{steps:?}");
        assert_eq!(total(&engine, State::Cancelled).await, 2_500);
        assert_eq!(total(&engine, State::Ready).await, 10);
        let again = engine.jobs().cancel(old).await.expect("too late");
        assert_eq!(again, ChangeReport { changed: 0, refused: 2_500, missing: 0 });
        assert_sound(&engine).await;
    }

    /// Lesson A6: "retry all" looped for ever on pending rows, and broke off when two dead rows shared a key.
    async fn retrying_all_ends_although_retried_jobs_match_again(engine: Engine) {
        let node = engine.node().handle(hopeless).queue("default", 4).start().await.expect("a node");
        for n in 0..300 {
            let job = engine.enqueue(work(n)).unique("shared").await.expect("enqueued");
            drop(soon("it fails", engine.result(&job)).await);
        }
        let failed = total(&engine, State::Failed).await;
        assert_eq!(failed, 300);
        // The node fails them again at once: they match again while the walk goes on.
        let tally = soon("it ends", engine.jobs().retry(in_state(State::Failed)).into_future()).await;
        assert_eq!(tally.expect("retried").changed, 300);
        node.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn a_failed_job_runs_again_with_fresh_counts(engine: Engine) {
        let node = engine.node().handle(hopeless).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(work(3)).await.expect("enqueued");
        soon("it fails", engine.result(&job)).await.expect_err("it fails");
        node.shutdown().await;
        engine.jobs().retry(job.id).await.expect("retried");
        let waiting = record(&engine, job.id).await;
        assert_eq!((waiting.summary.status.state, waiting.summary.failures), (State::Ready, 0));
        assert_eq!(waiting.errors.len(), 1, "its history is kept");
        let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
        assert_eq!(soon("it succeeds", engine.result(&job)).await.expect("mended"), 3);
        node.shutdown().await;
        assert_sound(&engine).await;
    }

    async fn held_jobs_wait_for_a_person(engine: Engine) {
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        engine.jobs().hold(job.id).because("wrong price").await.expect("held");
        let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
        let other = engine.enqueue(work(2)).await.expect("enqueued");
        soon("the other ends", engine.result(&other)).await.expect("it is not held up");
        assert_eq!(engine.jobs().why(job.id).await.expect("a reason"), Why::Held { note: Some("wrong price".into()) });
        engine.jobs().resume(job.id).await.expect("resumed");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        node.shutdown().await;
    }

    async fn a_verb_for_one_job_says_what_is_in_its_way(engine: Engine) {
        let job = engine.enqueue(work(1)).await.expect("enqueued");
        let error = engine.jobs().resume(job.id).await.expect_err("it is not held");
        assert_eq!(error.to_string(), format!("cannot resume job {}: it is ready", job.id));
        engine.jobs().delete(job.id).await.expect("deleted");
        for gone in [engine.jobs().cancel(job.id).await, engine.jobs().delete(job.id).await] {
            assert!(matches!(gone, Err(Error::NotFound(id)) if id == job.id));
        }
        assert!(matches!(engine.jobs().get(job.id).await, Err(Error::NotFound(_))));
        assert!(matches!(engine.jobs().why(job.id).await, Err(Error::NotFound(_))));
        let both = engine.jobs().cancel(vec![job.id, job.id]).await.expect("counted");
        assert_eq!(both, ChangeReport { changed: 0, refused: 0, missing: 2 });
        let long = engine.jobs().cancel(job.id).because("x".repeat(2_000)).await;
        assert!(matches!(long, Err(Error::TooLarge { what: "why", .. })));
    }

    async fn a_diagnosis_names_what_makes_jobs_wait(engine: Engine) {
        engine.enqueue(work(1)).queue("mail").await.expect("enqueued");
        engine.queues().pause("mail").await.expect("paused");
        let mut seen = Vec::new();
        let diagnosis = engine.diagnose().watched(|progress| seen.push(progress)).await.expect("diagnosed");
        assert!(diagnosis.problems.is_empty(), "{diagnosis:?}");
        let note = diagnosis.notes.iter().find(|note| note.what == "queue mail is paused with 1 job waiting");
        assert!(note.expect("a note").hint.contains("mainspring queue resume mail"), "{diagnosis:?}");
        assert_eq!(seen.first(), Some(&CheckProgress::Tables));
        let hasty = engine.diagnose().within(Duration::ZERO).await.expect("diagnosed");
        assert_eq!(hasty.problems.len(), 1, "{hasty:?}");
        assert!(hasty.problems[0].what.starts_with("the self-check did not finish within 0s"), "{hasty:?}");
    }

    async fn lists_are_paged_newest_first_and_filtered(engine: Engine) {
        let jobs = engine.enqueue_many((0..25).map(work)).await.expect("enqueued");
        engine.enqueue_many((0..5).map(work)).queue("mail").delay(Duration::from_hours(1)).await.expect("enqueued");
        let filter = Filter { queue: Some(QueueName::new("default").expect("a name")), ..Filter::default() };
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = engine.jobs().list(filter.clone()).after(after).limit(10).await.expect("a page");
            assert!(page.jobs.len() <= 10);
            seen.extend(page.jobs.iter().map(|job| job.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected: Vec<_> = jobs.iter().rev().map(|job| job.id).collect();
        assert_eq!(seen, expected);
        let scheduled = engine.jobs().list(in_state(State::Scheduled)).await.expect("a page");
        assert_eq!(scheduled.jobs.len(), 5);
        let none = Filter { kind: Some(Kind::new("none").expect("a kind")), ..Filter::default() };
        assert!(engine.jobs().list(none).await.expect("a page").jobs.is_empty());
        let odd = mainspring::admin::PagePosition("'; --".into());
        let odd = engine.jobs().list(Filter::default()).after(odd).await;
        assert!(matches!(odd, Err(Error::Invalid { what: "cursor", .. })), "{odd:?}");
    }

    async fn counts_are_exact(engine: Engine) {
        let node = engine.node().handle(quick).queue("default", 2).start().await.expect("a node");
        let jobs = engine.enqueue_many((0..50).map(work)).await.expect("enqueued");
        engine.enqueue_many((0..7).map(work)).queue("mail").await.expect("enqueued");
        for job in &jobs {
            soon("all end", engine.result(job)).await.expect("it succeeded");
        }
        let counts = engine.jobs().counts().await.expect("counts");
        let (default, mail) =
            (QueueName::new("default").expect("a name"), QueueName::new("mail").expect("a name"));
        assert_eq!((counts.of(&default, State::Succeeded), counts.of(&mail, State::Ready)), (50, 7));
        assert_eq!(counts.of(&default, State::Running), 0);
        node.shutdown().await;
    }
}

/// Parity B: no personal data in lists.
#[tokio::test]
async fn lists_show_no_payloads() {
    let test = TestEngine::new();
    let node = test
        .node(|node| {
            node.handle(async |_ctx: Context, _job: Work| -> mainspring::HandlerResult<u64> {
                Err("of Ada Lovelace")?
            })
            .queue("default", 1)
        })
        .await
        .expect("a node");
    test.enqueue(work(424_242)).max_attempts(1).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let page = test.jobs().list(in_state(State::Failed)).limit(10).await.expect("a page");
    assert_eq!(page.jobs.len(), 1);
    let text = format!("{} {:?}", serde_json::to_string(&page.jobs).expect("json"), page.jobs);
    assert!(!text.contains("424242") && !text.contains("Lovelace"), "{text}");
    node.shutdown().await;
}

/// A filter that somebody forgot to fill in must not be the end of all jobs.
#[tokio::test]
async fn all_jobs_are_changed_only_if_they_are_named() {
    let test = TestEngine::new();
    test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    for change in [test.jobs().delete(Filter::default()), test.jobs().cancel(Filter::default()).dry_run()] {
        let error = change.await.expect_err("it names nothing");
        assert!(matches!(error, Error::Invalid { what: "filter", .. }), "{error}");
    }
    assert_eq!(test.jobs().counts().await.expect("counts").total(State::Ready), 5);
    assert_eq!(test.jobs().delete(Target::All).dry_run().await.expect("counted").changed, 5);
    assert_eq!(test.jobs().delete(Target::All).await.expect("deleted").changed, 5);
}

/// On a clock that stands still, what was enqueued at this very moment is meant too.
#[tokio::test]
async fn verbs_apply_to_jobs_enqueued_at_this_very_moment() {
    let test = TestEngine::new();
    test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    let tally = test.jobs().cancel(Target::All).await.expect("cancelled");
    assert_eq!(tally.changed, 5);
}

#[tokio::test]
async fn a_scheduled_job_can_be_run_now() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).delay(Duration::from_hours(1)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.jobs().retry(job.id).await.expect("now");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it ran"), 1);
}

#[tokio::test]
async fn a_held_job_that_was_scheduled_waits_for_its_time_again() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    let job = test.enqueue(work(1)).delay(60 * SECOND).await.expect("enqueued");
    test.jobs().hold(job.id).await.expect("held");
    test.jobs().resume(job.id).await.expect("resumed");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, job.id).await, State::Scheduled);
    test.advance(60 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it ran"), 1);
}

#[tokio::test]
async fn ended_jobs_are_kept_for_their_retention_and_then_removed() {
    let test = TestEngine::new();
    test.node(|node| {
        node.handle(
            async |_ctx: Context, job: Work| {
                if job.n == 0 { Err(discard("no"))? } else { mainspring::HandlerResult::Ok(job.n) }
            },
        )
        .queue("default", 1)
    })
    .await
    .expect("a node");
    let (short, long) = (Duration::from_mins(10), Duration::from_hours(1));
    test.queues().set_retention("default", short, long).await.expect("set");
    let both = test.queues().set("default").paused(false).retention(short, long).await.expect("set");
    assert_eq!((both.settings.paused, both.settings.retention.succeeded.0), (false, short));
    assert!(test.queues().set_retention("default", SECOND, long).await.is_err(), "below the minimum");
    let (good, bad) =
        (test.enqueue(work(1)).await.expect("enqueued"), test.enqueue(work(0)).await.expect("enqueued"));
    test.advance(Duration::from_mins(9)).await.expect("time passes");
    assert_eq!(test.outcome(&good).expect("still there"), 1);
    test.advance(Duration::from_mins(3)).await.expect("time passes");
    assert!(matches!(test.jobs().get(good.id).await, Err(Error::NotFound(_))));
    assert_eq!(record(&test, bad.id).await.summary.status, Status::because(State::Failed, Reason::Discarded));
    test.advance(Duration::from_mins(51)).await.expect("time passes");
    assert!(matches!(test.jobs().get(bad.id).await, Err(Error::NotFound(_))));
}

#[tokio::test]
async fn an_empty_page_is_empty() {
    let test = TestEngine::new();
    test.enqueue_many((0..5).map(work)).await.expect("enqueued");
    let page = test.jobs().list(Filter::default()).limit(0).await.expect("a page");
    assert!(page.jobs.is_empty());
}
