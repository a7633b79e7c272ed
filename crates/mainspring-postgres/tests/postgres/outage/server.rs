//! A server that goes away, and comes back.

use std::time::{Duration, Instant};

use mainspring::{Engine, Error};
use mainspring_core::error::OpenProblem;
use mainspring_testkit::patience::{insist, wait};
use mainspring_testkit::postgres::{Options, Stop};

use super::support::{
    Gate, LEASE, Step, assert_lives, database, enqueue, fails_soon, node, number, open, passed, session,
    shared_database, succeeded, summary,
};

#[tokio::test]
async fn a_database_that_is_down_cannot_be_opened_and_says_so() {
    let database = database(&Options::new()).await;
    database.server().stop(Stop::Fast).expect("stopped");
    let error = Engine::open(&database.url()).await.expect_err("nobody is there");
    assert!(matches!(&error, Error::Open { problem: OpenProblem::Unreachable, .. }), "{error:?}");
    database.server().start_again().expect("started");
    open(&database.url()).await.close().await;
}

#[tokio::test]
async fn an_outcome_is_kept_through_an_outage_and_delivered_once() {
    let database = database(&Options::new()).await;
    let engine = open(&database.url()).await;
    let gate = Gate::closed();
    let node = node(&engine, &gate, LEASE).await;
    let first = enqueue(&engine, 1).await;
    gate.reached(1).await;
    database.server().stop(Stop::Fast).expect("stopped");
    fails_soon(2 * LEASE, async { engine.enqueue(Step { number: 2 }).await }).await;
    gate.let_pass();
    // The handler ends while nobody can be told; its outcome stays with the node.
    passed(Instant::now(), LEASE).await;
    assert_eq!((gate.came(), node.claims()), (1, 1));
    database.server().start_again().expect("started");
    let job = succeeded(&engine, first).await;
    assert_eq!((job.claim, job.crashes, gate.came()), (1, 0, 1), "it ran once");
    let second = enqueue(&engine, 2).await;
    succeeded(&engine, second).await;
    assert_lives(&engine, &node, 0).await;
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn an_outage_longer_than_the_lease_expires_nobody() {
    // Until pauses between attempts to connect are as long as they get.
    const OUTAGE: Duration = Duration::from_secs(5);
    let database = database(&Options::new()).await;
    let (gate, mut nodes, mut jobs) = (Gate::closed(), Vec::new(), Vec::new());
    for number in 0..2 {
        let engine = open(&database.url()).await;
        let node = node(&engine, &gate, LEASE).await;
        nodes.push((engine, node));
        // The first node's slots are free for all of them: fill them before the second joins.
        let jobs_here = if number == 0 { 4 } else { 1 };
        for _ in 0..jobs_here {
            jobs.push(enqueue(&nodes[0].0, number).await);
        }
        gate.reached(jobs.len()).await;
    }
    let numbers: Vec<_> = nodes.iter().map(|(_, node)| node.number()).collect();
    database.server().stop(Stop::Immediate).expect("stopped");
    passed(Instant::now(), OUTAGE).await;
    database.server().start_again().expect("started");
    let returned = insist("the store's time", async || nodes[0].0.nodes().await).await;
    let before = returned.iter().map(|node| node.renewed_at).max().expect("nodes");
    // Long enough for whoever came back first to judge the other.
    passed(Instant::now(), 2 * LEASE).await;
    for ((engine, node), no) in nodes.iter().zip(numbers) {
        assert_eq!(node.number(), no, "it did not have to join anew");
        let renewed = insist("nodes", async || engine.nodes().await).await;
        assert!(renewed.iter().any(|node| node.no == no && node.renewed_at > before), "{renewed:?}");
    }
    assert_lives(&nodes[0].0, &nodes[0].1, 4).await;
    assert_lives(&nodes[0].0, &nodes[1].1, 1).await;
    gate.let_pass();
    for job in jobs {
        let job = succeeded(&nodes[0].0, job).await;
        assert_eq!((job.claim, job.crashes), (1, 0));
    }
    assert_eq!(gate.came(), 5);
    for (engine, node) in nodes {
        node.shutdown().await;
        engine.close().await;
    }
}

#[tokio::test]
async fn a_lock_that_others_hold_fails_calls_in_time_and_harms_nobody() {
    let database = shared_database().await;
    let engine = open(&database.url()).await;
    let gate = Gate::open();
    let node = node(&engine, &gate, LEASE).await;
    let before = enqueue(&engine, 1).await;
    succeeded(&engine, before).await;
    let mut session = session(&database).await;
    let lock = session.transaction().await.expect("a transaction");
    lock.batch_execute("LOCK TABLE mainspring.lease IN ACCESS EXCLUSIVE MODE").await.expect("a lock");
    let locked = Instant::now();
    // Below the lease, and what the network may add.
    fails_soon(LEASE, engine.nodes()).await;
    let after = enqueue(&engine, 2).await;
    passed(locked, 2 * LEASE).await;
    assert_eq!(gate.came(), 1, "nothing can be claimed");
    lock.rollback().await.expect("unlocked");
    succeeded(&engine, after).await;
    assert_lives(&engine, &node, 0).await;
    assert_eq!((gate.came(), number(&database, "SELECT count(*) FROM mainspring.lease")), (2, 0));
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn a_server_without_room_for_clients_is_waited_for() {
    let database = database(&Options::new().setting("max_connections", "14")).await;
    let engine = open(&database.url()).await;
    // The store needs a connection for each kind of call, and has made few of them so far.
    let mut sessions = Vec::new();
    wait("the server is full", async || {
        use mainspring::tokio_postgres::{NoTls, connect};
        match connect(&database.url(), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                sessions.push(client);
                None
            }
            Err(_) => Some(()),
        }
    })
    .await;
    fails_soon(LEASE, async { engine.enqueue(Step { number: 1 }).await }).await;
    let error = Engine::open(&database.url()).await.expect_err("there is no room");
    assert!(matches!(&error, Error::Open { problem: OpenProblem::Unreachable, .. }), "{error:?}");
    drop(sessions);
    let gate = Gate::open();
    let node = node(&engine, &gate, LEASE).await;
    let job = enqueue(&engine, 2).await;
    succeeded(&engine, job).await;
    assert_eq!(summary(&engine, job).await.claim, 1);
    node.shutdown().await;
    engine.close().await;
}
