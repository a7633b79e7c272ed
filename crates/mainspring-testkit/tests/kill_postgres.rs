//! Real processes on one Postgres, killed and stopped while they work, and the database restarted under them.
//!
//! Three workers behind a proxy, a producer, a killer, and a network that loses connections around commits. Nothing that
//! was acknowledged may be lost, every job gets exactly one outcome, no write of a former owner is accepted, no claim whose
//! answer was lost is left behind, and what a dead process held runs elsewhere within its lease and a second.

#![expect(clippy::disallowed_methods, reason = "real processes live on the real clock and the real executor")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainspring::{Backoff, Engine, Filter, JobId, Reason, State};
use mainspring_core::store::NodeState;
use mainspring_testkit::postgres::{Cut, Database, Options, Proxy, Server, Stop};
use mainspring_testkit::rig::{Fallen, Rig, Worker, insist, wait};
use mainspring_testkit::rng::SeededRng;
use mainspring_testkit::victim::Work;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, LocalSet};

const LEASE: Duration = Duration::from_secs(2);
/// What the promise adds to the lease.
const SECOND: Duration = Duration::from_secs(1);
const WORKERS: usize = 3;
const JOBS: u64 = 20_000;
/// One worker falls in every even round, two in every odd one.
const ROUNDS: usize = 20;
const KILLS: usize = 30;
/// In these rounds one more worker is stopped for longer than its lease.
const STOPS: [usize; 3] = [3, 9, 15];
/// In these rounds the database is restarted once workers have fallen.
const RESTARTS: [(usize, Stop); 3] = [(5, Stop::Fast), (11, Stop::Immediate), (16, Stop::Fast)];

/// Enqueues jobs for as long as it is wanted, a few at a time and never far ahead of the workers, so that there always is
/// something to hold; returns what was acknowledged.
async fn produce(engine: Engine, wanted: Arc<AtomicBool>) -> Vec<JobId> {
    const AT_ONCE: u64 = 100;
    const AHEAD: u64 = 400;
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while wanted.load(Ordering::Relaxed) || number < JOBS {
        let mut enqueues = JoinSet::new();
        for number in number..number + AT_ONCE {
            enqueues.spawn_local(enqueue(engine.clone(), number));
        }
        acknowledged.extend(enqueues.join_all().await);
        number += AT_ONCE;
        wait("workers keep up", async || {
            let counts = insist("counts", async || engine.jobs().counts().await).await;
            (counts.total(State::Ready) < AHEAD).then_some(())
        })
        .await;
    }
    acknowledged
}

/// Enqueues a job, under the same id until it is acknowledged.
async fn enqueue(engine: Engine, number: u64) -> JobId {
    let id = JobId::mint(engine.seams().clock.now(), &*engine.seams().rng);
    let fails = u16::from(number.is_multiple_of(50));
    let stored = insist("a job is acknowledged", async || {
        let job = Work { number, millis: number % 80, fails };
        engine.enqueue(job).id(id).backoff(Backoff::Fixed(Duration::from_millis(50))).await
    })
    .await;
    assert_eq!(stored.id, id);
    id
}

/// The rig, its network and its database.
struct Cluster {
    rig: Rig,
    proxy: Proxy,
    database: Database,
    /// When somebody last met a store that did not answer.
    disturbed: Instant,
    cuts: u64,
}

impl Cluster {
    async fn new() -> Self {
        let server = Server::start(&Options::new()).expect("a server");
        let database = server.database().expect("a database");
        let proxy = Proxy::start(&server).expect("a proxy");
        let engine = Engine::options().migrate().open(&database.url()).await.expect("a store");
        let address = proxy.url(database.name());
        let mut rig = Rig::new(env!("CARGO_BIN_EXE_mainspring-victim"), address, LEASE, engine);
        for _ in 0..WORKERS {
            rig.start();
        }
        Cluster { rig, proxy, database, disturbed: Instant::now(), cuts: 0 }
    }

    /// Loses the connection of the next commit, and then that of some other call.
    async fn cut(&mut self, round: usize) {
        let side = if round.is_multiple_of(2) { Cut::Before } else { Cut::After };
        self.proxy.on_commit(side, 1);
        self.another_cut().await;
        self.proxy.on_batch(side, 1);
        self.another_cut().await;
        self.disturbed = Instant::now();
    }

    async fn another_cut(&mut self) {
        self.cuts += 1;
        wait("a connection was cut", async || (self.proxy.counts().cuts == self.cuts).then_some(())).await;
    }

    /// Kills one worker or two.
    async fn kill(&mut self, round: usize, rng: &SeededRng) -> Vec<Fallen> {
        let mut killed = Vec::new();
        for _ in 0..=round % 2 {
            killed.push(self.rig.kill_one(rng).await);
        }
        killed
    }

    /// Stops a worker and takes it out of the killer's sight.
    async fn stop(&mut self) -> (Worker, Fallen) {
        let fallen = wait("a worker is stopped", async || self.rig.freeze(0).await).await;
        (self.rig.workers.remove(0), fallen)
    }

    /// Restarts the database, without holding up anybody else here.
    async fn restart(&mut self, how: Stop) -> Duration {
        let (server, began) = (self.database.server().clone(), Instant::now());
        tokio::task::spawn_blocking(move || server.restart(how)).await.expect("a thread").expect("a restart");
        self.disturbed = Instant::now();
        began.elapsed()
    }

    /// How long fallen workers' jobs took to come back, counted from when that could be promised: since it fell, the oldest
    /// survivor was started, and the store was last away.
    async fn recoveries(&self, fallen: &[Fallen]) -> Vec<Duration> {
        let survivor = self.rig.workers.iter().map(|worker| worker.started).min().expect("a survivor");
        let mut took = Vec::new();
        for fallen in fallen {
            self.rig.rescued(fallen.node).await;
            took.push(fallen.at.max(survivor).max(self.disturbed).elapsed());
        }
        took
    }

    fn value(&self, sql: &str) -> String {
        self.database.sql(sql).expect("an answer")[0][0].clone().expect("a value")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_stops_restarts_and_cuts_lose_and_double_nothing() {
    let mut cluster = Cluster::new().await;
    let wanted = Arc::new(AtomicBool::new(true));
    let producer = tokio::task::spawn_blocking({
        let (engine, wanted) = (cluster.rig.engine.clone(), Arc::clone(&wanted));
        move || Handle::current().block_on(LocalSet::new().run_until(produce(engine, wanted)))
    });
    let (mut recoveries, mut outages, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    let (rng, mut kills) = (SeededRng::new(30), 0);
    for round in 0..ROUNDS {
        cluster.rig.busy(2).await;
        cluster.cut(round).await;
        let stop = if STOPS.contains(&round) { Some(cluster.stop().await) } else { None };
        let mut fallen = cluster.kill(round, &rng).await;
        kills += fallen.len();
        if let Some((_, how)) = RESTARTS.iter().find(|(when, _)| *when == round) {
            outages.push(cluster.restart(*how).await);
        }
        for _ in &fallen {
            cluster.rig.start();
        }
        fallen.extend(stop.iter().map(|(_, fallen)| fallen.clone()));
        recoveries.extend(cluster.recoveries(&fallen).await);
        if let Some((worker, fallen)) = stop {
            worker.wake();
            wait("the woken worker has joined anew", async || cluster.rig.node(fallen.pid).await).await;
            cluster.rig.workers.push(worker);
            stopped.push(fallen);
        }
    }
    wanted.store(false, Ordering::Relaxed);
    let acknowledged = producer.await.expect("a producer");
    cluster.rig.all_succeeded(acknowledged.len()).await;
    assert_eq!((kills, cluster.cuts), (KILLS, 2 * ROUNDS as u64));

    let late = cluster.rig.check(&acknowledged, false).await;
    let late = late.iter().filter(|end| stopped.iter().any(|fallen| fallen.pid == end.pid)).count();
    assert!(late > 0, "no worker that woke up had anything to write");
    let quarantined = Filter { reason: Some(Reason::Quarantine), ..Filter::default() };
    assert!(cluster.rig.engine.jobs().list(quarantined, None, 10).await.expect("jobs").jobs.is_empty());
    // Nothing is leased by a node that does not know of it: they all live, and have nothing to do.
    assert_eq!(cluster.value("SELECT count(*) FROM mainspring.lease"), "0");
    let nodes = cluster.rig.nodes().await;
    let count = |state| nodes.iter().filter(|node| node.state == state).count();
    assert_eq!(count(NodeState::Live), WORKERS);
    let innocent = count(NodeState::Expired) - kills - stopped.len();
    cluster.rig.dismiss().await;

    recoveries.sort();
    let (median, slowest) = (recoveries[recoveries.len() / 2], recoveries[recoveries.len() - 1]);
    println!(
        "{} jobs; {kills} kills, {} stops: recovery median {median:?}, slowest {slowest:?}; {late} late outcomes refused; \
        {innocent} nodes expired alive; {} connections cut; outages {outages:?}",
        acknowledged.len(),
        stopped.len(),
        cluster.cuts,
    );
    // The promise is a lease and a second; a machine that is busy with other tests may take longer to schedule anybody.
    assert!(median < LEASE + SECOND, "{recoveries:?}");
    assert!(slowest < LEASE + 4 * SECOND, "{recoveries:?}");
}
