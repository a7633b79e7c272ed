//! Waits that keep units of limits.
//!
//! A suspended job gives the units of its limits back, so that others can run meanwhile. A wait may keep them for a while. The end of
//! that time is recorded when the wait begins: whatever circle of jobs wait for each other's units, it ends then. When the time is up, the
//! job is woken, and waits on without them.

use std::sync::Arc;
use std::time::Duration;

use mainspring_core::id::JobId;
use mainspring_core::journal::EntryKind;
use mainspring_core::limit::LimitUse;
use mainspring_core::name::Key;
use mainspring_core::time::Timestamp;
use mainspring_core::{Error, Result, bounds};

use super::key::side_key;
use super::operation::side_entry;
use super::session::Session;

/// Beside an operation's key: until when it keeps units.
const KEEPS: &str = "keeps";

/// Until when a wait keeps the units of its job; `None` if it does not, or the job has no limits.
pub(super) async fn keeps_until(
    session: &Arc<Session>,
    key: &Key,
    keep: Option<Duration>,
) -> Result<Option<Timestamp>> {
    let Some(keep) = keep.filter(|_| !session.run().info.options().limits.is_empty()) else {
        return Ok(None);
    };
    let key = side_key(key, KEEPS)?;
    if let Some(written) = session.find(&key) {
        return Ok(Some(Timestamp::from_micros(session.decoded(written).await?)));
    }
    if keep > bounds::DELAY {
        return Err(Error::Invalid { what: "keep_limits_for", why: "more than ten years".into() });
    }
    let until = session.now().after(keep);
    let value = until.as_micros().to_string().into_bytes();
    session.defer(side_entry(key, EntryKind::Value, value), &[], false);
    Ok(Some(until))
}

/// Refuses to keep what a child needs: it could not run before the time is up.
///
/// # Errors
/// [`Error::Invalid`], which names the limit.
pub(super) async fn check_child(session: &Arc<Session>, child: JobId) -> Result<()> {
    let found = {
        let _busy = session.busy();
        session.engine.store().get(child).await?
    };
    // It may have ended and been removed. What it said is among the messages then.
    let Some(its) = found.map(|record| record.summary.options.limits) else { return Ok(()) };
    let run = session.run();
    let own = &run.info.options().limits;
    let Some(LimitUse { limit, key, .. }) = own.iter().find(|own| its.iter().any(|one| one.is_same_key(own)))
    else {
        return Ok(());
    };
    let of = if key.is_empty() { String::new() } else { format!(" of `{key}`") };
    let why = format!("child {child} needs limit `{limit}`{of} too, and this job would keep it from running");
    Err(Error::Invalid { what: "keep_limits_for", why })
}

/// Gives a wait its `keep_limits_for`; `$keep` is where that is among its parts.
macro_rules! keeping {
    ($($keep:ident).+) => {
        /// Keeps the units of the job's [limits](crate::limit) for this long, from when the wait begins. After that time, the
        /// job waits on without them. Otherwise it gives them back while it is suspended, and waits for room when it
        /// continues.
        ///
        /// Others that need the units wait for that long as well, so keep it short. Jobs that keep units while they
        /// wait for each other continue when the time is up.
        pub fn keep_limits_for(mut self, time: Duration) -> Self {
            if let Some(parts) = &mut self.parts {
                parts.$($keep).+ = Some(time);
            }
            self
        }
    };
}
pub(super) use keeping;
