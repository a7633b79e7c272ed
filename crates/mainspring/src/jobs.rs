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

/// Looks at jobs and changes them. You get one from [`Engine::jobs`].
#[derive(Debug)]
pub struct Jobs<'a> {
    engine: &'a Engine,
}

impl<'a> Jobs<'a> {
    pub(crate) fn new(engine: &'a Engine) -> Self {
        Jobs { engine }
    }

    /// Returns everything about one job: its state, input, result, errors, progress and waits.
    ///
    /// It does not wait. For a result as a type, see [`Engine::result_of`].
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job, or its retention is over.
    pub async fn get(&self, id: JobId) -> Result<Record> {
        self.engine.store().get(id).await?.ok_or(Error::NotFound(id))
    }

    /// Lists the jobs that match, newest first, without inputs and results: one page.
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

    /// Returns how many jobs each queue has in each state. It costs the same however many jobs there are.
    pub async fn counts(&self) -> Result<Counts> {
        self.engine.store().counts().await
    }

    /// Returns the one reason that a job is not running, or that it is running or has ended.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job, or its retention is over.
    pub async fn why(&self, id: JobId) -> Result<Why> {
        let job = self.get(id).await?;
        let queues = self.engine.store().queues().await?;
        let nodes = self.engine.nodes().await?;
        let queue = queues.iter().find(|queue| queue.name == job.summary.queue);
        let obstacle = match job.summary.status.state {
            State::Ready => self.engine.store().obstacle(id).await?,
            _ => None,
        };
        let mut why = why(&job, queue, &nodes, obstacle.as_ref(), self.engine.seams().clock.now());
        if let Why::Waiting { signals, unfit, .. } = &mut why
            && !signals.is_empty()
        {
            let awaited = |unfit: &Unfit| signals.iter().any(|(name, _)| name.as_str() == unfit.name);
            unfit.extend(self.timeline(id).await?.entries.iter().flat_map(set_aside).filter(awaited));
        }
        Ok(why)
    }

    /// Returns the children that were cancelled when their parent ended, each with the step that started it, in the
    /// order of the steps.
    ///
    /// [`retry`](Self::retry) of the parent does not run them again, so a handler that waits for such a child gets
    /// [`Error::Ended`] in every later run. Retry [from](Self::retry_from) the first of these steps, and the parent
    /// starts new children.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job, or its retention is over.
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

    /// Cancels jobs: waiting ones end at once, running ones are asked to stop.
    ///
    /// A running handler of this process stops at its next await, one of another process within a third of its lease.
    /// A handler that watches [`Context::is_cancelled`](crate::Context::is_cancelled) gets a grace to clean up first.
    /// Jobs that have ended do not change.
    pub fn cancel(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Cancel { why: String::new() })
    }

    /// Runs failed, cancelled or skipped jobs again, with fresh counts, and scheduled jobs now.
    ///
    /// A workflow keeps its records, so recorded steps do not run again. Children that were cancelled with a job stay
    /// cancelled; see [`lost_children`](Self::lost_children).
    pub fn retry(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Retry)
    }

    /// Sets waiting jobs aside until you [`resume`](Self::resume), [`fail`](Self::fail) or [`cancel`](Self::cancel)
    /// them.
    ///
    /// Neither time nor signals wake a held job; signals are kept. [`because`](Change::because) adds a reason, which
    /// `why` shows until the job resumes.
    pub fn hold(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Hold { why: String::new() })
    }

    /// Returns the history of a job: its records, messages and children.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such job, or its retention is over.
    pub async fn timeline(&self, id: JobId) -> Result<Timeline> {
        self.engine.store().timeline(id).await?.ok_or(Error::NotFound(id))
    }

    /// Drops the unread signals of a name, from all senders or from [one](DropSignals::sender), and returns how many
    /// there were.
    ///
    /// No handler reads a dropped signal. Its sender stays known, as if the signal had been read: a repeat of the
    /// same send is [`SignalReceipt::Repeated`](crate::workflow::SignalReceipt::Repeated) and not stored. To correct
    /// a signal, send it with another sender, or with none.
    ///
    /// The state of the job does not change. If the signal has already woken it, the job looks, and waits again. A
    /// running handler may have read the signal already: to be sure, [`hold`](Self::hold) a waiting job first.
    ///
    /// # Errors
    /// When you await it: [`Error::NotFound`] if there is no such job; [`Error::Invalid`] if `name` is not a signal's
    /// name.
    pub fn drop_signals(&self, id: JobId, name: &str) -> DropSignals<'a> {
        DropSignals::new(self.engine, id, name)
    }

    /// Resumes suspended jobs: held and quarantined ones, and workflows that wait.
    ///
    /// A workflow that waits runs, checks its wait by itself, and suspends again if it is not over. A quarantined job
    /// starts with no crashes counted.
    pub fn resume(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Resume)
    }

    /// Resumes jobs held for drift and accepts the new step; the engine ignores recorded steps that the code no
    /// longer asks for.
    ///
    /// The decision applies once, to the operation it was made for. It expires if the job reaches its next wait
    /// without using it.
    ///
    /// # Errors
    /// When you await it, for one id: [`Error::NotFound`] if there is no such job; [`Error::Illegal`] if it is not
    /// held for drift.
    pub fn accept_drift(&self, target: impl Into<Target>) -> Change<'a> {
        self.change_by(target, Ok(Action::Drift(Decision::Accept)))
    }

    /// Resumes jobs held for drift: the step that the code calls `to` uses the record `from`.
    ///
    /// If there is no record `from`, nothing changes: the job is held again.
    ///
    /// # Errors
    /// When you await it: [`Error::Invalid`] if `from` or `to` is not a step's name. For one id also
    /// [`Error::NotFound`], and [`Error::Illegal`] if the job is not held for drift.
    pub fn rename_step(&self, target: impl Into<Target>, from: &str, to: &str) -> Change<'a> {
        let names = StepName::new(from).and_then(|from| Ok((from, StepName::new(to)?)));
        let decision = names.map(|(from, to)| Decision::Rename { from: from.into(), to: to.into() });
        self.change_by(target, decision.map(Action::Drift))
    }

    /// Makes a new job that shares the records of this one up to a step, and does not change this one.
    ///
    /// The fork has the same kind, queue, input and options, but not the unique key, the parent and the deadline. The
    /// other job may be in any state, even running.
    ///
    /// The fork shares a child that has ended, with its result, and starts any other child again. It shares neither
    /// signals that were unread before the step nor tokens: a token answers the job that made it.
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
    /// When you await it: [`Error::NotFound`] if there is no such job; [`Error::Invalid`] for a step that is not
    /// recorded, with those that are; [`Error::TooLarge`] beyond [`bounds::SHARED`](crate::bounds::SHARED) and
    /// [`bounds::SHARED_BYTES`](crate::bounds::SHARED_BYTES).
    pub fn fork(&self, id: JobId) -> Fork<'a> {
        Fork::new(self.engine, id)
    }

    /// Removes a job's records from a step on, and runs it again with fresh counts.
    ///
    /// It works on a job that waits, is held, has failed or was cancelled. Signals that were read after that step are
    /// unread again. Children that were started after it are cancelled, unless they were started with
    /// [`OnClose::Abandon`](crate::workflow::OnClose::Abandon).
    ///
    /// # Errors
    /// When you await it: [`Error::NotFound`] if there is no such job; [`Error::Illegal`] if it runs or has
    /// succeeded; [`Error::Invalid`] for a step that is not recorded, with those that are; [`Error::Unavailable`] if
    /// the job has continued meanwhile.
    pub fn retry_from(&self, id: JobId, step: impl Into<String>) -> RetryFrom<'a> {
        RetryFrom::new(self.engine, id, step.into())
    }

    /// Ends suspended jobs as failed, with the reason `operator`.
    pub fn fail(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Fail { why: String::new() })
    }

    /// Removes jobs that are not running, with all their data. Children that have not ended are cancelled with their
    /// parent.
    pub fn delete(&self, target: impl Into<Target>) -> Change<'a> {
        self.change(target, Verb::Delete)
    }

    /// Gives waiting jobs another priority, from 0 (claimed first) to 9 (last).
    ///
    /// # Errors
    /// When you await it: [`Error::Invalid`] if the priority is above 9.
    pub fn set_priority(&self, target: impl Into<Target>, priority: u8) -> Change<'a> {
        self.change_by(target, Priority::new(priority).map(|to| Action::Verb(Verb::SetPriority(to))))
    }

    /// Applies any verb. The other methods are shorter forms of it.
    pub fn change(&self, target: impl Into<Target>, verb: Verb) -> Change<'a> {
        self.change_by(target, Ok(Action::Verb(verb)))
    }

    fn change_by(&self, target: impl Into<Target>, action: Result<Action>) -> Change<'a> {
        Change::new(self.engine, target.into(), action)
    }
}

/// A child that was cancelled when its parent ended; see [`Jobs::lost_children`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostChild {
    /// The step of the parent that started the child.
    pub step: Key,
    /// The id of the child.
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
