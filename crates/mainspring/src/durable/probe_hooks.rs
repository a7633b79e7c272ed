//! What a test wants to know of a handler that is in its slot: whether it only waits for backoffs, and where its node is to
//! die.

use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::name::Key;
use std::time::Duration;

use super::session::{Busy, Session};
use crate::job_run::StepBackoff;
use crate::testing::{Probe, ProbeVerdict};

impl Session {
    /// Pauses before a step is tried again.
    pub(crate) async fn back_off(&self, key: &Key, pause: Duration) {
        let clock = &self.engine.seams().clock;
        let backoff = StepBackoff { key: key.clone(), until: clock.monotonic().saturating_add(pause) };
        let _guard = BackoffGuard::begin(self, backoff);
        clock.sleep(pause).await;
    }

    /// What a probe says of the body of a transaction step that has succeeded. It is not run again, and a crash comes after
    /// the commit: rows and record are one.
    pub(crate) fn probed(probe: Option<&dyn Probe>, job: JobId, key: &Key) -> Result<bool, Failure> {
        match probe.map(|probe| probe.ran(job, key)) {
            Some(ProbeVerdict::Fail(why)) => Err(Failure::from(why)),
            verdict => Ok(verdict == Some(ProbeVerdict::Crash)),
        }
    }

    /// The node dies here, if it is to.
    pub(crate) async fn crash(&self, dies: bool) {
        if let (true, Some(probe)) = (dies, self.probe()) {
            probe.crash();
            std::future::pending::<()>().await;
        }
    }
}

/// A pause before a step is tried again, until it is dropped.
struct BackoffGuard<'a> {
    session: &'a Session,
    backoff: StepBackoff,
    _busy: Busy<'a>,
}

impl<'a> BackoffGuard<'a> {
    fn begin(session: &'a Session, backoff: StepBackoff) -> Self {
        session.state().backoffs.push(backoff.clone());
        BackoffGuard { session, backoff, _busy: session.busy() }
    }
}

impl Drop for BackoffGuard<'_> {
    fn drop(&mut self) {
        let session = self.session;
        let mut state = session.state();
        if let Some(at) = state.backoffs.iter().position(|backoff| *backoff == self.backoff) {
            state.backoffs.swap_remove(at);
        }
        drop(state);
        session.run().set_backoff(None);
    }
}
