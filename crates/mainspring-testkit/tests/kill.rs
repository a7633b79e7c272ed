//! Real processes on one SQLite file, killed and stopped while they work.
//!
//! Three workers, a producer and a killer. Nothing that was acknowledged may be lost, every job gets exactly one outcome,
//! no write of a former owner is accepted, and what a dead process held runs elsewhere within a second.

#![expect(clippy::disallowed_methods, reason = "real processes live on the real clock and the real executor")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainspring::{Backoff, Engine, Filter, JobId, Reason, State, Status, Summary};
use mainspring_core::name::QueueName;
use mainspring_core::seam::Rng;
use mainspring_core::store::{Node, NodeState, QueueChange};
use mainspring_testkit::ledger::{self, Effect};
use mainspring_testkit::rng::SeededRng;
use mainspring_testkit::victim::{Poison, Work};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_mins(1);

/// A store, a ledger and the workers on them.
struct Rig {
    dir: TempDir,
    engine: Engine,
    lease: &'static str,
    workers: Vec<Child>,
    killed: usize,
    /// Whether workers were stopped and woke up again, instead of being killed.
    stopped: bool,
}

impl Rig {
    async fn new(lease: &'static str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::open(&address(&dir)).await.expect("a store");
        Rig { dir, engine, lease, workers: Vec::new(), killed: 0, stopped: false }
    }

    fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    fn start(&mut self) {
        let worker = Command::new(env!("CARGO_BIN_EXE_mainspring-victim"))
            .arg(address(&self.dir))
            .arg(self.ledger())
            .arg(self.lease)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a worker");
        self.workers.push(worker);
    }

    /// Starts workers in place of those that died by themselves.
    fn replace_dead(&mut self) {
        let before = self.workers.len();
        self.workers.retain_mut(|worker| worker.try_wait().expect("a status").is_none());
        for _ in self.workers.len()..before {
            self.start();
        }
    }

    async fn nodes(&self) -> Vec<Node> {
        self.engine.nodes().await.expect("nodes")
    }

    /// The live node of a process.
    async fn node(&self, pid: u32) -> Option<Node> {
        self.nodes().await.into_iter().find(|node| node.pid == pid && node.state == NodeState::Live)
    }

    /// Waits until a number of live nodes hold claims.
    async fn busy(&self, count: usize) {
        wait("workers are busy", async || {
            let holding = |node: &&Node| node.state == NodeState::Live && node.claims > 0;
            (self.nodes().await.iter().filter(holding).count() >= count).then_some(())
        })
        .await;
    }

    /// All jobs that are claimed.
    async fn running(&self) -> Vec<Summary> {
        let filter = Filter { states: vec![State::Running], ..Filter::default() };
        let (mut running, mut after) = (Vec::new(), None);
        loop {
            let page = self.engine.jobs().list(filter.clone(), after, 1_000).await.expect("jobs");
            running.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                return running;
            }
        }
    }

    /// Stops a worker at a moment at which it runs no suspect: nothing innocent is to be hit three times.
    async fn freeze(&self, pid: Pid) -> bool {
        kill_process(pid, Signal::STOP).expect("a signal");
        // A thread that is inside of a system call finishes it first, and it may be the one that takes the lock.
        wait("all threads have stopped", async || all_stopped(pid).then_some(())).await;
        let running = self.running().await;
        let node = self.node(pid.as_raw_nonzero().get().unsigned_abs()).await.map(|node| node.no);
        let safe = !running.iter().any(|job| job.node == node && job.crashes >= 2);
        if !safe {
            kill_process(pid, Signal::CONT).expect("a signal");
        }
        safe
    }

    /// Stops a worker as above, and outside of a transaction: a stopped process keeps the database's lock.
    async fn stop(&self, pid: Pid) -> bool {
        if !self.freeze(pid).await {
            return false;
        }
        let probe = QueueName::new("probe").expect("a name");
        let write = self
            .engine
            .store()
            .configure(probe, QueueChange { paused: Some(true), ..QueueChange::default() });
        let writable =
            tokio::time::timeout(Duration::from_millis(300), write).await.is_ok_and(|done| done.is_ok());
        if !writable {
            kill_process(pid, Signal::CONT).expect("a signal");
        }
        writable
    }

    /// Kills a worker that holds claims, wherever it is, in the middle of a transaction too, and starts another; tells
    /// how long the claims took to come back.
    async fn kill_one(&mut self, rng: &SeededRng) -> Duration {
        loop {
            self.busy(1).await;
            let random = usize::try_from(rng.next_u64() >> 33).expect("31 bits");
            let index = random % self.workers.len();
            let pid = pid(&self.workers[index]);
            let number = pid.as_raw_nonzero().get().unsigned_abs();
            let holds = self.node(number).await.is_some_and(|node| node.claims > 0);
            if !holds || !self.freeze(pid).await {
                tokio::task::yield_now().await;
                continue;
            }
            let node = self.node(number).await;
            kill_process(pid, Signal::KILL).expect("a signal");
            let died = Instant::now();
            self.workers.remove(index).wait().expect("a dead worker");
            self.killed += 1;
            let node = node.expect("a live node").no;
            wait("the dead node is expired and holds nothing", async || {
                let nodes = self.nodes().await;
                let gone = nodes.iter().find(|dead| dead.no == node)?;
                (gone.state == NodeState::Expired && gone.claims == 0).then_some(())
            })
            .await;
            let took = died.elapsed();
            self.start();
            return took;
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // It may be gone already.
            let _gone = kill_process(pid(worker), Signal::CONT);
            drop(worker.kill());
            drop(worker.wait());
        }
    }
}

fn address(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("store.db").display())
}

fn pid(worker: &Child) -> Pid {
    Pid::from_child(worker)
}

/// Whether every thread of a process is stopped (or about to end).
fn all_stopped(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        // The name before the state is in parentheses and may hold anything.
        stat.rsplit_once(") ")?.1.chars().next()
    };
    std::fs::read_dir(tasks)
        .expect("a process")
        .flatten()
        .filter_map(state)
        .all(|state| "TtZX".contains(state))
}

/// Waits for a condition, with a deadline.
async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::task::spawn_blocking(|| std::thread::park_timeout(Duration::from_millis(5)))
            .await
            .expect("a pause");
    }
}

/// Enqueues jobs, some by themselves and the rest in bulk; returns what was acknowledged.
async fn produce(engine: Engine, count: u64) -> Vec<JobId> {
    const SINGLES: u64 = 20;
    let work =
        |number: u64| Work { number, millis: number % 20, fails: u16::from(number.is_multiple_of(50)) };
    let backoff = Backoff::Fixed(Duration::from_millis(50));
    let mut acknowledged = Vec::new();
    for number in 0..SINGLES.min(count) {
        acknowledged.push(engine.enqueue(work(number)).backoff(backoff).await.expect("acknowledged").id);
    }
    let stored =
        engine.enqueue_many((SINGLES..count).map(work)).backoff(backoff).await.expect("acknowledged");
    acknowledged.extend(stored.iter().map(|job| job.id));
    acknowledged
}

async fn all_end(engine: &Engine, count: usize) {
    let began = Instant::now();
    wait("all jobs have succeeded", async || {
        let counts = engine.jobs().counts().await.expect("counts");
        assert!(began.elapsed() < PATIENCE, "not all jobs ended: {counts:?}");
        (counts.total(State::Succeeded) == count as u64).then_some(())
    })
    .await;
}

/// Every acknowledged job has one outcome, of a claim whose effects are all there, and its claims began in order unless
/// workers were stopped.
async fn check(rig: &Rig, acknowledged: &[JobId]) {
    let effects = ledger::read(&rig.ledger()).expect("a ledger");
    let mut of: BTreeMap<JobId, Vec<Effect>> = BTreeMap::new();
    for effect in effects {
        of.entry(effect.job).or_default().push(effect);
    }
    for id in acknowledged {
        let job = rig.engine.jobs().get(*id).await.expect("an acknowledged job");
        assert_eq!(job.summary.status, Status::plain(State::Succeeded), "{id}");
        let effects = &of[id];
        let done = effects.iter().filter(|effect| effect.ended && effect.claim == job.summary.claim).count();
        assert_eq!(done, 1, "{id}: the accepted claim {} ended once: {effects:?}", job.summary.claim);
        let begins: Vec<_> =
            effects.iter().filter(|effect| !effect.ended).map(|effect| effect.claim).collect();
        // A worker that was stopped may begin what it had claimed before it learns that it is not its own any more.
        let in_order = rig.stopped || begins.is_sorted_by(|a, b| a < b);
        assert!(in_order, "{id}: claims began out of order: {effects:?}");
        assert!(effects.iter().all(|effect| effect.claim <= job.summary.claim), "{id}: {effects:?}");
    }
    assert_eq!(of.len(), acknowledged.len(), "only acknowledged jobs ran");
    let findings = rig.engine.store().check().await.expect("a check");
    assert!(findings.is_empty(), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_kills_lose_and_double_nothing() {
    const KILLS: usize = 30;
    const JOBS_PER_KILL: u64 = 670;
    // The lease is long: a recovery that is quicker than it comes from the proof of death.
    let mut rig = Rig::new("15s").await;
    for _ in 0..3 {
        rig.start();
    }
    let (mut recoveries, mut acknowledged) = (Vec::new(), Vec::new());
    let rng = SeededRng::new(30);
    for _ in 0..KILLS {
        let producer = tokio::spawn(produce(rig.engine.clone(), JOBS_PER_KILL));
        recoveries.push(rig.kill_one(&rng).await);
        acknowledged.extend(producer.await.expect("a producer"));
    }
    assert!(acknowledged.len() > 20_000);
    all_end(&rig.engine, acknowledged.len()).await;
    check(&rig, &acknowledged).await;
    let quarantined = Filter { reason: Some(Reason::Quarantine), ..Filter::default() };
    assert!(rig.engine.jobs().list(quarantined, None, 10).await.expect("jobs").jobs.is_empty());
    recoveries.sort();
    println!(
        "{} kills; recovery: median {:?}, slowest {:?}",
        rig.killed,
        recoveries[KILLS / 2],
        recoveries[KILLS - 1]
    );
    // The promise is a second; a machine that is busy with other tests may take longer to schedule anybody.
    assert!(recoveries[KILLS / 2] < Duration::from_secs(1), "{recoveries:?}");
    assert!(recoveries[KILLS - 1] < Duration::from_secs(5), "{recoveries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_worker_is_replaced_and_its_late_writes_are_refused() {
    const STOPS: usize = 3;
    let lease = Duration::from_secs(2);
    let mut rig = Rig::new("2s").await;
    rig.stopped = true;
    for _ in 0..3 {
        rig.start();
    }
    let producer = tokio::spawn(produce(rig.engine.clone(), 3_000));
    let mut recoveries = Vec::new();
    for turn in 0..STOPS {
        let worker = pid(&rig.workers[turn % 3]);
        let number = worker.as_raw_nonzero().get().unsigned_abs();
        let node = loop {
            // Fresh work, so that there is always something to hold.
            let job = Work { number: 0, millis: 20, fails: 0 };
            rig.engine.enqueue(job).tag("filler").await.expect("acknowledged");
            let holds = rig.node(number).await.filter(|node| node.claims > 0);
            match holds {
                Some(_) if rig.stop(worker).await => match rig.node(number).await {
                    Some(node) if node.claims > 0 => break node.no,
                    _ => kill_process(worker, Signal::CONT).expect("a signal"),
                },
                _ => tokio::task::yield_now().await,
            }
        };
        let stopped = Instant::now();
        wait("the stopped node is expired and holds nothing", async || {
            let nodes = rig.nodes().await;
            let gone = nodes.iter().find(|stopped| stopped.no == node)?;
            (gone.state == NodeState::Expired && gone.claims == 0).then_some(())
        })
        .await;
        recoveries.push(stopped.elapsed());
        kill_process(worker, Signal::CONT).expect("a signal");
        wait("the woken worker has joined anew", async || rig.node(number).await).await;
    }
    let mut acknowledged = producer.await.expect("a producer");
    let filler = Filter { tag: Some("filler".parse().expect("a tag")), ..Filter::default() };
    let fillers = rig.engine.jobs().list(filler, None, 1_000).await.expect("jobs").jobs;
    acknowledged.extend(fillers.iter().map(|job| job.id));
    all_end(&rig.engine, acknowledged.len()).await;
    check(&rig, &acknowledged).await;
    println!("{STOPS} stops; recoveries: {recoveries:?}");
    recoveries.sort();
    assert!(recoveries[STOPS / 2] < lease + Duration::from_secs(1), "{recoveries:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_kills_its_process_is_quarantined_alone() {
    let mut rig = Rig::new("15s").await;
    for _ in 0..2 {
        rig.start();
    }
    let poison = rig.engine.enqueue(Poison {}).await.expect("acknowledged").id;
    let work = (0..300).map(|number| Work { number, millis: 3, fails: 0 });
    let stored = rig.engine.enqueue_many(work).await.expect("acknowledged");
    let acknowledged: Vec<_> = stored.iter().map(|job| job.id).collect();
    let began = Instant::now();
    while rig.engine.jobs().get(poison).await.expect("the job").summary.status.state != State::Suspended {
        assert!(began.elapsed() < PATIENCE, "the killer was not quarantined");
        rig.replace_dead();
        tokio::task::spawn_blocking(|| std::thread::park_timeout(Duration::from_millis(20)))
            .await
            .expect("a pause");
    }
    let job = rig.engine.jobs().get(poison).await.expect("the job").summary;
    assert_eq!((job.status.reason, job.crashes), (Some(Reason::Quarantine), 3));
    all_end(&rig.engine, acknowledged.len()).await;
    check(&rig, &acknowledged).await;
}
