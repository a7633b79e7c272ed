//! The session: what one handler knows of its job's past, and what it has yet to record.
//!
//! A session lives as long as the handler's future. That may be longer than one claim: a suspended handler that is kept
//! in memory goes on under the next claim, with the same session.
//!
//! Some writes are *deferred*: they are recorded together with those of the next operation. If a step's body may have seen
//! such a value, and it would not come out the same way again, it is recorded before the body begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::job::Reason;
use mainspring_core::journal::{
    Child, Entry, EntryKind, Inbox, Journal, Message, Recorded, Recording, Subject, Suspension, Value, Wait,
    Writes, Written,
};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::de::DeserializeOwned;

use super::activation::HandlerWaker;
use super::drift::{self, Drift, Judgement};
use super::error;
use super::key::{OpKey, Scopes, side_key};
use super::output::Outputs;
use super::recorder::{NodeRecording, Recorder};
use super::scope_end::ScopedRecords;
use super::token::Tokens;
use crate::engine::Engine;
use crate::job_run::{JobRun, StepBackoff, Stop};
use crate::sync::{Mutex, MutexGuard};
use crate::testing::Probe;

/// What one handler shares with its durable operations.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    recorder: Arc<Recorder>,
    probe: Option<Arc<dyn Probe>>,
    /// The claim under which the handler runs.
    current: Mutex<Arc<JobRun>>,
    state: Mutex<SessionState>,
    pub(crate) handler_waker: Arc<HandlerWaker>,
    pub(crate) waker: Waker,
}

pub(crate) struct SessionState {
    pub(crate) scopes: Scopes,
    /// Records that have not been asked for yet.
    pub(super) entries: BTreeMap<Key, Written>,
    /// What is recorded inside of scopes.
    pub(super) scoped: ScopedRecords,
    /// Keys of recorded errors that can be taken back.
    pub(super) errors: BTreeSet<Key>,
    /// How many records there are.
    pub(super) count: usize,
    /// Operations that may not fit what is recorded.
    pub(super) drift: Drift,
    pub(super) tokens: Tokens,
    pub(super) outputs: Outputs,
    /// Messages that nobody has taken yet.
    pub(super) inbox: Vec<Message>,
    last_message: i64,
    /// Whether the store has more messages than these, or may have.
    more: bool,
    /// Deferred writes: they go with the next recording.
    pub(super) deferred: Writes,
    /// Whether some of it has to be recorded before a body begins.
    pub(super) eager: bool,
    /// In boxes, as scopes are: a map has room for eleven at once, and most handlers have one.
    waits: BTreeMap<u64, Box<OpenWait>>,
    last_wait: u64,
    /// Operations that were dropped in an earlier run.
    pub(super) dropped_before: BTreeSet<Key>,
    /// Those of them that the handler awaits again: they stay pending, and are woken if they are revived.
    shelved: BTreeMap<u64, Option<Waker>>,
    /// How often the inbox was looked into.
    looks: u64,
    /// Operations that have begun, and waits that have ended.
    moves: u64,
    /// Numbers of recordings: the last that was handed in, the last with something to be recorded before a body begins,
    /// and the last that the store has answered. They are stored in this order.
    sent: u64,
    sent_eager: u64,
    answered: u64,
    /// Bodies and calls of the store that are under way.
    pub(super) busy: usize,
    /// Those of them that are pauses before a step is tried again.
    pub(super) backoffs: Vec<StepBackoff>,
    halt: Option<String>,
    /// Whether a commit may or may not have been stored: the handler must end, and the next run finds out.
    outcome_unknown: bool,
}

/// A durable wait that is open.
pub(crate) struct OpenWait {
    pub(crate) key: Key,
    pub(crate) subject: Option<(Subject, u32)>,
    pub(crate) until: Option<Timestamp>,
    /// Set if something between the wait and the handler polls it, which must be woken too.
    pub(crate) waker: Option<Waker>,
}

impl OpenWait {
    fn reason(&self) -> Reason {
        match self.subject {
            None => Reason::Timer,
            Some((Subject::Signal(_), _)) => Reason::Signal,
            Some((Subject::Child(_), _)) => Reason::Child,
        }
    }
}

/// What is to be done when a handler does not go on by itself.
pub(crate) enum NextAction {
    /// Its recorded steps do not fit its code: it is set aside.
    Halt(Box<Suspension>),
    /// It waits for durable operations alone.
    Suspend(Box<Suspension>),
    /// There may be more messages than it knows of.
    Fetch,
    /// What its waits have noted is to be recorded, because they go on in memory.
    Flush,
    /// It has nothing to wait for but operations that were dropped: they are revived.
    Revive,
    /// It waits for something else, too.
    Stay {
        /// When to look again, if it has durable waits.
        look: Option<Duration>,
        /// Whether nothing is due then.
        idle: bool,
        /// Whether it is a workflow that keeps its slot for something that is neither durable nor in a body.
        foreign: bool,
    },
}

impl Session {
    pub(crate) fn new(
        engine: Engine,
        recorder: Arc<Recorder>,
        probe: Option<Arc<dyn Probe>>,
        run: Arc<JobRun>,
        journal: Option<Box<Journal>>,
    ) -> Arc<Self> {
        let handler_waker = Arc::new(HandlerWaker::default());
        let Journal { entries, inbox } = journal.map(|journal| *journal).unwrap_or_default();
        let count = entries.len();
        let drift = Drift::load(&entries);
        let mut entries: BTreeMap<Key, Written> =
            entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let scoped = ScopedRecords::load(&entries);
        let (outputs, stale) = Outputs::load(&mut entries);
        let once = |key: &Key| side_key(key, "begun").is_ok_and(|begun| entries.contains_key(&begun));
        let errors = entries.values().filter(|entry| entry.kind == EntryKind::Error && !once(&entry.key));
        let dropped = entries.keys().filter_map(|key| Key::new(key.as_str().strip_suffix("#dropped")?).ok());
        let dropped_before = dropped.collect();
        let mut state = SessionState {
            scopes: Scopes::default(),
            errors: errors.map(|entry| entry.key.clone()).collect(),
            scoped,
            count,
            drift,
            tokens: Tokens::load(&entries),
            outputs,
            entries,
            inbox: Vec::new(),
            last_message: 0,
            more: false,
            deferred: Writes::default(),
            eager: false,
            waits: BTreeMap::new(),
            last_wait: 0,
            dropped_before,
            shelved: BTreeMap::new(),
            looks: 0,
            moves: 0,
            sent: 0,
            sent_eager: 0,
            answered: 0,
            busy: 0,
            backoffs: Vec::new(),
            halt: None,
            outcome_unknown: false,
        };
        state.receive(inbox);
        let session = Arc::new(Session {
            engine,
            recorder,
            probe,
            current: Mutex::new(run),
            state: Mutex::new(state),
            waker: Waker::from(Arc::clone(&handler_waker)),
            handler_waker,
        });
        session.begin_output(stale);
        session
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn run(&self) -> Arc<JobRun> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn probe(&self) -> Option<&dyn Probe> {
        self.probe.as_deref()
    }

    pub(crate) fn shared_probe(&self) -> Option<Arc<dyn Probe>> {
        self.probe.clone()
    }

    /// The store's time, as reckoned without asking it.
    pub(crate) fn now(&self) -> Timestamp {
        self.run().store_time(self.engine.seams().clock.monotonic())
    }

    /// Goes on under another claim.
    pub(crate) fn resume(&self, run: Arc<JobRun>, journal: Option<Box<Journal>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = run;
        let mut state = self.state();
        // What was taken before was recorded as read with the suspension; what was not comes again.
        state.inbox.clear();
        state.last_message = 0;
        state.receive(journal.map(|journal| journal.inbox).unwrap_or_default());
        drop(state);
        self.wake_waits();
    }

    /// Lets the handler look at its waits again.
    pub(crate) fn wake_waits(&self) {
        let wakers: Vec<Waker> = {
            let state = &mut *self.state();
            let open = state.waits.values_mut().filter_map(|open| open.waker.take());
            let shelved = state.shelved.values_mut().filter_map(Option::take);
            open.chain(shelved).chain(state.drift.wakers()).collect()
        };
        for waker in wakers {
            waker.wake();
        }
        self.waker.wake_by_ref();
    }

    /// What is recorded under a key. It is asked for once.
    pub(crate) fn find(&self, key: &Key) -> Option<Written> {
        self.state().entries.remove(key)
    }

    /// What an operation's record says, decoded; an error if that is what was recorded.
    ///
    /// A value that does not decode sets the job aside: its code has changed, and to do it again would be worse.
    pub(crate) async fn replay<T: DeserializeOwned>(&self, op_key: &OpKey, written: Written) -> Result<T> {
        if written.overlapped {
            op_key.overlap();
        }
        self.decoded(written).await
    }

    /// The same for what belongs to an operation beside its result.
    pub(crate) async fn decoded<T: DeserializeOwned>(&self, written: Written) -> Result<T> {
        let key = written.key;
        let value = match written.value {
            Value::Here(value) => value,
            // Rarely: it is not to be part of every operation's future.
            Value::There(_) => Box::pin(self.fetch_value(&key)).await?,
        };
        let decoded = match written.kind {
            EntryKind::Error => error::decode(&key, &value).map(Err).ok_or_else(|| "no error".to_owned()),
            _ => serde_json::from_slice(&value).map(Ok).map_err(|error| error.to_string()),
        };
        match decoded {
            Ok(result) => result,
            Err(why) => {
                let wanted = std::any::type_name::<T>();
                self.halt(format!("what is recorded for `{key}` is not a `{wanted}`: {why}")).await
            }
        }
    }

    async fn fetch_value(&self, key: &Key) -> Result<Vec<u8>> {
        let _busy = self.busy();
        let values = self.engine.store().values(self.run().claim.id, vec![key.clone()]).await?;
        let missing = || Error::Corrupt { why: format!("the value of `{key}` is missing") };
        values.into_iter().next().flatten().ok_or_else(missing)
    }

    /// Sets the job aside; nothing of its handler is polled again.
    pub(crate) async fn halt<T>(&self, note: String) -> T {
        self.state().halt.get_or_insert(note);
        self.waker.wake_by_ref();
        std::future::pending().await
    }

    /// Notes that a commit may or may not have been stored: no operation may come after it.
    pub(crate) fn set_outcome_unknown(&self) {
        self.state().outcome_unknown = true;
    }

    /// Refuses operations after a commit whose outcome is unknown.
    pub(crate) fn check_outcome_known(&self) -> Result<()> {
        if self.state().outcome_unknown { Err(Error::OutcomeUnknown { source: None }) } else { Ok(()) }
    }

    /// Something is under way that the handler waits for.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.state().busy += 1;
        Busy(self)
    }

    /// Defers an entry to the next recording. `eager`: it is recorded before a body begins that can have seen it.
    pub(crate) fn defer(&self, entry: Entry, read: &[Message], eager: bool) {
        let now = self.now();
        let mut state = self.state();
        state.deferred.entries.push(entry);
        if !read.is_empty() {
            let over = state.tokens.used_up(read, now);
            state.remove(over);
        }
        state.deferred.read.extend(read.iter().map(|message| message.no));
        state.eager |= eager;
    }

    /// Records what a body may see and would not come out the same way again; also what another operation is recording
    /// at this moment.
    pub(crate) async fn record_eager(&self) -> Result<()> {
        loop {
            let (eager, under_way) = {
                let state = self.state();
                (state.eager, state.answered < state.sent_eager)
            };
            match (eager, under_way) {
                (true, _) => self.record(Vec::new(), Vec::new()).await?,
                (false, true) => self.confirm().await?,
                (false, false) => return Ok(()),
            }
        }
    }

    /// Records all deferred writes.
    pub(crate) async fn record_deferred(&self) -> Result<()> {
        if !self.state().deferred.is_empty() {
            self.record(Vec::new(), Vec::new()).await?;
        }
        self.record_eager().await
    }

    /// Something was recorded by other means.
    pub(crate) fn recorded_elsewhere(&self, entry: Entry) {
        let mut state = self.state();
        state.count += 1;
        state.scoped.note(&[entry]);
    }

    /// Records the deferred writes and these.
    pub(crate) async fn record(&self, entries: Vec<Entry>, children: Vec<Child>) -> Result<()> {
        self.record_all(Writes { entries, ..Writes::default() }, children).await
    }

    /// The same with all that can be written.
    pub(crate) async fn record_all(&self, own: Writes, children: Vec<Child>) -> Result<()> {
        let (writes, refusable) = {
            let mut state = self.state();
            if state.count + state.deferred.entries.len() + own.entries.len() > bounds::STEPS {
                let why = format!("the job has {} records, the bound is {}", state.count, bounds::STEPS);
                let key = own.entries.into_iter().map(|entry| entry.key).next();
                return Err(match key {
                    Some(key) => error::failed(&key, discard(why).into()),
                    None => Error::TooLarge { what: "journal", size: state.count, limit: bounds::STEPS },
                });
            }
            if std::mem::take(&mut state.eager) {
                state.sent_eager = state.sent + 1;
            }
            let mut writes = std::mem::take(&mut state.deferred);
            // Only children are refused.
            let refusable = (!children.is_empty()).then(|| writes.clone());
            writes.append(own);
            (writes, refusable)
        };
        let result = self.write(writes, children).await;
        if let (Err(_), Some(deferred)) = (&result, refusable) {
            // It stays deferred, before what has come since.
            let state = &mut *self.state();
            let later = std::mem::replace(&mut state.deferred, deferred);
            state.deferred.append(later);
            state.eager = true;
        }
        result
    }

    /// The error of this operation stays recorded, whatever the handler does with it.
    pub(crate) fn keep_error(&self, key: &Key) {
        self.state().errors.remove(key);
    }

    /// Makes sure that the claim is still ours.
    pub(crate) async fn confirm(&self) -> Result<()> {
        self.write(Writes::default(), Vec::new()).await
    }

    /// Waits until the store has answered all recordings, also those of operations that were dropped. The job's end must not
    /// overtake them: a step that is done and not recorded would run again.
    pub(crate) async fn wait_for_answers(&self) {
        let last = {
            let mut state = self.state();
            if state.answered >= state.sent || planted::is(Defect::EndEarly) {
                return;
            }
            let sent = state.sent;
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
            Box::pin(self.recorder.send(NodeRecording { node: run.node, recording })).await
        };
        if let Err(error) = answer {
            tracing::debug!(%error, job = %run.info.id, "records may not be stored when their job ends");
        }
    }

    /// Takes back recorded errors that a failure blames: their steps run again.
    pub(crate) async fn take_back(&self, failure: &Failure) -> Result<()> {
        let mut forget = error::blamed(failure);
        {
            let state = self.state();
            forget.retain(|key| state.errors.contains(key));
        }
        if forget.is_empty() {
            return Ok(());
        }
        let marks = forget.iter().filter_map(|key| side_key(key, drift::AGAIN).ok());
        let entry = |key| Entry { key, kind: EntryKind::Value, overlapped: false, value: b"null".to_vec() };
        let mut writes = Writes { entries: marks.map(entry).collect(), ..Writes::default() };
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
            state.scoped.unconfirmed_starts.extend(starts.iter().cloned());
            let says = !writes.output.is_empty();
            let recording =
                NodeRecording { node: run.node, recording: Recording { claim: run.claim, writes, children } };
            // What is said must not be overtaken by what is said after it.
            (sent, if says { Ok(self.recorder.post(recording)?) } else { Err(recording) })
        };
        let answer = match said {
            Ok(posted) => posted.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))?,
            // In a place of its own: what it needs on its way is not to be part of every operation's future.
            Err(recording) => Box::pin(self.recorder.send(recording)).await?,
        };
        {
            let mut state = self.state();
            state.mark_answered(sent);
            let refused = !matches!(answer, Ok(Recorded::Stored));
            let lost = if refused { count } else { 0 };
            state.count = state.count.saturating_sub(lost);
            for key in starts {
                state.scoped.unconfirmed_starts.remove(&key);
                if refused {
                    state.scoped.forget(&key);
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

    /// The claim is not ours any more: the handler ends here. Its release asks the store once more, which knows best.
    pub(crate) async fn lease_lost<T>(&self) -> T {
        self.run().stop(Stop::Release);
        std::future::pending().await
    }

    /// Opens a wait, or keeps it open.
    pub(crate) fn open(&self, at: &mut Option<u64>, open: OpenWait) {
        let mut state = self.state();
        let id = *at.get_or_insert_with(|| state.number());
        state.waits.insert(id, Box::new(open));
    }

    pub(crate) fn close(&self, at: u64) {
        let mut state = self.state();
        state.waits.remove(&at);
        state.moves += 1;
    }

    /// Whether an operation was dropped in an earlier run.
    pub(crate) fn was_dropped(&self, key: &Key) -> bool {
        self.state().dropped_before.contains(key)
    }

    /// An operation that was dropped in an earlier run is awaited again: it stays pending until it is revived.
    pub(crate) fn shelve(&self, at: &mut Option<u64>, waker: Option<Waker>) {
        let mut state = self.state();
        let id = *at.get_or_insert_with(|| state.number());
        state.shelved.insert(id, waker);
    }

    /// An operation is gone. `dropped`: before its end, which is to be recorded.
    pub(crate) fn end_operation(&self, key: &Key, at: Option<u64>, dropped: bool) {
        let mut state = self.state();
        if let Some(at) = at {
            state.shelved.remove(&at);
        }
        // Without room for the mark it is as if it had not been asked for.
        if dropped
            && !state.scoped.leaves_no_drop_marks()
            && let Ok(key) = side_key(key, DROPPED)
        {
            let entry = Entry { key, kind: EntryKind::Value, overlapped: false, value: b"null".to_vec() };
            state.deferred.entries.push(entry);
            state.eager = true;
        }
    }

    /// Whether the inbox was looked into, to its end, since a point in time that is past; asks for that if it was not.
    /// `since` is kept by the one who asks.
    pub(crate) fn has_looked(&self, due: Timestamp, since: &mut Option<u64>) -> bool {
        let came = self.run().claimed_at() > due;
        let mut state = self.state();
        let looks = state.looks;
        let looked = *since.get_or_insert(looks) < looks;
        // Behind the messages that are here there may be one that came in time.
        if !state.more && (came || looked) {
            return true;
        }
        state.more = true;
        false
    }

    /// Takes messages of a subject, if as many are there; with `fewer`, what is there.
    pub(crate) fn take(&self, subject: &Subject, need: u32, fewer: bool) -> Option<Vec<Message>> {
        let mut state = self.state();
        let need = usize::try_from(need).unwrap_or(usize::MAX);
        let fits = |message: &Message| message.body.subject() == *subject;
        let there = state.inbox.iter().filter(|message| fits(message)).count();
        if there < need && !fewer {
            return None;
        }
        let mut left = need;
        let taken = state.inbox.extract_if(.., |message| {
            let takes = left > 0 && fits(message);
            left -= usize::from(takes);
            takes
        });
        Some(taken.collect())
    }

    /// Takes in what another look into the inbox gave.
    pub(crate) fn received(&self, inbox: Inbox) {
        {
            let mut state = self.state();
            state.looks += 1;
            state.receive(inbox);
        }
        // That nothing has come is news as well, to a wait whose time is up.
        self.wake_waits();
    }

    /// Behind which message the next look into the inbox begins.
    pub(crate) fn last_message(&self) -> i64 {
        self.state().last_message
    }

    /// What to do with a handler that is pending and was not woken. `wakers`: how many may wake it that are no durable
    /// operations.
    pub(crate) fn assess(&self, wakers: usize, news: bool) -> NextAction {
        let (now, foreign) = (self.now(), wakers > 0);
        let mut state = self.state();
        if !state.backoffs.is_empty() {
            // Each pause keeps one waker; one more is of something outside.
            let alone = state.busy == state.backoffs.len() && wakers <= state.busy;
            let first = state.backoffs.iter().min_by_key(|backoff| backoff.until);
            self.run().set_backoff(first.filter(|_| alone).cloned());
        }
        if let Some(note) = state.halt.take() {
            return NextAction::Halt(state.halted(note));
        }
        match state.judge(foreign) {
            Judgement::Nobody => {}
            Judgement::Go => return NextAction::Revive,
            Judgement::Wait => return NextAction::Stay { look: None, idle: false, foreign: false },
            // What an operator has said of it may be among the messages that were not read yet.
            Judgement::Drift(_) if state.more => return NextAction::Fetch,
            Judgement::Drift(note) => return NextAction::Halt(state.halted(note)),
        }
        if state.waits.is_empty() {
            if foreign || state.busy > 0 || state.shelved.is_empty() {
                let foreign = foreign && state.busy == 0 && state.count > 0;
                return NextAction::Stay { look: None, idle: false, foreign };
            }
            let marks = std::mem::take(&mut state.dropped_before);
            let marks: Vec<Key> = marks.iter().filter_map(|key| side_key(key, DROPPED).ok()).collect();
            state.forgotten(&marks);
            state.deferred.forget.extend(marks);
            return NextAction::Revive;
        }
        let listens = state.waits.values().any(|open| open.subject.is_some());
        if listens && (state.more || news) {
            return NextAction::Fetch;
        }
        let until = state.waits.values().filter_map(|open| open.until).min();
        if foreign || state.busy > 0 {
            if state.deferred.entries.iter().any(|entry| entry.kind == EntryKind::Until) {
                return NextAction::Flush;
            }
            let due = until.map(|until| until.since(now));
            let look = due.into_iter().chain(listens.then_some(LOOK)).min().or(Some(LOOK));
            let idle = due.is_none_or(|due| look.is_some_and(|look| look < due));
            return NextAction::Stay { look, idle, foreign: foreign && state.busy == 0 };
        }
        if state.answered < state.sent {
            // Handed in by an operation that was dropped: it must not come after the suspension.
            return NextAction::Flush;
        }
        let mut waits: Vec<Wait> = Vec::new();
        for (subject, need) in state.waits.values().filter_map(|open| open.subject.as_ref()) {
            match waits.iter_mut().find(|wait| wait.subject == *subject) {
                Some(wait) => wait.need = wait.need.min(*need),
                None => waits.push(Wait { subject: subject.clone(), need: *need }),
            }
        }
        let reason = state.waits.values().next().map_or(Reason::Timer, |open| open.reason());
        state.eager = false;
        state.discard_decisions();
        let kept = state.outputs.suspended();
        state.deferred.entries.extend(kept);
        state.count += state.deferred.entries.len();
        let writes = std::mem::take(&mut state.deferred);
        state.scoped.note(&writes.entries);
        NextAction::Suspend(Box::new(Suspension { reason, waits, until, writes, note: None }))
    }

    /// How many operations have begun and waits have ended: if that stands still, so does the handler.
    pub(crate) fn moves(&self) -> u64 {
        self.state().moves
    }

    /// An operation begins.
    pub(crate) fn moved(&self) {
        self.state().moves += 1;
    }

    /// What the handler waits for, in words.
    pub(crate) fn waits_for(&self) -> Vec<Key> {
        self.state().waits.values().map(|open| open.key.clone()).collect()
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

/// Beside an operation's key: it was dropped before its end.
const DROPPED: &str = "dropped";
/// How long a handler that stays in memory relies on hints of messages before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

impl SessionState {
    /// The job is set aside, with what there is to say of that.
    fn halted(&mut self, note: String) -> Box<Suspension> {
        Box::new(Suspension {
            reason: Reason::Drift,
            waits: Vec::new(),
            until: None,
            writes: std::mem::take(&mut self.deferred),
            note: Some(mainspring_core::job::cut(note, bounds::ERROR_BYTES)),
        })
    }

    /// Something is handed in to be recorded; its number.
    pub(super) fn hand_in(&mut self, writes: &mut Writes) -> u64 {
        let errors = writes.entries.iter().filter(|entry| entry.kind == EntryKind::Error);
        self.errors.extend(errors.map(|entry| entry.key.clone()));
        self.count += writes.entries.len();
        self.scoped.note(&writes.entries);
        self.outputs.number(&mut writes.output);
        self.sent += 1;
        self.sent
    }

    /// The store has answered a recording, and so all before it.
    pub(super) fn mark_answered(&mut self, sent: u64) {
        self.answered = self.answered.max(sent);
    }

    /// Records are removed with the next recording.
    pub(super) fn forgotten(&mut self, keys: &[Key]) {
        self.count = self.count.saturating_sub(keys.len());
        for key in keys {
            self.scoped.forget(key);
        }
    }

    /// Removes records with the next operation.
    pub(super) fn remove(&mut self, keys: Vec<Key>) {
        self.count = self.count.saturating_sub(keys.len());
        self.deferred.forget.extend(keys);
    }

    /// The number of another wait, shelved operation or undecided one.
    pub(super) fn number(&mut self) -> u64 {
        self.last_wait += 1;
        self.last_wait
    }

    fn receive(&mut self, inbox: Inbox) {
        self.more = inbox.more;
        for message in inbox.messages {
            if message.no > self.last_message {
                self.last_message = message.no;
                self.inbox.push(message);
            }
        }
    }
}

/// Something that is under way, until it is dropped.
pub(crate) struct Busy<'a>(&'a Session);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy = state.busy.saturating_sub(1);
    }
}
