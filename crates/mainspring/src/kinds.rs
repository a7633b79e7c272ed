//! Kinds, as operators see them.

use mainspring_core::Result;
use mainspring_core::audit::check_who;
use mainspring_core::limit::Total;
use mainspring_core::name::Kind;

use crate::engine::Engine;

/// Changes what holds for a kind in all queues. You get one from [`Engine::kinds`].
#[derive(Debug)]
pub struct Kinds<'a> {
    engine: &'a Engine,
    who: String,
}

impl<'a> Kinds<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Kinds { engine, who: "application".to_owned() }
    }

    /// Sets who makes the changes that follow: the audit remembers it. Default: `application`.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// Sets how many jobs of a kind run at once over all nodes and queues. `None`: as many as there are slots. It counts
    /// the jobs that run now, and ends none of them. [`Limits::totals`](crate::limit::Limits::totals) lists what is set.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if `kind` is not a kind's name;
    /// [`Error::TooLarge`](crate::Error::TooLarge) beyond 1,000,000.
    pub async fn set_max_running(&self, kind: &str, max: Option<u32>) -> Result<()> {
        Total::check(max)?;
        check_who(&self.who)?;
        let kind = Total::Kind(Kind::new(kind)?);
        self.engine.store().set_total(kind, max, self.who.clone()).await
    }
}
