//! Jobs, as operators see and change them.

use mainspring_core::id::JobId;
use mainspring_core::job::{Priority, Reason, Record, State, Status, Unfit, Verb, Why, why};
use mainspring_core::journal::{EntryKind, Timeline, Value, Written};
use mainspring_core::name::{Key, StepName};
use mainspring_core::store::{Counts, Filter};
use mainspring_core::{Error, Result};

pub use self::change::{Change, ChangeReport, Target};
pub use self::drop_signals::DropSignals;
pub use self::list::List;

use self::change::Action;
use crate::durable::drift::Decision;
use crate::durable::wait::UNFIT;
use crate::engine::Engine;
use crate::fork::Fork;
use crate::rewind::RetryFrom;

mod change;
mod drop_signals;
mod list;

/// Jobs; made by [`Engine::jobs`].
#[derive(Debug)]
pub struct Jobs<'a> {
    engine: &'a Engine,
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

    /// A page of the jobs that match, newest first, without payloads.
    ///
    /// ```
    /// # async fn example(engine: &mainspring::Engine) -> Result<(), mainspring::Error> {
    /// let failed = mainspring::admin::Filter { states: vec![mainspring::State::Failed], ..Default::default() };
    /// let mut page = engine.jobs().list(failed.clone()).limit(50).await?;
    /// while let Some(next) = page.next.take() {
    ///     page = engine.jobs().list(failed.clone()).after(next).limit(50).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, filter: Filter) -> List<'a> {
        List::new(self.engine, filter)
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
        let nodes = self.engine.nodes().await?;
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

    /// Drops unread signals of a name that were sent to a job: all of them, or those of one [sender](DropSignals::sender). Returns how many.
    ///
    /// Nobody reads a dropped signal. Its sender stays known as if it had been read: a repeat of the same send is
    /// [`SignalReceipt::Repeated`](crate::workflow::SignalReceipt::Repeated) and not stored. To correct a signal, send it with another sender, or with none.
    /// The job stays as it is: if it waits, it waits on, and if the signal has woken it, it looks, and waits again. A handler that
    /// runs may have the signal at hand already and still read it; [`hold`](Self::hold) a waiting job first to be sure.
    ///
    /// # Errors
    /// When it is awaited: [`Error::NotFound`] if the job does not exist (any more), [`Error::Invalid`] if `name` is not the name of
    /// a signal.
    pub fn drop_signals(&self, id: JobId, name: &str) -> DropSignals<'a> {
        DropSignals::new(self.engine, id, name)
    }

    /// Lets suspended jobs go on: held and quarantined ones, and those whose handler waits, which then looks again for
    /// what it waits for.
    pub fn resume(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Resume)
    }

    /// Resumes jobs that are held for drift and accepts the new step. Recorded steps that the code no longer asks for are ignored.
    ///
    /// # Errors
    /// For one id: [`Error::NotFound`], [`Error::Illegal`] if the job is not held for drift.
    pub fn accept_drift(&self, target: impl Into<Target>) -> Change<'a> {
        self.change_by(target, Ok(Action::Drift(Decision::Accept)))
    }

    /// Resumes jobs that are held for drift: the step that the code calls `to` is recorded as `from`.
    ///
    /// # Errors
    /// When it is awaited: [`Error::Invalid`] if `from` or `to` is not a step's name. For one id also [`Error::NotFound`] and
    /// [`Error::Illegal`] if the job is not held for drift.
    pub fn rename_step(&self, target: impl Into<Target>, from: &str, to: &str) -> Change<'a> {
        let names = StepName::new(from).and_then(|from| Ok((from, StepName::new(to)?)));
        let decision = names.map(|(from, to)| Decision::Rename { from: from.into(), to: to.into() });
        self.change_by(target, decision.map(Action::Drift))
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
    /// [`bounds::SHARED`](crate::bounds::SHARED) and [`bounds::SHARED_BYTES`](crate::bounds::SHARED_BYTES).
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
        self.change_by(target, Priority::new(priority).map(|to| Action::Verb(Verb::SetPriority(to))))
    }

    /// Applies any verb.
    pub fn change(&self, target: impl Into<Target>, verb: Verb) -> Change<'a> {
        self.change_by(target, Ok(Action::Verb(verb)))
    }

    fn change_by(&self, target: impl Into<Target>, action: Result<Action>) -> Change<'a> {
        Change::new(self.engine, target.into(), action)
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
