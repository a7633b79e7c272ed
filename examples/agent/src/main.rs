//! An agent: a loop of ten thousand turns. In each a model streams what it thinks, and a tool does what it says. Now and then
//! the tool may only do it with somebody's approval, for which the agent waits without keeping anything busy.
//!
//! Of all turns only the last state is kept. What was said is stored and tailed live.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::ops::ControlFlow;

use mainspring::tail::TailEvent;
use mainspring::{Context, Engine, Enqueued, Job};
use serde::{Deserialize, Serialize};

const TURNS: u64 = 10_000;
/// Each so many turns the agent wants to do something that needs approval.
const RISKY: u64 = 2_500;

#[derive(Serialize, Deserialize, Job)]
#[job(kind = "agent", result = u64)]
struct Agent {
    turns: u64,
}

/// What the agent knows after a turn.
#[derive(Serialize, Deserialize)]
struct Memory {
    turn: u64,
    sum: u64,
}

async fn agent(ctx: Context, job: Agent) -> mainspring::HandlerResult<u64> {
    let begin = Memory { turn: 1, sum: 0 };
    let sum = ctx.iterate("turns", begin, async |ctx, memory| turn(ctx, memory, job.turns).await).await?;
    ctx.step("report", async || Ok(())).await?;
    Ok(sum)
}

async fn turn(
    ctx: Context,
    Memory { turn, sum }: Memory,
    last: u64,
) -> mainspring::HandlerResult<ControlFlow<u64, Memory>> {
    let wanted = ctx.step_with("model", async |step| {
        for token in ["add", "one"] {
            step.emit(token).await?;
        }
        Ok(1_u64)
    });
    let wanted = wanted.await?;
    if turn % RISKY == 0 {
        ctx.emit(Question { approve: turn }).await?;
        let approved: bool = ctx.signal("approved").await?;
        if !approved {
            return Ok(ControlFlow::Break(sum));
        }
    }
    let sum = ctx.step("tool", async || Ok(sum + wanted)).await?;
    Ok(if turn == last {
        ControlFlow::Break(sum)
    } else {
        ControlFlow::Continue(Memory { turn: turn + 1, sum })
    })
}

/// What the agent asks people.
#[derive(Serialize, Deserialize)]
struct Question {
    approve: u64,
}

#[tokio::main]
async fn main() -> Result<(), mainspring::Error> {
    let engine = Engine::open("memory:").await?;
    let node = engine.node().handle(agent).queue("default", 1).start().await?;
    let job = engine.enqueue(Agent { turns: TURNS }).await?;
    let said = watch(&engine, &job).await?;
    println!("the sum is {}", engine.result(&job).await?);
    println!(
        "frames: {said}, records that are left: {}",
        engine.jobs().timeline(job.id).await?.entries.len()
    );
    node.shutdown().await;
    engine.close().await;
    Ok(())
}

/// Shows the first words and all questions, and says yes to them. How far the output went.
async fn watch(engine: &Engine, job: &Enqueued<Agent>) -> Result<u64, mainspring::Error> {
    let mut tail = engine.tail(job.id);
    while let Some(told) = tail.next().await? {
        let TailEvent::Frame(frame) = told else { continue };
        if let Ok(Question { approve }) = frame.json() {
            println!("turn {approve}: approved");
            engine.signal(job, "approved", &true).await?;
        } else if frame.position <= 4 {
            println!("{}", frame.text());
        }
    }
    Ok(tail.position())
}
