//! What waits on a node to be stored: it goes to the store in pieces that fit into a call, and is never more than a node can
//! hold.

use std::time::Duration;

use mainspring::admin::Why;
use mainspring::bounds::{BATCH_BYTES, UNSTORED_BYTES};
use mainspring::{Context, Job, NodeBuilder, State};
use serde::{Deserialize, Serialize};

use crate::faults::faulty;
use crate::support::{
    Gate, Work, assert_sound, eventually, on_every_store, record, soon, state, total, work,
};

const MINUTE: Duration = Duration::from_mins(1);
const MEGABYTE: usize = 1_000_000;

/// A job with a result of some size.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "large", result = String)]
struct Large {
    bytes: usize,
}

fn large(count: usize, bytes: usize) -> impl Iterator<Item = Large> {
    (0..count).map(move |_| Large { bytes })
}

/// Makes large results, once the gate is open.
fn making(node: NodeBuilder, gate: &Gate) -> NodeBuilder {
    let gate = gate.clone();
    node.handle(move |_ctx: Context, job: Large| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok("x".repeat(job.bytes))
        }
    })
}

on_every_store! {
    /// Together they are far more than one call takes.
    async fn large_results_of_handlers_that_end_at_one_moment_are_stored(engine: Engine) {
        let gate = Gate::default();
        let node = making(engine.node(), &gate).queue("default", 100).start().await.expect("a node");
        engine.enqueue_many(large(100, MEGABYTE)).await.expect("enqueued");
        gate.reached(100).await;
        gate.open();
        eventually("all are stored", async || total(&engine, State::Succeeded).await == 100).await;
        soon("it drains", node.shutdown()).await;
        assert_sound(&engine).await;
    }
}

#[tokio::test]
async fn a_flush_of_outcomes_is_bounded_in_bytes() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    test.node(|node| making(node, &gate).queue("default", 40)).await.expect("a node");
    test.enqueue_many(large(40, MEGABYTE)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    gate.open();
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 40);
    assert!((BATCH_BYTES / 2..=BATCH_BYTES).contains(&store.most_bytes()), "{}", store.most_bytes());
}

/// What a hundred jobs leave at one moment is stored, although no more than two of them come through together.
async fn stored_in_pieces(handling: fn(NodeBuilder, &Gate) -> NodeBuilder) {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    test.node(|node| handling(node, &gate).queue("default", 100)).await.expect("a node");
    test.enqueue_many(large(100, 10_000)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    store.narrow(Some(25_000));
    gate.open();
    test.advance(5 * MINUTE).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 100);
}

#[tokio::test]
async fn outcomes_that_do_not_come_through_together_are_stored_in_pieces() {
    stored_in_pieces(making).await;
}

#[tokio::test]
async fn an_outcome_that_does_not_come_through_lets_the_others_go_first() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    test.node(|node| making(node, &gate).queue("default", 100)).await.expect("a node");
    let huge = test.enqueue(Large { bytes: 50_000 }).await.expect("enqueued");
    test.enqueue_many(large(50, 10_000)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    store.narrow(Some(25_000));
    gate.open();
    test.advance(5 * MINUTE).await.expect("time passes");
    assert_eq!((total(&test, State::Succeeded).await, state(&test, huge.id).await), (50, State::Running));
    store.narrow(None);
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(state(&test, huge.id).await, State::Succeeded);
}

/// Makes them in a step, once the gate is open.
fn stepping(node: NodeBuilder, gate: &Gate) -> NodeBuilder {
    let passing = gate.clone();
    let handler = move |ctx: Context, job: Large| {
        let gate = passing.clone();
        async move {
            gate.pass().await;
            let made = ctx.step("made", async || Ok("x".repeat(job.bytes))).await?;
            mainspring::HandlerResult::Ok(made.len().to_string())
        }
    };
    node.handle(handler)
}

#[tokio::test]
async fn records_that_do_not_come_through_together_are_stored_in_pieces() {
    stored_in_pieces(stepping).await;
}

/// Neither those that were handed in with it nor those that come later wait for it.
#[tokio::test]
async fn a_record_that_does_not_come_through_lets_those_of_others_go_first() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    test.node(|node| stepping(node, &gate).queue("default", 100)).await.expect("a node");
    let huge = test.enqueue(Large { bytes: 50_000 }).await.expect("enqueued");
    test.enqueue_many(large(50, 10_000)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    store.narrow(Some(25_000));
    gate.open();
    test.advance(5 * MINUTE).await.expect("time passes");
    assert_eq!((total(&test, State::Succeeded).await, state(&test, huge.id).await), (50, State::Running));
    test.enqueue_many(large(50, 10_000)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!((total(&test, State::Succeeded).await, state(&test, huge.id).await), (100, State::Running));
    store.narrow(None);
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(
        (state(&test, huge.id).await, record(&test, huge.id).await.summary.claim),
        (State::Succeeded, 1)
    );
}

/// Two slots, and two claims' worth of quick jobs behind them; twice that is what a node may hold at most.
#[tokio::test]
async fn a_node_whose_outcomes_are_not_stored_claims_no_more_than_it_can_hold() {
    for stuck in ["refused", "not answered"] {
        let (test, store) = faulty(0);
        let handler = async |_ctx: Context, job: Work| mainspring::HandlerResult::Ok(job.n);
        let node = test.node(|node| node.handle(handler).queue("default", 2).claim_at_most(10));
        let node = node.await.expect("a node");
        // It has learned that they are quick.
        test.enqueue_many((0..100).map(work)).await.expect("enqueued");
        test.advance(MINUTE).await.expect("time passes");
        assert_eq!(total(&test, State::Succeeded).await, 100);

        let is_refused = stuck == "refused";
        let block = |block| {
            if is_refused { store.refuse("finish", block) } else { store.hang("finish", None, block) }
        };
        block(true);
        test.enqueue_many((100..1_100).map(work)).await.expect("enqueued");
        for _ in 0..60 {
            test.advance(Duration::from_secs(1)).await.expect("time passes");
            assert!(node.claims() <= 2 * (2 + 2 * 10), "{stuck}: {} claims", node.claims());
        }
        assert!(node.claims() >= 2, "{stuck}: its slots are of use until then");

        block(false);
        test.advance(MINUTE).await.expect("time passes");
        assert_eq!((total(&test, State::Succeeded).await, node.claims()), (1_100, 0), "{stuck}");
    }
}

/// A slot that becomes free would not help.
#[tokio::test]
async fn why_names_a_node_whose_outcomes_are_not_stored() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    let node = test.node(|node| making(node, &gate).queue("default", 2)).await.expect("a node");
    let why = async |job| test.jobs().why(job).await.expect("a reason");
    let jobs = test.enqueue_many(large(10, 1)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    let last = jobs[9].id;
    let ours = |nodes: &[String]| nodes == [node.name()];
    assert!(matches!(why(last).await, Why::Slot { nodes, .. } if ours(&nodes)));

    store.refuse("finish", true);
    test.advance(MINUTE).await.expect("time passes");
    assert!(matches!(why(last).await, Why::Slot { .. }), "its handlers still run");
    gate.open();
    // A look of the keeper, well before its next renewal.
    test.advance(Duration::from_secs(2)).await.expect("time passes");
    assert!(matches!(why(last).await, Why::BackedUp { nodes, .. } if ours(&nodes)));

    store.refuse("finish", false);
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 10);
    let nodes = test.store().nodes().await.expect("nodes");
    assert!(nodes.iter().all(|node| !node.backed_up));
}

#[tokio::test]
async fn outcomes_that_wait_are_bounded_in_bytes() {
    let (test, store) = faulty(0);
    let gate = Gate::default();
    gate.open();
    let node =
        test.node(|node| making(node, &gate).queue("default", 4).claim_at_most(100)).await.expect("a node");
    store.hang("finish", None, true);
    test.enqueue_many(large(200, MEGABYTE)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    // Beside those, what had been claimed by then: quick jobs are claimed ahead.
    let most = UNSTORED_BYTES / MEGABYTE + 100;
    assert!((4..=most).contains(&node.claims()), "{} claims", node.claims());
}

/// A job with a large input.
#[derive(Debug, Clone, Serialize, Deserialize, Job)]
#[job(kind = "heavy", result = usize)]
pub(crate) struct Heavy {
    text: String,
}

pub(crate) fn heavy(bytes: usize) -> Heavy {
    Heavy { text: "x".repeat(bytes) }
}

pub(crate) fn weighing(node: NodeBuilder) -> NodeBuilder {
    node.handle(async |_ctx: Context, job: Heavy| mainspring::HandlerResult::Ok(job.text.len()))
}

on_every_store! {
    /// Each comes to its own handler, whether it came with its claim or not.
    async fn handlers_get_inputs_of_any_size(engine: Engine) {
        let node = weighing(engine.node()).queue("default", 10).start().await.expect("a node");
        let sizes = [1, 1_000, 16_000, 16_384, 17_000, 100_000, MEGABYTE];
        for (job, size) in engine.enqueue_many(sizes.map(heavy)).await.expect("enqueued").iter().zip(sizes) {
            assert_eq!(soon("it ends", engine.result(job)).await.expect("it succeeded"), size);
        }
        soon("it drains", node.shutdown()).await;
    }

    /// Together they are far more than one claim or one look brings. Each is claimed once: no claim is too large for its time.
    async fn a_backlog_of_large_inputs_is_worked_off(engine: Engine) {
        const JOBS: usize = 90;
        let jobs = engine.enqueue_many((0..JOBS).map(|_| heavy(MEGABYTE))).await.expect("enqueued");
        let node = weighing(engine.node()).queue("default", 60).start().await.expect("a node");
        eventually("all are done", async || total(&engine, State::Succeeded).await == JOBS as u64).await;
        soon("it drains", node.shutdown()).await;
        for job in jobs {
            assert_eq!(record(&engine, job.id).await.summary.claim, 1);
        }
        assert_sound(&engine).await;
    }
}

/// However many jobs wait, and however many slots are free.
#[tokio::test]
async fn an_answer_that_brings_inputs_is_bounded_in_bytes() {
    for bytes in [MEGABYTE, 16_000] {
        let (test, store) = faulty(0);
        test.node(|node| weighing(node).queue("default", 1_100)).await.expect("a node");
        let jobs = 2 * BATCH_BYTES / bytes;
        test.enqueue_many((0..jobs).map(|_| heavy(bytes))).await.expect("enqueued");
        test.advance(MINUTE).await.expect("time passes");
        assert_eq!(total(&test, State::Succeeded).await, jobs as u64);
        let most = store.most_brought();
        assert!((BATCH_BYTES / 2..=BATCH_BYTES).contains(&most), "{bytes}: {most}");
    }
}

/// The input is read when its handler starts: it is asked for again until it is there.
#[tokio::test]
async fn a_handler_waits_for_its_input() {
    let (test, store) = faulty(0);
    let node = test.node(|node| weighing(node).queue("default", 5)).await.expect("a node");
    store.refuse("inputs", true);
    test.enqueue_many((0..20).map(|_| heavy(100_000))).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!((total(&test, State::Running).await, node.claims()), (5, 5), "nothing is claimed ahead");
    store.refuse("inputs", false);
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 20);
}

#[tokio::test]
async fn a_job_that_waits_for_its_input_can_be_cancelled() {
    let (test, store) = faulty(0);
    test.node(|node| weighing(node).queue("default", 5)).await.expect("a node");
    store.hang("inputs", None, true);
    let job = test.enqueue(heavy(100_000)).await.expect("enqueued");
    test.advance(MINUTE).await.expect("time passes");
    test.jobs().cancel(job.id).await.expect("cancelled");
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(state(&test, job.id).await, State::Cancelled);
}

#[tokio::test]
async fn an_input_that_cannot_be_read_costs_no_other_job_an_attempt() {
    let (test, store) = faulty(0);
    test.node(|node| weighing(node).queue("default", 40)).await.expect("a node");
    let jobs = test.enqueue_many((0..40).map(|_| heavy(100_000))).await.expect("enqueued");
    store.damage(jobs[7].id);
    test.advance(MINUTE).await.expect("time passes");
    assert_eq!(total(&test, State::Succeeded).await, 39);
    for job in jobs.iter().filter(|job| job.id != jobs[7].id) {
        assert_eq!(record(&test, job.id).await.summary.claim, 1);
    }
}
