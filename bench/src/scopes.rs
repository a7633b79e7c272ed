//! The part of the benchmark of durable operations that is about scopes: maps, loops, races.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mainspring::Context;

use crate::database::Place;
use crate::report::Report;
use crate::steps::{self, Flow, MONTH, Options, RESULT, ReceivedSignal, SignalSender};

async fn step(ctx: &Context) -> mainspring::HandlerResult<()> {
    ctx.step("step", async || Ok("x".repeat(RESULT))).await?;
    Ok(())
}

pub(crate) async fn map(ctx: &Context, items: usize) -> mainspring::HandlerResult<()> {
    ctx.map("item", 0..items, |item| *item, async |ctx, _| step(&ctx).await).await?;
    Ok(())
}

pub(crate) async fn turns(ctx: &Context, bell: &SignalSender, turns: usize) -> mainspring::HandlerResult<()> {
    let turn = async |ctx: Context, turn: usize| {
        if turn < turns {
            step(&ctx).await?;
        } else {
            ctx.signal::<()>("go").await?;
            ring(bell, turn - turns);
        }
        if turn + 1 == turns {
            ring(bell, 0);
        }
        Ok(ControlFlow::<(), usize>::Continue(turn + 1))
    };
    ctx.iterate("turns", 0, turn).await
}

pub(crate) async fn races(ctx: &Context, bell: &SignalSender) -> mainspring::HandlerResult<()> {
    let turn = async |ctx: Context, turn: usize| {
        let race = ctx
            .race("first")
            .arm("signal", async |ctx| Ok(ctx.signal::<()>("go").await?))
            .arm("month", async |ctx| Ok(ctx.sleep("month", MONTH).await?));
        race.await?;
        ring(bell, turn);
        Ok(ControlFlow::<(), usize>::Continue(turn + 1))
    };
    ctx.iterate("turns", 0, turn).await
}

fn ring(bell: &SignalSender, signal: usize) {
    let _gone = bell.rung.send(ReceivedSignal { signal, at: Instant::now(), walked: Duration::ZERO });
}

pub(crate) async fn run(options: &Options, place: &Place, report: &Report) -> Result<()> {
    const WORKFLOWS: usize = 256;
    const ITEMS: usize = 16;
    let rate = steps::drained(place, WORKFLOWS, &Flow::Map(ITEMS)).await?;
    report.figure(&format!("{WORKFLOWS} workflows x map of {ITEMS}"), rate * ITEMS as f64, "items/s");
    endless(options, place, report).await?;
    raced(place, report).await
}

/// A loop that goes on and on: whether its last turns cost what the first did.
async fn endless(options: &Options, place: &Place, report: &Report) -> Result<()> {
    const WAKES: usize = 30;
    let database = place.database("endless")?;
    let engine = database.open().await?;
    let (bell, mut heard) = steps::bell();
    let node = steps::node(&engine, 4, 0, bell).await?;
    let warm = engine.enqueue(Flow::Turns(1_000)).await?;
    heard.recv().await.context("the node stopped")?;
    steps::suspended(&engine, &warm).await?;
    let (memory, began) = (steps::resident()?, Instant::now());
    let job = engine.enqueue(Flow::Turns(options.turns)).await?;
    heard.recv().await.context("the node stopped")?;
    let name = format!("a loop of {} turns", options.turns);
    report.figure(&name, options.turns as f64 / began.elapsed().as_secs_f64(), "turns/s");
    steps::suspended(&engine, &job).await?;
    let rows = engine.jobs().timeline(job.id).await?.entries.len();
    report.figure(&format!("{name}: records kept"), rows as f64, "rows");
    report.figure(&format!("{name}: memory"), (steps::resident()? - memory).max(0.0), "bytes");
    let mut wakes = Vec::new();
    for signal in 0..WAKES {
        steps::suspended(&engine, &job).await?;
        let sent = Instant::now();
        engine.signal(job, "go", &()).await?;
        wakes.push(steps::rung(&mut heard, signal).await?.at - sent);
    }
    report.latencies(&format!("{name}: signal → handler"), &mut wakes);
    crate::queue::stop(node, engine).await;
    Ok(())
}

/// How long it takes from a signal that decides a race to the handler.
async fn raced(place: &Place, report: &Report) -> Result<()> {
    const RACES: usize = 100;
    for (cached, name) in [(1_000, "kept in memory"), (0, "from its records")] {
        let database = place.database("race")?;
        let engine = database.open().await?;
        let (bell, mut heard) = steps::bell();
        let node = steps::node(&engine, 4, cached, bell).await?;
        let job = engine.enqueue(Flow::Races).await?;
        let mut latencies = Vec::new();
        for signal in 0..RACES {
            steps::suspended(&engine, &job).await?;
            let sent = Instant::now();
            engine.signal(job, "go", &()).await?;
            latencies.push(steps::rung(&mut heard, signal).await?.at - sent);
        }
        report.latencies(&format!("race of signal and timer → handler, {name}"), &mut latencies);
        crate::queue::stop(node, engine).await;
    }
    Ok(())
}
