//! What the store can do without the engine: the ceiling that the benchmark compares the engine with.
//!
//! `cargo run --release -p mainspring-sqlite --example ceiling -- [directory] [jobs]`
#![expect(clippy::print_stdout, reason = "a program that prints figures")]

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

use mainspring_core::id::{Claim, ClaimBatchNo, JobId, NodeId, NodeNo};
use mainspring_core::job::{New, Options as JobOptions, Outcome, Priority};
use mainspring_core::journal::{Entry, EntryKind, Recorded, Recording, Writes};
use mainspring_core::name::{Key, Kind, QueueName};
use mainspring_core::seam::{Clock, Pending, Rng, Seams, Spawn, Task, Threads};
use mainspring_core::store::{
    Abilities, ClaimRequest, Finish, Journals, Nodes, Operators, Producers, Registration, Store,
};
use mainspring_core::time::Timestamp;
use mainspring_sqlite::{Options, Sqlite};

/// As large as the payload of the figures in the design.
const INPUT_BYTES: usize = 100;
/// As above, of a step's result.
const STEP_BYTES: usize = 200;

struct Real(Instant);

#[expect(clippy::disallowed_methods, reason = "the place where this process starts")]
impl Clock for Real {
    fn now(&self) -> Timestamp {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) -> Pending<'static, ()> {
        Box::pin(std::future::pending())
    }
}

impl Rng for Real {
    fn next_u64(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // splitmix64.
        let mut z = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

impl Spawn for Real {
    fn spawn(&self, _: Pending<'static, ()>) -> Task {
        Task::new(|| {})
    }

    fn spawn_dedicated(&self, _: &str, _: Pending<'static, ()>) -> Task {
        Task::new(|| {})
    }
}

impl Threads for Real {
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap_or_else(|| "/tmp".into()));
    let jobs: usize = arguments.next().map_or(Ok(300_000), |text| text.parse())?;
    #[expect(clippy::disallowed_methods, reason = "the place where this process starts")]
    let real = Arc::new(Real(Instant::now()));
    let seams = Seams { clock: real.clone(), rng: real.clone(), spawn: real.clone(), threads: real.clone() };
    let path = directory.join(format!("mainspring-ceiling-{}.db", std::process::id()));
    for batch in [1_000, 100] {
        let store = Sqlite::open(Options::new(&path), seams.clone())?;
        let node = block_on(store.register(registration(&real)?))?.no;
        enqueue(&store, &real, jobs)?;
        drain(&store, &real, node, jobs, batch)?;
        for workflows in [1, 64, 256] {
            steps(&store, &real, node, workflows, jobs)?;
        }
        let findings = block_on(store.check())?;
        assert!(findings.is_empty(), "{findings:?}");
        block_on(store.retire(node))?;
        let bytes = std::fs::metadata(&path)?.len();
        println!("bytes per job: {}", bytes / jobs as u64);
        block_on(store.close());
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

fn registration(real: &Real) -> mainspring_core::Result<Registration> {
    Ok(Registration {
        id: NodeId::mint(real.now(), real),
        name: "ceiling".into(),
        version: String::new(),
        pid: std::process::id(),
        queues: vec![(QueueName::new("default")?, 1_000), (QueueName::new("steps")?, 256)],
        abilities: Abilities { kinds: vec![Kind::new("noop")?], ..Abilities::default() },
        lease: Duration::from_secs(15),
    })
}

fn enqueue(store: &Sqlite, real: &Real, jobs: usize) -> mainspring_core::Result<()> {
    let (kind, queue) = (Kind::new("noop")?, QueueName::new("default")?);
    let begin = real.monotonic();
    let mut waiting = None;
    for _ in 0..jobs / 1_000 {
        let new = |_| New {
            id: JobId::mint(real.now(), real),
            kind: kind.clone(),
            queue: queue.clone(),
            priority: Priority::default(),
            input: vec![b' '; INPUT_BYTES],
            run: None,
            deadline: None,
            options: JobOptions::default(),
            journal: Vec::new(),
        };
        // One batch is made while the other is stored, as an engine does.
        let next = store.enqueue((0..1_000).map(new).collect());
        if let Some(answer) = waiting.replace(next) {
            block_on(answer)?;
        }
    }
    if let Some(answer) = waiting {
        block_on(answer)?;
    }
    rate("enqueue by 1,000", jobs, real.monotonic().saturating_sub(begin));
    Ok(())
}

fn drain(
    store: &Sqlite,
    real: &Real,
    node: NodeNo,
    jobs: usize,
    batch: usize,
) -> mainspring_core::Result<()> {
    let queue = QueueName::new("default")?;
    let begin = real.monotonic();
    let (mut number, mut done) = (0, 0);
    let mut finishing = None;
    while done < jobs {
        number += 1;
        let request = ClaimRequest {
            ahead: Vec::new(),
            node,
            batch: ClaimBatchNo(number),
            queues: vec![(queue.clone(), batch)],
            suspects: 1,
        };
        let claim = store.claim(request);
        let claimed = block_on(claim)?.jobs;
        done += claimed.len();
        let finish = claimed
            .into_iter()
            .map(|job| Finish { claim: job.claim, outcome: Outcome::Succeed { result: None } })
            .collect();
        // Not waited for before the next claim. The two seldom share a transaction here: an idle writer takes the finish
        // at once, so a batch costs about two commits.
        if let Some(answer) = finishing.replace(store.finish(node, finish)) {
            block_on(answer)?;
        }
    }
    if let Some(answer) = finishing {
        block_on(answer)?;
    }
    rate(&format!("claim and finish by {batch}"), jobs, real.monotonic().saturating_sub(begin));
    Ok(())
}

/// Records of many jobs that run at once, each waiting for its last one before the next.
fn steps(
    store: &Sqlite,
    real: &Real,
    node: NodeNo,
    workflows: usize,
    jobs: usize,
) -> mainspring_core::Result<()> {
    static BATCH: AtomicU64 = AtomicU64::new(1 << 32);
    let (kind, queue) = (Kind::new("noop")?, QueueName::new("steps")?);
    let new = |_| New {
        id: JobId::mint(real.now(), real),
        kind: kind.clone(),
        queue: queue.clone(),
        priority: Priority::default(),
        input: vec![b' '; INPUT_BYTES],
        run: None,
        deadline: None,
        options: JobOptions::default(),
        journal: Vec::new(),
    };
    block_on(store.enqueue((0..workflows).map(new).collect()))?;
    let batch = ClaimBatchNo(BATCH.fetch_add(1, Ordering::Relaxed));
    let request =
        ClaimRequest { ahead: Vec::new(), node, batch, queues: vec![(queue, workflows)], suspects: 1 };
    let claims: Vec<Claim> = block_on(store.claim(request))?.jobs.into_iter().map(|job| job.claim).collect();
    // Alone, each record is a commit of its own.
    let each = if workflows == 1 { jobs / 100 } else { jobs / workflows };
    let record = |claim: Claim, step: usize| -> mainspring_core::Result<_> {
        let key = Key::new(format!("step#{step}"))?;
        let entry = Entry {
            key,
            kind: EntryKind::Value,
            overlapped: false,
            value: vec![b'7'; STEP_BYTES],
            took: None,
        };
        let writes = Writes { entries: vec![entry], ..Writes::default() };
        Ok(store.record(node, vec![Recording { claim, writes, children: Vec::new() }]))
    };
    let begin = real.monotonic();
    let mut running = Vec::with_capacity(claims.len());
    for claim in claims {
        running.push((claim, 0, record(claim, 0)?));
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut finishes = Vec::new();
    while !running.is_empty() {
        let mut at = 0;
        let mut moved = false;
        while let Some((claim, step, pending)) = running.get_mut(at) {
            let Poll::Ready(answer) = pending.as_mut().poll(&mut Context::from_waker(&waker)) else {
                at += 1;
                continue;
            };
            assert_eq!(answer?, [Recorded::Stored]);
            (moved, *step) = (true, *step + 1);
            if *step < each {
                *pending = record(*claim, *step)?;
                at += 1;
            } else {
                finishes.push(Finish { claim: *claim, outcome: Outcome::Succeed { result: None } });
                drop(running.swap_remove(at));
            }
        }
        if !moved {
            std::thread::park();
        }
    }
    rate(
        &format!("steps of {workflows} workflows"),
        each * finishes.len(),
        real.monotonic().saturating_sub(begin),
    );
    block_on(store.finish(node, finishes))?;
    Ok(())
}

fn rate(what: &str, jobs: usize, took: Duration) {
    println!("{what}: {:.0}/s", jobs as f64 / took.as_secs_f64());
}
