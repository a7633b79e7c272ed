//! Worker processes on one store, to be killed and stopped while they work.
//!
//! A [`Rig`] starts copies of the [`victim`](crate::victim), tells what the store thinks of them, and says at the end
//! whether all that was acknowledged got exactly one outcome. Processes are real, so time is too.
//!
//! # Invariants
//! - No process outlives its rig.
//! - Nothing waits for ever: [`wait`] has a deadline.
//! - A process is killed only while it holds no job that has crashed twice: the third crash would put an innocent job
//!   under quarantine.

#![expect(clippy::disallowed_methods, reason = "real processes live on the real clock and the real executor")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainspring::{Engine, Filter, JobId, State, Status, Summary};
use mainspring_core::id::NodeNo;
use mainspring_core::seam::Rng;
use mainspring_core::store::{Node, NodeState};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ledger::{self, Effect};
use crate::rng::SeededRng;

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Jobs of one page of a list.
const PAGE: usize = 1_000;

/// A store, a ledger and the workers on them.
#[derive(Debug)]
pub struct Rig {
    /// The test's own handle on the store.
    pub engine: Engine,
    /// The workers, from the oldest to the youngest.
    pub workers: Vec<Worker>,
    /// The program, and what it is told.
    victim: PathBuf,
    address: String,
    lease: Duration,
    dir: TempDir,
}

/// A worker process. It ends when dropped.
#[derive(Debug)]
pub struct Worker {
    process: Child,
    /// When it was started.
    pub started: Instant,
}

/// A worker that was taken out of service while it held jobs.
#[derive(Debug, Clone)]
pub struct Fallen {
    /// Its node.
    pub node: NodeNo,
    /// Its process.
    pub pid: u32,
    /// When.
    pub at: Instant,
    /// The jobs that it held, with their claims.
    pub held: Vec<(JobId, u32)>,
}

impl Worker {
    /// The number of its process.
    pub fn number(&self) -> u32 {
        self.process.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Lets it go on after a stop.
    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a signal");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may be gone already.
        let _gone = kill_process(self.pid(), Signal::CONT);
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Rig {
    /// A rig without workers. They will run `victim` on the store at `address`, with a lease of this length.
    pub fn new(victim: &str, address: String, lease: Duration, engine: Engine) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Rig { engine, workers: Vec::new(), victim: victim.into(), address, lease, dir }
    }

    /// The file of effects.
    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    /// Starts a worker.
    pub fn start(&mut self) {
        let process = Command::new(&self.victim)
            .arg(&self.address)
            .arg(self.ledger())
            .arg(format!("{}ms", self.lease.as_millis()))
            .stdin(Stdio::piped())
            .spawn()
            .expect("a worker");
        self.workers.push(Worker { process, started: Instant::now() });
    }

    /// Starts workers in place of those that died by themselves.
    pub fn replace_dead(&mut self) {
        let before = self.workers.len();
        self.workers.retain_mut(|worker| worker.process.try_wait().expect("a status").is_none());
        for _ in self.workers.len()..before {
            self.start();
        }
    }

    /// Asks all workers to leave, and waits until they have done so in good order.
    pub async fn dismiss(&mut self) {
        for worker in &mut self.workers {
            drop(worker.process.stdin.take());
        }
        for mut worker in std::mem::take(&mut self.workers) {
            let status =
                wait("a worker has left", async || worker.process.try_wait().expect("a status")).await;
            assert!(status.success(), "{status}");
        }
    }

    /// All nodes, as soon as the store tells.
    pub async fn nodes(&self) -> Vec<Node> {
        insist("nodes", async || self.engine.nodes().await).await
    }

    /// The live node of a process.
    pub async fn node(&self, process: u32) -> Option<Node> {
        self.nodes().await.into_iter().find(|node| node.pid == process && node.state == NodeState::Live)
    }

    /// Waits until a number of live nodes hold claims.
    pub async fn busy(&self, count: usize) {
        wait("workers are busy", async || {
            let holding = |node: &&Node| node.state == NodeState::Live && node.claims > 0;
            (self.nodes().await.iter().filter(holding).count() >= count).then_some(())
        })
        .await;
    }

    /// All jobs in one of these states, or all.
    pub async fn jobs(&self, states: Vec<State>) -> Vec<Summary> {
        let filter = Filter { states, ..Filter::default() };
        let (mut jobs, mut after) = (Vec::new(), None);
        loop {
            let page =
                insist("jobs", async || self.engine.jobs().list(filter.clone(), after.clone(), PAGE).await)
                    .await;
            jobs.extend(page.jobs);
            after = page.next;
            if after.is_none() {
                return jobs;
            }
        }
    }

    /// Stops a worker at a moment at which it holds jobs and no suspect; `None` if that is not so.
    pub async fn freeze(&self, index: usize) -> Option<Fallen> {
        let worker = &self.workers[index];
        if self.node(worker.number()).await.is_none_or(|node| node.claims == 0) {
            return None;
        }
        worker.signal(Signal::STOP);
        let at = Instant::now();
        // A thread that is inside of a system call finishes it first, and it may be the one that takes the lock.
        wait("all threads have stopped", async || all_stopped(worker.pid()).then_some(())).await;
        let fallen = self.holder(worker.number(), at).await;
        if fallen.is_none() {
            worker.wake();
        }
        fallen
    }

    /// What a stopped process holds; `None` if that is nothing, or while there is a suspect that it may hold or that a claim
    /// which is on its way may still give it.
    async fn holder(&self, pid: u32, at: Instant) -> Option<Fallen> {
        let node = self.node(pid).await?.no;
        let open = self.jobs(vec![State::Ready, State::Scheduled, State::Running]).await;
        if open.iter().any(|job| job.crashes >= 2) {
            return None;
        }
        let held: Vec<_> =
            open.iter().filter(|job| job.node == Some(node)).map(|job| (job.id, job.claim)).collect();
        (!held.is_empty()).then_some(Fallen { node, pid, at, held })
    }

    /// Kills some worker that holds claims, wherever it is, in the middle of a transaction too.
    pub async fn kill_one(&mut self, rng: &SeededRng) -> Fallen {
        loop {
            self.busy(1).await;
            let random = usize::try_from(rng.next_u64() >> 33).expect("31 bits");
            let index = random % self.workers.len();
            let Some(mut fallen) = self.freeze(index).await else {
                tokio::task::yield_now().await;
                continue;
            };
            self.workers[index].signal(Signal::KILL);
            fallen.at = Instant::now();
            self.workers.remove(index).process.wait().expect("a dead worker");
            return fallen;
        }
    }

    /// Waits until a node is expired and all that it held has been given back.
    pub async fn rescued(&self, node: NodeNo) {
        wait("the node is expired and holds nothing", async || {
            let nodes = self.nodes().await;
            let gone = nodes.iter().find(|fallen| fallen.no == node)?;
            (gone.state == NodeState::Expired && gone.claims == 0).then_some(())
        })
        .await;
    }

    /// Waits until this many jobs have succeeded.
    pub async fn all_succeeded(&self, count: usize) {
        let began = Instant::now();
        wait("all jobs have succeeded", async || {
            let counts = insist("counts", async || self.engine.jobs().counts().await).await;
            let succeeded = counts.total(State::Succeeded) == count as u64;
            if !succeeded && began.elapsed() >= PATIENCE {
                let mut others = self.jobs(Vec::new()).await;
                others.retain(|job| job.status.state != State::Succeeded);
                panic!("not all jobs succeeded: {counts:?}, {others:?}");
            }
            succeeded.then_some(())
        })
        .await;
    }

    /// Every acknowledged job has one outcome, of a claim whose effects are all there, and nothing else ran. Returns the
    /// ends of runs whose claim was lost by then: the outcomes of those that still lived to write them were refused.
    ///
    /// `in_order`: no worker was stopped, so claims of a job also began in their order.
    pub async fn check(&self, acknowledged: &[JobId], in_order: bool) -> Vec<Effect> {
        let of = effects(&self.ledger());
        let jobs: BTreeMap<JobId, Summary> =
            self.jobs(Vec::new()).await.into_iter().map(|job| (job.id, job)).collect();
        let mut late = Vec::new();
        for id in acknowledged {
            let job = jobs.get(id).unwrap_or_else(|| panic!("{id} was acknowledged and is gone"));
            assert_eq!(job.status, Status::plain(State::Succeeded), "{id}");
            let effects = of.get(id).unwrap_or_else(|| panic!("{id} succeeded without an effect"));
            let ended =
                |claim: u32| effects.iter().filter(|effect| effect.ended && effect.claim == claim).count();
            assert_eq!(ended(job.claim), 1, "{id}: the accepted claim {} ended once: {effects:?}", job.claim);
            let begins: Vec<_> =
                effects.iter().filter(|effect| !effect.ended).map(|effect| effect.claim).collect();
            // A worker that was stopped may begin what it had claimed before it learns that it is not its own any more.
            let sorted = !in_order || begins.is_sorted_by(|a, b| a < b);
            assert!(sorted, "{id}: claims began out of order: {effects:?}");
            assert!(effects.iter().all(|effect| effect.claim <= job.claim), "{id}: {effects:?}");
            late.extend(effects.iter().filter(|effect| effect.ended && effect.claim < job.claim));
        }
        assert_eq!(of.len(), acknowledged.len(), "only acknowledged jobs ran");
        let findings = self.engine.store().check().await.expect("a check");
        assert!(findings.is_empty(), "{findings:?}");
        late
    }
}

/// What was done for each job.
fn effects(ledger: &Path) -> BTreeMap<JobId, Vec<Effect>> {
    let mut of: BTreeMap<JobId, Vec<Effect>> = BTreeMap::new();
    for effect in ledger::read(ledger).expect("a ledger") {
        of.entry(effect.job).or_default().push(effect);
    }
    of
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
pub async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        pause().await;
    }
}

/// Asks a store that may be away at the moment, until it answers.
pub async fn insist<T>(what: &str, mut call: impl AsyncFnMut() -> mainspring_core::Result<T>) -> T {
    wait(what, async || match call().await {
        Ok(answer) => Some(answer),
        Err(error) if error.is_retryable() => None,
        Err(error) => panic!("{what}: {error:?}"),
    })
    .await
}

/// Between two looks, without a thread of the executor.
async fn pause() {
    let look = || std::thread::park_timeout(Duration::from_millis(5));
    tokio::task::spawn_blocking(look).await.expect("a pause");
}
