//! A limit that code names.

use mainspring_core::Result;
use mainspring_core::limit::{Definition, LimitSeed, Rate, Seed};
use mainspring_core::name::LimitName;

/// What code says of a limit: for [`NodeBuilder::limit`](crate::NodeBuilder::limit) and
/// [`Job::limit_seeds`](crate::Job::limit_seeds).
///
/// It creates the limit if there is none of its name. A person's edit wins for ever, until somebody
/// [resets](super::Limits::reset) the limit; then the highest revision that code has named holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a limit does nothing until a node is given it"]
pub struct NewLimit {
    name: String,
    definition: Definition,
    revision: u32,
}

impl NewLimit {
    /// A limit of this name that admits everything until you say more.
    pub fn new(name: impl Into<String>) -> Self {
        NewLimit { name: name.into(), definition: Definition::default(), revision: 1 }
    }

    /// Sets how many units may be in use at once, for each key. A job takes one unit unless it says otherwise.
    pub fn max(mut self, max: u32) -> Self {
        self.definition.max = Some(max);
        self
    }

    /// Sets how fast jobs start, for each key.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.definition.rate = Some(rate);
        self
    }

    /// Sets which version of the limit this is. Default: 1. Increment it with every change: of two nodes that name one
    /// limit, the higher revision wins.
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the store is told; `by` is the version of the application.
    pub(super) fn seed(self, by: &str) -> Result<LimitSeed> {
        let name = LimitName::new(&self.name)?;
        let seed = Seed { revision: self.revision, definition: self.definition, by: by.to_owned() };
        let seed = LimitSeed { name, seed };
        seed.check()?;
        Ok(seed)
    }
}
