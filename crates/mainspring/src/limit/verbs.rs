//! Limits, as operators see and change them.

use std::future::IntoFuture;

use mainspring_core::audit::{AuditEntry, Subject, check_who};
use mainspring_core::limit::{
    Change, KeyChange, KeyHolder, KeyUse, Limit, LimitKey, Rate, TotalUse, check_key, unknown,
};
use mainspring_core::name::LimitName;
use mainspring_core::seam::Pending;
use mainspring_core::{Result, bounds};

use crate::engine::Engine;

/// Looks at limits and changes them. You get one from [`Engine::limits`].
///
/// A change holds for every claim that begins after it, on all nodes. It ends no job.
#[derive(Debug)]
pub struct Limits<'a> {
    engine: &'a Engine,
    who: String,
}

impl<'a> Limits<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Limits { engine, who: "application".to_owned() }
    }

    /// Sets who makes the changes that follow: the audit remembers it. Default: `application`.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.who = who.into();
        self
    }

    /// Returns all limits, sorted by name.
    pub async fn list(&self) -> Result<Vec<Limit>> {
        self.engine.store().limits().await
    }

    /// Returns a limit.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if there is none of this name.
    pub async fn get(&self, name: &str) -> Result<Limit> {
        let (name, all) = (LimitName::new(name)?, self.list().await?);
        let found = all.iter().find(|limit| limit.name == name).cloned();
        found.ok_or_else(|| unknown(&name, all.iter().map(|limit| &limit.name)))
    }

    /// Returns the keys of a limit with their counters, sorted. Keys that nobody holds, and that have no settings of their
    /// own, may be missing.
    pub fn keys(&self, name: &str) -> Keys<'a> {
        Keys { engine: self.engine, name: LimitName::new(name), after: None, most: bounds::LIMIT_KEYS_PAGE }
    }

    /// Returns who holds a key and who waits for it. The empty key is that of a limit without keys.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if there is no such limit.
    pub async fn key(&self, name: &str, key: &str) -> Result<KeyUse> {
        check_key(key)?;
        let limit = self.get(name).await?;
        self.engine.store().limit_key(limit.name, key.to_owned()).await
    }

    /// Returns the jobs that hold units of a key, at most 100.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub async fn holders(&self, name: &str, key: &str) -> Result<Vec<KeyHolder>> {
        Ok(self.key(name, key).await?.holders)
    }

    /// Changes a limit, or creates it. What you do not name stays as it is. From then on no code changes it, until you
    /// [`reset`](Self::reset) it.
    pub fn set(&self, name: &str) -> SetLimit<'a> {
        SetLimit {
            engine: self.engine,
            name: LimitName::new(name),
            change: Change::default(),
            who: self.who.clone(),
        }
    }

    /// Changes one key of a limit. What you do not name stays as it is.
    pub fn set_key(&self, name: &str, key: &str) -> SetKey<'a> {
        SetKey {
            engine: self.engine,
            key: LimitName::new(name).and_then(|name| check_key(key).map(|()| (name, key.to_owned()))),
            change: KeyChange::default(),
            who: self.who.clone(),
        }
    }

    /// Lets no more jobs in, until you resume it. Jobs that run continue.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if there is no such limit.
    pub fn pause(&self, name: &str) -> Pausing<'a> {
        self.pausing(name, true)
    }

    /// Lets jobs in again.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    pub fn resume(&self, name: &str) -> Pausing<'a> {
        self.pausing(name, false)
    }

    fn pausing(&self, name: &str, pause: bool) -> Pausing<'a> {
        let limits = Limits { engine: self.engine, who: self.who.clone() };
        Pausing { limits, name: name.to_owned(), key: None, pause }
    }

    /// Takes a person's edit back: what code said last holds again. A pause stays.
    ///
    /// # Errors
    /// [`Error::UnknownLimit`](crate::Error::UnknownLimit) if there is no such limit;
    /// [`Error::Invalid`](crate::Error::Invalid) if no code has named it.
    pub async fn reset(&self, name: &str) -> Result<Limit> {
        check_who(&self.who)?;
        let limit = self.get(name).await?;
        self.engine.store().reset_limit(limit.name, self.who.clone()).await
    }

    /// Deletes a limit. Jobs that name it are not held back by it any more, and new jobs cannot name it. Returns whether there
    /// was one. If code defines it, a starting node creates it again.
    pub async fn delete(&self, name: &str) -> Result<bool> {
        check_who(&self.who)?;
        self.engine.store().delete_limit(LimitName::new(name)?, self.who.clone()).await
    }

    /// Returns how many jobs of a queue or a kind may run at once and how many do, for those that have such a total. Queues come
    /// first, then kinds. [`Queues::set_max_running`](crate::admin::Queues::set_max_running) and
    /// [`Kinds::set_max_running`](crate::admin::Kinds::set_max_running) set them.
    pub async fn totals(&self) -> Result<Vec<TotalUse>> {
        self.engine.store().totals().await
    }

    /// Returns what was changed about a limit and its keys, the last first.
    pub async fn audit(&self, name: &str) -> Result<Vec<AuditEntry>> {
        let subject = Subject::Limit(LimitName::new(name)?);
        self.engine.store().audit(Some(subject), bounds::AUDIT).await
    }
}

/// The keys of a limit; see [`Limits::keys`]. Await it.
#[derive(Debug)]
#[must_use = "nothing is read until this is awaited"]
pub struct Keys<'a> {
    engine: &'a Engine,
    name: Result<LimitName>,
    after: Option<String>,
    most: usize,
}

impl Keys<'_> {
    /// Begins behind this key.
    pub fn after(mut self, key: impl Into<String>) -> Self {
        self.after = Some(key.into());
        self
    }

    /// Returns at most this many. Default and maximum: 1,000.
    pub fn at_most(mut self, keys: usize) -> Self {
        self.most = keys.min(bounds::LIMIT_KEYS_PAGE);
        self
    }

    async fn read(self) -> Result<Vec<LimitKey>> {
        let limit = Limits::new(self.engine).get(self.name?.as_str()).await?;
        self.engine.store().limit_keys(limit.name, self.after, self.most).await
    }
}

impl<'a> IntoFuture for Keys<'a> {
    type Output = Result<Vec<LimitKey>>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.read())
    }
}

/// A change of a limit; see [`Limits::set`]. Nothing changes until you await it.
#[derive(Debug)]
#[must_use = "nothing is changed until this is awaited"]
pub struct SetLimit<'a> {
    engine: &'a Engine,
    name: Result<LimitName>,
    change: Change,
    who: String,
}

impl SetLimit<'_> {
    /// Sets how many units may be in use at once, for each key. 0 lets nobody in, and ends no job.
    pub fn max(mut self, max: u32) -> Self {
        self.change.max = Some(Some(max));
        self
    }

    /// Lets any number of jobs run at once.
    pub fn no_max(mut self) -> Self {
        self.change.max = Some(None);
        self
    }

    /// Sets how fast jobs start, for each key.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.change.rate = Some(Some(rate));
        self
    }

    /// Lets jobs start as fast as they can.
    pub fn no_rate(mut self) -> Self {
        self.change.rate = Some(None);
        self
    }

    async fn apply(self) -> Result<Limit> {
        let name = self.name?;
        self.change.check()?;
        check_who(&self.who)?;
        self.engine.store().set_limit(name, self.change, self.who).await
    }
}

impl<'a> IntoFuture for SetLimit<'a> {
    type Output = Result<Limit>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.apply())
    }
}

/// A change of one key of a limit; see [`Limits::set_key`]. Nothing changes until you await it.
#[derive(Debug)]
#[must_use = "nothing is changed until this is awaited"]
pub struct SetKey<'a> {
    engine: &'a Engine,
    key: Result<(LimitName, String)>,
    change: KeyChange,
    who: String,
}

impl SetKey<'_> {
    /// Gives the key a maximum of its own.
    pub fn max(mut self, max: u32) -> Self {
        self.change.max = Some(Some(max));
        self
    }

    /// Gives the key the maximum of the limit again.
    pub fn default_max(mut self) -> Self {
        self.change.max = Some(None);
        self
    }

    async fn apply(self) -> Result<LimitKey> {
        let (name, key) = self.key?;
        self.change.check()?;
        check_who(&self.who)?;
        self.engine.store().set_limit_key(name, key, self.change, self.who).await
    }
}

impl<'a> IntoFuture for SetKey<'a> {
    type Output = Result<LimitKey>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.apply())
    }
}

/// Pauses or resumes a limit, or one of its keys; see [`Limits::pause`]. Nothing changes until you await it.
#[derive(Debug)]
#[must_use = "nothing is changed until this is awaited"]
pub struct Pausing<'a> {
    limits: Limits<'a>,
    name: String,
    key: Option<String>,
    pause: bool,
}

impl Pausing<'_> {
    /// Only this key.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    async fn apply(self) -> Result<()> {
        let Pausing { limits, name, key, pause } = self;
        let paused = Some(pause);
        if let Some(key) = key {
            let mut change = limits.set_key(&name, &key);
            change.change.paused = paused;
            return change.await.map(drop);
        }
        // A change of a limit that is not there would create it.
        let mut change = limits.set(limits.get(&name).await?.name.as_str());
        change.change.paused = paused;
        change.await.map(drop)
    }
}

impl<'a> IntoFuture for Pausing<'a> {
    type Output = Result<()>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.apply())
    }
}
