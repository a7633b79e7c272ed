//! Children: jobs that a handler starts, and whose results it may wait for.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::job::{State, Status};
use mainspring_core::journal::{Child as NewChild, Entry, EntryKind, MessageBody, OnClose, Subject};
use mainspring_core::name::{Key, Label};
use mainspring_core::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::dropped::{DropMark, OpFuture};
use super::keep::{check_child, keeping, keeps_until};
use super::key::side_key;
use super::operation::{Op, keyed, lazy, mark, side_entry};
use super::scope_end::ABANDONED;
use super::signal::{JobRef, JobType};
use super::wait::wait_for_messages;
use super::{error, polled_code, probe_hooks};
use crate::context::Context;
use crate::enqueue::Enqueue;
use crate::job::Job;

/// A child to start. Await it; see [`Context::spawn`].
#[must_use = "nothing is started until this is awaited"]
pub struct Spawn<'c, J> {
    parts: Option<Parts<'c, J>>,
    run: Option<OpFuture<'c, Result<Child<'c, J>>>>,
}

struct Parts<'c, J> {
    op: Op<'c>,
    draft: Enqueue<'c, J>,
    on_close: OnClose,
}

impl<'c, J> Spawn<'c, J> {
    /// Sets what happens to the child when this job ends first. Default: the child is cancelled.
    pub fn on_close(mut self, on_close: OnClose) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.on_close = on_close;
        }
        self
    }

    /// Sets options of the child as for any job: queue, priority, delay, attempts and the like.
    ///
    /// A unique key is an error, because the step makes the child unique. An id of your own must be free: if another
    /// job has it, or another step has started it, the spawn fails with [`Error::Step`] (source: [`Error::IdTaken`]).
    pub fn options(mut self, options: impl FnOnce(Enqueue<'c, J>) -> Enqueue<'c, J>) -> Self {
        self.parts = self.parts.take().map(|Parts { op, draft, on_close }| Parts {
            op,
            draft: options(draft),
            on_close,
        });
        self
    }
}

keyed!(Spawn<'c; J>, op);
lazy!(Spawn<'c; J> => Result<Child<'c, J>>, where { J: Job });

impl<'c, J: Job> Parts<'c, J> {
    async fn run(self) -> Result<Child<'c, J>> {
        let ctx = self.op.ctx;
        let (op_key, written) = self.op.open().await?;
        let (session, key) = (op_key.session(), op_key.key().clone());
        if let Some(written) = written {
            let id = session.replay(&op_key, written).await?;
            return Ok(Child { ctx, key, id, job: PhantomData });
        }
        let job = {
            let _busy = session.busy();
            self.draft.into_new().await?
        };
        if job.options.unique.is_some() {
            return Err(Error::Invalid {
                what: "child",
                why: "it has a unique key; its step makes it unique".into(),
            });
        }
        let (id, overlapped) = (job.id, op_key.overlapped());
        let value = serde_json::to_vec(&id)
            .map_err(|error| Error::Convert { what: "child", source: error.into() })?;
        let entry = Entry { key: key.clone(), kind: EntryKind::Child, overlapped, took: None, value };
        let mut entries = vec![entry];
        if self.on_close == OnClose::Abandon && !ctx.path().is_empty() {
            entries.push(mark(side_key(&key, ABANDONED)?));
        }
        match session.record(entries, vec![NewChild { job, on_close: self.on_close }]).await {
            // As any error of a step: a later run that gets past it meets it again.
            Err(error @ Error::IdTaken { .. }) => {
                let failure = Failure::from(error);
                let value = error::encode(&failure);
                session.defer(
                    Entry { key: key.clone(), kind: EntryKind::Error, overlapped, took: None, value },
                    &[],
                    true,
                );
                return Err(error::failed(&key, failure.into_error()));
            }
            answer => answer?,
        }
        Ok(Child { ctx, key, id, job: PhantomData })
    }
}

/// A job that this handler has started; see [`Context::spawn`].
pub struct Child<'c, J> {
    ctx: &'c Context,
    key: Key,
    id: JobId,
    job: PhantomData<fn() -> J>,
}

impl<J> fmt::Debug for Child<'_, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("key", &self.key).field("id", &self.id).finish_non_exhaustive()
    }
}

impl<J: Job> JobRef for Child<'_, J> {
    fn job_id(&self) -> JobId {
        self.id
    }

    fn declared(&self) -> Option<(&'static str, &'static [&'static str])> {
        J::DECLARED
    }

    fn check_signal(&self, name: &str, body: &[u8]) -> Result<()> {
        <J as JobType>::check_signal(name, body)
    }
}

/// Where the end of a child is recorded, beside its start.
pub(crate) const RESULT: &str = "result";

/// How a child ended, as it is recorded.
#[derive(Serialize, Deserialize)]
struct End {
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    message: Option<String>,
}

impl<'c, J: Job> Child<'c, J> {
    /// Returns the child's id.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Waits until the child has ended and returns its result. The handler is suspended meanwhile, as in
    /// [`Context::sleep`].
    ///
    /// # Errors
    /// [`Error::Ended`] if the child failed or was cancelled; [`Error::Convert`] if its result does not fit its type;
    /// [`Error::Invalid`] if this job would [keep](ChildResult::keep_limits_for) units that the child needs.
    pub fn result(self) -> ChildResult<'c, J> {
        ChildResult { parts: Some(ResultParts { child: self, keep: None }), run: None }
    }
}

/// A wait for the result of a child. Await it; see [`Child::result`].
#[must_use = "nothing is waited for until this is awaited"]
pub struct ChildResult<'c, J: Job> {
    parts: Option<ResultParts<'c, J>>,
    run: Option<OpFuture<'c, Result<J::Result>>>,
}

struct ResultParts<'c, J> {
    child: Child<'c, J>,
    keep: Option<Duration>,
}

impl<J: Job> ChildResult<'_, J> {
    keeping!(keep);

    fn drop_mark(&self) -> Option<DropMark> {
        let child = &self.parts.as_ref()?.child;
        let key = side_key(&child.key, RESULT).ok()?;
        // An operation in the wrong place is refused, and nothing of it is recorded.
        polled_code::check(child.ctx.session(), &key).ok()?;
        Some(DropMark::new(child.ctx.session(), &key))
    }
}

impl<J: Job> Future for ChildResult<'_, J> {
    type Output = Result<J::Result>;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mark = this.drop_mark();
        if let Some(parts) = this.parts.take() {
            this.run = Some(OpFuture::new(mark, Box::pin(parts.run())));
        }
        match &mut this.run {
            Some(run) => Pin::new(run).poll(context),
            // Polled again after its end, against the rules: there is nothing left to say.
            None => Poll::Pending,
        }
    }
}

impl<J: Job> ResultParts<'_, J> {
    async fn run(self) -> Result<J::Result> {
        let ResultParts { child, keep } = self;
        let (session, id) = (child.ctx.session(), child.id);
        let key = side_key(&child.key, RESULT)?;
        polled_code::check(session, &key)?;
        let end: End = if let Some(written) = session.find(&key) {
            session.decoded(written).await?
        } else {
            probe_hooks::stop(session, &key).await;
            let subject = Subject::Child(id);
            let keep = keeps_until(session, &key, keep).await?;
            if keep.is_some() {
                check_child(session, id).await?;
            }
            let messages = wait_for_messages(session, &key, Some((subject, 1)), None, false, keep).await;
            let end = messages.first().and_then(|message| end(&message.body));
            let end =
                end.ok_or_else(|| Error::Corrupt { why: format!("child {id} ended without a message") })?;
            session.defer(side_entry(key, EntryKind::Value, encode(&end)?), &messages, true);
            end
        };
        if end.status.state != State::Succeeded {
            return Err(Error::Ended { id, status: end.status, message: end.message.unwrap_or_default() });
        }
        serde_json::from_str(end.result.as_deref().map_or("null", RawValue::get))
            .map_err(|error| Error::Convert { what: "result", source: error.into() })
    }
}

fn end(mail: &MessageBody) -> Option<End> {
    let MessageBody::Ended { status, result, message, .. } = mail else { return None };
    let result = result.as_deref().map(serde_json::from_slice).transpose().ok()?;
    Some(End { status: *status, result, message: message.clone() })
}

fn encode(end: &End) -> Result<Vec<u8>> {
    serde_json::to_vec(end).map_err(|error| Error::Convert { what: "child", source: error.into() })
}

/// The record of a child's end.
pub(crate) fn ended(status: Status, result: Option<&[u8]>, message: Option<String>) -> Result<Vec<u8>> {
    let result = result
        .map(serde_json::from_slice)
        .transpose()
        .map_err(|error| Error::Convert { what: "result", source: error.into() })?;
    encode(&End { status, result, message })
}

impl Context {
    /// Starts a child: a job of its own that belongs to this one. It starts once, however often the handler runs.
    ///
    /// ```
    /// # use mainspring::{Context, Job};
    /// # #[derive(serde::Serialize, serde::Deserialize, Job)] struct Order { id: u64 }
    /// #[derive(serde::Serialize, serde::Deserialize, Job)]
    /// #[job(result = String)]
    /// struct Ship { order: u64 }
    ///
    /// async fn order(ctx: Context, job: Order) -> mainspring::HandlerResult<()> {
    ///     let shipment = ctx.spawn("ship", Ship { order: job.id }).options(|ship| ship.priority(1)).await?;
    ///     let parcel: String = shipment.result().await?;
    ///     # let _ = parcel;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`Engine::enqueue`](crate::Engine::enqueue); [`Error::DuplicateKey`], [`Error::Nested`] and
    /// [`Error::Detached`].
    pub fn spawn<J: Job>(&self, name: &str, job: J) -> Spawn<'_, J> {
        let draft = self.engine().enqueue(job);
        let build = self.info().options().labels.iter().find_map(Label::build);
        let parts = Parts {
            op: Op::new(self, name),
            draft: build.into_iter().fold(draft, Enqueue::pin),
            on_close: OnClose::default(),
        };
        Spawn { parts: Some(parts), run: None }
    }
}
