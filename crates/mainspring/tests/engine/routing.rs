//! Which job runs where, and in which order; and that nothing waits silently.

use std::time::{Duration, SystemTime};

use mainspring::admin::Why;
use mainspring::name::QueueName;
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Job, NodeBuilder, State};
use mainspring_core::bounds;
use serde::{Deserialize, Serialize};

use crate::support::{
    Gate, Ledger, Work, assert_sound, eventually, on_every_store, record, soon, state, total, work,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "rare", result = u64)]
struct Rare {}

async fn rare(_ctx: Context, _job: Rare) -> mainspring::HandlerResult<u64> {
    Ok(1)
}

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

/// A node that notes the order of its jobs, one at a time.
fn noting(node: NodeBuilder, ledger: &Ledger) -> NodeBuilder {
    let ledger = ledger.clone();
    let handler = move |_ctx: Context, job: Work| {
        ledger.add(job.n);
        async move { mainspring::HandlerResult::Ok(job.n) }
    };
    node.handle(handler).queue("default", 1)
}

on_every_store! {
    /// Lesson A7: an unknown kind died.
    async fn a_kind_that_nobody_handles_waits_and_burns_nothing(engine: Engine) {
        let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(Rare {}).await.expect("enqueued");
        let other = engine.enqueue(work(1)).await.expect("enqueued");
        soon("the other ends", engine.result(&other)).await.expect("it is not held up");
        let waiting = record(&engine, job.id).await.summary;
        assert_eq!((waiting.status.state, waiting.claim, waiting.failures), (State::Ready, 0, 0));
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert_eq!(why.to_string(), "no live node of its queue handles kind `rare`");
        assert!(why.hint().is_some());
        let able = engine.node().handle(rare).queue("default", 1).start().await.expect("a node");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        tokio::join!(node.shutdown(), able.shutdown());
    }

    async fn a_job_runs_only_where_its_labels_are(engine: Engine) {
        let plain = engine.node().handle(quick).queue("default", 1).label("eu").start().await.expect("a node");
        let job = engine.enqueue(work(1)).label("gpu").label("eu").await.expect("enqueued");
        let other = engine.enqueue(work(2)).label("eu").await.expect("enqueued");
        soon("the other ends", engine.result(&other)).await.expect("it is not held up");
        let waiting = record(&engine, job.id).await.summary;
        assert_eq!((waiting.status.state, waiting.claim), (State::Ready, 0));
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert_eq!(why.to_string(), "no live node that handles its kind has all its labels: `eu`, `gpu`");
        let able = engine
            .node()
            .handle(quick)
            .queue("default", 1)
            .label("gpu")
            .label("eu")
            .label("gpu")
            .start()
            .await
            .expect("a node");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        tokio::join!(plain.shutdown(), able.shutdown());
    }

    async fn a_pinned_job_waits_for_its_build(engine: Engine) {
        let of = |version: &str| engine.node().handle(quick).queue("default", 1).version(version);
        let new = of("2").start().await.expect("a node");
        let job = engine.enqueue(work(1)).pin("0").pin("1").await.expect("enqueued");
        let free = engine.enqueue(work(2)).pin("1").any_build().await.expect("enqueued");
        soon("the other ends", engine.result(&free)).await.expect("any build runs it");
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert_eq!(
            why.to_string(),
            "the job is pinned to build `1`, and no live node that handles its kind has that build"
        );
        assert_eq!(why.hint().as_deref(), Some("start a node of build `1`, or one that takes it over"));
        let day = Duration::from_hours(24);
        let heir = of("3").takes_over("1", day).start().await.expect("a node");
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert!(why.to_string().contains(&format!("; node {} takes it over at ", heir.name())), "{why}");
        let waiting = record(&engine, job.id).await.summary;
        assert_eq!((waiting.status.state, waiting.claim), (State::Ready, 0), "the build has time to drain");
        let past = of("4").takes_over("1", SystemTime::UNIX_EPOCH).start().await.expect("a node");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        let old = of("1").start().await.expect("a node");
        past.shutdown().await;
        let job = engine.enqueue(work(1)).pin("1").await.expect("enqueued");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        tokio::join!(new.shutdown(), heir.shutdown(), old.shutdown());
    }

    async fn why_names_a_queue_that_nobody_serves(engine: Engine) {
        let job = engine.enqueue(work(1)).queue("mail").await.expect("enqueued");
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert_eq!(why, Why::NoNode { queue: QueueName::new("mail").expect("a name") });
        assert_eq!(why.hint().as_deref(), Some("start a node that serves queue `mail`"));
    }

    async fn jobs_of_one_priority_run_in_the_order_in_which_they_came(engine: Engine) {
        let ledger = Ledger::default();
        for n in 0..100 {
            engine.enqueue(work(n)).await.expect("enqueued");
        }
        engine.enqueue_many((100..200).map(work)).await.expect("enqueued");
        let node = noting(engine.node(), &ledger).start().await.expect("a node");
        eventually("all ran", async || ledger.len() == 200).await;
        assert_eq!(ledger.entries(), (0..200).collect::<Vec<_>>());
        node.shutdown().await;
    }

    async fn a_lower_priority_number_runs_first(engine: Engine) {
        let ledger = Ledger::default();
        for n in 0..30_u64 {
            let priority = u8::try_from(9 - n % 10).expect("small");
            engine.enqueue(work(n)).priority(priority).await.expect("enqueued");
        }
        let last = engine.enqueue(work(100)).priority(9).await.expect("enqueued");
        let refused = engine.jobs().set_priority(last.id, 10).await;
        assert!(matches!(refused, Err(mainspring::Error::Invalid { .. })), "{refused:?}");
        engine.jobs().set_priority(last.id, 0).await.expect("changed");
        let node = noting(engine.node(), &ledger).start().await.expect("a node");
        eventually("all ran", async || ledger.len() == 31).await;
        let expected: Vec<u64> =
            [9, 19, 29, 100].into_iter().chain((0..9).rev().flat_map(|p| [p, 10 + p, 20 + p])).collect();
        assert_eq!(ledger.entries(), expected);
        node.shutdown().await;
    }

    /// Lesson A3: pausing cancelled running jobs. Lesson A8: nothing woke workers on resume.
    async fn pausing_stops_claims_and_nothing_else(engine: Engine) {
        let gate = Gate::default();
        let door = gate.clone();
        let handler = move |_ctx: Context, job: Work| {
            let gate = door.clone();
            async move {
                if job.n == 0 {
                    gate.pass().await;
                }
                mainspring::HandlerResult::Ok(job.n)
            }
        };
        let node = engine.node().handle(handler).queue("default", 2).start().await.expect("a node");
        let running = engine.enqueue(work(0)).await.expect("enqueued");
        gate.reached(1).await;
        engine.queues().pause("default").await.expect("paused");
        let waiting = engine.enqueue(work(1)).await.expect("enqueued");
        assert_eq!(state(&engine, running.id).await, State::Running);
        gate.open();
        assert_eq!(soon("its end", engine.result(&running)).await.expect("it goes on"), 0);
        assert_eq!(state(&engine, waiting.id).await, State::Ready);
        let why = engine.jobs().why(waiting.id).await.expect("a reason");
        assert_eq!(why.to_string(), "queue `default` is paused");
        engine.queues().resume("default").await.expect("resumed");
        assert_eq!(soon("its end", engine.result(&waiting)).await.expect("it runs"), 1);
        node.shutdown().await;
        assert_sound(&engine).await;
    }
}

#[tokio::test]
async fn resuming_a_queue_wakes_its_nodes_at_once() {
    let test = TestEngine::new();
    test.node(|node| node.handle(quick).queue("default", 1)).await.expect("a node");
    test.queues().pause("default").await.expect("paused");
    let jobs = test.enqueue_many((0..50).map(work)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(total(&test, State::Ready).await, 50);
    test.queues().resume("default").await.expect("resumed");
    test.run_until_idle().await.expect("idle, without a look at the clock");
    assert_eq!(total(&test, State::Succeeded).await, jobs.len() as u64);
}

/// Lesson A8: a bulk enqueue woke one worker.
#[tokio::test]
async fn a_bulk_enqueue_wakes_all_slots_of_all_nodes() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    for _ in 0..3 {
        let handler = handler.clone();
        test.node(|node| node.handle(handler).queue("default", 4)).await.expect("a node");
    }
    test.run_until_idle().await.expect("idle");
    test.enqueue_many((0..12).map(work)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    assert_eq!(gate.came(), 12, "all at once");
    gate.open();
    test.run_until_idle().await.expect("idle");
}

#[tokio::test]
async fn no_more_jobs_run_than_a_queue_has_slots() {
    let (test, gate) = (TestEngine::new(), Gate::default());
    let door = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    test.node(|node| node.handle(handler).queue("default", 3).queue("mail", 2)).await.expect("a node");
    test.enqueue_many((0..10).map(work)).await.expect("enqueued");
    test.enqueue_many((10..20).map(work)).queue("mail").await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(gate.came(), 5);
    assert_eq!(total(&test, State::Running).await, 5, "nothing is claimed that cannot run");
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(total(&test, State::Succeeded).await, 20);
}

/// A busy queue does not starve another on the same node.
#[tokio::test]
async fn all_queues_of_a_node_get_their_turn() {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    test.enqueue_many((0..5_000).map(work)).await.expect("enqueued");
    let rare = test.enqueue(work(9_999)).queue("rare").await.expect("enqueued");
    test.node(|node| noting(node, &ledger).queue("rare", 1)).await.expect("a node");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&rare).expect("it ran"), 9_999);
    let place = ledger.entries().iter().position(|n| *n == 9_999).expect("noted");
    assert!(place < 2_500, "it came as number {place}");
}

/// What was claimed ahead goes back when the job before it takes long: others could run it.
#[tokio::test]
async fn a_node_does_not_sit_on_jobs_that_another_could_run() {
    let (test, gate, ledger) = (TestEngine::new(), Gate::default(), Ledger::default());
    let (door, notes) = (gate.clone(), ledger.clone());
    let handler = move |_ctx: Context, job: Work| {
        let (gate, ledger) = (door.clone(), notes.clone());
        async move {
            if job.n == 0 {
                gate.pass().await;
            }
            ledger.add(job.n);
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    let first = handler.clone();
    test.node(|node| node.handle(first).queue("default", 1)).await.expect("a node");
    // Quick jobs first, so that the node takes to claiming ahead; then one that takes for ever, and many behind it.
    test.enqueue_many((1..=100).map(work)).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    test.enqueue(work(0)).await.expect("enqueued");
    test.enqueue_many((101..=200).map(work)).await.expect("enqueued");
    test.advance(Duration::ZERO).await.expect("it settles");
    test.node(|node| node.handle(handler).queue("default", 1)).await.expect("another node");
    test.advance(3 * SECOND).await.expect("time passes");
    assert_eq!(ledger.len(), 200, "all but the one that takes for ever");
    gate.open();
    test.run_until_idle().await.expect("idle");
    assert_eq!(ledger.sorted(), (0..=200).collect::<Vec<_>>());
}

/// More urgent work is not stuck behind what a node has claimed ahead.
#[tokio::test]
async fn urgent_work_overtakes_what_waits_in_the_store() {
    let (test, ledger) = (TestEngine::new(), Ledger::default());
    test.enqueue_many((0..10_000).map(work)).await.expect("enqueued");
    test.node(|node| noting(node, &ledger)).await.expect("a node");
    test.enqueue(work(77_777)).priority(0).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let place = ledger.entries().iter().position(|n| *n == 77_777).expect("noted");
    assert!(place < 5_000, "it came as number {place}");
}

#[tokio::test]
async fn a_second_engine_on_the_same_file_is_heard_at_once() {
    let (address, _dir) = crate::support::sqlite();
    let (here, there) =
        (Engine::open(&address).await.expect("a store"), Engine::open(&address).await.expect("again"));
    // Whoever is not told finds out with the next renewal, later than anybody waits here.
    let node = here.node().handle(quick).queue("default", 1).lease(bounds::LEASE_MAX);
    let node = node.start().await.expect("a node");
    for n in 0..5 {
        let job = there.enqueue(work(n)).await.expect("enqueued");
        assert_eq!(soon("its end", there.result(&job)).await.expect("it succeeded"), n);
    }
    node.shutdown().await;
}
