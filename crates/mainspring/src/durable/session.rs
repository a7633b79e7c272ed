//! The session: what one handler shares with its durable operations.
//!
//! A session composes parts, each with a file and rules of its own: what is recorded ([`Replay`]), what is yet to be recorded and in
//! which order ([`DeferredWrites`]), messages ([`SessionInbox`]), waits ([`OpenWaits`]) and what runs meanwhile ([`UnderWay`]). What takes
//! several of them is done here, under one lock.
//!
//! A session lives as long as the handler's future. That may be longer than one claim: a suspended handler that is kept
//! in memory resumes under the next claim, with the same session.
//!
//! # Invariants
//! - The decision to suspend and the suspension itself are made under one lock: nothing is handed in between them.

use std::sync::{Arc, PoisonError};
use std::task::Waker;

use mainspring_core::job::Reason;
use mainspring_core::journal::{Entry, EntryKind, Inbox, Journal, Suspension, Value, Writes, Written};
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};
use serde::de::DeserializeOwned;

use super::activation::HandlerWaker;
use super::deferred_writes::DeferredWrites;
use super::inbox::SessionInbox;
use super::next_action::{Fit, NextAction, Snapshot, Stay, WaitsSnapshot, next_action};
use super::open_waits::OpenWaits;
use super::operation::OpKey;
use super::output::{self, Outputs};
use super::recorder::Recorder;
use super::replay::Replay;
use super::token::Tokens;
use super::under_way::UnderWay;
use super::{drift, error};
use crate::engine::Engine;
use crate::job_run::{JobRun, Stop};
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

/// The parts of a session.
pub(crate) struct SessionState {
    pub(crate) replay: Replay,
    pub(super) deferred: DeferredWrites,
    pub(super) inbox: SessionInbox,
    pub(super) waits: OpenWaits,
    pub(super) under_way: UnderWay,
    pub(super) outputs: Outputs,
    pub(super) tokens: Tokens,
    /// Why a record cannot be used, if one cannot: the job is set aside.
    halt: Option<String>,
    /// Whether an operation has ended the run, because the lease is lost or has lapsed.
    lease_lost: bool,
    /// Whether a commit may or may not have been stored: the handler must end, and the next run finds out.
    outcome_unknown: bool,
}

/// What an activation does with a handler that is pending and was not woken.
pub(crate) enum Assessment {
    /// Its run ends here: the job is suspended, or set aside.
    Suspended(Box<Suspension>),
    /// It looks into the inbox.
    Fetch,
    /// It records the deferred writes.
    Flush,
    /// It lets the handler look at its operations again.
    Wake,
    /// It leaves the handler in its slot.
    Stay(Stay),
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
        let Journal { entries, inbox: came } = journal.map(|journal| *journal).unwrap_or_default();
        let (mut replay, mut inbox) = (Replay::load(entries), SessionInbox::default());
        let (outputs, stale) = Outputs::load(&mut replay.entries);
        inbox.begin(came);
        let state = SessionState {
            tokens: Tokens::load(&replay.entries),
            replay,
            outputs,
            inbox,
            deferred: DeferredWrites::default(),
            waits: OpenWaits::default(),
            under_way: UnderWay::default(),
            halt: None,
            lease_lost: false,
            outcome_unknown: false,
        };
        let session = Arc::new(Session {
            engine,
            recorder,
            probe,
            current: Mutex::new(run),
            state: Mutex::new(state),
            waker: Waker::from(Arc::clone(&handler_waker)),
            handler_waker,
        });
        output::begin(&session, stale);
        session
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The claim under which the handler runs.
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

    /// Resumes under another claim.
    pub(crate) fn resume(&self, run: Arc<JobRun>, journal: Option<Box<Journal>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = run;
        self.state().inbox.begin(journal.map(|journal| journal.inbox).unwrap_or_default());
        self.wake_waits();
    }

    /// Lets the handler look at its waits again.
    pub(crate) fn wake_waits(&self) {
        let wakers: Vec<Waker> = {
            let SessionState { waits, replay, .. } = &mut *self.state();
            waits.take_wakers().chain(replay.drift.take_wakers()).collect()
        };
        for waker in wakers {
            waker.wake();
        }
        self.waker.wake_by_ref();
    }

    /// Takes in what another look into the inbox has brought. That nothing has come is news as well, to a wait whose time is up.
    pub(crate) fn received(&self, inbox: Inbox) {
        self.state().inbox.looked(inbox);
        self.wake_waits();
    }

    /// An operation begins. It is refused after a commit whose outcome is unknown.
    pub(crate) fn begin_operation(&self) -> Result<()> {
        let mut state = self.state();
        if state.outcome_unknown {
            return Err(Error::OutcomeUnknown { source: None });
        }
        state.under_way.moved();
        Ok(())
    }

    /// The claim is not ours any more: the handler ends here. Its release asks the store once more, which knows best.
    pub(crate) async fn lease_lost<T>(&self) -> T {
        self.state().lease_lost = true;
        self.run().stop(Stop::Release);
        std::future::pending().await
    }

    /// Notes that a commit may or may not have been stored: no operation may come after it.
    pub(crate) fn set_outcome_unknown(&self) {
        self.state().outcome_unknown = true;
    }

    /// What is recorded under a key. It is found once.
    pub(crate) fn find(&self, key: &Key) -> Option<Written> {
        self.state().replay.find(key)
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
                self.halt(format!("the record of `{key}` is not a `{wanted}`: {why}")).await
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

    /// Decides what to do with a handler that is pending and was not woken, and does what the session can do itself. `wakers`:
    /// how many may wake it that are no durable operations. `news`: a message was hinted at, or it is time to look.
    pub(crate) fn assess(&self, wakers: usize, news: bool) -> Assessment {
        let now = self.now();
        let mut state = self.state();
        if state.under_way.pauses() {
            self.run().set_backoff(state.under_way.lone_pause(wakers));
        }
        let action = next_action(&state.snapshot(now, wakers, news));
        state.carry_out(action, now)
    }
}

impl SessionState {
    fn snapshot(&self, now: Timestamp, wakers: usize, news: bool) -> Snapshot {
        let waits = (!self.waits.is_empty()).then(|| WaitsSnapshot {
            listens: self.waits.listens(),
            due: self.waits.due(),
            end_deferred: self.deferred.has_end_of_wait(),
        });
        Snapshot {
            now,
            lease_lost: self.lease_lost,
            fit: if self.halt.is_some() { Fit::Unusable } else { self.replay.fit(&self.inbox) },
            wakers,
            busy: self.under_way.busy(),
            shelved: self.waits.shelved(),
            records: self.replay.count(),
            waits,
            more_messages: self.inbox.has_more(),
            news,
            unanswered: self.deferred.unanswered().is_some(),
        }
    }

    fn carry_out(&mut self, action: NextAction, now: Timestamp) -> Assessment {
        match action {
            NextAction::Fetch => return Assessment::Fetch,
            NextAction::Flush => return Assessment::Flush,
            NextAction::Stay(stay) => return Assessment::Stay(stay),
            NextAction::Suspend => return Assessment::Suspended(self.suspend(now)),
            NextAction::Halt => {
                let note = self.halt.take().unwrap_or_default();
                return Assessment::Suspended(self.set_aside(note));
            }
            NextAction::HoldForDrift => {
                let note = self.replay.describe_drift();
                return Assessment::Suspended(self.set_aside(note));
            }
            NextAction::PassFitting => self.replay.pass_fitting(),
            NextAction::PassUnseen => self.replay.pass_unseen(),
            NextAction::ApplyDecision => {
                self.replay.apply_decision(&mut self.inbox, &mut self.deferred);
            }
            NextAction::ReviveDropped => {
                let marks = self.replay.revive_dropped();
                self.remove(marks);
            }
        }
        Assessment::Wake
    }

    /// The job waits for its durable waits alone.
    fn suspend(&mut self, now: Timestamp) -> Box<Suspension> {
        drift::discard_decisions(&mut self.inbox, &mut self.deferred);
        if let Some(mark) = self.outputs.suspended() {
            self.deferred.add(mark, false);
        }
        let writes = self.deferred.take();
        self.replay.add(&writes.entries);
        // When the time is up it is woken, and waits on without them.
        let keeps_until = self.waits.keeps_until().filter(|until| *until > now);
        let until = self.waits.due().into_iter().chain(keeps_until).min();
        let (reason, waits) = (self.waits.reason(), self.waits.subjects());
        Box::new(Suspension { reason, waits, until, keep: keeps_until.is_some(), writes, note: None })
    }

    /// The job is set aside, with what there is to say of that.
    fn set_aside(&mut self, note: String) -> Box<Suspension> {
        Box::new(Suspension {
            reason: Reason::Drift,
            waits: Vec::new(),
            until: None,
            keep: false,
            writes: self.deferred.take(),
            note: Some(mainspring_core::job::cut(note, bounds::ERROR_BYTES)),
        })
    }

    /// Something is handed in to be recorded; its number.
    pub(super) fn hand_in(&mut self, writes: &mut Writes) -> u64 {
        self.replay.add(&writes.entries);
        self.outputs.number(&mut writes.output);
        self.deferred.hand_in()
    }

    /// Something was recorded by other means.
    pub(super) fn recorded_elsewhere(&mut self, entry: &Entry) {
        self.replay.add(std::slice::from_ref(entry));
    }

    /// Removes records with the next recording.
    pub(super) fn remove(&mut self, keys: Vec<Key>) {
        self.replay.forget(&keys);
        self.deferred.forget(keys);
    }

    /// Takes a record back that something later stands for, with the next recording.
    pub(super) fn retract(&mut self, key: Key) {
        if !self.deferred.retract(&key) {
            self.remove(vec![key]);
        }
    }
}
