//! Bank: a payment provider allows five calls at a time, and ten new ones in a second. Two nodes call it.
//!
//! The limit is in the store, so it holds over all nodes. A payment that is held back waits there and takes no slot.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainspring::{Context, Engine, Job, Node};
use serde::{Deserialize, Serialize};

/// One payment. The attribute says what the bank allows, for all payments together.
#[derive(Serialize, Deserialize, Job)]
#[job(kind = "pay", result = u64, limit(bank, max = 5, rate = "10/s", burst = 10))]
struct Pay {
    cents: u64,
}

/// The bank, which counts its callers.
#[derive(Clone, Default)]
struct Bank {
    calls: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Bank {
    #[expect(
        clippy::disallowed_methods,
        reason = "an example waits and reads the clock as an application does"
    )]
    async fn pay(&self, cents: u64) -> u64 {
        let calls = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(calls, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.calls.fetch_sub(1, Ordering::SeqCst);
        cents
    }
}

async fn pay(ctx: Context, job: Pay) -> mainspring::HandlerResult<u64> {
    Ok(ctx.state::<Bank>()?.pay(job.cents).await)
}

async fn node(engine: &Engine, bank: &Bank) -> Result<Node, mainspring::Error> {
    // Each node alone could run twenty at a time.
    engine.node().state(bank.clone()).needs::<Bank>().handle(pay).queue("default", 20).start().await
}

#[expect(clippy::disallowed_methods, reason = "an example waits and reads the clock as an application does")]
#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("sqlite:bank.db").await?;
    let bank = Bank::default();
    let nodes = [node(&engine, &bank).await?, node(&engine, &bank).await?];

    let began = Instant::now();
    let payments = engine.enqueue_many((1..=20).map(|cents| Pay { cents })).await?;
    let mut paid = 0;
    for payment in &payments {
        paid += engine.result(payment).await?;
    }
    println!("{paid} cents in {} payments", payments.len());
    println!("at most {} calls at a time", bank.most.load(Ordering::SeqCst));
    // Ten at once after a rest, and then one every tenth of a second.
    println!("spread over a second: {}", began.elapsed() >= Duration::from_millis(900));

    for node in nodes {
        node.shutdown().await;
    }
    engine.close().await;
    Ok(())
}
