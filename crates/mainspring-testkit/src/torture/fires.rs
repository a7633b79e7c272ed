//! Many schedules over real processes that are killed: how late are their fires, and is each there once?
//!
//! Schedules fire once a minute each, spread over the minute. Five workers fire them and run their jobs; every few seconds one of
//! them is killed and another is started. In the end each fire has one job, and what is told is how much later than its fire the
//! job was stored, by the store's own clock.

#![expect(clippy::disallowed_methods, reason = "a run takes real time, and somebody wants to know how much")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainspring::schedule::{NewSchedule, Schedule};
use mainspring_core::bounds;
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::{HEADER_SCHEDULE, fire_of};
use mainspring_core::store::{Filter, Page, ScheduleWrite, Written};
use mainspring_core::time::Timestamp;

use super::outcome::{FaultCount, Outcome};
use super::process::{Role, VictimOptions};
use super::run::{drain, leave};
use super::victim::Work;
use super::wait::insist;
use super::world::World;
use super::{Error, Plan, Result, StoreUnderTest};
use crate::checker::{CheckTerms, check};
use crate::history::Fact;

/// Workers at a time.
const WORKERS: usize = 5;
/// Between two kills.
const LIFE: Duration = Duration::from_secs(5);
/// How late a fire may be, for 99 of 100.
const LATE: Duration = Duration::from_secs(1);

/// Runs it; the plan's cycles are kills.
///
/// # Errors
/// If the run could not come to its end.
pub async fn fires(under_test: Arc<dyn StoreUnderTest>, plan: &Plan, schedules: usize) -> Result<Outcome> {
    let dir = tempfile::Builder::new().prefix("mainspring-torture-").tempdir();
    let dir = dir.map_err(Error::io("making a directory"))?;
    let began = Instant::now();
    let mut world = World::new(Arc::clone(&under_test), dir.path(), &plan.program, plan.seed, None).await?;
    let rows = make(&world, schedules).await?;
    for _ in 0..WORKERS {
        let worker = world.start(Role::Worker, &VictimOptions::default())?;
        world.workers.push(worker);
    }
    let mut tally = FaultCount::default();
    for _ in 0..plan.cycles {
        tokio::time::sleep(LIFE).await;
        let killed = world.workers.remove(0);
        world.kill(killed)?;
        let worker = world.start(Role::Worker, &VictimOptions::default())?;
        world.workers.push(worker);
        (tally.injected, tally.hit) = (tally.injected + 1, tally.hit + 1);
    }
    tokio::time::sleep(LIFE).await;
    world.note(Fact::Calm);
    let until = rest(&world, rows.values()).await?;
    drain(&world).await?;
    for mut worker in std::mem::take(&mut world.workers) {
        leave(&world, &mut worker).await?;
    }
    let terms = CheckTerms { settled: true, ..CheckTerms::default() };
    // The order of looks and changes of so many schedules says nothing that smaller runs do not, and takes long to judge.
    let mut history = world.history()?;
    history.retain(|event| !matches!(event.fact, Fact::Scheduled(_) | Fact::AskedWhatIsDue { .. }));
    let report = check(&history, &world.look().await?, terms);
    let (mut problems, figures) = judged(&world, &rows, until).await?;
    if plan.timed && figures.p99 > LATE {
        problems.push(format!("99 of 100 fires came within {:?}, not within {LATE:?}", figures.p99));
    }
    world.close().await;
    Ok(Outcome {
        store: under_test.name(),
        seed: plan.seed,
        cycles: plan.cycles,
        took: began.elapsed(),
        faults: BTreeMap::from([("kill while schedules fire".to_owned(), tally)]),
        report,
        notes: vec![format!(
            "{schedules} schedules, {} fires: later than due by {:?} in the median, {:?} at p99, {:?} at most",
            figures.fires, figures.median, figures.p99, figures.most
        )],
        problems,
        kept: None,
    })
}

/// Creates schedules that fire once a minute.
async fn make(world: &World, schedules: usize) -> Result<BTreeMap<ScheduleName, Schedule>> {
    let engine = world.engine()?.clone();
    let minute = Duration::from_mins(1);
    let model =
        NewSchedule::of("model", &Work::default()).times("every 1m").jitter(minute).grace(minute * 10);
    let model = insist("a schedule is set", async || engine.schedules().set(model.clone()).await).await?;
    insist("a schedule is deleted", async || engine.schedules().delete("model").await).await?;
    let now = model.state.last_fire;
    let mut rows = BTreeMap::new();
    for number in 0..schedules {
        let name = ScheduleName::new(format!("s{number}")).map_err(Error::store("naming a schedule"))?;
        let row = Schedule::create(name.clone(), model.definition.clone(), model.state.generation, now);
        rows.insert(name, row);
    }
    let all: Vec<&Schedule> = rows.values().collect();
    for batch in all.chunks(bounds::BATCH) {
        let write = |row: &&Schedule| ScheduleWrite {
            name: row.name.clone(),
            expected: None,
            row: Some((*row).clone()),
            jobs: Vec::new(),
            audit: None,
        };
        let writes: Vec<_> = batch.iter().map(write).collect();
        insist("schedules are created", async || engine.store().write_schedules(writes.clone()).await)
            .await?;
    }
    Ok(rows)
}

/// Pauses all of them: a time up to which they have fired whatever was due.
async fn rest(world: &World, rows: impl Iterator<Item = &Schedule>) -> Result<Timestamp> {
    let engine = world.engine()?.clone();
    let names: Vec<ScheduleName> = rows.map(|row| row.name.clone()).collect();
    let mut until = None;
    for names in names.chunks(bounds::BATCH) {
        let mut left = names.to_vec();
        while !left.is_empty() {
            let find = async || engine.store().find_schedules(left.clone()).await;
            let found = insist("schedules are found", find).await?;
            let due = insist("the time is told", async || engine.store().due_schedules(0).await).await?;
            until.get_or_insert(due.now.before(LIFE));
            let write = |row: Schedule| ScheduleWrite {
                name: row.name.clone(),
                expected: Some(row.version),
                row: Some(row.paused("rig", "the run is over", due.now)),
                jobs: Vec::new(),
                audit: None,
            };
            let writes: Vec<_> = found.into_iter().flatten().map(write).collect();
            let store = async || engine.store().write_schedules(writes.clone()).await;
            let written = insist("schedules are paused", store).await?;
            let mut written = written.into_iter();
            left.retain(|_| written.next() == Some(Written::Stale));
        }
    }
    Ok(until.unwrap_or_default())
}

/// How late fires were.
struct FireFigures {
    fires: usize,
    median: Duration,
    p99: Duration,
    most: Duration,
}

/// Compares the jobs with the fires that the rules name.
async fn judged(
    world: &World,
    rows: &BTreeMap<ScheduleName, Schedule>,
    until: Timestamp,
) -> Result<(Vec<String>, FireFigures)> {
    let engine = world.engine()?.clone();
    let mut made: BTreeMap<(&ScheduleName, Timestamp), usize> = BTreeMap::new();
    let (mut late, mut after) = (Vec::new(), None);
    loop {
        let list = async || {
            engine.store().list(Filter::default(), Page { after: after.clone(), limit: 1_000 }).await
        };
        let page = insist("jobs are listed", list).await?;
        for job in &page.jobs {
            let schedule =
                job.options.headers.get(HEADER_SCHEDULE).and_then(|name| ScheduleName::new(name).ok());
            let Some((name, row)) = schedule.and_then(|name| rows.get_key_value(&name)) else { continue };
            let fire = fire_of(&job.options).unwrap_or_default();
            *made.entry((name, fire)).or_default() += 1;
            late.push(job.created_at.since(fire.after(row.definition.rule.shift(name.as_str()))));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut problems = Vec::new();
    for (name, row) in rows {
        let rule = &row.definition.rule;
        let mut at = row.state.last_fire;
        while let Some(fire) = rule.after(at).filter(|fire| fire.after(rule.shift(name.as_str())) <= until) {
            let jobs = made.get(&(name, fire)).copied().unwrap_or(0);
            if jobs != 1 {
                problems.push(format!("{name} has {jobs} jobs for its fire of {fire}"));
            }
            at = fire;
        }
    }
    late.sort_unstable();
    let share = |hundredth: usize| late.get(late.len() * hundredth / 100).copied().unwrap_or_default();
    let most = late.last().copied().unwrap_or_default();
    Ok((problems, FireFigures { fires: late.len(), median: share(50), p99: share(99), most }))
}
