//! The session: what one handler knows of its job's past, and what it has yet to record.
//!
//! A session lives as long as the handler's future. That may be longer than one claim: a suspended handler that is kept
//! in memory goes on under the next claim, with the same session.
//!
//! What an operation leaves to be recorded with the next one *rides along*. If a step's body may have seen it, and it
//! would not come out the same way again, it is recorded before the body begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use mainspring_core::failure::{Failure, discard};
use mainspring_core::job::Reason;
use mainspring_core::journal::{
    Child, Entry, EntryKind, Inbox, Journal, Message, Recorded, Recording, Suspension, Topic, Value, Wait,
    Writes, Written,
};
use mainspring_core::name::Key;
use mainspring_core::planted::{self, Defect};
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::de::DeserializeOwned;

use super::collapse::Inner;
use super::drift::{self, Drift, Judged};
use super::error;
use super::key::{Scopes, Slot, beside};
use super::output::Outputs;
use super::recorder::{Item, Recorder};
use super::root::Root;
use super::token::Tokens;
use crate::context::{Rest, Run, Stop};
use crate::engine::Engine;
use crate::sync::{Mutex, MutexGuard};
use crate::testing::Probe;

/// What one handler shares with its durable operations.
pub(crate) struct Session {
    pub(crate) engine: Engine,
    recorder: Arc<Recorder>,
    probe: Option<Arc<dyn Probe>>,
    /// The claim under which the handler runs.
    current: Mutex<Arc<Run>>,
    state: Mutex<State>,
    pub(crate) root: Arc<Root>,
    pub(crate) waker: Waker,
}

pub(crate) struct State {
    pub(crate) scopes: Scopes,
    /// Records that have not been asked for yet.
    pub(super) entries: BTreeMap<Key, Written>,
    /// What is recorded inside of scopes.
    pub(super) inner: Inner,
    /// Keys of recorded errors that can be taken back.
    pub(super) errors: BTreeSet<Key>,
    /// How many records there are.
    pub(super) count: usize,
    /// Who is not sure whether he fits what is recorded.
    pub(super) drift: Drift,
    pub(super) tokens: Tokens,
    pub(super) outputs: Outputs,
    /// Messages that nobody has taken yet.
    pub(super) inbox: Vec<Message>,
    last_message: i64,
    /// Whether the store has more messages than these, or may have.
    more: bool,
    /// What rides along with the next recording.
    pub(super) riding: Writes,
    /// Whether some of it has to be recorded before a body begins.
    pub(super) eager: bool,
    /// In boxes, as scopes are: a map has room for eleven at once, and most handlers have one.
    waits: BTreeMap<u64, Box<Open>>,
    last_wait: u64,
    /// Operations that were given up in an earlier run.
    pub(super) left: BTreeSet<Key>,
    /// Those of them that are there again, and who is to be told when they come back.
    lying: BTreeMap<u64, Option<Waker>>,
    /// How often the inbox was looked into.
    looks: u64,
    /// Operations that have begun, and waits that have ended.
    moves: u64,
    /// Recordings that were handed in, the last that had something to be recorded before a body begins, and the last of
    /// which the store has told: they are stored in this order.
    sent: u64,
    sent_eager: u64,
    settled: u64,
    /// Bodies and calls of the store that are under way.
    pub(super) busy: usize,
    /// Those of them that are pauses before a step is tried again.
    pub(super) rests: Vec<Rest>,
    halt: Option<String>,
    /// Whether nobody knows if something was recorded: the handler must end, and the next run finds out.
    doubt: bool,
}

/// A durable wait that is open.
pub(crate) struct Open {
    pub(crate) key: Key,
    pub(crate) topic: Option<(Topic, u32)>,
    pub(crate) until: Option<Timestamp>,
    /// Set if the wait is polled by something between it and the handler, which must be told.
    pub(crate) waker: Option<Waker>,
}

impl Open {
    fn reason(&self) -> Reason {
        match self.topic {
            None => Reason::Timer,
            Some((Topic::Signal(_), _)) => Reason::Signal,
            Some((Topic::Child(_), _)) => Reason::Child,
        }
    }
}

/// What is to be done when a handler does not go on by itself.
pub(crate) enum Quiet {
    /// Its recorded steps do not fit its code: it is set aside.
    Halt(Box<Suspension>),
    /// It waits for durable operations alone.
    Suspend(Box<Suspension>),
    /// There may be more messages than it knows of.
    Fetch,
    /// What its waits have noted is to be recorded, because they go on in memory.
    Flush,
    /// What it gave up comes back: there is nothing else.
    Again,
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
        run: Arc<Run>,
        journal: Option<Box<Journal>>,
    ) -> Arc<Self> {
        let root = Arc::new(Root::default());
        let Journal { entries, inbox } = journal.map(|journal| *journal).unwrap_or_default();
        let count = entries.len();
        let drift = Drift::load(&entries);
        let mut entries: BTreeMap<Key, Written> =
            entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        let inner = Inner::load(&entries);
        let (outputs, stale) = Outputs::load(&mut entries);
        let once = |key: &Key| beside(key, "begun").is_ok_and(|begun| entries.contains_key(&begun));
        let errors = entries.values().filter(|entry| entry.kind == EntryKind::Error && !once(&entry.key));
        let left = entries.keys().filter_map(|key| Key::new(key.as_str().strip_suffix("#left")?).ok());
        let left = left.collect();
        let mut state = State {
            scopes: Scopes::default(),
            errors: errors.map(|entry| entry.key.clone()).collect(),
            inner,
            count,
            drift,
            tokens: Tokens::load(&entries),
            outputs,
            entries,
            inbox: Vec::new(),
            last_message: 0,
            more: false,
            riding: Writes::default(),
            eager: false,
            waits: BTreeMap::new(),
            last_wait: 0,
            left,
            lying: BTreeMap::new(),
            looks: 0,
            moves: 0,
            sent: 0,
            sent_eager: 0,
            settled: 0,
            busy: 0,
            rests: Vec::new(),
            halt: None,
            doubt: false,
        };
        state.receive(inbox);
        let session = Arc::new(Session {
            engine,
            recorder,
            probe,
            current: Mutex::new(run),
            state: Mutex::new(state),
            waker: Waker::from(Arc::clone(&root)),
            root,
        });
        session.begin_output(stale);
        session
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn run(&self) -> Arc<Run> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn probe(&self) -> Option<&dyn Probe> {
        self.probe.as_deref()
    }

    pub(crate) fn shared_probe(&self) -> Option<Arc<dyn Probe>> {
        self.probe.clone()
    }

    /// The store's time, as far as it can be told without asking.
    pub(crate) fn now(&self) -> Timestamp {
        self.run().store_time(self.engine.seams().clock.monotonic())
    }

    /// Goes on under another claim.
    pub(crate) fn resume(&self, run: Arc<Run>, journal: Option<Box<Journal>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = run;
        let mut state = self.state();
        // What was taken before was recorded as read with the suspension; what was not comes again.
        state.inbox.clear();
        state.last_message = 0;
        state.receive(journal.map(|journal| journal.inbox).unwrap_or_default());
        drop(state);
        self.stir();
    }

    /// Lets the handler look at its waits again.
    pub(crate) fn stir(&self) {
        let wakers: Vec<Waker> = {
            let state = &mut *self.state();
            let open = state.waits.values_mut().filter_map(|open| open.waker.take());
            let lying = state.lying.values_mut().filter_map(Option::take);
            open.chain(lying).chain(state.drift.wakers()).collect()
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
    pub(crate) async fn replay<T: DeserializeOwned>(&self, slot: &Slot, written: Written) -> Result<T> {
        if written.overlapped {
            slot.overlap();
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

    /// Nobody knows whether something was recorded: no operation may come after it.
    pub(crate) fn doubt(&self) {
        self.state().doubt = true;
    }

    /// Refuses operations after one whose end nobody knows.
    pub(crate) fn check_doubt(&self) -> Result<()> {
        if self.state().doubt { Err(Error::OutcomeUnknown { source: None }) } else { Ok(()) }
    }

    /// Something is under way that the handler waits for.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.state().busy += 1;
        Busy(self)
    }

    /// Leaves something to be recorded with the next operation. `eager`: before a body can have seen it.
    pub(crate) fn ride(&self, entry: Entry, read: &[Message], eager: bool) {
        let now = self.now();
        let mut state = self.state();
        state.riding.entries.push(entry);
        if !read.is_empty() {
            let over = state.tokens.used_up(read, now);
            state.remove(over);
        }
        state.riding.read.extend(read.iter().map(|message| message.no));
        state.eager |= eager;
    }

    /// Records what a body may see and would not come out the same way again; also what another operation is recording
    /// at this moment.
    pub(crate) async fn settle(&self) -> Result<()> {
        loop {
            let (eager, under_way) = {
                let state = self.state();
                (state.eager, state.settled < state.sent_eager)
            };
            match (eager, under_way) {
                (true, _) => self.record(Vec::new(), Vec::new()).await?,
                (false, true) => self.confirm().await?,
                (false, false) => return Ok(()),
            }
        }
    }

    /// Records all that rides along.
    pub(crate) async fn settle_all(&self) -> Result<()> {
        if !self.state().riding.is_empty() {
            self.record(Vec::new(), Vec::new()).await?;
        }
        self.settle().await
    }

    /// Something was recorded by other means.
    pub(crate) fn recorded_elsewhere(&self, entry: Entry) {
        let mut state = self.state();
        state.count += 1;
        state.inner.note(&[entry]);
    }

    /// Records what rides along, and these.
    pub(crate) async fn record(&self, entries: Vec<Entry>, children: Vec<Child>) -> Result<()> {
        self.record_all(Writes { entries, ..Writes::default() }, children).await
    }

    /// The same with all that can be written.
    pub(crate) async fn record_all(&self, own: Writes, children: Vec<Child>) -> Result<()> {
        let (writes, refusable) = {
            let mut state = self.state();
            if state.count + state.riding.entries.len() + own.entries.len() > bounds::STEPS {
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
            let mut writes = std::mem::take(&mut state.riding);
            // Only children are refused.
            let refusable = (!children.is_empty()).then(|| writes.clone());
            writes.append(own);
            (writes, refusable)
        };
        let result = self.write(writes, children).await;
        if let (Err(_), Some(riding)) = (&result, refusable) {
            // It rides on, before what has come since.
            let state = &mut *self.state();
            let later = std::mem::replace(&mut state.riding, riding);
            state.riding.append(later);
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

    /// Waits until the store has told of all that was handed in, also by operations that were given up: the job's end must
    /// not overtake it, or what was done and not recorded yet would be done again.
    pub(crate) async fn all_told(&self) {
        let last = {
            let mut state = self.state();
            if state.settled >= state.sent || planted::is(Defect::EndEarly) {
                return;
            }
            let sent = state.sent;
            state.outputs.flight(sent)
        };
        let run = self.run();
        // What a body said has an answer that nobody waits for. Any other answer went with who waited for it: then one more
        // is handed in, behind it. Whatever that is answered, the end is told the same.
        let told = if let Some(flight) = last {
            flight.answer.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))
        } else {
            let writes = Writes { idle: true, ..Writes::default() };
            let recording = Recording { claim: run.claim, writes, children: Vec::new() };
            Box::pin(self.recorder.send(Item { node: run.node, recording })).await
        };
        if let Err(error) = told {
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
        let marks = forget.iter().filter_map(|key| beside(key, drift::AGAIN).ok());
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
        let starts = starts(&writes, &children);
        // What is handed in is recorded, whether or not anybody waits for it.
        let (sent, said) = {
            let mut state = self.state();
            let sent = state.hand_in(&mut writes);
            state.inner.unsure.extend(starts.iter().cloned());
            let says = !writes.output.is_empty();
            let item = Item { node: run.node, recording: Recording { claim: run.claim, writes, children } };
            // What is said must not be overtaken by what is said after it.
            (sent, if says { Ok(self.recorder.post(item)?) } else { Err(item) })
        };
        let answer = match said {
            Ok(posted) => posted.await.unwrap_or(Err(Error::OutcomeUnknown { source: None }))?,
            // In a place of its own: what it needs on its way is not to be part of every operation's future.
            Err(item) => Box::pin(self.recorder.send(item)).await?,
        };
        {
            let mut state = self.state();
            state.settle(sent);
            let refused = !matches!(answer, Ok(Recorded::Stored));
            let lost = if refused { count } else { 0 };
            state.count = state.count.saturating_sub(lost);
            for key in starts {
                state.inner.unsure.remove(&key);
                if refused {
                    state.inner.forget(&key);
                }
            }
        }
        self.answered(answer).await
    }

    /// What the store said to a recording.
    pub(super) async fn answered(&self, answer: Result<Recorded>) -> Result<()> {
        match answer {
            Ok(Recorded::Stored) => Ok(()),
            Ok(Recorded::LeaseLost) => self.lost().await,
            Ok(Recorded::Taken { child, differs }) => Err(Error::IdTaken { id: child, differs }),
            // The node is going: what this handler does is nobody's business any more.
            Err(error) if error.is_retryable() => std::future::pending().await,
            Err(error) => Err(error),
        }
    }

    /// The claim is not ours any more: the handler ends here. That is said to the store once more, which knows best.
    pub(crate) async fn lost<T>(&self) -> T {
        self.run().stop(Stop::Release);
        std::future::pending().await
    }

    /// Opens a wait, or keeps it open.
    pub(crate) fn open(&self, at: &mut Option<u64>, open: Open) {
        let mut state = self.state();
        let id = *at.get_or_insert_with(|| state.number());
        state.waits.insert(id, Box::new(open));
    }

    pub(crate) fn close(&self, at: u64) {
        let mut state = self.state();
        state.waits.remove(&at);
        state.moves += 1;
    }

    /// Whether an operation was given up in an earlier run.
    pub(crate) fn is_left(&self, key: &Key) -> bool {
        self.state().left.contains(key)
    }

    /// An operation that was given up is there again, and waits until it comes back.
    pub(crate) fn lie(&self, at: &mut Option<u64>, waker: Option<Waker>) {
        let mut state = self.state();
        let id = *at.get_or_insert_with(|| state.number());
        state.lying.insert(id, waker);
    }

    /// An operation is gone; `note`: it was given up.
    pub(crate) fn leave(&self, key: &Key, at: Option<u64>, note: bool) {
        let mut state = self.state();
        if let Some(at) = at {
            state.lying.remove(&at);
        }
        // Without room for the mark it is as if it had not been asked for.
        if note
            && !state.inner.is_quiet()
            && let Ok(key) = beside(key, "left")
        {
            let entry = Entry { key, kind: EntryKind::Value, overlapped: false, value: b"null".to_vec() };
            state.riding.entries.push(entry);
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

    /// Takes messages of a topic, if as many are there; with `fewer`, what is there.
    pub(crate) fn take(&self, topic: &Topic, need: u32, fewer: bool) -> Option<Vec<Message>> {
        let mut state = self.state();
        let need = usize::try_from(need).unwrap_or(usize::MAX);
        let fits = |message: &Message| message.mail.topic() == *topic;
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
        self.stir();
    }

    /// Behind which message the next look into the inbox begins.
    pub(crate) fn last_message(&self) -> i64 {
        self.state().last_message
    }

    /// What to do with a handler that is pending and was not woken. `wakers`: how many may wake it that are no durable
    /// operations.
    pub(crate) fn assess(&self, wakers: usize, news: bool) -> Quiet {
        let (now, foreign) = (self.now(), wakers > 0);
        let mut state = self.state();
        if !state.rests.is_empty() {
            // Each pause keeps one waker; one more is of something outside.
            let alone = state.busy == state.rests.len() && wakers <= state.busy;
            let first = state.rests.iter().min_by_key(|rest| rest.until);
            self.run().rest(first.filter(|_| alone).cloned());
        }
        if let Some(note) = state.halt.take() {
            return Quiet::Halt(state.halted(note));
        }
        match state.judge(foreign) {
            Judged::Nobody => {}
            Judged::Go => return Quiet::Again,
            Judged::Wait => return Quiet::Stay { look: None, idle: false, foreign: false },
            // What an operator has said of it may be among the messages that were not read yet.
            Judged::Drift(_) if state.more => return Quiet::Fetch,
            Judged::Drift(note) => return Quiet::Halt(state.halted(note)),
        }
        if state.waits.is_empty() {
            if foreign || state.busy > 0 || state.lying.is_empty() {
                let foreign = foreign && state.busy == 0 && state.count > 0;
                return Quiet::Stay { look: None, idle: false, foreign };
            }
            let marks = std::mem::take(&mut state.left);
            let marks: Vec<Key> = marks.iter().filter_map(|key| beside(key, "left").ok()).collect();
            state.forgotten(&marks);
            state.riding.forget.extend(marks);
            return Quiet::Again;
        }
        let listens = state.waits.values().any(|open| open.topic.is_some());
        if listens && (state.more || news) {
            return Quiet::Fetch;
        }
        let until = state.waits.values().filter_map(|open| open.until).min();
        if foreign || state.busy > 0 {
            if state.riding.entries.iter().any(|entry| entry.kind == EntryKind::Until) {
                return Quiet::Flush;
            }
            let due = until.map(|until| until.since(now));
            let look = due.into_iter().chain(listens.then_some(LOOK)).min().or(Some(LOOK));
            let idle = due.is_none_or(|due| look.is_some_and(|look| look < due));
            return Quiet::Stay { look, idle, foreign: foreign && state.busy == 0 };
        }
        if state.settled < state.sent {
            // Handed in by an operation that was given up: it must not come after the suspension.
            return Quiet::Flush;
        }
        let mut waits: Vec<Wait> = Vec::new();
        for (topic, need) in state.waits.values().filter_map(|open| open.topic.as_ref()) {
            match waits.iter_mut().find(|wait| wait.topic == *topic) {
                Some(wait) => wait.need = wait.need.min(*need),
                None => waits.push(Wait { topic: topic.clone(), need: *need }),
            }
        }
        let reason = state.waits.values().next().map_or(Reason::Timer, |open| open.reason());
        state.eager = false;
        state.spend_words();
        let kept = state.outputs.suspended();
        state.riding.entries.extend(kept);
        state.count += state.riding.entries.len();
        let writes = std::mem::take(&mut state.riding);
        state.inner.note(&writes.entries);
        Quiet::Suspend(Box::new(Suspension { reason, waits, until, writes, note: None }))
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
fn starts(writes: &Writes, children: &[Child]) -> Vec<Key> {
    if children.is_empty() {
        return Vec::new();
    }
    let starts = writes.entries.iter().filter(|entry| entry.kind == EntryKind::Child);
    starts.map(|entry| entry.key.clone()).collect()
}

/// How long a handler that stays in memory relies on being told of messages before it looks by itself.
const LOOK: Duration = Duration::from_secs(1);

impl State {
    /// The job is set aside, with what there is to say of that.
    fn halted(&mut self, note: String) -> Box<Suspension> {
        Box::new(Suspension {
            reason: Reason::Drift,
            waits: Vec::new(),
            until: None,
            writes: std::mem::take(&mut self.riding),
            note: Some(mainspring_core::job::cut(note, bounds::ERROR_BYTES)),
        })
    }

    /// Something is handed in to be recorded; its number.
    pub(super) fn hand_in(&mut self, writes: &mut Writes) -> u64 {
        let errors = writes.entries.iter().filter(|entry| entry.kind == EntryKind::Error);
        self.errors.extend(errors.map(|entry| entry.key.clone()));
        self.count += writes.entries.len();
        self.inner.note(&writes.entries);
        self.outputs.number(&mut writes.output);
        self.sent += 1;
        self.sent
    }

    /// The store has told of a recording, and so of all before it.
    pub(super) fn settle(&mut self, sent: u64) {
        self.settled = self.settled.max(sent);
    }

    /// Records are removed with the next recording.
    pub(super) fn forgotten(&mut self, keys: &[Key]) {
        self.count = self.count.saturating_sub(keys.len());
        for key in keys {
            self.inner.forget(key);
        }
    }

    /// Removes records with the next operation.
    pub(super) fn remove(&mut self, keys: Vec<Key>) {
        self.count = self.count.saturating_sub(keys.len());
        self.riding.forget.extend(keys);
    }

    /// Tells those who wait apart.
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
