//! Verbs of operators, on one job or on all that match.

use std::future::IntoFuture;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::job::{Illegal, Input, Reason, Summary, Verb};
use mainspring_core::seam::Pending;
use mainspring_core::store::{Changed, Filter, Page};
use mainspring_core::{Error, Result, bounds};

use crate::durable::drift::Decision;
use crate::engine::Engine;

/// Selects the jobs that a verb changes: ids, all jobs that match a filter, or all jobs.
///
/// A `JobId`, a `Vec<JobId>` and a [`Filter`] convert into it, so you can pass them as they are.
#[derive(Debug, Clone)]
pub enum Target {
    /// The jobs with these ids.
    Ids(Vec<JobId>),
    /// All jobs that match. A filter without a condition is [`Error::Invalid`]: [`Target::All`] names all jobs.
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

/// Counts the jobs that a verb has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeReport {
    /// Jobs that changed, or with a dry run would have.
    pub changed: usize,
    /// Jobs that matched, but whose state does not allow the verb.
    pub refused: usize,
    /// Ids without a job.
    pub missing: usize,
}

/// A verb for some jobs. Nothing changes until you await it.
///
/// For one id, a verb that does not apply is an error: [`Error::NotFound`] or [`Error::Illegal`]. For several jobs,
/// the [`ChangeReport`] counts them.
#[must_use = "nothing is changed until this is awaited"]
pub struct Change<'a> {
    engine: &'a Engine,
    target: Target,
    /// What was wrong with its arguments is answered when it is awaited, as by every builder.
    action: Result<Action>,
    dry_run: bool,
    watched: Option<Watched<'a>>,
}

/// What is done to each job.
#[derive(Clone)]
pub(crate) enum Action {
    /// The store applies a verb.
    Verb(Verb),
    /// A job that is held for drift is told how it is meant, and resumed.
    Drift(Decision),
}

impl Action {
    fn check(&self) -> Result<()> {
        match self {
            Action::Verb(Verb::Recall { .. }) => {
                Err(Error::Invalid { what: "verb", why: "only a parent may `recall` its child".into() })
            }
            Action::Verb(verb) => verb.check(),
            Action::Drift(_) => Ok(()),
        }
    }

    /// What operators call it.
    fn name(&self) -> &'static str {
        match self {
            Action::Verb(verb) => verb.name(),
            Action::Drift(decision) => decision.name(),
        }
    }
}

/// A callback for how far a verb has come.
type Watched<'a> = Box<dyn FnMut(&ChangeReport) + Send + 'a>;

impl<'a> Change<'a> {
    pub(super) fn new(engine: &'a Engine, target: Target, action: Result<Action>) -> Self {
        Change { engine, target, action, dry_run: false, watched: None }
    }

    /// Counts the jobs that would change, and changes nothing.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Calls `watch` with the progress after each part of at most [`bounds::BATCH`] jobs.
    ///
    /// Each part is a commit of its own. If a later part fails, the earlier ones stay changed.
    pub fn watched(mut self, watch: impl FnMut(&ChangeReport) + Send + 'a) -> Self {
        self.watched = Some(Box::new(watch));
        self
    }

    /// Gives the reason. Cancelling, failing and holding store it with the job; other verbs ignore it. The reason of
    /// a hold goes when the job resumes.
    pub fn because(mut self, words: impl Into<String>) -> Self {
        if let Ok(Action::Verb(Verb::Cancel { why } | Verb::Hold { why } | Verb::Fail { why })) =
            &mut self.action
        {
            *why = words.into();
        }
        self
    }

    /// The action, if it may be applied. It is taken out: what else was asked for is still needed.
    fn checked(&mut self) -> Result<Action> {
        let action = std::mem::replace(&mut self.action, Ok(Action::Verb(Verb::Resume)))?;
        action.check()?;
        Ok(action)
    }

    async fn apply(mut self) -> Result<ChangeReport> {
        let action = self.checked()?;
        let mut report = ChangeReport::default();
        match std::mem::replace(&mut self.target, Target::Ids(Vec::new())) {
            Target::Ids(ids) => {
                for ids in ids.chunks(bounds::BATCH) {
                    self.apply_to(&action, ids.to_vec(), &mut report).await?;
                }
            }
            Target::Filter(filter) if filter == Filter::default() => {
                let why = "it has no condition; `Target::All` names all jobs".into();
                return Err(Error::Invalid { what: "filter", why });
            }
            Target::Filter(filter) => self.apply_to_all(&action, filter, &mut report).await?,
            Target::All => self.apply_to_all(&action, Filter::default(), &mut report).await?,
        }
        Ok(report)
    }

    /// Walks over all that match at the moment, newest first. The walk never turns back, so jobs that the verb itself
    /// puts into a matching state are not met twice.
    async fn apply_to_all(
        &mut self,
        action: &Action,
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
                self.apply_to(action, ids, report).await?;
            }
            match listing.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn apply_to(&mut self, action: &Action, ids: Vec<JobId>, report: &mut ChangeReport) -> Result<()> {
        for (_, answer) in self.answers(action, ids).await? {
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
        let action = self.checked()?;
        match self.answers(&action, vec![id]).await?.first() {
            Some((_, Changed::Applied { .. })) => Ok(ChangeReport { changed: 1, ..ChangeReport::default() }),
            Some((_, Changed::Illegal(illegal))) => {
                Err(Error::Illegal { id, verb: action.name(), status: illegal.from })
            }
            Some((_, Changed::Stale)) => Err(Error::unavailable("the job has changed meanwhile")),
            Some((_, Changed::NotFound)) | None => Err(Error::NotFound(id)),
        }
    }

    async fn answers(&mut self, action: &Action, ids: Vec<JobId>) -> Result<Vec<(JobId, Changed)>> {
        let (engine, dry_run) = (self.engine, self.dry_run);
        match action {
            Action::Verb(verb) => apply_verb(engine, verb, ids, dry_run).await,
            Action::Drift(decision) => {
                let mut answers = Vec::with_capacity(ids.len());
                for id in ids {
                    answers.push((id, decide_drift(engine, decision, id, dry_run).await?));
                }
                Ok(answers)
            }
        }
    }
}

/// Applies a verb, and tells those who wait for jobs that ended by it.
async fn apply_verb(
    engine: &Engine,
    verb: &Verb,
    ids: Vec<JobId>,
    dry_run: bool,
) -> Result<Vec<(JobId, Changed)>> {
    let answers = engine.store().change(ids.clone(), verb.clone(), dry_run).await?;
    let answers: Vec<_> = ids.into_iter().zip(answers).collect();
    for (id, answer) in &answers {
        if let Changed::Applied { to, .. } = answer
            && !dry_run
            && to.is_none_or(|to| to.state.is_terminal())
        {
            engine.waiters().ended(*id);
        }
    }
    Ok(answers)
}

/// Tells a job how its drift is meant, and resumes it.
async fn decide_drift(engine: &Engine, decision: &Decision, id: JobId, dry_run: bool) -> Result<Changed> {
    let Some(job) = engine.store().get(id).await? else { return Ok(Changed::NotFound) };
    let Summary { status, claim, .. } = job.summary;
    if status.reason != Some(Reason::Drift) {
        return Ok(Changed::Illegal(Illegal { from: status, input: Input::Resume { later: false } }));
    }
    if !dry_run {
        // The sender names the hold: a decision that is sent twice of one hold must not be there for another.
        let sender = format!("{} {claim}", decision.name());
        engine.send_drift_decision(id, decision).sender(sender).await?;
    }
    let answers = apply_verb(engine, &Verb::Resume, vec![id], dry_run).await?;
    Ok(answers.into_iter().next().map_or(Changed::NotFound, |(_, answer)| answer))
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
