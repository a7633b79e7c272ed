//! A network that falls silent, and a session that is ended.

use std::time::{Duration, Instant};

use mainspring::{Engine, Error, State};
use mainspring_core::error::OpenProblem;
use mainspring_testkit::patience::{PATIENCE, Pace, wait};
use mainspring_testkit::postgres::{Cut, Proxy};

use super::support::{
    Gate, LEASE, assert_lives, backends, enqueue, fails_soon, node, open, passed, session, shared_database,
    succeeded, summary,
};

#[tokio::test]
async fn a_silent_network_is_given_up_in_time_and_used_again() {
    let database = shared_database().await;
    let proxy = Proxy::start(database.server()).expect("a proxy");
    let (far, near) = (open(&proxy.url(database.name())).await, open(&database.url()).await);
    let gate = Gate::open();
    let node = node(&far, &gate, LEASE).await;
    let before = enqueue(&far, 1).await;
    succeeded(&far, before).await;
    proxy.hold();
    let silent = Instant::now();
    fails_soon(LEASE, far.nodes()).await;
    // Once the connection was given up, the next call is about another one.
    fails_soon(LEASE, far.nodes()).await;
    let after = enqueue(&near, 2).await;
    passed(silent, 3 * LEASE).await;
    assert_eq!(gate.came(), 1, "nothing reaches the node");
    proxy.resume();
    let pace = Pace::start();
    succeeded(&near, after).await;
    let took = pace.elapsed();
    println!("work went on {took:?} after the network");
    assert!(took < 3 * LEASE, "{took:?}");
    assert_lives(&near, &node, 0).await;
    assert_eq!(gate.came(), 2);
    node.shutdown().await;
    far.close().await;
    near.close().await;
}

/// Sessions that keep the advisory lock of a queue while they have nothing to do: those that wait for its jobs. Every store
/// that listens has the lock of number 0.
const LISTENS: &str = "state = 'idle' AND EXISTS (SELECT 1 FROM pg_locks l
    WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.objid <> 0)";

#[tokio::test]
async fn an_ended_listening_session_is_replaced_and_wakes_promptly() {
    const LATE: Duration = Duration::from_millis(500);
    const TURNS: usize = 5;
    let database = shared_database().await;
    let (worker, producer) = (open(&database.url()).await, open(&database.url()).await);
    let gate = Gate::open();
    let node = node(&worker, &gate, LEASE).await;
    let listens = async || {
        wait("somebody listens", async || match backends(&database, LISTENS).as_slice() {
            [pid] => Some(*pid),
            _ => None,
        })
        .await
    };
    let first = listens().await;
    database.sql(&format!("SELECT pg_terminate_backend({first}, 5000)")).expect("ended");
    let ended = Instant::now();
    let second = wait("another listens", async || Some(listens().await).filter(|pid| *pid != first)).await;
    println!("session {first} was replaced by {second} within {:?}", ended.elapsed());
    let mut starts = Vec::new();
    for turn in 0..TURNS {
        let pace = Pace::start();
        enqueue(&producer, turn as u64).await;
        gate.reached(turn + 1).await;
        starts.push(pace.elapsed());
    }
    starts.sort();
    println!("enqueue to start: {starts:?}");
    assert!(starts[TURNS / 2] < LATE, "{starts:?}");
    node.shutdown().await;
    worker.close().await;
    producer.close().await;
}

#[tokio::test]
async fn a_connection_that_is_lost_while_a_store_is_opened_is_told_as_such_and_in_time() {
    // That of a call, and what the network may add.
    const LIMIT: Duration = Duration::from_secs(7);
    let database = shared_database().await;
    let proxy = Proxy::start(database.server()).expect("a proxy");
    open(&proxy.url(database.name())).await.close().await;
    let batches = u32::try_from(proxy.counts().batches).expect("a few");
    assert!(batches > 1);
    // All at once: who is never answered has to wait.
    let mut attempts = tokio::task::JoinSet::new();
    for (nth, cut) in
        (1..=batches).flat_map(|nth| [Cut::Before, Cut::Inside, Cut::After, Cut::Lost].map(|cut| (nth, cut)))
    {
        let proxy = Proxy::start(database.server()).expect("a proxy");
        let address = proxy.url(database.name());
        attempts.spawn(async move {
            proxy.on_batch(cut, nth);
            let pace = Pace::start();
            let opened = tokio::time::timeout(PATIENCE, Engine::open(&address)).await;
            let error = opened.expect("an answer").expect_err("nobody answers");
            assert!(
                pace.elapsed() < LIMIT,
                "{cut:?} {nth}: an answer in time, not after {:?}",
                pace.elapsed()
            );
            let unreachable = matches!(&error, Error::Open { problem: OpenProblem::Unreachable, .. });
            assert!(unreachable && error.is_retryable(), "{cut:?} {nth}: {error:?}");
        });
    }
    attempts.join_all().await;
}

/// What somebody had locked when it was its turn nobody tells of: only a look at all that is ready finds it. Renewals that
/// come more often than the pulse take that along, but for this look if it takes long, as it does on such a network.
#[tokio::test]
async fn a_job_that_was_locked_is_found_however_often_leases_are_renewed() {
    let database = shared_database().await;
    let proxy = Proxy::start(database.server()).expect("a proxy");
    proxy.slow(Duration::from_millis(15));
    let engine = open(&proxy.url(database.name())).await;
    let locked = enqueue(&engine, 1).await;
    let holder = session(&database).await;
    holder.batch_execute("BEGIN; SELECT no FROM mainspring.ready FOR UPDATE").await.expect("a lock");
    let node = node(&engine, &Gate::open(), Duration::from_secs(1)).await;
    let next = enqueue(&engine, 2).await;
    succeeded(&engine, next).await;
    passed(Instant::now(), LEASE).await;
    assert_eq!(summary(&engine, locked).await.status.state, State::Ready);
    holder.batch_execute("COMMIT").await.expect("no lock any more");
    succeeded(&engine, locked).await;
    node.shutdown().await;
    engine.close().await;
}

#[tokio::test]
async fn an_ear_whose_first_words_are_lost_is_replaced() {
    const TURNS: usize = 5;
    let database = shared_database().await;
    let proxy = Proxy::start(database.server()).expect("a proxy");
    let engine = open(&proxy.url(database.name())).await;
    let gate = Gate::open();
    let node = node(&engine, &gate, LEASE).await;
    let listens = || backends(&database, LISTENS);
    for _ in 0..TURNS {
        wait("somebody listens", async || (!listens().is_empty()).then_some(())).await;
        assert_eq!(proxy.cut_listeners(), 1);
        wait("nobody listens", async || listens().is_empty().then_some(())).await;
        // Most often what the ear says first, on a new connection.
        proxy.on_batch(Cut::Lost, 1);
    }
    let began = Instant::now();
    wait("somebody listens", async || (!listens().is_empty()).then_some(())).await;
    println!("somebody listens again after {:?}", began.elapsed());
    assert_lives(&engine, &node, 0).await;
    node.shutdown().await;
    engine.close().await;
}
