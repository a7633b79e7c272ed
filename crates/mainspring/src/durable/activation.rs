//! Activations: how a handler is polled, and when it is suspended.
//!
//! A handler is polled with a waker of our own. When it is pending, and nobody else holds that waker, then only we can
//! wake it: what it waits for are durable operations, which do not keep it. If at least one is open and no body or call of
//! ours is under way, the handler is suspended. A future that something else will wake, a socket or a channel or a timer,
//! has cloned the waker: then the handler keeps its slot, and is never dropped for that.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use mainspring_core::job::Ended;
use mainspring_core::seam::Pending;

use super::next_action::Stay;
use super::polled_code;
use super::session::{Assessment, Session};
use crate::job_run::JobRun;
use crate::sync::{AtomicBool, Mutex};

/// After how long a handler that keeps its slot although it waits is named, in the log and by `why`.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// The waker of a handler.
#[derive(Default)]
pub(crate) struct HandlerWaker {
    outer: Mutex<Option<Waker>>,
    woken: AtomicBool,
}

impl Wake for HandlerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        let outer = self.outer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(outer) = outer {
            outer.wake();
        }
    }
}

/// A handler with all that belongs to it: the unit that runs, and that the handler cache keeps.
pub(crate) struct Activation {
    pub(crate) session: Arc<Session>,
    pub(crate) future: Pending<'static, Ended>,
}

impl Activation {
    /// Polls the handler until it ends or is to be suspended.
    pub(crate) async fn run(&mut self) -> Ended {
        // The first poll needs no wake.
        self.session.handler_waker.woken.store(true, Ordering::Relaxed);
        let clock = Arc::clone(&self.session.engine.seams().clock);
        let mut foreign_wait = None;
        loop {
            let run = self.session.run();
            let mut look: Option<Pending<'static, ()>> = None;
            let outcome = poll_fn(|context| self.poll(context, &run, &mut look, &mut foreign_wait)).await;
            match outcome {
                PollOutcome::Ended(ended) => return ended,
                PollOutcome::Fetch => {
                    let after = self.session.state().inbox.last();
                    match self.session.engine.store().inbox(vec![(run.claim, after)]).await {
                        Ok(inboxes) => inboxes.into_iter().for_each(|inbox| self.session.received(inbox)),
                        Err(error) => {
                            tracing::debug!(%error, job_id = %run.info.id, "cannot read the inbox");
                            clock.sleep(RETRY).await;
                        }
                    }
                }
                PollOutcome::Flush => {
                    if let Err(error) = self.session.record(Vec::new(), Vec::new()).await {
                        tracing::warn!(%error, job_id = %run.info.id, "cannot record the waits; trying again");
                        clock.sleep(RETRY).await;
                    }
                }
            }
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        run: &JobRun,
        look: &mut Option<Pending<'static, ()>>,
        foreign_wait: &mut Option<ForeignWait>,
    ) -> Poll<PollOutcome> {
        let session = &self.session;
        let waker = &session.handler_waker;
        *waker.outer.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        let mut news = run.take_mail(context);
        if let Some(due) = look
            && due.as_mut().poll(context).is_ready()
        {
            *look = None;
            // What is due by time is found by looking, what was sent by asking.
            waker.woken.store(true, Ordering::Relaxed);
            news = true;
        }
        if waker.woken.swap(false, Ordering::AcqRel) {
            let mut inner = Context::from_waker(&session.waker);
            let future = Pin::new(&mut self.future);
            let _in_poll = run.in_poll();
            if let Poll::Ready(ended) = polled_code::within(session, false, || future.poll(&mut inner)) {
                return Poll::Ready(PollOutcome::Ended(ended));
            }
        }
        // Whoever held the waker and let it go has woken us before: that is seen below.
        let wakers = Arc::strong_count(waker).saturating_sub(2);
        std::sync::atomic::fence(Ordering::Acquire);
        if waker.woken.load(Ordering::Acquire) {
            // Its wake went to our own waker, too: others get their turn first.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match session.assess(wakers, news) {
            Assessment::Suspended(suspension) => {
                Poll::Ready(PollOutcome::Ended(Ended::Suspended(suspension)))
            }
            Assessment::Fetch => Poll::Ready(PollOutcome::Fetch),
            Assessment::Flush => Poll::Ready(PollOutcome::Flush),
            Assessment::Wake => {
                session.wake_waits();
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Assessment::Stay(Stay { look: after, idle, foreign }) => {
                let warn = self.warn_foreign(run, foreign, foreign_wait);
                let Some(wait) = after.into_iter().chain(warn).min() else {
                    return Poll::Pending;
                };
                let clock = &self.session.engine.seams().clock;
                // Nothing is due when only a name is to be given, or the inbox to be looked into.
                let idle = idle || after.is_none_or(|after| wait < after);
                let due = look.insert(if idle { clock.idle(wait) } else { clock.sleep(wait) });
                if due.as_mut().poll(context).is_ready() {
                    *look = None;
                    self.session.handler_waker.woken.store(true, Ordering::Relaxed);
                    context.waker().wake_by_ref();
                }
                Poll::Pending
            }
        }
    }

    /// Says once, after a while, that a handler keeps its slot; tells when to come again for that.
    fn warn_foreign(
        &self,
        run: &JobRun,
        foreign: bool,
        foreign_wait: &mut Option<ForeignWait>,
    ) -> Option<Duration> {
        if !foreign {
            *foreign_wait = None;
            run.set_foreign(false);
            return None;
        }
        let now = self.session.engine.seams().clock.monotonic();
        let moves = self.session.state().under_way.moves();
        if foreign_wait.as_ref().is_none_or(|wait| wait.moves != moves) {
            run.set_foreign(false);
            *foreign_wait = Some(ForeignWait { since: now, moves });
        }
        let since = foreign_wait.as_ref().map_or(now, |wait| wait.since);
        let left = WARN_AFTER.saturating_sub(now.saturating_sub(since));
        if !left.is_zero() {
            return Some(left);
        }
        if !run.is_foreign() {
            run.set_foreign(true);
            let waits: Vec<_> = self.session.state().waits.keys().iter().map(ToString::to_string).collect();
            tracing::warn!(
                job_id = %run.info.id, kind = %run.info.kind, waits = waits.join(", "),
                "handler keeps its slot: it awaits something that is not durable"
            );
        }
        None
    }
}

/// Since when a handler has not gone on, although nothing of ours is under way.
struct ForeignWait {
    since: Duration,
    /// What its session had counted then.
    moves: u64,
}

/// How long to wait before the store is asked again.
const RETRY: Duration = Duration::from_millis(200);

/// What comes of polling a handler.
enum PollOutcome {
    Ended(Ended),
    Fetch,
    Flush,
}
