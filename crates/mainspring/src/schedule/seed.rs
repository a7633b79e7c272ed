//! Schedules that code names: created when a node starts, and never against a person.

use mainspring_core::audit::{AuditEntry, Subject};
use mainspring_core::name::ScheduleName;
use mainspring_core::schedule::{Definition, Schedule, Seed};
use mainspring_core::store::{ScheduleWrite, Written};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};

use super::verbs::{ROUNDS, fresh, json};
use crate::engine::Engine;

/// Creates what is not there, replaces what code of a lower revision has said, and notes that code names them all.
pub(crate) async fn plant(
    engine: &Engine,
    mut seeds: Vec<(ScheduleName, Definition, u32)>,
    version: &str,
) -> Result<()> {
    seeds.sort_by(|(left, ..), (right, ..)| left.cmp(right));
    if let Some(twice) = seeds.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::NodeSetup { why: format!("schedule `{}` is named twice", twice[0].0) });
    }
    let now = engine.seams().clock.now();
    for (name, definition, _) in &seeds {
        definition.check(name, engine.bounds(), now).map_err(|error| match error {
            Error::Invalid { what, why } => Error::Invalid { what, why: format!("schedule `{name}`: {why}") },
            error => error,
        })?;
    }
    for seeds in seeds.chunks(bounds::BATCH) {
        plant_batch(engine, seeds, version).await?;
    }
    Ok(())
}

async fn plant_batch(
    engine: &Engine,
    seeds: &[(ScheduleName, Definition, u32)],
    version: &str,
) -> Result<()> {
    let mut left: Vec<_> = seeds.iter().collect();
    for _ in 0..ROUNDS {
        let names = left.iter().map(|(name, ..)| name.clone()).collect();
        let found = engine.store().find_schedules(names).await?;
        // The store's own time; a schedule begins when it is created.
        let now = engine.store().due_schedules(0).await?.now;
        let writes =
            left.iter().zip(found).map(|(seed, found)| write(engine, seed, found, version, now)).collect();
        let answers = engine.store().write_schedules(writes).await?;
        let mut answers = answers.into_iter();
        left.retain(|_| !matches!(answers.next(), Some(Written::Stored(_))));
        if left.is_empty() {
            return Ok(());
        }
    }
    Err(Error::unavailable("other callers keep changing the schedules"))
}

fn write(
    engine: &Engine,
    (name, definition, revision): &(ScheduleName, Definition, u32),
    found: Option<Schedule>,
    version: &str,
    now: Timestamp,
) -> ScheduleWrite {
    let seed = Seed { revision: *revision, by: version.to_owned(), seen: now };
    let row = if let Some(found) = &found {
        found.seeded(definition, &seed, now)
    } else {
        let mut row = Schedule::create(name.clone(), definition.clone(), fresh(engine), now);
        row.state.seed = Some(seed);
        row
    };
    let changed = found.as_ref().is_none_or(|found| found.definition != row.definition);
    let audit = changed.then(|| AuditEntry {
        no: 0,
        at: now,
        who: format!("code {}", version.chars().filter(|c| !c.is_control()).take(64).collect::<String>()),
        subject: Subject::Schedule(name.clone()),
        request: None,
        verb: if found.is_some() { "seed" } else { "create" }.to_owned(),
        old: found.as_ref().map(json),
        new: Some(json(&row)),
    });
    let expected = found.map(|found| found.version);
    ScheduleWrite { name: name.clone(), expected, row: Some(row), jobs: Vec::new(), audit }
}
