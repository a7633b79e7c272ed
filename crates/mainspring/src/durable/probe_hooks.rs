//! What a test wants to know of a handler that is in its slot: which steps have run, where it is to stop, and where its node is to die.

use mainspring_core::failure::Failure;
use mainspring_core::id::JobId;
use mainspring_core::name::Key;

use super::session::Session;
use crate::testing::{Probe, ProbeVerdict};

/// What a probe says of the body of a transaction step that has succeeded. It is not run again, and a crash comes after
/// the commit: rows and record are one.
pub(super) fn ran(probe: Option<&dyn Probe>, job: JobId, key: &Key) -> Result<bool, Failure> {
    match probe.map(|probe| probe.ran(job, key)) {
        Some(ProbeVerdict::Fail(why)) => Err(Failure::from(why)),
        verdict => Ok(verdict == Some(ProbeVerdict::Crash)),
    }
}

/// The node dies here, if it is to.
pub(super) async fn crash(session: &Session, dies: bool) {
    if let (true, Some(probe)) = (dies, session.probe()) {
        probe.crash();
        std::future::pending::<()>().await;
    }
}

/// Whether an operation that is not recorded is not to be done either.
pub(super) fn stops(session: &Session, key: &Key) -> bool {
    session.probe().is_some_and(|probe| probe.stops(session.run().info.id, key))
}

/// Stops here for good, if nothing is to be done but what is recorded.
pub(super) async fn stop(session: &Session, key: &Key) {
    if stops(session, key) {
        session.state().replay.drift.stop();
        std::future::pending::<()>().await;
    }
}
