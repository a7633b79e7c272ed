//! Limits that code names: created when a node starts or a job of their type is enqueued, and never against a person.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::sync::PoisonError;

use mainspring_core::{Error, Result, bounds};

use super::NewLimit;
use crate::engine::Engine;
use crate::job::Job;
use crate::sync::Mutex;

/// Who names limits that come with an enqueue, which knows no version of its application.
const ENQUEUE: &str = "application";

/// Tells the store what code says of limits.
///
/// # Errors
/// [`Error::NodeSetup`] if one is named twice and not alike.
pub(crate) async fn plant(engine: &Engine, mut seeds: Vec<NewLimit>, by: &str) -> Result<()> {
    seeds.sort_by(|one, other| one.name().cmp(other.name()));
    seeds.dedup();
    if let Some(twice) = seeds.windows(2).find(|pair| pair[0].name() == pair[1].name()) {
        let why = format!("limit `{}` is named twice, with different settings", twice[0].name());
        return Err(Error::NodeSetup { why });
    }
    // The audit takes no control characters, and an empty version is nobody.
    let by: String = by.chars().filter(|c| !c.is_control()).take(64).collect();
    let by = if by.is_empty() { ENQUEUE } else { by.as_str() };
    let mut seeds = seeds.into_iter().map(|seed| seed.seed(by)).collect::<Result<Vec<_>>>()?;
    while !seeds.is_empty() {
        let rest = seeds.split_off(seeds.len().min(bounds::LIMITS));
        engine.store().seed_limits(std::mem::replace(&mut seeds, rest)).await?;
    }
    Ok(())
}

/// What the type of a job says of its limits.
#[derive(Clone, Copy)]
pub(crate) struct TypeSeeds {
    /// `None`: the type is not known.
    of: Option<TypeId>,
    seeds: fn() -> Vec<NewLimit>,
}

impl TypeSeeds {
    pub(crate) fn of<J: Job>() -> Self {
        TypeSeeds { of: Some(TypeId::of::<J>()), seeds: J::limit_seeds }
    }

    pub(crate) fn unknown() -> Self {
        TypeSeeds { of: None, seeds: Vec::new }
    }

    /// Tells the store of them, once per type and engine.
    pub(crate) async fn plant(self, engine: &Engine) -> Result<()> {
        let Some(of) = self.of.filter(|of| !engine.planted().has(*of)) else { return Ok(()) };
        plant(engine, (self.seeds)(), ENQUEUE).await?;
        engine.planted().add(of);
        Ok(())
    }

    /// Tells the store again, because it does not know a limit any more. Whether there was something to tell.
    pub(crate) async fn plant_again(self, engine: &Engine) -> Result<bool> {
        let seeds = (self.seeds)();
        let some = !seeds.is_empty();
        plant(engine, seeds, ENQUEUE).await?;
        Ok(some)
    }
}

/// The types of jobs whose limits an engine has told its store of.
#[derive(Default)]
pub(crate) struct Planted(Mutex<BTreeSet<TypeId>>);

impl Planted {
    fn has(&self, of: TypeId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&of)
    }

    fn add(&self, of: TypeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(of);
    }
}
