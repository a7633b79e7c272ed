//! Victims: programs made to be killed, which write down all that they do.
//!
//! Run by the binary `mainspring-victim` as `mainspring-victim ROLE STORE LEDGER LEASE SEED [--die-at POINT:VISIT]
//! [--plant DEFECT]`, until its standard input ends. A panic anywhere ends the process at once: a victim that goes on
//! without one of its threads would hide the fault that took it.

mod jobs;
mod operator;
mod probe;
mod producer;
mod worker;
mod workflow;

pub use jobs::{CRASHER_QUEUE, Crasher, QUEUES, Work};
pub use probe::ProbeResult;
pub use worker::{CLAIM, SLOTS};
pub use workflow::WorkflowJob;

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainspring::Engine;
use mainspring::time::Span;
use mainspring_core::fault;
use mainspring_core::seam::{Clock, Pending, Threads};
use rustix::process::{Signal, getpid, kill_process};

use super::ledger::Ledger;
use super::wait::insist;
use super::world::watched;
use crate::history::{Actor, Fact, Recorder};
use crate::rng::SeededRng;

/// With what a victim that panicked ends, so that nobody takes it for an error that it told.
pub(super) const PANICKED: i32 = 70;

const USAGE: &str = "usage: mainspring-victim worker|producer|operator|probe STORE LEDGER LEASE SEED \
    [--die-at POINT:VISIT] [--plant DEFECT]";

/// What a victim knows.
struct VictimContext {
    store: String,
    lease: Duration,
    rng: SeededRng,
    ledger: Arc<dyn Recorder>,
    by: Actor,
}

impl VictimContext {
    /// Opens the store, and has it watched.
    async fn open(&self) -> mainspring_core::Result<Engine> {
        Ok(watched(&Engine::options().migrate().open(&self.store).await?, Arc::clone(&self.ledger)))
    }

    /// Opens it as soon as it can be: whoever has to be there does not end because a failover is under way.
    async fn open_in_time(&self) -> super::Result<Engine> {
        insist("the store can be opened", async || self.open().await).await
    }
}

/// Runs a victim until standard input ends.
///
/// # Errors
/// If the arguments are wrong, or the store or the ledger cannot be opened.
pub fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [role, store, ledger, lease, seed, options @ ..] = arguments else { return Err(USAGE.into()) };
    // Told on standard error when `RUST_LOG` asks for it: what a victim went through before it died.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    end_with_any_panic();
    let ledger: Arc<dyn Recorder> = Arc::new(Ledger::open(Path::new(ledger))?);
    let by = std::process::id();
    heed(options, &ledger, by)?;
    let rng = SeededRng::new(seed.parse()?);
    let life = VictimContext { store: store.clone(), lease: lease.parse::<Span>()?.0, rng, ledger, by };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match role.as_str() {
            "worker" => worker::run(life).await,
            "producer" => producer::run(life).await,
            "operator" => operator::run(life).await,
            "probe" => probe::run(life).await,
            _ => Err(USAGE.into()),
        }
    })
}

/// Takes the options to heart.
fn heed(options: &[String], ledger: &Arc<dyn Recorder>, by: Actor) -> Result<(), Box<dyn Error>> {
    for pair in options.chunks(2) {
        match pair {
            [flag, value] if flag == "--die-at" => {
                let (point, visit) = value.rsplit_once(':').ok_or(USAGE)?;
                die_at(point.to_owned(), visit.parse()?, Arc::clone(ledger), by);
            }
            [flag, value] if flag == "--plant" => plant(value)?,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(())
}

/// Ends the process at one of its failure points, as a kill would.
fn die_at(point: String, visit: u32, ledger: Arc<dyn Recorder>, by: Actor) {
    let visits = AtomicU32::new(0);
    fault::install(move |name| {
        if name == point && visits.fetch_add(1, Ordering::SeqCst) + 1 == visit {
            ledger.note(by, Fact::fault("kill", Some(by), None));
            // It cannot fail: a process may kill itself, and does not come back from it.
            let _gone = kill_process(getpid(), Signal::KILL);
        }
    });
}

#[cfg(feature = "planted")]
fn plant(name: &str) -> Result<(), Box<dyn Error>> {
    use mainspring_core::planted::{Defect, choose};
    let defect = Defect::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
    choose(Some(defect.ok_or("no such defect")?));
    Ok(())
}

#[cfg(not(feature = "planted"))]
fn plant(_name: &str) -> Result<(), Box<dyn Error>> {
    Err("this victim was built without the feature `planted`".into())
}

#[expect(clippy::exit, reason = "a thread that panicked cannot return from main")]
fn end_with_any_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(PANICKED);
    }));
}

/// Ends when whoever started this process closes its end of the pipe, or dies.
fn input_ends(threads: &dyn Threads) -> Pending<'static, ()> {
    let (ended, wait) = tokio::sync::oneshot::channel::<()>();
    let read = move || {
        // However it ends: with the pipe, or with an error that says that it is gone.
        let _read = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    };
    let started = threads.spawn("input", Box::new(read));
    Box::pin(async move {
        if started.is_ok() {
            drop(wait.await);
        }
    })
}

/// Does something again and again until standard input ends: what was begun is finished first.
async fn until_input_ends(
    engine: &Engine,
    pause: Duration,
    mut turn: impl AsyncFnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut over = input_ends(&*engine.seams().threads);
    let clock: &dyn Clock = &*engine.seams().clock;
    loop {
        turn().await?;
        tokio::select! {
            biased;
            () = &mut over => return Ok(()),
            () = clock.sleep(pause) => {}
        }
    }
}
