//! An order as a saga: reserve, charge, ship. When a step fails for good, what was done before is undone.
//!
//! Run it, and one order is shipped and two are undone. Remove `saga.db` and `world.txt`, since those orders are done, and run it
//! as `cargo run -p example-saga -- crash`: the process dies while it ships, after the carrier was told and before that was
//! recorded. Run it again without `crash`: the order goes on where it was. Nothing is charged twice, because the charge is
//! recorded; nothing is shipped twice, because the carrier knows the step's key.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::fs::{OpenOptions, read_to_string};
use std::io::Write;

use mainspring::{Context, Engine, Failure, Job, JobId, StepContext};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "order", result = String)]
struct Order {
    item: String,
    card: String,
}

async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<String> {
    let world = ctx.state::<World>()?;

    // Nothing is done yet: an error here is the job's error, and the next attempt tries again.
    ctx.step_with("reserve", async |step| world.act(&step, "reserve", &job.item)).await?;

    // From here on an error is survived: it is recorded with what comes next, so that a run after a crash undoes the same.
    if let Err(error) = ctx.step_with("charge", async |step| world.charge(&step, &job.card)).await {
        ctx.step_with("release", async |step| world.act(&step, "release", &job.item)).await?;
        return Ok(format!("undone: {}", Failure::from(error)));
    }
    if let Err(error) = ctx.step_with("ship", async |step| world.ship(&step, &job.item)).await {
        ctx.step_with("refund", async |step| world.act(&step, "refund", &job.card)).await?;
        ctx.step_with("release", async |step| world.act(&step, "release", &job.item)).await?;
        return Ok(format!("undone: {}", Failure::from(error)));
    }
    Ok(format!("{} is shipped", job.item))
}

/// A warehouse, a bank and a carrier: a file with a line for each thing that was done, and the key that it was asked with.
struct World {
    file: &'static str,
    crash: bool,
}

impl World {
    /// Does something, unless it was done under this key before.
    fn act(&self, step: &StepContext, what: &str, about: &str) -> mainspring::HandlerResult<()> {
        let key = step.idempotency_key();
        let done = read_to_string(self.file).unwrap_or_default();
        if done.lines().any(|line| line.ends_with(&key)) {
            println!("  {what} {about}: done before");
            return Ok(());
        }
        let mut file = OpenOptions::new().create(true).append(true).open(self.file)?;
        writeln!(file, "{what} {about} {key}")?;
        println!("  {what} {about}");
        Ok(())
    }

    fn charge(&self, step: &StepContext, card: &str) -> mainspring::HandlerResult<()> {
        if card == "expired" {
            return Err("the card has expired".into());
        }
        self.act(step, "charge", card)
    }

    fn ship(&self, step: &StepContext, item: &str) -> mainspring::HandlerResult<()> {
        if item == "piano" {
            return Err("no carrier takes it".into());
        }
        self.act(step, "ship", item)?;
        if self.crash {
            println!("  the process dies");
            std::process::abort();
        }
        Ok(())
    }
}

/// Orders have ids of their own: the same id is the same job, however often the program is run.
const ORDERS: [(&str, &str, &str); 3] = [
    ("01a1de98-55b8-78d4-8fb5-000000000001", "a lamp", "4242"),
    ("01a1de98-55b8-78d4-8fb5-000000000002", "a chair", "expired"),
    ("01a1de98-55b8-78d4-8fb5-000000000003", "piano", "4242"),
];

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let crash = std::env::args().nth(1).is_some_and(|word| word == "crash");
    let engine = Engine::open("sqlite:saga.db").await?;
    let world = World { file: "world.txt", crash };
    let node = engine.node().state(world).handle(order).queue("default", 1).start().await?;
    for (id, item, card) in ORDERS {
        println!("an order of {item}");
        let id: JobId = id.parse()?;
        let order = engine.enqueue(Order { item: item.into(), card: card.into() }).id(id).await?;
        println!("  {}", engine.result(&order).await?);
    }
    node.shutdown().await;
    engine.close().await;
    Ok(())
}
