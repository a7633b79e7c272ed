//! Limits as applications use them: declared, named by an enqueue, changed by operators, in workflows.

use std::time::Duration;

use mainspring::admin::Why;
use mainspring::limit::{NewLimit, Obstacle, Rate, Total};
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Error, Job, NodeBuilder, State, bounds};
use serde::{Deserialize, Serialize};

use crate::support::{Gate, eventually, soon, state, total};

const SECOND: Duration = Duration::from_secs(1);

/// At most two of a tenant at once.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "render", result = String, limit(tenant, key = self.tenant, max = 2))]
struct Render {
    tenant: String,
}

fn render(tenant: &str) -> Render {
    Render { tenant: tenant.into() }
}

/// Takes of a limit that its type does not define.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "train", limit(gpu, units = 2))]
struct Train {}

fn gated(node: NodeBuilder, gate: &Gate) -> NodeBuilder {
    let (render_gate, train_gate) = (gate.clone(), gate.clone());
    node.handle(move |_ctx: Context, job: Render| {
        let gate = render_gate.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.tenant)
        }
    })
    .handle(move |_ctx: Context, _job: Train| {
        let gate = train_gate.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(())
        }
    })
    .queue("default", 20)
}

async fn in_use(engine: &Engine, limit: &str, key: &str) -> u32 {
    engine.limits().key(limit, key).await.expect("a key").key.in_use
}

#[tokio::test]
async fn a_declared_limit_holds_for_each_key_and_lets_the_next_job_in() {
    let engine = Engine::open("memory:").await.expect("a store");
    let gate = Gate::default();
    let node = gated(engine.node(), &gate).start().await.expect("a node");
    let tenants = ["acme", "acme", "acme", "acme", "acme", "zoo", "zoo", "zoo"];
    let jobs = engine.enqueue_many(tenants.map(render)).await.expect("enqueued");
    gate.reached(4).await;
    assert_eq!(total(&engine, State::Running).await, 4);
    assert_eq!((in_use(&engine, "tenant", "acme").await, in_use(&engine, "tenant", "zoo").await), (2, 2));
    let use_of = engine.limits().key("tenant", "acme").await.expect("a key");
    assert_eq!((use_of.holders.len(), use_of.waiting), (2, 3));
    let keys = engine.limits().keys("tenant").await.expect("keys");
    assert_eq!(keys.iter().map(|key| key.key.as_str()).collect::<Vec<_>>(), ["acme", "zoo"]);
    gate.open();
    for job in &jobs {
        soon("its end", engine.result(job)).await.expect("it succeeded");
    }
    assert_eq!(in_use(&engine, "tenant", "acme").await, 0);
    node.shutdown().await;
}

#[tokio::test]
async fn an_unknown_limit_is_refused_and_fails_no_neighbor() {
    let engine = Engine::open("memory:").await.expect("a store");
    engine.limits().set("gpu").max(4).await.expect("set");
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..20 {
        let engine = engine.clone();
        calls.spawn(async move {
            let limit = if n % 2 == 0 { "gpu" } else { "gpv" };
            engine.enqueue_json("train", &serde_json::Value::Null).limit(limit).await.map(drop)
        });
    }
    let (mut stored, mut refused) = (0, 0);
    for answer in calls.join_all().await {
        match answer {
            Ok(()) => stored += 1,
            Err(Error::UnknownLimit { limit, similar }) => {
                assert_eq!((limit.as_str(), similar.expect("a hint").as_str()), ("gpv", "gpu"));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((stored, refused), (10, 10));
}

#[tokio::test]
async fn an_enqueue_names_limits_with_keys_and_units_and_replaces_those_of_the_type() {
    let engine = Engine::open("memory:").await.expect("a store");
    for limit in ["gpu", "license"] {
        engine.limits().set(limit).max(8).await.expect("set");
    }
    let job = engine.enqueue(Train {}).limit("license").key(7).units(3).await.expect("enqueued");
    let options = engine.jobs().get(job.id).await.expect("a job").summary.options;
    let taken = |options: &mainspring::enqueue::Options| -> Vec<_> {
        options.limits.iter().map(|one| (one.limit.to_string(), one.key.clone(), one.units)).collect()
    };
    assert_eq!(taken(&options), [("gpu".into(), String::new(), 2), ("license".into(), "7".into(), 3)]);
    // Named itself, and one key twice.
    let job = engine.enqueue(Train {}).limit("gpu").units(4).limit("gpu").limit("gpu").key("b").await;
    let options = engine.jobs().get(job.expect("enqueued").id).await.expect("a job").summary.options;
    assert_eq!(taken(&options), [("gpu".into(), String::new(), 4), ("gpu".into(), "b".into(), 1)]);

    let error = engine.enqueue(Train {}).key("b").await.expect_err("no limit is named");
    assert_eq!(error.to_string(), "invalid limit key: name its limit before, with .limit(…)");
    let error = engine.enqueue(Train {}).limit("gpu").units(0).await.expect_err("no units");
    assert!(matches!(error, Error::Invalid { what: "units", .. }), "{error}");
    let long = "k".repeat(bounds::LIMIT_KEY_BYTES + 1);
    let error = engine.enqueue(Train {}).limit("gpu").key(&long).await.expect_err("too long");
    assert!(matches!(error, Error::TooLarge { what: "limit key", .. }), "{error}");
    let many = engine.enqueue_json("train", &serde_json::Value::Null);
    let many = (0..9).fold(many, |many, n| many.limit("gpu").key(n));
    let error = many.await.expect_err("nine");
    assert!(matches!(error, Error::TooLarge { what: "limits", .. }), "{error}");
    let error = engine.enqueue_many([render(&long)]).await.expect_err("too long");
    assert!(matches!(error, Error::TooLarge { what: "limit key", .. }), "{error}");
}

#[tokio::test]
async fn units_are_taken_together() {
    let engine = Engine::open("memory:").await.expect("a store");
    let gate = Gate::default();
    let node = gated(engine.node(), &gate).limit(NewLimit::new("gpu").max(5)).start().await.expect("a node");
    let jobs = engine.enqueue_many((0..5).map(|_| Train {})).await.expect("enqueued");
    gate.reached(2).await;
    assert_eq!(in_use(&engine, "gpu", "").await, 4);
    engine.limits().set("gpu").max(6).await.expect("set");
    gate.reached(3).await;
    assert_eq!(in_use(&engine, "gpu", "").await, 6);
    gate.open();
    for job in &jobs {
        soon("its end", engine.result(job)).await.expect("it succeeded");
    }
    node.shutdown().await;
}

#[tokio::test]
async fn a_persons_edit_wins_over_code_until_it_is_reset() {
    let engine = Engine::open("memory:").await.expect("a store");
    let start = async |revision, max| {
        let gate = Gate::default();
        let node = gated(engine.node(), &gate).limit(NewLimit::new("gpu").max(max).revision(revision));
        node.start().await.expect("a node").shutdown().await;
        engine.limits().get("gpu").await.expect("a limit").definition.max
    };
    assert_eq!(start(1, 4).await, Some(4));
    assert_eq!(start(1, 9).await, Some(4), "two versions of one revision do not fight");
    assert_eq!(start(2, 6).await, Some(6));
    assert_eq!(start(1, 4).await, Some(6), "nor does an older one win");
    engine.limits().by("ann").set("gpu").max(2).await.expect("set");
    assert_eq!(start(3, 8).await, Some(2));
    assert_eq!(engine.limits().reset("gpu").await.expect("reset").definition.max, Some(8));
    let verbs: Vec<_> = engine.limits().audit("gpu").await.expect("an audit").into_iter().collect();
    let ann: Vec<_> =
        verbs.iter().filter(|entry| entry.who == "ann").map(|entry| entry.verb.as_str()).collect();
    assert_eq!(ann, ["set"]);
    let both = gated(engine.node(), &Gate::default())
        .limit(NewLimit::new("a").max(1))
        .limit(NewLimit::new("a").max(2))
        .start()
        .await;
    assert!(matches!(both, Err(Error::NodeSetup { .. })), "{both:?}");
}

#[tokio::test]
async fn a_declared_limit_that_somebody_deletes_comes_back_with_the_next_job() {
    let engine = Engine::open("memory:").await.expect("a store");
    engine.enqueue(render("a")).await.expect("enqueued");
    assert!(engine.limits().delete("tenant").await.expect("deleted"));
    assert!(!engine.limits().delete("tenant").await.expect("it is gone"));
    engine.enqueue(render("a")).await.expect("enqueued");
    assert_eq!(engine.limits().get("tenant").await.expect("a limit").definition.max, Some(2));
    assert!(matches!(
        engine.limits().get("tenants").await,
        Err(Error::UnknownLimit { similar: Some(_), .. })
    ));
}

#[tokio::test]
async fn why_names_the_limit_and_its_holders_and_a_pause() {
    let test = TestEngine::new();
    let gate = Gate::default();
    test.node(|node| gated(node, &gate)).await.expect("a node");
    let jobs = test.enqueue_many((0..4).map(|_| render("acme"))).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    let mut held = Vec::new();
    for job in &jobs[..2] {
        assert_eq!(state(&test, job.id).await, State::Running);
        held.push(job.id);
    }
    let why = test.jobs().why(jobs[2].id).await.expect("a reason");
    let Why::Limited(Obstacle::Limit { limit, key, in_use, max, holders, .. }) = why else {
        panic!("{why:?}")
    };
    assert_eq!((limit.as_str(), key.as_str(), in_use, max, holders), ("tenant", "acme", 2, 2, held));
    let why = test.jobs().why(jobs[3].id).await.expect("a reason");
    assert!(matches!(why, Why::Limited(_)), "{why:?}");

    test.limits().pause("tenant").key("acme").await.expect("paused");
    gate.open();
    test.advance(SECOND).await.expect("time passes");
    assert_eq!(state(&test, jobs[2].id).await, State::Ready);
    let why = test.jobs().why(jobs[2].id).await.expect("a reason");
    assert!(matches!(why, Why::Limited(Obstacle::Paused { key: Some(_), .. })), "{why:?}");
    test.limits().resume("tenant").key("acme").await.expect("resumed");
    test.run_until_idle().await.expect("idle");
    assert_eq!(state(&test, jobs[3].id).await, State::Succeeded);
    assert!(matches!(test.limits().pause("tenents").await, Err(Error::UnknownLimit { .. })));
}

#[tokio::test]
async fn a_rate_lets_jobs_start_in_time() {
    #[derive(Serialize, Deserialize, Job)]
    #[job(kind = "call", limit(bank, rate = "60/1m", burst = 2))]
    struct Call {}
    let test = TestEngine::new();
    let handler = async |_ctx: Context, _job: Call| mainspring::HandlerResult::Ok(());
    test.node(|node| node.handle(handler).queue("default", 20)).await.expect("a node");
    let jobs = test.enqueue_many((0..6).map(|_| Call {})).await.expect("enqueued");
    let ended = async || {
        let mut ended = 0;
        for job in &jobs {
            ended += usize::from(state(&test, job.id).await == State::Succeeded);
        }
        ended
    };
    test.advance(Duration::from_millis(500)).await.expect("time passes");
    assert_eq!(ended().await, 2, "the burst");
    let why = test.jobs().why(jobs[2].id).await.expect("a reason");
    assert!(matches!(why, Why::Limited(Obstacle::Rate { .. })), "{why:?}");
    for more in 3..=6 {
        test.advance(SECOND).await.expect("time passes");
        assert_eq!(ended().await, more);
    }
    test.limits().set("bank").rate(Rate::new(1, Duration::from_hours(1))).await.expect("set");
}

#[tokio::test]
async fn totals_of_queues_and_kinds_hold_over_nodes_and_count_jobs_that_run() {
    let engine = Engine::open("memory:").await.expect("a store");
    let gate = Gate::default();
    let mut nodes = Vec::new();
    for _ in 0..2 {
        nodes.push(gated(engine.node(), &gate).limit(NewLimit::new("gpu")).start().await.expect("a node"));
    }
    let first = engine.enqueue_many((0..3).map(|_| Train {})).await.expect("enqueued");
    gate.reached(3).await;
    engine.queues().by("ann").set_max_running("default", Some(5)).await.expect("set");
    let more = engine.enqueue_many((0..6).map(|_| Train {})).await.expect("enqueued");
    gate.reached(5).await;
    let totals = engine.limits().totals().await.expect("totals");
    assert_eq!(totals.len(), 1);
    assert!(matches!(&totals[0].total, Total::Queue(queue) if queue.as_str() == "default"), "{totals:?}");
    assert_eq!((totals[0].max, totals[0].in_use), (5, 5));
    let mut waits = 0;
    for job in &more {
        if state(&engine, job.id).await == State::Ready {
            let why = engine.jobs().why(job.id).await.expect("a reason");
            assert!(matches!(why, Why::Limited(Obstacle::Total { .. } | Obstacle::Behind { .. })), "{why:?}");
            waits += 1;
        }
    }
    assert_eq!(waits, 4);
    engine.kinds().set_max_running("train", Some(1)).await.expect("set");
    engine.queues().set_max_running("default", None).await.expect("removed");
    gate.open();
    for job in first.iter().chain(&more) {
        soon("its end", engine.result(job)).await.expect("it succeeded");
    }
    for node in nodes {
        node.shutdown().await;
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "flow", result = u32, limit(gpu, max = 1))]
struct Flow {
    keep: u64,
    /// Whether it waits for a child, which needs the same or not.
    child: Option<bool>,
}

#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "part", result = u32)]
struct Part {}

async fn flow(ctx: Context, job: Flow) -> mainspring::HandlerResult<u32> {
    let keep = Duration::from_secs(job.keep);
    if let Some(same) = job.child {
        let child =
            ctx.spawn("part", Part {}).options(|part| if same { part.limit("gpu") } else { part }).await?;
        return Ok(child.result().keep_limits_for(keep).await?);
    }
    let sleep = ctx.sleep("nap", 60 * SECOND);
    if job.keep > 0 {
        sleep.keep_limits_for(keep).await?;
    } else {
        sleep.await?;
    }
    Ok(1)
}

async fn part(_ctx: Context, _job: Part) -> mainspring::HandlerResult<u32> {
    Ok(7)
}

async fn flows() -> TestEngine {
    let test = TestEngine::new();
    test.node(|node| node.handle(flow).handle(part).queue("default", 5)).await.expect("a node");
    test
}

#[tokio::test]
async fn a_workflow_that_waits_frees_its_units() {
    let test = flows().await;
    let jobs = test.enqueue_many((0..3).map(|_| Flow { keep: 0, child: None })).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    for job in &jobs {
        assert_eq!(state(&test, job.id).await, State::Suspended);
    }
    assert_eq!(in_use(&test, "gpu", "").await, 0);
    test.advance(60 * SECOND).await.expect("time passes");
    for job in &jobs {
        assert_eq!(test.outcome(job).expect("it succeeded"), 1);
    }
}

#[tokio::test]
async fn a_wait_keeps_units_for_as_long_as_it_says_and_waits_on_without_them() {
    let test = flows().await;
    let first = test.enqueue(Flow { keep: 10, child: None }).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    let second = test.enqueue(Flow { keep: 0, child: None }).await.expect("enqueued");
    test.advance(8 * SECOND).await.expect("time passes");
    assert_eq!(state(&test, first.id).await, State::Suspended);
    assert_eq!(in_use(&test, "gpu", "").await, 1, "it is kept");
    let holders = test.limits().holders("gpu", "").await.expect("holders");
    assert!(holders.len() == 1 && holders[0].job == first.id && holders[0].keeps, "{holders:?}");
    assert_eq!(state(&test, second.id).await, State::Ready);
    test.advance(2 * SECOND).await.expect("time passes");
    assert_eq!(in_use(&test, "gpu", "").await, 0, "the time is up");
    assert_eq!(state(&test, first.id).await, State::Suspended);
    assert_eq!(state(&test, second.id).await, State::Suspended, "it had its turn");
    test.advance(49 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&first).expect("its sleep was not longer for that"), 1);
    test.run_until_idle().await.expect("idle");
}

/// The time counts from the beginning of the wait, whatever happens meanwhile.
#[tokio::test]
async fn a_crash_does_not_make_the_time_longer_for_which_units_are_kept() {
    let test = flows().await;
    let job = test.enqueue(Flow { keep: 30, child: None }).await.expect("enqueued");
    test.advance(SECOND).await.expect("time passes");
    test.crash().await.expect("the node dies");
    test.node(|node| node.handle(flow).handle(part).queue("default", 5)).await.expect("another");
    test.advance(28 * SECOND).await.expect("time passes");
    assert_eq!(in_use(&test, "gpu", "").await, 1);
    test.advance(2 * SECOND).await.expect("time passes");
    assert_eq!(in_use(&test, "gpu", "").await, 0);
    assert_eq!(state(&test, job.id).await, State::Suspended);
    test.advance(30 * SECOND).await.expect("time passes");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 1);
}

#[tokio::test]
async fn a_parent_cannot_keep_what_its_child_needs() {
    let test = flows().await;
    let job = test.enqueue(Flow { keep: 60, child: Some(true) }).max_attempts(1).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    let error = test.outcome(&job).expect_err("it is refused").to_string();
    assert!(error.contains("needs limit `gpu` too, and this job would keep it from running"), "{error}");
    // One that needs something else runs, and the parent goes on with what it has kept.
    let job = test.enqueue(Flow { keep: 60, child: Some(false) }).await.expect("enqueued");
    test.run_until_idle().await.expect("idle");
    assert_eq!(test.outcome(&job).expect("it succeeded"), 7);
    assert_eq!(in_use(&test, "gpu", "").await, 0);
}

#[tokio::test]
async fn jobs_of_a_schedule_take_part_in_the_limits_of_their_type() {
    #[derive(Debug, Default, Serialize, Deserialize, Job)]
    #[job(kind = "sweep", schedule = "every 1s", limit(disk, max = 1))]
    struct Sweep {}
    let test = TestEngine::new();
    let gate = Gate::default();
    let door = gate.clone();
    let handler = move |_ctx: Context, _job: Sweep| {
        let gate = door.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(())
        }
    };
    test.node(|node| node.handle(handler).queue("default", 5)).await.expect("a node");
    test.advance(5 * SECOND).await.expect("time passes");
    eventually("one runs", async || in_use(&test, "disk", "").await == 1).await;
    assert_eq!(total(&test, State::Running).await, 1);
    assert!(total(&test, State::Ready).await >= 3);
}

#[tokio::test]
async fn tests_look_at_keys_and_move_to_the_next_token() {
    #[derive(Serialize, Deserialize, Job)]
    #[job(kind = "slow", limit(bank, max = 2, rate = "1/10s"))]
    struct Slow {}
    let handler = async |ctx: Context, _job: Slow| {
        let hour = Duration::from_hours(1);
        ctx.sleep("settle", hour).keep_limits_for(hour).await?;
        mainspring::HandlerResult::Ok(())
    };
    let test = TestEngine::new();
    test.node(|node| node.handle(handler).queue("default", 5)).await.expect("a node");
    test.enqueue_many((0..3).map(|_| Slow {})).await.expect("enqueued");
    let began = test.now();
    test.run_until_idle().await.expect("idle");
    test.assert_in_use("bank", "", 1).await;
    test.advance_to_token("bank", "").await.expect("time passes");
    assert_eq!(test.now().since(began), 10 * SECOND);
    test.assert_in_use("bank", "", 2).await;
    test.advance_to_token("bank", "").await.expect("time passes");
    test.assert_in_use("bank", "", 2).await;
}
