//! Other systems for durable workflows, on the same machine and the same server, in the same run.
//!
//! Each is a program of its own below `bench/peers`, because its database crates are not ours; `peer.rs` there says what
//! it is asked and answers. All do the same work: one workflow of trivial steps with a result of 200 bytes, then many such
//! workflows at the same time, in rounds of which the first is not measured. Ours does that work here.
//!
//! # Invariants
//! - A figure counts only if the steps that it speaks of are in the database afterwards.
//! - A peer that does not build, does not end or answers wrong is reported as such.
//! - Ours is compared with a peer at the same durability.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::sync::{Barrier, mpsc};

use crate::database::{Database, Place};
use crate::program::{self, Figure};
use crate::report::Report;
use crate::steps::{Flow, bell, flow};

/// Workflows at the same time, steps of each, and how long they may take.
const CROWDS: [(usize, usize, Duration); 2] =
    [(64, 50, Duration::from_mins(1)), (256, 50, Duration::from_secs(30))];

/// Steps of each workflow in the round that is not measured.
const WARM: usize = 5;

/// How long the one workflow may take.
const ALONE: Duration = Duration::from_mins(1);

/// Rounds are repeated for so long.
const ROUNDS: Duration = Duration::from_secs(1);

/// A system on one store.
struct Peer {
    /// The folder of its program.
    folder: &'static str,
    /// The crate whose version is shown.
    name: &'static str,
    store: &'static str,
    /// How many steps its database holds.
    recorded: &'static str,
    /// Steps of the one workflow.
    alone: usize,
    settings: &'static [Setting],
}

/// How a system is set up.
struct Setting {
    /// What its program calls it.
    name: &'static str,
    /// What a reader needs to know.
    shown: &'static str,
    /// Whether a power cut may take what was acknowledged.
    relaxed: bool,
}

const fn full(name: &'static str, shown: &'static str) -> Setting {
    Setting { name, shown, relaxed: false }
}

const fn relaxed(name: &'static str, shown: &'static str) -> Setting {
    Setting { name, shown, relaxed: true }
}

static PEERS: [Peer; 4] = [
    Peer {
        folder: "durare",
        name: "durare",
        store: "sqlite",
        recorded: "SELECT count(*) FROM operation_outputs",
        alone: 1_000,
        settings: &[
            relaxed("shipped", "as shipped: synchronous NORMAL, pool of 5"),
            full("full", "synchronous FULL, pool of 5"),
        ],
    },
    Peer {
        folder: "durare",
        name: "durare",
        store: "postgres",
        recorded: "SELECT count(*) FROM dbos.operation_outputs",
        alone: 1_000,
        settings: &[full("shipped", "as shipped: pool of 8"), full("32", "pool of 32")],
    },
    Peer {
        folder: "dbos",
        name: "dbos",
        store: "postgres",
        recorded: "SELECT count(*) FROM dbos.operation_outputs",
        alone: 1_000,
        settings: &[full("shipped", "as shipped: pool of 10"), full("32", "pool of 32")],
    },
    Peer {
        folder: "duroxide",
        name: "duroxide",
        store: "sqlite",
        recorded: "SELECT count(*) FROM history WHERE event_type = 'ActivityCompleted'",
        alone: 200,
        settings: &[
            relaxed("shipped", "as shipped: synchronous NORMAL, polls every 100 ms"),
            full("full", "synchronous FULL, polls every 100 ms"),
            full("quick", "synchronous FULL, polls every 1 ms"),
        ],
    },
];

/// A peer whose program is there, or why it is not.
pub(crate) struct Built {
    peer: &'static Peer,
    system: String,
    program: Result<PathBuf, String>,
}

/// Builds the peers of a store.
pub(crate) fn build(store: &str) -> Result<Vec<Built>> {
    PEERS.iter().filter(|peer| peer.store == store).map(built).collect()
}

fn built(peer: &'static Peer) -> Result<Built> {
    let system = format!("{} {}", peer.name, program::version(peer.folder, peer.name)?);
    Ok(Built { peer, system, program: program::build(peer.folder, &[peer.store])? })
}

/// Measures ours and theirs.
pub(crate) async fn run(place: &Place, report: &Report, peers: &[Built]) -> Result<()> {
    let settings = |relaxed| peers.iter().flat_map(|it| it.peer.settings).any(|it| it.relaxed == relaxed);
    let (mut durable, mut quick) = (None, None);
    for (relaxed, system, ours) in [
        (false, "mainspring, beside its peers", &mut durable),
        (true, "mainspring, relaxed durability, beside its peers", &mut quick),
    ] {
        if !settings(relaxed) {
            continue;
        }
        report.heading(system);
        for (workflows, steps, _) in CROWDS {
            let rate = mainspring(place, workflows, steps, relaxed).await?;
            report.figure_below(system, &crowd(workflows, steps), Ok(rate), "steps/s");
            ours.get_or_insert(rate);
        }
    }
    for built in peers {
        for setting in built.peer.settings {
            let ours = if setting.relaxed { quick } else { durable };
            measure(place, report, built, setting, ours.context("ours was not measured")?).await?;
        }
    }
    Ok(())
}

fn crowd(workflows: usize, steps: usize) -> String {
    if workflows == 1 {
        return format!("a step of one workflow, {steps} in a row");
    }
    format!("{workflows} workflows x {steps} steps")
}

/// Measures one peer with one setting.
async fn measure(place: &Place, report: &Report, built: &Built, setting: &Setting, ours: f64) -> Result<()> {
    let system = format!("{} ({})", built.system, setting.shown);
    report.heading(&system);
    let program = match &built.program {
        Ok(program) => program,
        Err(why) => {
            report.figure_below(&system, "anything", Err(why), "");
            return Ok(());
        }
    };
    let alone = std::iter::once((1, built.peer.alone, ALONE));
    for (workflows, steps, limit) in alone.chain(CROWDS) {
        let database = place.database("peer")?;
        match asked(program, built.peer, setting, &database, (workflows, steps), limit).await {
            Ok(figures) => {
                for figure in &figures {
                    report.figure_below(&system, &figure.metric, Ok(figure.value), &figure.unit);
                }
                if let (64, [figure]) = (workflows, figures.as_slice()) {
                    let metric = format!("mainspring : this, {}", figure.metric);
                    report.figure_below(&system, &metric, Ok(ours / figure.value), "ratio");
                }
            }
            Err(why) => {
                report.figure_below(&system, &crowd(workflows, steps), Err(&format!("{why:#}")), "");
            }
        }
    }
    Ok(())
}

/// Runs a program and looks whether its database holds what it says.
async fn asked(
    program: &Path,
    peer: &Peer,
    setting: &Setting,
    database: &Database,
    (workflows, steps): (usize, usize),
    limit: Duration,
) -> Result<Vec<Figure>> {
    let args = [database.address(), setting.name.to_owned(), workflows.to_string(), steps.to_string()];
    let mut figures = program::ask(program, &args, limit).await?;
    let said = figures.pop().context("answers nothing")?;
    ensure!(said.unit == "steps" && !figures.is_empty(), "answers something else");
    let recorded = database.number(peer.recorded)?;
    ensure!(
        said.value >= (workflows * steps) as f64 && recorded.total_cmp(&said.value).is_eq(),
        "answers wrong: {} steps in its database, {} by its account",
        recorded,
        said.value
    );
    Ok(figures)
}

/// Steps per second of ours, by the same rules.
async fn mainspring(place: &Place, workflows: usize, steps: usize, relaxed: bool) -> Result<f64> {
    let database = place.database("peers")?;
    let engine = if relaxed { database.open_relaxed().await? } else { database.open().await? };
    let gate = Arc::new(Barrier::new(workflows + 1));
    let (mut bell, _heard) = bell();
    bell.gate = Some(Arc::clone(&gate));
    let (told, mut tell) = mpsc::unbounded_channel();
    let node = engine
        .node()
        .handle(flow)
        .state(bell)
        .queue("default", u32::try_from(workflows)?)
        .on_outcome(move |_, _| {
            let _gone = told.send(());
        })
        .start()
        .await?;
    let (mut measured, mut spent, mut all) = (0, Duration::ZERO, 0);
    while spent < ROUNDS {
        let warm = all == 0;
        let each = if warm { WARM } else { steps };
        engine.enqueue_many((0..workflows).map(|_| Flow::Steps(each))).await?;
        gate.wait().await;
        let began = Instant::now();
        for _ in 0..workflows {
            tell.recv().await.context("the node stopped")?;
        }
        all += workflows * each;
        if !warm {
            measured += workflows * each;
            spent += began.elapsed();
        }
    }
    crate::queue::stop(node, engine).await;
    let recorded = database.number(match &database {
        Database::Sqlite(_) => "SELECT count(*) FROM mainspring_steps",
        Database::Postgres(_) => "SELECT count(*) FROM mainspring.steps",
    })?;
    ensure!(recorded.total_cmp(&(all as f64)).is_eq(), "{recorded} steps in the database instead of {all}");
    Ok(measured as f64 / spent.as_secs_f64())
}
