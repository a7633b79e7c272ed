//! A worker made to be killed: its handlers leave their effects in a [`Ledger`].
//!
//! Run by the binary `mainspring-victim` as `mainspring-victim STORE LEDGER LEASE`, until its standard input ends.

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainspring::seam::Threads;
use mainspring::{Context, Engine, Job, Span, discard};
use serde::{Deserialize, Serialize};

use crate::ledger::{Effect, Ledger};

/// A job that takes a while and leaves its traces.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "effect", output = u64)]
pub struct Work {
    /// What it returns.
    pub number: u64,
    /// How long it takes.
    pub millis: u64,
    /// How often it fails before it succeeds.
    pub fails: u16,
}

/// A job that takes its process down.
#[derive(Debug, Serialize, Deserialize, Job)]
#[job(kind = "poison")]
pub struct Poison {}

/// Runs the worker until standard input ends.
///
/// # Errors
/// If the arguments are wrong, or the store or the ledger cannot be opened.
pub fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [store, ledger, lease] = arguments else {
        return Err("usage: mainspring-victim STORE LEDGER LEASE".into());
    };
    // Told on standard error when `RUST_LOG` asks for it: what a worker went through before it died.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let lease = lease.parse::<Span>()?.0;
    let ledger = Arc::new(Ledger::open(Path::new(ledger))?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(work(store, ledger, lease))
}

async fn work(store: &str, ledger: Arc<Ledger>, lease: Duration) -> Result<(), Box<dyn Error>> {
    let engine = Engine::open(store).await?;
    let node = engine
        .node()
        .handle(move |ctx: Context, job: Work| {
            let ledger = Arc::clone(&ledger);
            async move { effect(&ctx, &job, &ledger).await }
        })
        .handle(|_: Context, _: Poison| async { std::process::abort() as mainspring::Result<()> })
        .queue("default", 8)
        .prefix("victim")
        .lease(lease)
        .start()
        .await?;
    node.run_until(input_ends(&*engine.seams().threads)).await;
    Ok(())
}

async fn effect(ctx: &Context, job: &Work, ledger: &Ledger) -> mainspring::Result<u64> {
    let mut effect = Effect { ended: false, job: ctx.id(), claim: ctx.info().claim, pid: std::process::id() };
    ledger.write(effect)?;
    ctx.engine().seams().clock.sleep(Duration::from_millis(job.millis)).await;
    if ctx.attempt() <= job.fails {
        Err(format!("attempt {} is meant to fail", ctx.attempt()))?;
    }
    effect.ended = true;
    ledger.write(effect).map_err(|error| discard(format!("the ledger is gone: {error}")))?;
    Ok(job.number)
}

/// Waits until whoever started this process closes its end of the pipe, or dies.
async fn input_ends(threads: &dyn Threads) {
    let (ended, wait) = tokio::sync::oneshot::channel::<()>();
    let read = move || {
        // However it ends: with the pipe, or with an error that says that it is gone.
        let _read = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    };
    if threads.spawn("input", Box::new(read)).is_ok() {
        drop(wait.await);
    }
}
