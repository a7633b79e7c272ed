//! Values that are drawn once: the time, randomness, ids.

use mainspring_core::id::JobId;
use mainspring_core::journal::EntryKind;
use mainspring_core::time::Timestamp;
use mainspring_core::{Result, Uuid};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::dropped::OpFuture;
use super::operation::{Op, OpKey, keyed, lazy};
use crate::context::Context;

/// A value that is drawn once. Await it; see [`Context::now`].
#[must_use = "nothing is drawn until this is awaited"]
pub struct RecordedValue<'c, T> {
    parts: Option<Parts<'c, T>>,
    run: Option<OpFuture<'c, Result<T>>>,
}

struct Parts<'c, T> {
    op: Op<'c>,
    make: fn(&OpKey) -> T,
}

keyed!(RecordedValue<'c; T>, op);
lazy!(RecordedValue<'c; T> => Result<T>, where { T: Serialize + DeserializeOwned + Send + 'c });

impl<T: Serialize + DeserializeOwned> Parts<'_, T> {
    async fn run(self) -> Result<T> {
        let (op_key, written) = self.op.open().await?;
        let session = op_key.session();
        if let Some(written) = written {
            return session.replay(&op_key, written).await;
        }
        let value = (self.make)(&op_key);
        let json = serde_json::to_vec(&value)
            .map_err(|error| mainspring_core::Error::Convert { what: "value", source: error.into() })?;
        session.defer(op_key.entry(EntryKind::Value, json), &[], true);
        Ok(value)
    }
}

impl Context {
    fn recorded_value<T>(&self, name: &str, make: fn(&OpKey) -> T) -> RecordedValue<'_, T> {
        RecordedValue { parts: Some(Parts { op: Op::new(self, name), make }), run: None }
    }

    /// Returns the time, the same in every run of the handler.
    ///
    /// It costs nothing by itself: it is recorded with the next operation, and before a step's body can see it.
    ///
    /// # Errors
    /// [`DuplicateKey`](crate::Error::DuplicateKey), [`Nested`](crate::Error::Nested) and
    /// [`Detached`](crate::Error::Detached).
    pub fn now(&self, name: &str) -> RecordedValue<'_, Timestamp> {
        self.recorded_value(name, |op_key| op_key.session().now())
    }

    /// Returns a random number, the same in every run of the handler; see [`now`](Self::now). Do not use it for
    /// secrets.
    ///
    /// # Errors
    /// As [`now`](Self::now).
    pub fn random(&self, name: &str) -> RecordedValue<'_, u64> {
        self.recorded_value(name, |op_key| op_key.session().engine.seams().rng.next_u64())
    }

    /// Returns a new `UUIDv7`, the same in every run of the handler; see [`now`](Self::now). It is a good id for
    /// anything, also for a job, by [`JobId::from_uuid`].
    ///
    /// # Errors
    /// As [`now`](Self::now).
    pub fn uuid(&self, name: &str) -> RecordedValue<'_, Uuid> {
        self.recorded_value(name, |op_key| {
            JobId::mint(op_key.session().now(), &*op_key.session().engine.seams().rng).uuid()
        })
    }
}
