//! A run: cycles of faults, then peace, then the judgement.

#![expect(clippy::disallowed_methods, reason = "a run takes real time, and somebody wants to know how much")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainspring::{JobId, Reason, State};
use mainspring_core::seam::Rng;

use super::outcome::{FaultCount, Outcome};
use super::process::Role;
use super::wait::{insist, wait};
use super::world::World;
use super::{
    Error, Fault, LongRun, Result, StoreUnderTest, faults, marathon, postgres, rows, schedules, sqlite,
    victim,
};
use crate::checker::{CheckTerms, Report, check, render};
use crate::history::Fact;
use crate::rng::SeededRng;

/// For how long outcomes are locked on Postgres in a run that somebody asked for: several times a call's time.
const LOCKED: Duration = Duration::from_secs(40);

/// How a run goes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Faults to inject.
    pub cycles: usize,
    /// What all chance comes from.
    pub seed: u64,
    /// Strikes only faults whose name begins with one of these, if there are any.
    pub only: Vec<String>,
    /// The program of the victims.
    pub program: PathBuf,
    /// A defect to plant into the victims, which must then be found.
    pub planted: Option<String>,
    /// Whether it is judged how soon the dead are found. A test does not: its machine may have other things to do, and how
    /// long something takes is told in figures.
    pub timed: bool,
}

impl Plan {
    /// So many cycles with victims of this program.
    pub fn new(program: impl Into<PathBuf>, cycles: usize, seed: u64) -> Self {
        Plan { cycles, seed, only: Vec::new(), program: program.into(), planted: None, timed: false }
    }

    /// Strikes only faults whose name begins with one of these.
    #[must_use]
    pub fn only(mut self, names: &[&str]) -> Self {
        self.only.extend(names.iter().map(|name| (*name).to_owned()));
        self
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }
}

/// Tortures a store: with the faults that all stores suffer and with its own, as far as the plan wants them.
///
/// # Errors
/// If the run could not come to its end. Ledger and store are then kept, and the error says where.
pub async fn run(under_test: Arc<dyn StoreUnderTest>, plan: &Plan) -> Result<Outcome> {
    let mut faults = faults::all(&*under_test);
    faults.extend(under_test.faults());
    faults.retain(|fault| plan.wants(&fault.name()));
    if faults.is_empty() {
        return Err(Error::Unexpected(format!("no fault is called {:?}", plan.only)));
    }
    let dir = tempfile::Builder::new().prefix("mainspring-torture-").tempdir();
    let dir = dir.map_err(Error::io("making a directory"))?;
    let began = Instant::now();
    let result = judged(&under_test, plan, faults, dir.path()).await;
    let clean = result.as_ref().is_ok_and(Outcome::is_clean);
    let kept = if clean { None } else { Some(dir.keep()) };
    match result {
        Ok(outcome) => Ok(Outcome { took: began.elapsed(), kept, ..outcome }),
        Err(error) => {
            let kept = kept.map(|kept| kept.display().to_string()).unwrap_or_default();
            Err(Error::Unexpected(format!("{error} (seed {}, kept in {kept}){}", plan.seed, cause(&error))))
        }
    }
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map(|source| format!(": {source:?}")).unwrap_or_default()
}

async fn judged(
    under_test: &Arc<dyn StoreUnderTest>,
    plan: &Plan,
    mut faults: Vec<Box<dyn Fault>>,
    dir: &std::path::Path,
) -> Result<Outcome> {
    let planted = plan.planted.clone();
    let mut world = World::new(Arc::clone(under_test), dir, &plan.program, plan.seed, planted).await?;
    let mut tallies: BTreeMap<String, FaultCount> =
        faults.iter().map(|fault| (fault.name(), FaultCount::default())).collect();
    rows::make(&**under_test)?;
    schedules::make(&world).await?;
    world.populate()?;
    let rng = SeededRng::new(plan.seed);
    for cycle in 0..plan.cycles {
        let turn = cycle % faults.len();
        if turn == 0 {
            shuffle(&mut faults, &rng);
        }
        let fault = &mut faults[turn];
        let failed =
            |error| Error::Unexpected(format!("cycle {cycle}, {}: {error}{}", fault.name(), cause(&error)));
        world.busy().await.map_err(failed)?;
        let name = fault.name();
        tracing::info!(cycle, name, "strikes");
        let failed =
            |error: Error| Error::Unexpected(format!("cycle {cycle}, {name}: {error}{}", cause(&error)));
        let hit = fault.inject(&mut world).await.map_err(failed)?;
        world.replace_dead()?;
        world.goes_on().await.map_err(failed)?;
        let tally = tallies.entry(name.clone()).or_default();
        tally.injected += 1;
        tally.hit += usize::from(hit);
    }
    let report = peace(&mut world, plan.timed).await?;
    let problems = problems(&world, plan, &tallies, &report).await?;
    world.close().await;
    Ok(Outcome {
        store: under_test.name(),
        seed: plan.seed,
        cycles: plan.cycles,
        took: Duration::ZERO,
        faults: tallies,
        report,
        notes: Vec::new(),
        problems,
        kept: None,
    })
}

fn shuffle(faults: &mut [Box<dyn Fault>], rng: &SeededRng) {
    for last in (1..faults.len()).rev() {
        let other = rng.next_u64() % (last as u64 + 1);
        faults.swap(last, usize::try_from(other).unwrap_or(0));
    }
}

/// Lets everything drain, sends everybody home, and asks the checker.
async fn peace(world: &mut World, timed: bool) -> Result<Report> {
    world.note(Fact::Calm);
    for role in [Role::Operator, Role::Producer] {
        let others = std::mem::take(&mut world.others);
        let (mut gone, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|victim| victim.role == role);
        world.others = rest;
        for victim in &mut gone {
            leave(world, victim).await?;
        }
    }
    let engine = world.engine()?.clone();
    for queue in victim::QUEUES {
        insist("a queue goes on", async || engine.queues().resume(queue).await).await?;
    }
    schedules::rest(world).await?;
    drain(world).await?;
    for mut worker in std::mem::take(&mut world.workers) {
        leave(world, &mut worker).await?;
    }
    let recovery = timed.then(|| world.under_test().slack());
    let terms = CheckTerms { settled: true, recovery, claim: Some(victim::CLAIM), ..CheckTerms::default() };
    Ok(check(&world.history()?, &world.look().await?, terms))
}

/// Sends a victim home, and sees it leave in good order.
pub(super) async fn leave(world: &World, victim: &mut super::Victim) -> Result<()> {
    victim.dismiss();
    let status = world.end_of(victim).await?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Unexpected(format!("{} {} left with {status}", victim.role.as_str(), victim.number())))
}

/// Waits until no job waits or runs any more; what operators held is let go.
pub(super) async fn drain(world: &World) -> Result<()> {
    let engine = world.engine()?.clone();
    let open = [State::Ready, State::Running, State::Scheduled, State::Blocked];
    let waited = wait("everything has drained", async || {
        let suspended = world.jobs(&[State::Suspended]).await?;
        for job in suspended.iter().filter(|job| job.status.reason == Some(Reason::Hold)) {
            // It may have been let go meanwhile.
            drop(engine.jobs().resume(job.id).await);
        }
        if suspended.iter().any(|job| job.status.reason.is_some_and(Reason::awaits)) {
            return Ok(None);
        }
        let counts = insist("counts", async || engine.jobs().counts().await).await?;
        Ok(open.iter().all(|state| counts.total(*state) == 0).then_some(()))
    })
    .await;
    if waited.is_err() {
        let left = world.jobs(&open).await?;
        let first = match left.first() {
            Some(job) => {
                let why = insist("a job says why", async || engine.jobs().why(job.id).await).await?;
                format!(": {} {}: {why}{}", job.id, job.status, timeline(world, job.id)?)
            }
            None => String::new(),
        };
        let count = left.len();
        return Err(Error::Unexpected(format!("{count} jobs are left when all must be done{first}")));
    }
    Ok(())
}

/// What is wrong beside the checker's rules.
async fn problems(
    world: &World,
    plan: &Plan,
    tallies: &BTreeMap<String, FaultCount>,
    report: &Report,
) -> Result<Vec<String>> {
    let mut problems: Vec<String> = tallies
        .iter()
        .filter(|(_, tally)| tally.injected > 0 && tally.hit == 0)
        .map(|(name, tally)| format!("`{name}` was injected {} times and never hit", tally.injected))
        .collect();
    for job in world.jobs(&[State::Suspended]).await? {
        let guilty = job.kind.as_str() == <victim::Crasher as mainspring::Job>::KIND;
        if !guilty && !world.excused.contains(&job.id) && job.status.reason == Some(Reason::Quarantine) {
            problems.push(format!(
                "{} is innocent, and under quarantine{}",
                job.id,
                timeline(world, job.id)?
            ));
        }
    }
    problems.extend(rows::wrong(&**world.under_test(), &rows::written(world).await?)?);
    let mut recoveries = report.figures.peaceful.clone();
    recoveries.sort_unstable();
    if let Some(median) = recoveries.get(recoveries.len() / 2)
        && plan.timed
        && *median > world.under_test().recovery()
    {
        let bound = world.under_test().recovery();
        problems
            .push(format!("deaths in peace were found after {median:?} in the median, not within {bound:?}"));
    }
    Ok(problems)
}

/// What happened to a job, and to everybody.
fn timeline(world: &World, id: JobId) -> Result<String> {
    let mut history = world.history()?;
    history.retain(|event| {
        event.fact.job() == Some(id) || matches!(event.fact, Fact::Fault { .. } | Fact::Expired { .. })
    });
    Ok(std::iter::once(String::new()).chain(render(&history)).collect::<Vec<_>>().join("\n    "))
}

/// Runs what a command line says: `--store sqlite|postgres --cycles N [--seed S] [--only FAULT]…`, or `--marathon
/// KILLS` in place of cycles, or `--schedules N` for that many schedules over workers of which so many are killed, with victims
/// that live beside this program.
///
/// # Errors
/// If the arguments are wrong, or the run could not come to its end.
pub async fn command(arguments: &[String]) -> Result<Outcome> {
    let program = std::env::current_exe().map_err(Error::io("finding this program"))?;
    let mut plan = Plan::new(program.with_file_name("mainspring-victim"), 100, 1);
    plan.timed = true;
    let (mut store, mut long, mut schedules) = (None, None, None);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().ok_or_else(|| Error::Unexpected(format!("`{flag}` needs a value")))?;
        let number = || value.parse().map_err(|_| Error::Unexpected(format!("{flag} {value}: not a number")));
        match flag.as_str() {
            "--store" => store = Some(value.clone()),
            "--cycles" => plan.cycles = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--seed" => plan.seed = number()?,
            "--only" => plan.only.push(value.clone()),
            "--plant" => plan.planted = Some(value.clone()),
            "--schedules" => schedules = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            "--marathon" => long = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            _ => return Err(Error::Unexpected(format!("`{flag}` is not understood"))),
        }
    }
    let under_test: Arc<dyn StoreUnderTest> = match store.as_deref() {
        Some("sqlite") => Arc::new(sqlite::Sqlite::new()?),
        Some("postgres") => Arc::new(postgres::Postgres::new()?.locked_for(LOCKED)),
        other => return Err(Error::Unexpected(format!("--store sqlite or postgres, not {other:?}"))),
    };
    if let Some(schedules) = schedules {
        return super::fires(under_test, &plan, schedules).await;
    }
    match long {
        Some(kills) => {
            plan.cycles = kills;
            marathon(under_test, &plan, LongRun { flows: 200, steps: 20, millis: 100 }).await
        }
        None => run(under_test, &plan).await,
    }
}
