//! Deferred writes: what a handler has to record, when that is handed to the recorder, and in which order.
//!
//! An operation whose result would come out the same way again does not wait for the store: its entry is *deferred*, and goes with
//! the recording of the next operation. An *eager* entry would not come out the same way again. It is recorded before the body of a
//! step begins, because the body may have seen it.
//!
//! Recordings of one job are stored in the order in which they are handed in, and their numbers say how far the store has come. So
//! an operation that was dropped while its recording was on its way still has its place, and later ones wait for it.
//!
//! # Invariants
//! - What was handed in is stored or refused before the job's suspension or end is sent.
//! - No eager entry is deferred or on its way while the body of a step begins.

use std::collections::BTreeSet;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::journal::{Child, Entry, EntryKind, Message, Recorded, Recording, Writes};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use mainspring_core::{Error, Result, bounds};

use super::key::side_key;
use super::operation::mark;
use super::recorder::NodeRecording;
use super::session::Session;
use super::{drift, error};

/// Writes that go with the next recording, and how far recordings have come.
#[derive(Default)]
pub(crate) struct DeferredWrites {
    writes: Writes,
    /// Whether some of them have to be recorded before a body begins.
    eager: bool,
    /// The number of the last recording that was handed in.
    sent: u64,
    /// The last that has something to be recorded before a body begins.
    sent_eager: u64,
    /// The last that the store has answered.
    answered: u64,
}

/// What a body has to wait for before it begins.
enum EagerWrites {
    /// They are deferred.
    Deferred,
    /// They are on their way.
    OnTheirWay,
    /// They are recorded.
    Recorded,
}

impl DeferredWrites {
    /// Defers an entry. `eager`: it is recorded before a body begins that can have seen it.
    pub(super) fn add(&mut self, entry: Entry, eager: bool) {
        self.writes.entries.push(entry);
        self.eager |= eager;
    }

    /// Messages have been read.
    pub(super) fn mark_read(&mut self, numbers: impl IntoIterator<Item = i64>) {
        self.writes.read.extend(numbers);
    }

    /// Records are to be removed.
    pub(super) fn forget(&mut self, keys: Vec<Key>) {
        self.writes.forget.extend(keys);
    }

    /// Takes an entry back. `false` if it is not deferred any more.
    pub(super) fn retract(&mut self, key: &Key) -> bool {
        let before = self.writes.entries.len();
        self.writes.entries.retain(|entry| entry.key != *key);
        self.writes.entries.len() < before
    }

    /// Takes back what nobody asks for any more; the keys of that.
    pub(super) fn retract_all(&mut self, is_gone: impl Fn(&Entry) -> bool) -> BTreeSet<Key> {
        self.writes.entries.extract_if(.., |entry| is_gone(entry)).map(|entry| entry.key).collect()
    }

    /// Whether the time at which a wait ends is among them.
    pub(super) fn has_end_of_wait(&self) -> bool {
        self.writes.entries.iter().any(|entry| entry.kind == EntryKind::Until)
    }

    /// Takes them all, for a suspension or a recording.
    pub(super) fn take(&mut self) -> Writes {
        self.eager = false;
        std::mem::take(&mut self.writes)
    }

    /// Takes them for the recording that is handed in next.
    fn take_for_recording(&mut self) -> Writes {
        if self.eager {
            self.sent_eager = self.sent + 1;
        }
        self.take()
    }

    /// Their recording was refused: they stay deferred, before what has come since.
    fn put_back(&mut self, refused: Writes) {
        let later = std::mem::replace(&mut self.writes, refused);
        self.writes.append(later);
        self.eager = true;
    }

    /// A recording is handed in; its number.
    pub(super) fn hand_in(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// The store has answered a recording, and so all before it.
    pub(super) fn mark_answered(&mut self, sent: u64) {
        self.answered = self.answered.max(sent);
    }

    /// The last recording that was handed in, if the store has not answered it.
    pub(super) fn unanswered(&self) -> Option<u64> {
        (self.answered < self.sent).then_some(self.sent)
    }

    fn eager_writes(&self) -> EagerWrites {
        if self.eager {
            EagerWrites::Deferred
        } else if self.answered < self.sent_eager {
            EagerWrites::OnTheirWay
        } else {
            EagerWrites::Recorded
        }
    }
}

impl Session {
    /// Defers an entry to the next recording, and with it that messages were read; `eager` as in [`DeferredWrites::add`].
    pub(crate) fn defer(&self, entry: Entry, read: &[Message], eager: bool) {
        let now = self.now();
        let mut state = self.state();
        state.deferred.add(entry, eager);
        if !read.is_empty() {
            let used_up = state.tokens.used_up(read, now);
            state.remove(used_up);
        }
        state.deferred.mark_read(read.iter().map(|message| message.no));
    }

    /// Records what a body may see and would not come out the same way again; also what another operation is recording
    /// at this moment.
    pub(crate) async fn record_eager(&self) -> Result<()> {
        loop {
            let eager = self.state().deferred.eager_writes();
            match eager {
                EagerWrites::Deferred => self.record(Vec::new(), Vec::new()).await?,
                EagerWrites::OnTheirWay => self.confirm().await?,
                EagerWrites::Recorded => return Ok(()),
            }
        }
    }

    /// Records all deferred writes.
    pub(crate) async fn record_deferred(&self) -> Result<()> {
        if !self.state().deferred.writes.is_empty() {
            self.record(Vec::new(), Vec::new()).await?;
        }
        self.record_eager().await
    }

    /// Records the deferred writes and these.
    pub(crate) async fn record(&self, entries: Vec<Entry>, children: Vec<Child>) -> Result<()> {
        self.record_all(Writes { entries, ..Writes::default() }, children).await
    }

    /// The same with all that can be written.
    pub(crate) async fn record_all(&self, own: Writes, children: Vec<Child>) -> Result<()> {
        let (writes, refusable) = {
            let mut state = self.state();
            let count = state.replay.count();
            if count + state.deferred.writes.entries.len() + own.entries.len() > bounds::STEPS {
                return Err(too_many(count, own));
            }
            let mut writes = state.deferred.take_for_recording();
            // Only children are refused.
            let refusable = (!children.is_empty()).then(|| writes.clone());
            writes.append(own);
            (writes, refusable)
        };
        let result = self.write(writes, children).await;
        if let (Err(_), Some(deferred)) = (&result, refusable) {
            self.state().deferred.put_back(deferred);
        }
        result
    }

    /// Makes sure that the claim is still ours.
    pub(crate) async fn confirm(&self) -> Result<()> {
        self.write(Writes::default(), Vec::new()).await
    }

    /// Takes back recorded errors that a failure blames: their steps run again.
    pub(crate) async fn take_back(&self, failure: &Failure) -> Result<()> {
        let mut forget = error::blamed(failure);
        {
            let state = self.state();
            forget.retain(|key| state.replay.has_error(key));
        }
        if forget.is_empty() {
            return Ok(());
        }
        let marks = forget.iter().filter_map(|key| side_key(key, drift::AGAIN).ok());
        let mut writes = Writes { entries: marks.map(mark).collect(), ..Writes::default() };
        // A mark of an earlier time gives way: it is the claim that tells.
        writes.forget = writes.entries.iter().map(|entry| entry.key.clone()).chain(forget).collect();
        self.write(writes, Vec::new()).await
    }

    async fn write(&self, mut writes: Writes, children: Vec<Child>) -> Result<()> {
        let count = writes.entries.len();
        let _busy = self.busy();
        let run = self.run();
        let starts = child_starts(&writes, &children);
        // What is handed in is recorded, whether or not anybody waits for it.
        let (sent, said) = {
            let mut state = self.state();
            let sent = state.hand_in(&mut writes);
            state.replay.scoped.unconfirmed_starts.extend(starts.iter().cloned());
            let says = !writes.output.is_empty();
            let recording =
                NodeRecording { node: run.node, recording: Recording { claim: run.claim, writes, children } };
            // What is said must not be overtaken by what is said after it.
            (sent, if says { Ok(self.recorder().post(recording)?) } else { Err(recording) })
        };
        let answer = match said {
            Ok(posted) => posted.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))?,
            // In a place of its own: what it needs on its way is not to be part of every operation's future.
            Err(recording) => Box::pin(self.recorder().send(recording)).await?,
        };
        {
            let mut state = self.state();
            state.deferred.mark_answered(sent);
            let refused = !matches!(answer, Ok(Recorded::Stored));
            state.replay.refused(if refused { count } else { 0 });
            let scoped = &mut state.replay.scoped;
            for key in starts {
                scoped.unconfirmed_starts.remove(&key);
                if refused {
                    scoped.forget(&key);
                }
            }
        }
        self.take_answer(answer).await
    }

    /// What the store said to a recording.
    pub(super) async fn take_answer(&self, answer: Result<Recorded>) -> Result<()> {
        match answer {
            Ok(Recorded::Stored) => Ok(()),
            Ok(Recorded::LeaseLost) => self.lease_lost().await,
            Ok(Recorded::Taken { child, differs }) => Err(Error::IdTaken { id: child, differs }),
            // The node is going: what this handler does is nobody's business any more.
            Err(error) if error.is_retryable() => std::future::pending().await,
            Err(error) => Err(error),
        }
    }

    /// Waits until the store has answered all recordings, also those of operations that were dropped. The job's end must not
    /// overtake them: a step that is done and not recorded would run again.
    pub(crate) async fn wait_for_answers(&self) {
        let last = {
            let mut state = self.state();
            let Some(sent) = state.deferred.unanswered() else { return };
            if planted::is(Defect::EndEarly) {
                return;
            }
            state.outputs.take_unconfirmed(sent)
        };
        let run = self.run();
        // A push from a body has an answer that nobody waits for. Any other answer went with the operation that waited for
        // it: then one more recording is handed in, behind it. Whatever its answer is, the job ends.
        let answer = if let Some(unconfirmed_push) = last {
            unconfirmed_push.answer.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))
        } else {
            let writes = Writes { idle: true, ..Writes::default() };
            let recording = Recording { claim: run.claim, writes, children: Vec::new() };
            Box::pin(self.recorder().send(NodeRecording { node: run.node, recording })).await
        };
        if let Err(error) = answer {
            tracing::debug!(%error, job_id = %run.info.id, "records may be missing when the job ends");
        }
    }
}

/// A job has as many records as it may have.
fn too_many(count: usize, own: Writes) -> Error {
    let why = format!("the job has {count} records, more than the bound of {}", bounds::STEPS);
    match own.entries.into_iter().map(|entry| entry.key).next() {
        Some(key) => error::failed(&key, discard(why).into()),
        None => Error::TooLarge { what: "journal", size: count, limit: bounds::STEPS },
    }
}

/// The keys of the children that start with a recording.
fn child_starts(writes: &Writes, children: &[Child]) -> Vec<Key> {
    if children.is_empty() {
        return Vec::new();
    }
    let starts = writes.entries.iter().filter(|entry| entry.kind == EntryKind::Child);
    starts.map(|entry| entry.key.clone()).collect()
}
