//! An approval over days: ask, wait for an answer, remind twice, give up.
//!
//! While it waits the workflow is a row in the store: no slot, no task, no connection. Here it runs on a test engine, whose
//! clock is moved by hand, so that weeks pass in a moment. With `Engine::open("sqlite:app.db")` the same handler waits
//! for as long as it takes, through restarts and deploys; `mainspring signal ID decision '{"by":"ada","approved":true}'` is
//! then one way to answer.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use mainspring::testing::{Error, TestEngine};
use mainspring::{Context, Job};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "expense", result = String, signals(decision = Decision))]
struct Expense {
    who: String,
    euros: u32,
}

#[derive(Serialize, Deserialize)]
struct Decision {
    by: String,
    approved: bool,
}

const DAY: Duration = Duration::from_hours(24);

async fn expense(ctx: Context, job: Expense) -> mainspring::HandlerResult<String> {
    let ask = async |words: &'static str| {
        println!("  mail: {words} {} euros for {}", job.euros, job.who);
        Ok(())
    };
    ctx.step("ask", || ask("please approve")).await?;
    for last in [false, false, true] {
        let Some(decision) = ctx.signal(Expense::DECISION).timeout(3 * DAY).await? else {
            if !last {
                ctx.step("remind", || ask("do not forget")).await?;
            }
            continue;
        };
        if !decision.approved {
            return Ok(format!("declined by {}", decision.by));
        }
        ctx.step("pay", || ask("we have paid")).await?;
        return Ok(format!("approved by {}", decision.by));
    }
    Ok("nobody answered".to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let test = TestEngine::new();
    test.node(|node| node.handle(expense).queue("default", 1)).await?;

    println!("ada answers on the fourth day");
    let trip = test.enqueue(Expense { who: "a trip".into(), euros: 120 }).await?;
    test.run_until_idle().await?;
    println!("  why: {}", test.jobs().why(trip.id).await?);
    test.advance(4 * DAY).await?;
    let approved = Decision { by: "ada".into(), approved: true };
    test.signal(trip, Expense::DECISION, &approved).sender("ada").await?;
    test.run_until_idle().await?;
    println!("  {}", test.outcome(&trip)?);

    println!("nobody answers");
    let yacht = test.enqueue(Expense { who: "a yacht".into(), euros: 90_000 }).await?;
    test.advance(9 * DAY).await?;
    println!("  {}", test.outcome(&yacht)?);
    Ok(())
}
