//! Several servers: a standby that takes over, one that is missing, and a host that swallows everything.

use std::time::{Duration, Instant};

use mainspring::JobId;
use mainspring_core::id::NodeId;
use mainspring_core::store::{Abilities, Registration};
use mainspring_testkit::patience::{PATIENCE, Pace, insist, wait};
use mainspring_testkit::postgres::{Options, Proxy, Server, Stop};

use super::support::{
    Gate, LEASE, Step, assert_lives, enqueue, fails_soon, node, open, passed, shared_database, succeeded,
};

/// The store of these tests.
const DATABASE: &str = "shop";

/// A primary with the store on it, and a standby without which it acknowledges nothing.
async fn pair() -> (Server, Server) {
    let primary = Server::start(&Options::new().with_standby()).expect("a server");
    primary.sql("postgres", &format!("CREATE DATABASE {DATABASE}")).expect("a database");
    let engine = mainspring::Engine::options().migrate().open(&primary.url(DATABASE)).await.expect("a store");
    engine.close().await;
    let standby = primary.standby(&Options::new()).expect("a standby");
    primary.wait_for_standby().expect("synchronous");
    (primary, standby)
}

/// The address of a store on whichever of these servers takes writes.
fn address(servers: [&Server; 2], database: &str) -> String {
    let hosts = servers.map(|server| server.socket_dir().expect("a socket").to_string_lossy().into_owned());
    let ports = servers.map(|server| server.port().to_string());
    format!(
        "host={} port={} user=postgres dbname={database} target_session_attrs=read-write",
        hosts.join(","),
        ports.join(",")
    )
}

#[tokio::test]
async fn a_standby_that_takes_over_has_all_that_was_acknowledged() {
    let (primary, standby) = pair().await;
    let engine = open(&address([&primary, &standby], DATABASE)).await;
    let gate = Gate::closed();
    let node = node(&engine, &gate, LEASE).await;
    let number = node.number();
    let held = enqueue(&engine, 1).await;
    gate.reached(1).await;
    // More than the node has slots for.
    let mut jobs = Vec::new();
    for number in 2..20 {
        jobs.push(enqueue(&engine, number).await);
    }
    primary.crash().expect("a crash");
    let crashed = Instant::now();
    fails_soon(LEASE, async { engine.enqueue(Step { number: 20 }).await }).await;
    standby.promote().expect("promoted");
    // The dead one comes first in the address.
    jobs.push(enqueue(&engine, 20).await);
    println!("acknowledged by the new primary {:?} after the crash", crashed.elapsed());
    gate.let_pass();
    jobs.push(held);
    for job in jobs {
        let job = succeeded(&engine, job).await;
        assert_eq!((job.claim, job.crashes), (1, 0), "it ran once");
    }
    assert_eq!((node.number(), gate.came()), (number, 20));
    // And a process that starts now finds it as well.
    let fresh = open(&address([&primary, &standby], DATABASE)).await;
    assert_lives(&fresh, &node, 0).await;
    node.shutdown().await;
    engine.close().await;
    fresh.close().await;
}

#[tokio::test]
async fn a_missing_standby_is_an_outage_that_expires_nobody_and_loses_nothing() {
    const TURNS: u32 = 5;
    let (primary, standby) = pair().await;
    let (one, two) =
        (open(&primary.url(DATABASE)).await, open(&address([&primary, &standby], DATABASE)).await);
    let gate = Gate::closed();
    let nodes = [node(&one, &gate, LEASE).await, node(&two, &gate, LEASE).await];
    let numbers = nodes.each_ref().map(mainspring::Node::number);
    let mut jobs = Vec::new();
    for number in 0..8 {
        jobs.push(enqueue(&one, number).await);
    }
    gate.reached(8).await;
    // Whoever is about to judge others when the standby returns must not: so it returns at many moments of that.
    for turn in 0..TURNS {
        standby.stop(Stop::Immediate).expect("stopped");
        let stopped = Instant::now();
        // Written, and not acknowledged: nobody may rely on it.
        fails_soon(2 * LEASE, async { one.enqueue(Step { number: 8 }).await }).await;
        passed(stopped, LEASE + turn * LEASE / TURNS).await;
        standby.start_again().expect("started");
        let returned = Instant::now();
        enqueue(&one, 9).await;
        // Long enough for whoever comes back first to judge the other.
        passed(returned, 2 * LEASE).await;
        let now = nodes.each_ref().map(mainspring::Node::number);
        assert_eq!(now, numbers, "turn {turn}: nobody had to join anew");
    }
    standby.stop(Stop::Immediate).expect("stopped");
    let stopped = Instant::now();
    gate.let_pass();
    passed(stopped, LEASE).await;
    let running = wait("a look", async || one.jobs().counts().await.ok()).await;
    assert_eq!(running.total(mainspring::State::Succeeded), 0, "no outcome is visible before it is safe");
    standby.start_again().expect("started");
    for job in &jobs {
        let job = succeeded(&two, *job).await;
        assert_eq!((job.claim, job.crashes), (1, 0), "it ran once");
    }
    assert_eq!(nodes.each_ref().map(mainspring::Node::number), numbers, "nobody had to join anew");
    for (node, engine) in nodes.into_iter().zip([&one, &two]) {
        node.shutdown().await;
        engine.close().await;
    }
}

#[tokio::test]
async fn what_a_repeat_acknowledges_is_on_the_standby_too() {
    // More than a call's time, and that of the one that it may have to wait for.
    const LIMIT: Duration = Duration::from_secs(20);
    let (primary, standby) = pair().await;
    let engine = open(&address([&primary, &standby], DATABASE)).await;
    // A node with a short lease, so that calls are given up soon.
    let node = Registration {
        id: NodeId::mint(engine.seams().clock.now(), &*engine.seams().rng),
        name: "short".to_owned(),
        version: String::new(),
        pid: std::process::id(),
        queues: Vec::new(),
        abilities: Abilities::default(),
        lease: LEASE,
    };
    engine.store().register(node).await.expect("a node");
    let first = enqueue(&engine, 1).await;
    let id = JobId::mint(engine.seams().clock.now(), &*engine.seams().rng);
    standby.stop(Stop::Immediate).expect("stopped");
    fails_soon(LIMIT, async { engine.enqueue(Step { number: 2 }).id(id).await }).await;
    // The commit that waited is visible from now on, and the standby has not heard of it.
    primary.restart(Stop::Immediate).expect("restarted");
    let visible = wait("the restarted server answers", async || engine.jobs().get(id).await.ok()).await;
    assert_eq!(visible.summary.status.state, mainspring::State::Ready);
    let repeated = tokio::time::timeout(PATIENCE, async { engine.enqueue(Step { number: 2 }).id(id).await });
    if repeated.await.expect("an answer").is_ok() {
        // Acknowledged: so it must be there, whatever happens next.
        primary.crash().expect("a crash");
        standby.start_again().expect("started");
    } else {
        standby.start_again().expect("started");
        insist("the repeat", async || engine.enqueue(Step { number: 2 }).id(id).await).await;
        primary.crash().expect("a crash");
    }
    standby.promote().expect("promoted");
    for id in [first, id] {
        let job = insist("a job", async || engine.jobs().get(id).await).await;
        assert_eq!(job.summary.claim, 0);
    }
    engine.close().await;
}

#[tokio::test]
async fn a_first_host_that_swallows_everything_does_not_hide_the_second() {
    let database = shared_database().await;
    let (hole, way) = (
        Proxy::start(database.server()).expect("a proxy"),
        Proxy::start(database.server()).expect("a proxy"),
    );
    let address = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname={} sslmode=disable",
        hole.port(),
        way.port(),
        database.name()
    );
    let engine = open(&address).await;
    let gate = Gate::open();
    let node = node(&engine, &gate, LEASE).await;
    let first = enqueue(&engine, 1).await;
    succeeded(&engine, first).await;
    // The machine behind the first address is gone, and the network has not noticed.
    hole.swallow(true);
    let pace = Pace::start();
    let second = enqueue(&engine, 2).await;
    succeeded(&engine, second).await;
    println!("went on by the second host after {:?}", pace.elapsed());
    assert!(pace.elapsed() < 4 * LEASE, "{:?}", pace.elapsed());
    wait("all of the node goes on", async || (way.counts().connections >= 4).then_some(())).await;
    assert_lives(&engine, &node, 0).await;
    // One that is started now need not wait for the first host for long either.
    let pace = Pace::start();
    let fresh = open(&address).await;
    assert!(pace.elapsed() < Duration::from_secs(10), "{:?}", pace.elapsed());
    fresh.close().await;
    node.shutdown().await;
    engine.close().await;
}
