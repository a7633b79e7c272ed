//! Values that are drawn once: the time, randomness, ids.

use mainspring_core::Result;
use mainspring_core::id::JobId;
use mainspring_core::journal::{Entry, EntryKind};
use mainspring_core::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::key::Slot;
use super::left::Kept;
use super::step::Op;
use super::{keyed, lazy};
use crate::context::Context;

/// A value that is drawn once. Await it; see [`Context::now`].
#[must_use = "nothing is drawn until this is awaited"]
pub struct Draw<'c, T> {
    parts: Option<Parts<'c, T>>,
    run: Option<Kept<'c, Result<T>>>,
}

struct Parts<'c, T> {
    op: Op<'c>,
    draw: fn(&Slot) -> T,
}

keyed!(Draw<'c; T>, op);
lazy!(Draw<'c; T> => Result<T>, where { T: Serialize + DeserializeOwned + Send + 'c });

impl<T: Serialize + DeserializeOwned> Parts<'_, T> {
    async fn run(self) -> Result<T> {
        let (slot, written) = self.op.open().await?;
        let session = slot.session();
        if let Some(written) = written {
            return session.replay(&slot, written).await;
        }
        let value = (self.draw)(&slot);
        let json = serde_json::to_vec(&value)
            .map_err(|error| mainspring_core::Error::Convert { what: "value", source: error.into() })?;
        let entry = Entry {
            key: slot.key().clone(),
            kind: EntryKind::Value,
            overlapped: slot.overlapped(),
            value: json,
        };
        session.ride(entry, &[], true);
        Ok(value)
    }
}

impl Context {
    fn draw<T>(&self, name: &str, draw: fn(&Slot) -> T) -> Draw<'_, T> {
        Draw { parts: Some(Parts { op: Op::new(self, name), draw }), run: None }
    }

    /// The time, the same in every run of the handler. Costs nothing by itself: it is recorded with the next operation,
    /// and before a step's body can have seen it.
    ///
    /// # Errors
    /// [`DuplicateKey`](crate::Error::DuplicateKey), [`Nested`](crate::Error::Nested) and
    /// [`Detached`](crate::Error::Detached).
    pub fn now(&self, name: &str) -> Draw<'_, Timestamp> {
        self.draw(name, |slot| slot.session().now())
    }

    /// A random number, the same in every run of the handler; see [`now`](Self::now). Not for secrets.
    ///
    /// # Errors
    /// As [`now`](Self::now).
    pub fn random(&self, name: &str) -> Draw<'_, u64> {
        self.draw(name, |slot| slot.session().engine.seams().rng.next_u64())
    }

    /// A fresh `UUIDv7`, the same in every run of the handler; see [`now`](Self::now). It is a good id for a job, or for
    /// anything else.
    ///
    /// # Errors
    /// As [`now`](Self::now).
    pub fn uuid(&self, name: &str) -> Draw<'_, JobId> {
        self.draw(name, |slot| JobId::mint(slot.session().now(), &*slot.session().engine.seams().rng))
    }
}
