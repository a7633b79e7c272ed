//! What waits for the writer.
//!
//! # Invariants
//! - No more than [`WAITING`] requests wait; beyond that callers are told to come back later.
//! - Renewals overtake everything else: a node must not lose its lease because others write much.
//! - What must be alone in its transaction is; also renewals do not wait for it.
//! - After `close` or `poison` nothing new gets in.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::Waker;
use std::time::Duration;

use mainspring_core::Error;
use mainspring_core::store::check_outside;

use super::Tx;
use crate::error::{Fault, Result, damaged};
use crate::oneshot::Sender;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Requests that may wait. A batch of a thousand engines with a hundred callers each.
const WAITING: usize = 100_000;
/// Requests per transaction.
const CALLS: usize = 1_024;
/// Rows per transaction: some tens of milliseconds.
const ROWS: usize = 8_192;
/// Bytes of payload per transaction.
const BYTES: usize = 16 << 20;

/// How much one request is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    /// Rows that it may touch.
    pub(crate) rows: usize,
    /// Bytes of payload that it brings.
    pub(crate) bytes: usize,
    /// Whether it overtakes others.
    pub(crate) urgent: bool,
}

impl Weight {
    /// So many rows without payload to speak of.
    pub(crate) const fn rows(rows: usize) -> Self {
        Weight { rows, bytes: 0, urgent: false }
    }
}

/// One request.
pub(crate) trait Call: Send {
    /// How much it is.
    fn weight(&self) -> Weight;
    /// Whether it must not share a transaction with others.
    fn alone(&self) -> bool {
        false
    }
    /// Does its work; may be called again after a rollback. What is refused is kept as the answer.
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), rusqlite::Error>;
    /// Gives the answer, after the commit.
    fn answer(self: Box<Self>);
    /// Gives an error instead.
    fn refuse(self: Box<Self>, error: Error);
}

/// A request as a closure.
pub(crate) struct Typed<F, T> {
    pub(crate) weight: Weight,
    pub(crate) body: F,
    pub(crate) sender: Sender<mainspring_core::Result<T>>,
    pub(crate) reply: Option<mainspring_core::Result<T>>,
}

impl<F, T> Call for Typed<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T> + Send,
    T: Send,
{
    fn weight(&self) -> Weight {
        self.weight
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), rusqlite::Error> {
        self.reply = Some(match (self.body)(tx) {
            Ok(value) => Ok(value),
            Err(Fault::Refused(error @ Error::Corrupt { .. })) => return Err(damaged(error)),
            Err(Fault::Refused(error)) => Err(error),
            Err(Fault::Sql(error)) => return Err(error),
        });
        Ok(())
    }

    fn answer(self: Box<Self>) {
        let it = *self;
        it.sender.send(it.reply.unwrap_or_else(|| Err(Error::unavailable("the request was not run"))));
    }

    fn refuse(self: Box<Self>, error: Error) {
        self.sender.send(Err(error));
    }
}

/// What the writer finds.
pub(super) enum WriterWork {
    /// Work for one transaction.
    Calls(Vec<Box<dyn Call>>),
    /// Nothing, within the time that it was to wait or until it was nudged.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum QueueState {
    #[default]
    Open,
    Closed,
    /// For this reason.
    Poisoned(Box<str>),
}

impl QueueState {
    /// Why nothing gets in, if so.
    fn refusal(&self) -> Option<Error> {
        match self {
            QueueState::Open => None,
            QueueState::Closed => Some(Error::Closed),
            QueueState::Poisoned(why) => Some(Error::Poisoned { why: why.to_string() }),
        }
    }
}

#[derive(Default)]
struct Inner {
    urgent: VecDeque<Box<dyn Call>>,
    calls: VecDeque<Box<dyn Call>>,
    gate: QueueState,
    /// Threads of the store that have a connection open.
    running: usize,
    waiting_for_end: Vec<Waker>,
}

/// Requests on their way to the writer.
#[derive(Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    filled: Condvar,
}

impl Queue {
    /// Hands in a request, or refuses it at once.
    pub(crate) fn push(&self, call: Box<dyn Call>) {
        // The writer's own thread runs an application's code: what it hands in would wait for itself.
        if let Err(error) = check_outside() {
            return call.refuse(error);
        }
        let mut inner = self.lock();
        let full =
            || (inner.calls.len() >= WAITING).then(|| Error::unavailable("too many requests are waiting"));
        let refusal = inner.gate.refusal().or_else(full);
        if let Some(error) = refusal {
            drop(inner);
            return call.refuse(error);
        }
        if call.weight().urgent {
            inner.urgent.push_back(call);
        } else {
            inner.calls.push_back(call);
        }
        drop(inner);
        self.filled.notify_one();
    }

    /// Waits for work, and takes as much of it as fits into one transaction.
    pub(super) fn take(&self, patience: Option<Duration>) -> WriterWork {
        let mut inner = self.lock();
        loop {
            if !inner.urgent.is_empty() || !inner.calls.is_empty() {
                return WriterWork::Calls(inner.batch());
            }
            if inner.gate != QueueState::Open {
                return WriterWork::Closed;
            }
            inner = match patience {
                None => {
                    let inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
                    // Nudged: somebody may listen now.
                    if inner.urgent.is_empty() && inner.calls.is_empty() && inner.gate == QueueState::Open {
                        return WriterWork::Nothing;
                    }
                    inner
                }
                Some(patience) => {
                    let (inner, timeout) =
                        self.filled.wait_timeout(inner, patience).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && inner.urgent.is_empty() && inner.calls.is_empty() {
                        return if inner.gate == QueueState::Open {
                            WriterWork::Nothing
                        } else {
                            WriterWork::Closed
                        };
                    }
                    inner
                }
            };
        }
    }

    /// Lets the writer look up, so that it notices what has changed around it.
    pub(crate) fn nudge(&self) {
        self.filled.notify_one();
    }

    /// Lets nothing in any more; what waits is still done.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        if inner.gate == QueueState::Open {
            inner.gate = QueueState::Closed;
        }
        drop(inner);
        self.filled.notify_all();
    }

    /// Refuses everything from now on, also what waits.
    pub(super) fn poison(&self, why: &str) {
        let refused: Vec<_> = {
            let mut inner = self.lock();
            inner.gate = QueueState::Poisoned(why.into());
            let Inner { urgent, calls, .. } = &mut *inner;
            urgent.drain(..).chain(calls.drain(..)).collect()
        };
        for call in refused {
            call.refuse(Error::Poisoned { why: why.to_owned() });
        }
    }

    /// Why nothing gets in, if so.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.lock().gate.refusal()
    }

    /// A thread of the store begins.
    pub(crate) fn began(&self) {
        self.lock().running += 1;
    }

    /// A thread of the store has closed its connection.
    pub(crate) fn ended(&self) {
        let wakers = {
            let mut inner = self.lock();
            inner.running = inner.running.saturating_sub(1);
            self.filled.notify_all();
            if inner.running > 0 {
                return;
            }
            std::mem::take(&mut inner.waiting_for_end)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits until the writer's connection is the only one left. SQLite takes the log away with the last connection,
    /// but not if two are closed at the same moment. A poisoned store does not wait: its node must be seen to be dead.
    pub(super) fn await_readers(&self) {
        let mut inner = self.lock();
        while inner.gate == QueueState::Closed && inner.running > 1 {
            inner = self.filled.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether all connections are closed; wakes `waker` when the last one is.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        let ended = inner.running == 0;
        if !ended {
            inner.waiting_for_end.push(waker.clone());
        }
        ended
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes calls in order until a bound is met; at least one.
    fn batch(&mut self) -> Vec<Box<dyn Call>> {
        let mut taken: Vec<Box<dyn Call>> = self.urgent.drain(..).collect();
        let (mut rows, mut bytes) = (0, 0);
        while let Some(call) = self.calls.front() {
            let weight = call.weight();
            rows += weight.rows;
            bytes += weight.bytes;
            let full = taken.len() >= CALLS || rows > ROWS || bytes > BYTES;
            let alone = call.alone();
            if (full || alone) && !taken.is_empty() {
                break;
            }
            taken.extend(self.calls.pop_front());
            if alone {
                break;
            }
        }
        taken
    }
}
