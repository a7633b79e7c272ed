//! One run of a job on this node: what the runner, the lease keeper and the handler share.
//!
//! A run begins with a claim and ends with the outcome that the node stores under it. Meanwhile it carries what the one has
//! to say to the other: that the run is to stop, how far the job has come, that a message was sent, for how long it runs.
//!
//! # Invariants
//! - A request to stop is never taken back. Only the loss of the lease overrules another one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mainspring_core::id::{Claim, NodeNo};
use mainspring_core::job::Progress;
use mainspring_core::name::Key;
use mainspring_core::store::{Cancellation, Claimed, Mark};
use mainspring_core::time::Timestamp;
use tokio::sync::Notify;

use crate::context::Info;
use crate::node::lease::Lease;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};

/// Why a run is to stop.
#[derive(Debug, Clone)]
pub(crate) enum Stop {
    /// Somebody cancelled the job.
    Cancel(Cancellation),
    /// The node shuts down: the claim is given back.
    Release,
    /// The node lost its lease: nothing that this run writes would be accepted.
    Abandon,
}

/// What a runner hears of a run from elsewhere.
#[derive(Debug, Clone)]
pub(crate) enum Interrupt {
    /// The run is to stop.
    Stop(Stop),
    /// The node drains: the handler may want to know.
    Drain,
}

/// One run of one job on this node: what the runner, the lease keeper and the handler share.
#[derive(Debug)]
pub(crate) struct JobRun {
    pub(crate) info: Arc<Info>,
    pub(crate) claim: Claim,
    pub(crate) node: NodeNo,
    lease: Arc<Lease>,
    pub(crate) suspect: bool,
    pub(crate) crashed: Duration,
    /// When it was started, in microseconds on the monotonic clock; 0 while it waits for a slot, and when it is over.
    began: AtomicU64,
    /// Whether its input is read before its handler begins.
    reading: AtomicBool,
    /// When it was claimed, by the store's clock and by ours.
    claimed: (Timestamp, Duration),
    /// When the claim was sent, by our clock: the store has decided no sooner. Its answer may have waited here while the process was
    /// stopped.
    asked: Duration,
    /// How long after the monotonic clock's start its deadline passes.
    deadline: Option<Duration>,
    /// Whether the keeper has stored that it is stuck, cleared, or awaits something foreign.
    marked: [AtomicBool; 3],
    /// Whether the handler awaits something that is not durable, and has done so for a while.
    foreign: AtomicBool,
    /// Whether the handler wants to be asked before it is dropped.
    cooperative: AtomicBool,
    /// Whether the handler gets no more time to end in its own way.
    hurry: AtomicBool,
    /// Whether the node drains.
    draining: AtomicBool,
    stop: Mutex<Option<Stop>>,
    stopped: Notify,
    progress: Mutex<Option<Progress>>,
    /// Whether something was sent to the job since its handler last looked, and who is to be woken by that.
    mail: Mutex<(bool, Option<std::task::Waker>)>,
    /// The pause for which alone the handler waits; see [`set_backoff`](Self::set_backoff).
    backoff: Mutex<Option<StepBackoff>>,
    /// Transactions of its steps that are under way.
    transactions: AtomicUsize,
    /// Beginnings and ends of its handler's polls: odd while a poll is under way. Written by the polling thread alone.
    polls: AtomicU64,
}

/// A poll of a handler that is under way, until it is dropped.
pub(crate) struct InPoll<'a>(&'a AtomicU64);

impl<'a> InPoll<'a> {
    fn begin(polls: &'a AtomicU64) -> Self {
        polls.store(polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        InPoll(polls)
    }
}

impl Drop for InPoll<'_> {
    fn drop(&mut self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// A transaction of a step that is under way, until it is dropped.
pub(crate) struct InTransaction(Arc<JobRun>);

impl InTransaction {
    pub(crate) fn begin(run: Arc<JobRun>) -> Self {
        run.transactions.fetch_add(1, Ordering::SeqCst);
        InTransaction(run)
    }
}

impl Drop for InTransaction {
    fn drop(&mut self) {
        self.0.transactions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The backoff of a step: the handler is in its slot and goes on when the time has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepBackoff {
    pub(crate) key: Key,
    /// By the monotonic clock.
    pub(crate) until: Duration,
}

impl JobRun {
    /// A job that was claimed at `now` by the store's clock, which is `monotonic` by ours.
    pub(crate) fn new(
        job: &mut Claimed,
        node: NodeNo,
        lease: Arc<Lease>,
        now: Timestamp,
        monotonic: Duration,
    ) -> Self {
        JobRun {
            lease,
            claim: job.claim,
            node,
            suspect: job.is_suspect(),
            crashed: Duration::from_micros(u64::try_from(job.crashed_micros).unwrap_or(0)),
            info: Arc::new(Info::new(job)),
            began: AtomicU64::new(0),
            reading: AtomicBool::new(false),
            claimed: (now, monotonic),
            asked: monotonic,
            deadline: job.deadline.map(|deadline| monotonic + deadline.since(now)),
            marked: [const { AtomicBool::new(false) }; 3],
            foreign: AtomicBool::new(false),
            cooperative: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            stop: Mutex::new(None),
            stopped: Notify::new(),
            progress: Mutex::new(None),
            mail: Mutex::default(),
            backoff: Mutex::default(),
            transactions: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
        }
    }

    /// Notes that its handler is polled, until the returned value is dropped. Looks at no clock: the watchdog does.
    pub(crate) fn in_poll(&self) -> InPoll<'_> {
        InPoll::begin(&self.polls)
    }

    /// The count of a poll that is under way: another one has another count.
    pub(crate) fn poll_under_way(&self) -> Option<u64> {
        Some(self.polls.load(Ordering::Relaxed)).filter(|count| count % 2 == 1)
    }

    /// The claim was sent some time before its answer was taken in.
    pub(crate) fn asked_for_at(mut self, asked: Duration) -> Self {
        self.asked = asked;
        self
    }

    /// Whether the claim has certainly lapsed, so that nothing is to be begun under it: the process was stopped.
    pub(crate) fn is_lapsed(&self, monotonic: Duration) -> bool {
        self.lease.is_lapsed(self.asked, monotonic)
    }

    /// The store's time, reckoned from its answer to the claim.
    pub(crate) fn store_time(&self, monotonic: Duration) -> Timestamp {
        self.claimed.0.after(monotonic.saturating_sub(self.claimed.1))
    }

    /// When it was claimed, by the store's clock.
    pub(crate) fn claimed_at(&self) -> Timestamp {
        self.claimed.0
    }

    /// Notes that the handler waits for nothing but backoffs of its steps, of which this ends first; or that it does not.
    pub(crate) fn set_backoff(&self, backoff: Option<StepBackoff>) {
        *self.backoff.lock().unwrap_or_else(PoisonError::into_inner) = backoff;
    }

    /// Whether a transaction of one of its steps is under way.
    pub(crate) fn in_transaction(&self) -> bool {
        self.transactions.load(Ordering::SeqCst) > 0
    }

    /// The backoff that the handler waits for, if it waits for nothing else.
    pub(crate) fn backoff(&self) -> Option<StepBackoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that the job was sent something.
    pub(crate) fn notify_mail(&self) {
        let waker = {
            let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
            mail.0 = true;
            mail.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether the job was sent something since the last look; whoever looks is woken by the next.
    pub(crate) fn take_mail(&self, context: &mut std::task::Context<'_>) -> bool {
        let mut mail = self.mail.lock().unwrap_or_else(PoisonError::into_inner);
        mail.1 = Some(context.waker().clone());
        std::mem::take(&mut mail.0)
    }

    /// Waits until the job is cancelled.
    pub(crate) async fn cancelled(&self) {
        self.cooperate();
        while !matches!(self.stop_requested().await, Stop::Cancel(_)) {
            // Released or abandoned: the run is dropped from outside, there is nothing to wait for here.
            std::future::pending::<()>().await;
        }
    }

    /// The handler wants to be asked before it is dropped.
    pub(crate) fn cooperate(&self) {
        self.cooperative.store(true, Ordering::Relaxed);
    }

    /// Notes that the handler starts.
    pub(crate) fn begin(&self, monotonic: Duration) {
        let micros = u64::try_from(monotonic.as_micros()).unwrap_or(u64::MAX);
        self.began.store(micros.max(1), Ordering::Relaxed);
        self.reading.store(false, Ordering::Relaxed);
    }

    /// Notes that its input is read first: the handler begins once that is there.
    pub(crate) fn read(&self) {
        self.reading.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.reading.load(Ordering::Relaxed)
    }

    /// Notes that the handler is over.
    pub(crate) fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// How long the handler has been running; `None` if it has not begun, or is over.
    pub(crate) fn running_for(&self, monotonic: Duration) -> Option<Duration> {
        match self.began.load(Ordering::Relaxed) {
            0 => None,
            micros => Some(monotonic.saturating_sub(Duration::from_micros(micros))),
        }
    }

    /// Notes whether a mark is stored; returns whether that is a change.
    pub(crate) fn mark(&self, mark: Mark, stored: bool) -> bool {
        let (at, stored) = match mark {
            Mark::Stuck => (0, stored),
            Mark::Cleared => (1, stored),
            Mark::Foreign => (2, stored),
            Mark::GoesOn => (2, !stored),
        };
        self.marked[at].swap(stored, Ordering::Relaxed) != stored
    }

    /// Notes whether the handler awaits something that is not durable, and has done so for a while.
    pub(crate) fn set_foreign(&self, foreign: bool) {
        self.foreign.store(foreign, Ordering::Relaxed);
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// How much time is left until the deadline.
    pub(crate) fn until_deadline(&self, monotonic: Duration) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_sub(monotonic))
    }

    /// Asks the run to stop. A cancellation is not forgotten because the node shuts down; only the loss of the lease
    /// overrules it.
    pub(crate) fn stop(&self, why: Stop) {
        if !matches!(why, Stop::Cancel(_)) {
            self.hurry.store(true, Ordering::Relaxed);
        }
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        if stop.is_none() || matches!(why, Stop::Abandon) {
            *stop = Some(why);
        }
        drop(stop);
        self.stopped.notify_waiters();
    }

    pub(crate) fn stop_reason(&self) -> Option<Stop> {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the run is asked to stop.
    pub(crate) async fn stop_requested(&self) -> Stop {
        self.look_until(JobRun::stop_reason).await
    }

    /// Notes that the node drains.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.stopped.notify_waiters();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Waits until the node drains.
    pub(crate) async fn drained(&self) {
        self.look_until(|run| run.is_draining().then_some(())).await;
    }

    /// Waits until the run is asked to stop, or until the node drains if the runner has not heard of that.
    pub(crate) async fn interrupted(&self, heard: bool) -> Interrupt {
        self.look_until(|run| {
            let drain = || (!heard && run.is_draining()).then_some(Interrupt::Drain);
            run.stop_reason().map(Interrupt::Stop).or_else(drain)
        })
        .await
    }

    /// Waits until the run is to stop for another reason than a cancellation, which it cannot put off.
    pub(crate) async fn must_go(&self) {
        self.look_until(|run| run.hurry.load(Ordering::Relaxed).then_some(())).await;
    }

    /// Waits until what becomes of the run is nobody's business any more.
    pub(crate) async fn abandoned(&self) {
        self.look_until(|run| matches!(run.stop_reason(), Some(Stop::Abandon)).then_some(())).await;
    }

    /// Waits for news in which `look` finds what it looks for.
    async fn look_until<T>(&self, look: impl Fn(&Self) -> Option<T>) -> T {
        loop {
            let mut notified = std::pin::pin!(self.stopped.notified());
            // Registered before the look, so that a request in between is not missed.
            notified.as_mut().enable();
            if let Some(seen) = look(self) {
                return seen;
            }
            notified.await;
        }
    }

    pub(crate) fn is_cooperative(&self) -> bool {
        self.cooperative.load(Ordering::Relaxed)
    }

    /// Says how far the job has come.
    pub(crate) fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }

    /// Keeps what could not be stored, unless the handler has said something since.
    pub(crate) fn keep_progress(&self, said: Progress) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(said);
    }

    /// What the handler last said, once.
    pub(crate) fn take_progress(&self) -> Option<Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mainspring_core::id::{JobId, Row};
    use mainspring_core::job::{Options, Priority};
    use mainspring_core::journal::Value;
    use mainspring_core::name::{Kind, QueueName};
    use mainspring_core::time::Span;

    use super::*;

    /// A run of a suspect that crashed after five seconds, with a time-out of ten.
    pub(crate) fn claimed(number: u32) -> Arc<JobRun> {
        let id = JobId::from_bytes([1; 16]);
        let timeout = Some(Span(Duration::from_secs(10)));
        let mut job = Claimed {
            ahead: false,
            journal: None,
            claim: Claim { id, row: Row(1), number },
            kind: Kind::new("k").expect("a kind"),
            queue: QueueName::new("q").expect("a queue"),
            priority: Priority::default(),
            input: Value::Here(Vec::new()),
            failures: 0,
            crashes: 2,
            crashed_micros: 5_000_000,
            created_at: Timestamp::EPOCH,
            deadline: None,
            options: Options { timeout, ..Options::default() },
        };
        Arc::new(JobRun::new(&mut job, NodeNo(1), Arc::default(), Timestamp::EPOCH, Duration::ZERO))
    }
}
