//! What code and people say of a limit, and who wins.

use serde::{Deserialize, Serialize};

use super::Rate;
use crate::audit::{Subject, check_who};
use crate::name::{Kind, LimitName, QueueName};
use crate::{Error, Result, bounds};

/// How many jobs at once, and how fast they start. For each key of the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// How many units at once; `None`: any number. 0 lets nobody in, and ends nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// How fast; `None`: as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl Definition {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        check_max(self.max)?;
        self.rate.map_or(Ok(()), |rate| rate.check())
    }
}

/// Checks a maximum.
pub(super) fn check_max(max: Option<u32>) -> Result<()> {
    match max {
        Some(max) if max > bounds::LIMIT_MAX => Err(Error::TooLarge {
            what: "maximum of a limit",
            size: max as usize,
            limit: bounds::LIMIT_MAX as usize,
        }),
        _ => Ok(()),
    }
}

/// A limit, as a store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Its name.
    pub name: LimitName,
    /// What holds.
    #[serde(flatten)]
    pub definition: Definition,
    /// Whether it lets nobody in.
    #[serde(default)]
    pub paused: bool,
    /// What code said last, whether it holds or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
    /// The person who defined it last. What code says does not change it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited_by: Option<String>,
}

/// What code says of a limit that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seed {
    /// A higher one replaces a lower one. Of the same revision, the first holds.
    pub revision: u32,
    /// The definition.
    pub definition: Definition,
    /// The version of the application that gave it.
    pub by: String,
}

/// A limit that code names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSeed {
    /// The limit.
    pub name: LimitName,
    /// What code says of it.
    pub seed: Seed,
}

impl LimitSeed {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        self.seed.definition.check()?;
        check_who(&self.seed.by)
    }

    /// What becomes of a limit when code names it; `None` if it stays as it is.
    pub fn apply(&self, before: Option<&Limit>) -> Option<Limit> {
        let Some(before) = before else {
            return Some(Limit {
                name: self.name.clone(),
                definition: self.seed.definition,
                paused: false,
                seed: Some(self.seed.clone()),
                edited_by: None,
            });
        };
        if before.seed.as_ref().is_some_and(|seed| seed.revision >= self.seed.revision) {
            return None;
        }
        let definition = if before.edited_by.is_some() { before.definition } else { self.seed.definition };
        Some(Limit { definition, seed: Some(self.seed.clone()), ..before.clone() })
    }
}

/// A person's change of a limit. `None` leaves a setting as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Change {
    /// Sets the maximum; `Some(None)` removes it.
    pub max: Option<Option<u32>>,
    /// Sets the rate; `Some(None)` removes it.
    pub rate: Option<Option<Rate>>,
    /// Pauses or resumes it. That alone does not make it a person's: what code says next still holds.
    pub paused: Option<bool>,
}

impl Change {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::TooLarge`] or [`Error::Invalid`].
    pub fn check(&self) -> Result<()> {
        check_max(self.max.flatten())?;
        self.rate.flatten().map_or(Ok(()), |rate| rate.check())
    }

    /// The word for it in the audit.
    pub fn verb(&self, before: Option<&Limit>) -> &'static str {
        match (before, self.paused) {
            (None, _) => "create",
            (Some(_), Some(paused)) if self.max.is_none() && self.rate.is_none() => pausing(paused),
            _ => "set",
        }
    }

    /// What becomes of a limit; one that is not there is created.
    pub fn apply(&self, name: &LimitName, before: Option<&Limit>, who: &str) -> Limit {
        let mut limit = before.cloned().unwrap_or_else(|| Limit {
            name: name.clone(),
            definition: Definition::default(),
            paused: false,
            seed: None,
            edited_by: Some(who.to_owned()),
        });
        if let Some(max) = self.max {
            limit.definition.max = max;
        }
        if let Some(rate) = self.rate {
            limit.definition.rate = rate;
        }
        if self.max.is_some() || self.rate.is_some() {
            limit.edited_by = Some(who.to_owned());
        }
        limit.paused = self.paused.unwrap_or(limit.paused);
        limit
    }
}

impl Limit {
    /// The limit without a person's edit: what code said last holds again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no code has named it.
    pub fn reset(&self) -> Result<Limit> {
        let Some(seed) = &self.seed else {
            let why = format!("no code defines `{}`, so there is nothing to reset it to", self.name);
            return Err(Error::Invalid { what: "limit", why });
        };
        Ok(Limit { definition: seed.definition, edited_by: None, ..self.clone() })
    }

    /// What the audit is about.
    pub fn subject(&self) -> Subject {
        Subject::Limit(self.name.clone())
    }
}

/// A person's change of one key. `None` leaves a setting as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// Sets a maximum of its own; `Some(None)`: the limit's again.
    pub max: Option<Option<u32>>,
    /// Pauses or resumes it.
    pub paused: Option<bool>,
}

impl KeyChange {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check(&self) -> Result<()> {
        check_max(self.max.flatten())
    }

    /// The word for it in the audit.
    pub fn verb(&self) -> &'static str {
        match self.paused {
            Some(paused) if self.max.is_none() => pausing(paused),
            _ => "set",
        }
    }

    /// What becomes of the key.
    pub fn apply(&self, key: &mut super::KeyState) {
        key.max = self.max.unwrap_or(key.max);
        key.paused = self.paused.unwrap_or(key.paused);
    }
}

const fn pausing(paused: bool) -> &'static str {
    if paused { "pause" } else { "resume" }
}

/// What a total is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Total {
    /// Of a queue.
    Queue(QueueName),
    /// Of a kind, in all queues.
    Kind(Kind),
}

impl Total {
    /// Checks a total.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn check(max: Option<u32>) -> Result<()> {
        check_max(max)
    }

    /// What the audit is about.
    pub fn subject(&self) -> Subject {
        match self {
            Total::Queue(queue) => Subject::Queue(queue.clone()),
            Total::Kind(kind) => Subject::Kind(kind.clone()),
        }
    }
}

/// How many jobs of a queue or a kind run at once, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TotalUse {
    /// Of which.
    pub total: Total,
    /// At most so many.
    pub max: u32,
    /// So many are claimed now.
    pub in_use: u32,
}
