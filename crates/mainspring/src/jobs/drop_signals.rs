//! Dropping signals that nobody has read.

use std::future::IntoFuture;

use mainspring_core::id::JobId;
use mainspring_core::name::SignalName;
use mainspring_core::seam::Pending;
use mainspring_core::{Error, Result};

use crate::durable::drift::DRIFT_SIGNAL;
use crate::engine::Engine;

/// Signals to drop. Nothing changes until you await it; see [`Jobs::drop_signals`](crate::admin::Jobs::drop_signals).
#[must_use = "nothing is dropped until this is awaited"]
pub struct DropSignals<'a> {
    engine: &'a Engine,
    id: JobId,
    name: Result<SignalName>,
    sender: Option<String>,
}

impl<'a> DropSignals<'a> {
    pub(super) fn new(engine: &'a Engine, id: JobId, name: &str) -> Self {
        let name = SignalName::new(name).and_then(|name| match name.as_str() {
            DRIFT_SIGNAL => {
                Err(Error::Invalid { what: "signal", why: format!("the engine reserves `{name}`") })
            }
            _ => Ok(name),
        });
        DropSignals { engine, id, name, sender: None }
    }

    /// Drops only the signals of this sender. Default: those of all senders.
    pub fn sender(mut self, sender: impl Into<String>) -> Self {
        self.sender = Some(sender.into());
        self
    }

    async fn drop_unread(self) -> Result<usize> {
        let dropped = self.engine.store().drop_signals(self.id, self.name?, self.sender).await?;
        dropped.ok_or(Error::NotFound(self.id))
    }
}

impl<'a> IntoFuture for DropSignals<'a> {
    type Output = Result<usize>;
    type IntoFuture = Pending<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.drop_unread())
    }
}
