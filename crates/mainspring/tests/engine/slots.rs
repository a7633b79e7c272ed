//! Slots that change while a node runs.

use std::time::Duration;

use mainspring::admin::Why;
use mainspring::testing::TestEngine;
use mainspring::{Context, Engine, Error, NodeBuilder, State};

use crate::support::{Gate, Work, eventually, on_every_store, soon, state, total, work};

const SECOND: Duration = Duration::from_secs(1);

fn gated(node: NodeBuilder, gate: &Gate) -> NodeBuilder {
    let gate = gate.clone();
    let handler = move |_ctx: Context, job: Work| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            mainspring::HandlerResult::Ok(job.n)
        }
    };
    node.handle(handler)
}

async fn served(engine: &Engine) -> Vec<(String, u32)> {
    let nodes = engine.nodes().await.expect("nodes");
    nodes[0].queues.iter().map(|(queue, slots)| (queue.to_string(), *slots)).collect()
}

on_every_store! {
    async fn more_slots_take_more_jobs_at_once(engine: Engine) {
        let gate = Gate::default();
        let node = gated(engine.node(), &gate).queue("default", 1).start().await.expect("a node");
        let jobs = engine.enqueue_many((0..5).map(work)).await.expect("enqueued");
        gate.reached(1).await;
        node.set_slots("default", 4).await.expect("set");
        gate.reached(4).await;
        assert_eq!(total(&engine, State::Running).await, 4);
        eventually("the store hears of it", async || served(&engine).await == [("default".to_owned(), 4)]).await;
        gate.open();
        for job in &jobs {
            soon("its end", engine.result(job)).await.expect("it succeeded");
        }
        node.shutdown().await;
    }

    async fn a_queue_is_added_to_a_running_node(engine: Engine) {
        let gate = Gate::default();
        gate.open();
        let node = gated(engine.node(), &gate).queue("default", 1).start().await.expect("a node");
        let job = engine.enqueue(work(1)).queue("mail").await.expect("enqueued");
        let why = engine.jobs().why(job.id).await.expect("a reason");
        assert!(matches!(why, Why::NoNode { .. }), "{why:?}");
        node.set_slots("mail", 20).await.expect("set");
        assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
        let expected = [("default".to_owned(), 1), ("mail".to_owned(), 20)];
        eventually("the store hears of it", async || served(&engine).await == expected).await;
        node.shutdown().await;
    }

    async fn a_removed_queue_drains(engine: Engine) {
        let gate = Gate::default();
        let node = gated(engine.node(), &gate).queue("default", 1).queue("mail", 2).start().await.expect("a node");
        let mail = engine.enqueue_many((0..6).map(work)).queue("mail").await.expect("enqueued");
        gate.reached(2).await;
        assert!(node.remove_queue("mail").expect("removed"));
        assert!(!node.remove_queue("mail").expect("it is gone"));
        eventually("the store hears of it", async || served(&engine).await == [("default".to_owned(), 1)]).await;
        gate.open();
        let ended = async || total(&engine, State::Succeeded).await == 2;
        eventually("those that ran end", ended).await;
        // Whatever is claimed after this job was not claimed from the removed queue.
        let last = engine.enqueue(work(9)).await.expect("enqueued");
        soon("its end", engine.result(&last)).await.expect("it succeeded");
        assert_eq!(total(&engine, State::Ready).await, 4);
        let waiting = mail.iter().map(|job| job.id);
        let mut reasons = Vec::new();
        for id in waiting {
            if state(&engine, id).await == State::Ready {
                reasons.push(engine.jobs().why(id).await.expect("a reason"));
            }
        }
        assert!(reasons.iter().all(|why| matches!(why, Why::NoNode { .. })), "{reasons:?}");
        node.set_slots("mail", 1).await.expect("it serves it again");
        for job in &mail {
            soon("its end", engine.result(job)).await.expect("it succeeded");
        }
        node.shutdown().await;
    }

    async fn slots_that_make_no_sense_change_nothing(engine: Engine) {
        let gate = Gate::default();
        let node = gated(engine.node(), &gate).queue("default", 3).start().await.expect("a node");
        for slots in [0, 100_001] {
            let error = node.set_slots("default", slots).await.expect_err("refused");
            assert!(matches!(error, Error::Invalid { what: "slots", .. }), "{error}");
        }
        let error = node.remove_queue("default").expect_err("it is the last");
        assert_eq!(
            error.to_string(),
            "invalid queue: `default` is the last that the node serves; shut the node down instead"
        );
        assert!(matches!(node.set_slots("no name!", 1).await, Err(Error::Invalid { .. })));
        assert_eq!(served(&engine).await, [("default".to_owned(), 3)]);
        node.shutdown().await;
        node.set_slots("default", 5).await.expect("a node that has stopped changes nothing");
    }
}

#[tokio::test]
async fn a_node_that_joins_again_serves_what_it_served_last() {
    let test = TestEngine::new();
    let gate = Gate::default();
    let node =
        test.node(|node| gated(node, &gate).queue("default", 1).lease(3 * SECOND)).await.expect("a node");
    node.set_slots("mail", 2).await.expect("set");
    node.remove_queue("default").expect("removed");
    test.advance(SECOND).await.expect("time passes");
    let before = node.number();
    test.store().retire(before).await.expect("it is taken off the list");
    test.advance(10 * SECOND).await.expect("time passes");
    assert_ne!(node.number(), before, "it has joined again");
    assert_eq!(served(&test).await, [("mail".to_owned(), 2)]);
}
