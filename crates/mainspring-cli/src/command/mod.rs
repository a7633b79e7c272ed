//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod filter;
mod fork;
pub(crate) mod job;
pub(crate) mod jobs;
pub(crate) mod kind;
pub(crate) mod limit;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod nodes;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod schedule;
pub(crate) mod signal;
pub(crate) mod tail;
pub(crate) mod verb;
pub(crate) mod watch;
pub(crate) mod why;
pub(crate) mod work;

use std::process::ExitCode;

use serde_json::Value;

use crate::args::{Args, Command};
use crate::dev;
use crate::output::Out;
use crate::report;
use crate::store::{Open, Target};

/// Runs a command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let out = Out::new(args.json);
    let target = Target { address: &args.store, relaxed: args.relaxed_durability };
    let (open_as, input) = match &args.command {
        Command::Completions(args) => {
            completions::run(args, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Man(args) => {
            man::run(args, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Bench(args) => {
            bench::run(args, target, out).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Migrate(migrate) if migrate.print => {
            migrate::print(target, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Migrate(migrate) if migrate.print_statements => {
            migrate::print_statements(target, out)?;
            return Ok(ExitCode::SUCCESS);
        }
        // What is wrong with these is told before a store is created for them.
        Command::Enqueue(args) => (Open::Create, args.rehearse().await?),
        Command::Schedule(args) if args.rehearse().await? => (Open::Create, Value::Null),
        Command::Signal(args) => (Open::Existing, args.rehearse()?),
        Command::Dev(_) => {
            dev::check(&args.store)?;
            (Open::Migrate, Value::Null)
        }
        Command::Migrate(_) => (Open::Migrate, Value::Null),
        Command::Work(_) => (Open::Create, Value::Null),
        _ => (Open::Existing, Value::Null),
    };
    let engine = target.open(open_as).await?;
    if let Some(others) = engine.describe().created {
        report::created(&engine.describe().location, others);
    }
    let result = match args.command {
        Command::Dev(dev) => dev::run(dev, target, &engine, out).await,
        Command::Work(args) => work::run(args, &engine, out).await,
        Command::Enqueue(args) => enqueue::run(&args, input, &engine, out).await,
        Command::Jobs(args) => jobs::run(*args, &engine, out).await,
        Command::Job(args) => job::run(args, &engine, out).await,
        Command::Signal(args) => signal::run(&args, &input, &engine, out).await,
        Command::Why(args) => why::run(&args, &engine, out).await,
        Command::Queue(args) => queue::run(args, &engine, out).await,
        Command::Limit(args) => limit::run(args, &engine, out).await,
        Command::Kind(args) => kind::run(args, &engine, out).await,
        Command::Schedule(args) => schedule::run(args, &engine, out).await,
        Command::Nodes => nodes::run(&engine, out).await,
        Command::Watch(args) => watch::run(&args, &engine, out).await,
        Command::Migrate(_) => migrate::run(&engine, out),
        Command::Doctor(args) => return close(&engine, doctor::run(&args, &engine, out).await).await,
        Command::Bench(_) | Command::Man(_) | Command::Completions(_) => Ok(()),
    };
    close(&engine, result.map(|()| ExitCode::SUCCESS)).await
}

/// Closes the store whatever happened.
async fn close(engine: &mainspring::Engine, result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    engine.close().await;
    result
}
