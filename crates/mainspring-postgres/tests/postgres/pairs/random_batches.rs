//! Batches of every kind against each other, on the same jobs, from several handles at once.
//!
//! A call that meets a deadlock is begun anew by the store, so nobody would notice; but the server counts them. The jobs
//! and keys are few and every batch is about most of them, in an order of its own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeNo};
use mainspring_core::job::{New, OnConflict, Options, Outcome, Progress, Reason, Unique, Until, Verb, When};
use mainspring_core::journal::{
    Child, Entry, EntryKind, OnClose, Recording, Signal, Subject, Suspension, Wait, Writes,
};
use mainspring_core::name::{Key, SignalName};
use mainspring_core::seam::{Clock, Rng};
use mainspring_core::store::{ClaimRequest, Finish, Mark, QueueChange, Renewal, Rescue, Store};
use mainspring_core::{Error, Result, bounds};
use mainspring_postgres::{Durability, Options as Opening, Postgres, Time};
use mainspring_testkit::clock::ManualClock;
use mainspring_testkit::executor::{block_on, race};
use mainspring_testkit::harness::{
    Harness, LEASE, cancel, fail, kind, priority, queue, retry, stopped, succeed,
};
use mainspring_testkit::patience::PATIENCE;
use mainspring_testkit::postgres::Database;
use mainspring_testkit::rng::SeededRng;
use mainspring_testkit::seams::seams;

/// Jobs that all batches are about.
const JOBS: usize = 24;
/// Keys that they share.
const KEYS: u64 = 5;
/// How often each pair of batches is set against each other, and how many of each at a time.
const ROUNDS: usize = 2;
const TIMES: usize = 3;

/// What a batch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Enqueue,
    Replace,
    Claim,
    Finish,
    Cancel,
    Hold,
    Resume,
    Retry,
    SetPriority,
    Delete,
    Rescue,
    Retire,
    Disown,
    Promote,
    Expire,
    Prune,
    Configure,
    Progress,
    Renew,
    Record,
    Start,
    Suspend,
    Signal,
}

const KINDS: [Kind; 23] = [
    Kind::Enqueue,
    Kind::Replace,
    Kind::Claim,
    Kind::Finish,
    Kind::Cancel,
    Kind::Hold,
    Kind::Resume,
    Kind::Retry,
    Kind::SetPriority,
    Kind::Delete,
    Kind::Rescue,
    Kind::Retire,
    Kind::Disown,
    Kind::Promote,
    Kind::Expire,
    Kind::Prune,
    Kind::Configure,
    Kind::Progress,
    Kind::Renew,
    Kind::Record,
    Kind::Start,
    Kind::Suspend,
    Kind::Signal,
];

/// A place where batches meet.
struct BatchMix {
    harness: Harness,
    handles: Vec<Arc<dyn Store>>,
    rng: SeededRng,
    nodes: Mutex<Vec<(NodeNo, u64)>>,
    claims: Mutex<Vec<(NodeNo, Claim)>>,
    ids: Mutex<Vec<JobId>>,
    calls: AtomicUsize,
}

impl BatchMix {
    fn new(database: Database, seed: u64) -> Self {
        let clock = ManualClock::new();
        let seams = seams(&clock, 1);
        let harness = Harness::new(clock, move || -> Arc<dyn Store> {
            let options = Opening::new(&database.url()).expect("an address").time(Time::Clock);
            let options = options.durability(Durability::Relaxed);
            Arc::new(block_on(Postgres::open(options, seams.clone())).expect("the store opens"))
        });
        let handles = (0..4).map(|_| harness.other()).collect();
        BatchMix {
            harness,
            handles,
            rng: SeededRng::new(seed),
            nodes: Mutex::default(),
            claims: Mutex::default(),
            ids: Mutex::default(),
            calls: AtomicUsize::new(0),
        }
    }

    fn draw(&self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    /// Some of these, in any order.
    fn some<T: Clone>(&self, all: &[T]) -> Vec<T> {
        let mut drawn: Vec<(u64, T)> = all.iter().map(|one| (self.rng.next_u64(), one.clone())).collect();
        drawn.sort_by_key(|(number, _)| *number);
        drawn.truncate(all.len() * 3 / 4 + 1);
        drawn.into_iter().map(|(_, one)| one).collect()
    }

    /// Jobs for all batches to be about, in all places.
    fn refill(&self) {
        let there = block_on(self.harness.list(&mainspring_core::store::Filter::default(), bounds::PAGE));
        let waiting = there.iter().filter(|job| !job.status.state.is_terminal()).count();
        let jobs: Vec<New> = (waiting..JOBS).map(|_| self.job(OnConflict::Keep)).collect();
        block_on(self.harness.store.enqueue(jobs)).expect("enqueue");
        let there = block_on(self.harness.list(&mainspring_core::store::Filter::default(), bounds::PAGE));
        *lock(&self.ids) = there.iter().map(|job| job.id).take(2 * JOBS).collect();
        let live = lock(&self.nodes).len();
        for _ in live..3 {
            let node = block_on(self.harness.node());
            lock(&self.nodes).push((node, 0));
        }
        for handle in 0..2 {
            self.claim(&*self.handles[handle]).expect("claim");
        }
    }

    fn job(&self, on_conflict: OnConflict) -> New {
        let untils = [Until::Started, Until::Finished, Until::after(Duration::from_secs(2))];
        let until = untils[usize::try_from(self.draw(3)).expect("a small number")];
        let unique = Unique { key: format!("key {}", self.draw(KEYS)), until, on_conflict };
        let keyed = self.draw(3) > 0;
        let run = (self.draw(4) == 0).then_some(When::After(Duration::from_secs(1)));
        let deadline = (self.draw(4) == 0).then_some(When::After(Duration::from_secs(2)));
        let kind = kind(["k", "k2"][usize::from(self.draw(2) == 0)]);
        let options = Options { unique: keyed.then_some(unique), ..Options::default() };
        self.harness.job_with(|job| *job = New { kind, run, deadline, options, ..job.clone() })
    }

    fn claim(&self, store: &dyn Store) -> Result<()> {
        let (node, batch) = {
            let mut nodes = lock(&self.nodes);
            let which = usize::try_from(self.draw(2)).expect("a small number").min(nodes.len() - 1);
            nodes[which].1 += 1;
            nodes[which]
        };
        let queues = vec![(queue("q"), JOBS / 3)];
        let request = ClaimRequest {
            ahead: Vec::new(),
            node,
            batch: ClaimBatchNo(batch),
            queues,
            suspects: usize::MAX,
        };
        let claimed = block_on(store.claim(request))?;
        lock(&self.claims).extend(claimed.jobs.iter().map(|job| (node, job.claim)));
        Ok(())
    }

    /// One batch.
    fn operation(&self, kind: Kind, store: &dyn Store) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let verb = |verb: Verb| block_on(store.change(self.some(&lock(&self.ids)), verb, false)).map(drop);
        let first = lock(&self.nodes)[0].0;
        let held: Vec<Claim> = {
            let claims = lock(&self.claims);
            claims
                .iter()
                .rev()
                .take(JOBS)
                .filter(|(node, _)| *node == first)
                .map(|(_, claim)| *claim)
                .collect()
        };
        match kind {
            Kind::Enqueue | Kind::Replace => {
                let on_conflict = if kind == Kind::Enqueue { OnConflict::Keep } else { OnConflict::Replace };
                let jobs = (0..6).map(|_| self.job(on_conflict)).collect();
                block_on(store.enqueue(jobs)).map(drop)
            }
            Kind::Claim => self.claim(store),
            Kind::Finish => {
                let ends = [
                    succeed(),
                    retry(Duration::ZERO),
                    fail(),
                    Outcome::Release,
                    stopped("enough"),
                    Outcome::Snooze { after: Duration::from_secs(1) },
                ];
                let claims = self.some(&held);
                let end = |claim| Finish {
                    claim,
                    outcome: ends[usize::try_from(self.draw(6)).unwrap_or(0)].clone(),
                };
                block_on(store.finish(first, claims.into_iter().map(end).collect())).map(drop)
            }
            Kind::Cancel => verb(cancel("enough")),
            Kind::Hold => verb(Verb::Hold { why: String::new() }),
            Kind::Resume => verb(Verb::Resume),
            Kind::Retry => verb(Verb::Retry),
            Kind::SetPriority => verb(Verb::SetPriority(priority(u8::try_from(self.draw(9)).unwrap_or(0)))),
            Kind::Delete => verb(Verb::Delete),
            Kind::Rescue => {
                let by = lock(&self.nodes).last().expect("nodes").0;
                let now = Clock::now(&self.harness.clock);
                block_on(store.rescue(Rescue { by, steady: bounds::LEASE_MAX, seen: now })).map(drop)
            }
            Kind::Retire => block_on(store.retire(first)).map(drop),
            Kind::Disown => {
                block_on(store.disown(first, ClaimBatchNo(u64::MAX >> 1), self.some(&held))).map(drop)
            }
            Kind::Promote => block_on(store.promote(JOBS)).map(drop),
            Kind::Expire => block_on(store.expire(JOBS)).map(drop),
            Kind::Prune => block_on(store.prune(JOBS)).map(drop),
            Kind::Configure => {
                let paused = Some(self.draw(2) == 0);
                block_on(store.configure(queue("q"), QueueChange { paused, ..QueueChange::default() }))
                    .map(drop)
            }
            Kind::Progress => {
                let said = |claim| (claim, Progress { done: self.draw(9), total: 9, note: "so far".into() });
                block_on(store.progress(first, self.some(&held).into_iter().map(said).collect()))
            }
            Kind::Renew => {
                let mark = |claim| match self.draw(4) {
                    0 => (claim, Mark::Stuck),
                    1 => (claim, Mark::Cleared),
                    2 => (claim, Mark::Foreign),
                    _ => (claim, Mark::GoesOn),
                };
                let marks = self.some(&held).into_iter().map(mark).collect();
                block_on(store.renew(Renewal { marks, ..Renewal::new(first) })).map(drop)
            }
            Kind::Record | Kind::Start => {
                let recording = |claim| self.recording(claim, kind == Kind::Start);
                let recordings = self.some(&held).into_iter().map(recording).collect();
                block_on(store.record(first, recordings)).map(drop)
            }
            Kind::Suspend => {
                let suspend = |claim| Finish { claim, outcome: self.suspension() };
                block_on(store.finish(first, self.some(&held).into_iter().map(suspend).collect())).map(drop)
            }
            Kind::Signal => {
                let signal = |job| Signal {
                    job,
                    name: SignalName::new("go").expect("a name"),
                    sender: format!("somebody {}", self.draw(4)),
                    body: b"1".to_vec(),
                };
                let ids = self.some(&lock(&self.ids));
                block_on(store.signal(ids.into_iter().map(signal).collect())).map(drop)
            }
        }
    }

    /// Something that a claim records; and a child that it starts.
    fn recording(&self, claim: Claim, starts: bool) -> Recording {
        let key = Key::new(format!("step {}", self.draw(3))).expect("a key");
        let forget = if self.draw(4) == 0 { vec![key.clone()] } else { Vec::new() };
        let entry =
            Entry { key, kind: EntryKind::Value, overlapped: false, value: b"1".to_vec(), took: None };
        let child = || Child { job: self.harness.job(), on_close: OnClose::Cancel };
        let children = if starts { vec![child()] } else { Vec::new() };
        Recording { claim, writes: Writes { entries: vec![entry], forget, ..Writes::default() }, children }
    }

    fn suspension(&self) -> Outcome {
        let subject = Subject::Signal(SignalName::new("go").expect("a name"));
        let need = u32::try_from(self.draw(3) + 1).expect("a small number");
        let until =
            (self.draw(2) == 0).then(|| Clock::now(&self.harness.clock).after(Duration::from_secs(1)));
        Outcome::Suspend(Box::new(Suspension {
            reason: Reason::Signal,
            waits: vec![Wait { subject, need }],
            until,
            keep: false,
            writes: Writes::default(),
            note: None,
        }))
    }

    /// Sets batches against each other, each on a handle of its own.
    fn meet(&self, kinds: &[Kind]) {
        type Racer<'a> = Box<dyn FnOnce() -> Result<()> + Send + 'a>;
        let racers = kinds.iter().zip(&self.handles).map(|(kind, handle)| -> Racer<'_> {
            Box::new(move || (0..TIMES).try_for_each(|_| self.operation(*kind, &**handle)))
        });
        for (kind, answer) in kinds.iter().zip(race(racers.collect())) {
            // A node may be expired or retired by another batch.
            assert!(matches!(answer, Ok(()) | Err(Error::LeaseLost)), "{kind:?} among {kinds:?}: {answer:?}");
        }
        // Who is gone is replaced, and time passes.
        let gone: BTreeSet<NodeNo> = block_on(self.harness.store.nodes())
            .expect("nodes")
            .into_iter()
            .filter(|node| node.state == mainspring_core::store::NodeState::Live)
            .map(|node| node.no)
            .collect();
        lock(&self.nodes).retain(|(node, _)| gone.contains(node));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs every so many of all pairs of batches, with two more at times, and asserts that the server saw no deadlock.
pub(crate) fn run(database: Database, (number, of): (usize, usize)) {
    let url = database.url();
    let mut server = postgres::Client::connect(&url, postgres::NoTls).expect("a connection");
    let home = database.server().clone();
    let mix = BatchMix::new(database, 7 + number as u64);
    let unpaused = QueueChange { paused: Some(false), ..QueueChange::default() };
    for (index, one) in KINDS.iter().enumerate() {
        for other in KINDS[index..].iter().skip((number + of - index % of) % of).step_by(of) {
            block_on(mix.harness.store.configure(queue("q"), unpaused.clone())).expect("configure");
            for round in 0..ROUNDS {
                mix.refill();
                if round % 2 == 1 {
                    // Nodes are dead, timers due and deadlines over, if the batches are about them.
                    mix.harness.advance(LEASE);
                    let last = lock(&mix.nodes).last().expect("nodes").0;
                    block_on(mix.harness.renew(last));
                }
                let all = [*one, *other, *one, *other];
                mix.meet(&all[..2 + 2 * round]);
            }
        }
    }
    block_on(mix.harness.assert_sound());
    let calls = mix.calls.load(Ordering::Relaxed);
    // A session hands its statistics over when it ends.
    for handle in mix.handles.iter().chain([&mix.harness.store]) {
        block_on(handle.close());
    }
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    wait_until("all sessions have ended", || {
        server.query_one(others, &[]).expect("sessions").get::<_, i64>(0) == 0
    });
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = server.query_one(deadlocks, &[]).expect("statistics").get(0);
    println!("{calls} batches, {deadlocks} deadlocks");
    // A server that all tests share keeps its log to itself.
    let told = home.log().unwrap_or_default();
    assert_eq!(deadlocks, 0, "batches waited for each other:\n{}", deadlocks_of(&told));
}

/// What a server's log says of deadlocks.
fn deadlocks_of(log: &str) -> String {
    /// Lines that tell who waited for whom.
    const STORY: usize = 24;
    let lines: Vec<&str> = log.lines().collect();
    let met = lines.iter().enumerate().filter(|(_, line)| line.contains("deadlock detected"));
    met.flat_map(|(at, _)| lines[at..].iter().take(STORY)).copied().collect::<Vec<_>>().join("\n")
}

/// Waits for a condition, with a deadline.
#[expect(clippy::disallowed_methods, reason = "waits for a real server")]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}
