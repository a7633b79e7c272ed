//! What is wrong with a node's setup is told when it starts.

use std::time::Duration;

use mainspring::{Context, Engine, Error, NodeBuilder};

use crate::support::{Work, soon, work};

async fn quick(_ctx: Context, job: Work) -> mainspring::HandlerResult<u64> {
    Ok(job.n)
}

async fn refused(setup: impl FnOnce(NodeBuilder) -> NodeBuilder) -> String {
    let engine = Engine::open("memory:").await.expect("a store");
    let error = setup(engine.node()).start().await.expect_err("it must not start");
    assert!(engine.nodes().await.expect("nodes").is_empty(), "nothing has joined");
    error.to_string()
}

#[tokio::test]
async fn a_node_without_a_queue_says_what_to_set() {
    let error = refused(|node| node.handle(quick)).await;
    assert_eq!(
        error,
        "cannot start the node: no queue is declared; call .queue(\"default\", 10) or set MAINSPRING_QUEUES=default:10"
    );
}

#[tokio::test]
async fn a_node_without_a_handler_does_not_start() {
    let error = refused(|node| node.queue("default", 1)).await;
    assert_eq!(error, "cannot start the node: it has no handler; call .handle(…)");
}

#[tokio::test]
async fn state_that_is_needed_and_not_given_is_named() {
    struct Mailer;
    let error = refused(|node| node.handle(quick).needs::<Mailer>().queue("default", 1)).await;
    assert!(error.contains("Mailer") && error.contains(".state("), "{error}");
    let engine = Engine::open("memory:").await.expect("a store");
    let started =
        engine.node().handle(quick).needs::<Mailer>().state(Mailer).queue("default", 1).start().await;
    started.expect("it has what it needs").shutdown().await;
}

#[tokio::test]
async fn two_handlers_of_one_kind_are_refused() {
    let error = refused(|node| node.handle(quick).handle(quick).queue("default", 1)).await;
    assert_eq!(error, "cannot start the node: kind `work` has two handlers");
}

#[tokio::test]
async fn bad_names_slots_and_leases_are_refused() {
    let hostile = "'; drop table jobs";
    assert!(refused(|node| node.handle(quick).queue(hostile, 1)).await.contains("queue name"));
    assert!(refused(|node| node.handle(quick).queue("default", 0)).await.contains("0 slots"));
    assert!(refused(|node| node.handle(quick).queue("default", 100_001)).await.contains("100001 slots"));
    assert!(refused(|node| node.handle(quick).queue("default", 1).label("a\0b")).await.contains("label"));
    let short = Duration::from_millis(499);
    assert!(refused(|node| node.handle(quick).queue("default", 1).lease(short)).await.contains("lease"));
    let long = Duration::from_secs(3_601);
    assert!(refused(|node| node.handle(quick).queue("default", 1).lease(long)).await.contains("lease"));
    let name = "n".repeat(300);
    assert!(refused(|node| node.handle(quick).queue("default", 1).prefix(name)).await.contains("node name"));
}

#[tokio::test]
async fn the_first_problem_is_told() {
    let error = refused(|node| node.queue("a b", 1).handle(quick).handle(quick).queue("default", 0)).await;
    assert!(error.contains("queue name"), "{error}");
}

/// Lesson A3: ids of workers were reused.
#[tokio::test]
async fn nodes_have_names_and_numbers_of_their_own() {
    let engine = Engine::open("memory:").await.expect("a store");
    let mut names = std::collections::BTreeSet::new();
    let mut last = 0;
    for _ in 0..20 {
        let node = engine
            .node()
            .handle(quick)
            .queue("default", 1)
            .prefix("billing")
            .version("1.2.3")
            .start()
            .await
            .expect("a node");
        assert!(node.name().starts_with("billing-worker-1.2.3-"), "{}", node.name());
        assert!(names.insert(node.name().to_owned()));
        assert!(node.number().0 > last, "numbers only grow");
        last = node.number().0;
        node.shutdown().await;
    }
}

#[tokio::test]
async fn a_queue_named_twice_has_the_slots_named_last() {
    let engine = Engine::open("memory:").await.expect("a store");
    let node =
        engine.node().handle(quick).queue("default", 1).queue("default", 3).start().await.expect("a node");
    let nodes = engine.nodes().await.expect("nodes");
    assert_eq!(nodes[0].queues.len(), 1);
    assert_eq!(nodes[0].queues[0].1, 3);
    node.shutdown().await;
}

#[tokio::test]
async fn addresses_that_are_not_understood_are_refused_without_repeating_secrets() {
    for address in ["", "app.db", "mysql://root:secret@db/jobs", "sqlite:", "memory:x"] {
        let error = Engine::open(address).await.expect_err("not understood");
        let text = error.to_string();
        assert!(matches!(error, Error::Open { .. }), "{address}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn an_engine_without_a_node_only_enqueues() {
    let engine = Engine::open("memory:").await.expect("a store");
    let job = engine.enqueue(work(1)).await.expect("enqueued");
    assert!(engine.nodes().await.expect("nodes").is_empty());
    let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
    assert_eq!(soon("its end", engine.result(&job)).await.expect("it succeeded"), 1);
    node.shutdown().await;
}

#[tokio::test]
async fn a_closed_engine_refuses_and_its_node_still_stops() {
    let engine = Engine::open("memory:").await.expect("a store");
    let node = engine.node().handle(quick).queue("default", 1).start().await.expect("a node");
    engine.close().await;
    assert!(matches!(engine.enqueue(work(1)).await, Err(Error::Closed)));
    assert!(matches!(engine.jobs().counts().await, Err(Error::Closed)));
    soon("the node stops", node.shutdown()).await;
}
