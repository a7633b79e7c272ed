//! What is under way: bodies of steps and calls of the store that the handler waits for.
//!
//! They wake the handler by themselves, and keep it in its slot meanwhile. The pause before a step is tried again counts as one of them; a
//! test clock may skip it if the handler waits for nothing else.

use std::time::Duration;

use mainspring_core::name::Key;

use super::session::Session;
use crate::job_run::StepBackoff;

/// What a handler has under way, and how far it has moved.
#[derive(Default)]
pub(crate) struct UnderWay {
    /// Bodies and calls of the store.
    busy: usize,
    /// Those of them that are pauses before a step is tried again.
    backoffs: Vec<StepBackoff>,
    /// Operations that have begun, and waits that have ended: if that stands still, so does the handler.
    moves: u64,
}

impl UnderWay {
    /// How many bodies and calls are under way.
    pub(super) fn busy(&self) -> usize {
        self.busy
    }

    /// An operation begins, or a wait ends.
    pub(super) fn moved(&mut self) {
        self.moves += 1;
    }

    pub(super) fn moves(&self) -> u64 {
        self.moves
    }

    /// Whether a step pauses before it is tried again.
    pub(super) fn pauses(&self) -> bool {
        !self.backoffs.is_empty()
    }

    /// The first pause to end, if the handler waits for pauses alone.
    pub(super) fn lone_pause(&self, wakers: usize) -> Option<StepBackoff> {
        // Each pause keeps one waker; one more is of something outside.
        let alone = self.busy == self.backoffs.len() && wakers <= self.busy;
        self.backoffs.iter().min_by_key(|backoff| backoff.until).filter(|_| alone).cloned()
    }
}

impl Session {
    /// Something is under way that the handler waits for, until the guard is dropped.
    pub(crate) fn busy(&self) -> BusyGuard<'_> {
        self.state().under_way.busy += 1;
        BusyGuard(self)
    }
}

/// Something that is under way, until it is dropped.
pub(crate) struct BusyGuard<'a>(&'a Session);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        let under_way = &mut self.0.state().under_way;
        under_way.busy = under_way.busy.saturating_sub(1);
    }
}

/// Pauses before a step is tried again.
pub(super) async fn back_off(session: &Session, key: &Key, pause: Duration) {
    let clock = &session.engine.seams().clock;
    let backoff = StepBackoff { key: key.clone(), until: clock.monotonic().saturating_add(pause) };
    let _guard = BackoffGuard::begin(session, backoff);
    clock.sleep(pause).await;
}

/// A pause before a step is tried again, until it is dropped.
struct BackoffGuard<'a> {
    session: &'a Session,
    backoff: StepBackoff,
    _busy: BusyGuard<'a>,
}

impl<'a> BackoffGuard<'a> {
    fn begin(session: &'a Session, backoff: StepBackoff) -> Self {
        session.state().under_way.backoffs.push(backoff.clone());
        BackoffGuard { session, backoff, _busy: session.busy() }
    }
}

impl Drop for BackoffGuard<'_> {
    fn drop(&mut self) {
        {
            let backoffs = &mut self.session.state().under_way.backoffs;
            if let Some(at) = backoffs.iter().position(|backoff| *backoff == self.backoff) {
                backoffs.swap_remove(at);
            }
        }
        self.session.run().set_backoff(None);
    }
}
