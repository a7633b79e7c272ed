//! Jobs, as operators see and change them.

use std::future::IntoFuture;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Priority, Reason, Record, State, Status, Summary, Unfit, Verb, Why, why};
use mainspring_core::journal::{EntryKind, Timeline, Value, Written};
use mainspring_core::name::{Key, SignalName, StepName};
use mainspring_core::seam::Pending;
use mainspring_core::store::{Changed, Counts, Filter, Listing, Page, PagePosition};
use mainspring_core::{Error, Result, bounds};

use crate::durable::drift::{self, Decision};
use crate::durable::wait::UNFIT;
use crate::engine::Engine;
use crate::fork::Fork;
use crate::rewind::RetryFrom;

/// Jobs; made by [`Engine::jobs`].
#[derive(Debug)]
pub struct Jobs<'a> {
    engine: &'a Engine,
}

/// Which jobs a verb is for: ids, or all that match a filter.
#[derive(Debug, Clone)]
pub enum Target {
    /// These.
    Ids(Vec<JobId>),
    /// All that match. A filter without a condition is refused: [`Target::All`] names all jobs.
    Filter(Filter),
    /// All jobs of the store.
    All,
}

impl From<JobId> for Target {
    fn from(id: JobId) -> Self {
        Target::Ids(vec![id])
    }
}

impl From<Vec<JobId>> for Target {
    fn from(ids: Vec<JobId>) -> Self {
        Target::Ids(ids)
    }
}

impl From<Filter> for Target {
    fn from(filter: Filter) -> Self {
        Target::Filter(filter)
    }
}

impl<'a> Jobs<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Jobs { engine }
    }

    /// Everything known of a job, payloads included.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist (any more).
    pub async fn get(&self, id: JobId) -> Result<Record> {
        self.engine.store().get(id).await?.ok_or(Error::NotFound(id))
    }

    /// A page of the jobs that match, newest first, without payloads. `after` is the cursor of the page before.
    pub async fn list(&self, filter: Filter, after: Option<PagePosition>, limit: usize) -> Result<Listing> {
        let limit = limit.min(bounds::PAGE);
        let mut listing = Listing { jobs: Vec::new(), next: after };
        if limit == 0 {
            return Ok(listing);
        }
        // One call of the store looks at a bounded number of rows; the page is filled over as many as it takes.
        loop {
            let page = Page { after: listing.next.take(), limit: limit - listing.jobs.len() };
            let part = self.engine.store().list(filter.clone(), page).await?;
            listing.jobs.extend(part.jobs);
            listing.next = part.next;
            if listing.next.is_none() || listing.jobs.len() >= limit {
                return Ok(listing);
            }
        }
    }

    /// How many jobs each queue has in each state. Costs the same however many there are.
    pub async fn counts(&self) -> Result<Counts> {
        self.engine.store().counts().await
    }

    /// The one reason that a job is not running, or that it is.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist (any more).
    pub async fn why(&self, id: JobId) -> Result<Why> {
        let job = self.get(id).await?;
        let queues = self.engine.store().queues().await?;
        let nodes = self.engine.store().nodes().await?;
        let queue = queues.iter().find(|queue| queue.name == job.summary.queue);
        let mut why = why(&job, queue, &nodes, self.engine.seams().clock.now());
        if let Why::Waiting { signals, unfit, .. } = &mut why
            && !signals.is_empty()
        {
            let awaited = |unfit: &Unfit| signals.iter().any(|(name, _)| name.as_str() == unfit.name);
            unfit.extend(self.timeline(id).await?.entries.iter().flat_map(set_aside).filter(awaited));
        }
        Ok(why)
    }

    /// Children of a job that were cancelled when it ended, and the step that started each, in the order of the steps.
    ///
    /// [`retry`](Self::retry) leaves them as they are, so a handler that waits for the result of one gets [`Error::Ended`]
    /// again. A retry [from](Self::retry_from) the first of these steps starts new ones.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the job does not exist (any more).
    pub async fn lost_children(&self, id: JobId) -> Result<Vec<LostChild>> {
        let timeline = self.timeline(id).await?;
        let lost = Status::because(State::Cancelled, Reason::Parent);
        let is_lost = |id: JobId| timeline.children.iter().any(|kin| kin.id == id && kin.status == lost);
        let child = |entry: &Written| match (&entry.value, entry.kind) {
            (Value::Here(value), EntryKind::Child) => serde_json::from_slice::<JobId>(value).ok(),
            _ => None,
        };
        let children = timeline.entries.iter().filter_map(|entry| Some((&entry.key, child(entry)?)));
        let lost = children.filter(|(_, id)| is_lost(*id));
        Ok(lost.map(|(step, id)| LostChild { step: step.clone(), id }).collect())
    }

    /// Ends waiting jobs as cancelled and asks running ones to stop: at once on this process's nodes, within a lease
    /// renewal on others.
    pub fn cancel(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Cancel { why: String::new() })
    }

    /// Runs failed, cancelled or skipped jobs again with fresh counts, and scheduled ones now. Children that were cancelled
    /// with a job stay cancelled; see [`lost_children`](Self::lost_children).
    pub fn retry(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Retry)
    }

    /// Sets waiting jobs aside.
    pub fn hold(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Hold { why: String::new() })
    }

    /// What a job has recorded, been sent and started.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it does not exist (any more).
    pub async fn timeline(&self, id: JobId) -> Result<Timeline> {
        self.engine.store().timeline(id).await?.ok_or(Error::NotFound(id))
    }

    /// Drops unread signals of a name that were sent to a job, all of them or those of one sender. Returns how many.
    ///
    /// Nobody reads a dropped signal. Its sender stays known as if it had been read: a repeat of the same send is
    /// [`SignalReceipt::Repeated`](crate::SignalReceipt::Repeated) and not stored. To correct a signal, send it with another sender, or with none.
    /// The job stays as it is: if it waits, it waits on, and if the signal has woken it, it looks, and waits again. A handler that
    /// runs may have the signal at hand already and still read it; [`hold`](Self::hold) a waiting job first to be sure.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the job does not exist (any more), [`Error::Invalid`] for what is not a signal's name.
    pub async fn drop_signals(&self, id: JobId, name: &str, sender: Option<&str>) -> Result<usize> {
        let name = SignalName::new(name)?;
        if name.as_str() == drift::DRIFT_SIGNAL {
            return Err(Error::Invalid { what: "signal", why: format!("`{name}` is the engine's own") });
        }
        let dropped = self.engine.store().drop_signals(id, name, sender.map(str::to_owned)).await?;
        dropped.ok_or(Error::NotFound(id))
    }

    /// Lets suspended jobs go on: held and quarantined ones, and those whose handler waits, which then looks again for
    /// what it waits for.
    pub fn resume(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Resume)
    }

    /// Lets a job go on that is held for drift: what its code asks for is new, and what is recorded and was not asked for is
    /// not missed because of it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Illegal`] if it is not held for drift.
    pub async fn accept_drift(&self, id: JobId) -> Result<()> {
        self.decide_drift("accept", id, Decision::Accept).await
    }

    /// Lets a job go on that is held for drift: what its code asks for as `to` is recorded as `from`.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Illegal`] if it is not held for drift, [`Error::Invalid`] for what is not a name.
    pub async fn rename_step(&self, id: JobId, from: &str, to: &str) -> Result<()> {
        let (from, to) = (StepName::new(from)?, StepName::new(to)?);
        self.decide_drift("rename", id, Decision::Rename { from: from.into(), to: to.into() }).await
    }

    /// A new job that shares what this one has recorded, up to a step: of the same kind, in the same queue, with the same input
    /// and options, but without its unique key, its parent and its deadline. The job itself is not touched, whatever it does.
    ///
    /// A child that has ended is shared with its end; one that has not is started again by the fork. Signals that were not
    /// read by then are not shared, and neither are tokens: who has one answers the job that it was made for.
    ///
    /// ```
    /// # async fn example(engine: &mainspring::Engine, id: mainspring::JobId) -> Result<(), mainspring::Error> {
    /// let fork = engine.jobs().fork(id).from("ship").result("charge", &"paid by hand").await?;
    /// println!("{} shares {} records", fork.id, fork.shared.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for a step that is not recorded, with those that are; [`Error::TooLarge`] beyond
    /// [`bounds::SHARED`] and [`bounds::SHARED_BYTES`].
    pub fn fork(&self, id: JobId) -> Fork<'a> {
        Fork::new(self.engine, id)
    }

    /// Removes what a job has recorded from a step on, and runs it again with fresh counts: one that waits, is held, has failed or
    /// was cancelled. Signals that were read after that step are unread again; children that were started after it are
    /// cancelled, unless they are to go on by themselves.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Illegal`] if it runs or has succeeded; [`Error::Invalid`] for a step that is not recorded, with
    /// those that are; [`Error::Unavailable`] if it has gone on meanwhile.
    pub fn retry_from(&self, id: JobId, step: impl Into<String>) -> RetryFrom<'a> {
        RetryFrom::new(self.engine, id, step.into())
    }

    async fn decide_drift(&self, verb: &'static str, id: JobId, decision: Decision) -> Result<()> {
        let Summary { status, claim, .. } = self.get(id).await?.summary;
        let illegal = Error::Illegal { id, verb, status };
        if status.reason != Some(Reason::Drift) {
            return Err(illegal);
        }
        // Said twice of one hold, it is said once: it must not be there for another.
        self.engine.send_drift_decision(id, &decision).sender(format!("{verb} {claim}")).await?;
        match self.resume(id).await?.changed {
            0 => Err(illegal),
            _ => Ok(()),
        }
    }

    /// Ends suspended jobs as failed.
    pub fn fail(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Fail { why: String::new() })
    }

    /// Removes jobs that are not running, with everything known of them.
    pub fn delete(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Delete)
    }

    /// Gives waiting jobs another priority, from 0 (claimed first) to 9.
    ///
    /// # Errors
    /// When it is awaited: [`Error::Invalid`] if the priority is above 9.
    pub fn set_priority(&self, target: impl Into<Target>, priority: u8) -> Change<'a> {
        self.change_by(target, Priority::new(priority).map(Verb::SetPriority))
    }

    /// Applies any verb.
    pub fn change(&self, target: impl Into<Target>, verb: Verb) -> Change<'a> {
        self.change_by(target, Ok(verb))
    }

    fn change_by(&self, target: impl Into<Target>, verb: Result<Verb>) -> Change<'a> {
        Change { engine: self.engine, target: target.into(), verb, dry_run: false, watched: None }
    }
}

/// A child that was cancelled when its parent ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostChild {
    /// The step of the parent that started it.
    pub step: Key,
    /// The child.
    pub id: JobId,
}

/// The signals that a record says were set aside.
fn set_aside(entry: &Written) -> Vec<Unfit> {
    let is_mark = entry.key.as_str().rsplit_once('#').is_some_and(|(_, mark)| mark == UNFIT);
    match &entry.value {
        Value::Here(value) if is_mark => serde_json::from_slice(value).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// What a verb did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeReport {
    /// Jobs it was applied to, or with a dry run would have been.
    pub changed: usize,
    /// Jobs that matched but are in a state to which the verb does not apply.
    pub refused: usize,
    /// Ids for which there is no job.
    pub missing: usize,
}

/// A verb on its way. Await it to apply it.
#[must_use = "nothing is changed until this is awaited"]
pub struct Change<'a> {
    engine: &'a Engine,
    target: Target,
    /// What was wrong with its arguments is answered when it is awaited, as by every builder.
    verb: Result<Verb>,
    dry_run: bool,
    watched: Option<Watched<'a>>,
}

/// A callback for how far a verb has come.
type Watched<'a> = Box<dyn FnMut(&ChangeReport) + Send + 'a>;

impl<'a> Change<'a> {
    /// Only counts what would be changed.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Tells how far it has come, after each part of at most [`bounds::BATCH`] jobs: each part is a commit of its own, and what
    /// is done stays done if a later part fails.
    pub fn watched(mut self, watch: impl FnMut(&ChangeReport) + Send + 'a) -> Self {
        self.watched = Some(Box::new(watch));
        self
    }

    /// Why, for the record. Only cancelling, failing and holding keep it; what is said of a hold is gone with the hold.
    pub fn because(mut self, words: impl Into<String>) -> Self {
        if let Ok(Verb::Cancel { why } | Verb::Hold { why } | Verb::Fail { why }) = &mut self.verb {
            *why = words.into();
        }
        self
    }

    /// The verb, if it may be applied. It is taken out: what else was asked for is still needed.
    fn checked(&mut self) -> Result<Verb> {
        let verb = std::mem::replace(&mut self.verb, Ok(Verb::Resume))?;
        if let Verb::Recall { .. } = verb {
            return Err(Error::Invalid {
                what: "verb",
                why: "`recall` is a parent's word to its child".into(),
            });
        }
        verb.check()?;
        Ok(verb)
    }

    async fn apply(mut self) -> Result<ChangeReport> {
        let verb = self.checked()?;
        let mut report = ChangeReport::default();
        match std::mem::replace(&mut self.target, Target::Ids(Vec::new())) {
            Target::Ids(ids) => {
                for ids in ids.chunks(bounds::BATCH) {
                    self.apply_to(&verb, ids.to_vec(), &mut report).await?;
                }
            }
            Target::Filter(filter) if filter == Filter::default() => {
                let why = "it has no condition; `Target::All` names all jobs".into();
                return Err(Error::Invalid { what: "filter", why });
            }
            Target::Filter(filter) => self.apply_to_all(&verb, filter, &mut report).await?,
            Target::All => self.apply_to_all(&verb, Filter::default(), &mut report).await?,
        }
        Ok(report)
    }

    /// Walks over all that match at the moment, newest first. The walk never turns back, so jobs that the verb itself
    /// puts into a matching state are not met twice.
    async fn apply_to_all(
        &mut self,
        verb: &Verb,
        mut filter: Filter,
        report: &mut ChangeReport,
    ) -> Result<()> {
        // What is enqueued during the walk is not meant; what was enqueued in this very microsecond is.
        let now = self.engine.seams().clock.now().after(Duration::from_micros(1));
        filter.created_before = Some(filter.created_before.map_or(now, |before| before.min(now)));
        let mut after = None;
        loop {
            let page = Page { after, limit: bounds::BATCH.min(bounds::PAGE) };
            let listing = self.engine.store().list(filter.clone(), page).await?;
            let ids: Vec<JobId> = listing.jobs.iter().map(|job: &Summary| job.id).collect();
            if !ids.is_empty() {
                self.apply_to(verb, ids, report).await?;
            }
            match listing.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn apply_to(&mut self, verb: &Verb, ids: Vec<JobId>, report: &mut ChangeReport) -> Result<()> {
        for (_, answer) in self.answers(verb, ids).await? {
            match answer {
                Changed::Applied { .. } => report.changed += 1,
                Changed::Illegal(_) | Changed::Stale => report.refused += 1,
                Changed::NotFound => report.missing += 1,
            }
        }
        if let Some(watch) = &mut self.watched {
            watch(report);
        }
        Ok(())
    }

    /// For one job, a verb that does not apply is an error.
    async fn apply_to_one(mut self, id: JobId) -> Result<ChangeReport> {
        let verb = self.checked()?;
        match self.answers(&verb, vec![id]).await?.first() {
            Some((_, Changed::Applied { .. })) => Ok(ChangeReport { changed: 1, ..ChangeReport::default() }),
            Some((_, Changed::Illegal(illegal))) => Err(Error::illegal(id, &verb, illegal.from)),
            Some((_, Changed::Stale)) => Err(Error::unavailable("the job has gone on meanwhile")),
            Some((_, Changed::NotFound)) | None => Err(Error::NotFound(id)),
        }
    }

    /// Applies the verb, and tells those who wait for jobs that ended by it.
    async fn answers(&mut self, verb: &Verb, ids: Vec<JobId>) -> Result<Vec<(JobId, Changed)>> {
        let answers = self.engine.store().change(ids.clone(), verb.clone(), self.dry_run).await?;
        let answers: Vec<_> = ids.into_iter().zip(answers).collect();
        for (id, answer) in &answers {
            if let Changed::Applied { to, .. } = answer
                && !self.dry_run
                && to.is_none_or(|to| to.state.is_terminal())
            {
                self.engine.waiters().ended(*id);
            }
        }
        Ok(answers)
    }
}

impl<'a> IntoFuture for Change<'a> {
    type Output = Result<ChangeReport>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        match &self.target {
            Target::Ids(ids) if ids.len() == 1 => {
                let id = ids[0];
                Box::pin(self.apply_to_one(id))
            }
            Target::Ids(_) | Target::Filter(_) | Target::All => Box::pin(self.apply()),
        }
    }
}
